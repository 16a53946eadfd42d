"""A broker whose message tables have new versions of Produce, Fetch and EndTxn, with fields that do not exist in Kafka.
`run_alone` runs this in a separate process, which changes the tables before a module reads them. No handler is changed.
"""
from __future__ import annotations

import pathlib
import shutil
import sys
from collections.abc import Sequence

from kbroker.protocol import schema

LATER = {
    'api 0 Produce  versions 3-13': 'api 0 Produce  versions 3-14',
    'api 1 Fetch  versions 4-18': 'api 1 Fetch  versions 4-19',
    'api 26 EndTxn  versions 0-5': 'api 26 EndTxn  versions 0-6',
}
NEW_FIELDS: dict[str, Sequence[tuple[str, str]]] = {
    # Maps each request to its additions: (the field before which the lines are inserted, or '' for the end; the lines).
    'api 0 Produce': (
        ('  acks ', '  priority  int8  14+\n  labels  []Label  14+\n    key  string  14+\n    value  bytes?  14+\n'),
        ('    partition_data ', '    tenant  string?  14+  = null\n    trace  uuid  14+  tag 3\n'),
        ('      records ', '      checksums  []int64  14+\n      origin  Origin  14+\n        rack  string  14+\n'),
        ('', '  deadline_ms  int64  14+\n  budget  int32  14+  tag 0  = -1\n'),
    ),
    'api 1 Fetch': (
        ('  isolation_level ', '  filters  []string?  19+\n'),
        ('      fetch_offset ', '      lag  int64  19+\n      hint  string  19+\n'),
        ('  rack_id ', '  region  string?  19+  = null\n'),
        ('', '  priority  int8  19+\n  urgency  int8  19+  tag 2\n'),
    ),
    'api 26 EndTxn': (
        ('  committed ', '  reasons  []string  6+\n'),
        ('', '  deadline_ms  int64  6+\n  trace  uuid  6+  tag 0\n'),
    ),
}


def change_tables(directory: pathlib.Path) -> None:
    """Copy the tables, add the new versions and their fields to the copy, and let the protocol room use the copy."""
    tables = directory / 'tables'
    shutil.copytree(schema.TABLES, tables)
    for path in tables.glob('*.txt'):
        path.write_text('\n\n\n'.join(map(with_new_fields, path.read_text().split('\n\n\n'))))
    schema.TABLES = tables


def with_new_fields(api: str) -> str:
    header, _, rest = api.partition('request\n')
    request, _, response = rest.partition('\nresponse')
    for name, fields in NEW_FIELDS.items():
        if header.startswith(f'{name} '):
            for before, lines in fields:
                at = f'\n{request}'.index(f'\n{before}') if before else len(request)
                request = request[:at] + lines + request[at:]
            for old, new in LATER.items():
                header = header.replace(old, new)
            return f'{header}request\n{request}\nresponse{response}'
    return api


def later_versions_are_served(directory: pathlib.Path) -> None:
    """Write, commit and fetch a record with requests of the new versions, in which each new field is set."""
    assert 'kbroker.protocol.messages' not in sys.modules
    change_tables(directory)
    sys.path.append(str(pathlib.Path(__file__).parent))
    from api_client import TransactionalClient, values_of
    from support.brokers.in_process_broker import InProcessBroker

    from kbroker.apis.serving import served
    from kbroker.apis.serving.request import up_to

    apis = [up_to(api, api.max_version + 1) if api.key in (0, 1, 26) else api for api in served.served_apis()]
    served.served_apis = lambda: apis
    with InProcessBroker(directory / 'data', {'transaction.state.log.num.partitions': '1'}) as node:
        client = TransactionalClient(node)
        topic_id = client.create_topic()
        connection = node.connect()
        answer = client.ask(
            'Produce', 14, connection=connection, transactional_id='tx', priority=7, acks=-1, timeout_ms=1000,
            labels=[{'key': 'a', 'value': None}, {'key': 'b', 'value': b'c'}], deadline_ms=9, budget=5, topic_data=[
                {'topic_id': topic_id, 'tenant': 'one', 'trace': b'\7' * 16, 'partition_data': [
                    {'index': 0, 'checksums': [1, 2, 3], 'origin': {'rack': 'r'}, 'records': client.batch(b'value')}]}])
        assert answer.responses[0].partition_responses[0].error_code == 0
        answer = client.ask(
            'EndTxn', 6, transactional_id='tx', producer_id=client.producer_id, producer_epoch=client.producer_epoch,
            reasons=['done'], committed=True, deadline_ms=9, trace=b'\7' * 16)
        assert answer.error_code == 0
        answer = client.ask(
            'Fetch', 19, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, filters=['x', 'y'], isolation_level=1,
            priority=1, urgency=2, region='eu', replica_state={'replica_id': -1, 'replica_epoch': -1}, topics=[
                {'topic_id': topic_id, 'partitions': [
                    {'partition': 0, 'lag': 3, 'hint': 'near', 'fetch_offset': 0, 'partition_max_bytes': 1 << 20}]}])
        assert values_of(answer.responses[0].partitions[0].records) == [b'value']

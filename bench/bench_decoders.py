"""Rows and records as text, compared with the reference codec and json.dumps. The check of indexes, compared with a
walk over the log that they index.

    python -m pytest bench/bench_decoders.py -o python_files=bench_*.py --benchmark-group-by=group
"""
import io
import json
import pathlib
import struct
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'tests'))

from reference import codec as reference

from kbroker.protocol.json import kafka_name
from kbroker.protocol.messages import PartitionRecord, TransactionLogKey, TransactionLogValue
from kbroker.protocol.metadata_records import encode_metadata_record
from kbroker.protocol.rows import TYPE_BYTES, encode_row_key, encode_row_value
from kbroker.record.batch import encode_batch
from kbroker_tools.dump.index import ErrorReport, IndexOptions, dump_index, dump_time_index
from kbroker_tools.rows.decoders import decoder

T = 1_700_000_000_000
VALUE = TransactionLogValue(
    producer_id=1000, previous_producer_id=1000, producer_epoch=3, transaction_timeout_ms=60_000, transaction_status=1,
    transaction_partitions=[TransactionLogValue.PartitionsSchema(topic='orders', partition_ids=[0, 1])],
    transaction_last_update_timestamp_ms=T + 5, transaction_start_timestamp_ms=T)
KEY_DATA = encode_row_key(TransactionLogKey(transactional_id='tx-1'))
VALUE_DATA = encode_row_value(VALUE, 1)
PARTITION_DATA = encode_metadata_record(PartitionRecord(replicas=[1], isr=[1], directories=[bytes(16)]), 1)
BATCHES = 2000


def in_kafkas_words(value):
    if isinstance(value, dict):
        return {kafka_name(name): in_kafkas_words(each) for name, each in value.items()}
    return [in_kafkas_words(each) for each in value] if isinstance(value, list) else value


@pytest.mark.benchmark(group='a row of __transaction_state')
def test_row(benchmark):
    assert '"producerId":1000' in benchmark(decoder('transaction').decode, 0, KEY_DATA, VALUE_DATA)[1]


@pytest.mark.benchmark(group='a row of __transaction_state')
def test_row_by_reference(benchmark):
    def show():
        found = [reference.decode(TransactionLogKey.schema, 0, KEY_DATA[TYPE_BYTES:]),
                 reference.decode(TransactionLogValue.schema, 1, VALUE_DATA[TYPE_BYTES:])]
        return [json.dumps(in_kafkas_words(each), separators=(',', ':')) for each in found]

    assert '"producerId":1000' in benchmark(show)[1]


@pytest.mark.benchmark(group='a record of __cluster_metadata')
def test_record(benchmark):
    assert 'PARTITION_RECORD' in benchmark(decoder('cluster-metadata').decode, 0, None, PARTITION_DATA)[1]


@pytest.mark.benchmark(group=f'{BATCHES} entries')
@pytest.mark.parametrize(('suffix', 'dump'), [('.index', dump_index), ('.timeindex', dump_time_index)])
def test_index(benchmark, tmp_path, suffix, dump):
    log, offsets, times = bytearray(), bytearray(), bytearray()
    for number in range(BATCHES):
        if number:
            offsets += struct.pack('>ii', number, len(log))
            times += struct.pack('>qi', T + number, number)
        log += encode_batch([(T + number, b'k', b'v' * 40)], base_offset=number)
    for name, data in (('.log', log), ('.index', offsets), ('.timeindex', times)):
        (tmp_path / f'{0:020d}{name}').write_bytes(data)

    def show():
        out, report = io.StringIO(), ErrorReport()
        dump(str(tmp_path / f'{0:020d}{suffix}'), IndexOptions(), out, report)
        assert not report
        return out.getvalue().count('\n')

    assert benchmark(show) == BATCHES - 1

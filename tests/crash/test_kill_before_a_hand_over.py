"""`kbroker hand-over` completes a transaction although a kill interrupted its end at any of its rows and markers.

After each hand-over, the files alone must show a complete transaction: Apache Kafka would read them next.

Covers promises 2, 4 and 5 of docs/design.md.
"""
from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from support.brokers.broker_process import PROMPT
from support.brokers.killing_broker import COMPLETE, MARKER, PREPARE, KillingBroker, Point
from support.clients.promises import findings_in
from support.clients.raw_client import RawClient
from support.clients.two_phase_application import LIMIT_S, TOPIC, TwoPhaseApplication, find_coordinators

from kbroker.client import Admin
from kbroker.client.admin import NewTopic
from kbroker.daemon.hand_over import hand_over
from kbroker.record.batch import iter_batches
from kbroker.record.control import read_end_txn_marker
from kbroker.record.records import decode_records
from kbroker.settings.config import Config
from kbroker.transaction.state import TransactionState
from kbroker.transaction.state_log import decode_row

STATE, OFFSETS, FIRST, SECOND = '__transaction_state-0', '__consumer_offsets-0', 'orders-0', 'orders-1'
SETTINGS = {**PROMPT, 'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '1',
            'transaction.two.phase.commit.enable': 'true'}
POINTS = [Point(partition, kind, 1, moment)
          for partition, kind in ((STATE, PREPARE), (FIRST, MARKER), (SECOND, MARKER), (OFFSETS, MARKER),
                                  (STATE, COMPLETE))
          for moment in ('before', 'torn', 'after')]


def batches_of(directory: Path, partition: str):
    for path in sorted((directory / partition).glob('*.log')):
        yield from iter_batches(path.read_bytes())


def last_state(directory: Path, transactional_id: str) -> TransactionState:
    """Return the state in the last row of a transactional id."""
    rows = [decode_row(record.key, record.value) for _, batch in batches_of(directory, STATE)
            for record in decode_records(batch)]
    return next(row.state for found, row in reversed(rows) if found == transactional_id)


def markers_of(directory: Path, partition: str, producer_id: int) -> list[str]:
    return [read_end_txn_marker(batch).control_type.name for header, batch in batches_of(directory, partition)
            if header.is_control and header.producer_id == producer_id]


def test_a_hand_over_completes_a_transaction_wherever_a_kill_interrupted_its_end(tmp_path):
    directory = tmp_path / 'data'
    config = Config({'log.dirs': str(directory), **SETTINGS})
    broker = KillingBroker(directory, SETTINGS)
    broker.start()
    with Admin(broker.address) as admin, RawClient.at(broker.address, LIMIT_S) as client:
        assert admin.create_topics([NewTopic(TOPIC, 2, 1)]) == {TOPIC: None}
        find_coordinators(client)
    broker.stop()
    for number, point in enumerate(POINTS):
        application = TwoPhaseApplication(f'tx {point}', is_to_commit=number % 2 == 0, keeps=0)
        broker.point, broker.transactional_id = point, application.name
        broker.start()
        with RawClient.at(broker.address, LIMIT_S) as client, suppress(ConnectionError):
            application.run(client)
        broker.wait_killed()
        assert not (directory / '.kafka_cleanshutdown').exists()

        report = hand_over(config)

        is_open = point.kind == PREPARE and point.moment != 'after'
        stay_open = [each['transactional_id'] for each in report['open_transactions']]
        assert (application.name in stay_open) == is_open
        assert (last_state(directory, application.name) is TransactionState.ONGOING) == is_open
        kind = 'COMMIT' if application.is_to_commit else 'ABORT'
        for partition in (FIRST, SECOND, OFFSETS):
            markers = markers_of(directory, partition, application.producer[0])
            assert set(markers) == (set() if is_open else {kind}) and len(markers) <= 2, (point, partition, markers)
        if not is_open:
            assert last_state(directory, application.name).title == f'Complete{kind.title()}'
        assert (directory / '.kafka_cleanshutdown').exists()
        assert findings_in(str(directory)) == [], point

"""A broker behind a StoppingProxy for queries that write with the Spark sink, and checks of the records that the
queries wrote.
"""
from __future__ import annotations

import contextlib
import pathlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from support.brokers.broker_process import PROMPT, BrokerProcess
from support.clients.committed_records import committed_records
from support.kafka.apache_kafka import KafkaProcess
from support.proxies.stopping_proxy import JUDGE, StoppingProxy
from support.runner.command_runner import run_in_process
from support.spark.sink_query import ROWS

from kbroker.client import Admin
from kbroker.client.admin import NewTopic
from kbroker_tools.stuck.facts import DECIDED_STATES

KBROKER, APACHE_KAFKA = 'kbroker', 'apache-kafka'
DRIVER, PREPARED = 'driver', 'prepared'
"""The writers of the sink."""
PARTITIONS = 4
LIMIT_S = 180
LEDGER = '__kbroker_spark_commits'
DECISION = 'EndTxn driver commit answer'
_SIDES = ('request', 'answer')
STEPS = {
    DRIVER: [f'{step} {side}' for step in (
        'InitProducerId driver', 'ListTransactions', 'Produce driver rows', 'Produce driver ledger',
        'EndTxn driver commit') for side in _SIDES],
    PREPARED: [f'{step} {side}' for step in (
        'InitProducerId driver', 'ListTransactions', 'DescribeTransactions driver', 'InitProducerId task',
        'Produce task rows', 'DescribeTransactions task', 'Produce driver ledger', 'EndTxn driver commit',
        'EndTxn task commit') for side in _SIDES],
}
"""Maps each writer to the steps of a micro-batch, in their order."""


class SinkPlace:
    """A broker whose clients connect through `proxy`. A test may kill and restart the broker."""

    def __init__(self, kind: str, directory: pathlib.Path):
        self.kind = kind
        self.proxy = StoppingProxy()
        settings = PROMPT | {'advertised.listeners': f'PLAINTEXT://{self.proxy.address}'}
        if kind == KBROKER:
            self.broker: Any = BrokerProcess(directory, settings | {'transaction.two.phase.commit.enable': 'true'})
        else:
            self.broker = KafkaProcess(directory, settings)

    def start(self) -> None:
        self.broker.start()
        self.proxy.target = self.broker.address

    def kill9(self) -> None:
        """Kill the broker. For Apache Kafka, first wait until it has written the markers of all decided transactions.

        Apache Kafka 4.3 may skip markers that it has not written when it is killed. After the restart, its coordinator
        treats a partition without a leader as a deleted one, and completes the transaction without the partition's
        marker.
        """
        if self.kind == APACHE_KAFKA:
            self._await_markers()
        self.broker.kill9()

    def _await_markers(self) -> None:
        with Admin(self.proxy.address, client_id=JUDGE) as admin:
            deadline = time.monotonic() + LIMIT_S
            while decided := admin.list_transactions(state_filters=DECIDED_STATES):
                assert time.monotonic() < deadline, f'found {decided} without markers'
                time.sleep(0.1)     # the broker reports the state of a transaction only to requests

    def close(self) -> None:
        self.proxy.close()
        self.broker.kill9()
        assert self.broker.tracebacks() == []


@contextlib.contextmanager
def serving(kind: str, directory: pathlib.Path) -> Iterator[SinkPlace]:
    """Run a broker behind its proxy. At the end, assert that the broker logged no traceback."""
    place = SinkPlace(kind, directory)
    try:
        place.start()
        yield place
    finally:
        place.close()


class SinkRun:
    """The topic and the prefix of one test, and the options of its queries. Steps of the proxy name the topic and the
    prefix by short names that are the same for all tests.
    """

    def __init__(self, place: SinkPlace, name: str, writer: str, **options: str):
        self.place, self.topic, self.prefix = place, f't-{name}', f'p-{name}'
        self.options = {'kafka.bootstrap.servers': place.proxy.address, 'topic': self.topic,
                        'transactionalIdPrefix': self.prefix, **options}
        if writer != DRIVER:
            self.options['commit'] = writer
        with self.admin() as admin:
            assert admin.create_topics([NewTopic(self.topic, PARTITIONS)])[self.topic] is None
        self.watch()

    def watch(self) -> None:
        """Forget the steps that the proxy has received."""
        self.place.proxy.watch({f'{self.prefix}~d': 'driver', f'{self.prefix}~t': 'task', LEDGER: 'ledger',
                                self.topic: 'rows'})

    def admin(self) -> Admin:
        return Admin(self.place.proxy.address, client_id=JUDGE)

    def open_transactions(self) -> list[str]:
        """Return the transactional ids of the prefix with open transactions that have no timeout."""
        with self.admin() as admin:
            found = admin.list_transactions(state_filters=['Ongoing'])
        return [row.transactional_id for row in found if row.transactional_id.startswith(f'{self.prefix}~')]

    def await_open(self, count: int) -> None:
        """Wait until `count` transactions of the prefix are open. After a timeout it is 0, and after a late write 1."""
        deadline = time.monotonic() + LIMIT_S
        while len(still := self.open_transactions()) != count:
            assert time.monotonic() < deadline, f'found {still} open, expected {count} of the prefix'
            time.sleep(0.1)     # the broker reports the state of a transaction only to requests

    def values(self) -> Counter[int]:
        """Return {committed value: count}. Raise AssertionError if an open transaction hides records."""
        with self.admin() as admin:
            return Counter(int(record.value) for _, record in committed_records(admin, self.topic, PARTITIONS))

    def finish(self, *options: str) -> str:
        """Run the tool that settles the transactions that a driver has left. Return its report."""
        done = run_in_process('transactions', '--bootstrap-server', self.place.proxy.address, 'finish-spark',
                              '--prefix', self.prefix, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout + done.stderr)

    def assert_exactly_once(self, batches: int, first: int = 0) -> None:
        """Assert that each row of the `batches` micro-batches is committed once, and that no transaction of the prefix
        is open.
        """
        assert self.open_transactions() == []
        found = self.values()
        expected = range(ROWS * first, ROWS * batches)
        doubled = [value for value, count in found.items() if count > 1]
        missing = [value for value in expected if value not in found]
        assert (missing, doubled, len(found)) == ([], [], len(expected)), sorted(found)

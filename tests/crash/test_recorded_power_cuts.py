"""The test records the system calls of a broker with real clients, and computes from them the files that a power cut
may leave. A broker that opens these files has everything that was acknowledged.

`traced_disk` computes the files. It shares no code with the broker, nor with the simulated file system that other tests
use.

Covers promises 1 and 2 of docs/design.md.
"""
from __future__ import annotations

import pathlib
import random
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import confluent_kafka
import pytest
from support.brokers.broker_process import BrokerProcess
from support.brokers.in_process_broker import InProcessBroker
from support.clients.librdkafka import create_topics
from support.clients.promises import READ_COMMITTED, READ_UNCOMMITTED, TRANSACTIONAL_ID, Client, Promises
from support.disk.crash_points import findings_of_check
from traced_disk import TracedDisk, strace_of

pytestmark = [pytest.mark.strace, pytest.mark.usefixtures('many_brokers')]
SETTINGS = {'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '1',
            'log.index.size.max.bytes': '4096', 'log.roll.ms': '50', 'log.flush.offset.checkpoint.interval.ms': '200'}
TOPICS = 'plain', 'in-transactions'
PARTITIONS = 2
GROUP = 'group'
TRANSACTIONS, CUTS = 8, 6
SOAK_TRANSACTIONS, SOAK_CUTS = 60, 500
LIMIT_S = 120

Place = tuple[str, int]


class TracedBroker(BrokerProcess):
    """A broker whose file calls are recorded. Each run has its own trace."""

    def __init__(self, directory: pathlib.Path):
        super().__init__(directory, SETTINGS)
        self.traces: list[pathlib.Path] = []

    def launch(self, arguments: list[str]) -> None:
        self.traces.append(self.directory.with_name(f'trace{len(self.traces)}'))
        super().launch([*strace_of(self.traces[-1]), *arguments])

    def stop(self) -> None:
        """Shut down cleanly. Then wait until strace, which ends a moment after the broker, has written the whole trace.
        """
        end = re.compile(rb'^%d +[0-9.]+ \+\+\+ exited with 0 \+\+\+$' % self.pid, re.MULTILINE)
        super().stop()
        deadline = time.monotonic() + LIMIT_S
        while end.search(self.traces[-1].read_bytes()) is None:
            assert time.monotonic() < deadline, 'strace has not ended'
            time.sleep(0.05)  # strace is no child of this process, so its end cannot be waited for


@dataclass
class Outcome:
    """A transaction: its records, the offset that it committed, its outcome, and the time of its end."""

    values: set[str]
    offset: int
    is_commit: bool
    ended_s: float = float('inf')


@dataclass
class History:
    """The acknowledgements that the clients received, each with its time, and the values that they sent."""

    records: list[tuple[float, Place, int, str]] = field(default_factory=list)
    sent: dict[Place, set[str]] = field(default_factory=lambda: defaultdict(set))
    transactions: list[Outcome] = field(default_factory=list)

    def send(self, producer, place: Place, value: str) -> None:
        def delivered(error, message):
            assert error is None, error
            self.records.append((time.time(), place, message.offset(), value))

        self.sent[place].add(value)
        producer.produce(place[0], value.encode(), partition=place[1], on_delivery=delivered)

    def work(self, address: str, count: int) -> None:
        """Write records outside and inside transactions. The transactions also commit offsets."""
        if not self.transactions:
            create_topics(address, **dict.fromkeys(TOPICS, PARTITIONS))
        common = {'bootstrap.servers': address, 'linger.ms': 0}
        plain = confluent_kafka.Producer(common | {'enable.idempotence': True})
        producer = confluent_kafka.Producer(common | {'transactional.id': TRANSACTIONAL_ID})
        group = confluent_kafka.Consumer({'bootstrap.servers': address, 'group.id': GROUP})
        try:
            producer.init_transactions(LIMIT_S)
            for number in range(len(self.transactions), len(self.transactions) + count):
                self.send(plain, (TOPICS[0], number % PARTITIONS), f'plain {number}')
                values = {f'{number} {letter}' for letter in 'abc'}
                outcome = Outcome(values, 10 + number, number % 3 != 2)
                self.transactions.append(outcome)
                producer.begin_transaction()
                for index, value in enumerate(sorted(values)):
                    self.send(producer, (TOPICS[1], index % PARTITIONS), value)
                producer.send_offsets_to_transaction(
                    [confluent_kafka.TopicPartition(TOPICS[0], 0, outcome.offset)], group.consumer_group_metadata(),
                    LIMIT_S)
                if outcome.is_commit:
                    producer.commit_transaction(LIMIT_S)
                else:
                    producer.flush(LIMIT_S)
                    producer.abort_transaction(LIMIT_S)
                outcome.ended_s = time.time()
                plain.poll(0)       # receives the acknowledgements
            assert plain.flush(LIMIT_S) == 0
        finally:
            group.close()


@pytest.fixture
def recorded(request, memory_path) -> Iterator[tuple[TracedDisk, History]]:
    """The recorded file calls of a broker with clients, and the history of these clients. The broker stops cleanly in
    the middle and at the end.
    """
    broker, history = TracedBroker(memory_path / 'data'), History()
    try:
        for _ in range(2):
            broker.start()
            history.work(broker.address, request.param // 2)
            broker.stop()
    finally:
        broker.kill9()
    assert broker.tracebacks() == []
    disk = TracedDisk(broker.directory)
    for trace in broker.traces:
        disk.add(trace)
    yield disk, history


def hold(directory: pathlib.Path, history: History, time_s: float) -> None:
    """Open the directory after a power cut. Check that it has everything that was acknowledged up to `time_s`."""
    with InProcessBroker(directory, SETTINGS) as broker:
        client = Client(broker, Promises())
        client.pass_time()
        topics = client.topic_ids()
        for known_s, place, offset, value in history.records:
            if known_s <= time_s:
                assert client.read(place, READ_UNCOMMITTED).get(offset) == value, f'{place}: {value} at {offset}'
        for place, sent in history.sent.items():
            if place[0] in topics:
                found = list(client.read(place, READ_UNCOMMITTED).values())
                assert len(found) == len(set(found)) and set(found) <= sent, f'{place}: {found}'
        client.find_coordinators()
        client.init_transactions()      # ends a transaction that was open
        client.pass_time()
        client.check_stable_offsets()
        visible = {value for place in history.sent if place[0] in topics
                   for value in client.read(place, READ_COMMITTED).values()}
        expected = None
        for outcome in history.transactions:
            shown = outcome.values & visible
            assert shown in (set(), outcome.values), f'a torn transaction: {shown} of {outcome.values}'
            assert outcome.is_commit or not shown, f'an aborted transaction is visible: {shown}'
            assert shown or not outcome.is_commit or outcome.ended_s > time_s, f'{outcome.values} are lost'
            expected = outcome.offset if shown else expected
        offsets = client.fetch_offsets({(TOPICS[0], 0)}, GROUP)
        assert offsets.get((TOPICS[0], 0)) == expected, 'offsets and records are of different transactions'
    # A power cut after a clean stop may tear old producer snapshots. The broker does not use them, and kbroker-check
    # only warns.
    assert [found for found in findings_of_check(str(directory)) if not found.startswith('warning: ')] == []


@pytest.mark.parametrize('recorded, cuts', [
    (TRANSACTIONS, CUTS),
    pytest.param(SOAK_TRANSACTIONS, SOAK_CUTS, marks=[pytest.mark.soak, pytest.mark.timeout(0)]),
], indirect=['recorded'])
def test_what_clients_learned_outlives_a_power_cut_rebuilt_from_system_calls(
        recorded, memory_path, cuts, soak_count, tally):
    disk, history = recorded
    cuts = soak_count(cuts, CUTS)
    rng = random.Random(cuts)
    steps = len(disk.times_s)
    for number in range(cuts):
        step = rng.randrange(steps) if number else steps - 1
        directory = memory_path / f'cut{number}'
        disk.cut(step, directory, rng)
        try:
            hold(directory, history, disk.times_s[step])
        except BaseException as error:
            error.add_note(f'cut {number}, after step {step} of {steps}')
            raise
        shutil.rmtree(directory)
    tally('power cuts', cuts)


def test_the_calls_of_a_trace_rebuild_the_directory(memory_path):
    """The trace has all changes: the files that TracedDisk computes for no power cut equal the files that the broker
    left.
    """
    with TracedBroker(memory_path / 'data') as broker:
        History().work(broker.address, 2)
        broker.stop()
    disk = TracedDisk(broker.directory)
    disk.add(broker.traces[0])
    disk.rebuild(memory_path / 'rebuilt')
    assert tree(memory_path / 'rebuilt') == tree(broker.directory)


def tree(directory: pathlib.Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob('*') if path.is_file()}

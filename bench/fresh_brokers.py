"""Compares brokers for tests: the start of a fresh broker, its memory, and a fresh broker for each of 1,000 tests.

    python bench/fresh_brokers.py [--quick] [--tests N] [--brokers NAMES]

The brokers kbroker and kafka are processes. kfake runs in the process of a suite of tests in Go, and librdkafka's mock
broker in one in Python, as their users run them. kbroker.testing is the test kit, which starts each broker ahead. All
keep their default settings.

**start** is the time until a new connection has the answer to Metadata. The directory of Apache Kafka is formatted
within this time, by a virtual machine that already runs. **memory** is the resident memory of the broker's process. For
a broker in a suite's process, it is the growth of that process. For kbroker.testing, it is that of the broker, of the
one that was started ahead, and of the process that keeps both; pages that they share count once. It is measured after
the start, and again after 100,000 records of 1,000 bytes. A row says how many of them can still be read.

**tests** starts a fresh broker for each test, creates a topic, writes a record, reads it and kills the broker. The
brokers take turns, a tenth of the tests each time. Apache Kafka runs a hundredth of the tests, and its figures are
multiplied. CPU is the user and system time of the brokers, without the client. Wall time is of little use on a machine
that is not quiet; the CPU time changes less.

**behaviour** runs each broker once more with transactions, and kills it. The table says what an application found.

With --quick everything runs once, and the figures are meaningless. Needs Java and Maven for Kafka, Go for kfake.
"""
from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import click
import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent),
                str(pathlib.Path(__file__).parent.parent / 'tests')]

from broker import TICKS_PER_S, create_topic, process_cpu_s, resident_mb, timed  # noqa: E402
from groups import Peer  # noqa: E402
from load_generator import LoadError  # noqa: E402
from peer_brokers import PEERS, Unavailable, kfake_program, versions  # noqa: E402
from results import table_of  # noqa: E402
from stopping import workplace  # noqa: E402
from support.brokers.in_process_broker import frame_of, read_answer  # noqa: E402
from support.messages.message_builder import batch_of, build  # noqa: E402

from kbroker import testing  # noqa: E402
from kbroker.testing.process import shared_keeper  # noqa: E402

METADATA, PRODUCE, FETCH, LIST_OFFSETS = 5, 7, 11, 2
"""The versions of the requests. All brokers serve them."""
ALL_TOPICS = None
RECORDS, RECORD_BYTES = 100_000, 1000
KAFKA_SHARE = 100
BLOCKS = 10
LIMIT_S = 120
TIMEOUT_MS = 1000
EARLIEST, LATEST = -2, -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


class Broker(Protocol):
    address: str

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def kill9(self) -> None: ...


class BrokerError(Exception):
    """Raised if a broker answers with an error, or not in time."""


class Suite:
    """A process of a suite of tests that has the broker within itself."""

    def __init__(self, command: list[str]):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()
        self.pid = self._process.pid
        self.idle_mb = resident_mb(self.pid)
        self.address = ''

    def start(self) -> None:
        """Start a fresh broker, and end the preceding one."""
        self.address = self._ask('start')

    def kill9(self) -> None:
        self._ask('end')

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f'{line}\n')
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        word, _, address = self._process.stdout.readline().strip().partition(' ')
        if word != 'ready':
            raise BrokerError(f'the process of the suite ended with {self._process.wait()}')
        return address

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Kind:
    """A broker that is a process of its own, with its own directory for each start."""

    def __init__(self, peer: str):
        self._peer = peer
        self.durable: str | None = peer
        self.share = KAFKA_SHARE if peer == 'kafka' else 1
        self.cpu_s = 0.0
        self.tests: list[float] = []

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Broker]:
        """Yield a broker that has not started yet. Kill it in the end, and remove its directory."""
        work = pathlib.Path(tempfile.mkdtemp())
        broker = PEERS[self._peer].make(work / 'data')
        try:
            yield broker
        finally:
            broker.kill9()
            shutil.rmtree(work, ignore_errors=True)

    @contextlib.contextmanager
    def suite(self) -> Iterator[None]:
        """Count the CPU time of the brokers that run within the block."""
        before_s = children_cpu_s()
        yield
        self.cpu_s += children_cpu_s() - before_s

    def memory_mb(self, broker: Broker) -> float:
        return resident_mb(broker.pid)

    def close(self) -> None:
        pass


class KindInSuite(Kind):
    """A broker that runs in the process of a suite of tests."""

    def __init__(self, command: Callable[[], list[str]], durable: str | None = None):
        self.durable = durable
        self.share, self.cpu_s, self.tests = 1, 0.0, []
        self._command = command
        self._suite: Suite | None = None

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Broker]:
        suite = self._suite or Suite(self._command())
        try:
            yield suite
        finally:
            suite.kill9() if suite is self._suite else suite.close()

    @contextlib.contextmanager
    def suite(self) -> Iterator[None]:
        if self._suite is None:
            self._suite = Suite(self._command())
        before_s = process_cpu_s(self._suite.pid)
        yield
        self.cpu_s += process_cpu_s(self._suite.pid) - before_s

    def memory_mb(self, broker: Broker) -> float:
        assert isinstance(broker, Suite)
        return resident_mb(broker.pid) - broker.idle_mb

    def close(self) -> None:
        if self._suite is not None:
            self._suite.close()


class BrokerOfKit:
    """A broker of kbroker.testing."""

    address = ''
    pid = 0

    def __init__(self) -> None:
        self._broker: testing.Broker | None = None

    def start(self) -> None:
        self._broker = testing.Broker()
        self.address, self.pid = self._broker.bootstrap_servers, self._broker.pid

    def kill9(self) -> None:
        if self._broker is not None:
            self._broker.close()


class KindOfKit(Kind):
    """A broker of kbroker.testing. A process of the kit keeps all brokers of this process."""

    def __init__(self) -> None:
        self.durable, self.share, self.cpu_s, self.tests = 'kbroker-disk', 1, 0.0, []

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Broker]:
        broker = BrokerOfKit()
        try:
            yield broker
        finally:
            broker.kill9()

    @contextlib.contextmanager
    def suite(self) -> Iterator[None]:
        before_s = self._cpu_s()
        yield
        self.cpu_s += self._cpu_s() - before_s

    @staticmethod
    def _keeper() -> int:
        return shared_keeper()._process.pid

    def _cpu_s(self) -> float:
        """Return the time of the keeper, and of all brokers that have ended."""
        with open(f'/proc/{self._keeper()}/stat') as file:
            fields = file.read().rpartition(')')[2].split()
        return sum(map(int, fields[11:15])) / TICKS_PER_S

    def memory_mb(self, broker: Broker) -> float:
        keeper = self._keeper()
        with open(f'/proc/{keeper}/task/{keeper}/children') as file:
            pids = [keeper, *map(int, file.read().split())]
        return sum(map(proportional_mb, pids))


def proportional_mb(pid: int) -> float:
    """Return the memory of a process. A page that n processes share counts as a part of n."""
    with open(f'/proc/{pid}/smaps_rollup') as file:
        return next(int(line.split()[1]) for line in file if line.startswith('Pss:')) * 1024 / 1e6


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


KINDS: dict[str, Callable[[], Kind]] = {
    'kafka': lambda: Kind('kafka'),
    'kfake': lambda: KindInSuite(lambda: [str(kfake_program()), '-host'], 'kfake'),
    'librdkafka': lambda: KindInSuite(lambda: [sys.executable, str(pathlib.Path(__file__).with_name('mock_host.py'))]),
    'kbroker.testing': KindOfKit,
    'kbroker': lambda: Kind('kbroker-disk'),
}


# ---- a client that costs little

def ask(peer: Peer, version: int, name: str, **fields: object) -> object:
    request = build(name, **fields)
    return read_answer(request, version, peer.ask(frame_of(request, version)))


def wait_for(peer: Peer, topic: str | None) -> None:
    """Wait until Metadata lists the broker and, if given, the topic's leader. The request creates the topic."""
    deadline_s = time.monotonic() + LIMIT_S
    while True:
        answer = ask(peer, METADATA, 'MetadataRequest', topics=ALL_TOPICS if topic is None else [{'name': topic}],
                     allow_auto_topic_creation=True)
        if answer.brokers and all(part.error_code == 0 for found in answer.topics for part in [found,
                                                                                              *found.partitions]):
            return
        if time.monotonic() > deadline_s:
            raise BrokerError(f'no leader of {topic} after {LIMIT_S} s')


def write_and_read(peer: Peer, topic: str) -> None:
    batch = batch_of(int(time.time() * 1000), b'value')
    while True:
        answer = ask(peer, PRODUCE, 'ProduceRequest', acks=-1, timeout_ms=LIMIT_S * 1000, topic_data=[
            {'name': topic, 'partition_data': [{'index': 0, 'records': batch}]}])
        code = answer.responses[0].partition_responses[0].error_code
        if code == 0:
            break
        if code not in RETRIED:
            raise BrokerError(f'Produce was answered with error code {code}')
    answer = ask(peer, FETCH, 'FetchRequest', replica_id=-1, max_wait_ms=1000, min_bytes=1, session_epoch=-1, topics=[
        {'topic': topic, 'partitions': [{'partition': 0, 'partition_max_bytes': 1 << 20}]}])
    found = answer.responses[0].partitions[0]
    if found.error_code or b'value' not in bytes(found.records or b''):
        raise BrokerError(f'Fetch was answered with error code {found.error_code} and {found.records!r}')


RETRIED = (3, 5, 6)
"""The error codes of a broker that is still creating the topic."""


def offset_of(peer: Peer, topic: str, timestamp: int, isolation: int = READ_UNCOMMITTED) -> int:
    answer = ask(peer, LIST_OFFSETS, 'ListOffsetsRequest', replica_id=-1, isolation_level=isolation, topics=[
        {'name': topic, 'partitions': [{'partition_index': 0, 'timestamp': timestamp}]}])
    return int(answer.topics[0].partitions[0].offset)


@contextlib.contextmanager
def connected(address: str) -> Iterator[Peer]:
    peer = Peer(address)
    try:
        yield peer
    finally:
        peer.close()


# ---- what is measured

def first_metadata(broker: Broker) -> None:
    broker.start()
    with connected(broker.address) as peer:
        wait_for(peer, None)


def run_test(broker: Broker) -> None:
    """Do what a small test does."""
    broker.start()
    with connected(broker.address) as peer:
        wait_for(peer, 'test')
        write_and_read(peer, 'test')


@dataclasses.dataclass
class Figures:
    starts_s: list[float] = dataclasses.field(default_factory=list)
    idle_mb: float = 0.0
    loaded_mb: float = 0.0
    kept: int = 0


def measure_life(kind: Kind, starts: int, records: int) -> Figures:
    figures = Figures()
    for number in range(starts):
        with kind.fresh() as broker:
            figures.starts_s.append(timed(lambda broker=broker: first_metadata(broker)))
            if number == 0:
                figures.idle_mb = kind.memory_mb(broker)
                figures.kept = write_many(broker.address, records)
                figures.loaded_mb = kind.memory_mb(broker)
    return figures


def write_many(address: str, records: int) -> int:
    """Write records to a topic. Return how many of them can be read afterwards."""
    with connected(address) as peer:
        wait_for(peer, 'many')
        producer = Producer({'bootstrap.servers': address, 'log_level': 0})
        value = os.urandom(RECORD_BYTES)
        for _ in range(records):
            while True:
                try:
                    producer.produce('many', value, partition=0)
                    break
                except BufferError:
                    producer.poll(0.01)
        if left := producer.flush(LIMIT_S):
            raise BrokerError(f'{left} of {records} records were not acknowledged')
        return offset_of(peer, 'many', LATEST) - offset_of(peer, 'many', EARLIEST)


def measure_tests(kinds: dict[str, Kind], tests: int) -> None:
    """Run the tests in blocks, in which the brokers take turns."""
    for block in range(BLOCKS):
        for name in list(kinds)[::1 if block % 2 else -1]:
            kind = kinds[name]
            with kind.suite():
                for _ in range(max(1, tests // BLOCKS // kind.share)):
                    began_s = time.perf_counter()
                    with kind.fresh() as broker:
                        run_test(broker)
                    kind.tests.append(time.perf_counter() - began_s)
        click.echo(f'{time.strftime("%H:%M:%S")} block {block + 1} of {BLOCKS}', err=True)


# ---- what an application finds

def hides_aborted(address: str) -> bool:
    """Return whether a reader with read_committed gets no record of an aborted transaction."""
    producer = Producer({'bootstrap.servers': address, 'transactional.id': 'hides', 'log_level': 0})
    producer.init_transactions(LIMIT_S)
    for value, end in ('aborted', producer.abort_transaction), ('kept', producer.commit_transaction):
        producer.begin_transaction()
        producer.produce('hides', value, partition=0)
        producer.flush(LIMIT_S)
        end(LIMIT_S)
    reader = Consumer({'bootstrap.servers': address, 'group.id': 'hides', 'isolation.level': 'read_committed',
                       'auto.offset.reset': 'earliest', 'log_level': 0})
    reader.assign([TopicPartition('hides', 0, 0)])
    messages = reader.consume(1, LIMIT_S)
    reader.close()
    return [message.value() for message in messages] == [b'kept']


def aborts_late_transactions(address: str) -> bool:
    """Return whether an open transaction holds the readers until its timeout has passed, and no longer."""
    producer = Producer({'bootstrap.servers': address, 'transactional.id': 'late', 'log_level': 0,
                         'transaction.timeout.ms': TIMEOUT_MS})
    producer.init_transactions(LIMIT_S)
    producer.begin_transaction()
    producer.produce('late', 'open', partition=0)
    producer.flush(LIMIT_S)
    with connected(address) as peer:
        if offset_of(peer, 'late', LATEST, READ_COMMITTED) != 0:
            return False
        deadline_s = time.monotonic() + LIMIT_S
        while offset_of(peer, 'late', LATEST, READ_COMMITTED) == 0:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.1)     # a broker tells no client that a timeout has passed
    return True


def outlives_a_kill(peer_name: str | None) -> bool:
    """Return whether an acknowledged record is there after SIGKILL and a start on the same directory."""
    if peer_name is None:
        return False
    with Kind(peer_name).fresh() as broker:
        first_metadata(broker)
        create_topic(broker.address, 'kept')
        with connected(broker.address) as peer:
            end_of(peer, 'kept')
            write_and_read(peer, 'kept')
        broker.kill9()
        first_metadata(broker)
        with connected(broker.address) as peer:
            return end_of(peer, 'kept') == 1


QUESTIONS: dict[str, Callable[[Kind, Broker], bool]] = {
    'an aborted record is hidden from read_committed': lambda _, broker: hides_aborted(broker.address),
    'an open transaction holds readers until its timeout': lambda _, broker: aborts_late_transactions(broker.address),
    'an acknowledged record outlives SIGKILL': lambda kind, _: outlives_a_kill(kind.durable),
}


def behaviour_of(kind: Kind, questions: Iterable[str]) -> dict[str, str]:
    with kind.fresh() as broker:
        first_metadata(broker)
        with connected(broker.address) as peer:
            for topic in 'hides', 'late':
                end_of(peer, topic)
        return {question: 'yes' if QUESTIONS[question](kind, broker) else 'no' for question in questions}


def end_of(peer: Peer, topic: str) -> int:
    """Return the end of a topic's partition, as soon as the broker serves it. Create the topic if it is missing."""
    wait_for(peer, topic)
    deadline_s = time.monotonic() + LIMIT_S
    while (end := offset_of(peer, topic, LATEST)) < 0:
        if time.monotonic() > deadline_s:
            raise BrokerError(f'no offsets of {topic} after {LIMIT_S} s')
    return end


# ---- the report

def report(kinds: dict[str, Kind], lives: dict[str, Figures], tests: int,
           behaviours: dict[str, dict[str, str]]) -> Iterator[str]:
    names = [name for name in kinds if name in lives]
    base = next((name for name in ('kbroker.testing', 'kbroker') if name in names), None)
    compared = [name for name in names if base is not None and name != base]

    def row(what: str, form: str, figure: Callable[[str], float]) -> list[str]:
        return [what, *(f'{figure(name):{form}}' for name in names),
                *(ratio(figure(name), figure(base)) for name in compared)]

    def total(name: str, seconds: float) -> float:
        return seconds * tests / max(1, len(kinds[name].tests))

    rows = [row('start to first Metadata, ms', ',.1f', lambda name: statistics.median(lives[name].starts_s) * 1e3),
            row('memory after start, MB', ',.1f', lambda name: lives[name].idle_mb),
            row('memory after 100,000 records, MB', ',.1f', lambda name: lives[name].loaded_mb),
            row('records that can be read', ',', lambda name: lives[name].kept),
            row(f'{tests:,} tests, s', ',.1f', lambda name: total(name, sum(kinds[name].tests))),
            row(f'{tests:,} tests, CPU s', ',.2f', lambda name: total(name, kinds[name].cpu_s))]
    yield from table_of(['', *names, *(f'{name} / {base}' for name in compared)], rows)
    yield ''
    answered = [name for name in names if name in behaviours]
    yield from table_of(['', *answered], ([question, *(behaviours[name].get(question, '') for name in answered)]
                                          for question in QUESTIONS))


def ratio(one: float, other: float) -> str:
    return f'{one / other:.{1 if one > other else 3}f} x' if other else ''


FAULTS = (BrokerError, LoadError, OSError, AssertionError, KafkaException, Unavailable)


@click.command(help=__doc__)
@click.option('--quick', is_flag=True, help='Run everything once, to see that it works; the figures are meaningless.')
@click.option('--tests', default=1000, show_default=True)
@click.option('--starts', default=10, show_default=True)
@click.option('--brokers', default=','.join(KINDS), show_default=True)
def main(quick: bool, tests: int, starts: int, brokers: str) -> None:
    if unknown := {*brokers.split(',')} - {*KINDS}:
        raise click.ClickException(f'no such brokers: {", ".join(sorted(unknown))}')
    records, questions = RECORDS, list(QUESTIONS)
    if quick:
        tests, starts, records = BLOCKS, 1, 1000
        questions.remove('an open transaction holds readers until its timeout')     # it takes ten seconds
    os.environ.pop('PYTHONDONTWRITEBYTECODE', None)  # a broker starts from bytecode, as when it is installed
    kinds = {name: KINDS[name]() for name in brokers.split(',')}
    lives: dict[str, Figures] = {}
    behaviours: dict[str, dict[str, str]] = {}
    faults: list[str] = []
    load = os.getloadavg()[0]
    with workplace():
        for name in list(kinds):
            try:
                lives[name] = measure_life(kinds[name], starts, records)
                behaviours[name] = behaviour_of(kinds[name], questions)
            except FAULTS as fault:
                faults.append(f'{name}: {fault}')
                kinds.pop(name)
        measure_tests(kinds, tests)
        for kind in kinds.values():
            kind.close()
        click.echo(f'{os.cpu_count()} processors; {versions()}; librdkafka {confluent_kafka.libversion()[0]}; load '
                   f'average before {load:.2f}\n')
        click.echo('\n'.join([*report(kinds, lives, tests, behaviours), '',
                              *(f'**failed** {fault}' for fault in faults)]))


if __name__ == '__main__':
    main()

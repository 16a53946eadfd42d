"""System calls of a broker process fail while a real client writes. The client gets an error, the broker logs a line,
and no acknowledged record is lost.

strace injects the error into the system call itself. The test therefore covers the loops in which the broker repeats an
interrupted call.

Covers promises 1 and 2 of docs/design.md.
"""
from __future__ import annotations

import itertools
import pathlib
import subprocess
import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from support.brokers.broker_process import BrokerProcess
from support.clients.librdkafka import values_of
from support.disk.crash_points import findings_of_check

pytestmark = pytest.mark.strace
NEVER_MS = '3600000'
SETTINGS = {'offsets.topic.num.partitions': '1', 'log.roll.ms': '50', 'log.index.size.max.bytes': '4096',
            'replica.high.watermark.checkpoint.interval.ms': NEVER_MS,
            'log.flush.offset.checkpoint.interval.ms': NEVER_MS,
            'log.flush.start.offset.checkpoint.interval.ms': NEVER_MS}
"""The broker writes checkpoints only when it starts and stops, so that a fault hits a system call for the client's
request.
"""
TOPIC = 'orders'
OFFLINE = 'is offline until the next start'
STORAGE_ERROR = 'KAFKA_STORAGE_ERROR'
LIMIT_S = 120
FAULTS = ['fdatasync:error=EIO:when=1', 'pwrite64,pwritev:error=ENOSPC:when=1+', 'fsync:error=EIO:when=1']
SOAK_FAULTS = [f'{calls}:error={error}:when={number}' for calls, error, number in itertools.product(
    ('fdatasync', 'fsync', 'pwrite64,pwritev', 'openat', 'rename', 'ftruncate'), ('EIO', 'ENOSPC'), (1, 2, 3, 5, 8))]
RECORDS = 12
OFFLINE_TIMEOUT_MS = 5_000
"""The broker reports no leader for an offline directory, so a client waits until its record times out."""


def wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)    # the broker's log and the tracer's state are in other processes


class FailingCalls:
    """A context manager that makes system calls of a running broker fail."""

    def __init__(self, broker: BrokerProcess, fault: str, trace: pathlib.Path):
        self._broker = broker
        self._trace = trace
        self._command = ['strace', '-f', '-q', '-p', str(broker.pid), '-o', str(trace), '-e',
                         f'trace={fault.split(":")[0]}', f'--inject={fault}']

    def __enter__(self) -> FailingCalls:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        try:
            wait_for(self._traces_all_threads, 'strace is not attached')
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def _traces_all_threads(self) -> bool:
        tasks = pathlib.Path(f'/proc/{self._broker.pid}/task')
        return all('TracerPid:\t0\n' not in (task / 'status').read_text() for task in tasks.iterdir())

    def count(self) -> int:
        """Return how many calls have failed."""
        return self._trace.read_text().count('(INJECTED)')


class Work:
    """A client that writes records with unique values, and keeps the acknowledged values."""

    def __init__(self, broker: BrokerProcess):
        self.broker = broker
        self._numbers = itertools.count()
        self.sent: list[str] = []
        self.acknowledged: list[str] = []

    def write(self, count: int, topic: str = TOPIC, timeout_ms: int = 1000 * LIMIT_S) -> list[str]:
        """Write records one after the other, until one fails. Return the names of the errors."""
        errors = []
        producer = confluent_kafka.Producer({
            'bootstrap.servers': self.broker.address, 'retries': 0, 'message.timeout.ms': timeout_ms, 'linger.ms': 0,
            'log_level': 0})

        def delivered(error, message):
            if error is None:
                self.acknowledged.append(message.value().decode())
            else:
                errors.append(error.name())

        while count and not errors:
            count -= 1
            self.sent.append(f'{topic} {next(self._numbers)}')
            producer.produce(topic, self.sent[-1].encode(), on_delivery=delivered)
            producer.flush(LIMIT_S)
        return errors

    def check(self) -> None:
        """Check that the topic has each acknowledged record, and no record twice."""
        found = self._read()
        assert set(self.acknowledged) <= set(found) <= set(self.sent)
        assert len(found) == len(set(found))

    def _read(self) -> list[str]:
        known = AdminClient({'bootstrap.servers': self.broker.address}).list_topics(timeout=LIMIT_S).topics
        return [value for topic in {value.split(' ')[0] for value in self.sent} & known.keys()
                for value in values_of(self.broker.address, topic, known[topic].partitions)]


@pytest.fixture(scope='module')
def work(tmp_path_factory) -> Iterator[Work]:
    """A client of the one broker that all tests of this file share. Each test leaves the broker running. The client
    keeps the acknowledged records of all tests.
    """
    with BrokerProcess(tmp_path_factory.mktemp('failing') / 'data', SETTINGS) as broker:
        yield Work(broker)


@pytest.fixture
def broker(work) -> Iterator[BrokerProcess]:
    work.broker.lines.clear()
    yield work.broker
    assert work.broker.tracebacks() == []


def test_an_interrupted_write_is_repeated(broker, work, tmp_path):
    before = len(work.acknowledged)
    with FailingCalls(broker, 'pwrite64,pwritev:error=EINTR:when=1+2', tmp_path / 'trace') as failing:
        assert work.write(RECORDS) == []
    assert failing.count() >= RECORDS
    assert len(work.acknowledged) - before == RECORDS
    work.check()


def lines_of(broker: BrokerProcess) -> list[str]:
    return [line for line in broker.lines if OFFLINE in line]


@pytest.mark.parametrize('fault', FAULTS)
def test_a_call_that_fails_is_an_error_for_the_client_and_the_next_start_has_all_that_was_answered(
        broker, work, tmp_path, fault):
    assert work.write(3) == []
    with FailingCalls(broker, fault, tmp_path / 'trace') as failing:
        assert work.write(RECORDS, 'new' if fault.startswith('fsync') else TOPIC) == [STORAGE_ERROR]
    assert failing.count() > 0
    wait_for(lambda: lines_of(broker), 'no line says that the directory is offline')
    line, = lines_of(broker)
    assert '"critical"' in line and ('No space left' in line or 'Input/output error' in line)
    broker.stop()
    broker.start()
    assert work.write(3) == []
    work.check()


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_no_answer_is_lost_whichever_call_fails(broker, work, tmp_path, soak_sample):
    """All faults are injected into one broker, one after the other. Between two faults, the test kills or stops the
    broker and restarts it.
    """
    offline = injected = 0
    faults = soak_sample(SOAK_FAULTS)
    for number, fault in enumerate(faults):
        assert work.write(3) == [], fault
        trace = tmp_path / f'trace{number}'
        with FailingCalls(broker, fault, trace) as failing:
            if not work.write(RECORDS // 2):
                work.write(RECORDS // 2, f'new{number}', OFFLINE_TIMEOUT_MS)
        injected += failing.count() > 0
        offline += bool(lines_of(broker))
        broker.lines.clear()
        if number % 2:
            broker.stop()
        else:
            broker.kill9()
        broker.start()
        work.check()
    print(f'{len(faults)} faults, {injected} were met, {offline} took the directory offline')
    assert offline > 0 or len(faults) < len(SOAK_FAULTS), 'a small share may choose calls that the broker does not make'


def test_a_start_whose_sync_fails_says_so_and_the_next_one_has_all_that_was_answered(broker, work, tmp_path):
    assert work.write(3) == []
    broker.kill9()
    trace = tmp_path / 'trace'

    class FailingStart(BrokerProcess):
        def launch(self, arguments: list[str]) -> None:
            super().launch(['strace', '-D', '-f', '-o', str(trace), '-e', 'trace=fdatasync',
                            '--inject=fdatasync:error=EIO:when=1', '--', *arguments])

    failing = FailingStart(broker.directory, SETTINGS)
    with pytest.raises(AssertionError, match='Input/output error'):
        failing.start()
    assert failing.tracebacks() == []
    broker.start()
    work.check()
    broker.stop()
    assert findings_of_check(str(broker.directory)) == []
    broker.start()

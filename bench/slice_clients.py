"""Clients that stay connected to a broker and work at full speed for short slices of time."""
from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent)]

from load_generator import LoadError  # noqa: E402
from peer_brokers import Site, java_tool  # noqa: E402

RECORD_BYTES = 1000
COMMIT_MS = 100
VALUE = os.urandom(RECORD_BYTES // 2).hex().encode()
LIMIT_S = 60
RAW_RECORDS_S = 1e6  # the assumed rate of the generator when it reads


class Slice(NamedTuple):
    """The figures of a slice, a short time at full speed. The broker's CPU time is in microseconds per record."""

    rate: float
    broker_us: float


class Mark(NamedTuple):
    """A reading of the clocks, with the number of records delivered so far."""

    records: int
    seconds: float
    broker_cpu_s: float


def mark(records: int, pid: int) -> Mark:
    return Mark(records, time.perf_counter(), cpu_s(pid))


def cpu_s(pid: int) -> float:
    """Return the CPU time in seconds of all threads of a process, with a resolution of 1 ns. The clock id is that of
    clock_getcpuclockid."""
    return time.clock_gettime(~pid << 3 | 2)


def between(first: Mark, last: Mark) -> Slice:
    """Return the slice between two marks. Raise LoadError if no record was delivered or no broker CPU was used."""
    records, broker_s = last.records - first.records, last.broker_cpu_s - first.broker_cpu_s
    if records <= 0 or broker_s <= 0:
        raise LoadError(f'a slice is too short: {records} records, {broker_s:.6f} s of the broker')
    return Slice(records / (last.seconds - first.seconds), broker_s / records * 1e6)


# ---- clients

class Client(Protocol):
    """A client that stays connected. `strict` enables the feature whose cost is measured: transactions for a producer,
    read_committed for a consumer. `pid` is the client's process, if it is not the current process.
    """

    pid: int | None

    def produce(self, topic: str, strict: bool, seconds: float) -> Slice: ...

    def consume(self, topic: str, strict: bool, records: int) -> Slice: ...

    def close(self) -> None: ...


class Confluent:
    pid: int | None = None

    def __init__(self, site: Site):
        self._pid = site.broker.pid
        common = {'bootstrap.servers': site.broker.address, 'log_level': 0}
        self._producers = {strict: Producer({
            **common, 'enable.idempotence': True, 'linger.ms': 5, 'queue.buffering.max.messages': 50_000,
            **({'transactional.id': 'slices'} if strict else {})}) for strict in (False, True)}
        self._producers[True].init_transactions(LIMIT_S)
        self._consumers = {strict: Consumer({
            **common, 'group.id': 'slices', 'enable.auto.commit': False,
            'isolation.level': 'read_committed' if strict else 'read_uncommitted',
            'fetch.message.max.bytes': 10_485_760, 'queued.max.messages.kbytes': 262_144}) for strict in (False, True)}

    def produce(self, topic: str, strict: bool, seconds: float) -> Slice:
        producer, produced = self._producers[strict], 0
        marks: list[Mark] = []
        end = time.perf_counter() + seconds
        while len(marks) < 2 or marks[-1].records == marks[0].records or time.perf_counter() < end:
            if strict:
                producer.begin_transaction()
            commit_at = time.perf_counter() + COMMIT_MS / 1e3
            while time.perf_counter() < commit_at:
                for _ in range(100):
                    put(producer, topic)
                produced += 100
                producer.poll(0)
            if strict:
                producer.commit_transaction(LIMIT_S)
            marks.append(mark(produced - len(producer), self._pid))
        if producer.flush(LIMIT_S):
            raise LoadError('records are left in the producer')
        return between(marks[0], marks[-1])

    def consume(self, topic: str, strict: bool, records: int) -> Slice:
        """Measure a consumer. The time begins at the first record, because librdkafka waits before it."""
        consumer = self._consumers[strict]
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        try:
            if consumer.poll(LIMIT_S) is None:
                raise LoadError('nothing to consume')
            read, first = 1, mark(1, self._pid)
            while read < records:
                messages = consumer.consume(min(records - read, 10_000), 10)
                if not messages or any(message.error() for message in messages):
                    raise LoadError(f'{records - read} records are missing')
                read += len(messages)
            return between(first, mark(read, self._pid))
        finally:
            consumer.unassign()

    def close(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()


def put(producer: Producer, topic: str) -> None:
    """Produce one record. Raise LoadError if the queue has no room for LIMIT_S, because no record is delivered."""
    waiting_since = None
    while True:
        try:
            producer.produce(topic, VALUE, partition=0)
            return
        except BufferError:
            waiting_since = waiting_since or time.monotonic()
            if time.monotonic() - waiting_since > LIMIT_S:
                raise LoadError('the producer makes no progress') from None
            producer.poll(0.01)


class Java:
    """The client of bench/SliceClient.java, in a JVM that keeps running."""

    def __init__(self, site: Site):
        self._pid = site.broker.pid
        source = pathlib.Path(__file__).parent / 'SliceClient.java'
        self._process = subprocess.Popen(
            java_tool(str(source), site.broker.address, VALUE.decode()), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True)
        self.pid: int | None = self._process.pid
        self._answer('ready')

    def produce(self, topic: str, strict: bool, seconds: float) -> Slice:
        return self._work(f'produce {topic} {str(strict).lower()} {int(seconds * 1e3)} {COMMIT_MS}')

    def consume(self, topic: str, strict: bool, records: int) -> Slice:
        return self._work(f'consume {topic} {str(strict).lower()} {records}')

    def _work(self, line: str) -> Slice:
        assert self._process.stdin is not None
        self._process.stdin.write(line + '\n')
        self._process.stdin.flush()
        marks = self._answer('done')
        if len(marks) < 2:
            raise LoadError('a slice is too short: it ended before it could be measured')
        return between(marks[0], marks[-1])

    def _answer(self, last_line: str) -> list[Mark]:
        assert self._process.stdout is not None
        marks: list[Mark] = []
        for line in self._process.stdout:
            if line.strip() == last_line:
                return marks
            marks.append(mark(int(line), self._pid))
        raise LoadError('the Java client ended')

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Raw:
    """The load generator as a client. It opens new connections for each slice, but needs no warm-up."""

    pid: int | None = None

    def __init__(self, site: Site):
        self._site = site

    def produce(self, topic: str, strict: bool, seconds: float) -> Slice:
        commit_ms = COMMIT_MS if strict else 0
        return self._load(f'stream:topic={topic},depth=5,size=16384,record={RECORD_BYTES},commit_ms={commit_ms}',
                          seconds, COMMIT_MS / 1e3)

    def consume(self, topic: str, strict: bool, records: int) -> Slice:
        """Read the topic repeatedly, because the generator reads faster than the other clients and one read is too
        short to measure."""
        return self._load(f'fetch:topic={topic},size=1048576,committed={strict:d}', records / RAW_RECORDS_S, 0.05)

    def _load(self, load: str, seconds: float, warm_up_s: float) -> Slice:
        found = self._site.load([load], seconds, warm_up_s)
        records = found.loads[0].records
        return between(Mark(0, 0, 0), Mark(records, found.seconds, found.broker_cpu_s))

    def close(self) -> None:
        pass


CLIENTS: dict[str, Callable[[Site], Client]] = {'Java': Java, 'confluent-kafka': Confluent, 'raw': Raw}

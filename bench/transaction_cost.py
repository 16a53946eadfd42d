"""What transactions cost a client: the claim of the literature, on Apache Kafka, kfake and kbroker.

    python bench/transaction_cost.py [--quick] [--blocks N] [--slice S] [--peers NAMES] [--clients NAMES]

Records of 1 KB at the producer's full speed, into one partition: with a commit every 100 ms, and without transactions
(idempotent both). The claim is a loss of at most 3 percent. Then a topic is read with read_committed and with
read_uncommitted, where nothing should be lost.

With and without take turns in short slices, A B B A and then B A A B, so that what else the machine does and how the
broker's state grows falls on both alike. The clients stay connected all the time and are warm: Java's (Kafka's own),
confluent-kafka, and the generator of bench/load, which costs least beside the broker. Such a block of four slices gives
one loss and one difference of the broker's CPU time; what is told is the median over the blocks and the interval in
which it lies with 95 percent (of order statistics: nothing is assumed of the noise). A target is met when the whole
interval is within it, short when it is outside, else open: run more blocks. Rates count what is delivered, from the end
of a slice's first 100 ms to the end of its last commit.

Needs a quiet machine. Without Java or Go what needs them is left out. With --quick the figures mean nothing.
"""
from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple, Protocol

import click
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent)]

from broker import Stopwatch  # noqa: E402
from load_generator import LoadError  # noqa: E402
from peer_brokers import PEERS, Site, Unavailable, java_tool, kafka_tool, site_of, versions  # noqa: E402
from stopping import workplace  # noqa: E402

RECORD_BYTES = 1000
COMMIT_MS = 100
VALUE = os.urandom(RECORD_BYTES // 2).hex().encode()
LEAST_BLOCKS = 6  # whose extremes hold the median with 95 percent
LIMIT_S = 60
TOOL_LIMIT_S = 300
PRODUCING, CONSUMING = 'transactions of 100 ms', 'read_committed'
MOST_LOST = {PRODUCING: 0.03, CONSUMING: 0.01}  # the latter is nothing, but for the noise
FAULTS = (LoadError, AssertionError, OSError, KafkaException, subprocess.SubprocessError)


class Slice(NamedTuple):
    """What a short time of full work found; broker CPU is in microseconds a record."""

    rate: float
    broker_us: float


class Mark(NamedTuple):
    """A look at the clocks, with what is delivered by then."""

    records: int
    seconds: float
    broker_cpu_s: float


def mark(records: int, pid: int) -> Mark:
    return Mark(records, time.perf_counter(), cpu_s(pid))


def cpu_s(pid: int) -> float:
    """Of all threads of a process, to the nanosecond. The clock is numbered as clock_getcpuclockid does it."""
    return time.clock_gettime(~pid << 3 | 2)


def between(first: Mark, last: Mark) -> Slice:
    """LoadError if nothing was delivered from one to the other."""
    records = last.records - first.records
    if records <= 0:
        raise LoadError('a slice is too short: nothing was delivered')
    return Slice(records / (last.seconds - first.seconds), (last.broker_cpu_s - first.broker_cpu_s) / records * 1e6)


# ---- clients

class Client(Protocol):
    """Stays connected to a broker. `strict` is what is to cost nothing: transactions, read_committed.

    `pid` is that of a process of its own which goes on.
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
        """From the first record on: before it librdkafka waits of its own accord."""
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
    """LoadError if there is no room for the record for LIMIT_S: nothing is delivered."""
    waiting_since = None
    while True:
        try:
            producer.produce(topic, VALUE, partition=0)
            return
        except BufferError:
            waiting_since = waiting_since or time.monotonic()
            if time.monotonic() - waiting_since > LIMIT_S:
                raise LoadError('the producer delivers nothing') from None
            producer.poll(0.01)


class Java:
    """bench/SliceClient.java in a Java machine that goes on."""

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
            raise LoadError('a slice is too short: it was over before it could be measured')
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
    """The load generator; it connects for each slice, but is as warm at its first request as at any."""

    pid: int | None = None

    def __init__(self, site: Site):
        self._site = site

    def produce(self, topic: str, strict: bool, seconds: float) -> Slice:
        commit_ms = COMMIT_MS if strict else 0
        return self._load(f'stream:topic={topic},depth=5,size=16384,record={RECORD_BYTES},commit_ms={commit_ms}',
                          seconds, COMMIT_MS / 1e3)

    def consume(self, topic: str, strict: bool, records: int) -> Slice:
        return self._load(f'fetch:topic={topic},size=1048576,once=1,committed={strict:d}', LIMIT_S, 0)

    def _load(self, load: str, seconds: float, warm_up_s: float) -> Slice:
        found = self._site.load([load], seconds, warm_up_s)
        records = found.loads[0].records
        return between(Mark(0, 0, 0), Mark(records, found.seconds, found.broker_cpu_s))

    def close(self) -> None:
        pass


CLIENTS: dict[str, Callable[[Site], Client]] = {'Java': Java, 'confluent-kafka': Confluent, 'raw': Raw}


# ---- blocks

@dataclasses.dataclass
class Block:
    """Four slices: two without what is to cost nothing, two with it."""

    plain: list[Slice] = dataclasses.field(default_factory=list)
    strict: list[Slice] = dataclasses.field(default_factory=list)

    @property
    def loss(self) -> float:
        return 1 - sum(slice_.rate for slice_ in self.strict) / sum(slice_.rate for slice_ in self.plain)

    @property
    def more_broker_us(self) -> float:
        return statistics.mean(slice_.broker_us for slice_ in self.strict) - statistics.mean(
            slice_.broker_us for slice_ in self.plain)


@dataclasses.dataclass
class Sizes:
    blocks: int
    slice_s: float
    warm_up_s: float
    records: int  # that are read in a slice
    round_trips: int


class Bench:
    """Blocks by (client, peer, what was done)."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        self.blocks: dict[tuple[str, str, str], list[Block]] = defaultdict(list)
        self.others: dict[tuple[str, str, str], float] = {}
        self.latencies: list[str] = []
        self.faults: list[str] = []

    def measure(self, name: str, site: Site) -> None:
        client = CLIENTS[name](site)
        try:
            until = time.monotonic() + (self.sizes.warm_up_s if site.peer.needs_warm_up or name == 'Java' else 1)
            with site.topic(f'filled-{name}', 1) as topic:
                fill(site, topic, self.sizes.records)
                while time.monotonic() < until:
                    self._produce(client, site, 'warm', 0)
                    self._consume(client, topic, 0)
                self._repeat((name, site.peer.name, PRODUCING), site, client,
                             lambda number: self._produce(client, site, f'block-{name}-{number}', number))
                self._repeat((name, site.peer.name, CONSUMING), site, client,
                             lambda number: self._consume(client, topic, number))
        finally:
            client.close()

    def _repeat(self, key: tuple[str, str, str], site: Site, client: Client, measure: Callable[[int], Block]) -> None:
        watch, client_began_s = Stopwatch(site.broker.pid), cpu_s(client.pid) if client.pid else 0
        for number in range(self.sizes.blocks):
            block = measure(number)
            self.blocks[key].append(block)
            span, client_s = watch.span(), cpu_s(client.pid) - client_began_s if client.pid else 0
            self.others[key] = max(0.0, span.others_share - client_s / span.seconds / (os.cpu_count() or 1))
            click.echo(f'{", ".join(key)}: {block.plain[0].rate:,.0f} records/s, loss {block.loss:+.1%}, '
                       f'{block.more_broker_us:+.3f} us of broker CPU a record', err=True)

    def _produce(self, client: Client, site: Site, topic: str, number: int) -> Block:
        with site.topic(topic, 1):  # anew for each block: it would fill the disk
            return in_turns(number, lambda strict: client.produce(topic, strict, self.sizes.slice_s))

    def _consume(self, client: Client, topic: str, number: int) -> Block:
        return in_turns(number, lambda strict: client.consume(topic, strict, self.sizes.records))

    def table(self) -> Iterator[str]:
        yield ('| client | broker | | records/s without | with | loss, median | 95% | at most | | broker us a record '
               'without | more with, median | 95% | others |')
        yield '|---|---|---|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|'
        for (client, peer, what), blocks in self.blocks.items():
            plain, strict = ([slice_.rate for block in blocks for slice_ in getattr(block, kind)]
                             for kind in ('plain', 'strict'))
            losses, more = [block.loss for block in blocks], [block.more_broker_us for block in blocks]
            low, high = interval(losses)
            broker_us = statistics.median(slice_.broker_us for block in blocks for slice_ in block.plain)
            yield (f'| {client} | {peer} | {what} | {spread(plain)} | {spread(strict)} | '
                   f'{statistics.median(losses):+.1%} | {low:+.1%} to {high:+.1%} | {MOST_LOST[what]:.0%} | '
                   f'{judged(losses, MOST_LOST[what])} | {broker_us:.3f} | {statistics.median(more):+.3f} | '
                   f'{" to ".join(f"{end:+.3f}" for end in interval(more))} | '
                   f'{self.others[client, peer, what]:.0%} |')

    def report(self) -> str:
        text = (f'{os.cpu_count()} processors; {versions()}; {time.strftime("%Y-%m-%d %H:%M", time.gmtime())} UTC. '
                f'{self.sizes.blocks} blocks of four slices of {self.sizes.slice_s:g} s, or of {self.sizes.records:,} '
                f'records read, {RECORD_BYTES} bytes each.\n\n')
        return text + '\n'.join([*self.table(), '', *self.latencies, *(f'**failed** {fault}' for fault in self.faults)])


def fill(site: Site, topic: str, records: int) -> None:
    """Records in transactions of 100 ms, a few more than so many."""
    requests = records // 15 + 1
    site.load([f'stream:topic={topic},depth=5,size=16384,record={RECORD_BYTES},commit_ms={COMMIT_MS},'
               f'count={requests}'], TOOL_LIMIT_S, 0)


def in_turns(number: int, work: Callable[[bool], Slice]) -> Block:
    block = Block()
    for strict in (False, True, True, False) if number % 2 == 0 else (True, False, False, True):
        (block.strict if strict else block.plain).append(work(strict))
    return block


def interval(values: list[float]) -> tuple[float, float]:
    """In which the median lies with 95 percent, by order statistics; with less, of fewer values than LEAST_BLOCKS."""
    ordered = sorted(values)
    rank = max(0, math.floor((len(ordered) - 1.96 * math.sqrt(len(ordered))) / 2))
    return ordered[rank], ordered[-1 - rank]


def judged(losses: list[float], most: float) -> str:
    low, high = interval(losses)
    if len(losses) < LEAST_BLOCKS or low <= most < high:
        return 'open'
    return 'met' if high <= most else '**short**'


def spread(rates: list[float]) -> str:
    return f'{statistics.median(rates):,.0f} [{min(rates):,.0f}-{max(rates):,.0f}]'


def round_trips(site: Site, count: int) -> str:
    """Java's EndToEndLatency: from the producer through the broker to the consumer."""
    with site.topic('latency', 1) as topic:
        done = subprocess.run(kafka_tool('EndToEndLatency', site.broker.address, topic, str(count), 'all',
                                         str(RECORD_BYTES)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=TOOL_LIMIT_S, check=False)
    found = re.search(r'Avg latency: ([\d.]+) ms', done.stdout)
    percentiles = re.search(r'Percentiles: (.*)', done.stdout)
    if done.returncode or not found or not percentiles:
        raise LoadError(f'EndToEndLatency says no latency:\n{done.stdout[-2000:]}')
    return f'EndToEndLatency of 1 record, {site.peer.name}: average {float(found[1]):.2f} ms; {percentiles[1]}'


def measure_peer(bench: Bench, peer: str, clients: list[str]) -> None:
    """Alone on the machine."""
    with ExitStack() as stack:
        work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        try:
            site = site_of(PEERS[peer], work)
        except (Unavailable, *FAULTS) as fault:
            bench.faults.append(f'{peer}: {fault}')
            return
        stack.callback(site.close)
        for client in clients:
            with failing(bench, f'{client} on {peer}'):
                bench.measure(client, site)
        if 'Java' in clients:
            with failing(bench, f'EndToEndLatency on {peer}'):
                bench.latencies.append(round_trips(site, bench.sizes.round_trips))


@contextlib.contextmanager
def failing(bench: Bench, what: str) -> Iterator[None]:
    try:
        yield
    except FAULTS as fault:
        bench.faults.append(f'{what}: {fault}')


@click.command(help=__doc__)
@click.option('--quick', is_flag=True, help='Run everything once, to see that it works; the figures mean nothing.')
@click.option('--blocks', default=60, show_default=True)
@click.option('--slice', 'slice_s', default=0.5, show_default=True, help='Seconds.')
@click.option('--records', default=300_000, show_default=True, help='That are read in a slice.')
@click.option('--warm-up', 'warm_up_s', default=25.0, show_default=True, help='Of a Java machine, in seconds.')
@click.option('--peers', 'names', default='kafka,kfake,kbroker', show_default=True)
@click.option('--clients', default=','.join(CLIENTS), show_default=True)
def main(quick: bool, blocks: int, slice_s: float, records: int, warm_up_s: float, names: str, clients: str) -> None:
    if unknown := {*names.split(','), *clients.split(',')} - {*PEERS, *CLIENTS}:
        raise click.ClickException(f'no such peers or clients: {", ".join(sorted(unknown))}')
    sizes = Sizes(1, 0.5, 0, 5000, 50) if quick else Sizes(blocks, slice_s, warm_up_s, records, 10_000)
    chosen = clients.split(',')
    if 'Java' in chosen and (shutil.which('java') is None or shutil.which('mvn') is None):
        click.echo('Java is left out: java or mvn is not to be found', err=True)
        chosen.remove('Java')
    bench = Bench(sizes)
    with workplace():
        try:
            for name in names.split(','):
                measure_peer(bench, name, chosen)
        finally:
            click.echo(bench.report())


if __name__ == '__main__':
    main()

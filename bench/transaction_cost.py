"""The cost of transactions to a client on Apache Kafka, kfake and kbroker, compared with the literature's claim.

    python bench/transaction_cost.py [--quick] [--blocks N] [--slice S] [--peers NAMES] [--clients NAMES]

Records of 1 KB at the producer's full speed, into one partition: with a commit every 100 ms, and without transactions
(idempotent both). The claim is a loss of at most 3 percent. Then a topic is read with read_committed and with
read_uncommitted, where nothing should be lost.

With and without take turns in short slices, A B B A and then B A A B, so that what else the machine does and how the
broker's state grows falls on both alike. The clients stay connected all the time and are warm: the generator of
bench/load, which costs least beside the broker, Java's (Kafka's own), and confluent-kafka if asked for. Such a block
gives one loss and one difference of the broker's CPU time a record, in percent; what is told is the median over the
blocks and the interval in which it lies with 95 percent (of order statistics: nothing is assumed of the noise). A
target is met when the whole interval is within it, short when it is outside, else open: run more blocks. Rates count
what is delivered, from the end of one commit to the end of another; the first 100 ms of a slice do not count.

Three things would be in the figures that are no transaction's. The disk: a producer at full speed is held up by the
kernel as soon as too many pages wait for it, so the brokers, which all answer from the page cache, have their directory
in memory, if there is room. What is left of the block before: its topic is waited for until its files are gone. The
first requests to a new topic: they are in a slice that does not count. What stays is that client and broker share
processors. Where the client needs most of them, its rate says what the client loses; the broker's CPU time a record
says what is left for others.

Some five minutes a broker. Needs a quiet machine. Without Java or Go what needs them is left out. With --quick the
figures mean nothing.
"""
from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import click
from confluent_kafka import KafkaException

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent)]

from broker import Stopwatch  # noqa: E402
from load_generator import LoadError  # noqa: E402
from peer_brokers import PEERS, Site, Unavailable, site_of, versions  # noqa: E402
from slice_clients import CLIENTS, COMMIT_MS, RECORD_BYTES, Client, Slice, cpu_s  # noqa: E402
from stopping import workplace  # noqa: E402

LEAST_BLOCKS = 6  # whose extremes hold the median with 95 percent
FILL_LIMIT_S, GONE_LIMIT_S = 300, 30
FIRST_SLICE_S = 0.2
MEMORY, MEMORY_BYTES = '/dev/shm', 6 << 30
PRODUCING, CONSUMING = 'transactions of 100 ms', 'read_committed'
MOST_LOST = {PRODUCING: 0.03, CONSUMING: 0.01}  # the latter is nothing, but for the noise
FAULTS = (LoadError, AssertionError, OSError, KafkaException, subprocess.SubprocessError)


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
    def more_broker_cpu(self) -> float:
        """A record, as a share of what it costs without."""
        return sum(slice_.broker_us for slice_ in self.strict) / sum(slice_.broker_us for slice_ in self.plain) - 1


@dataclasses.dataclass
class Sizes:
    blocks: int
    slice_s: float
    warm_up_s: float
    records: int  # that are read in a slice


class Bench:
    """Blocks by (client, peer, what was done)."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        self.blocks: dict[tuple[str, str, str], list[Block]] = defaultdict(list)
        self.others: dict[tuple[str, str, str], float] = {}
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
                       f'{block.more_broker_cpu:+.1%} broker CPU a record', err=True)

    def _produce(self, client: Client, site: Site, topic: str, number: int) -> Block:
        with site.topic(topic, 1):  # anew for each block: it would fill the memory
            client.produce(topic, number % 2 == 0, FIRST_SLICE_S)
            block = in_turns(number, lambda strict: client.produce(topic, strict, self.sizes.slice_s))
        wait_until_gone(site.broker.directory, topic)
        return block

    def _consume(self, client: Client, topic: str, number: int) -> Block:
        return in_turns(number, lambda strict: client.consume(topic, strict, self.sizes.records))

    def table(self) -> Iterator[str]:
        yield ('| client | broker | | records/s without | with | loss, median | 95% | at most | | broker us a record '
               'without | more with, median | 95% | | others |')
        yield '|---|---|---|--:|--:|--:|--:|--:|---|--:|--:|--:|---|--:|'
        for (client, peer, what), blocks in self.blocks.items():
            plain, strict = ([slice_.rate for block in blocks for slice_ in getattr(block, kind)]
                             for kind in ('plain', 'strict'))
            broker_us = statistics.median(slice_.broker_us for block in blocks for slice_ in block.plain)
            yield (f'| {client} | {peer} | {what} | {spread(plain)} | {spread(strict)} | '
                   f'{lost([block.loss for block in blocks], what, f"{MOST_LOST[what]:.0%} | ")} | {broker_us:.3f} | '
                   f'{lost([block.more_broker_cpu for block in blocks], what)} | '
                   f'{self.others[client, peer, what]:.0%} |')

    def report(self) -> str:
        text = (f'{os.cpu_count()} processors; {versions()}; {time.strftime("%Y-%m-%d %H:%M", time.gmtime())} UTC. '
                f'{self.sizes.blocks} blocks of four slices of {self.sizes.slice_s:g} s, or of {self.sizes.records:,} '
                f'records read, {RECORD_BYTES} bytes each, in {tempfile.gettempdir()}.\n\n')
        return text + '\n'.join([*self.table(), '', *(f'**failed** {fault}' for fault in self.faults)])


def fill(site: Site, topic: str, records: int) -> None:
    """Records in transactions of 100 ms, a few more than so many."""
    requests = records // 15 + 1
    site.load([f'stream:topic={topic},depth=5,size=16384,record={RECORD_BYTES},commit_ms={COMMIT_MS},'
               f'count={requests}'], FILL_LIMIT_S, 0)


def wait_until_gone(directory: pathlib.Path, topic: str) -> None:
    """LoadError if files of a topic that was deleted are still there after GONE_LIMIT_S.

    They are another process's to remove, and it tells nobody: one can only look again.
    """
    deadline = time.monotonic() + GONE_LIMIT_S
    while any(topic in name for _, directories, files in os.walk(directory) for name in (*directories, *files)):
        if time.monotonic() > deadline:
            raise LoadError(f'{topic} is deleted, but its files are still there')
        time.sleep(0.05)


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


def lost(values: list[float], what: str, at_most: str = '') -> str:
    low, high = interval(values)
    return (f'{statistics.median(values):+.1%} | {low:+.1%} to {high:+.1%} | {at_most}'
            f'{judged(values, MOST_LOST[what])}')


def spread(rates: list[float]) -> str:
    return f'{statistics.median(rates):,.0f} [{min(rates):,.0f}-{max(rates):,.0f}]'


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


def in_memory() -> str | None:
    """A directory that no disk is behind, if there is one that holds a block."""
    return MEMORY if os.path.isdir(MEMORY) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES else None


@contextlib.contextmanager
def failing(bench: Bench, what: str) -> Iterator[None]:
    try:
        yield
    except FAULTS as fault:
        bench.faults.append(f'{what}: {fault}')


@click.command(help=__doc__)
@click.option('--quick', is_flag=True, help='Run everything once, to see that it works; the figures mean nothing.')
@click.option('--blocks', default=30, show_default=True)
@click.option('--slice', 'slice_s', default=0.5, show_default=True, help='Seconds.')
@click.option('--records', default=300_000, show_default=True, help='That are read in a slice.')
@click.option('--warm-up', 'warm_up_s', default=25.0, show_default=True, help='Of a Java machine, in seconds.')
@click.option('--peers', 'names', default='kafka,kfake,kbroker', show_default=True)
@click.option('--clients', default='raw,Java', show_default=True)
@click.option('--directory', help=f'Where the brokers have theirs; {MEMORY} if not given, and if there is room.')
def main(quick: bool, blocks: int, slice_s: float, records: int, warm_up_s: float, names: str, clients: str,
         directory: str | None) -> None:
    if unknown := {*names.split(','), *clients.split(',')} - {*PEERS, *CLIENTS}:
        raise click.ClickException(f'no such peers or clients: {", ".join(sorted(unknown))}')
    sizes = Sizes(1, 0.2, 0, 50_000) if quick else Sizes(blocks, slice_s, warm_up_s, records)
    chosen = clients.split(',')
    if 'Java' in chosen and (shutil.which('java') is None or shutil.which('mvn') is None):
        click.echo('Java is left out: java or mvn is not to be found', err=True)
        chosen.remove('Java')
    bench = Bench(sizes)
    with workplace(directory or in_memory()):
        try:
            for name in names.split(','):
                measure_peer(bench, name, chosen)
        finally:
            click.echo(bench.report())


if __name__ == '__main__':
    main()

"""The cost of transactions for a client on Apache Kafka, kfake and kbroker, compared with the claim of the literature.

    python bench/transaction_cost.py [--quick] [--blocks N] [--slice S] [--peers NAMES] [--clients NAMES]

A producer writes records of 1 KB at full speed into one partition, in some slices with a commit every 100 ms and in
others without transactions; it is idempotent in both. The claim is a loss of at most 3 percent. Then a consumer reads a
topic with read_committed and with read_uncommitted, where no loss is expected.

Slices with and without the feature alternate, A B B A and then B A A B, so that other load on the machine and growing
state of the broker affect both equally. The clients stay connected and warm. They are the generator of bench/load,
which costs the least CPU, Kafka's Java client, and on request confluent-kafka. Each block gives one loss and one
difference of the broker's CPU time per record, in percent. The report shows the median over the blocks and its 95
percent interval (order statistics, without assumptions about the noise). A target is met if the whole interval is
within the target, and short if the whole interval is outside. Otherwise it is open: run more blocks. Rates count
delivered records from the end of one commit to the end of another, without the first 100 ms of a slice.

The figures exclude three other costs:
- the disk: the kernel throttles a producer when too many dirty pages wait for it. So the brokers, which all answer from
  the page cache, keep their directory in memory if there is room;
- leftovers of the previous block: the bench waits until the files of its topic are gone;
- the first requests to a new topic: they are in a slice that does not count.

Client and broker still share processors. If the client needs most of them, its rate shows the loss of the client; the
broker's CPU time per record shows the cost for the broker.

The bench takes about five minutes per broker, and needs a quiet machine. Without Java or Go, the brokers and clients
that need them are omitted. With --quick the figures are meaningless.
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

LEAST_BLOCKS = 6  # the extremes of this many enclose the median with 95 percent
FILL_LIMIT_S, GONE_LIMIT_S = 300, 30
FIRST_SLICE_S = 0.2
MEMORY, MEMORY_BYTES = '/dev/shm', 6 << 30
PRODUCING, CONSUMING = 'transactions of 100 ms', 'read_committed'
MOST_LOST = {PRODUCING: 0.03, CONSUMING: 0.01}  # the latter allows for noise only
FAULTS = (LoadError, AssertionError, OSError, KafkaException, subprocess.SubprocessError)


# ---- blocks

@dataclasses.dataclass
class Block:
    """Four slices: `plain` has two without the measured feature, and `strict` has two with this feature."""

    plain: list[Slice] = dataclasses.field(default_factory=list)
    strict: list[Slice] = dataclasses.field(default_factory=list)

    @property
    def loss(self) -> float:
        return 1 - sum(slice_.rate for slice_ in self.strict) / sum(slice_.rate for slice_ in self.plain)

    @property
    def more_broker_cpu(self) -> float:
        """The additional CPU time of the broker per record, relative to the CPU time without the feature."""
        return sum(slice_.broker_us for slice_ in self.strict) / sum(slice_.broker_us for slice_ in self.plain) - 1


@dataclasses.dataclass
class Sizes:
    blocks: int
    slice_s: float
    warm_up_s: float
    records: int  # read in a slice


class Bench:
    """The bench: its sizes, and the measured blocks by (client, peer, feature)."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        self.blocks: dict[tuple[str, str, str], list[Block]] = defaultdict(list)
        self.others: dict[tuple[str, str, str], float] = {}
        self.faults: list[str] = []
        self._versions = versions()

    def measure(self, name: str, site: Site) -> None:
        client = CLIENTS[name](site)
        try:
            until = time.monotonic() + (self.sizes.warm_up_s if site.peer.needs_warm_up or name == 'Java'
                                        else min(self.sizes.warm_up_s, 1))
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
            span, client_s = watch.span(), cpu_s(client.pid) - client_began_s if client.pid else 0
            self.others[key] = max(0.0, span.others_share - client_s / span.seconds / (os.cpu_count() or 1))
            self.blocks[key].append(block)      # last: the report needs both, and may come at any time
            click.echo(f'{", ".join(key)}: {block.plain[0].rate:,.0f} records/s, loss {block.loss:+.1%}, '
                       f'{block.more_broker_cpu:+.1%} broker CPU a record', err=True)

    def _produce(self, client: Client, site: Site, topic: str, number: int) -> Block:
        with site.topic(topic, 1):  # recreated for each block: a shared one would fill the memory
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
        for (client, peer, what), blocks in list(self.blocks.items()):
            plain, strict = ([slice_.rate for block in blocks for slice_ in getattr(block, kind)]
                             for kind in ('plain', 'strict'))
            broker_us = statistics.median(slice_.broker_us for block in blocks for slice_ in block.plain)
            yield (f'| {client} | {peer} | {what} | {spread(plain)} | {spread(strict)} | '
                   f'{lost([block.loss for block in blocks], what, f"{MOST_LOST[what]:.0%} | ")} | {broker_us:.3f} | '
                   f'{lost([block.more_broker_cpu for block in blocks], what)} | '
                   f'{self.others[client, peer, what]:.0%} |')

    def report(self) -> str:
        text = (f'{os.cpu_count()} processors; {self._versions}; {time.strftime("%Y-%m-%d %H:%M", time.gmtime())} UTC. '
                f'{self._measured()} blocks of four slices of {self.sizes.slice_s:g} s, or of {self.sizes.records:,} '
                f'records read, {RECORD_BYTES} bytes each, in {tempfile.gettempdir()}.\n\n')
        return text + '\n'.join([*self.table(), '', *(f'**failed** {fault}' for fault in self.faults), ''])

    def _measured(self) -> str:
        """Return the line with the number of blocks in each row. A stopped run has fewer blocks than were requested."""
        fewest = min(map(len, list(self.blocks.values())), default=0)
        return str(self.sizes.blocks) if fewest >= self.sizes.blocks else f'{fewest} or more of {self.sizes.blocks}'


def fill(site: Site, topic: str, records: int) -> None:
    """Write slightly more than `records` records, in transactions of 100 ms."""
    requests = records // 15 + 1
    site.load([f'stream:topic={topic},depth=5,size=16384,record={RECORD_BYTES},commit_ms={COMMIT_MS},'
               f'count={requests}'], FILL_LIMIT_S, 0)


def wait_until_gone(directory: pathlib.Path, topic: str) -> None:
    """Wait until the files of a deleted topic are gone. Raise LoadError after GONE_LIMIT_S.

    Another process removes the files without a notification, so this function polls.
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
    """Return the 95 percent interval of the median, by order statistics. Below LEAST_BLOCKS values its confidence is
    lower."""
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
    """Measure one peer while no other broker runs."""
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
    """Return the path of a directory in memory that has room for a block. Return None if there is no such directory."""
    return MEMORY if os.path.isdir(MEMORY) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES else None


@contextlib.contextmanager
def failing(bench: Bench, what: str) -> Iterator[None]:
    try:
        yield
    except FAULTS as fault:
        bench.faults.append(f'{what}: {fault}')


@click.command(help=__doc__)
@click.option('--quick', is_flag=True, help='Run everything once, to see that it works; the figures are meaningless.')
@click.option('--blocks', default=30, show_default=True)
@click.option('--slice', 'slice_s', default=0.5, show_default=True, help='Seconds per slice.')
@click.option('--records', default=300_000, show_default=True, help='Records read in a slice.')
@click.option('--warm-up', 'warm_up_s', default=25.0, show_default=True, help='Seconds of warm-up of a JVM.')
@click.option('--peers', 'names', default='kafka,kfake,kbroker', show_default=True)
@click.option('--clients', default='raw,Java', show_default=True)
@click.option('--directory', help=f'Parent of the brokers\' directories; default: {MEMORY} if it has room.')
def main(quick: bool, blocks: int, slice_s: float, records: int, warm_up_s: float, names: str, clients: str,
         directory: str | None) -> None:
    if unknown := {*names.split(','), *clients.split(',')} - {*PEERS, *CLIENTS}:
        raise click.ClickException(f'no such peers or clients: {", ".join(sorted(unknown))}')
    sizes = Sizes(1, 0.2, 0, 50_000) if quick else Sizes(blocks, slice_s, warm_up_s, records)
    chosen = clients.split(',')
    if 'Java' in chosen and (shutil.which('java') is None or shutil.which('mvn') is None):
        click.echo('Java is skipped: java or mvn was not found', err=True)
        chosen.remove('Java')
    bench = Bench(sizes)
    with workplace(directory or in_memory(), bench.report):
        for name in names.split(','):
            measure_peer(bench, name, chosen)


if __name__ == '__main__':
    main()

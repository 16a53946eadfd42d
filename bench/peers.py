"""Compares kbroker, Apache Kafka and kfake: the same loads on each, one after the other, in several rounds.

    python bench/peers.py [--set core|rest|all] [--cells PATTERN] [--peers NAMES] [--rounds N] [--seconds S] [--quick]
    python bench/peers.py --report

The peers kafka, kfake and kbroker answer from the page cache, as Kafka and kfake do by default. The peers kafka-flush
(with log.flush.interval.messages=1), kfake-sync and kbroker-disk sync before they answer. Peers whose name ends with
-tls use TLS. Loads come from the generator in bench/load. In each round every peer runs once, in a different order each
time. Figures are medians over the rounds; ratios are taken within a round. Broker CPU is that of the broker's process.
"Others" is the CPU time of all other processes, including the idle peers. "Each" means for each request, or for each
transaction in cells with transactions. Microseconds each are also seconds per million.

Rows are written to bench/out/peers.jsonl as they are measured. A cell is complete when the file has enough rounds in
which each peer ran. A complete cell is not measured again. If a signal stops the command, the same command later
measures the remaining cells. Partial runs (--cells, --peers) are combined in one table, which `--report` prints and
writes to peers.md and peers.svg. --list shows the cells; --discard discards the rows of the selected cells.

`floor` is not a broker, but a server that discards the data it reads, and sends data from memory. `floor-files` also
writes the data to a file per partition. If the floor server is not faster than a peer by the target's factor, the
kernel and the load generator make the target unreachable on this machine.

A cell or a peer that fails becomes a row with the reason. Needs a quiet machine; Java and Maven for Kafka, Go for
kfake, strace for system calls. The set `core` has the cells with targets. In the set `rest`, cells for curves, places
in a large log, aborted transactions and real clients have three rounds, and all other cells have one, unless --rounds
is given. The disk must hold a log of --large-gb for each peer. With --quick everything runs once briefly, with the
available peers, into a separate file, and the figures are meaningless.
"""
from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import click
from confluent_kafka import KafkaException

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent)]

from broker import first_answer, resident_mb, timed  # noqa: E402
from load_generator import OUT, Figures, LoadError, Measurement, build  # noqa: E402
from peer_brokers import (  # noqa: E402
    PEERS,
    Peer,
    Site,
    Unavailable,
    drop_from_page_cache,
    site_of,
    system_calls,
    versions,
)
from peer_cells import BATCH, DIVISIONS, LARGE, SMALL_RECORD, Cell, cells, option  # noqa: E402
from peer_clients import CLIENTS  # noqa: E402
from peer_report import FLOOR, IDLE, RECOVERY, START, Results, Row, chart, curves, table, verdicts  # noqa: E402
from stopping import workplace  # noqa: E402

TRACED_REQUESTS, TRACED_LIMIT_S = 2000, 10
FILL_LIMIT_S = 300
IDLE_S = 1.0
FAULTS = (LoadError, AssertionError, OSError, subprocess.SubprocessError, KafkaException)
TRACED = -1  # the round number of traced measurements


@dataclasses.dataclass
class Plan:
    rounds: int | None  # None: the default of each cell
    seconds: float
    warm_up_s: float
    recovery_gb: float
    recovery_partitions: int
    quick: bool

    def rounds_of(self, cell: Cell) -> int:
        return self.rounds or cell.rounds


class Notebook:
    """The rows of this run and of earlier runs, which the report reads. A new row is written to disk immediately."""

    def __init__(self, place: pathlib.Path):
        self._place = place
        self._lines = list(map(json.loads, place.read_text().splitlines())) if place.exists() else []
        self.results = Results([Row(**line) for line in self._lines if 'head' not in line])

    def begin(self, head: str) -> None:
        """Start a run, which `head` describes. Rows that are added later belong to it."""
        self._write({'head': head, 'began': time.strftime('%Y-%m-%d %H:%M', time.gmtime()),
                     'load': round(os.getloadavg()[0], 2)})

    def forget(self, cells: set[str], peers: set[str]) -> None:
        self._lines = [line for line in self._lines
                       if 'head' in line or line['cell'] not in cells or line['peer'] not in peers]
        self.results.rows = [row for row in self.results.rows if row.cell not in cells or row.peer not in peers]
        self._place.parent.mkdir(exist_ok=True)
        self._place.write_text(''.join(json.dumps(line) + '\n' for line in self._lines))

    def _write(self, line: dict[str, Any]) -> None:
        self._lines.append(line)
        self._place.parent.mkdir(exist_ok=True)
        with open(self._place, 'a') as file:
            file.write(json.dumps(line) + '\n')

    def add(self, row: Row) -> None:
        self.results.rows.append(row)
        self._write(dataclasses.asdict(row))
        click.echo(f'{time.strftime("%H:%M:%S")} {row.cell}, {row.peer}: ' + (
            row.fault or ', '.join(f'{name} {value:,.2f}' for name, value in row.figures.items())), err=True)

    def _heads(self) -> Iterator[str]:
        """Yield the description and the time of each run whose rows are in the report."""
        runs: dict[str, list[str]] = {}
        for line, following in pairwise([*self._lines, {'head': ''}]):
            if 'head' in line and 'head' not in following:
                runs.setdefault(line['head'], []).append(f'{line["began"]} (load average before: {line["load"]})')
        for head, began in runs.items():
            yield f'{head}; UTC {", ".join(began)}.'

    def report(self) -> str:
        text = '\n'.join([*self._heads(), '', *verdicts(self.results), '', *curves(self.results), '',
                          *table(self.results)]) + '\n'
        self._place.with_suffix('.md').write_text(text)
        self._place.with_suffix('.svg').write_text(chart(self.results))
        return text


# ---- the measurement of a cell on a peer

def figures_of(measured: Measurement, load: Figures, pid: int) -> dict[str, float]:
    """Return the figures of one load of a cell. The CPU time is divided among the loads of the cell, because they share
    the processes."""
    each = sum(other.count for other in measured.loads)
    moved_gb = sum(other.bytes_sent + other.bytes_received for other in measured.loads) / 1e9
    available_s = measured.seconds * (os.cpu_count() or 1)
    found = {
        'rate': load.count / measured.seconds,
        'mb_s': (load.bytes_sent + load.bytes_received) / measured.seconds / 1e6,
        'p50_us': load.p50_us, 'p99_us': load.p99_us, 'p999_us': load.p999_us, 'max_us': load.max_us,
        'records_s': load.records / measured.seconds, 'rss_mb': resident_mb(pid),
        'client_share': measured.client_cpu_s / measured.seconds,
        'others_share': max(0.0, measured.others_cpu_s) / available_s, 'steal_share': measured.steal_s / available_s,
    }
    if each:
        found['cpu_us'] = measured.broker_cpu_s / each * 1e6
    if moved_gb:
        found['cpu_s_gb'] = measured.broker_cpu_s / moved_gb
    if load.count and load.kind == 'transaction':
        found['retries_each'] = load.retries / load.count
    return found


class CellRun:
    """Runs cells on the running peers. It retains topics that cells read, and creates a new topic for each cell that
    writes."""

    def __init__(self, notebook: Notebook, plan: Plan):
        self._notebook = notebook
        self._plan = plan
        self._filled: set[tuple[str, str]] = set()
        self._topics = 0

    def measure(self, cell: Cell, site: Site, number: int) -> None:
        name = cell.name_in(site.peer.division)
        try:
            if not site.broker.is_running:
                site.broker.start()
            with self._topic(cell, site) as topic:
                if cell.client:
                    figures = CLIENTS[cell.client](site, topic, self._plan.seconds)
                    self._notebook.add(Row(name, site.peer.name, number, figures))
                    return
                if cell.is_cold:
                    drop_from_page_cache(site.broker.directory, topic)
                measured = site.load(cell.bound_loads(topic), self._plan.seconds,
                                     0 if cell.is_cold else cell.warm_up_s)
        except FAULTS as fault:
            self._notebook.add(Row(name, site.peer.name, number, fault=str(fault) or type(fault).__name__))
            return
        active = [load for load in measured.loads if load.kind != 'idle']
        if not active[0].count and not self._plan.quick:
            self._notebook.add(Row(name, site.peer.name, number, fault='no response during the measurement'))
            return
        for load in active:
            self._notebook.add(Row(cell.name_of(load.kind, name), site.peer.name, number,
                                   figures_of(measured, load, site.broker.pid)))

    def trace(self, cell: Cell, site: Site) -> None:
        """Count system calls in a separate run, because tracing changes every other figure."""
        name = cell.name_in(site.peer.division)
        if self._notebook.results.has_round(cell.names_in(site.peer.division), site.peer.name, TRACED):
            return
        count = max(100 if self._plan.quick else TRACED_REQUESTS, 10 * cell.connections)
        try:
            with self._topic(cell, site) as topic:
                def act() -> int:
                    return site.load(cell.bound_loads(topic, count), TRACED_LIMIT_S, 0).loads[0].count
                calls = system_calls(site.broker.pid, act)
        except FAULTS as fault:
            self._notebook.add(Row(name, site.peer.name, TRACED, fault=f'traced: {fault}'))
            return
        if calls is not None:
            self._notebook.add(Row(name, site.peer.name, TRACED, {'system_calls': calls}))

    @contextmanager
    def _topic(self, cell: Cell, site: Site) -> Iterator[str]:
        if cell.fill is None:
            self._topics += 1
            with site.topic(f'cell{self._topics}', cell.partitions) as topic:
                yield topic
            return
        topic = f'filled-{cell.fill.name}'
        if (topic, site.peer.name) not in self._filled:
            free_bytes = shutil.disk_usage(tempfile.gettempdir()).free
            if free_bytes < cell.fill.least_bytes * 1.02:
                raise LoadError(f'{cell.fill.least_bytes:,} bytes must be written, {free_bytes:,} are free')
            site.create_topic(topic, cell.fill.partitions)
            site.load([f'{cell.fill.load},topic={topic}'], FILL_LIMIT_S, 0)
            self._filled.add((topic, site.peer.name))
        yield topic


# ---- start, warm-up and recovery

def warm_up(site: Site, seconds: float) -> None:
    """Run various requests, so that a JVM compiles its hot code."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with site.topic('warm', 8) as topic:
            for load in (f'produce:{BATCH},connections=8,depth=5,partitions=8,count=10000',
                         f'produce:{SMALL_RECORD},connections=8,depth=5,partitions=8,count=50000',
                         'fetch:size=65536,connections=8,partitions=8,count=5000',
                         'transaction:connections=8,partitions=8,count=500',
                         'transaction:connections=8,partitions=8,version=1,count=500'):
                site.load([f'{load},topic={topic}'], max(1.0, seconds), 0)


def measure_start(peer: Peer, work: pathlib.Path, number: int) -> Iterator[Row]:
    """Measure the start on a directory that a broker has used before."""
    broker = peer.make(work / f'start-{peer.name}')
    broker.start()
    try:
        broker.stop()
        yield Row(START, peer.name, number, {'ms': timed(lambda: first_answer(broker)) * 1e3})
        time.sleep(IDLE_S)  # this is what is measured: a broker that has had nothing to do for a while
        yield Row(IDLE, peer.name, number, {'rss_mb': resident_mb(broker.pid)})
    finally:
        broker.kill9()


def measure_recovery(peer: Peer, work: pathlib.Path, name: str, partitions: int, gb: float) -> Row:
    """Measure from the start after a kill -9 until every partition accepts records again."""
    site = Site(peer, work)
    try:
        site.create_topic('killed', partitions)
        if gb:
            size = option(f'produce:{LARGE}', 'size', 0)
            site.load([f'produce:{LARGE},topic=killed,connections=4,depth=2,partitions={partitions},'
                       f'count={int(gb * 1e9 / size)}'], FILL_LIMIT_S, 0)
        os.sync()  # recovery must not compete for the disk
        site.broker.kill9()
        began = time.perf_counter()
        site.broker.start()
        site.wait_until_taken('killed', partitions)
        return Row(name, peer.name, 0, {'ms': (time.perf_counter() - began) * 1e3})
    finally:
        site.close()


# ---- all cells on all peers

def measure_all(notebook: Notebook, plan: Plan, wanted: list[Cell], peers: list[Peer], has_others: bool) -> None:
    for division in DIVISIONS:
        here = [peer for peer in peers if peer.division == division]
        missing = [cell for cell in wanted if division in cell.divisions
                   and rounds_of(notebook, cell, taking(cell, here)) < plan.rounds_of(cell)]
        with ExitStack() as stack:
            work = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            sites = list(started(notebook, plan, stack, work, here if missing else []))
            cell_run = CellRun(notebook, plan)
            for number, cell in enumerate(missing):
                able = [site for site in sites if site.peer in taking(cell, here)]
                measure_cell(cell_run, notebook, plan, cell, able, is_traced=not plan.quick or number == 0)
                notebook.report()
    for peer in peers if has_others else []:
        measure_other_things(notebook, plan, peer)
        notebook.report()


def taking(cell: Cell, peers: list[Peer]) -> list[Peer]:
    return [peer for peer in peers
            if not peer.is_floor or (cell.has_floor if peer.name == FLOOR else cell.only_writes)]


def rounds_of(notebook: Notebook, cell: Cell, peers: list[Peer]) -> int:
    """Return the number of rounds of a cell in which each of these peers has run."""
    if not peers:
        return sys.maxsize
    names = cell.names_in(peers[0].division)
    return len(set.intersection(*(notebook.results.rounds(names, peer.name) for peer in peers)))


def started(notebook: Notebook, plan: Plan, stack: ExitStack, work: pathlib.Path,
            peers: list[Peer]) -> Iterator[Site]:
    for peer in peers:
        try:
            site = site_of(peer, work)
        except (Unavailable, *FAULTS) as fault:
            notebook.add(Row('start', peer.name, 0, fault=str(fault)))
            continue
        stack.callback(site.close)
        try:
            if not peer.is_floor:       # the floor has no transactions and nothing to compile
                warm_up(site, plan.warm_up_s if peer.needs_warm_up else min(plan.warm_up_s, 1))
        except FAULTS as fault:
            notebook.add(Row('warm-up', peer.name, 0, fault=str(fault)))
        yield site


def measure_cell(cell_run: CellRun, notebook: Notebook, plan: Plan, cell: Cell, sites: list[Site],
                 is_traced: bool) -> None:
    """Run rounds until the cell has enough rounds. Each round begins with a different peer."""
    peers = [site.peer for site in sites]
    missing = plan.rounds_of(cell) - rounds_of(notebook, cell, peers)
    first_number = 1 + max((row.round for row in notebook.results.rows), default=0)  # never continue a round
    for number in range(first_number, first_number + missing if peers else 0):
        first = number % len(sites)
        for site in sites[first:] + sites[:first]:
            cell_run.measure(cell, site, number)
    for site in sites if is_traced and cell.is_traced else []:
        cell_run.trace(cell, site)


def measure_other_things(notebook: Notebook, plan: Plan, peer: Peer) -> None:
    def within(name: str, measure: Callable[[pathlib.Path], Iterable[Row]]) -> None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            try:
                for row in measure(pathlib.Path(directory)):
                    notebook.add(row)
            except (Unavailable, *FAULTS) as fault:
                notebook.add(Row(name, peer.name, 0, fault=str(fault)))

    if peer.division != 'page-cache' or peer.is_floor:
        return
    for number in range(len(notebook.results.rounds({START}, peer.name)), plan.rounds or 3):
        within(START, lambda work, number=number: measure_start(peer, work, number))  # type: ignore[misc]
    for name, partitions, gb in ((RECOVERY.format(gb=plan.recovery_gb), max(1, round(plan.recovery_gb * 1.2)),
                                  plan.recovery_gb),
                                 (f'recovery after kill -9 of {plan.recovery_partitions:,} partitions',
                                  plan.recovery_partitions, 0)):
        if notebook.results.rounds({name}, peer.name):
            continue
        within(name, lambda work, name=name, partitions=partitions, gb=gb: [  # type: ignore[misc]
            measure_recovery(peer, work, name, partitions, gb)])


def head(plan: Plan) -> str:
    with open('/proc/cpuinfo') as file:
        model = next((line.partition(':')[2].strip() for line in file if line.startswith('model name')), 'unknown')
    return (f'{os.cpu_count()} processors ({model}), {platform.system()} {platform.release()}; {versions()}; '
            f'measured for {plan.seconds:g} s, Java warmed for {plan.warm_up_s:g} s')


@click.command(help=__doc__)
@click.option('--set', 'chosen', type=click.Choice(['core', 'rest', 'all']), default='core', show_default=True)
@click.option('--cells', 'pattern', default='', help='Only cells whose names match this regular expression.')
@click.option('--peers', 'names', default=','.join(PEERS), show_default=True)
@click.option('--rounds', type=click.IntRange(1), help='Default: three or one, as described above.')
@click.option('--seconds', default=3.0, show_default=True, help='Length of a measurement; a tenth more is not counted.')
@click.option('--warm-up', 'warm_up_s', default=25.0, show_default=True, help='Seconds of warm-up of a JVM.')
@click.option('--recovery-gb', default=10.0, show_default=True)
@click.option('--large-gb', default=2.0, show_default=True, help='Size of the log for reads at different places.')
@click.option('--quick', is_flag=True, help='Run everything once briefly, to see that it works.')
@click.option('--out', type=click.Path(path_type=pathlib.Path), help='Default: bench/out/peers.jsonl.')
@click.option('--discard', is_flag=True, help='Discard the rows of the selected cells and peers in --out.')
@click.option('--list', 'only_list', is_flag=True, help='Only print the number of rounds of each cell in --out.')
@click.option('--report', 'only_report', is_flag=True, help='Only print the report of --out again.')
def main(chosen: str, pattern: str, names: str, rounds: int | None, seconds: float, warm_up_s: float,
         recovery_gb: float, large_gb: float, quick: bool, out: pathlib.Path | None, discard: bool,
         only_list: bool, only_report: bool) -> None:
    if unknown := set(names.split(',')) - set(PEERS):
        raise click.ClickException(f'no such peers: {", ".join(sorted(unknown))}')
    plan = Plan(rounds, seconds, warm_up_s, recovery_gb, 1000, quick)
    if quick:
        plan = Plan(1, 0.1, 0, 0.01, 10, quick)
    peers = [PEERS[name] for name in names.split(',')]
    notebook = Notebook(out or OUT / ('quick.jsonl' if quick else 'peers.jsonl'))
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # for the brokers
    wanted = [dataclasses.replace(cell, divisions=divisions) for cell in cells(quick, most_files, large_gb)
              if (chosen == 'all' or cell.is_core == (chosen == 'core')) and (divisions := tuple(
                  division for division in cell.divisions if re.search(pattern, cell.name_in(division))))]
    if only_report:
        click.echo(notebook.report(), nl=False)
        return
    if only_list:
        click.echo('\n'.join(listed(notebook, wanted, peers)))
        return
    has_others = chosen != 'rest' and (not pattern or bool(re.search(pattern, f'{START} {RECOVERY}')))
    if discard:
        others = {row.cell for row in notebook.results.rows if row.cell.startswith((START, IDLE, 'recovery'))}
        notebook.forget({name for cell in wanted for division in cell.divisions for name in cell.names_in(division)}
                        | (others if has_others else set()), {peer.name for peer in peers})
    try:
        build()
    except LoadError as fault:
        raise click.ClickException(str(fault)) from None
    with workplace(report=notebook.report):
        notebook.begin(head(plan))
        measure_all(notebook, plan, wanted, peers, has_others)


def listed(notebook: Notebook, wanted: list[Cell], peers: list[Peer]) -> Iterator[str]:
    for cell in wanted:
        for division in cell.divisions:
            here = taking(cell, [peer for peer in peers if peer.division == division])
            if here:
                yield f'{rounds_of(notebook, cell, here)}  {cell.name_in(division)}'


if __name__ == '__main__':
    main()

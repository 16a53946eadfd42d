"""The cells: measurements in which the brokers are compared. A cell has one or more concurrent loads on a separate
topic."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

SMALL_RECORD, BATCH, LARGE = 'record=190,size=300', 'record=100,size=16384', 'record=1024,size=1048576'
ON_DISK, BOTH = ('disk',), ('page-cache', 'disk')
MOST_BYTES = 2 << 30
"""The most bytes that a cell writes. The page cache can hold this many."""
DIVISIONS = {'TLS': ' (TLS)', 'disk': ' (disk)', 'page-cache': ''}
"""Maps each division of peers to the suffix of its cells' names. Peers with TLS answer from the page cache."""
MANY_PARTITIONS = 1000  # more of them take some brokers longer to create and delete than to measure
FILES_A_PARTITION, OTHER_FILES = 1, 2000
WINDOW_BATCHES, RECORDS_A_BATCH = 8192, 148  # the part of the large partition that is read, which the page cache holds


@dataclass(frozen=True)
class Fill:
    """Records that are written before a cell is measured. Cells with the same fill read the same topic."""

    name: str
    partitions: int
    load: str

    @property
    def least_bytes(self) -> int:
        return option(self.load, 'count', 0) * option(self.load, 'size', 0)


@dataclass(frozen=True)
class Cell:
    """A measurement of either `loads`, which do not name their topic, or a real `client`. The first load is the subject
    of the measurement.

    `rounds` is the default number of rounds; comparisons need three. `warm_up_s` is longer than usual if each of many
    partitions must first create files.
    """

    name: str
    loads: tuple[str, ...]
    partitions: int = 8
    fill: Fill | None = None
    is_cold: bool = False
    divisions: tuple[str, ...] = ('page-cache',)
    is_core: bool = False
    rounds: int = 1
    client: str | None = None
    warm_up_s: float | None = None

    def bound_loads(self, topic: str, count: int | None = None) -> list[str]:
        """Return the loads, each with its topic and a bound. The bound is the number of bytes that a load writes, or
        for the first load `count` requests, if given."""
        bounds = [bound(load) for load in self.loads]
        if count is not None:
            bounds[0] = f',count={count}'
        return [f'{load},topic={topic}{limit}' for load, limit in zip(self.loads, bounds, strict=True)]

    def name_in(self, division: str) -> str:
        return self.name + DIVISIONS[division]

    def name_of(self, kind: str, name: str) -> str:
        """Return the name of a load's row. If the cell has several loads, the name contains the load's kind."""
        active = [load for load in self.loads if not load.startswith('idle')]
        return f'{name} ({kind})' if len(active) > 1 else name

    def names_in(self, division: str) -> set[str]:
        """Return the names of all rows of this cell in a division."""
        name = self.name_in(division)
        return {name, *(self.name_of(load.partition(':')[0], name) for load in self.loads)}

    @property
    def only_writes(self) -> bool:
        return bool(self.loads) and all(load.startswith(('produce', 'idle')) for load in self.loads)

    @property
    def has_floor(self) -> bool:
        """Return whether the floor server, which has no log, can answer the requests of this cell."""
        is_filled = self.fill is None or self.fill.load.startswith('produce')
        return bool(self.loads) and is_filled and not self.is_cold and all(load.startswith(('produce', 'idle')) or (
            load.startswith('fetch') and option(load, 'from', 0) == 0) for load in self.loads)

    @property
    def is_traced(self) -> bool:
        """True if the system calls of the cell are counted. This needs an additional run, which takes long with
        transactions."""
        return self.is_core

    @property
    def connections(self) -> int:
        return option(self.loads[0], 'connections', 1)


def option(load: str, name: str, default: int) -> int:
    options = dict(pair.split('=') for pair in load.partition(':')[2].split(','))
    return int(options.get(name, default))


def bound(load: str) -> str:
    """Return the option that bounds the bytes of a load that writes, and '' for any other load."""
    if load.startswith('produce'):
        return f',count={MOST_BYTES // option(load, "size", 16384)}'
    if load.startswith('transaction'):
        size = option(load, 'records', 1) * option(load, 'each', 1) * (option(load, 'record', 100) + 20)
        return f',count={MOST_BYTES // (size + 300)}'
    return ''


def produce(work: str, shape: str, connections: int, depth: int, partitions: int | None = None,
            **more: Any) -> Cell:
    partitions = connections if partitions is None else partitions
    suffix = '' if partitions == connections else f', {partitions:,} partitions'
    return Cell(f'produce {work}, {connections:,} x {depth}{suffix}',
                (f'produce:{shape},connections={connections},depth={depth},partitions={partitions}',), partitions,
                **more)


def transactions(producers: int, records: int = 1, each: int = 1, version: int = 2, **more: Any) -> Cell:
    partitions = max(min(producers, 64), each)
    where = f' in each of {each} partitions' if each > 1 else ''
    return Cell(f'transactions of {records}{where}, {producers} producers, version {version}',
                (f'transaction:connections={producers},records={records},each={each},version={version},'
                 f'partitions={partitions}',), partitions, **more)


def fetch(work: str, size: int, connections: int, fill: Fill, more: str = '', is_cold: bool = False,
          **other: Any) -> Cell:
    return Cell(f'fetch {work}, {connections} x 1',
                (f'fetch:size={size},connections={connections},partitions={fill.partitions}{more}',), fill.partitions,
                fill, is_cold, **other)


def fills(quick: bool, large_gb: float) -> dict[str, Fill]:
    batches, ended, large = (500, 40, 300) if quick else (65_536, 4000, int(large_gb * 1e9 / 16_384))
    of_1_kb = 3000 if quick else 65_536  # slightly fewer than 15 records each
    found = {
        'plain': Fill('plain', 8, f'produce:{BATCH},connections=8,depth=5,partitions=8,count={batches}'),
        'large': Fill('large', 1, f'produce:{BATCH},connections=1,depth=5,partitions=1,count={large}'),
        '1 KB': Fill('1-kb', 1, f'produce:record=1000,size=16384,depth=5,count={of_1_kb}'),
        'spread': Fill('spread', 100, f'produce:{BATCH},connections=4,depth=5,partitions=100,count={batches // 4}'),
    }
    for aborts in (0, 1, 50):
        found[f'{aborts}'] = Fill(f'aborted{aborts}', 8, 'transaction:connections=8,partitions=8,records=100,'
                                                         f'record=1024,aborts={aborts},count={ended}')
    return found


def cells(quick: bool, most_files: int, large_gb: float) -> Iterator[Cell]:
    """Yield all cells. A topic has at most as many partitions as a broker may open files. `is_core` marks the cells
    with targets."""
    filled = fills(quick, large_gb)
    yield from (replace(cell, is_core=True, rounds=3) for cell in core(filled))
    yield from (replace(cell, divisions=('TLS',)) for cell in (
        produce('16 KiB', BATCH, 8, 5), produce('300 B', SMALL_RECORD, 8, 5),
        Cell('round trip of 1 record', (f'produce:{SMALL_RECORD}',), 1), fetch('64 KiB', 1 << 16, 8, filled['plain']),
        fetch('1 MiB', 1 << 20, 4, filled['plain']), transactions(64)))
    yield from (replace(cell, rounds=1 if cell.partitions > MANY_PARTITIONS else 3,
                        warm_up_s=None if quick or cell.partitions < MANY_PARTITIONS else cell.partitions / 200)
                for cell in curves(quick, most_files))
    yield from (replace(cell, rounds=3) for cell in places(filled['large'], large_gb))
    yield from (replace(cell, rounds=3) for cell in committed(filled))
    yield from (replace(cell, rounds=3) for cell in real_clients(filled))
    yield from (replace(cell, rounds=3) for cell in (
        produce('16 KiB', BATCH, 64, 1, 8), produce('300 B', SMALL_RECORD, 64, 1, 8)))  # in core: 64 partitions
    yield from more_produce(quick)
    yield from more_fetch(filled)
    for version in (1, 2):
        for producers in (1, 8, 64, 512):
            for records in (1, 100):
                for each in (1, 10):
                    if (version, records, each) != (2, 1, 1) or producers == 8:
                        yield transactions(producers, records, each, version)


def core(filled: dict[str, Fill]) -> Iterator[Cell]:
    for connections, depth in ((1, 5), (8, 5), (64, 1)):
        yield produce('16 KiB', BATCH, connections, depth)
    for connections, depth in ((8, 5), (64, 1)):
        yield produce('300 B', SMALL_RECORD, connections, depth)
    yield Cell('round trip of 1 record', (f'produce:{SMALL_RECORD}',), 1)
    yield fetch('64 KiB', 1 << 16, 8, filled['plain'])
    yield fetch('1 MiB', 1 << 20, 4, filled['plain'])
    yield transactions(1)
    yield transactions(64, divisions=BOTH)
    yield transactions(512, divisions=BOTH)


def more_produce(quick: bool) -> Iterator[Cell]:
    yield produce('100 B', 'record=100,size=1', 8, 5)
    yield produce('1 KiB', 'record=1024,size=1', 8, 5)
    yield produce('16 KiB of 1 KiB records', 'record=1024,size=16384', 8, 5)
    for connections, depth in ((1, 5), (8, 2), (64, 1)):
        yield produce('1 MiB', LARGE, connections, depth)
    for partitions in (1, 100, 1000):
        yield produce('16 KiB', BATCH, 8, 5, 100 if quick else partitions)
    yield Cell('produce 16 KiB acks=1, 8 x 5', (f'produce:{BATCH},connections=8,depth=5,partitions=8,acks=1',))
    yield Cell('produce 300 B, 8 x 5', (f'produce:{SMALL_RECORD},connections=8,depth=5,partitions=8',),
               divisions=ON_DISK)
    yield Cell('produce 16 KiB, 8 x 5', (f'produce:{BATCH},connections=8,depth=5,partitions=8',),
               divisions=ON_DISK)


def more_fetch(filled: dict[str, Fill]) -> Iterator[Cell]:
    yield fetch('64 KiB cold', 1 << 16, 8, filled['plain'], ',once=1', is_cold=True, rounds=3)
    yield fetch('1 MiB cold', 1 << 20, 4, filled['plain'], ',once=1', is_cold=True, rounds=3)
    yield fetch('100 partitions at once', 1 << 16, 4, filled['spread'], ',each=100')
    beside = f'produce:{BATCH},connections=2,depth=2,partitions=8'
    for size, name in ((1 << 16, '64 KiB'), (1 << 20, '1 MiB')):
        yield Cell(f'fetch {name} tailing, produce beside',
                   (f'fetch:size={size},connections=8,partitions=8,from=-1', beside))
    yield Cell('fetch and produce together', ('fetch:size=65536,connections=4,partitions=8,from=0',
                                              f'produce:{BATCH},connections=4,depth=5,partitions=8'))


def committed(filled: dict[str, Fill]) -> Iterator[Cell]:
    for aborts in ('0', '1', '50'):
        for is_committed, word in ((0, 'read_uncommitted'), (1, 'read_committed')):
            yield fetch(f'1 MiB {word}, {aborts}% aborted', 1 << 20, 4, filled[aborts], f',committed={is_committed}')


def real_clients(filled: dict[str, Fill]) -> Iterator[Cell]:
    for client in ('ProducerPerformance', 'EndToEndLatency', 'confluent-kafka producer'):
        yield Cell(f'{client}, 1 KB', (), 1, client=client)
    client = 'confluent-kafka consumer'
    yield Cell(f'{client}, 1 KB', (), 1, filled['1 KB'], client=client)


def curves(quick: bool, most_files: int) -> Iterator[Cell]:
    """Yield cells whose cost should not depend on other partitions, connections and requests.

    Requests go to random partitions, like those of many clients. If all requests of a connection went to one partition,
    a broker could write several of them at once, which would distort the beginning of the curve.
    """
    most = 100 if quick else 10_000
    most_partitions = min(most, max(1000, (most_files - OTHER_FILES) // FILES_A_PARTITION // 1000 * 1000))
    for partitions in (1, 100, 1000, most_partitions):
        yield Cell(f'produce 300 B at random, 8 x 5, {partitions:,} partitions',
                   (f'produce:{SMALL_RECORD},connections=8,depth=5,partitions={partitions},scattered=1',), partitions)
    for partitions in (10, min(most, MANY_PARTITIONS)):
        yield Cell(f'produce 300 B to 10 at random, 8 x 1, {partitions:,} partitions',
                   (f'produce:record=190,size=3000,each=10,connections=8,partitions={partitions},scattered=1',),
                   partitions)
    for partitions in (1, 100, 1000, most_partitions):
        yield Cell(f'fetch from all as they come, {partitions:,} partitions',
                   (f'fetch:size=4096,each={partitions},partitions={partitions},session=1,from=-1',
                    f'produce:{SMALL_RECORD},connections=2,partitions={partitions},scattered=1'), partitions)
    for connections in (1, 1000, 5000):  # 64 are in the core cells
        yield produce('300 B', SMALL_RECORD, min(connections, most), 1, 64)
    yield Cell(f'produce 300 B, 8 x 5, {most:,} idle connections',
               (f'produce:{SMALL_RECORD},connections=8,depth=5,partitions=8', f'idle:connections={most}'))


def places(large: Fill, large_gb: float) -> Iterator[Cell]:
    """Yield cells that repeatedly read a small range of a log. The range is in the page cache, so only its place in the
    log matters."""
    batches = option(large.load, 'count', 0)
    window = min(WINDOW_BATCHES, batches // 3)
    for place, first in (('end', batches - window), ('middle', batches // 2), ('beginning', 0)):
        yield fetch(f'64 KiB from the {place} of {large_gb:g} GB', 1 << 16, 4, large,
                    f',from={first * RECORDS_A_BATCH},span={window * RECORDS_A_BATCH}')

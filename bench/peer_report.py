"""The report of `bench/peers.py`: a table, ratios with their targets, and a chart in SVG."""
from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

import svg
from peer_brokers import PEERS
from peer_cells import DIVISIONS

FLOOR, FLOOR_WITH_FILES = 'floor', 'floor-files'


@dataclass
class Row:
    """A measurement of a cell on a peer, or the reason for its failure. The name of a figure contains its unit."""

    cell: str
    peer: str
    round: int
    figures: dict[str, float] = field(default_factory=dict)
    fault: str | None = None


class Results:
    def __init__(self, rows: list[Row]):
        self.rows = rows

    def cells(self) -> list[str]:
        return list(dict.fromkeys(row.cell for row in self.rows))

    def peers(self, cell: str) -> list[str]:
        found = {row.peer for row in self.rows if row.cell == cell}
        return [name for name in PEERS if name in found]

    def runs(self, cell: str, peer: str) -> list[Row]:
        return [row for row in self.rows if row.cell == cell and row.peer == peer]

    def rounds(self, cells: set[str], peer: str) -> set[int]:
        """Return the rounds in which the peer ran a cell with any of these names."""
        return {row.round for row in self.rows if row.cell in cells and row.peer == peer and row.round >= 0}

    def has_round(self, cells: set[str], peer: str, number: int) -> bool:
        return any(row.cell in cells and row.peer == peer and row.round == number for row in self.rows)

    def values(self, cell: str, peer: str, figure: str) -> list[float]:
        return [row.figures[figure] for row in self.runs(cell, peer) if figure in row.figures]

    def median(self, cell: str, peer: str, figure: str) -> float | None:
        values = self.values(cell, peer, figure)
        return statistics.median(values) if values else None

    def ratio(self, cell: str, ours: str, theirs: str, figure: str) -> float | None:
        """Return the median of the ratios of all rounds. A ratio compares figures of the same round, because both peers
        then had the same noise."""
        by_round = [{row.round: row.figures[figure] for row in self.runs(cell, peer) if row.figures.get(figure)}
                    for peer in (ours, theirs)]
        ratios = [value / by_round[1][number] for number, value in by_round[0].items() if number in by_round[1]]
        return statistics.median(ratios) if ratios else None


# ---- tables

COLUMNS = (
    ('per s', 'rate', ',.0f'), ('of floor', 'of_floor', '.0%'), ('MB/s', 'mb_s', ',.1f'), ('ms', 'ms', ',.0f'),
    ('p50 us', 'p50_us', ',.0f'), ('p99 us', 'p99_us', ',.0f'), ('p99.9 us', 'p999_us', ',.0f'),
    ('broker us each', 'cpu_us', ',.1f'), ('broker s per GB', 'cpu_s_gb', '.2f'),
    ('system calls each', 'system_calls', '.1f'), ('RSS MB', 'rss_mb', ',.0f'), ('client', 'client_share', '.0%'),
    ('others', 'others_share', '.0%'), ('steal', 'steal_share', '.0%'),
)
WITH_SPREAD = ('rate', 'ms')


def table(results: Results) -> Iterator[str]:
    """Yield the lines of the table. It has medians over the rounds, and the minimum and maximum of a row's first
    figure."""
    yield '| cell | peer | ' + ' | '.join(head for head, _, _ in COLUMNS) + ' |'
    yield '|---|---|' + '--:|' * len(COLUMNS)
    for cell in results.cells():
        for peer in results.peers(cell):
            faults = [row.fault for row in results.runs(cell, peer) if row.fault]
            if faults:
                yield (f'| {cell} | {peer} | **{len(faults)} x {_one_line(faults[0])}** |'
                       + ' |' * (len(COLUMNS) - 1))
            if any(row.figures for row in results.runs(cell, peer)):
                yield f'| {cell} | {peer} | ' + ' | '.join(
                    in_words(shown(results, cell, peer, figure), form, figure in WITH_SPREAD)
                    for _, figure, form in COLUMNS) + ' |'


def shown(results: Results, cell: str, peer: str, figure: str) -> list[float]:
    if figure != 'of_floor':
        return results.values(cell, peer, figure)
    share = results.ratio(cell, peer, FLOOR, 'rate')
    return [] if share is None else [share]


def in_words(values: list[float], form: str, has_spread: bool) -> str:
    if not values:
        return ''
    median = f'{statistics.median(values):{form}}'
    return f'{median} [{min(values):{form}}-{max(values):{form}}]' if has_spread and len(values) > 1 else median


def _one_line(text: str) -> str:
    return ' '.join(text.split()).replace('|', '/')[:300]


# ---- targets

@dataclass(frozen=True)
class Target:
    """A target for kbroker: an absolute figure, or if `family` is set, a ratio to that broker's figure. It is a minimum
    if `is_least`, otherwise a maximum."""

    cells: tuple[str, ...]
    figure: str
    family: str | None
    limit: float
    is_least: bool = False


PRODUCE_16K = tuple(f'produce 16 KiB, {shape}' for shape in ('1 x 5', '8 x 5', '64 x 1'))
PRODUCE_300 = ('produce 300 B, 8 x 5', 'produce 300 B, 64 x 1')
FETCHES = ('fetch 64 KiB, 8 x 1', 'fetch 1 MiB, 4 x 1')
ROUND_TRIP = 'round trip of 1 record'
SERIAL, *MANY = (f'transactions of 1, {producers} producers, version 2' for producers in (1, 64, 512))
ON_DISK = DIVISIONS['disk']
START, IDLE, RECOVERY = 'start to first answer', 'idle', 'recovery after kill -9 of {gb:g} GB'


def targets(recovery: str) -> Iterator[Target]:
    for family, rate, cpu in (('kafka', 3, 1 / 3), ('kfake', 1.5, 1 / 2)):
        yield Target(PRODUCE_16K, 'rate', family, rate, True)
        yield Target(PRODUCE_16K, 'cpu_us', family, cpu)
    for cell, family, rate, cpu in ((PRODUCE_300[0], 'kafka', 5, 1 / 8), (PRODUCE_300[1], 'kafka', 2, 1 / 3),
                                    (PRODUCE_300[0], 'kfake', 3, 1 / 3), (PRODUCE_300[1], 'kfake', 1.5, 1 / 2)):
        yield Target((cell,), 'rate', family, rate, True)
        yield Target((cell,), 'cpu_us', family, cpu)
    for family, rate, cpu in (('kafka', 1.8, 1 / 2), ('kfake', 1.3, 2 / 3)):
        yield Target(FETCHES[:1], 'rate', family, rate, True)
        yield Target(FETCHES, 'cpu_s_gb', family, cpu)
    for family, p50, p99 in (('kafka', 1 / 3, 1 / 4), ('kfake', 1, 1)):
        yield Target((ROUND_TRIP,), 'p50_us', family, p50)
        yield Target((ROUND_TRIP,), 'p99_us', family, p99)
    for family, rate, cpu in (('kafka', 5, 1 / 8), ('kfake', 2, 1 / 2)):
        yield Target((*MANY, *(cell + ON_DISK for cell in MANY)), 'rate', family, rate, True)
        yield Target((SERIAL, *MANY), 'cpu_us', family, cpu)
    yield Target((START,), 'ms', None, 150)
    yield Target((IDLE,), 'rss_mb', None, 40)
    yield Target((recovery,), 'ms', 'kafka', 1 / 4)


NAMES = {'rate': 'per second', 'cpu_us': 'broker CPU each', 'cpu_s_gb': 'broker CPU per GB', 'ms': 'ms',
         'p50_us': 'p50', 'p99_us': 'p99', 'rss_mb': 'RSS in MB'}


def verdicts(results: Results) -> Iterator[str]:
    """Yield a line with the verdict of each target for each of its measured cells."""
    recovery = next((cell for cell in results.cells() if cell.startswith('recovery') and cell.endswith(' GB')), '')
    yield '| cell | figure | against | target | found | |'
    yield '|---|---|---|--:|--:|---|'
    for target in targets(recovery):
        for cell in target.cells:
            division = 'disk' if cell.endswith(ON_DISK) else 'page-cache'
            by_family = {peer.family: peer.name for peer in PEERS.values() if peer.division == division}
            ours, theirs = by_family['kbroker'], by_family.get(target.family or '')
            found = (results.ratio(cell, ours, theirs, target.figure) if theirs
                     else results.median(cell, ours, target.figure))
            if found is not None:
                yield (f'| {cell} | {NAMES[target.figure]} | {theirs or "itself"} | {wanted(target)} | '
                       f'{found:.2f}{" x" if theirs else ""} | {judged(results, target, cell, theirs, found)} |')


def wanted(target: Target) -> str:
    unit = ' x' if target.family else ''
    return f'{"at least" if target.is_least else "at most"} {target.limit:.3g}{unit}'


def judged(results: Results, target: Target, cell: str, theirs: str | None, found: float) -> str:
    """Return the verdict on a ratio. If the floor server misses the target, too, the verdict names the cause: the
    kernel for CPU time, otherwise the client."""
    if reaches(target, found):
        return 'met'
    for floor in (FLOOR_WITH_FILES, FLOOR):
        bound = results.ratio(cell, floor, theirs, target.figure) if theirs else None
        if bound is not None and not reaches(target, bound):
            return f'the {"kernel" if target.figure.startswith("cpu") else "client"}\'s limit: {floor} {bound:.2f} x'
    return '**short**'


def reaches(target: Target, found: float) -> bool:
    return found >= target.limit if target.is_least else found <= target.limit


# ---- curves

CURVES = {  # the growing or moving dimension; other points are compared with the first one
    'partitions, a request to one': r'produce 300 B at random, 8 x 5, ([\d,]+) partitions$',
    'partitions, a request to ten': r'produce 300 B to 10 at random, 8 x 1, ([\d,]+) partitions$',
    'partitions, fetched by one session': r'fetch from all as they come, ([\d,]+) partitions \(fetch\)$',
    'connections': r'produce 300 B, ([\d,]+) x 1(?:, 64 partitions)?$',
    'place in a log': r'fetch 64 KiB from the (\w+) of .* GB, 4 x 1$',
}
FLAT = 1.2


def curves(results: Results) -> Iterator[str]:
    """Yield the table of curves: the broker's CPU time per request while a dimension grows that should not affect it,
    and the largest rise."""
    yield f'| what grows | peer | broker CPU us each | most rise, at most {FLAT} x | |'
    yield '|---|---|---|--:|---|'
    for what, pattern in CURVES.items():
        points = sorted(((found[1], cell) for cell in results.cells() if (found := re.match(pattern, cell))),
                        key=lambda point: int(point[0].replace(',', '')) if point[0][0].isdigit() else 0)
        for peer in PEERS:
            costs = [(point, cost) for point, cell in points
                     if (cost := results.median(cell, peer, 'cpu_us')) is not None]
            if len(costs) > 1:
                rise = max(later / earlier for (_, earlier), (_, later) in combinations(costs, 2))
                yield (f'| {what} | {peer} | {", ".join(f"{point}: {cost:.2f}" for point, cost in costs)} | '
                       f'{rise:.2f} x | {"met" if rise <= FLAT else "**short**"} |')


# ---- the chart

COLOURS = {'kafka': '#c0504d', 'kfake': '#7f7f7f', 'kbroker': '#1f77b4', 'floor': '#c9c9c9'}
PANELS = (('per second', 'rate', ',.0f'), ('broker CPU, us each', 'cpu_us', ',.1f'), ('p99, us', 'p99_us', ',.0f'))
NAME_WIDTH, PANEL_WIDTH, BAR_WIDTH = 390, 260, 170


def chart(results: Results) -> str:
    """Return an SVG with a bar for each peer in each cell.

    Each measure (rate, CPU, p99) has a panel, in which the longest bar of a cell has the full width.
    """
    width = NAME_WIDTH + PANEL_WIDTH * len(PANELS)
    parts, y = [], 56
    for number, (head, _, _) in enumerate(PANELS):
        parts.append(svg.text(NAME_WIDTH + PANEL_WIDTH * number, 40, head, 'font-weight="bold"'))
    for number, (family, colour) in enumerate(COLOURS.items()):
        parts += [svg.key(10 + 90 * number, 10, colour), svg.text(28 + 90 * number, 20, family)]
    for cell in results.cells():
        peers = [peer for peer in results.peers(cell) if results.median(cell, peer, 'rate') is not None]
        if not peers:
            continue
        parts.append(svg.text(10, y + svg.BAR * len(peers) / 2 + 4, cell))
        for number, (_, figure, form) in enumerate(PANELS):
            values = [results.median(cell, peer, figure) for peer in peers]
            longest = max((value for value in values if value), default=1)
            left = NAME_WIDTH + PANEL_WIDTH * number
            for line, (peer, value) in enumerate(zip(peers, values, strict=True)):
                if value is not None:
                    length, top = max(1, BAR_WIDTH * value / longest), y + svg.BAR * line
                    parts += [svg.bar(left, top, length, COLOURS[PEERS[peer].family]),
                              svg.text(left + length + 5, top + 10, f'{value:{form}}')]
        y += svg.BAR * len(peers) + svg.GAP
    return svg.picture(width, y, parts)

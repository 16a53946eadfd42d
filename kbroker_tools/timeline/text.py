"""The timeline of a partition as text. It has a lane for each producer, and a bar for each transaction.

A line is a list of pieces. Each piece has a style, which is used on a terminal. Each outcome has its own character, so
the text is also complete without colours. If several transactions are in one column, one character shows all of their
outcomes.
"""
from __future__ import annotations

import textwrap
from collections import Counter
from typing import NamedTuple

from kbroker.base.words import words_for_duration
from kbroker_tools.base.render import moment_of, printable, words_for_age, words_for_count, words_for_time
from kbroker_tools.timeline.layout import Axis, Lane, Scale, Timeline, count_outcomes, lanes_of, scale_of
from kbroker_tools.timeline.transactions_of_partition import Outcome, PartitionTransaction

Piece = tuple[str, str | None]
Line = list[Piece]

MAX_LANES = 24
MAX_OPEN_SHOWN = 5
MIN_CHART_COLUMNS = 20
MAX_TITLE_COLUMNS = 30
MANY = 4
"""If at least one in this many of a column's transactions is aborted, the column has a special character."""
TICK_COLUMNS = 14
"""The number of columns between two ticks. They have room for a label and spaces."""

STYLES = {Outcome.COMMITTED: 'color(33)', Outcome.ABORTED: 'color(166)', Outcome.OPEN: 'color(134)'}
"""The colours blue, vermilion and purple. Colour-blind users can distinguish them on dark and on light backgrounds."""
MIXED = f'{STYLES[Outcome.ABORTED]} on {STYLES[Outcome.COMMITTED]}'
DIM = 'dim'
BOLD = 'bold'

_STEPS = ((1, (1, 2, 5, 10, 20, 50, 100, 200, 500)), (1000, (1, 2, 5, 10, 15, 30)), (60_000, (1, 2, 5, 10, 15, 30)),
          (3_600_000, (1, 2, 3, 6, 12)), (86_400_000, (1, 2, 7, 14, 30, 90, 365)))
TIME_STEPS_MS = tuple(unit_ms * size for unit_ms, sizes in _STEPS for size in sizes)
"""The possible distances between ticks in milliseconds. Each is a round number of milliseconds, seconds, minutes, hours
or days."""
MINUTE_MS, DAY_MS = 60_000, 86_400_000


class Glyphs(NamedTuple):
    committed: str
    aborted: str
    open: str
    mixed: str
    often_aborted: str
    waiting: str
    commit: str
    abort: str
    onward: str
    restart: str
    stable: str
    watermark: str
    tick: str
    ruler: str
    more: str

    def of(self, outcome: Outcome) -> str:
        return {Outcome.COMMITTED: self.committed, Outcome.ABORTED: self.aborted, Outcome.OPEN: self.open}[outcome]


UNICODE = Glyphs('█', '\u2573', '░', '▂', '▄', '─', 'C', 'A', '▶', '↑', '┊', '│', '┬', '─', '…')
ASCII = Glyphs('#', 'x', ':', '%', '&', '-', 'C', 'A', '>', '^', '!', '|', '+', '-', '~')


def glyphs_for(encoding: str | None) -> Glyphs:
    """Return the characters for the picture. They are line-drawing characters if the encoding of the output has them,
    and otherwise ASCII characters."""
    try:
        ''.join(UNICODE).encode(encoding or 'ascii')
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def draw(timeline: Timeline, axis: Axis, width: int, glyphs: Glyphs = UNICODE) -> list[Line]:
    """Return the whole picture as lines. It is at most `width` columns wide. If `width` is too small for any picture,
    it is wider."""
    lines = [*_headline(timeline, width), []]
    if not timeline.transactions:
        return [*lines, [(_no_transactions(timeline), None)]]
    lanes = lanes_of(timeline, MAX_LANES)
    tallies = [_tally(lane.transactions, glyphs) for lane in lanes]
    title_columns = min(MAX_TITLE_COLUMNS, max(len(lane.title) for lane in lanes), max(10, width // 4))
    tally_columns = max(map(len, tallies))
    details = [lane.detail for lane in lanes]
    detail_columns = max(map(len, details)) + 2
    columns = width - title_columns - tally_columns - 6
    if columns - detail_columns >= 60:
        columns -= detail_columns
    else:
        details = [''] * len(lanes)
    chart = Chart(timeline, scale_of(timeline, axis), max(MIN_CHART_COLUMNS, columns), glyphs)
    margin = ' ' * (title_columns + 2)
    lines += [[(margin + text, DIM)] for text in chart.ruler()]
    for lane, tally, detail in zip(lanes, tallies, details, strict=True):
        title = _shortened(lane.title, title_columns, glyphs).ljust(title_columns) + '  '
        counts = [('  ' + tally.ljust(tally_columns), None), ('  ' + detail if detail else '', DIM)]
        lines.append([(title, BOLD), *chart.lane(lane), *counts])
    lines += [[(margin + text, None)] for text in chart.rules()]
    return [*lines, [], *_legend(glyphs, width, chart.most_in_a_column, chart.words_for_column()),
            *_open_transactions(timeline, width)]


class Chart:
    """The part of the picture between the heading and the counts."""

    def __init__(self, timeline: Timeline, scale: Scale, columns: int, glyphs: Glyphs):
        self._timeline = timeline
        self._scale = scale
        self._columns = columns
        self._glyphs = glyphs
        self.most_in_a_column = 0
        offsets = timeline.offsets
        marks = ((offsets.last_stable_offset, offsets.high_watermark) if scale.axis == 'offset'
                 else (timeline.last_stable_timestamp_ms, timeline.end_timestamp_ms))
        self._stable, self._watermark = (self._rule_column(value) for value in marks)

    def _rule_column(self, value: int) -> int | None:
        place = self._scale.place(value)
        return min(self._columns, round(place * self._columns)) if 0 <= place <= 1 else None

    def _column(self, place: float) -> int:
        return max(0, min(self._columns - 1, int(place * self._columns)))

    def ruler(self) -> list[str]:
        """Return the line with the labels of the axis, and the line with its ticks."""
        labels = [' '] * (self._columns + 1)
        line = [self._glyphs.ruler] * (self._columns + 1)
        free_from = 0
        for value, label in ticks(self._scale, max(2, self._columns // TICK_COLUMNS)):
            column = min(self._columns, round(self._scale.place(value) * self._columns))
            line[column] = self._glyphs.tick
            start = max(0, min(column, self._columns + 1 - len(label)))
            if start >= free_from:
                labels[start:start + len(label)] = label
                free_from = start + len(label) + 2
        return [''.join(labels).rstrip(), ''.join(line)]

    def lane(self, lane: Lane) -> Line:
        spans = [(transaction, *self._span(transaction)) for transaction in lane.transactions]
        inside = {outcome: [0] * self._columns for outcome in Outcome}
        for transaction, first, last in spans:
            counts = inside[transaction.outcome]
            for column in range(first, last + 1):
                counts[column] += 1
        totals = [sum(counts) for counts in zip(*inside.values(), strict=True)]
        self.most_in_a_column = max(self.most_in_a_column, *totals)
        cells: list[Piece] = [self._cell({outcome: inside[outcome][column] for outcome in Outcome}, column)
                              for column in range(self._columns)]
        begun = Counter(first for _, first, last in spans if last > first)
        has_own_cell = [total == 1 or (total == 2 and begun[column] == 1) for column, total in enumerate(totals)]
        for transaction, first, last in spans:
            self._decorate(cells, totals, has_own_cell, transaction, first, last)
            if transaction.first_offset in lane.restarts:
                self._mark_restart(cells, totals, transaction, first, last)
        cells.append((self._glyphs.watermark, None) if self._watermark == self._columns else (' ', None))
        return _joined(cells)

    def _span(self, transaction: PartitionTransaction) -> tuple[int, int]:
        first = self._column(self._scale.begin_of(transaction))
        end = self._scale.end_of(transaction) * self._columns
        return first, max(first, min(self._columns - 1, int(end) - (end == int(end))))

    def _cell(self, counts: dict[Outcome, int], column: int) -> Piece:
        if counts[Outcome.OPEN]:
            return self._glyphs.open, STYLES[Outcome.OPEN]
        if counts[Outcome.ABORTED]:
            if not counts[Outcome.COMMITTED]:
                return self._glyphs.aborted, STYLES[Outcome.ABORTED]
            is_many = counts[Outcome.ABORTED] * MANY >= counts[Outcome.COMMITTED] + counts[Outcome.ABORTED]
            return self._glyphs.often_aborted if is_many else self._glyphs.mixed, MIXED
        if counts[Outcome.COMMITTED]:
            return self._glyphs.committed, STYLES[Outcome.COMMITTED]
        if column == self._watermark:
            return self._glyphs.watermark, None
        return (self._glyphs.stable, None) if column == self._stable else (' ', None)

    def _decorate(self, cells: list[Piece], totals: list[int], has_own_cell: list[bool],
                  transaction: PartitionTransaction, first: int, last: int) -> None:
        """Draw two details of a bar, if they fit: the end of its records, and its marker.

        A marker may replace the first column of another bar if the other bar also covers the next column.
        """
        if last == first:
            return
        glyphs, style = self._glyphs, STYLES[transaction.outcome]
        if transaction.outcome is Outcome.OPEN:
            cells[last] = (glyphs.onward, style)
            return
        written = self._scale.place(transaction.last_offset + 1 if self._scale.axis == 'offset'
                                    else transaction.last_timestamp_ms)
        for column in range(max(first, self._column(written)) + 1, last):
            if totals[column] == 1:
                cells[column] = (glyphs.waiting, style)
        if has_own_cell[last]:
            cells[last] = (glyphs.commit if transaction.outcome is Outcome.COMMITTED else glyphs.abort, style)

    def _mark_restart(self, cells: list[Piece], totals: list[int], transaction: PartitionTransaction, first: int,
                      last: int) -> None:
        room = [first - 1] if first > 0 and not totals[first - 1] else \
            [column for column in (first, first + 1) if last - column >= 2 and totals[column] == 1]
        if room:
            cells[room[0]] = (self._glyphs.restart, BOLD)

    def rules(self) -> list[str]:
        """Return the lines below the lanes. They name the last stable offset and the high watermark."""
        offsets, glyphs = self._timeline.offsets, self._glyphs
        named = [(self._watermark, glyphs.watermark, f'high watermark {offsets.high_watermark:,}'),
                 (self._stable, glyphs.stable, f'last stable offset {offsets.last_stable_offset:,}')]
        if self._stable == self._watermark and offsets.last_stable_offset == offsets.high_watermark:
            named = [(self._watermark, glyphs.watermark,
                      f'last stable offset and high watermark {offsets.high_watermark:,}')]
        lines = []
        for column, glyph, label in named:
            if column is None:
                continue
            text = f'{glyph} {label}' if column + len(label) + 2 <= self._columns + 1 else f'{label} {glyph}'
            lines.append(' ' * (column if text.startswith(glyph) else max(0, column - len(text) + 1)) + text)
        return lines

    def words_for_column(self) -> str:
        span = (self._scale.end - self._scale.start) / self._columns
        if self._scale.axis == 'time':
            return words_for_duration(span)
        return f'{span:,.1f} offsets' if span < 10 else f'{span:,.0f} offsets'


def ticks(scale: Scale, count: int) -> list[tuple[int, str]]:
    """Return (value, label) of about `count` ticks. The values are round numbers."""
    span = max(1, scale.end - scale.start)
    if scale.axis == 'offset':
        steps = (size * 10 ** power for power in range(20) for size in (1, 2, 5))
        step = next(step for step in steps if span / step <= count)
        return [(value, f'{value:,}') for value in range(-(-scale.start // step) * step, scale.end + 1, step)]
    step = next((size for size in TIME_STEPS_MS if span / size <= count), span)
    return [(value, _clock(value, step)) for value in range(-(-scale.start // step) * step, scale.end + 1, step)]


def _clock(timestamp_ms: int, step_ms: int) -> str:
    moment = moment_of(timestamp_ms)
    if moment is None:
        return str(timestamp_ms)
    if step_ms >= DAY_MS:
        return moment.strftime('%Y-%m-%d')
    if step_ms >= MINUTE_MS:
        return moment.strftime('%H:%M') if moment.hour or moment.minute else moment.strftime('%Y-%m-%d')
    return moment.strftime('%H:%M:%S') + ('' if step_ms >= 1000 else f'.{timestamp_ms % 1000:03d}')


def extent(timeline: Timeline) -> list[str]:
    """Return the heading of the picture: offsets, times and counts."""
    counts = timeline.counts()
    of = ', '.join(f'{count:,} {outcome.value}' for outcome, count in counts.items() if count)
    lines = [f'offsets {timeline.start_offset:,} to {max(timeline.start_offset, timeline.end_offset - 1):,}: '
             + words_for_count(len(timeline.transactions), 'transaction') + (f' ({of})' if of else '')]
    if timeline.transactions and timeline.end_timestamp_ms < 0:
        lines.append('no record has a timestamp from 1970 on')
    elif timeline.transactions:
        lines.append(f'{words_for_time(timeline.start_timestamp_ms)} to {words_for_time(timeline.end_timestamp_ms)}')
    if timeline.lone_markers:
        lines.append(f'{words_for_count(len(timeline.lone_markers), "marker")} without records here: the transaction '
                     'began earlier, wrote nothing to this partition, or was compacted')
    return lines


def stability(timeline: Timeline) -> str:
    """Return a sentence about the last stable offset and the number of records that it holds back."""
    offsets = timeline.offsets
    held_back = offsets.high_watermark - offsets.last_stable_offset
    held = f': {words_for_count(held_back, "offset")} held back from read_committed consumers' if held_back else ''
    return f'last stable offset {offsets.last_stable_offset:,}, high watermark {offsets.high_watermark:,}{held}'


def _headline(timeline: Timeline, width: int) -> list[Line]:
    lines: list[Line] = [[(f'{timeline.topic}-{timeline.partition}', BOLD), (f'  {timeline.place}', DIM)]]
    for text in [*extent(timeline), stability(timeline)]:
        lines += _wrapped(text, width)
    return lines


def _wrapped(text: str, width: int) -> list[Line]:
    return [[(line, None)] for line in textwrap.wrap(text, max(width, MIN_CHART_COLUMNS), subsequent_indent='  ')]


def _no_transactions(timeline: Timeline) -> str:
    if timeline.offsets.high_watermark == timeline.offsets.log_start_offset:
        return 'The partition is empty.'
    return f'No transactions here: {words_for_count(timeline.plain_records, "record")} outside of any.'


def _tally(transactions: list[PartitionTransaction], glyphs: Glyphs) -> str:
    counts = count_outcomes(transactions)
    signs = {Outcome.COMMITTED: glyphs.commit, Outcome.ABORTED: glyphs.abort, Outcome.OPEN: glyphs.onward}
    return ' '.join(f'{count:,}{signs[outcome]}' for outcome, count in counts.items() if count)


def _legend(glyphs: Glyphs, width: int, most: int, column: str) -> list[Line]:
    entries: list[tuple[Piece, str]] = [
        *(((glyphs.of(outcome) * 2, STYLES[outcome]), outcome.value) for outcome in Outcome),
        ((glyphs.mixed * 2, MIXED), 'some aborted'), ((glyphs.often_aborted * 2, MIXED), 'a quarter or more aborted'),
        ((glyphs.waiting * 2, None), 'written, no marker yet'), ((glyphs.commit, None), 'commit marker'),
        ((glyphs.abort, None), 'abort marker'), ((glyphs.onward, None), 'still open'),
        ((glyphs.restart, BOLD), 'epoch jumped: started again, or wrote elsewhere'),
    ]
    lines: list[Line] = [[]]
    used = 0
    for (glyph, style), words in entries:
        columns = len(glyph) + 1 + len(words)
        if used and used + 3 + columns > width:
            lines.append([])
            used = 0
        lines[-1] += [('   ' if used else '', None), (glyph, style), (' ' + words, None)]
        used += columns + (3 if used else 0)
    per_column = f'one column is {column}' + (f', at most {most:,} transactions in one' if most > 1 else '')
    return [*lines, [(per_column, DIM)]]


def _open_transactions(timeline: Timeline, width: int) -> list[Line]:
    found = timeline.open_transactions()
    lines: list[Line] = [[]] if found else []
    for transaction in found[:MAX_OPEN_SHOWN]:
        owner = timeline.transactional_ids.get(transaction.producer_id)
        lines += _wrapped(
            'open: ' + (f'{printable(owner)}, ' if owner else '') + f'producer {transaction.producer_id} epoch '
            f'{transaction.producer_epoch}, from offset {transaction.first_offset:,} on, '
            f'{words_for_count(transaction.records, "record")}, '
            + words_for_age(timeline.read_at_ms, transaction.begin_timestamp_ms), width)
    if len(found) > MAX_OPEN_SHOWN:
        lines.append([(f'and {len(found) - MAX_OPEN_SHOWN:,} more that are open', None)])
    return lines


def _shortened(text: str, columns: int, glyphs: Glyphs) -> str:
    clean = printable(text)
    return clean if len(clean) <= columns else clean[:columns - 1] + glyphs.more


def _joined(cells: list[Piece]) -> Line:
    """Join adjacent pieces that have the same style."""
    pieces: Line = []
    for text, style in cells:
        if pieces and pieces[-1][1] == style:
            pieces[-1] = (pieces[-1][0] + text, style)
        else:
            pieces.append((text, style))
    return pieces

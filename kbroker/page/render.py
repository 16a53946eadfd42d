"""The page: who is open, what they hold back, who lags, and what is wrong with the machine.

It is rendered in parts on the server and works without scripts. `page.js` only fetches it again.
"""
from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple
from urllib.parse import urlencode

from kbroker.base.words import words_for_bytes, words_for_duration
from kbroker.page.facts import (
    Certificate,
    HeldPartition,
    OpenTransaction,
    PageFacts,
    Series,
)
from kbroker.page.markup import Markup, element, joined, lines_of, name_of
from kbroker.page.tables import Column, Table, parts_of, row_of

HTML = 'text/html; charset=utf-8'
HEADERS = (
    ('content-security-policy', "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src "
     "'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"),
    ('referrer-policy', 'no-referrer'),
)
FILES = {'/page.css': 'text/css; charset=utf-8', '/page.js': 'text/javascript; charset=utf-8'}
"""Maps the path of each file that the page loads to its content type."""
MOST_NAMED = 3
"""The most partitions of a transaction in its row."""
OLD_MS = 60_000
"""An open transaction of this age, in milliseconds, is shown as a warning."""
SOON_MS = 30 * 86_400_000
LEAST_FREE = 0.1
LEAST_WHOLE = 10
"""Rates below it have a decimal."""
SUMMED_AT_ONCE = 1000
REFRESHES = element('meta', name='refreshes', content='5000')
"""Tells the script to fetch the page again, after so many milliseconds."""
NO_MARKUP = joined()
_HERE = Path(__file__).parent


@cache
def file_of_page(path: str) -> bytes:
    """Return the content of one of `FILES`."""
    return (_HERE / path.removeprefix('/')).read_bytes()


def page(facts: PageFacts, query: Mapping[str, str]) -> Iterator[bytes | None]:
    """Yield the page in parts. None stands for a moment at which other work may run."""
    head, tail = _frame(f'{facts.title}: kbroker', _footer(facts), REFRESHES)
    yield head
    totals = yield from _totals(facts)
    yield joined(_header(facts), _problems(facts), _tiles(facts, totals)).encode()
    yield joined(_series(facts), _filter(query)).encode()
    for table, rows in (TRANSACTIONS, facts.transactions), (HELD, facts.held), (LAGS, facts.lags):
        for part in parts_of(table, Rows(facts, rows), query):
            yield None if part is None else part.encode()
    yield _machine(facts).encode()
    yield tail


class Rows(Sequence[tuple[PageFacts, Any]]):
    """Rows of a table as pairs (facts, row), which are made when they are needed."""

    def __init__(self, facts: PageFacts, rows: Sequence[Any]):
        self._facts = facts
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        found = self._rows[place]
        return [(self._facts, row) for row in found] if isinstance(place, slice) else (self._facts, found)


class Totals(NamedTuple):
    """The values of the tiles, which need all rows."""

    oldest_ms: int | None
    held_records: int
    worst_lag: int


def _totals(facts: PageFacts) -> Generator[None, None, Totals]:
    began_ms, held, worst = facts.now_ms + 1, 0, 0
    for part in in_parts(facts.transactions):
        began_ms = min(began_ms, *(each.began_ms for each in part))
        yield
    for part in in_parts(facts.held):
        held += sum(each.held_records for each in part)
        yield
    for part in in_parts(facts.lags):
        worst = max(worst, *(each.to_last_stable_offset for each in part))
        yield
    return Totals(facts.now_ms - began_ms if facts.transactions else None, held, worst)


def in_parts(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield the rows in short parts."""
    return (rows[start:start + SUMMED_AT_ONCE] for start in range(0, len(rows), SUMMED_AT_ONCE))


def text_page(facts: PageFacts, title: str, command: Sequence[str] | None, text: str) -> bytes:
    """Return a page with the output of a command, and the command to copy. It does not refresh itself."""
    head, tail = _frame(f'{title}: kbroker', element('p', f'{facts.program}. {utc(facts.now_ms)}.'))
    copied = None if command is None else joined(
        element('h2', 'The command'), element('pre', command_line(facts, command), class_='command', tabindex=0))
    return head + joined(
        element('nav', element('a', '← all of the cluster', href='./'), aria_label='Back'),
        element('header', element('h1', name_of(title))),
        element('pre', lines_of(text), class_='output', tabindex=0, role='region', aria_label='Output'), copied
    ).encode() + tail


def command_line(facts: PageFacts, command: Sequence[str]) -> str:
    """Return a program, its subcommand and arguments as a line for a shell, with the options that reach this cluster.
    """
    program, subcommand, *arguments = command
    return ' '.join([program, subcommand, *map(quote, (*facts.place_options, *arguments))])


def as_argument(name: str) -> tuple[str, ...]:
    """Return the words that give a name to a command. A name that begins with `-` follows `--`, so it is no option."""
    return ('--', name) if name.startswith('-') else (name,)


def _frame(title: str, footer: Markup, refresh: Markup = NO_MARKUP) -> tuple[bytes, bytes]:
    head, tail = file_of_page('/page.html').decode().split('{{main}}')
    return (head.replace('{{title}}', joined(title)).replace('{{refresh}}', refresh).encode(),
            tail.replace('{{footer}}', footer).encode())


def _footer(facts: PageFacts) -> Markup:
    return element('p', f'{facts.program}. {utc(facts.now_ms)}. Lags and held records are differences of offsets: '
                        'markers and aborted records count, too.')


def _header(facts: PageFacts) -> Markup:
    up = '' if facts.started_ms is None else f', up {words_for_duration(facts.now_ms - facts.started_ms)}'
    return element('header', element('h1', name_of(facts.title)),
                   element('p', 'cluster ', element('code', facts.cluster_id), up))


def _problems(facts: PageFacts) -> Markup | None:
    if not facts.problems:
        return None
    return element('ul', *(element('li', each) for each in facts.problems), class_='problems')


def _tile(place: str, term: str, value: str, class_: str | None = None, more: str | None = None) -> Markup:
    """Return a tile that links to the table which explains it."""
    return element('div', element('dt', element('a', term, href=f'#{place}')), element('dd', value, class_=class_),
                   None if more is None else element('dd', more, class_='more'))


def _tiles(facts: PageFacts, totals: Totals) -> Markup:
    now, (oldest, held, lag) = facts.now_ms, totals
    is_old = oldest is not None and oldest >= OLD_MS
    tiles = [
        _tile('t', 'open transactions', f'{len(facts.transactions):,}', 'open' if facts.transactions else None),
        _tile('t', 'the oldest is open for', 'none' if oldest is None else words_for_duration(oldest),
              'warn' if is_old else None),
        _tile('h', 'records held back', f'{held:,}', 'warn' if is_old and held else None,
              f'in {len(facts.held):,} partition{"" if len(facts.held) == 1 else "s"}'),
        _tile('g', 'worst lag', f'{lag:,}', None, 'to the stable end'),
        _tile('offline', 'offline partitions', f'{facts.offline_count:,}', 'bad' if facts.offline_count else 'good')]
    if facts.disks:
        least = min(facts.disks, key=lambda disk: disk.free_bytes / max(disk.size_bytes, 1))
        tiles.append(_tile('disks', 'free on the disk', words_for_bytes(least.free_bytes),
                           _class_of_disk(least.free_bytes, least.size_bytes),
                           f'of {words_for_bytes(least.size_bytes)}'))
    if facts.certificates:
        first = min(facts.certificates, key=lambda each: each.expires_ms)
        tiles.append(_tile('certificates', 'first certificate expires', _expiry(first, now),
                           _class_of_certificate(first, now)))
    return element('dl', *tiles, class_='tiles')


def _series(facts: PageFacts) -> Markup | None:
    if not facts.series:
        return None
    span = words_for_duration(1000 * max(len(each.values) * each.interval_s for each in facts.series))
    return joined(element('h2', 'Throughput ', element('span', f'of the last {span}', class_='count')),
                  element('div', *map(_sparkline, facts.series), class_='series'))


def _rate(series: Series, value: float) -> str:
    if series.unit == 'bytes':
        return f'{words_for_bytes(value)}/s'
    return f'{value:,.1f} /s' if 0 < value < LEAST_WHOLE else f'{value:,.0f} /s'


def _sparkline(series: Series) -> Markup:
    """Return a figure with the values as a line. Its height is the largest value."""
    values = list(series.values) or [0.0]
    values = values * 2 if len(values) == 1 else values     # one value is a level line
    most = max(values)
    scale = 40 / most if most > 0 else 0
    step = 200 / max(len(values) - 1, 1)
    points = ' '.join(f'{i * step:.1f},{42 - value * scale:.1f}' for i, value in enumerate(values))
    now = _rate(series, values[-1])
    label = f'{series.name}: {now} now, peak {_rate(series, most)}'
    return element(
        'figure',
        element('figcaption', element('span', series.name), element('strong', now),
                element('span', f'peak {_rate(series, most)}')),
        element('svg', element('polygon', points=f'0,42 {points} 200,42'), element('polyline', points=points),
                viewBox='0 0 200 44', preserveAspectRatio='none', role='img', aria_label=label))


def _filter(query: Mapping[str, str]) -> Markup:
    kept = [element('input', type='hidden', name=name, value=value)
            for name, value in query.items() if name.endswith('s') and len(name) == 2]
    return element('form', element('label', 'Names that contain', for_='q'), element(
        'input', type='search', id='q', name='q', value=query.get('q', '')[:100], maxlength=100), *kept,
        element('button', 'Filter'), role='search', method='get', action='./')


def _partition(facts: PageFacts, topic: str, partition: int) -> Markup:
    name = name_of(f'{topic}-{partition}')
    if not facts.has_pages_of_commands:
        return name
    return element('a', name, href=f'timeline?{urlencode({"topic": topic, "partition": partition})}',
                   title='The timeline of its transactions')


def _transactional_id(facts: PageFacts, transactional_id: str) -> Markup:
    if not facts.has_pages_of_commands:
        return name_of(transactional_id)
    return element('a', name_of(transactional_id), href=f'history?{urlencode({"id": transactional_id})}',
                   title='The history of this transactional id')


def _partitions(row: tuple[PageFacts, OpenTransaction]) -> Markup:
    facts, transaction = row
    shown: list[str | Markup] = []
    for topic, partition in transaction.partitions[:MOST_NAMED]:
        shown += [', '] if shown else []
        shown.append(_partition(facts, topic, partition))
    more = transaction.partition_count - min(len(transaction.partitions), MOST_NAMED)
    return joined(*shown, element('span', f' and {more:,} more', class_='more') if more else None,
                  None if transaction.partition_count else element('span', 'none yet', class_='more'))


def _age(now_ms: int, since_ms: int | None) -> Markup:
    if since_ms is None:
        return element('span', 'unknown', class_='muted')
    return element('time', words_for_duration(now_ms - since_ms), datetime=utc(since_ms), title=utc(since_ms),
                   class_='warn' if now_ms - since_ms >= OLD_MS else None)


def _deadline(row: tuple[PageFacts, OpenTransaction]) -> str:
    facts, transaction = row
    if transaction.deadline_ms is None:
        return 'being ended' if transaction.state.startswith('Prepare') else 'no time-out'
    left_ms = transaction.deadline_ms - facts.now_ms
    return f'in {words_for_duration(left_ms)}' if left_ms > 0 else 'due'


def _why(row: tuple[PageFacts, HeldPartition]) -> Markup:
    facts, held = row
    if not facts.has_pages_of_commands:
        return element('code', command_line(facts, (
            'kbroker-transactions', 'why-stuck', *as_argument(f'{held.topic}:{held.partition}'))), class_='command')
    return element('a', 'why?', href=f'why-stuck?{urlencode({"topic": held.topic, "partition": held.partition})}')


TRANSACTIONS = Table('t', 'Open transactions', 'No transaction is open.', (
    Column('Transactional id', lambda row: _transactional_id(row[0], row[1].transactional_id),
           lambda row: row[1].transactional_id),
    Column('State', lambda row: row[1].state, lambda row: row[1].state),
    Column('Open for', lambda row: _age(row[0].now_ms, row[1].began_ms), lambda row: -row[1].began_ms, is_number=True),
    Column('Times out', _deadline, lambda row: -(row[1].deadline_ms or 1 << 62), is_number=True),
    Column('Holds back', lambda row: f'{row[1].held_records:,}', lambda row: row[1].held_records, is_number=True),
    Column('Partitions', _partitions, lambda row: row[1].partition_count),
), lambda row: (row[1].transactional_id, *(topic for topic, _ in row[1].partitions)), 'Open for')

HELD = Table('h', 'Partitions whose readers wait', 'Every partition is readable to its end.', (
    Column('Partition', lambda row: _partition(row[0], row[1].topic, row[1].partition),
           lambda row: (row[1].topic, row[1].partition)),
    Column('Held back', lambda row: f'{row[1].held_records:,}', lambda row: row[1].held_records, is_number=True),
    Column('Last stable offset', lambda row: f'{row[1].last_stable_offset:,}', is_number=True),
    Column('High watermark', lambda row: f'{row[1].high_watermark:,}', is_number=True),
    Column('By', lambda row: element('span', 'a producer that no coordinator knows', class_='warn')
           if row[1].holder is None else _transactional_id(row[0], row[1].holder), lambda row: row[1].holder or ''),
    Column('Since', lambda row: _age(row[0].now_ms, row[1].since_ms), lambda row: -(row[1].since_ms or 0),
           is_number=True),
    Column('Reason', _why),
), lambda row: (row[1].topic, row[1].holder or ''), 'Held back')

LAGS = Table('g', 'Lags of groups', 'No group has committed an offset.', (
    Column('Group', lambda row: name_of(row[1].group), lambda row: row[1].group),
    Column('Kind', lambda row: row[1].kind, lambda row: row[1].kind),
    Column('State', lambda row: row[1].state, lambda row: row[1].state),
    Column('Members', lambda row: f'{row[1].members:,}', lambda row: row[1].members, is_number=True),
    Column('Partitions', lambda row: f'{row[1].partitions:,}', lambda row: row[1].partitions, is_number=True),
    Column('To the stable end', lambda row: f'{row[1].to_last_stable_offset:,}',
           lambda row: row[1].to_last_stable_offset, is_number=True),
    Column('To the end', lambda row: f'{row[1].to_high_watermark:,}', lambda row: row[1].to_high_watermark,
           is_number=True),
), lambda row: (row[1].group,), 'To the stable end')


def _machine(facts: PageFacts) -> Markup:
    """Return the tables of offline partitions, disks and certificates."""
    parts = list[Markup | None]()
    if facts.offline:
        more = facts.offline_count - len(facts.offline)
        parts += _plain_table('offline', 'Offline partitions', facts.offline_count, ('Partition', 'Reason'), [
            (name_of(f'{each.topic}-{each.partition}'), name_of(each.reason)) for each in facts.offline])
        parts.append(element('p', f'and {more:,} more', class_='muted') if more > 0 else None)
    if facts.disks:
        parts += _plain_table('disks', 'Disks', len(facts.disks), ('Directory', 'Free', 'Size', 'State'), [
            (name_of(each.path), element('span', words_for_bytes(each.free_bytes), class_=_class_of_disk(
                each.free_bytes, each.size_bytes)), words_for_bytes(each.size_bytes),
             'in use' if each.failure is None else element('span', name_of(each.failure), class_='bad'))
            for each in facts.disks])
    if facts.certificates:
        parts += _plain_table(
            'certificates', 'Certificates', len(facts.certificates), ('Listener', 'Subject', 'Expires', 'At'), [
                (name_of(each.listener), name_of(each.subject), element('span', _expiry(each, facts.now_ms), class_=(
                    _class_of_certificate(each, facts.now_ms))), utc(each.expires_ms))
                for each in sorted(facts.certificates, key=lambda each: each.expires_ms)])
    return joined(*parts)


def _plain_table(mark: str, title: str, count: int, columns: Sequence[str],
                 rows: Iterable[Sequence[str | Markup]]) -> list[Markup]:
    """Return the heading and the table of a few rows, which have an order of their own."""
    head = element('thead', element('tr', *(element('th', column, scope='col') for column in columns)))
    body = element('tbody', *(row_of((column, cell, None) for column, cell in zip(columns, row, strict=True))
                              for row in rows))
    return [element('h2', title, ' ', element('span', f'{count:,}', class_='count'), id=mark),
            element('div', element('table', element('caption', title), head, body), class_='scroll', id=f'{mark}-rows',
                    role='region', tabindex=0, aria_labelledby=mark)]


def _class_of_disk(free_bytes: int, size_bytes: int) -> str | None:
    return 'bad' if free_bytes < LEAST_FREE * size_bytes else None


def _expiry(certificate: Certificate, now_ms: int) -> str:
    left_ms = certificate.expires_ms - now_ms
    return f'in {words_for_duration(left_ms)}' if left_ms > 0 else f'{words_for_duration(-left_ms)} ago'


def _class_of_certificate(certificate: Certificate, now_ms: int) -> str:
    left_ms = certificate.expires_ms - now_ms
    return 'bad' if left_ms <= 0 else 'warn' if left_ms < SOON_MS else 'good'


def utc(time_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, in seconds."""
    return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(time_ms // 1000))

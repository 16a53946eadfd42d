"""A table of the page that is sorted, filtered and cut to pages by the query of the request."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urlencode

from kbroker.page.markup import Markup, element, joined

ROWS_OF_A_PAGE = 25
MOST_FILTER_CHARACTERS = 100
ROWS_OF_A_STEP = 10
SORTED_AT_ONCE = 250


class Column(NamedTuple):
    """A column: its title, the cell of a row, and the key by which it sorts. Without a key it does not sort."""

    title: str
    cell: Callable[[Any], str | Markup]
    key: Callable[[Any], Any] | None = None
    is_number: bool = False


class Table(NamedTuple):
    """A table: `mark` is its prefix in the names of the query, `names` the texts of a row that the filter looks at.

    Rows are sorted by the column `first`, the largest first, if the query says nothing.
    """

    mark: str
    title: str
    none: str
    columns: Sequence[Column]
    names: Callable[[Any], Sequence[str]]
    first: str


def parts_of(table: Table, rows: Sequence[Any], query: Mapping[str, str]) -> Iterator[Markup | None]:
    """Yield the table in parts. None stands for a moment at which other work may run."""
    wanted = query.get('q', '')[:MOST_FILTER_CHARACTERS].casefold()
    column, is_rising = _order(table, query)
    assert column.key is not None
    number_of_rows, chunks = 0, list[list[Any]]()
    for start in range(0, len(rows), SORTED_AT_ONCE):
        chunk = [row for row in rows[start:start + SORTED_AT_ONCE]
                 if not wanted or any(wanted in name.casefold() for name in table.names(row))]
        chunk.sort(key=column.key, reverse=not is_rising)
        number_of_rows += len(chunk)
        chunks.append(chunk)
        yield None
    pages = max(1, -(-number_of_rows // ROWS_OF_A_PAGE))
    page = min(max(_number(query.get(f'{table.mark}p', '1')), 1), pages)
    shown = list[Any]()
    end = page * ROWS_OF_A_PAGE
    for place, row in enumerate(islice(merge(*chunks, key=column.key, reverse=not is_rising), end)):
        if place >= end - ROWS_OF_A_PAGE:
            shown.append(row)
        elif place % SORTED_AT_ONCE == 0:
            yield None
    title = element('h2', table.title, ' ', element('span', f'{number_of_rows:,}', class_='count'), id=table.mark)
    if not number_of_rows:
        yield joined(title, element('p', 'no name contains the filter' if wanted else table.none, class_='none'))
        return
    head = element('thead', element('tr', *(
        _heading(table, each, column, is_rising, query) for each in table.columns)))
    yield Markup(f'{title}<div class="scroll" id="{table.mark}-rows" role="region" tabindex="0" '
                 f'aria-labelledby="{table.mark}"><table>{_caption(table, column, is_rising)}{head}<tbody>')
    for start in range(0, len(shown), ROWS_OF_A_STEP):
        yield joined(*(row_of((each.title, each.cell(row), 'number' if each.is_number else None)
                               for each in table.columns) for row in shown[start:start + ROWS_OF_A_STEP]))
    yield Markup('</tbody></table></div>')
    if pages > 1:
        yield _pager(table, page, pages, query)


def row_of(cells: Iterable[tuple[str, str | Markup, str | None]]) -> Markup:
    """Return a row of cells (title of the column, content, class). The first one is the heading of the row."""
    return element('tr', *(
        element('td', cell, class_=class_, data_label=title) if place else
        element('th', cell, scope='row', class_=class_, data_label=title)
        for place, (title, cell, class_) in enumerate(cells)))


def _caption(table: Table, column: Column, is_rising: bool) -> Markup:
    order = 'rising' if is_rising else 'falling'
    return element('caption', f'{table.title}, sorted by {column.title.lower()}, {order}')


def link(text: str | Markup, query: Mapping[str, str], table: Table, **changes: str) -> Markup:
    """Return a link to the page with other values in its query."""
    fields = {name: value for name, value in query.items() if value} | changes
    return element('a', text, href=f'?{urlencode(fields)}#{table.mark}')


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 1


def _order(table: Table, query: Mapping[str, str]) -> tuple[Column, bool]:
    """Return the column by which the rows are sorted, and whether the least is the first."""
    wanted = query.get(f'{table.mark}s', '')
    by_title = {column.title.lower(): column for column in table.columns if column.key is not None}
    column = by_title.get(wanted.removeprefix('-').lower())
    return (by_title[table.first.lower()], False) if column is None else (column, not wanted.startswith('-'))


def _heading(table: Table, column: Column, sorted_by: Column, is_rising: bool, query: Mapping[str, str]) -> Markup:
    class_ = 'number' if column.is_number else None
    if column.key is None:
        return element('th', column.title, scope='col', class_=class_)
    is_sorted = column is sorted_by
    falls = is_rising if is_sorted else column.is_number
    arrow = (' ↑' if is_rising else ' ↓') if is_sorted else ''
    sort = ('ascending' if is_rising else 'descending') if is_sorted else None
    changes = {f'{table.mark}s': f'{"-" if falls else ""}{column.title.lower()}', f'{table.mark}p': '1'}
    return element('th', link(f'{column.title}{arrow}', query, table, **changes), scope='col', class_=class_,
                   aria_sort=sort)


def _pager(table: Table, page: int, pages: int, query: Mapping[str, str]) -> Markup:
    def to(number: int, text: str) -> Markup | None:
        return link(text, query, table, **{f'{table.mark}p': str(number)}) if 1 <= number <= pages else None

    return element('nav', to(page - 1, '← previous'), element('span', f'page {page:,} of {pages:,}'),
                   to(page + 1, 'next →'), class_='pager', aria_label=f'Pages of {table.title.lower()}')

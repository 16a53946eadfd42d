"""The output of all commands. A terminal gets tables by the library rich, which is imported only then. A pipe gets
plain text with tabs, as from Kafka's tools. With `--json`, the output is JSON rows. Names that other programs chose may
contain line feeds, or sequences that control a terminal. Control characters in names are therefore escaped in all lines
and cells, also in a pipe. `--raw` prints the names unchanged. Bytes that are not UTF-8 become U+FFFD, as in Kafka's
tools (`as_utf8`)."""
from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from kbroker.base.words import words_for_duration

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Console

PROGRESS_INTERVAL_S = 0.1
NO_TIMESTAMP = -1
LEAST_FOLD = 24
"""The least width, in characters, to which the text of a cell is wrapped. Every number fits this width, so only ids are
wrapped."""
COLUMN_GAP = 3


class Column(NamedTuple):
    """A column of a table. `name` is the key in JSON rows: in snake_case, with the unit of the values. `title` is the
    heading."""

    name: str
    title: str
    justify: Literal['left', 'right'] = 'left'


class Output:
    """The output of a command: tables and lines on stdout, notes and progress on stderr."""

    is_raw = False
    """True if names are printed unchanged in a pipe, as `--raw` requests."""

    def __init__(self, as_json: bool = False, stream: IO[str] | None = None):
        self.as_json = as_json
        self.stream = stream if stream is not None else sys.stdout
        self.is_terminal = self.stream.isatty() and not as_json
        self._noted: set[str] = set()

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
        """Print a table. A cell of None is printed as `None`, as in Kafka's tools, and as null in JSON."""
        if self.as_json:
            for row in rows:
                self.row(dict(zip((column.name for column in columns), row, strict=True)))
        elif self.is_terminal:
            self._rich_table(columns, rows, title)
        else:
            self._plain_table(columns, [[self._text(str(cell)) for cell in row] for row in rows])

    def row(self, fields: dict[str, Any]) -> None:
        """Print one JSON object on its own line."""
        self.stream.write(json_line(fields) + '\n')

    def line(self, text: str = '', style: str | None = None) -> None:
        """Print a line of text, which may contain tabs. `style` is a style of rich. It has an effect only on a
        terminal."""
        text = self._text(text, but='\t')
        if self.is_terminal and style is not None:
            self.console().print(text, style=style, markup=False, highlight=False, soft_wrap=True)
        else:
            self.stream.write(text + '\n')

    def labelled(self, label: str, text: str) -> None:
        """Print a label, which is dimmed on a terminal, and the text after it. The text may have several lines."""
        if self.is_terminal:
            from rich.text import Text
            self.console().print(Text.assemble((printable(label), 'dim'), printable(text, but='\n')), highlight=False,
                                 soft_wrap=True)
        else:
            self.stream.write(self._text(label + text, but='\n\t') + '\n')

    def note(self, text: str) -> None:
        """Print a line on stderr that is not part of the result."""
        self.stream.flush()
        warn(text)

    def _text(self, text: str, but: str = '') -> str:
        return text if self.is_raw and not self.is_terminal else printable(text, but)

    def note_once(self, text: str) -> None:
        """Print a note on stderr, unless this command has printed the same note before."""
        if text not in self._noted:
            self._noted.add(text)
            self.note(text)

    def console(self) -> Console:
        """Return rich's console for `stream`. It respects NO_COLOR and the width of the terminal."""
        from rich.console import Console
        return Console(file=self.stream, highlight=False, emoji=False)

    @contextmanager
    def progress(self, description: str, total: int | None = None, unit: str = '') -> Iterator[Progress]:
        """Show a progress bar on stderr during the block, if stderr is a terminal. `total` is in bytes if `unit` is
        'bytes'."""
        if not sys.stderr.isatty() or os.environ.get('TERM') == 'dumb':
            yield Progress()
            return
        from rich import progress as bars
        from rich.console import Console
        from rich.text import Text

        class WhenTotalIsKnown(bars.ProgressColumn):
            def __init__(self, column: bars.ProgressColumn):
                super().__init__()
                self._column = column

            def render(self, task: bars.Task) -> Any:
                return Text() if task.total is None else self._column(task)

        amount = bars.DownloadColumn() if unit == 'bytes' else bars.MofNCompleteColumn()
        with bars.Progress(bars.TextColumn('{task.description}'), bars.BarColumn(), WhenTotalIsKnown(amount),
                           WhenTotalIsKnown(bars.TimeRemainingColumn()), console=Console(stderr=True),
                           transient=True) as bar:
            task = bar.add_task(description, total=total)
            yield Progress(lambda amount: bar.advance(task, amount),
                           lambda description, total: bar.reset(task, description=description, total=total))

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show `text` on the terminal during the block, which must not write anything else."""
        shows = sys.stderr.isatty() and os.environ.get('TERM') != 'dumb'
        if shows:
            print(text, end='', file=sys.stderr, flush=True)
        try:
            yield
        finally:
            if shows:
                print('\r\x1b[K', end='', file=sys.stderr, flush=True)

    def _plain_table(self, columns: Sequence[Column], rows: list[list[str]]) -> None:
        widths = [max(len(cell) for cell in cells)
                  for cells in zip([column.title for column in columns], *rows, strict=True)]
        for row in [[column.title for column in columns], *rows]:
            cells = (cell.ljust(width) + '\t' for cell, width in zip(row, widths, strict=True))
            self.stream.write(''.join(cells) + '\n')

    def _rich_table(self, columns: Sequence[Column], rows: Iterable[Sequence[Any]], title: str | None) -> None:
        """Print a table, with wrapped titles if needed. If the table does not fit the terminal, print each row as a
        list."""
        from rich import box
        from rich.table import Table
        from rich.text import Text
        cells = [['-' if cell is None else printable(str(cell)) for cell in row] for row in rows]
        titles = [column.title for column in columns]
        console = self.console()
        if _width(titles, cells) > console.width:
            titles = [_WORDS.sub('\n', title) for title in titles]
            if _width(titles, cells) > console.width:
                self._lists(columns, cells, title)
                return
        table = Table(title=title, title_justify='left', box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for column, heading, least in zip(columns, titles, _widths(titles, cells), strict=True):
            table.add_column(Text(heading), justify=column.justify, overflow='fold', min_width=least)
        for row in cells:
            table.add_row(*map(Text, row))
        console.print(table)

    def _lists(self, columns: Sequence[Column], rows: Iterable[Sequence[str]], title: str | None) -> None:
        if title is not None:
            self.line(title)
        width = max(len(column.title) for column in columns)
        for number, row in enumerate(rows):
            if number:
                self.line()
            for column, cell in zip(columns, row, strict=True):
                self.labelled(f'{column.title:{width}}  ', cell)


class Progress:
    """The progress of a running command. It is shown only on a terminal."""

    def __init__(self, advance: Any = None, restart: Any = None):
        self._advance = advance
        self._restart = restart

    def restart(self, description: str, total: int | None) -> None:
        """Begin another phase of the progress bar. The remaining time is estimated from the start of the phase."""
        if self._restart is not None:
            self._restart(description, total)

    def advance(self, amount: int = 1) -> None:
        if self._advance is not None:
            self._advance(amount)


def as_utf8(text: str) -> str:
    """Replace bytes that are not UTF-8 by U+FFFD, as Java does.

    In Python, these bytes are surrogate escapes. Other unpaired surrogates, which JSON can contain, are replaced too.
    """
    if text.isascii():
        return text
    return _HALVES.sub('\ufffd', text).encode('utf-8', 'surrogateescape').decode('utf-8', 'replace')


def json_line(fields: dict[str, Any]) -> str:
    """Return the fields as one line of JSON. It is valid UTF-8 and has no characters that control a terminal."""
    text = json.dumps(fields, ensure_ascii=False, separators=(',', ':'), default=_to_json)
    return _escaped(as_utf8(text), lambda character: json.dumps(character)[1:-1])


def warn(text: str) -> None:
    """Print a line on stderr."""
    print(printable(text, but='\t'), file=sys.stderr)


_HALVES = re.compile('[\ud800-\udc7f\udd00-\udfff]')
"""Matches each surrogate that is not an escaped byte."""


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode('utf-8', 'replace')
    if isinstance(value, set | frozenset | tuple):
        return sorted(value)
    raise TypeError(f'found {type(value).__name__}, expected a JSON type')


_WORDS = re.compile(r'(?<=[a-z])(?=[A-Z(])|(?<=[-_])')
"""Matches the boundaries between the words of a title. Kafka's titles are words without spaces between them."""


def _widths(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[int]:
    """Return the least width of each column, in characters: that of its longest title line or cell. A cell counts with
    at most LEAST_FOLD characters."""
    return [max([*map(len, title.split('\n')), *(min(LEAST_FOLD, len(cell)) for cell in cells)])
            for title, *cells in zip(titles, *rows, strict=True)]


def _width(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    return sum(_widths(titles, rows)) + COLUMN_GAP * (len(titles) - 1)


# ---- names that other programs chose

def printable(text: str, but: str = '') -> str:
    """Escape characters that control the terminal or reverse the direction of text, for example as `\\x1b` or
    `\\u202e`. Bytes that are not UTF-8 become U+FFFD."""
    return _escaped(as_utf8(text), lambda character: character.encode('unicode_escape').decode(), but)


def shell_word(text: str) -> str:
    """Quote an argument for the shell. Unprintable characters are written as in `$'\\x1b'`, which bash, zsh and ksh
    understand."""
    if text.isprintable():
        return shlex.quote(text)
    quoted = ''.join(character if character.isprintable() and character not in "'\\" else
                     ''.join(f'\\x{byte:02x}' for byte in character.encode('utf-8', 'surrogateescape'))
                     for character in text)
    return f"$'{quoted}'"


def _escaped(text: str, escape: Callable[[str], str], but: str = '') -> str:
    if text.isprintable():
        return text
    return ''.join(character if character.isprintable() or character in but else escape(character)
                   for character in text)


# ---- in words

def words_for_time(timestamp_ms: int) -> str:
    """Return a time as text in UTC, to the millisecond: `2026-11-20 14:03:07.120Z`.

    A time of -1 means that a record has no timestamp, and has its own text. A time outside the years 1 to 9999 is
    returned as a number.
    """
    if timestamp_ms == NO_TIMESTAMP:
        return 'no timestamp'
    moment = moment_of(timestamp_ms)
    if moment is None:
        return f'{timestamp_ms} ms since 1970'
    return f'{moment.year:04d}-{moment:%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d}Z'


def moment_of(timestamp_ms: int) -> datetime | None:
    """Return a time in UTC. Return None if its year is not between 1 and 9999."""
    from datetime import UTC, datetime, timedelta
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None


def words_for_age(now_ms: int, since_ms: int) -> str:
    """Return an age as words, such as `for 3 h 20 min`. A missing time and a time in the future have their own
    texts."""
    if since_ms == NO_TIMESTAMP:
        return 'without a timestamp'
    if since_ms > now_ms:
        return f'dated {words_for_duration(since_ms - now_ms)} ahead'
    return f'for {words_for_duration(now_ms - since_ms)}'


def words_for_count(count: int, noun: str) -> str:
    """Return a count with its noun, such as `1 record` or `2,000 records`."""
    return f'{count:,} {noun}' + ('' if count == 1 else 's')

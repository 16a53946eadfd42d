"""The filters of `--filter`: regular expressions on the key, the value or a header of a record."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from kbroker_tools.base.command import ToolError

if TYPE_CHECKING:
    from kbroker.base.linear_pattern import LinearPattern
    from kbroker.client.consumed import DeliveredRecords
    from kbroker.record.records import Record
    from kbroker_tools.console.message_source import Source

    Matches = Callable[[Record], bool]

_FILTER = re.compile(r'(?:(?P<field>key|value)|header\.(?P<header>.+?))(?P<not>!?)=(?P<pattern>.*)', re.DOTALL)


class RecordFilter:
    """A filter that passes a record if an expression matches a part of one of its fields. Bytes that are not UTF-8
    match as the characters of surrogate escapes do. A null, or a header that is missing, matches no expression.

    Raise ToolError unless the text is `FIELD=REGEX`, or `FIELD!=REGEX` for the records that do not match.
    """

    def __init__(self, text: str):
        found = _FILTER.fullmatch(text)
        if found is None:
            raise ToolError(f'--filter: found {text!r}, expected key=REGEX, value=REGEX or header.NAME=REGEX, or != '
                            'for the other records')
        self._field: str | None = found['field']
        self._header: str | None = found['header']
        self._is_negated = bool(found['not'])
        self._pattern = _search_pattern(found['pattern'])

    def passes(self, record: Record) -> bool:
        found = any(self._pattern.matches(data.decode('utf-8', 'surrogateescape')) for data in self._data(record))
        return found is not self._is_negated

    def _data(self, record: Record) -> Iterator[bytes]:
        if self._header is not None:
            values: Iterable[bytes | None] = (value for name, value in record.headers if name == self._header)
        else:
            values = (record.key if self._field == 'key' else record.value,)
        return (value for value in values if value is not None)


def _search_pattern(text: str) -> LinearPattern:
    """Return a pattern that matches each text which contains a match of the expression. Raise ToolError if the
    expression is refused."""
    from kbroker.base.linear_pattern import LinearPattern, PatternError
    try:
        LinearPattern(text)         # alone, so that a parenthesis cannot end the group below
        return LinearPattern(f'(?s:.*)(?:{text})(?s:.*)')
    except PatternError as error:
        raise ToolError(f'--filter: {error}') from None


def filter_of(texts: Iterable[str]) -> Matches | None:
    """Return a function that returns True for records which pass all filters, or None without a filter."""
    filters = [RecordFilter(text) for text in texts]
    if not filters:
        return None
    return lambda record: all(each.passes(record) for each in filters)


class FilteredSource:
    """A source of those records of another source that pass a filter."""

    def __init__(self, source: Source, matches: Matches):
        self._source = source
        self._matches = matches

    def batches(self) -> Iterator[list[DeliveredRecords]]:
        for found in self._source.batches():
            try:
                passed = [batch._replace(records=[record for record in batch.records if self._matches(record)])
                          for batch in found]
            except BaseException:       # such as Ctrl-C: nothing of them was shown
                for batch in reversed(found):
                    self._source.unread(batch)
                raise
            yield [batch for batch in passed if batch.records]

    def unread(self, batch: DeliveredRecords) -> None:
        self._source.unread(batch)

    def close(self) -> None:
        self._source.close()

"""The report at the end of kafka-dump-log. It has the errors of all files."""
from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO

from kbroker_tools.dump.gaps import Gaps
from kbroker_tools.rows.releases import NEWEST

Pairs = dict[str, list[tuple[int, int]]]
"""Maps each file to pairs of offsets or timestamps, in the order in which the errors were found."""


class ErrorReport:
    """The errors of all files, by absolute path. A dump prints them at its end.

    Kafka prints the files of a section in the order of a hash map. This report has the files in the order in which they
    were read.
    """

    def __init__(self, compat: str = NEWEST):
        """`compat` is the release of Kafka's tool whose text is printed."""
        self._is_sorted = compat != '4.2'
        self._mismatches: Pairs = {}
        self._timestamp_mismatches: Pairs = {}
        self._out_of_order: Pairs = {}
        self._not_found: Pairs = {}
        self._non_consecutive: dict[str, Gaps] = {}

    def __bool__(self) -> bool:
        """Return whether there are errors to print."""
        return any((self._mismatches, self._timestamp_mismatches, self._out_of_order, self._not_found,
                    self._non_consecutive))

    def mismatch(self, index_path: str, index_offset: int, log_offset: int) -> None:
        """Add an index entry whose offset differs from the last offset of the batch that it points to. `log_offset` is
        the last offset of the batch. From release 4.3, only the last of several entries with the same offset is
        printed."""
        self._mismatches.setdefault(absolute(index_path), []).append((index_offset, log_offset))

    def timestamp_mismatch(self, index_path: str, index_timestamp_ms: int, log_timestamp_ms: int) -> None:
        self._timestamp_mismatches.setdefault(absolute(index_path), []).append((index_timestamp_ms, log_timestamp_ms))

    def out_of_order(self, index_path: str, timestamp_ms: int, previous_ms: int) -> None:
        self._out_of_order.setdefault(absolute(index_path), []).append((timestamp_ms, previous_ms))

    def not_found(self, index_path: str, index_offset: int, log_offset: int) -> None:
        """Add an index entry whose offset is not the last offset of any batch. `log_offset` is the last offset of the
        next batch, or -1 if there is no next batch."""
        self._not_found.setdefault(absolute(index_path), []).append((index_offset, log_offset))

    def gaps(self, log_path: str) -> Gaps:
        """Return the gaps of a log. The object is created at the first call for this log."""
        return self._non_consecutive.setdefault(absolute(log_path), Gaps())

    def lines(self) -> Iterator[str]:
        """Yield the lines of Kafka's report. Up to release 4.2, the last mismatch or gap of a file comes first. Later
        releases sort by offset."""
        for path, pairs in self._mismatches.items():
            yield f'Mismatches in :{path}'
            shown = sorted(dict(pairs).items()) if self._is_sorted else pairs
            yield from (f'  Index offset: {index}, log offset: {log}' for index, log in reversed(shown))
        for path, pairs in self._timestamp_mismatches.items():
            yield f'Found timestamp mismatch in :{path}'
            yield from (f'  Index timestamp: {index}, log timestamp: {log}' for index, log in pairs)
        for path, pairs in self._out_of_order.items():
            yield f'Found out of order timestamp in :{path}'
            yield from (f'  Index timestamp: {index}, Previously indexed timestamp: {previous}'
                        for index, previous in pairs)
        for path, pairs in self._not_found.items():
            yield 'The following indexed offsets are not found in ' + (f':{path}' if self._is_sorted else 'the log.')
            yield from (f'Indexed offset: {index}, found log offset: {log}' for index, log in pairs)
        for path, gaps in self._non_consecutive.items():
            yield f'Non-consecutive offsets in {path}'
            found = gaps if self._is_sorted else reversed(list(gaps.unsorted()))
            yield from (f'  {first} is followed by {second}' for first, second in found)

    def print(self, stream: IO[str]) -> None:
        for line in self.lines():
            stream.write(line + '\n')


def absolute(path: str) -> str:
    """Make a path absolute. As in Java, `..` is not resolved."""
    return os.path.join(os.getcwd(), path)

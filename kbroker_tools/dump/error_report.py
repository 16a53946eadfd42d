"""The final report of kafka-dump-log: the errors in all files."""
from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO

from kbroker_tools.dump.gaps import Gaps

Pairs = dict[str, list[tuple[int, int]]]
"""Pairs of numbers by file, in the order in which they were found."""


class ErrorReport:
    """The errors of all files, by absolute path. They are printed at the end of a dump.

    Kafka lists the files of a section in the order of a hash map. Here they are in the order in which they were read.
    """

    def __init__(self, compat: str = '4.3'):
        """`compat` is the release of Kafka whose text is printed."""
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
        """Add an entry whose batch ends at another offset. If several entries have the same offset, the last one is
        kept."""
        self._mismatches.setdefault(absolute(index_path), []).append((index_offset, log_offset))

    def timestamp_mismatch(self, index_path: str, index_timestamp_ms: int, log_timestamp_ms: int) -> None:
        self._timestamp_mismatches.setdefault(absolute(index_path), []).append((index_timestamp_ms, log_timestamp_ms))

    def out_of_order(self, index_path: str, timestamp_ms: int, previous_ms: int) -> None:
        self._out_of_order.setdefault(absolute(index_path), []).append((timestamp_ms, previous_ms))

    def not_found(self, index_path: str, index_offset: int, log_offset: int) -> None:
        """Add an indexed offset at which no batch ends. `log_offset` is the end of the next batch, or -1 without
        one."""
        self._not_found.setdefault(absolute(index_path), []).append((index_offset, log_offset))

    def gaps(self, log_path: str) -> Gaps:
        """Return the gaps of a log, created at the first call."""
        return self._non_consecutive.setdefault(absolute(log_path), Gaps())

    def lines(self) -> Iterator[str]:
        """Yield Kafka's text. Up to 4.2, a file's last mismatch or gap comes first; later releases sort by offset."""
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
    """Prefix the working directory. As in Java, `..` is not resolved."""
    return os.path.join(os.getcwd(), path)

"""The gaps between the offsets of a log. A compacted log may have millions of gaps."""
from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import IO

PAIRS_IN_MEMORY = 32 * 1024


class Gaps:
    """Pairs of offsets with a gap between them. Iteration sorts them by the first offset. If several pairs have the
    same first offset, only the last of these pairs is kept.

    Up to PAIRS_IN_MEMORY pairs are in memory, and further pairs are in a temporary file. A sound log adds its pairs in
    order. The pairs of a damaged log may be out of order and are sorted in memory.
    """

    def __init__(self) -> None:
        self._pairs = array('q')
        self._file: IO[bytes] | None = None
        self._in_order = True
        self._highest: int | None = None

    def add(self, first: int, second: int) -> None:
        if self._highest is not None and first <= self._highest:
            self._in_order = False
        self._highest = first
        self._pairs.extend((first, second))
        if len(self._pairs) >= 2 * PAIRS_IN_MEMORY:
            self._put_away()

    def _put_away(self) -> None:
        if self._file is None:
            from tempfile import TemporaryFile
            self._file = TemporaryFile()  # noqa: SIM115  (closed with this object)
        self._pairs.tofile(self._file)
        del self._pairs[:]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        if self._in_order:
            yield from self.unsorted()
        else:
            yield from sorted(dict(self.unsorted()).items())

    def unsorted(self) -> Iterator[tuple[int, int]]:
        if self._file is not None:
            self._file.seek(0)
            while data := self._file.read(2 * PAIRS_IN_MEMORY * self._pairs.itemsize):
                yield from _pairs_of(array('q', data))
            self._file.seek(0, 2)
        yield from _pairs_of(self._pairs)


def _pairs_of(numbers: array[int]) -> Iterator[tuple[int, int]]:
    return zip(numbers[::2], numbers[1::2], strict=True)

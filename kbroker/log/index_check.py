"""Compares the indexes of a segment with its log: each index entry with its batch, while the batches are read.

An index is read through a window and never mapped into memory, because a running broker may trim the file during the
check.
"""
import struct
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from kbroker.log.formats import OFFSET_ENTRY, TIME_ENTRY, whole_entries
from kbroker.log.fs import FileSystem
from kbroker.record.batch import BatchHeader

WINDOW_BYTES = 96 * 1024

NO_TIMESTAMP_MS = -1


class Fault(NamedTuple):
    """A problem in an index file."""

    number: int
    """The number of the wrong entry, counted from 0. It is -1 if the whole file is wrong."""
    message: str
    is_harmless: bool = False


class IndexCheck:
    """The base class of OffsetIndexCheck and TimeIndexCheck. A check stops at the first fault, because one wrong entry
    invalidates all later entries.
    """

    entry: struct.Struct

    def __init__(self, fs: FileSystem, path: str, base_offset: int, *, is_last: bool):
        """Create. `is_last` means that a broker may append to the segment; zeros may then follow the index entries."""
        self.path = path
        self._fs = fs
        self._base_offset = base_offset
        self._is_last = is_last
        self._number = -1
        self._key = -1
        self._fault: Fault | None = None
        self._exists = True
        self._entries: Iterator[tuple[int, int]] = iter(())
        self.current: tuple[int, int] | None = None
        try:
            self._entries = self._read()
            self._advance()
        except FileNotFoundError:
            self._exists = False
        except OSError as error:
            self._fail(f'cannot be read: {error.strerror or error}')

    def _read(self) -> Iterator[tuple[int, int]]:
        file = self._fs.open(self.path)
        size_bytes = file.size()
        if size_bytes % self.entry.size:
            self._fail(f'found {size_bytes} bytes, expected a multiple of {self.entry.size}', -1)
            return iter(())
        positions = range(0, size_bytes, WINDOW_BYTES)
        windows = (file.read_at(min(WINDOW_BYTES, size_bytes - position), position) for position in positions)
        return chain.from_iterable(whole_entries(self.entry, window) for window in windows)

    def _advance(self) -> None:
        """Step to the next index entry. After a fault, set `current` to None."""
        self.current = next(self._entries, None) if self._fault is None else None
        self._number += 1

    def _fail(self, message: str, number: int | None = None) -> None:
        self._fault = Fault(self._number if number is None else number, message)
        self.current = None

    def _end_at_zeros(self) -> None:
        """End the check at the first zeros. They are a fault unless a broker may append to the segment: the indexes of
        all other segments are trimmed.
        """
        if self._is_last:
            self.current, self._entries = None, iter(())
        else:
            self._fail('found zeros, expected the end of the file')

    def _grow(self, key: int, what: str) -> bool:
        if key <= self._key:
            self._fail(f'found {what} {key} after {self._key}')
            return False
        self._key = key
        return True

    def missing(self, is_needed: bool) -> Fault | None:
        return Fault(-1, 'found no such file') if is_needed and not self._exists else None


class OffsetIndexCheck(IndexCheck):
    """Checks an `.index` file, the offset index of a segment.

    An entry may belong to several batches: the cleaner of Apache Kafka 4.0 writes the position of the first batch and
    the last offset of the last batch. A lookup by offset then begins to scan a little early.
    """

    entry = OFFSET_ENTRY

    def __init__(self, fs: FileSystem, path: str, base_offset: int, *, is_last: bool):
        self._expected_end = -1
        """The relative offset in the last entry. A batch must end at this offset. It is -1 if that batch was already
        read.
        """
        super().__init__(fs, path, base_offset, is_last=is_last)

    def see(self, position: int, header: BatchHeader) -> None:
        self._see_end(header.last_offset - self._base_offset)
        while self.current is not None and self.current[1] <= position:
            relative_offset, indexed = self.current
            if relative_offset == 0:
                self._end_at_zeros()
            elif not self._grow(relative_offset, 'relative offset'):
                pass
            elif indexed != position:
                self._fail(f'found position {indexed}, where no batch begins')
            elif header.last_offset > self._base_offset + relative_offset:
                self._fail(f'found offset {self._base_offset + relative_offset}, the batch at {position} ends at '
                           f'{header.last_offset}')
            else:
                self._expected_end = relative_offset
                self._see_end(header.last_offset - self._base_offset)
                self._advance()

    def _see_end(self, relative_offset: int) -> None:
        """Compare the relative last offset of a batch with `_expected_end`."""
        if relative_offset == self._expected_end:
            self._expected_end = -1
        elif 0 <= self._expected_end < relative_offset and self._fault is None:
            self._fail(f'found offset {self._base_offset + self._expected_end}, where no batch ends', self._number - 1)
            self._expected_end = -1

    def end(self, *, is_needed: bool, is_complete: bool) -> Fault | None:
        """End the check and return the first fault. `is_complete` means that all batches were read, so that a remaining
        entry matches no batch. A missing file is a fault if `is_needed`.
        """
        if self.current is not None and self.current[0] == 0:
            self._end_at_zeros()
        if self.current is not None and is_complete:
            self._fail(f'found position {self.current[1]}, where no batch begins')
        elif self._fault is None and self._expected_end >= 0 and is_complete:
            self._fail(f'found offset {self._base_offset + self._expected_end}, where no batch ends', self._number - 1)
        return self._fault or self.missing(is_needed)


class TimeIndexCheck(IndexCheck):
    """Checks a `.timeindex` file, the time index of a segment.

    If batches had no timestamps, older versions of kbroker wrote a first entry with timestamp -1.
    """

    entry = TIME_ENTRY

    def __init__(self, fs: FileSystem, path: str, base_offset: int, *, is_last: bool):
        self._greatest_ms = -1
        self._remark: Fault | None = None
        """A harmless fault, which is reported only if there is no other fault."""
        super().__init__(fs, path, base_offset, is_last=is_last)

    def see(self, position: int, header: BatchHeader) -> None:
        self._greatest_ms = max(self._greatest_ms, header.max_timestamp_ms)
        while self.current is not None and self._base_offset + self.current[1] <= header.last_offset:
            timestamp_ms, relative_offset = self.current
            offset = self._base_offset + relative_offset
            if timestamp_ms == relative_offset == 0 and (offset != header.last_offset or header.max_timestamp_ms != 0):
                self._end_at_zeros()
            elif self._number == 0 and timestamp_ms == NO_TIMESTAMP_MS:
                self._remark = Fault(0, 'found an entry for timestamp -1, which stands for none', is_harmless=True)
                self._advance()
            elif not self._grow(timestamp_ms, 'timestamp'):
                pass
            elif offset != header.last_offset:
                self._fail(f'found offset {offset}, where no batch ends')
            elif header.max_timestamp_ms != timestamp_ms or self._greatest_ms != timestamp_ms:
                self._fail(f'found timestamp {timestamp_ms} for offset {offset}, the batch has '
                           f'{header.max_timestamp_ms}, the segment up to it {self._greatest_ms}')
            else:
                self._advance()

    def end(self, *, is_needed: bool, is_complete: bool) -> Fault | None:
        """End the check and return the first fault. It is a fault if a rolled segment's last entry does not have the
        segment's greatest timestamp.
        """
        if self.current == (0, 0):
            self._end_at_zeros()
        if self.current is not None and is_complete:
            self._fail(f'found offset {self._base_offset + self.current[1]}, where no batch ends')
        elif self._fault is None and self._exists and not self._is_last and is_complete and is_needed and (
                self._greatest_ms != max(self._key, -1)):
            self._fail(f'found {self._key} as the last timestamp, the segment reaches {self._greatest_ms}')
        return self._fault or self.missing(is_needed) or self._remark

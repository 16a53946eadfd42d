"""Aborted transactions of a segment (`.txnindex`), as read_committed consumers need them.

Entry, 34 bytes: int16 version (0), int64 producer_id, int64 first_offset, int64 last_offset (that of the ABORT marker),
int64 last_stable_offset (as the marker left it). Entries stand in marker order. The file exists only where a marker
of an aborted transaction lies in the segment.
"""
import struct
from typing import NamedTuple

from kbroker.errors import CorruptLogError
from kbroker.log.fs import File, FileSystem

ENTRY = struct.Struct('>hqqqq')
VERSION = 0


class AbortedTransaction(NamedTuple):
    """One transaction that was aborted, and the last stable offset that its marker left."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The rows are few, and held in memory once read. Raises OSError, and CorruptLogError when the file is damaged."""

    def __init__(self, fs: FileSystem, path: str, base_offset: int, *, exists: bool):
        self.path = path
        self.exists = exists
        self._fs = fs
        self._base_offset = base_offset
        self._file: File | None = None
        self._rows: list[AbortedTransaction] | None = None if exists else []

    @property
    def rows(self) -> list[AbortedTransaction]:
        """In marker order."""
        if self._rows is None:
            self._rows = self._read()
        return self._rows

    def append(self, row: AbortedTransaction) -> None:
        """Add the row of a marker above all others. Nothing is adopted when the write fails."""
        if self.rows and row.last_offset <= self.rows[-1].last_offset:
            raise CorruptLogError(f'{self.path}: marker at {row.last_offset} after one at {self.rows[-1].last_offset}, '
                                  'expected a higher offset')
        file = self.file()
        file.write_at(ENTRY.pack(VERSION, *row), len(self.rows) * ENTRY.size)
        self.exists = True
        self.rows.append(row)

    def collect(self, fetch_offset: int, upper_bound_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Rows that touch [fetch_offset, upper_bound_offset), and whether later segments can add none."""
        found = []
        for row in self.rows:
            if row.last_offset >= fetch_offset and row.first_offset < upper_bound_offset:
                found.append(row)
            if row.last_stable_offset >= upper_bound_offset:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Drop the rows whose marker is at or above `offset`."""
        kept = [row for row in self.rows if row.last_offset < offset]
        if self.exists:
            self.file().resize(len(kept) * ENTRY.size)
        self._rows = kept

    def reset(self) -> None:
        """Forget all rows and the file: the index is about to be rebuilt."""
        if self.exists:
            self._file = None
            self._fs.unlink(self.path)
        self.exists = False
        self._rows = []

    def check(self) -> None:
        """Read the file; CorruptLogError when it is damaged."""
        _ = self.rows

    def file(self) -> File:
        """The open file, for a write or a sync."""
        if self._file is None:
            self._file = self._fs.open(self.path, True)
        return self._file

    def _read(self) -> list[AbortedTransaction]:
        data = self._fs.read_file(self.path)
        if len(data) % ENTRY.size:
            raise CorruptLogError(f'{self.path}: found {len(data)} bytes, expected a multiple of {ENTRY.size}')
        rows: list[AbortedTransaction] = []
        for position in range(0, len(data), ENTRY.size):
            version, *fields = ENTRY.unpack_from(data, position)
            row = AbortedTransaction(*fields)
            if version != VERSION:
                raise CorruptLogError(f'{self.path}: found version {version} at {position}, expected {VERSION}')
            if row.last_offset < self._base_offset or (rows and row.last_offset <= rows[-1].last_offset):
                raise CorruptLogError(f'{self.path}: found marker offset {row.last_offset} at {position}, expected one '
                                      f'above {rows[-1].last_offset if rows else self._base_offset - 1}')
            rows.append(row)
        return rows

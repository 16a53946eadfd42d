"""The start offset of each leader epoch (KIP-101, KIP-279), in memory and in `leader-epoch-checkpoint`.

Every batch contains its leader epoch, so the file can be rebuilt from the log. When an epoch begins, the file is
replaced immediately. The next flush of the log syncs the file; `is_unsynced` is true until then.
"""
import os

from kbroker.base.errors import CorruptLogError
from kbroker.log.checkpoints import LEADER_EPOCH_FILE, encode_rows, parse_number, read_rows
from kbroker.log.fs import File, FileSystem

UNKNOWN = -1


class LeaderEpochs:
    """The leader epochs of a partition. From row to row, the epoch and the start offset both grow. Methods raise
    OSError, and CorruptLogError if the file is damaged.
    """

    def __init__(self, fs: FileSystem, directory: str, *, read: bool = True):
        self._fs = fs
        self._path = os.path.join(directory, LEADER_EPOCH_FILE)
        self._rows: list[tuple[int, int]] = []
        self.is_unsynced = False
        self._written: list[tuple[int, int]] | None = None
        """The rows that the file has; None if unknown."""
        for epoch, start_offset in read_rows(fs, self._path, 2, may_be_torn=True) if read else []:
            self._add(parse_number(self._path, epoch), parse_number(self._path, start_offset))
        if read:
            self._written = self.rows

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Return (epoch, start offset) rows, oldest first."""
        return list(self._rows)

    @property
    def latest(self) -> int:
        """The highest epoch, -1 if there is none."""
        return self._rows[-1][0] if self._rows else UNKNOWN

    def assign(self, epoch: int, start_offset: int, *, write: bool = True) -> None:
        """Add a row for `epoch`, unless the epoch is known or negative. With `write`, replace the file before the row
        is added in memory.
        """
        if epoch < 0 or epoch <= self.latest:
            return
        rows = [row for row in self._rows if row[1] < start_offset]
        rows.append((epoch, start_offset))
        self._replace(rows, write)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return (epoch, end offset) of the highest known epoch at or below `epoch`, for OffsetForLeaderEpoch.

        Return (-1, -1) if `epoch` is negative or above the latest epoch, or if no epoch is known. If `epoch` is below
        the first known epoch, return `epoch` and the start offset of the first known epoch.
        """
        if not self._rows or epoch < 0 or epoch > self.latest:
            return UNKNOWN, UNKNOWN
        if epoch == self.latest:
            return epoch, log_end_offset
        if epoch < self._rows[0][0]:
            return epoch, self._rows[0][1]
        floor, following = max(
            (pair for pair in zip(self._rows, self._rows[1:], strict=False) if pair[0][0] <= epoch),
            key=lambda pair: pair[0][0])
        return floor[0], following[1]

    def epoch_for(self, offset: int) -> int:
        """Return the epoch in which `offset` was written, -1 if unknown."""
        return next((epoch for epoch, start_offset in reversed(self._rows) if start_offset <= offset), UNKNOWN)

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that begin at or above `end_offset`, the new end of the log."""
        self._replace([row for row in self._rows if row[1] < end_offset], True)

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that end at or below `start_offset`. Set the start of the epoch that contains `start_offset` to
        this offset.
        """
        below = [row for row in self._rows if row[1] <= start_offset]
        rows = [row for row in self._rows if row[1] > start_offset]
        if below:
            rows.insert(0, (below[-1][0], max(start_offset, below[-1][1])))
        self._replace(rows, True)

    def write(self) -> None:
        """Write the epochs to the file, unless the file already has them. Call this after `assign` with `write=False`.
        """
        self.is_unsynced = True
        if self._written == self._rows:
            return
        rows = [f'{epoch} {start_offset}' for epoch, start_offset in self._rows]
        self._fs.write_file(self._path + '.tmp', encode_rows(rows))
        self._fs.rename(self._path + '.tmp', self._path)
        self._written = self.rows

    def sync_file(self) -> File:
        """Return the file, which the caller must sync."""
        return self._fs.open(self._path)

    def clear(self) -> None:
        """Remove all epochs from memory, so that a recovery can read them from the log."""
        self._rows = []

    def _add(self, epoch: int, start_offset: int) -> None:
        if self._rows and (epoch <= self._rows[-1][0] or start_offset < self._rows[-1][1]):
            raise CorruptLogError(f'{self._path}: found epoch {epoch} from offset {start_offset} after epoch '
                                  f'{self._rows[-1][0]} from {self._rows[-1][1]}, expected both to grow')
        self._rows.append((epoch, start_offset))

    def _replace(self, rows: list[tuple[int, int]], write: bool) -> None:
        if rows == self._rows:
            return
        before, self._rows = self._rows, rows
        if write:
            try:
                self.write()
            except OSError:
                self._rows = before
                raise

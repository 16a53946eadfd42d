"""Reads and writes the `<offset>.snapshot` files of a partition, which have the producer state after the batches below
the offset.
"""
from __future__ import annotations

import logging
import os
from collections.abc import Generator
from contextlib import suppress

from kbroker.base.errors import CorruptLogError
from kbroker.log.fs import FileSystem
from kbroker.log.producer_state import ProducerStateTable
from kbroker.log.segment import SNAPSHOT_SUFFIX, file_name

logger = logging.getLogger(__name__)

PART_BYTES = 128 * 1024
"""The number of bytes that one part of long work writes."""
TEMPORARY_SUFFIX = '.tmp'
"""The suffix of a snapshot file that is not yet complete. The opening of a log removes files with this suffix."""


class ProducerSnapshots:
    """The snapshots of a partition. Methods raise OSError.

    The files are not synced: a torn snapshot has a wrong checksum and is ignored. The caller must sync the log up to
    the offset of a snapshot before it writes the snapshot.
    """

    def __init__(self, fs: FileSystem, directory: str, names: list[str]):
        """Create. `names` has the names of all files in the directory."""
        self._fs = fs
        self._directory = directory
        self.offsets = sorted(int(name.removesuffix(SNAPSHOT_SUFFIX)) for name in names
                              if name.endswith(SNAPSHOT_SUFFIX) and name.removesuffix(SNAPSHOT_SUFFIX).isdecimal())

    def path(self, offset: int) -> str:
        return os.path.join(self._directory, file_name(offset, SNAPSHOT_SUFFIX))

    @property
    def latest(self) -> int:
        """The highest offset that has a snapshot, -1 if there is none."""
        return self.offsets[-1] if self.offsets else -1

    def write(self, offset: int, data: bytes) -> None:
        """Write a snapshot in one piece under its final name. A start or a stop uses this, because only a crash can
        interrupt it.

        It needs one system call less for each log than `write_in_parts`, which renames the complete file.
        """
        try:
            self._fs.write_file(self.path(offset), data)
        except OSError:
            if self._fs.exists(self.path(offset)):
                self._fs.unlink(self.path(offset))
            raise
        self._add(offset)

    def write_in_parts(self, offset: int, data: bytes) -> Generator[None, None, None]:
        """Write a large snapshot under a temporary name, and rename it when it is complete. This generator yields after
        each part. If the generator is closed before its end, it removes the file.
        """
        temporary = self.path(offset) + TEMPORARY_SUFFIX
        try:
            file = self._fs.write_file(temporary, data[:PART_BYTES])
            for position in range(PART_BYTES, len(data), PART_BYTES):
                yield
                file.write_at(data[position:position + PART_BYTES], position)
            self._fs.rename(temporary, self.path(offset))
        except BaseException:
            with suppress(OSError):
                self._fs.unlink(temporary)
            raise
        self._add(offset)

    def _add(self, offset: int) -> None:
        if offset not in self.offsets:
            self.offsets = sorted([*self.offsets, offset])

    def remove(self, offset: int) -> None:
        self._fs.unlink(self.path(offset))
        self.offsets.remove(offset)

    def remove_damaged(self) -> None:
        """Remove the snapshots that cannot be read. After an unclean stop, any snapshot may be torn."""
        for offset in list(self.offsets):
            try:
                ProducerStateTable().load_snapshot(self._fs.read_file(self.path(offset)), offset, 0)
            except CorruptLogError as error:
                logger.warning('%s: %s; it is removed', self.path(offset), error)
                self.remove(offset)

    def remove_outside(self, log_start_offset: int, log_end_offset: int) -> None:
        """Remove the snapshots outside the log. Snapshots at or below the log's start are useless, and snapshots above
        its end describe lost records.
        """
        for offset in list(self.offsets):
            if offset <= log_start_offset or offset > log_end_offset:
                self.remove(offset)

    def load(self, producers: ProducerStateTable, start_offset: int, at_most: int, now_ms: int) -> None:
        """Load the newest readable snapshot between `start_offset` and `at_most` into `producers`. If there is none,
        empty `producers`.
        """
        for offset in reversed(self.offsets):
            if start_offset < offset <= at_most:
                try:
                    producers.load_snapshot(self._fs.read_file(self.path(offset)), offset, now_ms)
                    return
                except CorruptLogError as error:
                    logger.warning('%s: %s; using an older one', self.path(offset), error)
                    self.remove(offset)
        producers.clear(start_offset)

    def keep_for(self, segment_bases: list[int]) -> None:
        """Remove all snapshots except those that an opening may need: the snapshot at each segment's base offset, and
        the newest snapshot above all base offsets.
        """
        newest = self.latest
        for offset in list(self.offsets):
            if offset not in segment_bases and not (offset == newest and offset > segment_bases[-1]):
                self.remove(offset)

    def keep_until(self, offset: int, segment_bases: list[int]) -> None:
        """Remove the snapshots above `offset`, because an opening would use them instead of the one at `offset`. Then
        call `keep_for`.
        """
        for later in [found for found in self.offsets if found > offset]:
            self.remove(later)
        self.keep_for(segment_bases)

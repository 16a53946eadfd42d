"""The `<offset>.snapshot` files of a partition: the producer state below an offset."""
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
"""The bytes that one part of long work writes."""
TEMPORARY_SUFFIX = '.tmp'
"""The suffix of a snapshot that is not yet complete. Each opening removes such a file."""


class ProducerSnapshots:
    """The snapshots of a partition. Raises OSError.

    The files are not synced: a torn one fails its checksum and is ignored. Before writing a snapshot, sync the log up
    to its offset.
    """

    def __init__(self, fs: FileSystem, directory: str, names: list[str]):
        """Create; `names` lists the directory."""
        self._fs = fs
        self._directory = directory
        self.offsets = sorted(int(name.removesuffix(SNAPSHOT_SUFFIX)) for name in names
                              if name.endswith(SNAPSHOT_SUFFIX) and name.removesuffix(SNAPSHOT_SUFFIX).isdecimal())

    def path(self, offset: int) -> str:
        return os.path.join(self._directory, file_name(offset, SNAPSHOT_SUFFIX))

    @property
    def latest(self) -> int:
        """The highest offset with a snapshot, -1 without one."""
        return self.offsets[-1] if self.offsets else -1

    def write(self, offset: int, data: bytes) -> None:
        """Write a snapshot under its name, for a start or a stop, which nothing interrupts but a crash.

        That is one system call less for each log than `write_in_parts`, which renames a complete file.
        """
        try:
            self._fs.write_file(self.path(offset), data)
        except OSError:
            if self._fs.exists(self.path(offset)):
                self._fs.unlink(self.path(offset))
            raise
        self._add(offset)

    def write_in_parts(self, offset: int, data: bytes) -> Generator[None, None, None]:
        """Write a large snapshot as a generator, under a temporary name until the file is complete.

        If the generator is closed before its end, no file is left.
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
        """Remove snapshots that cannot be read: after an unclean stop any of them may be torn."""
        for offset in list(self.offsets):
            try:
                ProducerStateTable().load_snapshot(self._fs.read_file(self.path(offset)), offset, 0)
            except CorruptLogError as error:
                logger.warning('%s: %s; it is removed', self.path(offset), error)
                self.remove(offset)

    def remove_outside(self, log_start_offset: int, log_end_offset: int) -> None:
        """Remove snapshots outside the log. At or below its start they are useless, and above its end they describe
        lost records."""
        for offset in list(self.offsets):
            if offset <= log_start_offset or offset > log_end_offset:
                self.remove(offset)

    def load(self, producers: ProducerStateTable, start_offset: int, at_most: int, now_ms: int) -> None:
        """Fill `producers` from the newest readable snapshot between `start_offset` and `at_most`. If there is none,
        empty it."""
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
        """Keep the snapshots that an opening may need: one at each segment's base, and the newest above all bases."""
        newest = self.latest
        for offset in list(self.offsets):
            if offset not in segment_bases and not (offset == newest and offset > segment_bases[-1]):
                self.remove(offset)

    def keep_until(self, offset: int, segment_bases: list[int]) -> None:
        """Remove the snapshots above `offset`, because an opening would begin from them. Also remove those that
        `keep_for` removes."""
        for later in [found for found in self.offsets if found > offset]:
            self.remove(later)
        self.keep_for(segment_bases)

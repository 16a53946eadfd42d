"""Salvages a log whose damage an operator has accepted: all sound batches stay in the log, at their offsets.

The bytes that are not a sound batch are moved to a `.cut` file next to the log. Lost records leave a gap in the
offsets, as compaction does. No new record gets the offset of a lost one, so committed offsets of groups stay valid.
"""
from __future__ import annotations

import logging
from dataclasses import dataclass, field

from kbroker.base.errors import CorruptLogError, KafkaError
from kbroker.log.batch_walk import read_batches
from kbroker.log.fs import File, FileSystem
from kbroker.log.header_walk import find_sound_batch
from kbroker.log.segment import CUT_SUFFIX
from kbroker.record.batch import HEADER_BYTES, BatchHeader, check_crc, read_header

SALVAGED_SUFFIX = '.tmp'
"""The suffix of a salvaged file that is not yet complete. The next opening removes the file."""
COPY_BYTES = 1 << 20
MAX_RELATIVE_OFFSET = (1 << 31) - 1
MOST_GAPS = 3
"""The maximum number of gaps that a log message names."""

logger = logging.getLogger(__name__)


@dataclass
class Salvage:
    """The sound parts of one log file, which `find` determines."""

    file: File
    base_offset: int
    next_base: int | None
    """The base offset of the next segment, None for the last segment."""
    kept: list[tuple[int, int]] = field(default_factory=list)
    """The (start, end) positions of each run of adjacent sound batches."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """The (first, last) offsets of each gap between two runs."""
    batches_behind: int = 0
    """The number of sound batches behind the first damaged bytes."""

    def find(self) -> Salvage:
        """Read the file and determine its sound parts. Return self. Raise OSError."""
        self.size_bytes = self.file.size()
        self._next_offset = self._offset_before_last = self.base_offset
        self._last_position = -1
        position = 0
        while 0 <= position < self.size_bytes:
            position = self._next_sound(self._read_run(position))
        return self

    @property
    def has_sound_batches_behind_damage(self) -> bool:
        """True if cutting the file at the first damaged bytes would lose sound batches."""
        return len(self.kept) > 1 or (bool(self.kept) and self.kept[0][0] > 0)

    @property
    def removed(self) -> list[tuple[int, int]]:
        """The (start, end) positions of each part that is removed: the parts between two runs, and the part behind the
        last run.
        """
        ends = [0, *(end for _, end in self.kept)]
        starts = [*(start for start, _ in self.kept), self.size_bytes]
        return [(end, start) for end, start in zip(ends, starts, strict=True) if end < start]

    def _read_run(self, position: int) -> int:
        """Keep the sound batches that begin at `position` and directly follow each other. Return the end of this run.
        """
        walk = read_batches(self.file, position, self.size_bytes)
        try:
            for header, batch in walk:
                check_crc(batch, header)
                if not self._adopt(walk.position, header):
                    return walk.position
        except (KafkaError, CorruptLogError):
            return walk.position
        return self.size_bytes

    def _adopt(self, position: int, header: BatchHeader) -> bool:
        """Keep a batch if its offsets follow those of the kept batches.

        The checksum does not cover the base offset, so it may be damaged. If the offsets of two adjacent batches
        contradict each other, keep the batch whose offsets follow those of all earlier batches.
        """
        limit = self.base_offset + MAX_RELATIVE_OFFSET if self.next_base is None else self.next_base - 1
        if header.last_offset > limit or header.base_offset < self._offset_before_last:
            return False
        if header.base_offset < self._next_offset:
            self._drop_last()
        if self.kept and self.kept[-1][1] == position:
            self.kept[-1] = self.kept[-1][0], position + header.size_bytes
        else:
            if (self.kept[-1][1] if self.kept else 0) < position:
                self.gaps.append((self._next_offset, header.base_offset - 1))
            self.kept.append((position, position + header.size_bytes))
        self.batches_behind += len(self.kept) > 1 or self.kept[0][0] > 0
        self._offset_before_last, self._next_offset = self._next_offset, header.last_offset + 1
        self._last_position = position
        return True

    def _drop_last(self) -> None:
        """Drop the batch that was kept last, because its base offset is damaged."""
        start, _ = self.kept.pop()
        if start < self._last_position:
            self.kept.append((start, self._last_position))
        self._next_offset = self._offset_before_last

    def _next_sound(self, position: int) -> int:
        """Return the position of the next sound batch, -1 if there is none.

        First try the end of the damaged batch, according to its header. Earlier bytes that look like a batch could be
        part of a record's value.
        """
        if position + HEADER_BYTES > self.size_bytes:
            return -1
        try:
            end = position + read_header(self.file.read_at(HEADER_BYTES, position)).size_bytes
        except KafkaError:
            end = self.size_bytes
        return end if self._is_sound_at(end) else find_sound_batch(self.file, position + 1, self.size_bytes)

    def _is_sound_at(self, position: int) -> bool:
        try:
            for header, batch in read_batches(self.file, position, self.size_bytes):
                check_crc(batch, header)
                return True
        except (KafkaError, CorruptLogError):
            return False
        return False


def keep_sound_batches(fs: FileSystem, path: str, base_offset: int, next_base: int | None) -> bool:
    """Rewrite a log file without the bytes that are not a sound batch. Return whether the file was rewritten. Raise
    OSError.

    If no sound batch follows the first damage, do not rewrite the file, because recovery then cuts it there. After a
    crash, the file is the old one or the new one.
    """
    salvage = Salvage(fs.open(path), base_offset, next_base).find()
    if not salvage.has_sound_batches_behind_damage:
        return False
    removed = salvage.removed
    cut_path = f'{path}.{removed[0][0]}{CUT_SUFFIX}'
    _copy(fs, salvage.file, removed, cut_path, path)
    _copy(fs, salvage.file, salvage.kept, path + SALVAGED_SUFFIX, path)
    fs.rename(path + SALVAGED_SUFFIX, path)
    gaps = [str(first) if first == last else f'{first} to {last}' for first, last in salvage.gaps if first <= last]
    more = f' and {len(gaps) - MOST_GAPS} more' if len(gaps) > MOST_GAPS else ''
    lost = f'Gone are the offsets {", ".join(gaps[:MOST_GAPS])}{more}' if gaps else 'No offset is gone'
    logger.warning(
        '%s: %d bytes from %d on are no sound batch, and are kept in %s. The %d sound batches behind them stay in the '
        'log. %s', path, sum(end - start for start, end in removed), removed[0][0], cut_path, salvage.batches_behind,
        lost)
    return True


def _copy(fs: FileSystem, source: File, parts: list[tuple[int, int]], path: str, model: str) -> None:
    """Copy parts of a file to the file `path`, and sync it."""
    target, written = fs.open(path, True), 0
    for start, end in parts:
        for position in range(start, end, COPY_BYTES):
            data = source.read_at(min(COPY_BYTES, end - position), position)
            target.write_at(data, written)
            written += len(data)
    target.resize(written)
    fs.take_after(path, model)
    target.sync()

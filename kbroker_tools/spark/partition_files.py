"""The files of one partition: its segments, and the outcomes of the transactions in them.

Planning reads directory listings, the newest snapshot and the headers of the last segment. It reads nothing else from
the log. The result is correct even while a broker writes to the directory. The sizes of the files are fixed first, then
the snapshot is read, and the segment is walked last. The result is therefore a state in which the log has been. Below
the last stable offset, only cleaning and retention change the log later.
"""
from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from kbroker.base.errors import CorruptLogError, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.log.formats import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    TRANSACTION_ENTRY,
    TRANSACTION_ENTRY_VERSION,
    whole_entries,
)
from kbroker.log.producer_state import ActiveProducer, ProducerStateTable
from kbroker.record.batch import HEADER_BYTES, BatchHeader, CorruptBatchError, check_crc, read_header
from kbroker_tools.spark.storage import FileFacts, LocalFile, Storage, window
from kbroker_tools.spark.tail_walk import TailWalk, UnsoundTail

READ_BYTES = 1024 * 1024
MAGIC_AT = 16
MAGIC_BYTE = b'\x02'
SWAP_SUFFIX = '.log.swap'
DECISIVE = ('log', 'txnindex')
LISTINGS = 20
SWAP_WAIT_S = 0.05
NEVER_EXPIRES_MS = 0
NO_OFFSET = 0x7fffffffffffffff
"""A number that is larger than every offset."""

_FILE = re.compile(r'(\d{20})\.(log|index|timeindex|txnindex|snapshot)')
_DIRECTORY = re.compile(r'(.+)-(\d+)')
logger = logging.getLogger(__name__)

_INTERNAL_SUFFIX = re.compile(r'.*\.[0-9a-f]{32}-(delete|future|stray)')


def parse_directory_name(name: str) -> TopicPartition | None:
    """Return (topic, partition) for the name of a partition directory: `orders-0` becomes ('orders', 0). Return None
    for any other name, and for the name of a directory that is being deleted."""
    match = _DIRECTORY.fullmatch(name)
    if match is None or _INTERNAL_SUFFIX.fullmatch(name):
        return None
    return match[1], int(match[2])


@dataclass(frozen=True)
class SegmentFiles:
    base_offset: int
    size_bytes: int
    """The size of the log file in bytes, when the directory was listed."""
    modified_ns: int
    has_index: bool
    has_time_index: bool
    has_transaction_index: bool

    def name(self, kind: str) -> str:
        return f'{self.base_offset:020d}.{kind}'


@dataclass(frozen=True)
class PartitionFiles:
    """The files in a partition's directory."""

    storage: Storage
    topic: str
    partition: int
    segments: tuple[SegmentFiles, ...]
    snapshots: tuple[int, ...]

    @classmethod
    def list(cls, storage: Storage, topic: str, partition: int) -> PartitionFiles:
        """Return the files of a partition. Raise FileNotFoundError if there is no directory, OSError if it cannot be
        listed, and CorruptLogError if a broker was killed between two renames."""
        found: dict[str, dict[int, FileFacts]] = {
            kind: {} for kind in ('log', 'index', 'timeindex', 'txnindex', 'snapshot')}
        for name, facts in _listed(storage).items():
            match = _FILE.fullmatch(name)
            if match is not None and facts is not None:
                found[match[2]][int(match[1])] = facts
        segments = tuple(
            SegmentFiles(base, log.size_bytes, log.modified_ns, base in found['index'], base in found['timeindex'],
                         base in found['txnindex'])
            for base, log in sorted(found['log'].items()))
        return cls(storage, topic, partition, segments, tuple(sorted(found['snapshot'])))


def _listed(storage: Storage) -> dict[str, FileFacts | None]:
    """Return a listing of the directory in which no swap or deletion of segments is in progress.

    A local directory is listed until two listings agree, because one listing may miss a file that is being renamed. The
    listings must also agree on transaction indexes: without its index, a segment's aborted records would look
    committed. Segments that only the later listing has are omitted. Otherwise the listings would never agree while a
    writer often begins new segments.
    """
    before: set[tuple[int, str]] | None = None
    for _ in range(LISTINGS):
        names = storage.list()
        swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
        decisive = {(int(match[1]), match[2]) for name, facts in names.items()
                    if facts is not None and (match := _FILE.fullmatch(name)) and match[2] in DECISIVE}
        if swaps:
            time.sleep(SWAP_WAIT_S)
        elif not storage.is_on_disk:
            return names
        elif before is not None and (end := _agreed_end(before, decisive)) is not None:
            return {name: facts for name, facts in names.items()
                    if (match := _FILE.fullmatch(name)) is None or int(match[1]) <= end}
        before = None if swaps else decisive
    if swaps:
        raise CorruptLogError(f'{storage.path(swaps[0])}: a broker was killed while compacted segments took the place '
                              'of others; start it once, or repair the directory with kbroker-check')
    return names


def _agreed_end(before: set[tuple[int, str]], now: set[tuple[int, str]]) -> int | None:
    """Return the base offset of the last segment on which two listings agree. Return None if they disagree.

    This is the last segment of the earlier listing. Its transaction index may differ, because the headers of this
    segment are read instead. All earlier segments were complete before the second listing began, so both listings must
    show the same files for them.
    """
    end = max((base for base, kind in before if kind == 'log'), default=NO_OFFSET)
    sealed, sealed_now = ({each for each in listing if each[0] < end} for listing in (before, now))
    return end if sealed == sealed_now and (end == NO_OFFSET or (end, 'log') in now) else None


@dataclass
class PartitionState:
    """The offsets of a partition, and the transactions that a reader needs to know."""

    files: PartitionFiles
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    open: dict[int, int]
    """Maps the producer id of each open transaction to its first offset."""
    tail_aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """(producer id, first offset, offset of the marker) of each aborted transaction whose marker is at or above
    `walked_from`."""
    walked_from: int = 0
    """The offset at which the walk over the headers began. Below it, transaction indexes show the aborted
    transactions."""
    producers: list[ActiveProducer] = field(default_factory=list)

    def aborted(self, start_offset: int, end_offset: int) -> list[tuple[int, int, int]]:
        """Return the aborted transactions in [start_offset, end_offset). If its marker is below `walked_from`, a
        transaction comes from a transaction index."""
        found = []
        for segment, following in pairwise([*self.files.segments, None]):
            assert segment is not None
            if segment.base_offset >= self.walked_from or (following and following.base_offset <= start_offset):
                continue
            if segment.has_transaction_index:
                rows = read_transaction_index(self.files.storage, segment.name('txnindex'))
                found += [row[:3] for row in rows
                          if start_offset <= row[2] < self.walked_from and row[1] < end_offset]
                if any(row[3] >= end_offset for row in rows):
                    return found
        return found + [row for row in self.tail_aborted if row[2] >= start_offset and row[1] < end_offset]


def read_transaction_index(storage: Storage, name: str) -> list[tuple[int, int, int, int]]:
    """Return (producer id, first offset, last offset, last stable offset) of each entry in a transaction index. Raise
    CorruptLogError if an entry has an unknown version."""
    data = storage.read(name)
    rows = []
    for number, (version, *fields) in enumerate(whole_entries(TRANSACTION_ENTRY, data)):
        if version != TRANSACTION_ENTRY_VERSION:
            at = number * TRANSACTION_ENTRY.size
            raise CorruptLogError(f'{storage.path(name)}: found version {version} at {at}, expected '
                                  f'{TRANSACTION_ENTRY_VERSION}; read with verifyTxnIndex=true, which does not use the '
                                  'index')
        rows.append((fields[0], fields[1], fields[2], fields[3]))
    return rows


class Tail:
    """A walk over the end of a partition, batch by batch. Each call of `advance` continues where the previous call
    stopped."""

    def __init__(self, *, verify_transaction_index: bool = False):
        """With `verify_transaction_index`, the whole partition is walked and no transaction index is used."""
        self._verify = verify_transaction_index
        self._may_skim = True
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._producers = ProducerStateTable()
        self._aborted: list[tuple[int, int, int]] = []
        self._walked_from = -1
        self._end_offset = -1
        self._segment_base = -1
        self._position = 0

    def advance(self, files: PartitionFiles, log_start_offset: int = 0,
                recovery_point: int | None = None) -> PartitionState:
        """Return the offsets and transactions that the files of the partition show now.

        `log_start_offset` comes from the checkpoint. After an unclean stop, segments at or above `recovery_point` are
        walked without their indexes.

        Raise CorruptLogError or OSError if a file cannot be read. If a FileNotFoundError is raised, a segment was
        deleted after the listing. The caller must then list the files and call `advance` again.
        """
        if not files.segments:
            return PartitionState(files, log_start_offset, log_start_offset, log_start_offset, {})
        last = files.segments[-1]
        # Only the last segment is certain not to have been compacted since the last call.
        if self._segment_base != last.base_offset or last.size_bytes < self._position:
            self._begin_anew()
            self._start(files, recovery_point)
        try:
            self._walk(files)
        except UnsoundTail:
            self._may_skim = False
            self._begin_anew()
            return self.advance(files, log_start_offset, recovery_point)
        except BaseException:
            self._begin_anew()
            raise
        is_open = {producer_id: first_offset for first_offset, producer_id in self._producers.unstable.ongoing.items()}
        start = max(log_start_offset, files.segments[0].base_offset)
        stable = min([self._end_offset, *is_open.values()])
        return PartitionState(files, start, max(start, self._end_offset), max(start, stable), is_open,
                              list(self._aborted), self._walked_from, self._producers.active_producers())

    def _start(self, files: PartitionFiles, recovery_point: int | None) -> None:
        first = files.segments[0].base_offset
        bare = [segment for segment in files.segments[:-1] if not segment.has_index]
        if bare and not self._verify:  # every segment has an .index, but a .txnindex only after an abort
            logger.warning('%s has no .index, so its .txnindex may be missing too; reading all headers of the '
                           'partition instead', files.storage.path(bare[0].name('log')))
        upper = first if self._verify or bare else files.segments[-1].base_offset
        if recovery_point is not None:
            upper = min(upper, max(recovery_point, first))
        self._walked_from = self._end_offset = _load_snapshot(files, self._producers, upper)

    def _walk(self, files: PartitionFiles) -> None:
        for segment, following in pairwise([*files.segments, None]):
            assert segment is not None
            if following is not None and following.base_offset <= self._end_offset:
                continue
            position = self._position if segment.base_offset == self._segment_base else 0
            self._segment_base = segment.base_offset
            walk = TailWalk(segment.base_offset, self._walked_from, self._replay)
            self._position = walk_segment(files, segment, position, walk, may_skim=self._may_skim)
            self._end_offset = max(self._end_offset, walk.replayed_to,
                                   following.base_offset if following else segment.base_offset)

    def _replay(self, batch: memoryview) -> None:
        row = self._producers.replay_batch(batch)
        if row is not None:
            self._aborted.append((row.producer_id, row.first_offset, row.last_offset))


def _load_snapshot(files: PartitionFiles, producers: ProducerStateTable, at_most: int) -> int:
    """Load the newest valid snapshot at or below `at_most`. Return its offset. Without a snapshot, return the start of
    the log."""
    first = files.segments[0].base_offset
    for offset in reversed(files.snapshots):
        if first <= offset <= at_most:
            try:
                producers.load_snapshot(files.storage.read(f'{offset:020d}.snapshot'), offset, NEVER_EXPIRES_MS)
                return offset
            except (CorruptLogError, FileNotFoundError):
                continue
    producers.clear(first)
    return first


def walk_segment(files: PartitionFiles, segment: SegmentFiles, position: int, walk: TailWalk, *,
                 may_skim: bool) -> int:
    """Walk the batches of a segment, beginning at `position`. Return the end of the last valid batch.

    A damaged batch is skipped; the reader of its records reports the damage. A batch that is longer than the file is an
    unfinished write. The walk ends before it, as a broker's recovery does. After UnsoundTail, the caller must walk
    again with `may_skim` False.
    """
    sound = position
    with files.storage.open(segment.name('log')) as file:
        if may_skim and isinstance(file, LocalFile):
            position = sound = walk.skim(file.fileno(), position, segment.size_bytes)
        while position < segment.size_bytes:
            position, sound = _walk_batches(file, position, sound, segment.size_bytes, walk,
                                            files.storage.window_bytes)
            if size_at(file, position, segment.size_bytes) is not None:
                return sound
            position = next_sound_batch(file, position, segment.size_bytes, walk.next_offset)
    return sound


def _walk_batches(file: Any, position: int, sound: int, end: int, walk: TailWalk,
                  window_bytes: int) -> tuple[int, int]:
    """Walk the complete batches, beginning at `position`. Return (end of the last batch, end of the last valid
    batch)."""
    size = window_bytes
    while position + HEADER_BYTES <= end:
        size = min(size, end - position)
        data = window(file, size, position)
        used = walk.feed(data)
        if walk.sound_bytes:
            sound = position + walk.sound_bytes
        position, asked, size = position + used, size, window_bytes
        if not used:
            needed = size_at(file, position, end)
            if needed is None or position + needed > end or len(data) < asked or needed <= len(data):
                break
            size = needed
    return position, sound


def first_position_by_time(files: PartitionFiles, segment: SegmentFiles, timestamp_ms: int, *,
                           is_sealed: bool) -> int | None:
    """Return a position before which all records are older than `timestamp_ms`. Return None if all records of the
    segment are older.

    The position comes from the indexes. An entry of the time index has the highest timestamp of all records up to its
    offset. The last entry of a sealed segment has the highest timestamp in the whole segment.
    """
    try:
        if not segment.has_time_index or not segment.has_index:
            return 0
        times, offsets = (files.storage.read(segment.name(kind)) for kind in ('timeindex', 'index'))
    except FileNotFoundError:
        return 0
    older = -1
    latest = -1
    for entry_ms, relative_offset in whole_entries(TIME_ENTRY, times):
        if entry_ms <= latest:
            break  # a preallocated index ends with zeros
        latest = entry_ms
        if entry_ms < timestamp_ms:
            older = relative_offset
    if is_sealed and 0 <= latest < timestamp_ms:
        return None
    position = 0
    for relative_offset, at in whole_entries(OFFSET_ENTRY, offsets):
        if position < at < segment.size_bytes and relative_offset <= older:
            position = at
    return position


def next_sound_batch(file: Any, position: int, end: int, low: int, high: int = NO_OFFSET) -> int:
    """Return the position of the next valid batch after a damaged one. A valid batch has a correct CRC, and offsets in
    [low, high).

    Return `end` if there is no valid batch. The position after the damaged batch, by its own length, is tried first. A
    search byte by byte could find a batch inside a record.
    """
    size = size_at(file, position, end)
    if size is not None and (position + size == end or _is_sound(file, position + size, end, low, high)):
        return position + size
    position += 1
    while position + HEADER_BYTES <= end:
        data: bytes = file.read_at(min(READ_BYTES, end - position), position)
        at = data.find(MAGIC_BYTE, MAGIC_AT)
        while 0 <= at <= len(data) - HEADER_BYTES + MAGIC_AT:
            header = _header_or_none(data, at - MAGIC_AT)
            if header is not None and low <= header.base_offset < high and _is_sound(
                    file, position + at - MAGIC_AT, end, low, high):
                return position + at - MAGIC_AT
            at = data.find(MAGIC_BYTE, at + 1)
        position += max(1, len(data) - HEADER_BYTES + 1)
    return end


def size_at(file: Any, position: int, end: int) -> int | None:
    """Return the size in the header of a batch. Return None if the header is invalid or incomplete."""
    data = file.read_at(min(HEADER_BYTES, max(0, end - position)), position)
    header = _header_or_none(data, 0)
    return None if header is None else header.size_bytes


def _header_or_none(data: bytes, at: int) -> BatchHeader | None:
    try:
        return read_header(data, at)
    except KafkaError:
        return None


def _is_sound(file: Any, position: int, end: int, low: int, high: int) -> bool:
    size = size_at(file, position, end)
    if size is None or position + size > end:
        return False
    batch = memoryview(file.read_at(size, position))
    header = read_header(batch)
    return low <= header.base_offset <= header.last_offset < high and has_right_crc(header, batch)


def has_right_crc(header: BatchHeader, batch: memoryview) -> bool:
    try:
        check_crc(batch, header)
    except CorruptBatchError:
        return False
    return True


def read_batches(file: Any, position: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield (position, header, batch) for each batch between two positions, as long as whole batches follow. The file
    is read in large parts."""
    window = memoryview(b'')
    window_at = position
    while position + HEADER_BYTES <= end:
        if window_at + len(window) - position < HEADER_BYTES:
            window, window_at = memoryview(file.read_at(min(READ_BYTES, end - position), position)), position
            if len(window) < HEADER_BYTES:
                return
        try:
            header = read_header(window, position - window_at)
        except KafkaError:
            return
        if position + header.size_bytes > end:
            return
        if window_at + len(window) < position + header.size_bytes:
            size = max(READ_BYTES, header.size_bytes)
            window, window_at = memoryview(file.read_at(min(size, end - position), position)), position
            if len(window) < header.size_bytes:
                return
        start = position - window_at
        yield position, header, window[start:start + header.size_bytes]
        position += header.size_bytes

"""`__cluster_metadata-0`: the Raft log of the metadata quorum, written by its only voter.

The log is a list of batches in segments. `load` reads it, and writes nothing. `begin_epoch` makes this broker the
leader of the next epoch. Then `write` writes one batch at a time. Before the next batch, the previous one must be
durable. No indexes are written, because Apache Kafka rebuilds them at each start.
"""
from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from typing import NoReturn

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
from kbroker.log.checkpoints import LEADER_EPOCH_FILE, encode_rows
from kbroker.log.fs import SMALL_FILE_BYTES, File, FileSystem
from kbroker.metadata import quorum_state
from kbroker.metadata.batches import CHUNK_BYTES, decode_batch, sound_batches
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.quorum_state import QuorumState, parse_quorum_state
from kbroker.metadata.snapshots import SnapshotName, newest_snapshot, read_snapshot
from kbroker.protocol.messages import RemoveTopicRecord
from kbroker.protocol.metadata_records import FRAME_VERSION, decode_metadata_record
from kbroker.record.batch import BatchHeader, CorruptBatchError, check_crc, read_header
from kbroker.record.records import decode_records

DIRECTORY_NAME = '__cluster_metadata-0'
PARTITION_METADATA = b'version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ'
"""The id of the metadata topic. It is always 0:1."""

_SEGMENT = re.compile(r'(\d{20})\.log')
_MAGIC_POSITION = 16
_REMOVE_TOPIC = bytes((FRAME_VERSION, RemoveTopicRecord.api_key))
"""The bytes with which the value of a RemoveTopic record begins."""

logger = logging.getLogger(__name__)


def segment_files(names: Iterable[str]) -> list[int]:
    """Return the base offsets of the segment files among `names`, sorted."""
    return sorted(int(match[1]) for name in names if (match := _SEGMENT.fullmatch(name)))


def make_directory(fs: FileSystem, log_dir: str) -> str:
    """Create the directory of the metadata partition if it is missing. Return its path.

    Raise OSError if it cannot be created.
    """
    directory = os.path.join(log_dir, DIRECTORY_NAME)
    if not fs.exists(directory):
        fs.mkdir(directory)
        fs.sync_directory(log_dir)
    if not fs.exists(os.path.join(directory, 'partition.metadata')):
        fs.write_file_atomically(os.path.join(directory, 'partition.metadata'), PARTITION_METADATA)
    return directory


class QuorumLog:
    """The metadata log and its files. Offsets count records; sizes are in bytes."""

    def __init__(self, fs: FileSystem, log_dir: str, segment_bytes: int):
        self._fs = fs
        self._log_dir = log_dir
        self.directory = os.path.join(log_dir, DIRECTORY_NAME)
        self._segment_bytes = segment_bytes
        self.start_offset = 0
        self.end_offset = 0
        self.epoch = 0
        """The epoch of the last batch or of the newest snapshot.

        After `begin_epoch`, the epoch in which this broker leads.
        """
        self.state: QuorumState | None = None
        """The content of `quorum-state` when it was last read or written, or None if the file does not exist."""
        self.is_complete = False
        """True if the log begins at offset 0.

        Otherwise a snapshot replaces the beginning of the log. It does not name the topics that were deleted there.
        """
        self.removed_topics: set[bytes] = set()
        """The ids of the topics whose deletion is in the log."""
        self.uncovered_bytes = 0
        """The number of bytes at the end of the log that no snapshot covers."""
        self._epochs: list[tuple[int, int]] = []
        self._segments: list[int] = []
        self._file: File | None = None
        self._size_bytes = 0
        self._last_position = 0
        """The position, in the last segment, of the last batch."""
        self._stale_bytes = 0
        """The number of bytes after the last whole batch of the last segment.

        They are from a write that a crash cut short.
        """
        self._ends_segment = False
        """True if the next batch must begin a new segment, because a snapshot covers the last one."""
        self._unsynced_names: list[File] = []
        """The log's directory, if the name of the last segment is not synced yet. Otherwise empty."""
        self._opened_again: list[File] = []
        """The last segment and the directory, each opened a second time. `files_to_sync` explains why."""
        self._failure: str | None = None

    # -- reading

    @property
    def exists(self) -> bool:
        """True if the directory of the log exists."""
        return self._fs.exists(self.directory)

    def load(self, image: MetadataImage) -> None:
        """Replay the newest snapshot and the log on `image`. Write nothing.

        Raise CorruptLogError for damage, except for a last batch that a crash has torn. Raise OSError if a read fails.
        """
        if not self._fs.exists(self.directory):
            return
        path = os.path.join(self.directory, quorum_state.FILE_NAME)
        if self._fs.exists(path):
            self.state = parse_quorum_state(self._fs.read_file(path, SMALL_FILE_BYTES), path)
        snapshot = newest_snapshot(self._fs, self.directory) or SnapshotName(0, 0)
        self._load_snapshot(image, snapshot)
        self._segments = segment_files(self._fs.listdir(self.directory))
        self.start_offset = self.end_offset = self._segments[0] if self._segments else 0
        if self.start_offset > snapshot.end_offset:
            raise CorruptLogError(
                f'{self.directory}: the log starts at offset {self.start_offset} and the newest snapshot ends at '
                f'{snapshot.end_offset}, expected a snapshot that reaches the start')
        for base_offset in self._segments:
            self._load_segment(image, base_offset, snapshot)
        self.is_complete = self.start_offset == 0
        if not self._epochs and snapshot.end_offset == self.end_offset:
            self.epoch = snapshot.epoch
        if snapshot.end_offset > self.end_offset or snapshot.epoch > self.epoch:
            raise CorruptLogError(
                f'{self.directory}: the newest snapshot ends at offset {snapshot.end_offset} in epoch {snapshot.epoch} '
                f'and the log at {self.end_offset} in epoch {self.epoch}, expected the log to reach as far')

    def _load_snapshot(self, image: MetadataImage, snapshot: SnapshotName) -> None:
        path = os.path.join(self.directory, snapshot.file_name)
        if not self._fs.exists(path):
            return
        for is_control, records in read_snapshot(self._fs, path):
            # The snapshot at offset 0 covers no records. Only its voters are replayed here; its other records are
            # written to the log.
            if is_control or snapshot.end_offset:
                image.replay(records, snapshot.end_offset - 1, snapshot.epoch, image.timestamp_ms)

    def _load_segment(self, image: MetadataImage, base_offset: int, snapshot: SnapshotName) -> None:
        path = self._segment_path(base_offset)
        if base_offset != self.end_offset:
            raise CorruptLogError(f'{path}: found a segment at offset {base_offset}, expected {self.end_offset}')
        self._file = self._fs.open(path)
        size_bytes = self._file.size()
        self._size_bytes = self._last_position = 0
        for position, header, batch in sound_batches(self._file, size_bytes):
            self._check_order(path, position, header)
            if header.base_offset >= snapshot.end_offset:
                records = decode_batch(header, batch)
                image.replay(records, header.last_offset, self.epoch, header.max_timestamp_ms)
                self.removed_topics.update(
                    record.topic_id for record in records if isinstance(record, RemoveTopicRecord))
                self.uncovered_bytes += header.size_bytes
            elif header.last_offset >= snapshot.end_offset:
                raise CorruptLogError(f'{path}: the snapshot {snapshot.file_name} ends inside the batch of offsets '
                                      f'{header.base_offset} to {header.last_offset}')
            elif not header.is_control:
                self.removed_topics.update(_removed_topics(batch))
            self.end_offset = header.last_offset + 1
            self._last_position, self._size_bytes = position, position + header.size_bytes
        self._stale_bytes = size_bytes - self._size_bytes
        if self._stale_bytes:
            self._check_torn(path, is_last=base_offset == self._segments[-1])

    def _check_order(self, path: str, position: int, header: BatchHeader) -> None:
        epoch = header.partition_leader_epoch
        if header.base_offset != self.end_offset or epoch < self.epoch:
            raise CorruptLogError(f'{path}, position {position}: found offset {header.base_offset} in epoch {epoch}, '
                                  f'expected offset {self.end_offset} in epoch {self.epoch} or a later one')
        self._note_epoch(epoch, header.base_offset)

    def _note_epoch(self, epoch: int, base_offset: int) -> None:
        if not self._epochs or epoch > self._epochs[-1][0]:
            self._epochs.append((epoch, base_offset))
        self.epoch = epoch

    def _check_torn(self, path: str, is_last: bool) -> None:
        """Raise CorruptLogError if the remaining bytes cannot be the start of a last batch that a crash cut short."""
        assert self._file is not None
        what = f'{path}, position {self._size_bytes}: found {self._stale_bytes} bytes that are no sound batch'
        if not is_last:
            raise CorruptLogError(f'{what}, and a later segment')
        if self._stale_bytes > CHUNK_BYTES:
            raise CorruptLogError(f'{what}, more than a write that was cut short can leave')
        tail = self._file.read_at(self._stale_bytes, self._size_bytes)
        if self._holds_a_batch(tail):
            raise CorruptLogError(f'{what}, and a sound one behind them')

    def _holds_a_batch(self, tail: bytes) -> bool:
        """Return whether a batch that could continue this log begins in `tail`, after its first byte."""
        magic_at = tail.find(b'\x02', _MAGIC_POSITION + 1)
        while magic_at != -1:
            position = magic_at - _MAGIC_POSITION
            try:
                header = read_header(tail, position)
                if self.end_offset <= header.base_offset < self.end_offset + len(tail):
                    check_crc(tail, header, position)
                    return True
            except CorruptBatchError:
                pass
            magic_at = tail.find(b'\x02', magic_at + 1)
        return False

    # -- leading

    def begin_epoch(self, node_id: int, kraft_version: int) -> None:
        """Become the leader of the next epoch. Cut off a torn last batch, and make the last whole batch durable.

        The sync of the last batch may have failed before the start, so the batch is written again, as `File.rewrite`
        explains. All batches before it were synced. `quorum-state` is written first, so that no epoch ever has two
        leaders. Raise KafkaError(KAFKA_STORAGE_ERROR) if a write fails.
        """
        seen = self.state.leader_epoch if self.state else 0
        epoch = max(seen, self.epoch) + 1
        voters = (node_id,) if kraft_version == 0 else ()
        state = QuorumState(epoch, node_id, voters, data_version=kraft_version)
        try:
            make_directory(self._fs, self._log_dir)
            self._fs.write_file_atomically(os.path.join(self.directory, quorum_state.FILE_NAME), state.encode())
            self.state = state
            self.epoch = epoch
            if self._file is None:
                self._start_segment()
                return
            if self._stale_bytes:
                logger.warning('%s: cutting %d bytes of an unfinished write, at offset %d',
                               self._segment_path(self._segments[-1]), self._stale_bytes, self.end_offset)
                self._file.resize(self._size_bytes)
                self._stale_bytes = 0
            self._file.rewrite(self._last_position, self._size_bytes)
            self._open_again()      # after `rewrite`, which clears the errors of earlier writes
            self._file.sync()
        except OSError as error:
            self._fail(f'{self.directory}: becoming leader failed: {error}')

    def write(self, batch: bytearray, records_count: int) -> None:
        """Write one encoded batch. Its base offset must be `end_offset`, and its epoch must be `epoch`.

        The batch is durable when `files_to_sync` are synced. The next batch may be written only then. Otherwise a power
        cut could keep the next batch and lose this one, and the next start would refuse such a log.

        Raise KafkaError(KAFKA_STORAGE_ERROR) if a write fails or another program has written to the log. After that,
        every write raises it.
        """
        if self._failure is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._failure)
        try:
            self._check_no_other_process_wrote()
            if self._size_bytes and (self._ends_segment or self._size_bytes + len(batch) > self._segment_bytes):
                self._start_segment()
            assert self._file is not None
            self._file.write_at(batch, self._size_bytes)
        except OSError as error:
            self._fail(f'{self.directory}: writing offset {self.end_offset} failed: {error}')
        self._note_epoch(self.epoch, self.end_offset)
        self._size_bytes += len(batch)
        self.uncovered_bytes += len(batch)
        self.end_offset += records_count

    def files_to_sync(self, *, at_once: bool = False) -> list[File]:
        """Return the files to sync in order to make the last batch durable. Any thread may sync them.

        With `at_once`, return other open files of the same paths, for a sync in the loop's thread. The kernel reports a
        failed write once to each open file. If the loop and a sync thread shared an open file, only one of them would
        get the error.
        """
        assert self._file is not None
        if at_once:
            return self._opened_again[:1 + len(self._unsynced_names)]
        return [self._file, *self._unsynced_names]

    def mark_synced(self) -> None:
        """Record that the files of `files_to_sync` are synced."""
        self._unsynced_names = []

    def fail_sync(self, error: OSError) -> str:
        """Make all later writes fail, because a sync has failed. Return the reason."""
        reason = f'{self.directory}: syncing offset {self.end_offset - 1} failed: {error}'
        self.take_offline(reason)
        return reason

    def begin_segment(self) -> None:
        """Let the next batch begin a new segment, so that the current segment can later be removed as a whole."""
        self._ends_segment = True

    def forget_segments_below(self, base_offset: int) -> None:
        """Record that the segments below `base_offset` were removed. A segment must begin at `base_offset`."""
        self._segments = [segment for segment in self._segments if segment >= base_offset]
        self.start_offset = base_offset
        last = max(number for number, (_, offset) in enumerate(self._epochs) if not number or offset <= base_offset)
        self._epochs = [(epoch, max(offset, base_offset)) for epoch, offset in self._epochs[last:]]

    def write_leader_epochs(self) -> None:
        """Write `leader-epoch-checkpoint` if its content has changed.

        Raise KafkaError(KAFKA_STORAGE_ERROR) if the write fails.
        """
        try:
            self._fs.write_file_atomically(os.path.join(self.directory, LEADER_EPOCH_FILE),
                                           encode_rows([f'{epoch} {offset}' for epoch, offset in self._epochs]))
        except OSError as error:
            self._fail(f'{self.directory}: {error}')

    def close(self) -> None:
        """Close the log. All later writes fail."""
        self._file = None
        self._opened_again = []
        self._failure = f'{self.directory}: the metadata log is closed'

    def take_offline(self, reason: str) -> None:
        """Make all later writes fail with `reason`."""
        if self._failure is None:
            self._failure = reason

    def _check_no_other_process_wrote(self) -> None:
        """Raise KafkaError(KAFKA_STORAGE_ERROR) if another program has written to the log.

        Kafka's controller may do this: it writes before its broker checks the lock of the directory.
        """
        assert self.state is not None
        found = self._fs.size(self._segment_path(self._segments[-1]))
        if found != self._size_bytes:
            self._fail(f'{self._segment_path(self._segments[-1])}: found {found} bytes, expected {self._size_bytes}: '
                       'another program writes this log')
        state = self._fs.read_file(os.path.join(self.directory, quorum_state.FILE_NAME), SMALL_FILE_BYTES)
        if state != self.state.encode():
            self._fail(f'{self.directory}: found {state!r} in quorum-state, expected epoch {self.state.leader_epoch}: '
                       'another program leads this log')

    def _start_segment(self) -> None:
        file = self._fs.open(self._segment_path(self.end_offset), create=True)
        self._unsynced_names = [self._fs.open_directory(self.directory)]
        self._file, self._size_bytes, self._ends_segment = file, 0, False
        self._open_again()
        self._segments.append(self.end_offset)

    def _open_again(self) -> None:
        assert self._file is not None
        self._opened_again = [self._fs.open(self._file.path), self._fs.open_directory(self.directory)]

    def _segment_path(self, base_offset: int) -> str:
        return os.path.join(self.directory, f'{base_offset:020}.log')

    def _fail(self, failure: str) -> NoReturn:
        self._failure = failure
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, failure)


def _removed_topics(batch: memoryview) -> Iterator[bytes]:
    """Yield the ids of the topics that a batch of data records deletes."""
    for record in decode_records(batch):
        if record.value is not None and record.value[:2] == _REMOVE_TOPIC:
            yield decode_metadata_record(record.value)[0].topic_id

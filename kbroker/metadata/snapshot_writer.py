"""Writes snapshots of the metadata, and removes the part of the log that they cover.

This limits the size of the log and the time of a start.

A snapshot is written when `metadata.log.max.record.bytes.between.snapshots` of records were added since the previous
one. It is also written at the first change after `metadata.log.max.snapshot.interval.ms`. It contains the image at the
end of the durable log.

Long work encodes and writes the snapshot, and a thread syncs it before it gets its final name. Then a worker removes
old snapshots and segments, like Apache Kafka. It removes the oldest first, while all files together exceed
`metadata.max.retention.bytes` or the oldest snapshot is older than `metadata.max.retention.ms`. The newest snapshot is
never removed, nor is the log after it.

If a snapshot cannot be written, the error is logged, and a later change tries again. The log still contains all
records.
"""
from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from kbroker.base.clock import Clock
from kbroker.base.long_work import LongWork, Pace
from kbroker.log.fs import FileSystem
from kbroker.log.jobs import Submit, Sync, synced
from kbroker.metadata.batches import Row, encode_control, encode_row
from kbroker.metadata.changes import Steps
from kbroker.metadata.controller import MetadataController
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.image_records import control_records_of, records_of
from kbroker.metadata.quorum_log import segment_files
from kbroker.metadata.snapshots import FORMAT_SNAPSHOT_FILE, SnapshotName, newest_snapshot, snapshot_files
from kbroker.protocol.messages import SnapshotFooterRecord
from kbroker.record.batch import encode_batch
from kbroker.settings.config import Config

RECORDS_OF_BATCH = 200
BYTES_OF_BATCH = 64 * 1024
"""The most records and the most bytes of a batch in a snapshot. Apache Kafka reads batches of any size."""
UNFINISHED = '.part'
SEGMENT_FILES = ('.log', '.index', '.timeindex', '.txnindex', '.snapshot')
"""The suffixes of the files of a segment. kbroker writes only files with the first suffix; Apache Kafka writes all of
them.
"""
COUNTED = ('.log', '.checkpoint')
"""The suffixes of the files that count towards `metadata.max.retention.bytes`."""
LEFT_OVER = ('.checkpoint.part', '.checkpoint.deleted')
"""The suffixes of unfinished or deleted files that kbroker or Apache Kafka may leave after a crash."""

logger = logging.getLogger(__name__)


class Limits(NamedTuple):
    """The limits that determine when a snapshot is written, and how long old snapshots are kept.

    If `files_bytes` or `age_ms` is negative, it is no limit.
    """

    between_bytes: int
    interval_ms: int
    """The milliseconds between two snapshots, or 0 if snapshots are written only because of `between_bytes`."""
    files_bytes: int
    age_ms: int

    @classmethod
    def of(cls, config: Config) -> Limits:
        return cls(config.metadata_log_max_record_bytes_between_snapshots,
                   config.metadata_log_max_snapshot_interval_ms, config.metadata_max_retention_bytes,
                   config.metadata_max_retention_ms)


class SnapshotWriter:
    """Writes snapshots of the metadata, one at a time, when there are enough changes since the last one."""

    def __init__(self, metadata: MetadataController, limits: Limits, fs: FileSystem, clock: Clock, long_work: LongWork,
                 sync: Sync, submit: Submit):
        self._metadata = metadata
        self._log = metadata.log
        self._limits = limits
        self._fs = fs
        self._clock = clock
        self._long_work = long_work
        self._sync = sync
        self._submit = submit
        self._due_bytes = limits.between_bytes
        self._last_ms = clock.monotonic_ms()
        self._is_writing = False
        self._is_stopped = False
        self._newest_ms: int | None = None

    def newest_ms(self) -> int | None:
        """Return the wall time of the newest snapshot, or None if there is none. Raise OSError."""
        if self._newest_ms is None:
            newest = newest_snapshot(self._fs, self._log.directory)
            if newest is not None:
                self._newest_ms = self._fs.modified_ms(os.path.join(self._log.directory, newest.file_name))
        return self._newest_ms

    def start(self) -> None:
        """Remove the unfinished files of a crash.

        Write a snapshot now if one is needed, and check again after each change.
        """
        for name in self._fs.listdir(self._log.directory):
            if name.endswith(LEFT_OVER):
                self._fs.unlink(os.path.join(self._log.directory, name))
        self._metadata.commits.on_change.append(lambda records: self.check())
        self.check()

    def stop(self) -> None:
        """Begin no further snapshot, and abandon the snapshot in progress."""
        self._is_stopped = True

    def check(self) -> None:
        """Begin a snapshot if one is needed."""
        if self._is_writing or self._is_stopped or self._metadata.image.open_transaction is not None:
            return
        since_ms = self._clock.monotonic_ms() - self._last_ms
        if self._log.uncovered_bytes >= self._due_bytes or 0 < self._limits.interval_ms <= since_ms:
            self._is_writing = True
            self._long_work.start(self._write_and_clean())

    def _write_and_clean(self) -> Steps[None]:
        """Write a snapshot of the image. Then remove the files that are no longer needed."""
        image, covered_bytes = self._metadata.image, self._log.uncovered_bytes
        name = SnapshotName(image.metadata_offset + 1, image.metadata_epoch)
        path = os.path.join(self._log.directory, name.file_name)
        self._log.begin_segment()
        try:
            yield from self._write(image, name, path)
        except OSError as error:
            self._due_bytes = self._log.uncovered_bytes + self._limits.between_bytes
            logger.warning('%s: cannot write the snapshot, the log goes on without it: %s', path, error)
        else:
            if self._is_stopped:
                return
            logger.info('%s: wrote a snapshot of the metadata', path)
            self._newest_ms = self._clock.wall_ms()
            self._log.uncovered_bytes -= covered_bytes
            self._due_bytes = self._limits.between_bytes
            self._submit(partial(remove_old_files, self._fs, self._log.directory, self._limits, self._clock.wall_ms()),
                         self._adopt_start)
        finally:
            self._last_ms = self._clock.monotonic_ms()
            self._is_writing = False

    def _write(self, image: MetadataImage, name: SnapshotName, path: str) -> Steps[None]:
        """Write the snapshot under its final name, durably. Raise OSError if a write or a sync fails."""
        file = self._fs.open(path + UNFINISHED, create=True)
        try:
            file.resize(0)
            position = 0
            for batch in encoded_snapshot(image, name.epoch, self._clock.wall_ms()):
                if batch:
                    file.write_at(batch, position)
                    position += len(batch)
                yield
                if self._is_stopped:
                    return
            yield from synced(self._sync, [file])
            if self._is_stopped:
                return
            self._fs.rename(path + UNFINISHED, path)
            yield from synced(self._sync, [self._fs.open_directory(self._log.directory)])
        except OSError:
            self._remove_unfinished(path + UNFINISHED)
            raise

    def _remove_unfinished(self, path: str) -> None:
        try:
            if self._fs.exists(path):
                self._fs.unlink(path)
        except OSError as error:
            logger.warning('%s: the next start removes this file: %s', path, error)

    def _adopt_start(self, first: Any) -> None:
        """Record the result of `remove_old_files`: the base offset of the first remaining segment, or an exception."""
        if isinstance(first, Exception):
            logger.warning('%s: cannot remove old files: %s', self._log.directory, first)
        else:
            self._log.forget_segments_below(first)


def encoded_snapshot(image: MetadataImage, epoch: int, timestamp_ms: int) -> Iterator[bytes | bytearray]:
    """Yield the batches of a snapshot. Yield b'' after each small part of the work in which no batch was completed."""
    head = control_records_of(image)
    yield encode_control(head, base_offset=0, epoch=epoch, timestamp_ms=timestamp_ms)
    offset = len(head)
    pace = Pace()
    rows: list[Row] = []
    size_bytes = 0
    for record in records_of(image):
        rows.append(encode_row(record, timestamp_ms, image.metadata_version))
        size_bytes += len(rows[-1][2])
        if len(rows) == RECORDS_OF_BATCH or size_bytes >= BYTES_OF_BATCH:
            yield encode_batch(rows, base_offset=offset, partition_leader_epoch=epoch)
            offset += len(rows)
            rows, size_bytes = [], 0
        elif pace.spend():
            yield b''
    if rows:
        yield encode_batch(rows, base_offset=offset, partition_leader_epoch=epoch)
        offset += len(rows)
    yield encode_control([SnapshotFooterRecord()], base_offset=offset, epoch=epoch, timestamp_ms=timestamp_ms)


def remove_old_files(fs: FileSystem, directory: str, limits: Limits, wall_ms: int) -> int:
    """Remove old snapshots and segments as the limits require. Return the base offset of the first remaining segment.

    Segments are removed before snapshots, and old files before newer ones. So if a crash interrupts the removal, the
    remaining log still continues the newest snapshot.
    """
    states = fs.stats(directory)
    total_bytes = sum(size for name, (size, _) in states.items() if name.endswith(COUNTED))
    segments, snapshots = segment_files(states), snapshot_files(states)
    for older, newer in zip([None, *snapshots], snapshots, strict=False):
        if not 0 <= limits.files_bytes < total_bytes:
            if older is None:
                continue
            if not 0 <= limits.age_ms < wall_ms - states[older.file_name][1]:
                break
        doomed = []
        while len(segments) > 1 and segments[1] <= newer.end_offset:
            base_offset = segments.pop(0)
            doomed += [name for suffix in SEGMENT_FILES if (name := f'{base_offset:020}{suffix}') in states]
        if older is not None and older.file_name != FORMAT_SNAPSHOT_FILE:
            doomed.append(older.file_name)
        for name in doomed:
            fs.unlink(os.path.join(directory, name))
            if name.endswith(COUNTED):
                total_bytes -= states[name][0]
    return segments[0]

"""The log directory: its disk, its failure, retention, the cleaner, and the checkpoints."""
from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.metrics.rooms import Rooms
from kbroker.metrics.table import Metric, Sample

FREE = Metric('kbroker_disk_free_bytes', 'gauge',
              'Bytes that the broker can still write to the file system with its log directory.', 'bytes')
SIZE = Metric('kbroker_disk_size_bytes', 'gauge', 'The size of the file system with the log directory.', 'bytes')
FAILED = Metric('kbroker_log_directory_failed', 'gauge',
                '1 if a write or a sync has failed: nothing is served until the next start. Else 0.')
EXPIRED_SEGMENTS = Metric('kbroker_retention_deleted_segments', 'counter', 'Segments that retention has deleted.')
EXPIRED_BYTES = Metric('kbroker_retention_deleted_bytes', 'counter',
                       'Bytes of the segments that retention has deleted.', 'bytes')
RETENTION_RUN = Metric('kbroker_retention_last_run_timestamp_seconds', 'gauge',
                       'The time of the last search for expired segments.', 'seconds',
                       series='1 after the first search')
REMOVALS = Metric('kbroker_files_waiting_for_removal', 'gauge',
                  'Deleted files and directories whose removal from the disk is due later.')
REMOVED = Metric('kbroker_files_removed', 'counter', 'Deleted files and directories that were removed from the disk.')
CLEANINGS = Metric('kbroker_cleaner_cleanings', 'counter', 'Cleanings of a compacted log.')
CLEANER_READ = Metric('kbroker_cleaner_read_bytes', 'counter', 'Bytes of the segments that the cleaner has cleaned.',
                      'bytes')
CLEANER_WRITTEN = Metric('kbroker_cleaner_written_bytes', 'counter',
                         'Bytes of the segments that the cleaner has written in their place.', 'bytes')
CLEANER_RUN = Metric('kbroker_cleaner_last_run_timestamp_seconds', 'gauge',
                     'The time at which the last search for dirty logs ended.', 'seconds',
                     series='1 after the first search')
DIRTY_RATIO = Metric('kbroker_cleaner_worst_dirty_ratio', 'gauge', 'The largest dirty part of a compacted log, from 0 '
                     'to 1, when the cleaner last looked.')
CLEANER_FAILED = Metric('kbroker_cleaner_failed_logs', 'gauge',
                        'Logs that are damaged for the cleaner, or whose last cleaning failed.')
CHECKPOINTS = Metric('kbroker_checkpoint_writes', 'counter', 'Durable writes of a checkpoint file.', labels=('file',),
                     series='3 files')


class DirectorySurvey(NamedTuple):
    """The log directory of a broker at one time. Times are in ms of the wall clock."""

    free_bytes: int
    size_bytes: int
    failure: str | None
    expired_segments: int
    expired_bytes: int
    retained_ms: int | None
    files_to_remove: int
    files_removed: int
    cleanings: int
    cleaner_read_bytes: int
    cleaner_written_bytes: int
    cleaner_ended_ms: int | None
    worst_dirty_ratio: float
    cleaner_failed_logs: int
    checkpoint_writes: dict[str, int]


def survey(rooms: Rooms) -> DirectorySurvey:
    """Return the state of the log directory."""
    logs, cleaner = rooms.logs, rooms.cleaner
    return DirectorySurvey(
        *logs.disk_space(), None if logs.failure is None else str(logs.failure), logs.expired_segments,
        logs.expired_bytes, logs.retained_ms, logs.removals.waiting, logs.removals.removed, cleaner.cleanings,
        cleaner.read_bytes, cleaner.written_bytes, cleaner.ended_ms, cleaner.worst_dirty_ratio, cleaner.failed_logs,
        dict(logs.checkpoint_files.writes))


def collect(rooms: Rooms) -> Iterator[Sample | None]:
    """Yield the samples of the log directory."""
    found = survey(rooms)
    if found.size_bytes:        # else the file system does not answer
        yield FREE, (), found.free_bytes
        yield SIZE, (), found.size_bytes
    yield FAILED, (), int(found.failure is not None)
    yield EXPIRED_SEGMENTS, (), found.expired_segments
    yield EXPIRED_BYTES, (), found.expired_bytes
    if found.retained_ms is not None:
        yield RETENTION_RUN, (), found.retained_ms / 1000
    yield REMOVALS, (), found.files_to_remove
    yield REMOVED, (), found.files_removed
    yield CLEANINGS, (), found.cleanings
    yield CLEANER_READ, (), found.cleaner_read_bytes
    yield CLEANER_WRITTEN, (), found.cleaner_written_bytes
    if found.cleaner_ended_ms is not None:
        yield CLEANER_RUN, (), found.cleaner_ended_ms / 1000
    yield DIRTY_RATIO, (), found.worst_dirty_ratio
    yield CLEANER_FAILED, (), found.cleaner_failed_logs
    for file, count in found.checkpoint_writes.items():
        yield CHECKPOINTS, (file,), count

"""All logs of a log directory: lock, partition directories, checkpoints, periodic work, the clean stop."""
import contextlib
import errno
import json
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from kbroker.clock import Clock, Timer, Timers
from kbroker.config import Config, LogConfig
from kbroker.errors import CorruptLogError, ErrorCode, KafkaError, LogDirectoryError
from kbroker.log.checkpoints import (
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    CheckpointFiles,
    PartitionOffsets,
    read_partition_offsets,
)
from kbroker.log.directory_names import (
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    NOT_PARTITIONS,
    name_out_of_use,
    parse_directory_name,
)
from kbroker.log.fs import File, FileSystem, is_shortage, sync_inline
from kbroker.log.jobs import Submit, Sync, run_inline
from kbroker.log.log import Log
from kbroker.log.options import LogOptions
from kbroker.log.partition_metadata import read_topic_id, write_topic_id
from kbroker.log.removals import Removals
from kbroker.log.shortage import SHORTAGE_PAUSE_MS, shortage

UNKNOWN_BROKER_EPOCH = -1
PARTITIONS_MADE_AT_ONCE = 32
SLICE_INTERVAL_MS = 1
SLICE_MS = 2
"""The approximate time for which periodic work on all logs holds the loop."""
SYNCED_ONE_BY_ONE = 16
"""With more logs than this, one sync of the whole file system replaces the syncs of single files."""

logger = logging.getLogger(__name__)

PartitionKey = tuple[str, int]
Visit = Callable[[Log], None]


class LogManager:
    """The logs of a directory. Opening locks it, so that only one broker, Kafka or this one, uses it, and writes
    nothing else. `begin` comes next.

    Raises LogDirectoryError for a directory that is in use or has unexpected contents, and OSError. `clean_shutdown` is
    true if the last broker stopped cleanly; `previous_broker_epoch` is that broker's epoch (-1: unknown).
    """

    def __init__(self, fs: FileSystem, directory: str, config: Config, clock: Clock, timers: Timers,
                 sync: Sync = sync_inline, submit: Submit = run_inline):
        """Open; `sync` syncs the periodic checkpoints, `submit` runs the jobs that remove files."""
        self.fs = fs
        self.directory = directory
        self.logs: dict[PartitionKey, Log] = {}
        self.high_watermark: Callable[[Log], int] = lambda log: log.flushed_offset
        """Returns how far a log may be read; replaced by the topics room."""
        self.high_watermarks: Callable[[], PartitionOffsets] = lambda: {
            key: self.high_watermark(log) for key, log in self.logs.items()}
        """Returns the same for all logs."""
        self.on_start_moved: Callable[[Log], object] = lambda log: None
        """Called after retention has moved the start of a log; replaced by the topics room."""
        self.failure: KafkaError | None = None
        """The reason why the whole directory is offline, until the next start."""
        self.on_failure: Callable[[KafkaError], object] = lambda failure: None
        self._config = config
        self._clock = clock
        self._timers = timers
        self._stop_timers: list[Callable[[], None]] = []
        self._has_begun = False
        self._found_ids: dict[PartitionKey, bytes] = {}
        self._to_make: deque[Log] = deque()
        self._made_this_tick = 0
        self._next_slice: Timer | None = None
        self.removals = Removals(fs, timers, submit)
        self._checkpoints = CheckpointFiles(fs, directory, sync, self._cannot_write)
        self._under_way: set[Visit] = set()
        if not fs.exists(directory):
            fs.mkdir(directory)
        self._list_partitions()     # before the lock file is created: a refused directory is left unchanged
        self._lock: File | None = self._take_lock()
        try:
            self.found = self._list_partitions()
            self.clean_shutdown, self.previous_broker_epoch = self._read_clean_shutdown()
            self._recovery_points = self._read_checkpoint(RECOVERY_POINT_FILE)
            self._log_start_offsets = self._read_checkpoint(LOG_START_OFFSET_FILE)
            self._checkpoints_are_stale = False
            """True if checkpoint files may contain partitions that are gone."""
        except BaseException:
            self._lock = None
            raise

    def begin(self) -> None:
        """Take over the directory, once nothing speaks against it. The first `open_log` implies it.

        The clean shutdown mark is removed durably before any log is touched; leftovers of deletions are removed. Raises
        OSError.
        """
        if self._has_begun:
            return
        self._has_begun = True
        mark = os.path.join(self.directory, CLEAN_SHUTDOWN_FILE)
        if self.fs.exists(mark):
            self.fs.unlink(mark)
            self.fs.sync_directory(self.directory)
        left_over = []
        for name in self.fs.listdir(self.directory):
            parsed = parse_directory_name(name)
            if parsed is not None and parsed.state == 'delete':
                left_over.append(os.path.join(self.directory, name))
            elif parsed is not None and parsed.state:
                logger.warning('%s: kept, but not served', os.path.join(self.directory, name))
        self.removals.after(self._config.log_segment_delete_delay_ms, left_over)

    # ---- opening and creating ----

    def open_log(self, topic: str, partition: int, topic_id: bytes, config: LogConfig, *,
                 sync_later: bool = False) -> Log:
        """Open the log of a partition, or create one. `found` lists the partitions on the disk.

        With `sync_later`, recovered data is durable once `sync_recovered` has returned. Raises KafkaError
        INCONSISTENT_TOPIC_ID if the directory belongs to another topic of the same name: `set_aside` it.
        """
        self.begin()
        path = self.path(topic, partition)
        is_new = not self.fs.exists(path)
        if not is_new:
            found_id = self.topic_id_of(topic, partition)
            if found_id is None:
                write_topic_id(self.fs, path, topic_id).sync()
                self.fs.sync_directory(path)
                self.fs.sync_directory(self.directory)
            elif found_id != topic_id:
                raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID,
                                 f'{path}: found topic id {found_id.hex()}, expected {topic_id.hex()}')
        log = Log(self.fs, path, topic, partition, config, self._clock, LogOptions(
            log_start_offset=0 if is_new else self._log_start_offsets.get((topic, partition), 0),
            recovery_point=self._recovery_points.get((topic, partition), 0),
            clean_shutdown=self.clean_shutdown, sync_later=sync_later,
            producer_expiration_ms=self._config.producer_id_expiration_ms, removals=self.removals,
            maker=partial(self._make_partition, path, topic_id) if is_new else None, on_failure=self.fail))
        self.logs[topic, partition] = log
        if is_new:
            self._make_soon(log)
        return log

    def create_log(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> Log:
        """Create a partition. Raises KafkaError KAFKA_STORAGE_ERROR once the directory has failed.

        If many are created, the directory is made a little later, at the latest at the first append. It is not synced:
        the log's first flush also makes its directory and `partition.metadata` durable. If a crash loses them, the next
        start creates them again.
        """
        self._forget_offsets(topic, partition)
        if self.failure is not None:
            raise self.failure
        try:
            return self.open_log(topic, partition, topic_id, config)
        except OSError as error:
            raise self.fail(f'cannot create {topic}-{partition}: {error}') from error

    def _make_partition(self, path: str, topic_id: bytes) -> list[str]:
        """Create a partition's directory. Returns the files that a flush must sync, besides the directories.

        Checkpoint entries of a deleted topic of the same name are removed first: after a crash they would apply to the
        new one.
        """
        if self._checkpoints_are_stale:
            if not (self.checkpoint_recovery_points() and self.checkpoint_log_start_offsets()):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
            self._checkpoints_are_stale = False
        if not self.fs.exists(path):
            self.fs.mkdir(path)
        return [write_topic_id(self.fs, path, topic_id).path]

    def _make_soon(self, log: Log) -> None:
        """Create a few directories at once; of many, one slice in each tick of the loop."""
        self._to_make.append(log)
        if self._made_this_tick < PARTITIONS_MADE_AT_ONCE:
            self._make(1)

    def _make(self, count: int) -> None:
        """Create the directories of `count` queued logs, except those deleted or created by an append since."""
        self._made_this_tick += count
        pause_ms = SLICE_INTERVAL_MS
        try:
            for _ in range(min(count, len(self._to_make))):
                if self._to_make[0].failure is None:
                    self._to_make[0].make()
                self._to_make.popleft()
        except OSError as error:
            if not is_shortage(error):
                raise self.fail(f'cannot make {self._to_make[0].directory}: {error}') from error
            shortage.refusal(self._clock, f'{self._to_make[0].directory}: cannot be made yet', error)
            pause_ms = SHORTAGE_PAUSE_MS
        if self._next_slice is None:
            self._next_slice = self._timers.after(pause_ms, self._make_next_slice)

    def _make_next_slice(self) -> None:
        self._next_slice = None
        self._made_this_tick = 0
        if self._to_make and self.failure is None:
            with contextlib.suppress(KafkaError):   # the directory is offline, as its owner was notified
                self._make(PARTITIONS_MADE_AT_ONCE)

    def sync_recovered(self) -> None:
        """Make durable the data that logs opened with `sync_later` recovered: for many, by one sync. Raises OSError.

        With durability page-cache no durability was promised, so data that the next recovery reads anyway is not
        synced.
        """
        recovered = [log for log in self.logs.values() if log.awaits_recovery]
        if self._config.kbroker_durability == 'page-cache':
            recovered = [log for log in recovered if not log.put_off_sync()]
        is_synced = self._sync_everything() if len(recovered) > SYNCED_ONE_BY_ONE else False
        for log in recovered:
            log.finish_recovery(is_synced)

    def _sync_everything(self) -> bool:
        """Sync the whole file system. Returns whether that succeeded."""
        try:
            self.fs.sync_everything(self.directory)
            return True
        except OSError as error:
            if error.errno == errno.ENOSYS:
                return False
            raise

    def topic_id_of(self, topic: str, partition: int) -> bytes | None:
        """Return the topic id in a partition directory, None without one. Raises CorruptLogError.

        A start calls this twice for each directory, to set directories aside and to open logs; the file is read once.
        """
        found_id = self._found_ids.pop((topic, partition), None)
        if found_id is None:
            found_id = read_topic_id(self.fs, self.path(topic, partition))
            if found_id is not None:
                self._found_ids[topic, partition] = found_id
        return found_id

    def path(self, topic: str, partition: int) -> str:
        return os.path.join(self.directory, f'{topic}-{partition}')

    # ---- deleting ----

    def delete_logs(self, keys: Iterable[PartitionKey]) -> None:
        """Delete partitions: rename them at once; remove their files after file.delete.delay.ms.

        Raises KafkaError KAFKA_STORAGE_ERROR.
        """
        by_delay: dict[int, list[str]] = {}
        for topic, partition in keys:
            log = self.logs.pop((topic, partition), None)
            if log is not None:
                log.close(clean=False)
                if not log.is_made:
                    continue
            delay_ms = log.config.file_delete_delay_ms if log is not None else 0
            try:
                by_delay.setdefault(delay_ms, []).append(self._rename(topic, partition, 'delete'))
            except OSError as error:
                raise self.fail(f'cannot delete {topic}-{partition}: {error}') from error
        self._sync_names()
        for delay_ms, paths in by_delay.items():
            self.removals.after(delay_ms, paths)

    def _sync_names(self) -> None:
        """Make the renames durable. If a crash reverts them, the next start sets aside directories without a topic."""
        try:
            self.fs.sync_directory(self.directory)
        except OSError as error:
            if not is_shortage(error):
                raise self.fail(f'cannot sync {self.directory}: {error}') from error

    def set_aside(self, topic: str, partition: int) -> str:
        """Rename a partition directory without a topic to `-stray`, as Kafka does. Returns the new path."""
        self.logs.pop((topic, partition), None)
        path = self._rename(topic, partition, 'stray')
        self.fs.sync_directory(self.directory)
        logger.warning('%s: belongs to no topic; kept as %s', self.path(topic, partition), path)
        return path

    def _rename(self, topic: str, partition: int, state: str) -> str:
        path = os.path.join(self.directory, name_out_of_use(topic, partition, state))
        self.fs.rename(self.path(topic, partition), path)
        self._forget_offsets(topic, partition)
        self._checkpoints_are_stale = True
        self.found.discard((topic, partition))
        return path

    def _forget_offsets(self, topic: str, partition: int) -> None:
        for offsets in (self._recovery_points, self._log_start_offsets):
            if offsets.pop((topic, partition), None) is not None:
                self._checkpoints_are_stale = True

    # ---- periodic work ----

    def start(self) -> None:
        """Start the timers for checkpoints, retention and the expiry of idle producers."""
        config = self._config
        for interval_ms, callback in (
                (config.log_flush_offset_checkpoint_interval_ms, partial(
                    self._begin_checkpoint, RECOVERY_POINT_FILE, self._all_recovery_points)),
                (config.log_flush_start_offset_checkpoint_interval_ms, partial(
                    self._begin_checkpoint, LOG_START_OFFSET_FILE, self._all_log_starts)),
                (config.replica_high_watermark_checkpoint_interval_ms, self.checkpoint_high_watermarks),
                (config.log_retention_check_interval_ms, self.apply_retention),
                (config.producer_id_expiration_check_interval_ms, self.remove_expired_producers)):
            self._stop_timers.append(self._timers.every(interval_ms, callback))

    def _begin_checkpoint(self, name: str, offsets: Callable[[], PartitionOffsets]) -> None:
        self._checkpoints.begin(name, offsets())

    def checkpoint_high_watermarks(self) -> None:
        """Start writing the high watermarks, without waiting for the disk."""
        self._begin_checkpoint(HIGH_WATERMARK_FILE, self.high_watermarks)

    def checkpoint_recovery_points(self) -> bool:
        """Write the recovery point of each log, from which a recovery starts. Returns whether that succeeded."""
        return self._checkpoints.write(RECOVERY_POINT_FILE, self._all_recovery_points())

    def _all_recovery_points(self) -> PartitionOffsets:
        return {**self._recovery_points, **{key: log.recovery_point for key, log in self.logs.items()}}

    def checkpoint_log_start_offsets(self) -> bool:
        """Write the start of each log that begins inside its first segment. Returns whether that succeeded."""
        return self._checkpoints.write(LOG_START_OFFSET_FILE, self._all_log_starts())

    def _all_log_starts(self) -> PartitionOffsets:
        offsets = {key: log.log_start_offset for key, log in self.logs.items()
                   if log.log_start_offset > log.segments[0].base_offset}
        kept = {key: offset for key, offset in self._log_start_offsets.items() if key not in self.logs}
        return {**kept, **offsets}

    def apply_retention(self) -> None:
        """Delete the segments that each topic's retention policy expires."""
        self._visit_all(self._retain)

    def _retain(self, log: Log) -> None:
        log_start_offset = log.log_start_offset
        try:
            log.apply_retention(self.high_watermark(log))
        except KafkaError as error:
            logger.error('%s: retention failed: %s', log.directory, error)
        if log.log_start_offset != log_start_offset:
            self.on_start_moved(log)

    def remove_expired_producers(self) -> None:
        self._visit_all(self._remove_expired_producers)

    def _remove_expired_producers(self, log: Log) -> None:
        log.producer_state.remove_expired(self._clock.wall_ms())

    def _visit_all(self, visit: Visit) -> None:
        """Visit each online log, some in each tick of the loop, so that requests are served in between.

        Does nothing while the previous round is running.
        """
        if visit not in self._under_way:
            self._under_way.add(visit)
            self._visit_next(visit, iter(list(self.logs.values())))

    def _visit_next(self, visit: Visit, logs: Iterator[Log]) -> None:
        until_ms = self._clock.monotonic_ms() + SLICE_MS
        for log in logs:
            if log.failure is None:
                visit(log)
            if self._clock.monotonic_ms() >= until_ms:
                self._timers.after(SLICE_INTERVAL_MS, partial(self._visit_next, visit, logs))
                return
        self._under_way.discard(visit)

    # ---- failure ----

    def fail(self, reason: object) -> KafkaError:
        """Take the directory offline: no log of it is read or written until the next start, which recovers.

        After a failed write or sync, the content of the disk is unknown. Returns the error for clients.
        """
        if self.failure is None:
            self.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f'the log directory is offline: {reason}')
            logger.critical('%s is offline until the next start, which recovers all acknowledged records: %s',
                            self.directory, reason)
            self._stop_intervals()
            self._checkpoints.give_up()
            for log in self.logs.values():
                log.take_offline(self.failure)
            self.on_failure(self.failure)
        return self.failure

    def end_background_work(self) -> None:
        """Start no further background work: its threads are about to end."""
        self._stop_intervals()
        self._checkpoints.give_up()
        self.removals.stop()

    def _stop_intervals(self) -> None:
        for stop in self._stop_timers:
            stop()
        self._stop_timers = []

    # ---- the clean stop ----

    def close(self, broker_epoch: int = UNKNOWN_BROKER_EPOCH, *, clean: bool = True) -> None:
        """Close all logs, write the checkpoints and last the clean shutdown mark; then release the lock.

        If a log has failed or fails now, no mark is written, so the next start recovers. With `clean=False` nothing is
        written.
        """
        self.end_background_work()
        if clean:
            self._close_cleanly(broker_epoch)
        else:
            for log in self.logs.values():
                log.close(clean=False)
        self.logs = {}
        self._lock = None

    def _close_cleanly(self, broker_epoch: int) -> None:
        try:
            is_synced = self._seal_all()
        except (KafkaError, OSError) as error:
            self.fail(error)
            is_synced = False
        failed = {log for log in self.logs.values() if log.failure is not None}
        high_watermarks = {key: log.log_end_offset for key, log in self.logs.items() if log not in failed}
        for log in self.logs.values():
            try:
                log.close(is_synced=is_synced)
            except KafkaError as error:
                logger.error('%s: cannot be closed cleanly: %s', log.directory, error)
                failed.add(log)
        recovery_points = {key: log.recovery_point if log in failed else log.log_end_offset
                           for key, log in self.logs.items()}
        self._checkpoints.write(RECOVERY_POINT_FILE, {**self._recovery_points, **recovery_points})
        self.checkpoint_log_start_offsets()
        self._checkpoints.write(HIGH_WATERMARK_FILE, high_watermarks)
        if not failed:
            content = json.dumps({'version': 0, 'brokerEpoch': broker_epoch}, separators=(',', ':'))
            self.fs.write_file_atomically(os.path.join(self.directory, CLEAN_SHUTDOWN_FILE), content.encode())

    def _seal_all(self) -> bool:
        """Make the final writes of many logs durable by a single sync before they close.

        Returns whether that was done.
        """
        self._make(len(self._to_make))
        touched = [log for log in self.logs.values() if log.is_touched]
        if len(touched) <= SYNCED_ONE_BY_ONE:
            return False
        for log in touched:
            log.seal()
        return self._sync_everything()

    # ---- reading a directory at start ----

    def _take_lock(self) -> File:
        path = os.path.join(self.directory, LOCK_FILE)
        try:
            return self.fs.lock(path)
        except (BlockingIOError, PermissionError) as error:
            raise LogDirectoryError(
                f'{path} is locked: another broker, kbroker or Kafka, uses {self.directory}') from error

    def _list_partitions(self) -> set[PartitionKey]:
        """Return the partitions on the disk.

        Raises LogDirectoryError for a directory that is neither one nor out of use.
        """
        found = set()
        for name in sorted(self.fs.subdirectories(self.directory)):
            if name in NOT_PARTITIONS:
                continue
            parsed = parse_directory_name(name)
            if parsed is None:
                path = os.path.join(self.directory, name)
                raise LogDirectoryError(f'{path}: found a directory that is not named <topic>-<partition>. '
                                        'Neither Kafka nor kbroker starts on such a log directory: move it away')
            if not parsed.state:
                found.add((parsed.topic, parsed.partition))
        return found

    def _read_clean_shutdown(self) -> tuple[bool, int]:
        """Return whether the last stop was clean, and that broker's epoch."""
        path = os.path.join(self.directory, CLEAN_SHUTDOWN_FILE)
        if not self.fs.exists(path):
            return False, UNKNOWN_BROKER_EPOCH
        try:
            content = json.loads(self.fs.read_file(path))
            broker_epoch = int(content['brokerEpoch'])
        except (ValueError, KeyError, TypeError):
            broker_epoch = UNKNOWN_BROKER_EPOCH
        return True, broker_epoch

    def _read_checkpoint(self, name: str) -> PartitionOffsets:
        try:
            return read_partition_offsets(self.fs, self.directory, name)
        except CorruptLogError as error:
            logger.warning('%s; treated as empty', error)
            return {}

    def _cannot_write(self, name: str, error: OSError) -> None:
        """Handle a failure to write a checkpoint."""
        if is_shortage(error):
            shortage.refusal(self._clock, f'{name}: cannot be written now', error)
        else:
            self.fail(f'cannot write {name}: {error}')

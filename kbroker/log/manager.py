"""Manages all logs of a log directory: the lock, partition directories, checkpoints, periodic work and the clean
stop."""
import contextlib
import errno
import json
import logging
import os
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

from kbroker.base.clock import Clock, Timers
from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
from kbroker.base.ledger import Line
from kbroker.base.long_work import LongWork
from kbroker.base.topic_partition import TopicPartition
from kbroker.log.checkpoints import (
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    CheckpointFiles,
    OffsetCheckpoint,
    OffsetOf,
    read_found,
)
from kbroker.log.clean_stop import (
    SYNCED_ONE_BY_ONE,
    CleanStop,
    Progress,
    ignore_progress,
    make_missing_indexes,
    sync_everything,
)
from kbroker.log.directory_names import CLEAN_SHUTDOWN_FILE, name_out_of_use, parse_directory_name
from kbroker.log.fs import File, FileSystem, is_shortage, shared_open_files, sync_inline
from kbroker.log.inventory import Inventory, read_clean_shutdown
from kbroker.log.jobs import Submit, Sync, run_inline, synced
from kbroker.log.log import Log
from kbroker.log.log_directory import check_access, check_files, list_partitions, lock_directory
from kbroker.log.new_logs import NewLogs
from kbroker.log.partition_metadata import read_topic_id, write_topic_id
from kbroker.log.periodic import Periodic
from kbroker.log.producer_state import ProducerRoom
from kbroker.log.recovery import LogOptions
from kbroker.log.removals import Removals
from kbroker.log.shortage import shortage
from kbroker.log.verification import TRACES, Past, Verification
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

UNKNOWN_BROKER_EPOCH = -1
DISK_INTERVAL_MS = 10_000
"""The least time in ms between two questions to the file system for its free bytes."""

logger = logging.getLogger(__name__)

Steps = Generator[Any, None, None]


class LogManager:
    """The logs of a log directory.

    The constructor locks the directory, so that no other broker (Kafka or kbroker) uses it. It writes nothing else.
    Call `begin` next.

    The constructor raises OSError, and LogDirectoryError if the directory is in use or has unexpected contents.
    `clean_shutdown` is true if the last broker stopped cleanly. `previous_broker_epoch` is that broker's epoch, -1 if
    unknown.
    """

    def __init__(self, fs: FileSystem, directory: str, config: Config, clock: Clock, timers: Timers,
                 sync: Sync = sync_inline, submit: Submit = run_inline, long_work: LongWork | None = None):
        """Lock and read the directory. `sync` syncs periodic checkpoints and renames, `submit` runs the jobs that
        remove files, and `long_work` runs the periodic work on all logs.
        """
        self.fs = fs
        self.directory = directory
        self.logs: dict[TopicPartition, Log] = {}
        self.high_watermark: Callable[[Log], int] = lambda log: log.flushed_offset
        """Returns the high watermark of a log, up to which it may be read. The topics room replaces this default."""
        self.on_start_moved: Callable[[Log], object] = lambda log: None
        """Called after retention has moved the start of a log. The topics room replaces this default."""
        self.failure: KafkaError | None = None
        """The reason why the whole directory is offline until the next start; None if it is online."""
        self.on_failure: Callable[[KafkaError], object] = lambda failure: None
        self._config = config
        self._clock = clock
        self._is_verified = False
        self._has_begun = False
        self._offline: dict[TopicPartition, Log] = {}
        """The partitions that are out of service because of damage. The broker does not change their files and
        checkpoint rows.
        """
        self._topic_ids: dict[TopicPartition, bytes] = {}
        self._found_ids: dict[TopicPartition, bytes] = {}
        self._long_work = LongWork(timers) if long_work is None else long_work
        self._new = NewLogs(clock, timers, self._long_work, self.fail)
        self.producer_room = ProducerRoom()
        self.removals = Removals(fs, timers, submit)
        self._sync = sync
        self.checkpoint_files = CheckpointFiles(fs, directory, sync, self._cannot_write)
        self._periodic = Periodic(self.logs, timers, self._long_work)
        self._is_stopping = False
        self.retained_ms: int | None = None
        """The wall time of the last search for expired segments; None before the first one of this process."""
        self.expired_segments = self.expired_bytes = 0
        """The segments that retention has deleted since the start of the broker, and their size."""
        self._disk = 0, 0
        self._disk_read_ms: int | None = None
        if not fs.exists(directory):
            fs.mkdir(directory)
        check_files(fs, directory)
        # Before the lock file is created: a refused directory is left unchanged.
        partitions = list_partitions(fs, directory)
        if os.geteuid() != 0:       # root may use the files of all users
            check_access(fs, directory, partitions)
        self._lock: File | None = lock_directory(fs, directory)
        try:
            self.found = list_partitions(fs, directory)
            self.clean_shutdown, self.previous_broker_epoch = read_clean_shutdown(fs, directory)
            self.recovery_points = self._checkpoint(RECOVERY_POINT_FILE, lambda log: log.recovery_point)
            """Maps each log to the offset at which its recovery begins."""
            self.start_offsets = self._checkpoint(LOG_START_OFFSET_FILE, _log_start)
            """Maps each log that begins inside its first segment to its start offset."""
            self.high_watermarks = self._checkpoint(HIGH_WATERMARK_FILE, lambda log: self.high_watermark(log))
            self._offsets = self.recovery_points, self.start_offsets, self.high_watermarks
            self.verification = Verification(fs, directory, clean_shutdown=self.clean_shutdown,
                                             broker_epoch=self.previous_broker_epoch)
        except BaseException:
            self._lock = None
            raise

    def verify(self) -> None:
        """Compare the directory with the state in which the last clean stop left it. Change nothing. Raise OSError."""
        if not self._is_verified:
            self._is_verified = True
            self.verification.run()
            self.start_offsets.found.update(self.verification.start_offsets)
            self.recovery_points.found.update(self.verification.end_offsets)
            self.high_watermarks.found.update(self.verification.end_offsets)

    def begin(self) -> None:
        """Begin to write to the directory, unless `verify` found damage that forbids it. The first `open_log` calls
        this.

        Remove the clean shutdown mark durably before any log is changed. Also remove the directories that earlier
        deletions have left. Raise OSError, and LogDirectoryError if records of an internal topic are lost.
        """
        if self._has_begun:
            return
        self.verify()
        self.verification.conclude()
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
        """Open the log of a partition, or create one. `found` lists the partitions on the disk. With `sync_later`,
        recovered data is durable only after `sync_recovered` has returned. Raise KafkaError INCONSISTENT_TOPIC_ID if
        the directory belongs to a deleted topic of the same name. The caller must then call `set_aside`.
        """
        self.begin()
        key = topic, partition
        failure = self.verification.failure(key)
        if failure is not None:
            return self._offline_log(key, config, failure)
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
        expected = self._expected_end_offset(key)
        options = self._options(key, sync_later=sync_later)
        if is_new:
            options.log_start_offset = 0
            if not options.clean_shutdown:
                expected = 0        # a crash can lose a new directory; the offsets may be a deleted topic's
                self._forget_offsets(key)
            options.maker = partial(self._make_partition, key, topic_id)
        try:
            if is_new and expected:
                raise CorruptLogError(f'{path}: found no such directory, expected a log that reaches offset {expected}')
            log = Log(self.fs, path, topic, partition, config, self._clock, options)
        except CorruptLogError as error:
            if not options.clean_shutdown:
                raise
            return self._offline_log(key, config, self.verification.take_offline(key, error, expected))
        self.verification.opened(key, log.log_end_offset, expected)
        self.logs[key] = log
        self._topic_ids[key] = topic_id
        if is_new:
            self._new.make_soon(log)
        return log

    def _options(self, key: TopicPartition, *, sync_later: bool) -> LogOptions:
        is_accepted = self.verification.is_accepted(key)
        is_clean = self.clean_shutdown or is_accepted or self.verification.is_released(key)
        return LogOptions(
            log_start_offset=self.start_offsets.found.get(key, 0),
            recovery_point=self.recovery_points.found.get(key, 0),
            high_watermark=self.high_watermarks.found.get(key, 0),
            clean_shutdown=is_clean, expected_end_offset=self._expected_end_offset(key),
            distrusted=self.verification.distrusted(key), keeps_holes=is_accepted,
            refuse_damage=is_clean and not is_accepted, sync_later=sync_later,
            producer_expiration_ms=self._config.producer_id_expiration_ms, producer_room=self.producer_room,
            removals=self.removals, start_work=self._long_work.start, on_failure=self.fail)

    def _expected_end_offset(self, key: TopicPartition) -> int:
        """Return the lowest end offset that a log may have, according to the checkpoints and the inventory."""
        in_checkpoints = max(self.recovery_points.found.get(key, 0), self.high_watermarks.found.get(key, 0))
        if self.clean_shutdown:
            in_checkpoints = max(in_checkpoints, self.start_offsets.found.get(key, 0))
        return self.verification.expected_end_offset(key, in_checkpoints)

    def _offline_log(self, key: TopicPartition, config: LogConfig, failure: KafkaError) -> Log:
        """Return a log that touches no file and raises `failure` from every call."""
        log = Log(self.fs, self.path(*key), *key, config, self._clock, LogOptions(maker=tuple))
        log.take_offline(failure)
        self._offline[key] = log
        return log

    def create_log(self, topic: str, partition: int, topic_id: bytes, config: LogConfig) -> Log:
        """Create a partition. Raise KafkaError KAFKA_STORAGE_ERROR if the log directory has failed.

        If many partitions are created, the partition's directory is made a little later, at the latest at the first
        append. It is not synced now: the first flush of the log makes the directory and `partition.metadata` durable.
        If a crash loses them before this flush, the next start creates them again.
        """
        self._forget_offsets((topic, partition))
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        try:
            log = self.open_log(topic, partition, topic_id, config)
        except OSError as error:
            raise self.fail(f'cannot create {topic}-{partition}: {error}') from error
        if self.failure is not None:        # the partition's directory could not be made
            raise self.failure.with_traceback(None)
        return log

    def forget_deleted(self, topic: str, partitions: int) -> Steps:
        """Remove the rows of a deleted topic named `topic` from the checkpoint files. Call this before `create_log`
        creates a topic of the same name.

        Otherwise the creation of the first partition removes the rows, but without yielding to the event loop.
        """
        keys = [(topic, partition) for partition in range(partitions)]
        if any(checkpoint.may_contain(keys) for checkpoint in self._offsets):
            for checkpoint in self._offsets:
                yield from checkpoint.write_in_parts()

    def _make_partition(self, key: TopicPartition, topic_id: bytes) -> list[str]:
        """Create the directory of a partition. Return the paths of the files that the first flush must sync in addition
        to the directories.

        First remove the checkpoint rows of a deleted topic of the same name. Otherwise these rows would apply to the
        new topic after a crash.
        """
        path = self.path(*key)
        is_stale = any(checkpoint.may_contain([key]) for checkpoint in self._offsets)
        if is_stale and not all(checkpoint.write() for checkpoint in self._offsets):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        if not self.fs.exists(path):
            self.fs.mkdir(path)
        return [write_topic_id(self.fs, path, topic_id).path]

    def sync_recovered(self) -> None:
        """Make the recovered data of logs that were opened with `sync_later` durable. Many logs share one sync.

        Raise OSError, CorruptLogError.

        With `kbroker.durability=page-cache`, the broker has promised no durability. It then does not sync data that the
        next recovery would read anyway.
        """
        self._found_ids.clear()
        recovered = [log for log in self.logs.values() if log.recovery is not None]
        if self._config.kbroker_durability == 'page-cache':
            recovered = [log for log in recovered if not log.put_off_sync()]
        _rewrite(recovered)
        is_synced = len(recovered) > SYNCED_ONE_BY_ONE and self._sync_recovered_at_once(recovered)
        if recovered and not is_synced:     # a broker that was killed early has not synced the names of new partitions
            self.fs.sync_directory(self.directory)
        for log in recovered:
            log.finish_recovery(is_synced)

    def _sync_recovered_at_once(self, recovered: list[Log]) -> bool:
        """Sync the whole file system. Return False if the sync failed; the caller must then sync each log.

        Linux reports each write error only once, and the error may belong to an earlier write or to a file of another
        program. After a failed sync, the disk may lack the bytes that recovery has rewritten. Therefore this method
        writes the bytes once more.
        """
        try:
            return sync_everything(self.fs, self.directory)
        except OSError as error:
            logger.warning('%s: the sync of the whole file system failed: %s. It may be an earlier error: each log is '
                           'written again and synced by itself', self.directory, error)
        _rewrite(recovered)
        return False

    def ledger(self) -> list[Line]:
        return [
            Line('producers of partitions', '', lambda: self.producer_room.held, lambda: self.producer_room.most,
                 '100,000 a partition; producer.id.expiration.ms makes room'),
            Line('open files', '', lambda: len(shared_open_files()), lambda: None,
                 'three quarters of the descriptors')]

    def past(self) -> Past:
        """Return the evidence that the other files of the log directory contain about its metadata log. Raise OSError,
        CorruptLogError.
        """
        self.verify()
        found = self.found
        if self.verification.is_trusted:    # directories created later prove nothing
            found = found & self.verification.topic_ids.keys()
        return Past(
            {(topic, partition): topic_id for topic, partition in sorted(found)
             if (topic_id := self.topic_id_of(topic, partition)) is not None},
            self.verification.metadata_end_offset,
            next((name for name in TRACES if self.fs.exists(os.path.join(self.directory, name))), None),
            is_accepted=self.verification.accepts_metadata)

    def topic_id_of(self, topic: str, partition: int) -> bytes | None:
        """Return the topic id in a partition directory, None if there is none. Raise CorruptLogError.

        A start calls this up to three times for each directory, but the file is read only once.
        """
        found_id = self._found_ids.get((topic, partition), self.verification.topic_ids.get((topic, partition)))
        if found_id is None:
            found_id = read_topic_id(self.fs, self.path(topic, partition))
            if found_id is not None:
                self._found_ids[topic, partition] = found_id
        return found_id

    def path(self, topic: str, partition: int) -> str:
        return os.path.join(self.directory, f'{topic}-{partition}')

    # ---- deleting ----

    def delete_logs(self, keys: Iterable[TopicPartition], removes_at_once: bool = False) -> Steps:
        """Delete partitions: rename their directories now, and remove the files after file.delete.delay.ms, or without
        that delay. This generator yields after each rename. Raise KafkaError KAFKA_STORAGE_ERROR if the disk fails.
        """
        by_delay: dict[int, list[str]] = {}
        keys = list(keys)
        for topic, partition in keys:
            log = self.logs.pop((topic, partition), None)
            self._topic_ids.pop((topic, partition), None)
            is_missing = log is None and not self.fs.exists(self.path(topic, partition))
            if log is not None:
                log.close(clean=False)
                log.producer_state.clear(log.log_end_offset)
                is_missing = not log.is_made
            self._offline.pop((topic, partition), None)
            if not is_missing:
                delay_ms = 0 if log is None or removes_at_once else log.config.file_delete_delay_ms
                try:
                    by_delay.setdefault(delay_ms, []).append(self._rename(topic, partition, 'delete'))
                except OSError as error:
                    raise self.fail(f'cannot delete {topic}-{partition}: {error}') from error
            yield
        yield from self._sync_names()
        self._forget_damage(keys)
        for delay_ms, paths in by_delay.items():
            self.removals.after(delay_ms, paths)

    def _forget_damage(self, keys: list[TopicPartition]) -> None:
        try:
            self.verification.forget(keys)
        except OSError as error:
            logger.warning('%s: the notes of damage to deleted partitions stay: %s', self.directory, error)

    def _sync_names(self) -> Steps:
        """Make the renames of deleted directories durable. If a crash reverts a rename, the next start finds a
        directory without a topic and sets it aside.
        """
        try:
            yield from synced(sync_inline if self._is_stopping else self._sync,
                              [self.fs.open_directory(self.directory)])
        except OSError as error:
            if not is_shortage(error):
                raise self.fail(f'cannot sync {self.directory}: {error}') from error

    def set_aside(self, topic: str, partition: int) -> str:
        """Rename a partition directory without a topic to `-stray`, as Kafka does. Return the new path."""
        self.logs.pop((topic, partition), None)
        self._topic_ids.pop((topic, partition), None)
        path = self._rename(topic, partition, 'stray')
        self.fs.sync_directory(self.directory)
        self._forget_damage([(topic, partition)])
        logger.warning('%s: belongs to no topic; kept as %s', self.path(topic, partition), path)
        return path

    def _rename(self, topic: str, partition: int, state: str) -> str:
        path = os.path.join(self.directory, name_out_of_use(topic, partition, state))
        self.fs.rename(self.path(topic, partition), path)
        for checkpoint in self._offsets:
            checkpoint.remove((topic, partition))
        self.found.discard((topic, partition))
        self._found_ids.pop((topic, partition), None)
        self.verification.forget_files((topic, partition))
        return path

    def _checkpoint(self, name: str, offset_of: OffsetOf) -> OffsetCheckpoint:
        found = read_found(self.fs, self.directory, name)
        return OffsetCheckpoint(self.checkpoint_files, name, found, self.logs, offset_of, self._long_work)

    def _forget_offsets(self, key: TopicPartition) -> None:
        for checkpoint in self._offsets:
            checkpoint.forget(key)

    # ---- periodic work ----

    def start(self) -> None:
        """Start the timers for checkpoints, retention and the expiry of idle producers."""
        config = self._config
        for interval_ms, callback in (
                (config.log_flush_offset_checkpoint_interval_ms, self.recovery_points.begin),
                (config.log_flush_start_offset_checkpoint_interval_ms, self.start_offsets.begin),
                (config.replica_high_watermark_checkpoint_interval_ms, self.high_watermarks.begin),
                (config.log_retention_check_interval_ms, self.apply_retention),
                (config.producer_id_expiration_check_interval_ms, self.remove_expired_producers)):
            self._periodic.every(interval_ms, callback)

    def apply_retention(self) -> None:
        """Delete the segments that have expired by the retention policies of their topics."""
        self.retained_ms = self._clock.wall_ms()
        self._periodic.visit_all(self._retain)

    def _retain(self, log: Log) -> None:
        log_start_offset = log.log_start_offset
        try:
            for segment in log.apply_retention(self.high_watermark(log)):
                self.expired_segments += 1
                self.expired_bytes += segment.size_bytes
        except KafkaError as error:
            logger.error('%s: retention failed: %s', log.directory, error)
        if log.log_start_offset != log_start_offset:
            self.on_start_moved(log)

    def disk_space(self) -> tuple[int, int]:
        """Return the free and the total bytes of the file system that has the log directory.

        The file system is asked at most once in DISK_INTERVAL_MS. If it does not answer, the last answer counts.
        """
        now_ms = self._clock.monotonic_ms()
        if self._disk_read_ms is None or now_ms >= self._disk_read_ms + DISK_INTERVAL_MS:
            self._disk_read_ms = now_ms
            with contextlib.suppress(OSError):
                self._disk = self.fs.free_bytes(self.directory), self.fs.total_bytes(self.directory)
        return self._disk

    def remove_expired_producers(self) -> None:
        self._periodic.visit_all(self._remove_expired_producers)

    def _remove_expired_producers(self, log: Log) -> Generator[None, None, object]:
        return log.producer_state.remove_expired(self._clock.wall_ms())

    # ---- failure ----

    def fail(self, reason: object) -> KafkaError:
        """Take the log directory offline. The broker does not read or write any of its logs until the next start, which
        recovers them.

        Return the error for clients. All logs go offline because the content of the disk is unknown after a failed
        write or sync.
        """
        if self.failure is None:
            self.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f'the log directory is offline: {reason}')
            logger.critical('%s is offline until the next start, which recovers all acknowledged records: %s',
                            self.directory, reason)
            self._periodic.stop()
            self.checkpoint_files.give_up()
            self._new.give_up()
            for log in self.logs.values():
                log.take_offline(self.failure)
            self.on_failure(self.failure)
        return self.failure

    def end_background_work(self) -> None:
        """Start no further background work, because the worker threads are about to end."""
        self._is_stopping = True
        self._periodic.stop()
        self.checkpoint_files.give_up()
        self.removals.stop()

    # ---- the clean stop ----

    def close(self, broker_epoch: int = UNKNOWN_BROKER_EPOCH, metadata_end_offset: int = 0, *,
              clean: bool = True, progress: Progress = ignore_progress) -> None:
        """Close all logs. Write the checkpoints, then the inventory, then the clean shutdown mark, and release the
        lock. If a log has failed or fails now, do not write the mark: the next start then recovers the logs. With
        `clean=False`, write nothing.
        """
        self.end_background_work()
        if clean:
            self._close_cleanly(Inventory(broker_epoch, metadata_end_offset, {}), progress)
        else:
            for log in self.logs.values():
                log.close(clean=False)
        self.logs = {}
        self._lock = None

    def _close_cleanly(self, inventory: Inventory, progress: Progress) -> None:
        stop = CleanStop(self.fs, self.directory, self.logs, progress)
        try:
            while self._new.waiting:
                progress('making partitions', 0, len(self._new.waiting))
                self._new.make_next()
            is_synced = stop.seal_all()
        except (KafkaError, OSError) as error:
            self.fail(error)
            is_synced = False
        failed = stop.close_all(is_synced=is_synced)
        progress('writing checkpoints')
        recovery_points = {key: log.recovery_point if log in failed else log.log_end_offset
                           for key, log in self.logs.items()}
        self.checkpoint_files.write(RECOVERY_POINT_FILE, {**self.recovery_points.found, **recovery_points})
        self.start_offsets.write()
        high_watermarks = {key: log.log_end_offset for key, log in self.logs.items() if log not in failed}
        found = self.high_watermarks.found
        offline = {key: found[key] for key in self._offline if key in found}
        self.checkpoint_files.write(HIGH_WATERMARK_FILE, {**offline, **high_watermarks})
        if not failed:
            make_missing_indexes(self.fs, self.directory)
            stop.write_inventory(inventory, self.verification, self._topic_ids)
            progress('marking the directory as cleanly stopped')
            content = json.dumps({'version': 0, 'brokerEpoch': inventory.broker_epoch}, separators=(',', ':'))
            self.fs.write_file_atomically(os.path.join(self.directory, CLEAN_SHUTDOWN_FILE), content.encode())

    def _cannot_write(self, name: str, error: OSError) -> None:
        """Handle the failed write of a checkpoint file."""
        if is_shortage(error):
            shortage.refusal(self._clock, f'{name}: cannot be written now', error)
        else:
            self.fail(f'cannot write {name}: {error}')


def _rewrite(recovered: list[Log]) -> None:
    """Write the recovered data of these logs again, because it may be in the page cache but not on the disk.

    Raise OSError, or CorruptLogError if the data has changed since the recovery.
    """
    for log in recovered:
        if log.recovery is not None:
            log.recovery.rewrite()


def _log_start(log: Log) -> int | None:
    """Return the start offset of a log that begins inside its first segment. Return None for any other log."""
    return log.log_start_offset if log.log_start_offset > log.segments[0].base_offset else None

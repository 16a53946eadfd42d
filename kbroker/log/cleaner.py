"""Log compaction: keeps the last committed record of each key of a compacted topic.

Every log.cleaner.backoff.ms, the cleaner cleans the logs with the largest dirty parts. A cleaning first reads the dirty
part to find the last offset of each key. Then it rewrites all segments up to the end of the read part without obsolete
records, and merges small segments.

A worker thread reads and writes files, in jobs of bounded size. The event loop chooses the logs, and swaps the new
segments in. A job receives files that do not change, and facts that were collected when the cleaning started. These
facts stay valid: a record that could be dropped at the start can also be dropped later.
"""
import contextlib
import heapq
import logging
import os
from collections.abc import Generator
from functools import partial
from typing import Any

from kbroker.base.clock import Clock, Timer, Timers
from kbroker.base.errors import CorruptLogError, KafkaError
from kbroker.base.lean_dataclasses import dataclass
from kbroker.log.checkpoints import CLEANER_FILE, PartitionOffsets, read_partition_offsets, write_partition_offsets
from kbroker.log.cleaned_transactions import CleanedTransactions
from kbroker.log.compaction import LastRecord, Retention, SegmentWriter, index_batches
from kbroker.log.fs import FileSystem
from kbroker.log.jobs import Job, Submit
from kbroker.log.log import Log
from kbroker.log.manager import LogManager
from kbroker.log.offset_map import OffsetMap
from kbroker.log.segment import SEGMENT_SUFFIXES, Segment, file_name
from kbroker.log.swap import CLEANED_SUFFIX
from kbroker.log.transaction_index import AbortedTransaction
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

STEP_BYTES = 16 << 20
"""The bytes that one job reads. A cleaning can be cancelled between two jobs."""

SOON_MS = 1
DURABILITY_WAIT_MS = 10
MAX_CHECKPOINT_WAIT_MS = 100
PRODUCERS_AT_ONCE = 2_000
LOGS_AT_ONCE = 64
LOGS_OF_A_ROUND = 100
"""The maximum number of logs that are cleaned before the cleaner chooses again."""
MAX_OFFSET_RANGE = 2**31 - 1

logger = logging.getLogger(__name__)

Steps = Generator[Job | int | None, Any, None]
"""Work of the cleaner, as a generator. It yields a job to run it and receive its result, a number of ms to wait for, or
None after a small part of work on the loop.
"""


@dataclass(frozen=True)
class CleanableLog:
    """The cleanable part of a log. `clean` has the segments that an earlier cleaning has written. `dirty` has the later
    segments. A cleaning rewrites both.
    """

    log: Log
    first_dirty_offset: int
    clean: list[Segment]
    dirty: list[Segment]
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        dirty_bytes = _size_bytes(self.dirty)
        total_bytes = _size_bytes(self.clean) + dirty_bytes
        return dirty_bytes / total_bytes if total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        if self.is_overdue and _size_bytes(self.dirty) > 0:
            return True
        return self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio


def examine(log: Log, first_dirty_offset: int, high_watermark: int, now_ms: int) -> CleanableLog:
    """Return the cleanable part of a log: the closed segments that are entirely below the last stable offset.

    The cleanable part ends before the first dirty segment with a record younger than min.compaction.lag.ms. The log is
    overdue if a dirty segment begins with a record older than max.compaction.lag.ms (KIP-354). Raise OSError,
    CorruptLogError.
    """
    first_unstable_offset = log.first_unstable_offset()
    stable_offset = high_watermark if first_unstable_offset is None else min(high_watermark, first_unstable_offset)
    closed = log.segments[:-1]
    youngest_ms = now_ms - log.config.min_compaction_lag_ms
    clean, dirty = [], []
    for segment in closed:
        if segment.next_offset > stable_offset:
            break
        if segment.next_offset <= first_dirty_offset:
            clean.append(segment)
        elif log.config.min_compaction_lag_ms > 0 and segment.max_timestamp_ms > youngest_ms:
            break
        else:
            dirty.append(segment)
    oldest_ms = now_ms - log.config.max_compaction_lag_ms
    is_overdue = oldest_ms > 0 and any(0 < segment.first_timestamp() < oldest_ms for segment in closed
                                       if segment.next_offset > first_dirty_offset)
    return CleanableLog(log, first_dirty_offset, clean, dirty, is_overdue)


def group_segments(segments: list[Segment], config: LogConfig) -> list[list[Segment]]:
    """Return groups of adjacent segments. The batches and the index entries of each group fit into one segment."""
    groups: list[list[Segment]] = []
    for segment in segments:
        if groups and _fits(groups[-1], segment, config):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(group: list[Segment], segment: Segment, config: LogConfig) -> bool:
    together = [*group, segment]
    return (_size_bytes(together) <= config.segment_bytes
            and sum(each.offset_index.entries for each in together) <= segment.offset_index.max_entries
            and sum(each.time_index.entries for each in together) < segment.time_index.max_entries
            and (segment.size_bytes == 0 or segment.next_offset - 1 - group[0].base_offset <= MAX_OFFSET_RANGE))


def _size_bytes(segments: list[Segment]) -> int:
    return sum(segment.size_bytes for segment in segments)


class Cleaner:
    """Cleans logs by timers after `start`. `stop` cancels a running cleaning, at the latest at the end of its current
    job.

    `submit(job, done)` runs a job in a thread, then `done(result)` on the loop. A log with damage is not cleaned again
    by this process. After any other failure, for example a full disk, the log has not changed and the cleaning is
    retried.
    """

    def __init__(self, log_manager: LogManager, config: Config, clock: Clock, timers: Timers, submit: Submit):
        self._logs = log_manager
        self._config = config
        self._clock = clock
        self._timers = timers
        self._submit = submit
        self._first_dirty: dict[Log, int] = {}
        self._written: PartitionOffsets = {}
        self._uncleanable: set[Log] = set()
        self._failed: set[Log] = set()
        """The logs whose cleaning failed. They are retried after log.cleaner.backoff.ms."""
        self._steps: Steps | None = None
        self._cleaned_log: Log | None = None
        self._timer: Timer | None = None
        self._is_running = False
        self.cleanings = self.read_bytes = self.written_bytes = 0
        """The cleanings since the start of the broker, and the bytes of the segments before and after them."""
        self.ended_ms: int | None = None
        """The wall time at which the last search for dirty logs ended; None before the first one of this process."""
        self.worst_dirty_ratio = 0.0
        """The largest dirty ratio that the last search has found, before it cleaned the logs."""

    @property
    def failed_logs(self) -> int:
        """The number of logs that cannot be cleaned because of damage, or whose last cleaning has failed."""
        return len(self._uncleanable) + len(self._failed)

    def start(self) -> None:
        """Load the cleaning progress that earlier processes have saved, and start the timer. Logs that are added later
        are treated as entirely dirty.
        """
        if not self._config.log_cleaner_enable:
            return
        try:
            self._written = read_partition_offsets(self._logs.fs, self._logs.directory, CLEANER_FILE)
        except CorruptLogError as error:
            logger.warning('%s; all logs count as dirty', error)
        self._first_dirty = {log: self._written[key] for key, log in self._logs.logs.items() if key in self._written}
        self._is_running = True
        self._look_later()

    def stop(self) -> None:
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
            self._give_up()

    # ---- from step to step ----

    def _look_later(self) -> None:
        self._failed.clear()
        self._timer = self._timers.after(self._config.log_cleaner_backoff_ms, self._look)

    def _look(self) -> None:
        """Clean all logs that need it, then wait for log.cleaner.backoff.ms."""
        self._steps = self._clean_all()
        self._resume(None)

    def _resume(self, result: Any) -> None:
        """Pass a job's result to the work in progress, and start its next job."""
        assert self._steps is not None
        if self._cleaned_log is not None and self._cleaned_log.failure is not None:
            self._give_up()
            self._timer = self._timers.after(0, self._look)
            return
        try:
            step = self._steps.throw(result) if isinstance(result, Exception) else self._steps.send(result)
        except StopIteration:
            self.ended_ms = self._clock.wall_ms()
            self._look_later()
            return
        if step is None or isinstance(step, int):
            self._timer = self._timers.after(SOON_MS if step is None else step, partial(self._resume, None))
        else:
            self._timer = None
            self._submit(partial(_run, step), self._job_ended)

    def _job_ended(self, result: Any) -> None:
        if self._is_running:
            self._timer = self._timers.after(0, partial(self._resume, result))
        else:
            self._give_up()

    def _give_up(self) -> None:
        if self._steps is not None:
            self._steps.close()
            self._steps = self._cleaned_log = None

    # ---- choosing ----

    def _clean_all(self) -> Steps:
        """Choose the logs with the largest dirty parts and clean them. Repeat this until no log needs cleaning."""
        yield from self._write_checkpoint()
        is_repeated = False
        while logs := (yield from self._choose(is_repeated=is_repeated)):
            is_repeated = True
            for log in logs:
                found = self._examine(log)      # again, because earlier logs took time
                if found is not None and found.is_due:
                    self._cleaned_log = log
                    try:
                        yield from self._clean(found)
                    except (OSError, MemoryError, KafkaError, CorruptLogError) as error:
                        self._report(log, error)
                    self._cleaned_log = None
            yield from self._write_checkpoint()

    def _choose(self, *, is_repeated: bool) -> Generator[None, None, list[Log]]:
        """Return the logs that need cleaning most, sorted by dirty ratio, largest first."""
        self._uncleanable = {log for log in self._uncleanable if log.failure is None}
        self._first_dirty = {log: offset for log, offset in self._first_dirty.items() if log.failure is None}
        due, worst = [], 0.0
        for number, log in enumerate(list(self._logs.logs.values()), 1):
            found = self._examine(log)
            if found is not None:
                worst = max(worst, found.dirty_ratio)
                if found.is_due:
                    due.append((found.dirty_ratio, -number, log))
            if number % LOGS_AT_ONCE == 0:
                yield
        if not is_repeated:
            self.worst_dirty_ratio = worst
        return [log for *_, log in heapq.nlargest(LOGS_OF_A_ROUND, due)]

    def _examine(self, log: Log) -> CleanableLog | None:
        """Return the cleanable part of a log. Return None if the log is not compacted, is offline, or could not be
        cleaned before.
        """
        if log.failure is not None or 'compact' not in log.config.cleanup_policy or (
                log in self._uncleanable or log in self._failed):
            return None
        first_dirty_offset = self._first_dirty.get(log, log.log_start_offset)
        if not log.log_start_offset <= first_dirty_offset <= log.log_end_offset:
            if 'delete' not in log.config.cleanup_policy:
                logger.warning('%s: found first dirty offset %d, expected %d to %d; the whole log counts as dirty',
                               log.directory, first_dirty_offset, log.log_start_offset, log.log_end_offset)
            self._first_dirty[log] = first_dirty_offset = log.log_start_offset
        try:
            return examine(log, first_dirty_offset, self._logs.high_watermark(log), self._clock.wall_ms())
        except (OSError, CorruptLogError) as error:
            logger.error('%s: cannot be examined for cleaning: %s', log.directory, error)
            self._failed.add(log)
            return None

    def _report(self, log: Log, error: Exception) -> None:
        if isinstance(error, CorruptLogError):
            logger.error('%s: %s; the log will not be cleaned again', log.directory, error)
            self._uncleanable.add(log)
        else:
            logger.error('%s: cleaning failed, the log is unchanged: %s', log.directory, error)
            self._failed.add(log)

    # ---- one cleaning ----

    def _clean(self, found: CleanableLog) -> Steps:
        log, config = found.log, self._config
        segments = [*found.clean, *found.dirty]
        keys = OffsetMap(config.log_cleaner_dedupe_buffer_size, config.log_cleaner_io_buffer_load_factor,
                         max_keys=segments[-1].next_offset - found.first_dirty_offset)
        aborted = _aborted_transactions(log, segments)
        yield from self._index(found, keys, aborted)
        end_offset = keys.latest_offset + 1
        segments = [segment for segment in segments if segment.base_offset < end_offset]
        last_records = yield from _last_records(log)
        retention = Retention(self._clock.wall_ms(), log.config.delete_retention_ms, self._logs.high_watermark(log),
                              last_records)
        known_offset = log.log_end_offset
        before_bytes, after_bytes = _size_bytes(segments), 0
        transactions = CleanedTransactions(aborted)
        yield from self._write_recovery_point(log)
        for group in group_segments(segments, log.config):
            try:
                writer = yield partial(self._begin_segment, log, group[0].base_offset, keys, transactions, retention)
                yield from self._write_group(writer, group)
                # `last_records` takes account of all batches below `known_offset`. The cleaning waits until these
                # batches are durable: a batch that made an older batch obsolete must survive a power cut.
                while self._logs.high_watermark(log) < known_offset:
                    yield DURABILITY_WAIT_MS
                if not _follow_one_another(log.segments[:], group):
                    logger.info('%s: cleaning is cancelled: segments were deleted meanwhile', log.directory)
                    return
                log.replace_segments(group, [writer.target])
                after_bytes += writer.target.size_bytes
            finally:
                if log.failure is None:     # otherwise a swap may have failed, and the next start needs its files
                    _remove_cleaned(log.fs, log.directory, group[0].base_offset)
        self._first_dirty[log] = end_offset
        self.cleanings += 1
        self.read_bytes += before_bytes
        self.written_bytes += after_bytes
        logger.info('%s: cleaned offsets %d to %d, from %d bytes to %d', log.directory, found.first_dirty_offset,
                    end_offset - 1, before_bytes, after_bytes)

    def _write_recovery_point(self, log: Log) -> Steps:
        """Wait until the checkpoint file has the recovery point of a log. One write of the file serves many logs.

        Cleaning can leave a gap at the end of a segment. If the segment is above the recovery point, recovery treats
        the gap as data lost in a power cut.
        """
        recovery_point, wait_ms = log.recovery_point, 0
        while self._logs.recovery_points.written(log) < recovery_point:
            self._logs.recovery_points.begin()
            yield wait_ms
            wait_ms = min(2 * wait_ms + 1, MAX_CHECKPOINT_WAIT_MS)

    def _index(self, found: CleanableLog, keys: OffsetMap, aborted: list[AbortedTransaction]) -> Steps:
        start_offset = found.first_dirty_offset
        transactions = CleanedTransactions(row for row in aborted if row.last_offset >= start_offset)
        for segment in found.dirty:
            file, position = segment.open_file(), segment.offset_index.lookup(start_offset)
            while position < segment.size_bytes:
                position, is_full = yield partial(index_batches, keys, transactions, file, position, segment.size_bytes,
                                                  start_offset, STEP_BYTES, self._window_bytes)
                if is_full:
                    return
            keys.latest_offset = segment.next_offset - 1

    def _begin_segment(self, log: Log, base_offset: int, keys: OffsetMap, transactions: CleanedTransactions,
                       retention: Retention) -> SegmentWriter:
        target = Segment(log.fs, log.directory, base_offset, log.config, retention.now_ms, suffix=CLEANED_SUFFIX)
        return SegmentWriter(target, keys, transactions, retention, self._window_bytes)

    def _write_group(self, writer: SegmentWriter, group: list[Segment]) -> Steps:
        for segment in group:
            file, position = segment.open_file(), 0
            while position < segment.size_bytes:
                position = yield partial(writer.copy, file, position, segment.size_bytes, STEP_BYTES)
        yield writer.finish

    @property
    def _window_bytes(self) -> int:
        """Return the window size in bytes: half of the buffer is for reads, half for writes."""
        return max(1, int(self._config.log_cleaner_io_buffer_size) // 2)

    def _write_checkpoint(self) -> Steps:
        offsets = {}
        for number, (log, offset) in enumerate(list(self._first_dirty.items()), 1):
            offsets[log.topic, log.partition] = offset
            if number % LOGS_AT_ONCE == 0:
                yield None
        if offsets == self._written:
            return
        try:
            yield partial(write_partition_offsets, self._logs.fs, self._logs.directory, CLEANER_FILE, offsets)
            self._written = offsets
        except OSError as error:
            logger.error('%s: cannot be written: %s', os.path.join(self._logs.directory, CLEANER_FILE), error)


def _run(job: Job) -> Any:
    """Run the job and return its result, or the exception that it raised."""
    try:
        return job()
    except Exception as error:
        return error


def _last_records(log: Log) -> Generator[None, None, dict[int, LastRecord]]:
    """Return {producer id: its last record}. A generator that yields after each small part."""
    found = {}
    for number, entry in enumerate(list(log.producer_state.entries.values()), 1):
        found[entry.producer_id] = LastRecord(entry.last_offset, entry.producer_epoch)
        if number % PRODUCERS_AT_ONCE == 0:
            yield
    return found


def _aborted_transactions(log: Log, segments: list[Segment]) -> list[AbortedTransaction]:
    """Return all aborted transactions with data in `segments`. If the marker is in a later segment, so is the row."""
    found = []
    for segment in log.segments:
        rows, complete = segment.transactions.collect(segments[0].base_offset, segments[-1].next_offset)
        found += rows
        if complete:
            break
    return found


def _follow_one_another(segments: list[Segment], group: list[Segment]) -> bool:
    return group[0] in segments and segments[segments.index(group[0]):][:len(group)] == group


def _remove_cleaned(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Remove the files that a cancelled cleaning has left. A completed swap has left no files."""
    for kind in SEGMENT_SUFFIXES:
        path = os.path.join(directory, file_name(base_offset, kind) + CLEANED_SUFFIX)
        with contextlib.suppress(OSError):
            if fs.exists(path):
                fs.unlink(path)

"""A partition's log: segments, producer state and leader epochs behind one interface.

An append has these steps:

1. Check the batch against the producer state, and give it its offset and leader epoch.
2. Roll the segment if necessary.
3. Write the batch to the file.
4. Adopt the batch: update the state in memory.

A batch that may be written later is adopted before its write, and stays in the unwritten tail until then (see
`unwritten`). A failed write or sync takes the log offline, because only the next recovery can find out what the disk
contains.
"""
import logging
import os
from struct import Struct

from libc.stdint cimport int32_t, int64_t

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
from kbroker.log.append cimport DUPLICATE, UNWRITTEN, WRITTEN, Append, Appender
from kbroker.log.fs import is_shortage
from kbroker.log.fs.file cimport File
from kbroker.log.newest_connection cimport ANY_CONNECTION, count_execution
from kbroker.log.pending_snapshots cimport PendingSnapshots
from kbroker.log.producer_entry cimport CachedBatch
from kbroker.log.recovery import LogOptions, Opening
from kbroker.log.retention import delete_segments, expired_segments, replace_segments
from kbroker.log.segment cimport Place, Segment
from kbroker.log.segment import LOG_SUFFIX
from kbroker.log.segments cimport LogSlice, Segments
from kbroker.log.shortage import shortage
from kbroker.log.stop_snapshot cimport write_stop_snapshot
from kbroker.log.timestamps import first_at_or_after, greatest
from kbroker.log.unsynced cimport Unsynced
from kbroker.log.unwritten cimport UnwrittenTail, WriteArena
from kbroker.record.batch cimport (
    ABORT_MARKER, LOG_APPEND_TIME_BIT, BatchFields, Marker, batch_last_offset, read_marker)
from kbroker.wire.bytes cimport write_int32, write_int64

logger = logging.getLogger(__name__)

PAIR = Struct('>qq')


cdef class Log(Appender):
    """An open log. The constructor creates a missing directory, and recovers the log after an unclean stop. It raises
    OSError. It raises CorruptLogError for damage that it cannot repair, or must not repair (`refuse_damage`).

    Every method may raise KafkaError KAFKA_STORAGE_ERROR, for one of two reasons. If the disk has failed, `failure` is
    set and every later call raises it. If no file descriptor was left, the next call may succeed.
    """

    def __init__(self, fs, str directory, str topic, int32_t partition, config, clock, options=None):
        self.fs = fs
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.clock = clock
        self.options = options = LogOptions() if options is None else options
        self.maker = options.maker
        self.awaits_sync = True
        if self.maker is None and not fs.exists(directory):
            fs.mkdir(directory)
            fs.sync_directory(os.path.dirname(directory))
        opening = Opening(fs, directory, config, clock, options)
        self.segments = Segments(fs, directory, config, clock, opening.segments)
        self.update_config(config)
        self.producer_state = opening.producers
        self.leader_epochs = opening.leader_epochs
        self.snapshots = opening.snapshots
        self.latest_epoch = self.leader_epochs.latest
        self.log_start_offset = opening.log_start_offset
        self.log_end_offset = self.flushed_offset = opening.log_end_offset
        if opening.is_unsynced:
            self.flushed_offset = min(<int64_t>options.recovery_point, self.log_end_offset)
        self.unwritten = UnwrittenTail()
        self.unsynced = Unsynced(fs, directory, self.leader_epochs,
                                 PendingSnapshots(directory, self.snapshots, options.start_work),
                                 -1 if self.segments.active.size_bytes else self.log_end_offset)
        self.is_unclosed = opening.is_unsynced
        self.is_rewritten = opening.is_unsynced or self.leader_epochs.is_unsynced
        self.recovery = opening if opening.is_unsynced else None
        if self.recovery is not None and not options.sync_later:
            self.recovery.rewrite()
            self.finish_recovery(False)

    def finish_recovery(self, bint is_synced) -> None:
        """End `recovery`: sync its files, unless the caller has synced the whole disk (`is_synced`). Call
        `recovery.rewrite` first. Raise OSError.
        """
        self.recovery.finish(is_synced)
        self.flushed_offset = self.log_end_offset
        self.recovery = None

    def put_off_sync(self) -> bool:
        """If only the last segment was recovered, end `recovery` without a sync and return True. The next flush then
        syncs the segment. Otherwise return False.
        """
        if not self.recovery.only_at_the_end:
            return False
        self.flushed_offset = self.unsynced.names_changed_at = self.segments.active.base_offset
        self.recovery = None
        return True

    def update_config(self, config) -> None:
        """Apply a new LogConfig. The index sizes of existing segments do not change."""
        self.config = config
        self.segments.update_config(config)
        self.flush_messages = config.flush_messages

    # ---- append ----

    cdef int append(self, Append *append) except -1:
        """Check, place, write and adopt a batch. If the outcome is UNWRITTEN, the write has not been made yet."""
        cdef Marker marker
        cdef CachedBatch known
        cdef BatchFields *batch = &append.batch
        if append.size > self.segments.segment_bytes:
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, f'found a batch of {append.size} bytes, '
                             f'expected {self.segments.segment_bytes} at most')
        self.check_online()
        batch.base_offset = self.log_end_offset
        read_marker(append.data, append.size, batch, &marker)
        append.log_start_offset = self.log_start_offset
        if batch.producer_id >= 0 and self.producer_state.check(append, &marker, &known):
            self.remember_connection(append)
            append.outcome = DUPLICATE
            append.base_offset = known.last_offset - known.offset_delta
            append.last_offset = known.last_offset
            append.append_time_ms = known.timestamp_ms
            return 0
        append.outcome = UNWRITTEN if self.unwritten.may_take(append) else WRITTEN
        try:
            self.store(append, &marker)
        except OSError as error:
            what = f'cannot append {append.size} bytes at offset {self.log_end_offset}'
            if is_shortage(error) and self.cut_unadopted(0):
                self.refuse(what, error)
            self.cut_unadopted(self.unwritten.discard())
            self.go_offline(what, error)
        self.remember_connection(append)
        append.base_offset = batch.base_offset
        append.last_offset = batch_last_offset(batch)
        append.append_time_ms = batch.max_timestamp_ms if batch.attributes & LOG_APPEND_TIME_BIT else -1
        return 0

    cdef int remember_connection(self, const Append *append) except -1:
        """Note the connection on which the producer sent an accepted batch. Do nothing if batches on this connection
        are never late.
        """
        if append.connection_id != ANY_CONNECTION:
            count_execution(&self.producer_state.find(append.batch.producer_id).newest_connection,
                            append.connection_id)
        return 0

    cdef int store(self, Append *append, const Marker *marker) except -1:
        """Write a batch, then adopt it. The adoption cannot fail. If the write raises OSError, the state is unchanged.

        The index row of an aborted transaction is written before the producer state adopts the marker. The adoption
        moves the last stable offset, so consumers see the end of the transaction only after its row exists.
        """
        cdef const BatchFields *batch = &append.batch
        cdef int64_t size = append.size
        cdef Segment active
        if append.outcome == WRITTEN or self.segments.active.first_timestamp_ms < 0:
            self.unwritten.write()      # a roll may read a timestamp from the file
        if self.segments.must_roll(batch, size):
            self.start_segment()
        active = self.segments.active
        if append.leader_epoch > self.latest_epoch:
            self.make()
            self.leader_epochs.assign(append.leader_epoch, batch.base_offset)
            self.latest_epoch = append.leader_epoch
            self.unsynced.names_changed_at = batch.base_offset
        write_int64(append.data, batch.base_offset)
        write_int32(append.data + 12, append.leader_epoch)
        active.reserve(size)
        if append.outcome == UNWRITTEN:
            self.unwritten.reserve(active.log_file, active.size_bytes)
        else:
            active.write(append.data, size)
            active.log_file.awaits_sync = self.awaits_sync
        if marker.kind == ABORT_MARKER:
            row = self.producer_state.completed_by(batch)
            if row is not None:
                active.transactions.append(row)
                active.transactions.lazy_file.awaits_sync = self.awaits_sync
        if append.outcome == UNWRITTEN:
            self.unwritten.add(append)
        active.adopt(batch, size)
        self.log_end_offset = batch_last_offset(batch) + 1
        self.producer_state.adopt(batch, marker)
        return 0

    cdef int write_later(self, WriteArena arena) except -1:
        """From now on, keep the bytes of appends that may be written later in `arena`."""
        self.unwritten.arena = arena
        return 0

    cdef int write_unwritten(self) except -1:
        """Write the unwritten tail. A failed write takes the log offline.

        After a failure, the state in memory still includes the unwritten batches. No reader sees this state: an offline
        log refuses all calls, and a recovery builds the state again.
        """
        self.check_online()
        if self.unwritten.size_bytes == 0:
            return 0
        try:
            self.unwritten.write()
            self.segments.active.log_file.awaits_sync = self.awaits_sync
        except OSError as error:
            self.cut_unadopted(self.unwritten.discard())
            self.go_offline(f'cannot append what ends at offset {self.log_end_offset}', error)
        return 0

    def make(self) -> None:
        """Create the directory and the files of a new log, unless they exist. The caller may repeat the call after an
        OSError.
        """
        if self.maker is not None:
            self.unsynced.paths = tuple(self.maker())
            self.fs.open(self.segments.active.path(LOG_SUFFIX), True)
            self.maker = None

    @property
    def is_made(self) -> bool:
        """False for a new log that has no directory yet."""
        return self.maker is None

    def roll(self) -> None:
        """Close the active segment and continue in a new one. Do nothing if the active segment is empty."""
        self.check_online()
        if self.segments.active.size_bytes:
            try:
                self.start_segment()
            except OSError as error:
                self.refuse('cannot roll', error)
                self.go_offline('cannot roll', error)

    cdef int start_segment(self) except -1:
        """Close the active segment and continue in a new one. The next flush syncs the closed segment."""
        self.unwritten.write()
        self.is_rewritten = True
        self.unsynced.add_rolled(self.segments.open_next(self.log_end_offset), self.log_end_offset,
                                 self.producer_state)
        return 0

    cdef int go_offline(self, str what, error) except -1:
        """Take the log offline because of `error`, report the failure, and raise it as KafkaError."""
        failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f'{self.directory}: {what}: {error}')
        self.take_offline(failure)
        self.options.on_failure(failure)
        raise failure from error

    def take_offline(self, failure) -> None:
        """Take the log offline, because this log or another log of the directory failed. Every later call raises
        `failure`.
        """
        if self.failure is None:
            self.failure = failure
            self.unwritten.discard()
            self.unsynced.snapshots.drop_all()

    cdef int refuse(self, str what, error) except -1:
        """Raise KafkaError if `error` means that no file descriptor was left, which is not a failure of the disk.
        Otherwise do nothing.
        """
        if is_shortage(error):
            raise shortage.refusal(self.clock, f'{self.directory}: {what}', error) from error
        return 0

    cdef bint cut_unadopted(self, int64_t unwritten_bytes) except -1:
        """Cut the bytes that a failed append may have left in the file. Return False if this fails too."""
        try:
            self.segments.active.cut_unadopted(unwritten_bytes)
            return True
        except OSError as error:
            logger.warning('%s: cannot cut an unfinished write: %s', self.directory, error)
            return False

    cdef int check_online(self) except -1:
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        return 0

    # ---- durability ----

    cdef bint must_flush(self) noexcept:
        """Return whether the log needs a flush even if its appends do not wait for the disk.

        It needs a flush after a roll, because otherwise every recovery after a crash would begin at the first segment.
        It also needs a flush when it has flush.messages unsynced records.
        """
        return len(self.unsynced.rolled) > 0 or self.log_end_offset - self.flushed_offset >= self.flush_messages

    @property
    def recovery_point(self) -> int:
        """The offset at which a recovery after a power cut must begin. All batches below this offset are synced.

        A flush syncs the batches of the active segment, but not its indexes. After the segment is closed, it must still
        be recovered until the next sync. Therefore the recovery point stays below the flushed offset.
        """
        cdef Segment oldest = self.unsynced.rolled[0] if self.unsynced.rolled else self.segments.active
        return min(self.flushed_offset, max(oldest.base_offset, self.flushed_offset - 1))

    def files_to_sync(self) -> tuple[list[File], int]:
        """Return (files, offset). Everything below `offset` is durable after any thread has synced all files, in the
        order of the list.

        Raise OSError. If no file descriptor was left, the caller may repeat the call.
        """
        self.write_unwritten()
        files = self.unsynced.files_of_rolled()
        if self.flushed_offset < self.log_end_offset:
            files += self.segments.active.files_to_sync(sealed=False)
        if self.is_made:
            files += self.unsynced.files_of_names()
        return files, self.log_end_offset

    def mark_flushed(self, int64_t offset) -> None:
        """Note that the files are synced that `files_to_sync` returned together with `offset`."""
        self.flushed_offset = max(self.flushed_offset, offset)
        if self.flushed_offset == self.log_end_offset:
            self.segments.active.was_synced()
        self.unsynced.mark_flushed(offset)

    def fail_sync(self, error) -> None:
        """Take the log offline after a failed sync: the content of the disk is unknown."""
        self.go_offline('cannot sync', error)

    def flush(self) -> None:
        """Sync all appended batches, and return when they are durable."""
        files, offset = self.files_to_sync()
        try:
            for file in files:
                file.sync()
        except OSError as error:
            self.fail_sync(error)
        self.mark_flushed(offset)

    # ---- read ----

    cpdef LogSlice read(self, int64_t offset, int64_t max_bytes, int64_t upper_bound_offset, bint min_one_batch):
        """Return whole batches of one segment, beginning with the batch that contains `offset`. Return None if there
        are no such batches.

        The batches end below `upper_bound_offset` and have at most `max_bytes`. With `min_one_batch` the first batch is
        returned even if it is larger. Raise KafkaError OFFSET_OUT_OF_RANGE for an `offset` outside the log.
        """
        self.write_unwritten()
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE,
                             f'found offset {offset}, expected {self.log_start_offset}..{self.log_end_offset}')
        upper_bound_offset = min(upper_bound_offset, self.log_end_offset)
        if offset >= upper_bound_offset:
            return None
        try:
            return self.segments.slice(offset, max_bytes, upper_bound_offset, min_one_batch)
        except (OSError, CorruptLogError) as error:
            self.fail_read(offset, error)

    cdef int fail_read(self, int64_t offset, error) except -1:
        """Raise KafkaError after a failed read. Take the log offline if the disk failed, but not if the read bytes are
        not a batch.
        """
        if isinstance(error, CorruptLogError):
            logger.error('%s', error)
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        self.refuse(f'cannot read at offset {offset}', error)
        self.go_offline(f'cannot read at offset {offset}', error)

    def written_segments(self) -> Segments:
        """Write the unwritten tail, and return the segments, whose files are then complete."""
        self.write_unwritten()
        return self.segments

    def batches(self, int64_t start_offset=0):
        """Yield (header, copy of the batch) of each batch that ends at or above `start_offset`. Stop at the offset that
        was the end of the log when the iteration began.
        """
        cdef Segment segment
        cdef Place place
        cdef int64_t end_offset = self.log_end_offset
        self.check_online()
        start_offset = max(start_offset, self.log_start_offset)
        try:
            while start_offset < end_offset:
                self.write_unwritten()
                segment = self.segments.find(start_offset)  # for each batch: cleaning may replace segments
                segment.place_of(start_offset, &place)
                start_offset = segment.next_offset
                yield from segment.walk(place.position)
        except (OSError, CorruptLogError) as error:
            self.fail_read(start_offset, error)

    cdef bytes aborted_rows(self, int64_t fetch_offset, int64_t upper_bound_offset):
        """Return the aborted transactions that touch [fetch_offset, upper_bound_offset), in marker order.

        Each transaction has a producer id and a first offset, both as big-endian int64. Raise the errors of `read`.
        """
        try:
            return self.segments.aborted_rows(fetch_offset, upper_bound_offset)
        except (OSError, CorruptLogError) as error:
            self.fail_read(fetch_offset, error)

    def aborted_transactions(self, int64_t fetch_offset, int64_t upper_bound_offset) -> list[tuple[int, int]]:
        """Return the result of `aborted_rows` as a list of (producer id, first offset)."""
        return list(PAIR.iter_unpack(self.aborted_rows(fetch_offset, upper_bound_offset)))

    def first_unstable_offset(self) -> int | None:
        """Return the first offset of the earliest unstable transaction, or the log start if that is higher. Return None
        if there is no unstable transaction.

        A transaction is unstable until the high watermark has passed its marker.
        """
        cdef int64_t first = self.producer_state.unstable.first()
        return None if first < 0 else max(first, self.log_start_offset)

    def offset_for_timestamp(self, int64_t timestamp_ms, searches):
        """Find the first record whose timestamp is at or after `timestamp_ms`, as a generator for long work.

        Return its (timestamp in ms, offset, leader epoch), None if there is no such record. Searches that take long run
        in `searches` (`timestamps.Searches`).
        """
        try:
            return (yield from first_at_or_after(self, timestamp_ms, searches))
        except (OSError, CorruptLogError) as error:
            self.fail_read(self.log_start_offset, error)

    def max_timestamp(self, searches):
        """Find the first record with the greatest timestamp. Return the same kind of result as `offset_for_timestamp`.
        """
        try:
            return (yield from greatest(self, searches))
        except (OSError, CorruptLogError) as error:
            self.fail_read(self.log_start_offset, error)

    # ---- deletion and compaction ----

    def delete_records(self, int64_t offset) -> None:
        """Move the start of the log up to `offset`. Records below `offset` can no longer be read, and retention deletes
        them later.

        Raise KafkaError OFFSET_OUT_OF_RANGE if `offset` is above the end. The checkpoint of log starts makes the new
        start durable.
        """
        self.check_online()
        if offset > self.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE,
                             f'found offset {offset}, expected {self.log_end_offset} at most')
        if offset > self.log_start_offset:
            try:
                self.leader_epochs.truncate_from_start(offset)
            except OSError as error:
                self.refuse('cannot write the leader epochs', error)
                self.go_offline('cannot write the leader epochs', error)
            self.log_start_offset = offset

    def apply_retention(self, int64_t high_watermark) -> list[Segment]:
        """Delete the segments that the cleanup policy no longer retains and the segments below the log start. Return
        the deleted segments.
        """
        self.check_online()
        try:
            expired = expired_segments(self, high_watermark, self.clock.wall_ms())
            if expired:
                if len(expired) == len(self.segments):
                    self.roll()
                self.is_rewritten = True        # even if the log already began above these segments
                self.delete_records(self.segments[len(expired)].base_offset)
                self.segments.drop_first(len(expired))
                self.unsynced.drop_segments(expired)
                delete_segments(self, expired)
            return expired
        except OSError as error:
            self.go_offline('cannot delete old segments', error)

    def replace_segments(self, list old, list new) -> None:
        """Replace the consecutive segments `old` by the cleaned segments `new`, which are sealed and have the suffix
        `.cleaned`.
        """
        self.check_online()
        try:
            opened = replace_segments(self, old, new)
        except OSError as error:
            self.go_offline('cannot replace segments', error)
        self.is_rewritten = True
        self.segments.replace(old, opened)
        self.unsynced.drop_segments(old)
        self.unsynced.snapshots.drop_below(opened[len(opened) - 1].next_offset)

    # ---- closing ----

    @property
    def is_touched(self) -> bool:
        """True if a clean stop must write something for this log. A log without appends needs no write."""
        return self.maker is None and self.failure is None and (
            self.is_unclosed or len(self.unsynced.rolled) > 0 or self.flushed_offset < self.log_end_offset
            or self.leader_epochs.is_unsynced or (self.unsynced.names_changed_at >= 0 and self.log_end_offset > 0)
            or self.segments.active.is_appended_to)

    def seal(self) -> None:
        """Make the writes of a clean stop that come before its sync."""
        self.write_unwritten()
        self.is_unclosed = True
        try:
            self.segments.active.seal()
        except OSError as error:
            self.go_offline('cannot close', error)

    def close(self, bint clean=True, bint is_synced=False) -> None:
        """Close the log: sync everything, write a snapshot and trim the files, so that the next start can trust them.

        `is_synced` means that the log was sealed and all its files are already synced. With `clean=False`, write
        nothing.
        """
        if clean and self.failure is None:
            self.write_unwritten()
            try:
                if is_synced:
                    self.mark_flushed(self.log_end_offset)
                elif self.is_touched:
                    self.segments.active.seal()
                    self.flush()
                    for file in self.segments.active.files_to_sync(sealed=True):
                        file.sync()
                if self.is_made:
                    self.segments.active.make_index()
                self.write_snapshot(is_synced)
            except OSError as error:
                self.go_offline('cannot close', error)
        self.take_offline(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f'{self.directory}: the log is closed'))

    cdef int write_snapshot(self, bint is_synced) except -1:
        """Write the snapshot from which the next start replays, unless the log is empty.

        Write the snapshot even after the sync that all logs share: a lost snapshot only makes the next opening slower.
        """
        if self.log_end_offset <= self.log_start_offset or not write_stop_snapshot(
                self.producer_state, self.snapshots, self.segments, self.log_start_offset,
                self.config.max_message_bytes):
            return 0
        self.is_rewritten = True
        if not is_synced:
            self.fs.sync_directory(self.directory)
        return 0

    def __repr__(self):
        return (f'<Log {self.topic}-{self.partition}, offsets {self.log_start_offset}..{self.log_end_offset}, '
                f'{len(self.segments)} segments>')

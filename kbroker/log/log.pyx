"""A partition's log: segments, producer state and leader epochs behind one door.

An append goes: judge (producer state, nothing changes), place offset and epoch in the caller's buffer, roll if due, write, adopt. A
failed write or sync adopts nothing and takes the log offline: what the disk holds is then known only to the next recovery. Of appends
that are gathered the write comes last, one for all of them.
"""
import logging
import os
import random
from struct import Struct

from libc.stdint cimport int32_t, int64_t, uint8_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from kbroker.errors import CorruptLogError, ErrorCode, KafkaError
from kbroker.log.append cimport DUPLICATE, UNWRITTEN, WRITTEN, Append, Appender
from kbroker.log.fs cimport File
from kbroker.log.fs import is_shortage
from kbroker.log.log_slice cimport LogSlice
from kbroker.log.producer_state cimport (
    ABORT_MARKER, CachedBatch, Marker, ProducerStateTable, read_marker)
from kbroker.log.recovery import Opening
from kbroker.log.retention import delete_segments, expired_segments, replace_segments
from kbroker.log.segment cimport Place, Segment
from kbroker.log.segment import LOG_SUFFIX
from kbroker.log.shortage import shortage
from kbroker.log.transaction_index cimport TransactionIndex
from kbroker.log.unwritten cimport UnwrittenTail, WriteArena
from kbroker.record.batch cimport LOG_APPEND_TIME_BIT, BatchFields, batch_last_offset
from kbroker.record.records import decode_records
from kbroker.wire.bytes cimport write_int32, write_int64

logger = logging.getLogger(__name__)

ABORTED = Struct('>qq')

cdef enum:
    ABORTED_BYTES = 16


cdef class Log(Appender):
    """Opened, or created in an empty or missing directory, by its constructor, which recovers it after an unclean stop.

    Every method may raise KafkaError KAFKA_STORAGE_ERROR: the disk failed, `failure` is set and stays; or there was no file
    descriptor left, and the next call may succeed. The constructor raises OSError, and CorruptLogError for damage that it cannot mend
    (or must not: `refuse_damage`).
    """

    def __init__(self, fs, str directory, str topic, int32_t partition, config, clock, *, int64_t log_start_offset=0,
                 int64_t recovery_point=0, bint clean_shutdown=True, removals=None, bint refuse_damage=False,
                 int64_t producer_expiration_ms=86400000, maker=None, bint sync_later=False,
                 on_failure=None):
        """`removals` take deleted files away file.delete.delay.ms later; without them they go at once.

        With a `maker` the log is a new one, and touches nothing before its first append, or `make`: then the maker is called, which
        makes its directory and returns the other files that the first flush has to sync, by path. With `sync_later` what was recovered
        is not durable before `finish_recovery`. `on_failure` is called with the KafkaError when the disk has failed.
        """
        self.fs = fs
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.clock = clock
        self.removals = removals
        self.maker = maker
        self.unsynced_paths = ()
        self.awaits_sync = True
        self.on_failure = on_failure
        self.update_config(config)
        if maker is None and not fs.exists(directory):
            fs.mkdir(directory)
            fs.sync_directory(os.path.dirname(directory))
        opening = Opening(fs, directory, config, clock, log_start_offset, recovery_point, clean_shutdown, refuse_damage,
                          producers=ProducerStateTable(producer_expiration_ms), is_new=maker is not None)
        self.segments = opening.segments
        self.producer_state = opening.producers
        self.leader_epochs = opening.leader_epochs
        self.snapshots = opening.snapshots
        self.active = self.segments[len(self.segments) - 1]
        self.set_roll_jitter()
        self.latest_epoch = self.leader_epochs.latest
        self.log_start_offset = opening.log_start_offset
        self.log_end_offset = opening.log_end_offset
        self.flushed_offset = self.log_end_offset
        self.unwritten = UnwrittenTail()
        self.rolled = []
        self.pending_snapshots = []
        self.directory_changed_at = -1 if self.active.size_bytes else self.log_end_offset
        self.recovery = opening if opening.is_unsynced else None
        self.is_unclosed = opening.is_unsynced
        if not sync_later:
            self.finish_recovery(False)

    def finish_recovery(self, bint is_synced) -> None:
        """Of a log that was opened with `sync_later`: what was recovered is made durable, unless it is. Raises OSError."""
        if self.recovery is not None:
            if not is_synced:
                for file in self.recovery.files_to_sync():
                    file.sync()
            self.recovery.finish()
            self.recovery = None

    def put_off_sync(self) -> bool:
        """Leave what was recovered to the next flush: for a log that nobody expects to be durable. False where that cannot be."""
        if self.recovery is None or not self.recovery.only_at_the_end:
            return False
        self.flushed_offset = self.directory_changed_at = self.active.base_offset
        self.recovery = None
        return True

    @property
    def awaits_recovery(self) -> bool:
        return self.recovery is not None

    def update_config(self, config) -> None:
        """Take a new LogConfig. Segments that exist keep the index sizes they were made with."""
        self.config = config
        self.segment_bytes = config.segment_bytes
        self.segment_ms = config.segment_ms
        if 'compact' in config.cleanup_policy:      # what is to be compacted in time has to be in a closed segment in time
            self.segment_ms = min(self.segment_ms, config.max_compaction_lag_ms)
        self.flush_messages = config.flush_messages

    cdef int set_roll_jitter(self) except -1:
        """Roll a little earlier than segment.ms, so that partitions made together do not all roll together."""
        if self.config.segment_jitter_ms > 0:
            self.active.jitter_ms = random.randrange(min(self.config.segment_jitter_ms, self.segment_ms))
        return 0

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    # ---- append ----

    cdef int append(self, Append *append) except -1:
        """Judge, place, write and adopt a batch. With UNWRITTEN as the outcome, all but the write is done."""
        cdef Marker marker
        cdef CachedBatch known
        cdef BatchFields *batch = &append.batch
        if append.size > self.segment_bytes:
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE,
                             f'found a batch of {append.size} bytes, expected {self.segment_bytes} at most')
        self.check_online()
        batch.base_offset = self.log_end_offset
        read_marker(append.data, append.size, batch, &marker)
        append.log_start_offset = self.log_start_offset
        if batch.producer_id >= 0 and self.producer_state.check(append, &marker, &known):
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
        append.base_offset = batch.base_offset
        append.last_offset = batch_last_offset(batch)
        append.append_time_ms = batch.max_timestamp_ms if batch.attributes & LOG_APPEND_TIME_BIT else -1
        return 0

    cdef int store(self, Append *append, const Marker *marker) except -1:
        """Write, then adopt. Nothing of what is adopted can fail; before it, an OSError leaves the state as it was.

        An aborted transaction has its row before a consumer can see its end: the row is written before the last stable
        offset, which is derived from the producer state, can move.
        """
        cdef const BatchFields *batch = &append.batch
        cdef int64_t size = append.size
        if append.outcome == WRITTEN or self.active.first_timestamp_ms < 0:
            self.unwritten.write()      # what rolls without a timestamp looks for one in the file
        if self.active.must_roll(batch, size, self.segment_bytes, self.segment_ms,
                                 self.clock.wall_ms() if batch.max_timestamp_ms < 0 else 0):
            self.start_segment()
        if append.leader_epoch > self.latest_epoch:
            self.make()
            self.leader_epochs.assign(append.leader_epoch, batch.base_offset)
            self.latest_epoch = append.leader_epoch
            self.directory_changed_at = batch.base_offset
        write_int64(append.data, batch.base_offset)
        write_int32(append.data + 12, append.leader_epoch)
        self.active.reserve(size)
        if append.outcome == UNWRITTEN:
            self.unwritten.reserve(self.active.log_file, self.active.size_bytes)
        else:
            self.active.write(append.data, size)
            self.active.log_file.awaits_sync = self.awaits_sync
        if marker.kind == ABORT_MARKER:
            row = self.producer_state.completed_by(batch)
            if row is not None:
                self.active.transactions.append(row)
                self.active.transactions.lazy_file.awaits_sync = self.awaits_sync
        if append.outcome == UNWRITTEN:
            self.unwritten.add(append)
        self.active.adopt(batch, size)
        self.log_end_offset = batch_last_offset(batch) + 1
        self.producer_state.adopt(batch, marker)
        return 0

    cdef int write_later(self, WriteArena arena) except -1:
        """Let appends that allow it be written later, from memory of `arena`."""
        self.unwritten.arena = arena
        return 0

    cdef int write_unwritten(self) except -1:
        """Write what appends have left unwritten.

        A failed write refuses all of it and takes the log offline. The state stays as if it had been written: a log that
        is offline answers nothing until a recovery has built that state again.
        """
        self.check_online()
        if self.unwritten.size_bytes == 0:
            return 0
        try:
            self.unwritten.write()
            self.active.log_file.awaits_sync = self.awaits_sync
        except OSError as error:
            self.cut_unadopted(self.unwritten.discard())
            self.go_offline(f'cannot append what ends at offset {self.log_end_offset}', error)
        return 0

    def make(self) -> None:
        """Make the directory and the files of a new log, unless they are there. Raises OSError; what was made is made again then."""
        if self.maker is not None:
            self.unsynced_paths = tuple(self.maker())
            self.fs.open(self.active.path(LOG_SUFFIX), True)
            self.maker = None

    @property
    def is_made(self) -> bool:
        """Whether it has a directory."""
        return self.maker is None

    def roll(self) -> None:
        """Close the active segment and go on in a new one, unless it is empty."""
        self.check_online()
        if self.active.size_bytes:
            try:
                self.start_segment()
            except OSError as error:
                self.refuse('cannot roll', error)
                self.go_offline('cannot roll', error)

    cdef int start_segment(self) except -1:
        """The old segment still has to be synced; the snapshot waits for that, for it must not get ahead of the synced log."""
        self.unwritten.write()
        self.active.seal()
        new = Segment(self.fs, self.directory, self.log_end_offset, self.config, self.clock.wall_ms())
        self.rolled.append(self.active)
        self.pending_snapshots.append((self.log_end_offset, self.producer_state.encode_snapshot()))
        self.directory_changed_at = self.log_end_offset
        self.segments.append(new)
        self.active = new
        self.set_roll_jitter()
        return 0

    cdef int go_offline(self, str what, error) except -1:
        """Remember the failure, tell of it, and raise it; every later call does."""
        failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f'{self.directory}: {what}: {error}')
        self.take_offline(failure)
        if self.on_failure is not None:
            self.on_failure(failure)
        raise failure from error

    def take_offline(self, failure) -> None:
        """Another log of the directory failed: every later call raises `failure`."""
        if self.failure is None:
            self.failure = failure
            self.unwritten.discard()

    cdef int refuse(self, str what, error) except -1:
        """Raise the answer to a lack of file descriptors, if that is what the error says: it is none of the disk's."""
        if is_shortage(error):
            raise shortage.refusal(self.clock, f'{self.directory}: {what}', error) from error
        return 0

    cdef bint cut_unadopted(self, int64_t unwritten_bytes) except -1:
        """Cut what a failed append may have left in the file, if the disk still can. Returns whether it could."""
        try:
            self.active.cut_unadopted(unwritten_bytes)
            return True
        except OSError as error:
            logger.warning('%s: cannot cut an unfinished write: %s', self.directory, error)
            return False

    cdef int check_online(self) except -1:
        if self.failure is not None:
            raise self.failure
        return 0

    # ---- durability ----

    cdef bint must_flush(self) noexcept:
        """Whether a log that answers from the page cache must be flushed all the same: after a roll, so that recovery after a crash need
        not begin at the first segment, and after flush.messages."""
        return len(self.rolled) > 0 or self.log_end_offset - self.flushed_offset >= self.flush_messages

    @property
    def recovery_point(self) -> int:
        """The base offset of the oldest segment that was not synced since it was closed.

        A flush syncs the batches of the active segment but not its indexes, so a segment that was flushed to its end and
        then closed still has to be recovered after a power cut.
        """
        cdef Segment oldest = self.rolled[0] if self.rolled else self.active
        return min(self.flushed_offset, oldest.base_offset)

    def files_to_sync(self) -> tuple[list[File], int]:
        """(files, offset): once all files are synced, in this order and by any thread, everything below `offset` is durable.

        Raises OSError; where that tells of a lack of descriptors, it may be asked again.
        """
        self.write_unwritten()
        files = []
        for segment in self.rolled:
            files += segment.files_to_sync(sealed=True)
        if self.flushed_offset < self.log_end_offset:
            files += self.active.files_to_sync(sealed=False)
        if self.directory_changed_at >= 0 and self.maker is None:
            if self.leader_epochs.is_unsynced:
                files.append(self.leader_epochs.sync_file())
            files.append(self.fs.open_directory(self.directory))
            if self.unsynced_paths:
                files += [self.fs.open(path) for path in self.unsynced_paths]
                files.append(self.fs.open_directory(os.path.dirname(self.directory)))
        return files, self.log_end_offset

    def mark_flushed(self, int64_t offset) -> None:
        """The files that `files_to_sync` gave together with `offset` are synced. Writes the snapshots that waited for it."""
        self.flushed_offset = max(self.flushed_offset, offset)
        if self.flushed_offset == self.log_end_offset:
            self.active.was_synced()
        if self.rolled:
            self.forget_rolled(offset)
        if self.directory_changed_at < offset:
            self.directory_changed_at = -1
            self.leader_epochs.is_unsynced = False
            self.unsynced_paths = ()
        while self.pending_snapshots and self.pending_snapshots[0][0] <= offset:
            snapshot_offset, data = self.pending_snapshots.pop(0)
            self.write_snapshot(snapshot_offset, data)

    cdef int forget_rolled(self, int64_t offset) except -1:
        """A segment, or a name, made after files_to_sync was asked begins at `offset` or above: it waits for the next round."""
        cdef Segment segment
        waiting = []
        for segment in self.rolled:
            if segment.next_offset >= offset:
                waiting.append(segment)
            else:
                segment.was_synced()
        self.rolled = waiting
        return 0

    cdef int write_snapshot(self, int64_t offset, bytes data) except -1:
        """A snapshot that cannot be written costs the next opening time, no more."""
        try:
            self.snapshots.write(offset, data)
        except OSError as error:
            logger.warning('%s: cannot write the snapshot of offset %d: %s', self.directory, offset, error)
        return 0

    def fail_sync(self, error) -> None:
        """A sync of one of the files failed: the log goes offline, for nobody knows what is on the disk."""
        self.go_offline('cannot sync', error)

    def flush(self) -> None:
        """Sync everything appended, here and now."""
        files, offset = self.files_to_sync()
        try:
            for file in files:
                file.sync()
        except OSError as error:
            self.fail_sync(error)
        self.mark_flushed(offset)

    # ---- read ----

    cdef Py_ssize_t segment_number(self, int64_t offset) noexcept:
        """Of the last segment that begins at or below `offset`; of the first one if none does."""
        cdef Py_ssize_t low = 0, high = len(self.segments), middle
        if self.active.base_offset <= offset:
            return high - 1
        while high - low > 1:
            middle = (low + high) >> 1
            if (<Segment>self.segments[middle]).base_offset <= offset:
                low = middle
            else:
                high = middle
        return low

    cdef Segment segment_for(self, int64_t offset):
        return <Segment>self.segments[self.segment_number(offset)]

    cpdef LogSlice read(self, int64_t offset, int64_t max_bytes, int64_t upper_bound_offset, bint min_one_batch):
        """Whole batches from `offset` on that end below `upper_bound_offset`, of one segment, at most `max_bytes` of them; None where
        there are none. With `min_one_batch` the first one comes even if it is larger. Raises KafkaError OFFSET_OUT_OF_RANGE."""
        self.write_unwritten()
        if offset < self.log_start_offset or offset > self.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE,
                             f'found offset {offset}, expected {self.log_start_offset}..{self.log_end_offset}')
        upper_bound_offset = min(upper_bound_offset, self.log_end_offset)
        if offset >= upper_bound_offset:
            return None
        try:
            return self.slice(offset, max_bytes, upper_bound_offset, min_one_batch)
        except (OSError, CorruptLogError) as error:
            self.fail_read(offset, error)

    cdef int fail_read(self, int64_t offset, error) except -1:
        """A disk that cannot be read takes the log offline; bytes that are no batch are CORRUPT_MESSAGE, and the rest stays readable."""
        if isinstance(error, CorruptLogError):
            logger.error('%s', error)
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        self.refuse(f'cannot read at offset {offset}', error)
        self.go_offline(f'cannot read at offset {offset}', error)

    cdef LogSlice slice(self, int64_t offset, int64_t max_bytes, int64_t upper_bound_offset, bint min_one_batch):
        cdef Place start, end
        cdef Segment segment
        cdef LogSlice found
        segment = self.segment_for(offset)
        segment.place_of(offset, &start)
        while start.position == segment.size_bytes and segment is not self.active:     # compaction removed the end of the segment
            segment = self.segments[self.segments.index(segment) + 1]
            segment.place_of(offset, &start)
        end.position, end.offset = segment.size_bytes, segment.next_offset
        if upper_bound_offset < segment.next_offset:
            segment.place_of(upper_bound_offset, &end)
        if start.position >= end.position:
            return None
        if end.position - start.position > max_bytes:
            segment.place_below(start.position + max_bytes, &end)
            if end.position <= start.position:
                if not min_one_batch:
                    return None
                segment.place_behind(&start, &end)
        found = LogSlice.__new__(LogSlice)
        found.file = segment.file()
        found.position, found.size_bytes = start.position, end.position - start.position
        found.start_offset, found.end_offset = start.offset, end.offset
        return found

    def batches(self, int64_t start_offset=0):
        """(header, copy of the batch) of each batch that ends at or above `start_offset`, up to the end as it is now."""
        cdef Segment segment
        cdef Place place
        cdef int64_t end_offset = self.log_end_offset
        self.check_online()
        start_offset = max(start_offset, self.log_start_offset)
        try:
            while start_offset < end_offset:
                self.write_unwritten()
                segment = self.segment_for(start_offset)    # anew each time: cleaning and retention go on meanwhile
                segment.place_of(start_offset, &place)
                start_offset = segment.next_offset
                yield from segment.walk(place.position)
        except (OSError, CorruptLogError) as error:
            self.fail_read(start_offset, error)

    cdef bytes aborted_rows(self, int64_t fetch_offset, int64_t upper_bound_offset):
        """The aborted transactions that touch [fetch_offset, upper_bound_offset), in marker order: for each the producer id and the first
        offset, as big-endian int64s. Raises as `read` does."""
        cdef Py_ssize_t first = self.segment_number(fetch_offset), count = 0
        cdef bytes rows
        try:
            self.walk_aborted(first, fetch_offset, upper_bound_offset, NULL, &count)
            if count == 0:
                return b''
            rows = PyBytes_FromStringAndSize(NULL, count * ABORTED_BYTES)
            self.walk_aborted(first, fetch_offset, upper_bound_offset, <uint8_t *>PyBytes_AS_STRING(rows), &count)
        except (OSError, CorruptLogError) as error:
            self.fail_read(fetch_offset, error)
        return rows

    cdef int walk_aborted(self, Py_ssize_t first, int64_t fetch_offset, int64_t upper_bound_offset, uint8_t *into, Py_ssize_t *count) except -1:
        cdef TransactionIndex index
        cdef Py_ssize_t number, found
        count[0] = 0
        for number in range(first, len(self.segments)):
            index = (<Segment>self.segments[number]).transactions
            if index.is_read and index.count == 0:      # nearly all of them: there can be many behind a reader far from the end
                continue
            found = index.touching(fetch_offset, upper_bound_offset, NULL if into == NULL else into + count[0] * ABORTED_BYTES)
            count[0] += found
            if index.is_complete(upper_bound_offset):
                break
        return 0

    def aborted_transactions(self, int64_t fetch_offset, int64_t upper_bound_offset) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that touch [fetch_offset, upper_bound_offset), in marker order."""
        return list(ABORTED.iter_unpack(self.aborted_rows(fetch_offset, upper_bound_offset)))

    def first_unstable_offset(self) -> int | None:
        """Where the earliest transaction begins that is open, or whose marker the high watermark has not passed; never below the start."""
        cdef int64_t first = self.producer_state.first_unstable()
        return None if first < 0 else max(first, self.log_start_offset)

    cpdef on_high_watermark(self, int64_t high_watermark):
        """Completed transactions whose marker is below it no longer hold back the last stable offset."""
        self.producer_state.on_high_watermark(high_watermark)

    def offset_for_timestamp(self, int64_t timestamp_ms) -> tuple[int, int, int] | None:
        """(timestamp in ms, offset, leader epoch) of the first record at or after `timestamp_ms`, None when there is none."""
        self.write_unwritten()
        try:
            for segment in list(self.segments):
                found = self.find_timestamp(segment, timestamp_ms)
                if found is not None:
                    return found
            return None
        except (OSError, CorruptLogError) as error:
            self.fail_read(self.log_start_offset, error)

    cdef object find_timestamp(self, Segment segment, int64_t timestamp_ms):
        cdef int64_t offset = self.log_start_offset
        while True:
            found = segment.batch_with_timestamp(timestamp_ms, offset)
            if found is None:
                return None
            header, batch = found
            for record in decode_records(batch):
                if record.timestamp_ms >= timestamp_ms and record.offset >= self.log_start_offset:
                    return record.timestamp_ms, record.offset, header.partition_leader_epoch
            offset = header.last_offset + 1

    def max_timestamp(self) -> tuple[int, int, int] | None:
        """(timestamp in ms, offset, leader epoch) of the first record with the greatest timestamp, None for an empty log."""
        self.write_unwritten()
        segment = max(self.segments, key=lambda each: each.max_timestamp_ms)
        if segment.max_timestamp_ms < 0:
            return None
        try:
            found = segment.batch_at_or_after(segment.max_timestamp_offset)
        except (OSError, CorruptLogError) as error:
            self.fail_read(segment.max_timestamp_offset, error)
        if found is None:
            return None
        _, header, batch = found
        records = decode_records(batch)
        if not records:
            return None
        record = max(records, key=lambda each: each.timestamp_ms)
        return record.timestamp_ms, record.offset, header.partition_leader_epoch

    # ---- what leaves the log ----

    def delete_records(self, int64_t offset) -> None:
        """Move the start of the log up to `offset`: what is below it can no longer be read, and retention deletes it.

        Raises KafkaError OFFSET_OUT_OF_RANGE above the end. The new start is durable once the checkpoint of log starts is written.
        """
        self.check_online()
        if offset > self.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f'found offset {offset}, expected {self.log_end_offset} at most')
        if offset > self.log_start_offset:
            try:
                self.leader_epochs.truncate_from_start(offset)
            except OSError as error:
                self.refuse('cannot write the leader epochs', error)
                self.go_offline('cannot write the leader epochs', error)
            self.log_start_offset = offset

    def apply_retention(self, int64_t high_watermark) -> list[Segment]:
        """Delete what the cleanup policy lets go, and what lies below the start. Returns the segments that went."""
        self.check_online()
        try:
            expired = expired_segments(self, high_watermark, self.clock.wall_ms())
            if expired:
                if len(expired) == len(self.segments):
                    self.roll()
                self.delete_records(self.segments[len(expired)].base_offset)
                self.segments = self.segments[len(expired):]
                self.rolled = [segment for segment in self.rolled if segment not in expired]
                delete_segments(self, expired)
            return expired
        except OSError as error:
            self.go_offline('cannot delete old segments', error)

    def replace_segments(self, list old, list new) -> None:
        """Put cleaned segments, made with the suffix `.cleaned` and sealed, in the place of `old`, which follow one another."""
        self.check_online()
        try:
            opened = replace_segments(self, old, new)
        except OSError as error:
            self.go_offline('cannot replace segments', error)
        first = self.segments.index(old[0])
        self.segments[first:first + len(old)] = opened
        self.rolled = [segment for segment in self.rolled if segment not in old]
        self.pending_snapshots = [(offset, data) for offset, data in self.pending_snapshots
                                  if offset >= opened[len(opened) - 1].next_offset]

    @property
    def is_touched(self) -> bool:
        """Whether a clean stop has something to write: a log that nobody appended to is left as it is."""
        return self.maker is None and self.failure is None and (
            self.is_unclosed or len(self.rolled) > 0 or self.flushed_offset < self.log_end_offset or self.leader_epochs.is_unsynced
            or (self.directory_changed_at >= 0 and self.log_end_offset > 0)
            or self.active.is_appended_to)

    def seal(self) -> None:
        """What a clean stop writes before the sync."""
        self.write_unwritten()
        self.is_unclosed = True
        try:
            self.active.seal()
        except OSError as error:
            self.go_offline('cannot close', error)

    def close(self, bint clean=True, bint is_synced=False) -> None:
        """Sync everything, take a snapshot, trim the files: what a clean start trusts. With `clean=False` only let go.

        With `is_synced` the log was sealed, and all its files are synced already.
        """
        if clean and self.failure is None:
            self.write_unwritten()
            try:
                if is_synced:
                    self.mark_flushed(self.log_end_offset)
                elif self.is_touched:
                    self.active.seal()
                    self.flush()
                    for file in self.active.files_to_sync(sealed=True):
                        file.sync()
                self.write_last_snapshot(is_synced)
            except OSError as error:
                self.go_offline('cannot close', error)
        self.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f'{self.directory}: the log is closed')
        self.unwritten.discard()

    cdef int write_last_snapshot(self, bint is_synced) except -1:
        """One that is lost costs the next opening time: whoever syncs for all need not sync its name."""
        if self.producer_state.end_offset > max(self.snapshots.latest, self.log_start_offset):
            self.snapshots.write(self.log_end_offset, self.producer_state.encode_snapshot())
            self.snapshots.keep_for([segment.base_offset for segment in self.segments])
            if not is_synced:
                self.fs.sync_directory(self.directory)
        return 0

    def __repr__(self):
        return f'<Log {self.topic}-{self.partition}, offsets {self.log_start_offset}..{self.log_end_offset}, {len(self.segments)} segments>'

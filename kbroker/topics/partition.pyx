"""A partition: the access to its log, its high watermark, its last stable offset, and the waiters for both offsets.

A single node has no followers, so its disk replaces them: the high watermark is the end of the flushed batches. (With
kbroker.durability=page-cache, it is the end of the written batches.) Produce with acks=all, both coordinators, and
Fetch wait for the high watermark.

A crash takes away the records that are not durable. No reader, no acknowledgement and no later record may depend on
such a record, unless a restart derives the same record again from durable records. The code keeps this rule as follows:

- The log adopts a batch before the batch is written, so the state in memory may contain records that the disk lacks.
  But readers stop at the high watermark, and acknowledgements wait for it. After a failed write or sync, the whole
  directory is offline.
- If a record depends on an earlier record of the same log, the earlier record is in the same write or in an earlier
  write.
- If a record depends on a record of another log, it is appended only after that log's high watermark has passed the
  other record. The rows and markers of a transaction are examples. The Complete row is an exception: a restart that
  finds the Prepare row sends the markers again and derives the same Complete row.
- acks=1 promises only that a record is in the page cache. An error reply promises nothing, nor does a description of
  the log such as its end offset.

A client can read every record that was acknowledged to it. So if a reader has reached the high watermark, but further
records were acknowledged with acks=1 before the reader arrived (`acknowledged_offset`), the reader waits until the disk
has these records. A reader gets only records that are on the disk.
"""
from collections import deque

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.string cimport memmove
from posix.time cimport CLOCK_MONOTONIC

from functools import partial

from kbroker.base.completion cimport Callback, Completion
from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
from kbroker.base.turn_watch cimport read_us
from kbroker.log.append cimport (
    DUPLICATE, ORIGIN_COORDINATOR, UNWRITTEN, WRITE_LATER, Append, Appender, begin_append, read_whole)
from kbroker.log.log cimport Log
from kbroker.log.segments cimport LogSlice
from kbroker.log.unwritten cimport WriteArena

from kbroker.base.long_work import result_of
from kbroker.record.batch import CorruptBatchError, read_header

cdef enum:
    COSTLY_WORK_US = 2_000


APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""Maps errors of an append to an internal topic to Kafka's errors for the clients of the coordinator.

All other errors are passed to the client unchanged.
"""


cdef class DurableQueue:
    """The completions that wait for an offset to be durable. They are sorted by offset, then by arrival.

    Nearly always, a new completion waits for the highest offset. Only a completion for a duplicate batch may wait for a
    lower offset.
    """

    def __dealloc__(self):
        while self.first < self.end:
            Py_DECREF(<object>self.awaited[self.first].completion)
            self.first += 1
        PyMem_Free(self.awaited)

    cdef int put(self, int64_t offset, Completion completion, Py_ssize_t part) except -1:
        cdef Py_ssize_t at
        if self.end == self.capacity:
            self.make_room()
        at = self.end
        while at > self.first and self.awaited[at - 1].offset > offset:
            self.awaited[at] = self.awaited[at - 1]
            at -= 1
        Py_INCREF(completion)
        self.awaited[at] = Awaited(offset, part, <PyObject *>completion)
        self.end += 1
        return 0

    cdef int make_room(self) except -1:
        """Make room for an entry at the end: move the entries to the start, or enlarge the array if fewer than half of
        its places are free.
        """
        cdef Awaited *larger
        if self.first > self.capacity // 2:
            memmove(self.awaited, self.awaited + self.first, (self.end - self.first) * sizeof(Awaited))
            self.end -= self.first
            self.first = 0
            return 0
        larger = <Awaited *>PyMem_Realloc(self.awaited, max(16, 2 * self.capacity) * sizeof(Awaited))
        if larger == NULL:
            raise MemoryError
        self.awaited = larger
        self.capacity = max(16, 2 * self.capacity)
        return 0

    cdef int complete_first(self, object error) except -1:
        """Remove the first completion before completing it, because it may be put in the queue again."""
        cdef Awaited head = self.awaited[self.first]
        cdef Completion completion = <Completion>head.completion
        Py_DECREF(completion)
        self.first += 1
        if self.first == self.end:
            self.first = self.end = 0
        return completion.complete(error, head.part, None)


    cdef list remove_overdue(self, int64_t monotonic_ms):
        """Remove the overdue completions. Return them as (completion, part)."""
        cdef Py_ssize_t i, kept = self.first
        cdef Completion completion
        cdef list overdue = []
        for i in range(self.first, self.end):
            completion = <Completion>self.awaited[i].completion
            if completion.is_overdue(monotonic_ms):
                overdue.append((completion, self.awaited[i].part))
                Py_DECREF(completion)
            else:
                self.awaited[kept] = self.awaited[i]
                kept += 1
        self.end = kept
        return overdue


# __dealloc__ needs the links to remove the waiter from its list, so the garbage collector must not clear them before.
@cython.no_gc_clear
cdef class FetchWaiter:
    """A fetch that waits until its partition's bound for readers moves or the partition is deleted.

    Subclasses define `wake`.

    A partition wakes a waiter only once. After `wake` has returned, the waiter may wait again.
    """

    def __init__(self, Partition partition=None):
        self.partition = partition

    def __dealloc__(self):
        self.unlink()

    cpdef int wait(self) except -1:
        """Request one call of `wake` when the bound of `partition` moves, or when the partition is deleted."""
        cdef WaiterLink *head = &self.partition._fetch_waiters
        if self.link.next == NULL:
            self.link.waiter = <PyObject *>self
            self.link.previous = head.previous
            self.link.next = head
            head.previous.next = &self.link
            head.previous = &self.link
        return 0

    cpdef int stop_waiting(self) except -1:
        self.unlink()
        return 0

    cdef void unlink(self) noexcept:
        if self.link.next != NULL:
            self.link.next.previous = self.link.previous
            self.link.previous.next = self.link.next
            self.link.next = self.link.previous = NULL

    cpdef wake(self):
        pass

    cdef int acknowledged(self) except -1:
        """Called when the broker acknowledges records that the disk lacks.

        The waiter may `unlink` itself, but no other waiter.
        """
        return 0


cdef class Tick:
    """The current tick of the event loop, with the partitions that have unwritten appends, in the order of their first
    appends.

    A Tick is true while there are such partitions.
    """

    def __cinit__(self):
        self.arena = WriteArena()
        self.partitions = []
        self.costly_work_ends_us = 0

    def __bool__(self):
        return len(self.partitions) > 0

    cdef int add(self, Partition partition) except -1:
        """Have `partition.end_tick` called."""
        if not partition._is_in_tick:
            partition._is_in_tick = True
            self.partitions.append(partition)
        return 0

    cdef int end_loan(self) except -1:
        """Copy the unwritten bytes of the frames served so far, because the buffer of these frames becomes invalid."""
        return self.arena.end_loan()

    cdef bint has_time(self) noexcept:
        """Return whether this tick has time for more costly work. If not, the caller must do it as long work."""
        cdef int64_t now = read_us(CLOCK_MONOTONIC)
        if self.costly_work_ends_us == 0:
            self.costly_work_ends_us = now + COSTLY_WORK_US
        return now < self.costly_work_ends_us

    cpdef write(self):
        """Write all unwritten appends, including appends that completions make during this call."""
        cdef Py_ssize_t i = 0
        cdef Partition partition
        if self.partitions:
            while i < len(self.partitions):
                partition = self.partitions[i]
                i += 1
                partition._is_in_tick = False
                partition.end_tick()
            self.partitions.clear()

    def end(self):
        """Write all unwritten appends, and begin the next tick."""
        self.write()
        self.arena.end_tick()
        self.costly_work_ends_us = 0


cdef class Partition(Appender):
    """A log and its waiters.

    If `page_cache` is true, a written append counts as durable. Otherwise `flusher` syncs it and calls `flushed` once
    the bytes are on the disk. Without a `tick`, each append is written immediately.
    """

    def __init__(self, Log log, bytes topic_id, int32_t leader_epoch, flusher, bint page_cache, Tick tick=None):
        self.topic = log.topic
        self.partition = log.partition
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        self._log = log
        # At the start the whole log is durable: recovery has read it, or a clean stop has flushed it.
        self.high_watermark = log.log_end_offset
        log.producer_state.unstable.on_high_watermark(self.high_watermark)
        self._page_cache = page_cache
        log.awaits_sync = not page_cache
        self._flusher = flusher
        self._tick = tick
        if tick is not None:
            log.write_later(tick.arena)
        self._durable_queue = DurableQueue()
        self._fetch_waiters.next = self._fetch_waiters.previous = &self._fetch_waiters

    def __repr__(self):
        return f'<Partition {self.topic}-{self.partition} {self.log_start_offset}..{self.log_end_offset}>'

    @property
    def failure(self):
        """The KafkaError that describes why the log directory failed, or None if it works."""
        return self._log.failure

    @property
    def is_offline(self):
        """True once the log directory has failed."""
        return self._log.failure is not None

    @property
    def size_bytes(self):
        """The size of the log in bytes, without its indexes."""
        return self._log.segments.size_bytes

    @property
    def segments_count(self):
        """The number of segments of the log."""
        return len(self._log.segments.all)

    @property
    def first_open_producer(self):
        """The ProducerEntry of the earliest open transaction, or None if no transaction is open."""
        return self._log.producer_state.unstable.first_producer

    @property
    def max_message_bytes(self):
        """The largest batch, in bytes, that the topic accepts (`max.message.bytes`)."""
        return self._log.config.max_message_bytes

    @property
    def log_start_offset(self):
        return self._log.log_start_offset

    @property
    def log_end_offset(self):
        return self._log.log_end_offset

    @property
    def last_stable_offset(self):
        """The first offset of the earliest open transaction, or the high watermark if no transaction is open (KIP-98).

        It is not below the log start.
        """
        return self.stable_offset()

    cdef int64_t start_offset(self) noexcept:
        """Return `log_start_offset`, for callers in C."""
        return self._log.log_start_offset

    cdef int64_t end_offset(self) noexcept:
        """Return `log_end_offset`, for callers in C."""
        return self._log.log_end_offset

    cdef int64_t stable_offset(self) except -1:
        """Return `last_stable_offset`, for callers in C."""
        cdef int64_t first_unstable = self._log.producer_state.unstable.first()
        if first_unstable < 0 or first_unstable >= self.high_watermark:
            return self.high_watermark
        return max(first_unstable, self._log.log_start_offset)

    cdef int append(self, Append *append) except -1:
        """Append a batch to the log.

        If a written append counts as durable, move the high watermark now. If the outcome is UNWRITTEN, `end_tick`
        moves it.
        """
        append.leader_epoch = self.leader_epoch
        self._log.append(append)
        if append.outcome == DUPLICATE:
            return 0
        self.unsynced_bytes += append.size
        if self._replayer is not None:
            # The caller only lends its buffer, and the replay of the batch waits until the batch is durable. So the
            # batch is copied.
            kept = PyBytes_FromStringAndSize(<char *>append.data, append.size)
            self._not_replayed.append((read_header(kept), memoryview(kept)))
        if append.outcome == UNWRITTEN:
            return self._tick.add(self)
        return self._written()

    cdef int64_t append_bytes(self, uint8_t *data, Py_ssize_t size, int transaction_version) except -1:
        """Append one batch of a coordinator. The batch is written at the end of the tick or before.

        Return the offset after the batch, for `await_durable`. After the call, the caller may reuse the bytes. Raise
        KafkaError if the append fails, CorruptBatchError if the bytes are not one batch.
        """
        cdef Append append
        begin_append(&append, data, size, ORIGIN_COORDINATOR, WRITE_LATER)
        read_whole(data, size, &append.batch)
        append.transaction_version = transaction_version
        self.append(&append)
        return append.last_offset + 1

    cdef int end_tick(self) except -1:
        """Write the unwritten appends of this tick. If the write fails, complete all waiters with the error."""
        try:
            self._log.write_unwritten()
        except KafkaError as error:
            self.fail(error)
            return 0
        return self._written()

    cdef bint is_made(self) noexcept:
        """Return whether the log's directory and files exist. If they do not, the first append creates them."""
        return self._log.maker is None

    cdef bint answers_from_page_cache(self) noexcept:
        """Return whether a written append counts as durable."""
        return self._page_cache

    cdef int acknowledge(self, int64_t end_offset) except -1:
        """Record that the records below `end_offset` are acknowledged, although the disk may lack them."""
        cdef WaiterLink *head = &self._fetch_waiters
        cdef WaiterLink *link = head.next
        cdef FetchWaiter waiter
        if end_offset > self.acknowledged_offset:
            self.acknowledged_offset = end_offset
        if end_offset > self.high_watermark:
            while link != head:
                waiter = <FetchWaiter>link.waiter
                link = link.next        # the waiter may leave
                waiter.acknowledged()
        return 0

    cdef bint hides_acknowledged(self, int64_t offset) noexcept:
        """Return whether a reader at `offset` has reached the high watermark, although further records are
        acknowledged.
        """
        return self.high_watermark <= offset < self.acknowledged_offset

    cdef int _written(self) except -1:
        """Move the high watermark or request a sync, because all appends are written."""
        if self._page_cache:
            if self._log.must_flush():
                self._flusher.request(self)
            self._advance(self._log.log_end_offset)
        else:
            self._flusher.request(self)
        return 0

    def files_to_sync(self):
        """Return (files, offset). The caller syncs all the files, then calls `flushed(offset)`.

        Raise OSError if a file cannot be opened.
        """
        self._syncing_bytes = self.unsynced_bytes
        return self._log.files_to_sync()

    def request_flush(self):
        """Request a sync from the flusher, unless the whole log is on the disk."""
        if self._log.flushed_offset < self._log.log_end_offset:
            self._flusher.request(self)

    def count_fetched(self, int64_t records, int64_t size_bytes):
        """Count records that an answer to a client contains. Callers in C change the counters themselves."""
        self.fetched_records += records
        self.fetched_bytes += size_bytes

    def flushed(self, int64_t offset):
        """Move the high watermark to `offset`, because the files of `files_to_sync` are synced: the disk has all
        records below `offset`.
        """
        self._log.mark_flushed(offset)
        self.unsynced_bytes -= self._syncing_bytes
        self._syncing_bytes = 0
        if offset > self.high_watermark:
            self._advance(offset)

    cdef int _advance(self, int64_t high_watermark) except -1:
        cdef DurableQueue queue = self._durable_queue
        # First replay, then acknowledge, then wake readers: no client may see an offset that the coordinator's state
        # does not contain.
        self.high_watermark = high_watermark
        self._log.producer_state.unstable.on_high_watermark(high_watermark)
        if self._replayer is not None:
            self._replay()
        while queue.first < queue.end and queue.awaited[queue.first].offset <= self.high_watermark:
            queue.complete_first(None)
        return self.wake_fetch_waiters()

    cdef int wake_fetch_waiters(self) except -1:
        cdef WaiterLink *head = &self._fetch_waiters
        cdef FetchWaiter waiter
        while head.next != head:
            waiter = <FetchWaiter>head.next.waiter
            waiter.unlink()
            waiter.wake()
        return 0

    cdef int _replay(self) except -1:
        while self._not_replayed and self._not_replayed[0][0].last_offset < self.high_watermark:
            header, batch = self._not_replayed.popleft()
            self._replayer(header, batch)
        return 0

    def when_durable(self, int64_t offset, done, *, int64_t overdue_ms=0):
        """Call `done(error)` when `await_durable` completes.

        The wait expires when the monotonic clock reaches `overdue_ms`. 0 means that it never expires.
        """
        cdef Callback callback = Callback(lambda error, _: done(error))
        callback.overdue_ms = overdue_ms
        self.await_durable(offset, callback, 0)

    def acknowledged(self, int64_t overdue_ms=0):
        """Wait, as long work, until the disk has all acknowledged records. Raise the errors that `durable` raises."""
        return self.durable(self.acknowledged_offset, overdue_ms)

    def durable(self, int64_t offset, int64_t overdue_ms=0):
        """Wait, as long work, until all records below `offset` are durable.

        Raise KafkaError REQUEST_TIMED_OUT when the monotonic clock reaches `overdue_ms`, unless `overdue_ms` is 0. If
        the records cannot become durable, raise the error that prevents it.
        """
        if self.high_watermark < offset:
            error = yield from result_of(partial(self.when_durable, offset, overdue_ms=overdue_ms))
            if error is not None:
                raise error.with_traceback(None)    # other waiters get the same error object

    cdef int await_durable(self, int64_t offset, Completion completion, Py_ssize_t part) except -1:
        """Complete `part` of `completion` when the high watermark has reached `offset`: the error is then None.

        If the log directory fails or the partition is deleted first, complete it with a KafkaError.
        """
        if self.is_deleted:
            return completion.complete(self._deleted_error(), part, None)
        if self.high_watermark >= offset:
            return completion.complete(None, part, None)
        if self._log.failure is not None:
            return completion.complete(self._log.failure, part, None)
        return self._durable_queue.put(offset, completion, part)

    def expire_waiters(self, int64_t monotonic_ms):
        """Complete the overdue waiters with an error.

        The batches for which they wait stay in the log, and become durable later.
        """
        cdef Completion completion
        for completion, part in self._durable_queue.remove_overdue(monotonic_ms):
            completion.complete(KafkaError(ErrorCode.REQUEST_TIMED_OUT, f'{self.topic}-{self.partition} is not on the '
                                                                        'disk yet'), part, None)

    def set_replayer(self, callback):
        """From now on, call `callback(header, batch)` for each appended batch, in order, when the batch is durable."""
        self._not_replayed = deque()
        self._replayer = callback

    def batches(self, int64_t start_offset=0):
        """Return (header, memoryview) of each batch that contains offsets at or after `start_offset`."""
        return self._log.batches(max(start_offset, self._log.log_start_offset))

    def replay_all(self, replay) -> None:
        """Call `replay(header, memoryview)` for each batch of the log.

        A coordinator does this before it serves requests.

        Raise CorruptLogError, which names the file, if `replay` cannot read a batch.
        """
        for header, batch in self.batches():
            try:
                replay(header, batch)
            except CorruptBatchError as error:
                raise CorruptLogError(f'{self.file_of(header.base_offset)}: found a batch at offset '
                                      f'{header.base_offset} that cannot be read: {error}') from error

    def file_of(self, int64_t offset) -> str:
        """Return the path of the log file that contains an offset."""
        return self._log.segments.find(offset).log_file_path()

    cpdef LogSlice read(self, int64_t offset, int64_t max_bytes, int64_t upper_bound_offset, bint min_one_batch):
        """Return batches, beginning with the batch that contains `offset`, as `Log.read` does.

        `upper_bound_offset` is the high watermark. For read_committed it is the last stable offset. Raise KafkaError
        OFFSET_OUT_OF_RANGE if `offset` is below the log start or above the log end, UNKNOWN_TOPIC_OR_PARTITION if the
        partition was deleted, and KAFKA_STORAGE_ERROR if the log directory has failed.
        """
        if self.is_deleted:
            raise self._deleted_error()
        return self._log.read(offset, max_bytes, upper_bound_offset, min_one_batch)

    cdef bytes aborted_rows(self, int64_t fetch_offset, int64_t upper_bound_offset):
        """Return the aborted transactions that a reader of these offsets skips, encoded as in `Log.aborted_rows`."""
        return self._log.aborted_rows(fetch_offset, upper_bound_offset)

    def end_of_epoch(self, int32_t leader_epoch):
        """Find the largest epoch in use that is at or below `leader_epoch`. Return (epoch, offset of its end).

        Return (-1, -1) if there is no such epoch.
        """
        if leader_epoch == self.leader_epoch:
            # The current epoch has no line in the checkpoint before its first append, so the checkpoint is not used for
            # it.
            return leader_epoch, self._log.log_end_offset
        return self._log.leader_epochs.end_offset_for(leader_epoch, self._log.log_end_offset)

    def epoch_at(self, int64_t offset):
        """Return the leader epoch in which the record at `offset` was written, or -1 if it is unknown."""
        if offset == self._log.log_end_offset:
            return self.leader_epoch
        return self._log.leader_epochs.epoch_for(offset)

    def offset_for_timestamp(self, int64_t timestamp_ms, searches, int64_t overdue_ms=0):
        """Return, as long work, (timestamp in ms, offset, leader epoch) of the first record at or after `timestamp_ms`.

        Return None if there is no such record. Otherwise wait until the record is durable. Raise the errors that
        `durable` raises, and KafkaError if the log cannot be read.
        """
        found = yield from self._log.offset_for_timestamp(timestamp_ms, searches)
        return (yield from self.durable_position(found, overdue_ms))

    def max_timestamp(self, searches, int64_t overdue_ms=0):
        """Return, as long work, (timestamp in ms, offset, leader epoch) of the first record with the greatest
        timestamp.

        Wait and raise errors as `offset_for_timestamp` does.
        """
        found = yield from self._log.max_timestamp(searches)
        return (yield from self.durable_position(found, overdue_ms))

    def durable_position(self, found, int64_t overdue_ms):
        """Wait until the record that a scan has found is durable, then return it.

        Do not return another record that is already durable: that would be a wrong result.
        """
        if self.is_deleted:
            raise self._deleted_error()
        if found is not None:
            yield from self.durable(found[1] + 1, overdue_ms)
        return found

    def active_producers(self):
        """Return the state entries of the producers that the log knows."""
        return list(self._log.producer_state.entries.values())

    cpdef start_verification(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
                             bint supports_epoch_bump, int64_t now_ms):
        """Return the guard that the first append of a transaction must pass, or None if the transaction is already open
        here.

        Raise KafkaError INVALID_PRODUCER_EPOCH if the producer has been fenced (KIP-890).
        """
        return self._log.producer_state.start_verification(producer_id, producer_epoch, base_sequence,
                                                          supports_epoch_bump, now_ms)

    def check_producer_room(self, int64_t producer_id):
        """Raise KafkaError POLICY_VIOLATION if the producer is new to the log and the log has no room for another
        producer.
        """
        self._log.producer_state.check_room(producer_id)

    def update_config(self, config):
        """Apply a new LogConfig to the log."""
        self._log.update_config(config)

    def delete_records(self, int64_t offset):
        """Move the log start to `offset`, or to the high watermark if `offset` is -1.

        Raise KafkaError OFFSET_OUT_OF_RANGE if `offset` is above the high watermark or below -1.
        """
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE,
                             f'records below {offset} cannot be deleted, the high watermark is {self.high_watermark}')
        self._log.delete_records(offset)
        self.start_moved()

    def start_moved(self):
        """Wake all readers after the log start moved.

        Fetch sessions report the new start, and readers below it are out of range.
        """
        self.wake_fetch_waiters()

    def fail(self, error):
        """Complete all waiters with `error`, because the log directory has failed."""
        cdef DurableQueue queue = self._durable_queue
        while queue.first < queue.end:
            queue.complete_first(error)
        self.wake_fetch_waiters()

    def mark_deleted(self):
        """Fail all waiters because the topic was deleted. From now on, refuse reads."""
        self.is_deleted = True
        self.fail(self._deleted_error())

    def _deleted_error(self):
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'{self.topic}-{self.partition} was deleted')

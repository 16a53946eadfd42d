"""One partition: the door into its log, its high watermark, its last stable offset, and everyone who waits for them.

A single node has no followers, so the disk is the replica: the high watermark is the end of what has been flushed
(or, with kbroker.durability=page-cache, the end of the log). One mechanism, a waiter on the high watermark, serves
Produce with acks=all, both coordinators, and Fetch.
"""
from collections import deque
from heapq import heappop, heappush

from libc.stdint cimport int32_t, int64_t

from kbroker.errors import ErrorCode, KafkaError
from kbroker.log.log cimport AppendResult, Log, LogSlice
from kbroker.log.origin import Origin
from kbroker.record.batch import read_header

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


cdef class FetchSlice:
    """What one partition contributes to a Fetch: a slice of a file, or None, and the marks of the partition.

    `aborted_transactions` is a list of (producer_id, first_offset), None for read_uncommitted.
    """
    cdef readonly LogSlice records
    cdef readonly int64_t high_watermark
    cdef readonly int64_t last_stable_offset
    cdef readonly int64_t log_start_offset
    cdef readonly object aborted_transactions

    @property
    def size_bytes(self):
        return 0 if self.records is None else self.records.size_bytes


cdef class Partition:
    """A log and those who wait for it.

    `page_cache` makes each append durable in the sense of the setting at once; otherwise `flusher` is told of it and
    calls `flushed` when the bytes are on the disk.
    """
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly bytes topic_id
    cdef public int32_t leader_epoch
    cdef readonly Log log
    cdef readonly int64_t high_watermark
    cdef readonly bint is_deleted
    cdef bint _page_cache
    cdef object _flusher
    cdef list _durable_waiters        # heap of (offset, sequence, done)
    cdef int64_t _sequence
    cdef set _fetch_waiters
    cdef object _replayer
    cdef object _not_replayed         # deque of (header, batch copy) above the high watermark, only with a replayer

    def __init__(self, Log log, bytes topic_id, int32_t leader_epoch, flusher, bint page_cache):
        self.topic = log.topic
        self.partition = log.partition
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        self.log = log
        # Recovery has walked, and a clean stop has flushed, everything that the log holds.
        self.high_watermark = log.log_end_offset
        log.on_high_watermark(self.high_watermark)
        self._page_cache = page_cache
        self._flusher = flusher
        self._durable_waiters = []
        self._fetch_waiters = set()
        self._not_replayed = deque()

    def __repr__(self):
        return f'<Partition {self.topic}-{self.partition} {self.log_start_offset}..{self.log_end_offset}>'

    @property
    def is_offline(self):
        """Whether the log directory has failed."""
        return self.log.failure is not None

    @property
    def log_start_offset(self):
        return self.log.log_start_offset

    @property
    def log_end_offset(self):
        return self.log.log_end_offset

    @property
    def last_stable_offset(self):
        """Where the earliest open transaction begins, never below the log start; without one, the high watermark (KIP-98)."""
        return self._stable_offset()

    cdef int64_t _stable_offset(self) except -1:
        cdef int64_t first_unstable = self.log.producer_state.first_unstable()
        if first_unstable < 0 or first_unstable >= self.high_watermark:
            return self.high_watermark
        return max(first_unstable, self.log.log_start_offset)

    def append(self, batch, origin=Origin.COORDINATOR, *, guard=None, int transaction_version=0,
               bint verification_required=False):
        """Append one validated batch; `batch` must be writable, its base offset and leader epoch are placed in it.

        Raises KafkaError: what the producer state refuses, KAFKA_STORAGE_ERROR once the directory has failed.
        """
        cdef AppendResult result = self.log.append(batch, origin, self.leader_epoch, guard, transaction_version,
                                                   verification_required)
        if result.is_duplicate:
            return result
        if self._replayer is not None:
            # The caller's buffer is only borrowed; what waits for the disk needs a copy.
            kept = bytes(batch)
            self._not_replayed.append((read_header(kept), memoryview(kept)))
        if self._page_cache:
            if self.log.must_flush():
                self._flusher.request(self)
            self._advance(result.last_offset + 1)
        else:
            self._flusher.request(self)
        return result

    def flushed(self, int64_t offset):
        """Everything below `offset` is on the disk."""
        if offset > self.high_watermark:
            self._advance(offset)

    cdef int _advance(self, int64_t high_watermark) except -1:
        # State first (replay), then those who were promised it, then readers: nobody sees an offset before its state.
        self.high_watermark = high_watermark
        self.log.on_high_watermark(high_watermark)
        while self._not_replayed and self._not_replayed[0][0].last_offset < self.high_watermark:
            header, batch = self._not_replayed.popleft()
            self._replayer(header, batch)
        while self._durable_waiters and self._durable_waiters[0][0] <= self.high_watermark:
            heappop(self._durable_waiters)[2](None)
        if self._fetch_waiters:
            for waiter in tuple(self._fetch_waiters):
                waiter.wake()
        return 0

    def when_durable(self, int64_t offset, done):
        """Call `done(None)` once the high watermark has reached `offset`, which may be before this returns.

        `done(error)` is called instead when the log directory fails or the partition is deleted first.
        """
        if self.is_deleted:
            done(self._deleted_error())
        elif self.high_watermark >= offset:
            done(None)
        elif self.log.failure is not None:
            done(self.log.failure)
        else:
            self._sequence += 1
            heappush(self._durable_waiters, (offset, self._sequence, done))

    def set_replayer(self, callback):
        """Have `callback(header, batch)` called for each batch from now on, in order, once it is durable."""
        self._replayer = callback

    def batches(self, int64_t start_offset=0):
        """The batches that end at or after `start_offset`, as (header, memoryview), for loading."""
        return self.log.batches(max(start_offset, self.log.log_start_offset))

    def read(self, int64_t offset, int64_t max_bytes, int isolation_level, bint min_one_batch=True):
        """Batches from the one that holds `offset`, below the high watermark or, read_committed, the last stable offset.

        Raises KafkaError OFFSET_OUT_OF_RANGE outside log start..log end, KAFKA_STORAGE_ERROR.
        """
        cdef FetchSlice result = FetchSlice.__new__(FetchSlice)
        result.high_watermark = self.high_watermark
        result.last_stable_offset = self._stable_offset()
        result.log_start_offset = self.log.log_start_offset
        if self.is_deleted:
            raise self._deleted_error()
        result.records = self.log.read(
            offset, max_bytes, result.last_stable_offset if isolation_level == READ_COMMITTED else self.high_watermark,
            min_one_batch)
        if isolation_level == READ_COMMITTED:
            if result.records is None:
                result.aborted_transactions = []
            else:
                result.aborted_transactions = self.log.aborted_transactions(offset, result.records.end_offset)
        return result

    def add_fetch_waiter(self, waiter):
        """Call `waiter.wake()` when either bound of a fetch moves, or when the partition goes away."""
        self._fetch_waiters.add(waiter)

    def remove_fetch_waiter(self, waiter):
        self._fetch_waiters.discard(waiter)

    def delete_records(self, int64_t offset):
        """Move the log start to `offset` (-1: the high watermark). Raises KafkaError OFFSET_OUT_OF_RANGE."""
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE,
                             f'records below {offset} cannot be deleted, the high watermark is {self.high_watermark}')
        self.log.delete_records(offset)
        for waiter in tuple(self._fetch_waiters):
            waiter.wake()

    def fail(self, error):
        """The directory failed: answer everyone who waits for the disk."""
        waiters, self._durable_waiters = self._durable_waiters, []
        for _, _, done in sorted(waiters, key=lambda waiter: waiter[:2]):
            done(error)
        for waiter in tuple(self._fetch_waiters):
            waiter.wake()

    def mark_deleted(self):
        """The topic is gone: nobody reads or writes here again."""
        self.is_deleted = True
        self.fail(self._deleted_error())

    def _deleted_error(self):
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'{self.topic}-{self.partition} was deleted')

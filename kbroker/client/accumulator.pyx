"""The send queue of a partition: gathers records into batches, numbers them, and keeps their order across retries.

    send() --> open batch --closes: full, lingered, flushed--> waiting --take()--> in flight --> done
                                                                  ^                   |
                                                                  +--- put_back() ----+

A partition rejects a batch whose first sequence number does not follow the last sequence number of the partition. So a
batch gets its sequence numbers when it is first taken, and a retry sends it with unchanged numbers. While a batch is
being retried, no other batch of its partition is in flight. The later batches that were in flight have been rejected,
too, and are put back before the retry.
"""
from collections import deque

from libc.stdint cimport INT64_MAX, int32_t, int64_t

from kbroker.base.clock cimport Clock
from kbroker.client.partition_buffer cimport PartitionBuffer, SpareBuffers
from kbroker.record.record_writer cimport Rows, as_bytes, as_headers

from kbroker.client.producer_id import ProducerIdAndEpoch

cdef int64_t NEVER_MS = INT64_MAX

SEQUENCES = 1 << 31
"""The number of sequence numbers: the first is 0, and 2147483647 is followed by 0 again."""


cdef class ProducerBatch:
    """A batch of one partition. `ordinal` is its position in the partition's queue.

    `base_sequence`, the sequence number of the first record, is None until the batch is numbered. `is_in_doubt` means
    that the answer to its last attempt was lost, so the batch may have been written.
    """

    def __cinit__(self, int64_t created_ms, int64_t ordinal, PartitionBuffer buffer=None):
        self.created_ms = created_ms
        self.ordinal = ordinal
        self.buffer = PartitionBuffer() if buffer is None else buffer
        self.producer = ProducerIdAndEpoch()
        self.reserved_bytes_of_half = -1

    @property
    def contexts(self):
        """The context that `send` got for each record; empty if no record has a context."""
        return self.buffer.contexts

    @property
    def records_count(self):
        return self.buffer.records_count

    @property
    def size_bytes(self):
        return self.buffer.size_bytes

    @property
    def reserved_bytes(self):
        """The bytes of buffer.memory that the batch has reserved: the size that its records had when they were
        queued.
        """
        return self.buffer.records_bytes if self.reserved_bytes_of_half < 0 else self.reserved_bytes_of_half

    def number(self, producer, base_sequence):
        self.producer = producer
        self.base_sequence = base_sequence

    def encoded(self, bint transactional):
        """Return the bytes of the closed batch as they are sent in a Produce request."""
        producer_id, producer_epoch = self.producer
        return self.buffer.encoded(producer_id, producer_epoch, -1 if self.base_sequence is None else
                                   self.base_sequence, transactional)

    def halves(self, level):
        """Return two halves of a batch that is too large for its topic. Each record keeps its sequence number.
        """
        cdef ProducerBatch part
        cdef list parts = []
        cdef Py_ssize_t start = 0, left = self.reserved_bytes
        for buffer in self.buffer.halves(level):
            part = ProducerBatch(self.created_ms, self.ordinal, buffer)
            part.attempts = self.attempts
            if self.base_sequence is not None:
                part.number(self.producer, (self.base_sequence + start) % SEQUENCES)
            # Offsets and timestamps are stored as differences from the first record of a batch. So the two halves
            # together can be smaller than the whole batch.
            part.reserved_bytes_of_half = left if start else min(left, part.buffer.records_bytes)
            left -= part.reserved_bytes_of_half
            start = part.buffer.records_count
            parts.append(part)
        return parts


cdef class PartitionQueue:
    """The batches of one partition: the open batch, the waiting batches and the batches in flight.

    `producer` is the producer whose sequence numbers are in use. A new producer's numbers start at 0.
    """

    def __cinit__(self, str topic not None, int32_t partition, Py_ssize_t batch_bytes, int compression=0,
                  compression_level=None, SpareBuffers spares=None):
        self.topic = topic
        self.partition = partition
        self.waiting = deque()
        self.in_flight = []
        self.producer = ProducerIdAndEpoch()
        self.batch_bytes = batch_bytes
        self.compression = compression
        self.compression_level = compression_level
        self.spares = spares

    @property
    def is_empty(self):
        return self.open is None and not self.waiting and not self.in_flight

    def append(self, int64_t timestamp_ms, key, value, headers, context, Clock clock not None):
        """Add a record to the open batch. If the record does not fit, close the batch first, and open a new one.

        Return the size of the record in bytes.
        """
        return self.add(timestamp_ms, as_bytes(key), as_bytes(value), as_headers(headers), context, clock)

    cdef Py_ssize_t add(self, int64_t timestamp_ms, bytes key, bytes value, list headers, object context,
                        Clock clock) except -1:
        cdef Py_ssize_t size
        if self.open is None:
            self.begin(clock)
        size = self.open.buffer.append(timestamp_ms, key, value, headers, context, self.batch_bytes)
        if size == 0:
            self.close_open()
            self.begin(clock)
            size = self.open.buffer.append(timestamp_ms, key, value, headers, context, self.batch_bytes)
        return size

    cdef Py_ssize_t add_rows(self, const Rows *rows, Py_ssize_t first, Py_ssize_t end, object context,
                             Clock clock, Py_ssize_t *added_bytes) except -1:
        """Add the rows in [first, end) to the open batch until the batch is full. Close a full batch.

        Return the number of added rows.
        """
        cdef Py_ssize_t count, before
        if self.open is None:
            self.begin(clock)
        before = self.open.buffer.records_bytes
        count = self.open.buffer.append_rows(rows, first, end, context, self.batch_bytes)
        added_bytes[0] = self.open.buffer.records_bytes - before
        if count < end - first:
            self.close_open()
        return count

    cdef int begin(self, Clock clock) except -1:
        self.open = ProducerBatch(clock.monotonic_ms(), self.next_ordinal, PartitionBuffer(self.spares, self.grows))
        self.next_ordinal += 1
        return 0

    cpdef close_open(self):
        if self.open is not None:
            self.grows = self.spares is not None and self.spares.is_worth(self.open.buffer.writer.used)
            self.open.buffer.close(self.compression, self.compression_level)
            self.waiting.append(self.open)
            self.open = None

    def due_ms(self, int64_t linger_ms):
        """Return the time at which the next batch may be sent, in ms of the monotonic clock.

        0 means now. None means that the queue waits for more records or for answers.
        """
        cdef int64_t found = self.due_at_ms(linger_ms)
        return None if found == NEVER_MS else found

    cdef int64_t due_at_ms(self, int64_t linger_ms) except -1:
        """Return the same time as `due_ms`, or NEVER_MS instead of None."""
        cdef ProducerBatch first
        if self.waiting:
            first = self.waiting[0]
            if self.in_flight and (first.attempts or (<ProducerBatch>self.in_flight[0]).attempts):
                return NEVER_MS
            return first.retry_at_ms
        return NEVER_MS if self.open is None else self.open.created_ms + linger_ms

    def take(self, producer):
        """Move the first waiting batch to the batches in flight, and return it. Number it if there is a producer id.

        Raise IndexError if no batch is waiting.
        """
        cdef ProducerBatch batch = self.waiting.popleft()
        if producer.is_valid and batch.base_sequence is None:
            if self.producer != producer and not self.in_flight:
                self.producer, self.next_sequence = producer, 0
            batch.number(self.producer, self.next_sequence)
            self.next_sequence = (self.next_sequence + batch.buffer.records_count) % SEQUENCES
        self.in_flight.append(batch)
        return batch

    def finish(self, ProducerBatch batch):
        self.in_flight.remove(batch)

    def put_back(self, ProducerBatch batch, int64_t retry_at_ms):
        """Requeue a batch that was in flight, before all batches that were appended after it."""
        self.in_flight.remove(batch)
        batch.attempts += 1
        batch.retry_at_ms = retry_at_ms
        self.waiting.insert(self.place_of(batch), batch)

    def put_back_halves(self, ProducerBatch batch):
        """Replace a batch in flight that is too large by its two halves, which wait at the batch's place in the
        queue.
        """
        cdef Py_ssize_t place = self.place_of(batch)
        self.in_flight.remove(batch)
        for part in reversed(batch.halves(self.compression_level)):
            part.attempts += 1
            self.waiting.insert(place, part)

    cdef Py_ssize_t place_of(self, ProducerBatch batch) except -1:
        """Return the index at which to insert a requeued batch into `waiting`: after the requeued batches that are
        older.
        """
        return sum(1 for waiting in self.waiting if waiting.attempts and waiting.ordinal < batch.ordinal)

    def is_first_unfinished(self, ProducerBatch batch):
        """Return whether no older batch than this one is in flight or waiting for a retry."""
        return self.in_flight[0] is batch and not any(
            waiting.attempts and waiting.ordinal < batch.ordinal for waiting in self.waiting)

    def first_in_doubt(self):
        """Return the first waiting batch for which it is unknown whether the broker has written it, or None.

        Only a retry with the batch's unchanged sequence numbers shows whether it was written.
        """
        for batch in self.waiting:
            if batch.is_in_doubt:
                return batch
        return None

    def put_first(self, ProducerBatch batch not None):
        """Make a waiting batch the next one to be sent."""
        self.waiting.remove(batch)
        self.waiting.appendleft(batch)

    def forget_numbers(self):
        """Clear the sequence numbers of the waiting batches: a new producer epoch starts at 0. No batch may be in
        flight.
        """
        if self.in_flight:
            raise AssertionError(f'{len(self.in_flight)} batches of {self.topic}-{self.partition} are in flight')
        for batch in self.waiting:
            batch.base_sequence = None
        self.producer = ProducerIdAndEpoch()

    def drop_waiting(self):
        """Remove and return every batch that is not in flight."""
        self.close_open()
        dropped = list(self.waiting)
        self.waiting.clear()
        return dropped


def due_queues(list queues not None, int64_t now_ms, int64_t linger_ms):
    """Return the queues whose next batch may be sent at `now_ms`.

    A producer searches all its queues several times for each request.
    """
    cdef PartitionQueue queue
    cdef list due = []
    for queue in queues:
        if queue.due_at_ms(linger_ms) <= now_ms:
            due.append(queue)
    return due


def next_due_ms(list queues not None, int64_t after_ms, int64_t linger_ms):
    """Return the earliest time after `after_ms` at which a batch of any queue may be sent. Return None if there is no
    such time.
    """
    cdef PartitionQueue queue
    cdef int64_t found, earliest = NEVER_MS
    for queue in queues:
        found = queue.due_at_ms(linger_ms)
        if after_ms < found < earliest:
            earliest = found
    return None if earliest == NEVER_MS else earliest


def expired_queues(list queues not None, int64_t before_ms):
    """Return the queues whose first waiting batch was created before `before_ms`."""
    cdef PartitionQueue queue
    cdef list expired = []
    for queue in queues:
        if queue.waiting and (<ProducerBatch>queue.waiting[0]).created_ms < before_ms:
            expired.append(queue)
    return expired

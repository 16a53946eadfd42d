"""One partition of `__consumer_offsets` and the groups that live in it: the state is a replay of the log."""
from collections import deque

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int16_t, int64_t, uint8_t

from kbroker.clock cimport Clock
from kbroker.completion cimport Completion
from kbroker.group.offset_encoder cimport encode_offsets
from kbroker.group.offset_table cimport OffsetTable
from kbroker.group.records cimport CommittedOffset, GroupRow, OffsetKey, OffsetRow, read_row, row_bytes
from kbroker.log.append cimport read_whole
from kbroker.log.producer_state cimport COMMIT_MARKER, NO_MARKER, Marker, MarkerKind, read_marker
from kbroker.record.batch cimport CONTROL_BIT, TRANSACTIONAL_BIT, BatchFields, BatchHeader
from kbroker.topics.partition cimport Partition

from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.classic import ClassicGroup
from kbroker.group.records import restore_group
from kbroker.record.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, encode_batch
from kbroker.record.records import decode_records
from kbroker.topics.append_errors import APPEND_ERRORS

COORDINATOR_ERRORS = APPEND_ERRORS | {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""Kafka's mapping from errors of appends and transaction checks to errors for the coordinator's clients."""


def coordinator_error(error):
    """The error in the terms of COORDINATOR_ERRORS; one that is not in it stays as it is."""
    return KafkaError(COORDINATOR_ERRORS.get(error.code, error.code), str(error))


cdef class TransactionalProducer:
    """The producer of an append within a transaction, and the guard from its verification (KIP-890)."""

    def __init__(self, int64_t producer_id, int16_t producer_epoch, guard=None):
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.guard = guard


cdef class Shard:
    """One partition of `__consumer_offsets` and its groups.

    `on_group_row(group, value)` is called with each durable row of a group in memory; never while loading.

    `_appended` has what is on its way to the disk: (offset in the log, keys, committed offsets).
    """

    def __init__(self, Partition partition not None, Clock clock not None, Py_ssize_t max_batch_bytes):
        self.partition = partition
        self.groups = {}
        self.offsets = OffsetTable()
        self.on_group_row = lambda group, value: None
        self._appended = deque()
        self._clock = clock
        self._max_batch_bytes = max_batch_bytes

    def load(self):
        """Replay the log, then follow it. CorruptLogError when a row of ours cannot be read."""
        self._loading = True
        for header, batch in self.partition.batches():
            self.replay(header, batch)
        for group_id in self.offsets.group_ids():
            self._simple_group(group_id)
        self._loading = False
        self.partition.set_replayer(self.replay)

    cpdef append(self, rows, Completion done):
        """Append group rows and tombstones, at least one, in several batches if they are many.

        `done` completes when all of them are durable, or with the partition's error.
        """
        cdef int64_t end_offset = -1
        try:
            for chunk in self._chunks(rows):
                records = [(self._clock.wall_ms(), key, value) for key, value in chunk]
                end_offset = self.partition.append_batch(encode_batch(records)).last_offset + 1
        except KafkaError as error:
            done.complete(error, 0, None)
            return
        self.partition.await_durable(end_offset, done, 0)

    cpdef append_offsets(self, list keys, list offsets, Completion done, TransactionalProducer producer):
        """Append a CommittedOffset for each OffsetKey as one batch: all of them become durable, or none.

        `done` completes then, with the partition's error. Takes ownership of `offsets` and sets their `log_offset`.
        """
        cdef bint transactional = producer is not None
        cdef CommittedOffset committed
        cdef bytearray batch = self.encode(keys, offsets, producer)
        cdef int64_t log_offset = self.partition.log_end_offset
        # Before the append, which may be durable, and replayed, before it returns.
        appended = (log_offset, keys, offsets)
        self._appended.append(appended)
        self.offsets.note_appended(keys, transactional)
        for committed in offsets:
            committed.log_offset = log_offset
            log_offset += 1
        try:
            self.partition.append_batch(batch, guard=None if producer is None else producer.guard)
        except KafkaError as error:
            self._appended.remove(appended)
            for key in keys:
                self.offsets.note_landed(key, transactional)
            done.complete(error, 0, None)
            return
        self.partition.await_durable(log_offset, done, 0)

    cdef bytearray encode(self, list keys, list offsets, TransactionalProducer producer):
        cdef int64_t now_ms = self._clock.wall_ms()
        if producer is None:
            return encode_offsets(keys, offsets, now_ms, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        return encode_offsets(keys, offsets, now_ms, producer.producer_id, producer.producer_epoch)

    def _chunks(self, rows):
        chunk = []
        size_bytes = 0
        for row in rows:
            if chunk and size_bytes + row_bytes(row) > self._max_batch_bytes:
                yield chunk
                chunk, size_bytes = [], 0
            chunk.append(row)
            size_bytes += row_bytes(row)
        if chunk:
            yield chunk

    # Replay: the only way in for what is durable

    def replay(self, BatchHeader header not None, batch):
        """Adopt one batch of the log. What this coordinator appended itself need not be read again."""
        cdef MarkerKind kind
        if header.attributes & CONTROL_BIT:
            kind = kind_of(batch)
            if kind != NO_MARKER:
                self.offsets.end_transaction(header.producer_id, kind == COMMIT_MARKER)
        elif self._appended and (<tuple>self._appended[0])[0] == header.base_offset:
            _, keys, offsets = self._appended.popleft()
            self.replay_appended(header, keys, offsets)
        else:
            self.replay_records(header, batch)

    cdef replay_appended(self, BatchHeader header, list keys, list offsets):
        cdef Py_ssize_t i
        for i in range(len(keys)):
            self.replay_offset(header, keys[i], offsets[i])

    cdef replay_records(self, BatchHeader header, batch):
        for record in decode_records(batch):
            row = read_row(record.key, record.value, record.offset)
            if isinstance(row, OffsetRow):
                self.replay_offset(header, (<OffsetRow>row).key, (<OffsetRow>row).committed)
            elif isinstance(row, GroupRow):
                self.replay_group(row)

    cdef replay_offset(self, BatchHeader header, OffsetKey key, CommittedOffset committed):
        cdef bint transactional = header.attributes & TRANSACTIONAL_BIT
        if committed is None:
            self.offsets.forget(key)
            return
        self.offsets.note_landed(key, transactional)
        if transactional:
            self.offsets.add_pending(header.producer_id, key, committed)
        else:
            self.offsets.commit(key, committed)
        self._simple_group(key.group_id)

    cdef replay_group(self, GroupRow row):
        if row.value is None:
            self.groups.pop(row.group_id, None)
        elif self._loading:
            self.groups[row.group_id] = restore_group(row.group_id, row.value)
        elif row.group_id in self.groups:
            self.on_group_row(self.groups[row.group_id], row.value)

    cdef _simple_group(self, str group_id):
        """Offsets make a group, if nothing else did: one without members."""
        if group_id not in self.groups:
            self.groups[group_id] = ClassicGroup(group_id)


cdef MarkerKind kind_of(batch) except *:
    """Return the kind of marker in a control batch. Compaction may leave an empty batch, which is no marker."""
    cdef Py_buffer view
    cdef BatchFields fields
    cdef Marker marker
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        read_whole(<const uint8_t *>view.buf, view.len, &fields)
        return read_marker(<const uint8_t *>view.buf, view.len, &fields, &marker)
    finally:
        PyBuffer_Release(&view)

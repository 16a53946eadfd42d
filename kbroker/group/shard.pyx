"""One partition of `__consumer_offsets`, and the groups that it stores. Their state in memory is a replay of the
partition's log."""
from collections import deque

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int16_t, int64_t, uint8_t

from kbroker.base.clock cimport Clock
from kbroker.base.completion cimport Completion
from kbroker.base.long_work cimport LongWork
from kbroker.group.group cimport Group
from kbroker.group.memory cimport GroupMemory
from kbroker.group.offsets.encoder cimport encode_offsets
from kbroker.group.offsets.table cimport OffsetTable
from kbroker.group.records cimport CommittedOffset, GroupRow, OffsetKey, OffsetRow, read_row
from kbroker.log.append cimport read_whole
from kbroker.record.batch cimport (
    COMMIT_MARKER, CONTROL_BIT, HEADER_BYTES, NO_MARKER, TRANSACTIONAL_BIT, BatchFields, BatchHeader, Marker,
    MarkerKind, read_marker)
from kbroker.topics.partition cimport Partition

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import run_to_end
from kbroker.group.kinds import group_id_of
from kbroker.record.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, encode_batch
from kbroker.record.records import decode_records
from kbroker.topics.partition import APPEND_ERRORS

COORDINATOR_ERRORS = APPEND_ERRORS | {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""Maps an error of an append or of a transaction check to the error that clients of the coordinator get, as in
Kafka."""


def coordinator_error(error):
    """Convert an error for clients of the coordinator with COORDINATOR_ERRORS. An error that is not in this table keeps
    its code."""
    return KafkaError(COORDINATOR_ERRORS.get(error.code, error.code), str(error))


cdef class TransactionalProducer:
    """The producer whose transaction an append is part of, and the guard that its verification has returned
    (KIP-890)."""

    def __init__(self, int64_t producer_id, int16_t producer_epoch, guard=None):
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.guard = guard


cdef class Shard:
    """One partition of `__consumer_offsets` with its groups and offsets. `kinds` applies the rows of groups.

    `_appended` has an entry for each batch that is in flight. It is (base offset, keys, committed offsets) for a batch
    of offsets, and (base offset, adopt) for a batch of group rows. `adopt()` is called when the group rows are durable.
    """

    def __init__(self, Partition partition not None, Clock clock not None, GroupMemory memory not None,
                 LongWork long_work not None, kinds not None):
        self.partition = partition
        self.groups = {}
        self.memory = memory
        self.offsets = OffsetTable(memory)
        self.kinds = kinds
        self._appended = deque()
        self._clock = clock
        self._long_work = long_work

    # Groups

    cpdef add_group(self, Group group):
        if self.groups.get(group.group_id) is not group:
            self.remove_group(group.group_id)
            self.groups[group.group_id] = group
            group.hold_in(self.memory)

    cpdef remove_group(self, str group_id):
        cdef Group group = self.groups.pop(group_id, None)
        if group is not None:
            group.hold_in(None)

    cpdef adopt_group(self, str group_id, Group group):
        """Add or replace the group that durable rows have made or changed. If `group` is None, the rows have ended the
        group: remove it.

        If the removed group still has committed offsets, add a group without members for them.
        """
        if group is not None:
            self.add_group(group)
            return
        self.remove_group(group_id)
        if self.offsets.committed_keys(group_id):
            self._simple_group(group_id)

    def clear(self):
        """Remove all groups and offsets from memory, because the partition is closed or deleted."""
        for group_id in list(self.groups):
            self.remove_group(group_id)
        self.offsets.clear()

    # Appends

    def load(self):
        """Replay the log. After that, each appended batch is replayed when it is durable. Raise CorruptLogError if a
        batch or row cannot be read."""
        self._loading = True
        self.partition.replay_all(self.replay)
        for group_id in self.offsets.group_ids():
            self._simple_group(group_id)
        self._loading = False
        self.partition.set_replayer(self.replay)

    cpdef append_rows(self, list rows, adopt, Completion done):
        """Append rows of groups as one batch, so that either all of them become durable or none. A row is (key, value)
        in bytes.

        When the rows are durable, `adopt()` is called, then `done` completes. Batches are adopted in the order of the
        log. If the append fails, `done` completes with the partition's error, which is MESSAGE_TOO_LARGE for a batch of
        more than `max.message.bytes`.
        """
        cdef int64_t now_ms = self._clock.wall_ms()
        appended = (self.partition.log_end_offset, adopt)
        self._appended.append(appended)
        try:
            self.append_batch(encode_batch([(now_ms, key, value) for key, value in rows]), None)
        except KafkaError as error:
            self._appended.remove(appended)
            done.complete(error, 0, None)
            return
        self.await_appended(done)

    cpdef append_tombstones(self, list keys):
        """Append a tombstone for each OffsetKey. If one batch would exceed `max.message.bytes`, append several batches.

        `keys` must not be empty. Raise the partition's error if an append fails.
        """
        cdef Py_ssize_t half = len(keys) // 2
        try:
            self.append_batch_of_offsets(keys, [None] * len(keys), None)
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE or not half:
                raise
            self.append_tombstones(keys[:half])
            self.append_tombstones(keys[half:])

    cpdef await_appended(self, Completion done):
        """Complete `done` when all batches that have been appended up to this call are durable."""
        self.partition.await_durable(self.partition.log_end_offset, done, 0)

    def offsets_in_flight(self):
        """Return {key: CommittedOffset} for the keys that have offsets in flight, with the last appended offset of each
        key."""
        cdef dict found = {}
        for appended in self._appended:
            if len(appended) == 3:
                for key, committed in zip(appended[1], appended[2]):
                    if committed is not None:
                        found[key] = committed
        return found

    cdef append_batch(self, bytearray batch, guard):
        if len(batch) > self.partition.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f'found a batch of {len(batch)} bytes, max.message.bytes allows {self.partition.max_message_bytes}')
        self.partition.append_batch(batch, guard=guard)

    cpdef append_offsets(self, list keys, list offsets, Completion done, TransactionalProducer producer):
        """Append a CommittedOffset for each OffsetKey as one batch, so that either all of them become durable or none.

        `done` completes when the offsets are durable, or with the partition's error, which is MESSAGE_TOO_LARGE for a
        batch of more than `max.message.bytes`. The caller must not use `offsets` afterwards; this method sets the
        `log_offset` of each of them.
        """
        try:
            self.append_batch_of_offsets(keys, offsets, producer)
        except KafkaError as error:
            done.complete(error, 0, None)
            return
        self.await_appended(done)

    cdef append_batch_of_offsets(self, list keys, list offsets, TransactionalProducer producer):
        cdef bint transactional = producer is not None
        cdef CommittedOffset committed
        cdef bytearray batch = self.encode(keys, offsets, producer)
        cdef int64_t log_offset = self.partition.log_end_offset
        # The entry in `_appended` is added before the append, because the batch may be durable and replayed before the
        # append returns.
        appended = (log_offset, keys, offsets)
        self._appended.append(appended)
        for committed in offsets:
            if committed is not None:
                committed.log_offset = log_offset
            log_offset += 1
        self.offsets.note_appended(keys, offsets, transactional)
        try:
            self.append_batch(batch, None if producer is None else producer.guard)
        except KafkaError:
            self._appended.remove(appended)
            self.offsets.note_refused(keys, offsets, transactional)
            raise

    cdef bytearray encode(self, list keys, list offsets, TransactionalProducer producer):
        cdef int64_t now_ms = self._clock.wall_ms()
        if producer is None:
            return encode_offsets(keys, offsets, now_ms, NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        return encode_offsets(keys, offsets, now_ms, producer.producer_id, producer.producer_epoch)

    # Replay: groups and offsets change only in these methods, when a batch is durable

    def replay(self, BatchHeader header not None, batch):
        """Apply one durable batch of the log to the groups and offsets. A batch that this shard has appended itself is
        not decoded."""
        cdef MarkerKind kind
        if header.attributes & CONTROL_BIT:
            kind = kind_of(batch)
            if kind != NO_MARKER:
                applying = self.offsets.end_transaction(header.producer_id, kind == COMMIT_MARKER)
                if applying is not None:
                    run_to_end(applying) if self._loading else self._long_work.start(applying)
        elif self._appended and (<tuple>self._appended[0])[0] == header.base_offset:
            self.replay_appended(header, self._appended.popleft())
        else:
            self.replay_records(header, batch)

    cdef replay_appended(self, BatchHeader header, tuple appended):
        cdef Py_ssize_t i
        cdef list keys, offsets
        if len(appended) == 2:
            appended[1]()
            return
        _, keys, offsets = appended
        for i in range(len(keys)):
            self.replay_offset(header, keys[i], offsets[i])

    cdef replay_records(self, BatchHeader header, batch):
        for record in decode_records(batch):
            row = read_row(record.key, record.value, record.offset)
            if isinstance(row, OffsetRow):
                self.replay_offset(header, (<OffsetRow>row).key, (<OffsetRow>row).committed)
            elif self._loading and isinstance(row, GroupRow):
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
        group_id = group_id_of(row.key)
        group = self.kinds.apply_row(self.groups.get(group_id), row.key, row.value)
        if group is None:
            self.remove_group(group_id)
        else:
            self.add_group(group)

    cdef _simple_group(self, str group_id):
        """Add a group without members for a group id that has offsets, if there is no group with this id."""
        if group_id not in self.groups:
            self.add_group(self.kinds.new_group(group_id))


cdef MarkerKind kind_of(batch) except *:
    """Return the kind of the marker in a control batch. Return NO_MARKER if the batch is empty, because compaction has
    removed the marker."""
    cdef Py_buffer view
    cdef BatchFields fields
    cdef Marker marker
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        read_whole(<const uint8_t *>view.buf, view.len, &fields)
        return read_marker(<const uint8_t *>view.buf, view.len, &fields, &marker)
    finally:
        PyBuffer_Release(&view)

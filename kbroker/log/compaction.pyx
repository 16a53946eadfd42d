"""The two passes of compaction: `index_batches` finds the last offset of each key, `SegmentWriter` copies the batches.

Both run in a worker thread on files that do not change. They hold the GIL only for transactional or compressed batches,
and while they add index entries to the new segment.
"""
from typing import NamedTuple

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from kbroker.base.errors import CorruptLogError, KafkaError, ProtocolError
from kbroker.log.batch_walk cimport BatchWalk, walk_batches
from kbroker.log.fs.file cimport File
from kbroker.log.offset_map cimport OffsetMap
from kbroker.log.segment cimport Segment
from kbroker.record.batch cimport (
    ATTRIBUTES_AT, COMPRESSION_MASK, CONTROL_BIT, DELETE_HORIZON_BIT, HEADER_BYTES, HEADER_READ, LOG_APPEND_TIME_BIT,
    NO_MARKER, TRANSACTIONAL_BIT, BatchFields, Marker, batch_last_offset, batch_size_bytes, parse_header, read_marker,
    write_header)
from kbroker.record.batch import CorruptBatchError
from kbroker.record.compression import compress
from kbroker.record.records cimport RecordFields, records_of, take_record
from kbroker.record.records import MAX_DECOMPRESSED_BYTES
from kbroker.wire.bytes cimport (
    Cursor, put_unsigned_varint, take, take_varint, take_varlong, unsigned_varint_size, zigzag)
from kbroker.wire.crc32c cimport crc32c_update

NO_LAST_OFFSET = -1


class LastRecord(NamedTuple):
    """The last data batch of an active producer. Compaction must keep the header of this batch.

    If no data batch of the producer's current epoch is known, `last_offset` is NO_LAST_OFFSET. Compaction must then
    keep the marker with that epoch.
    """

    last_offset: int
    producer_epoch: int


class Retention(NamedTuple):
    """The facts by which one cleaning decides which records to keep. Times are in ms. `last_records` maps producer ids
    to last records. `high_watermark` is the value at the start of the cleaning.
    """

    now_ms: int
    delete_retention_ms: int
    high_watermark: int
    last_records: dict[int, LastRecord]


cdef class _Buffer:
    """A byte buffer that grows at its end."""
    cdef uint8_t *data
    cdef Py_ssize_t used
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        free(self.data)

    cdef uint8_t *room(self, Py_ssize_t size) except NULL nogil:
        """Make room for `size` more bytes, and return the address of the room. `used` does not change."""
        cdef uint8_t *wider
        if self.used + size > self.capacity:
            wider = <uint8_t *>realloc(self.data, 2 * self.used + size)
            if wider == NULL:
                with gil:
                    raise MemoryError()
            self.data = wider
            self.capacity = 2 * self.used + size
        return self.data + self.used


cdef inline bint is_plain(const BatchFields *batch) noexcept nogil:
    return not batch.attributes & (TRANSACTIONAL_BIT | CONTROL_BIT)


cdef bint may_drop(transactions, const uint8_t *data, const BatchFields *batch) except -1:
    """Return whether a batch can be dropped: aborted data, or a marker of a transaction that has no data left. `batch`
    is a transactional or a control batch.
    """
    cdef Marker marker
    if not batch.attributes & CONTROL_BIT:
        return transactions.drops_data(batch.producer_id, batch_last_offset(batch))
    if batch.records_count == 0:
        return True
    if read_marker(data, batch_size_bytes(batch), batch, &marker) == NO_MARKER:
        return False
    return transactions.drops_marker(batch.producer_id, batch_last_offset(batch))


cdef object refusal(BatchWalk walk, error):
    return CorruptLogError(f'{walk.file.path}: batch at {walk.position}: {error}')


cdef int check_walk(BatchWalk walk) except -1:
    """Raise CorruptLogError if `walk` stopped at bytes that are not a batch."""
    if walk.fault != HEADER_READ:
        raise CorruptLogError(f'{walk.file.path}: found no batch at {walk.position}, '
                              f'expected one before the end at {walk.end}')
    return 0


cdef int check_crc(BatchWalk walk) except -1 nogil:
    """Raise CorruptLogError if the current batch has a bad checksum. A rewritten copy would get a valid checksum and so
    hide the damage.
    """
    cdef const uint8_t *data = walk.data()
    if crc32c_update(0, data + ATTRIBUTES_AT, batch_size_bytes(&walk.fields) - ATTRIBUTES_AT) != walk.fields.crc:
        with gil:
            raise CorruptLogError(f'{walk.file.path}: found a wrong checksum of the batch at {walk.position}')
    return 0


cdef int check_end(const Cursor *cursor) except -1 nogil:
    """Raise CorruptBatchError if bytes follow the last record: a rewritten batch would lose these bytes."""
    if cursor.at != cursor.end:
        with gil:
            raise CorruptBatchError(f'found {cursor.end - cursor.at} bytes behind the last record, expected none')
    return 0


# ---- the first pass ----


def index_batches(OffsetMap keys not None, transactions, File file not None, int64_t position, int64_t end,
                  int64_t start_offset, int64_t budget_bytes, int64_t window_bytes) -> tuple[int, bool]:
    """Add the keys of committed records to `keys`. Read the batches between the file positions `position` and `end`.

    Skip records with offsets below `start_offset`, and stop at the first batch that begins `budget_bytes` or more
    behind `position`. Return the position where the reading stopped, and whether `keys` is full. Raise CorruptLogError,
    OSError.
    """
    cdef BatchWalk walk = walk_batches(file, position, end, window_bytes)
    cdef bint full = False
    try:
        with nogil:
            while walk.next_position - position < budget_bytes and walk.next():
                check_crc(walk)
                full = not index_batch(keys, transactions, walk, start_offset)
                if full:
                    break
        check_walk(walk)
    except (KafkaError, ProtocolError) as error:
        raise refusal(walk, error) from error
    return walk.next_position, full


cdef bint index_batch(OffsetMap keys, transactions, BatchWalk walk, int64_t start_offset) except -1 nogil:
    """Add the keys of the current batch to `keys`. Return False if `keys` is full. `keys.latest_offset` is then the
    offset of the last record whose key was added.
    """
    cdef const uint8_t *data = walk.data()
    cdef bint has_keys = True
    cdef bint fits = True
    cdef Cursor cursor
    if not is_plain(&walk.fields):
        with gil:
            has_keys = not may_drop(transactions, data, &walk.fields) and not walk.fields.attributes & CONTROL_BIT
    if has_keys and walk.fields.attributes & COMPRESSION_MASK:
        with gil:
            block = records_of(data, &walk.fields, MAX_DECOMPRESSED_BYTES)
            cursor.at = <const uint8_t *>PyBytes_AS_STRING(block)
            cursor.end = cursor.at + PyBytes_GET_SIZE(block)
            with nogil:
                fits = index_records(keys, cursor, &walk.fields, start_offset)
    elif has_keys:
        cursor.at = data + HEADER_BYTES
        cursor.end = data + batch_size_bytes(&walk.fields)
        fits = index_records(keys, cursor, &walk.fields, start_offset)
    if fits and batch_last_offset(&walk.fields) >= start_offset:
        keys.latest_offset = batch_last_offset(&walk.fields)
    return fits


cdef bint index_records(OffsetMap keys, Cursor cursor, const BatchFields *batch, int64_t start_offset) except -1 nogil:
    cdef RecordFields record
    cdef int64_t offset
    cdef int32_t i
    for i in range(batch.records_count):
        take_record(&cursor, &record)
        offset = batch.base_offset + record.offset_delta
        if record.key_size >= 0 and offset >= start_offset and not keys.put_key(record.key, record.key_size, offset):
            return False
    check_end(&cursor)
    return True


# ---- the second pass ----


cdef struct Kept:
    int32_t records
    int64_t max_timestamp_ms
    bint has_tombstone


cdef class SegmentWriter:
    """Copies batches without their obsolete records into the new segment `target`.

    Batches above `keys.latest_offset` are copied whole, because `keys` may lack the keys of later records.

    Raises CorruptLogError, OSError.
    """
    cdef readonly Segment target
    cdef OffsetMap keys
    cdef object transactions
    cdef object last_records
    cdef int64_t now_ms
    cdef int64_t new_horizon_ms
    cdef int64_t high_watermark
    cdef int64_t window_bytes
    cdef _Buffer output              # whole batches that are not yet in the segment
    cdef _Buffer kept                # the retained records of one batch
    cdef _Buffer rebased             # a copy of `kept` with other timestamp deltas

    def __init__(self, Segment target not None, OffsetMap keys not None, transactions, retention, int64_t window_bytes):
        """Create. All segments of a cleaning share `transactions`. Its rows go to the transaction index of `target`
        from now on.
        """
        self.target = target
        self.keys = keys
        self.transactions = transactions
        self.transactions.index = target.transactions
        self.last_records = retention.last_records
        self.now_ms = retention.now_ms
        self.new_horizon_ms = retention.now_ms + retention.delete_retention_ms
        self.high_watermark = retention.high_watermark
        self.window_bytes = window_bytes
        self.output = _Buffer()
        self.kept = _Buffer()
        self.rebased = _Buffer()

    def copy(self, File file not None, int64_t position, int64_t end, int64_t budget_bytes) -> int:
        """Copy the retained records of the batches between `position` and `end`, up to `budget_bytes`. Return the
        position behind the last batch that was read.
        """
        cdef BatchWalk walk = walk_batches(file, position, end, self.window_bytes)
        try:
            while walk.next_position < end and walk.next_position - position < budget_bytes:
                with nogil:
                    while (self.output.used < self.window_bytes and walk.next_position - position < budget_bytes
                           and walk.next()):
                        check_crc(walk)
                        self.copy_batch(walk)
                check_walk(walk)
                self.write_output()
        except (KafkaError, ProtocolError) as error:
            raise refusal(walk, error) from error
        return walk.next_position

    def finish(self) -> None:
        """Complete the new segment: trim its files and sync them."""
        cdef File file
        self.target.seal()
        for file in self.target.files_to_sync(sealed=True):
            file.sync()

    cdef int write_output(self) except -1:
        cdef Py_ssize_t position = 0
        cdef BatchFields batch
        if self.output.used == 0:
            return 0
        self.target.reserve(self.output.used)
        self.target.write(self.output.data, self.output.used)
        while position < self.output.used:
            parse_header(self.output.data + position, self.output.used - position, &batch)
            self.target.reserve(batch_size_bytes(&batch))
            self.target.adopt(&batch, batch_size_bytes(&batch))
            position += batch_size_bytes(&batch)
        self.output.used = 0
        return 0

    cdef int copy_batch(self, BatchWalk walk) except -1 nogil:
        cdef const uint8_t *data = walk.data()
        cdef const BatchFields *batch = &walk.fields
        cdef bint droppable = False
        cdef bint is_control = batch.attributes & CONTROL_BIT
        cdef bint has_horizon = batch.attributes & DELETE_HORIZON_BIT
        if not is_plain(batch):
            with gil:
                droppable = may_drop(self.transactions, data, batch)
        if batch.base_offset > self.keys.latest_offset:
            self.copy_whole(data, batch)
        elif is_control:
            if droppable and (batch.records_count == 0 or has_horizon and self.now_ms >= batch.base_timestamp_ms):
                self.copy_husk(batch)
            elif droppable and not has_horizon:
                self.copy_records(data, batch, True)
            else:
                self.copy_whole(data, batch)
        elif droppable:
            self.copy_husk(batch)
        else:
            self.copy_records(data, batch, False)
        return 0

    cdef int copy_whole(self, const uint8_t *data, const BatchFields *batch) except -1 nogil:
        memcpy(self.output.room(batch_size_bytes(batch)), data, batch_size_bytes(batch))
        self.output.used += batch_size_bytes(batch)
        return 0

    cdef int copy_husk(self, const BatchFields *batch) except -1 nogil:
        """Copy the header of a batch without retained records, if the header is still needed. It is needed if no other
        batch preserves the producer's last sequence or epoch, or the end of the log.
        """
        cdef BatchFields husk = batch[0]
        if batch_last_offset(batch) + 1 != self.high_watermark:
            if batch.producer_id < 0:
                return 0
            with gil:
                if not self.is_last_of_producer(batch):
                    return 0
        husk.attributes &= LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT
        husk.base_timestamp_ms = -1
        husk.records_count = 0
        return self.put_batch(&husk, NULL, 0)

    cdef bint is_last_of_producer(self, const BatchFields *batch) except -1:
        cdef object last = self.last_records.get(batch.producer_id)
        if last is None:
            return False
        if last.last_offset == NO_LAST_OFFSET:
            return batch.attributes & CONTROL_BIT and batch.producer_epoch == last.producer_epoch
        return last.last_offset == batch_last_offset(batch)

    cdef int copy_records(self, const uint8_t *data, const BatchFields *batch, bint is_marker_to_go) except -1 nogil:
        """Copy the records of a batch that are not obsolete. Set a delete horizon if the copy has records that expire
        later.
        """
        cdef Cursor cursor
        cdef Kept kept
        cdef BatchFields changed
        cdef bint sets_horizon
        if batch.attributes & COMPRESSION_MASK:
            with gil:
                block = records_of(data, batch, MAX_DECOMPRESSED_BYTES)
                cursor.at = <const uint8_t *>PyBytes_AS_STRING(block)
                cursor.end = cursor.at + PyBytes_GET_SIZE(block)
                with nogil:
                    self.filter(cursor, batch, &kept)
        else:
            cursor.at = data + HEADER_BYTES
            cursor.end = data + batch_size_bytes(batch)
            self.filter(cursor, batch, &kept)
        if kept.records == 0:
            return self.copy_husk(batch)
        sets_horizon = (not batch.attributes & DELETE_HORIZON_BIT
                        and batch_last_offset(batch) <= self.keys.latest_offset
                        and (is_marker_to_go or kept.has_tombstone))
        if kept.records == batch.records_count and not sets_horizon:
            return self.copy_whole(data, batch)
        changed = batch[0]
        changed.records_count = kept.records
        if not batch.attributes & LOG_APPEND_TIME_BIT:
            changed.max_timestamp_ms = kept.max_timestamp_ms
        if not sets_horizon:
            return self.put_records(&changed, self.kept)
        changed.attributes |= DELETE_HORIZON_BIT
        changed.base_timestamp_ms = self.new_horizon_ms
        rebase_records(self.kept, kept.records, batch.base_timestamp_ms - self.new_horizon_ms, self.rebased)
        return self.put_records(&changed, self.rebased)

    cdef int filter(self, Cursor cursor, const BatchFields *batch, Kept *kept) except -1 nogil:
        """Copy the records of a batch that are not obsolete into `kept`. The copied bytes do not change: the deltas in
        a record refer to header fields that keep their values.
        """
        cdef RecordFields record
        cdef const uint8_t *start
        cdef uint8_t *into
        cdef int64_t timestamp_ms
        cdef int32_t i
        kept.records = 0
        kept.has_tombstone = False
        kept.max_timestamp_ms = -1
        self.kept.used = 0
        into = self.kept.room(max(cursor.end - cursor.at, <Py_ssize_t>1))
        for i in range(batch.records_count):
            start = cursor.at
            take_record(&cursor, &record)
            if not self.counts(&record, batch):
                continue
            memcpy(into, start, cursor.at - start)
            into += cursor.at - start
            timestamp_ms = <int64_t>(<uint64_t>batch.base_timestamp_ms + <uint64_t>record.timestamp_delta_ms)
            kept.max_timestamp_ms = max(kept.max_timestamp_ms, timestamp_ms)
            kept.has_tombstone |= record.value_size < 0
            kept.records += 1
        check_end(&cursor)
        self.kept.used = into - self.kept.data
        return 0

    cdef bint counts(self, const RecordFields *record, const BatchFields *batch) noexcept nogil:
        """Return whether to keep a record: it is the last one with its key, is a marker, or is above
        `keys.latest_offset`. A tombstone is kept until the batch's delete horizon, if that is set.
        """
        cdef int64_t offset = batch.base_offset + record.offset_delta
        if batch.attributes & CONTROL_BIT or offset > self.keys.latest_offset:
            return True
        if record.key_size < 0 or offset < self.keys.offset_of(record.key, record.key_size):
            return False
        return (record.value_size >= 0 or not batch.attributes & DELETE_HORIZON_BIT
                or self.now_ms < batch.base_timestamp_ms)

    cdef int put_records(self, const BatchFields *batch, _Buffer records) except -1 nogil:
        """Write a batch with these records to the output, compressed as the original batch was."""
        cdef int codec = batch.attributes & COMPRESSION_MASK
        if not codec:
            return self.put_batch(batch, records.data, records.used)
        with gil:
            block = compress(codec, PyBytes_FromStringAndSize(<const char *>records.data, records.used))
            return self.put_batch(batch, <const uint8_t *>PyBytes_AS_STRING(block), PyBytes_GET_SIZE(block))

    cdef int put_batch(self, const BatchFields *batch, const uint8_t *records, Py_ssize_t size) except -1 nogil:
        cdef uint8_t *into = self.output.room(HEADER_BYTES + size)
        memcpy(into + HEADER_BYTES, records, size)
        with gil:
            write_header(into, HEADER_BYTES + size, batch)
        self.output.used += HEADER_BYTES + size
        return 0


cdef int rebase_records(_Buffer records, int32_t count, int64_t shift_ms, _Buffer rebased) except -1 nogil:
    """Copy records into `rebased`. Add `shift_ms` to their timestamp deltas."""
    cdef Cursor cursor, body
    cdef int64_t delta_ms
    cdef Py_ssize_t size
    cdef uint8_t *into
    cdef int32_t i
    cursor.at = records.data
    cursor.end = records.data + records.used
    rebased.used = 0
    for i in range(count):
        size = take_varint(&cursor)
        body.at = take(&cursor, size)
        body.end = cursor.at
        take(&body, 1)
        delta_ms = <int64_t>(<uint64_t>take_varlong(&body) + <uint64_t>shift_ms)
        size = 1 + unsigned_varint_size(zigzag(delta_ms)) + (body.end - body.at)
        into = rebased.room(unsigned_varint_size(zigzag(size)) + size)
        into = put_unsigned_varint(into, zigzag(size))
        into[0] = 0
        into = put_unsigned_varint(into + 1, zigzag(delta_ms))
        memcpy(into, body.at, body.end - body.at)
        rebased.used = into + (body.end - body.at) - rebased.data
    return 0

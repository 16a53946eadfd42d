"""Reads, checks and writes record batches of version 2 (KIP-98). batch.pxd describes the layout."""
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kbroker.record.record_writer cimport RecordWriter, as_bytes, as_headers
from kbroker.wire.bytes cimport (
    Cursor, read_int16, read_int32, take, take_varint, take_varlong, write_int16, write_int32, write_int64)
from kbroker.wire.crc32c cimport crc32c_update

from kbroker.base.errors import ErrorCode, KafkaError, ProtocolError

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_PARTITION_LEADER_EPOCH = -1
NO_TIMESTAMP_MS = -1

cdef enum:
    RELEASE_GIL_BYTES = 8192  # for fewer bytes, a release of the GIL costs more than it gains


class CorruptBatchError(KafkaError):
    """Raised if bytes are not a valid batch. Clients receive CORRUPT_MESSAGE."""

    def __init__(self, message: str):
        super().__init__(ErrorCode.CORRUPT_MESSAGE, message)


cdef class BatchHeader:
    """The header of a batch. `read_header` creates it."""

    def __init__(self):
        raise TypeError('a BatchHeader comes from read_header')

    cdef int64_t get_size_bytes(self) noexcept:
        return <int64_t>self.batch_length + LOG_OVERHEAD_BYTES

    cdef int64_t get_last_offset(self) noexcept:
        return self.base_offset + self.last_offset_delta

    cdef int32_t get_last_sequence(self) noexcept:
        return sequence_after(self.base_sequence, self.last_offset_delta)

    @property
    def size_bytes(self):
        """The size of the whole batch, including its header."""
        return self.get_size_bytes()

    @property
    def last_offset(self):
        return self.get_last_offset()

    @property
    def last_sequence(self):
        """The sequence of the last record, -1 if the batch has no base sequence. Sequences wrap to 0 after 2^31-1."""
        return self.get_last_sequence()

    @property
    def compression(self):
        """The number of the codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5 to 7 are unassigned."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self):
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self):
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self):
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self):
        """The time in ms after which tombstones and markers of this batch may be removed (KIP-534). None if it is not
        set.
        """
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_BIT else None

    def __repr__(self):
        return (f'<BatchHeader offsets {self.base_offset}..{self.last_offset}, {self.records_count} records, '
                f'{self.size_bytes} bytes, attributes {self.attributes:#x}, '
                f'producer {self.producer_id}/{self.producer_epoch}/{self.base_sequence}>')


cdef BatchHeader header_of(const BatchFields *fields):
    cdef BatchHeader header = BatchHeader.__new__(BatchHeader)
    header.base_offset = fields.base_offset
    header.batch_length = fields.batch_length
    header.partition_leader_epoch = fields.partition_leader_epoch
    header.magic = fields.magic
    header.crc = fields.crc
    header.attributes = fields.attributes
    header.last_offset_delta = fields.last_offset_delta
    header.base_timestamp_ms = fields.base_timestamp_ms
    header.max_timestamp_ms = fields.max_timestamp_ms
    header.producer_id = fields.producer_id
    header.producer_epoch = fields.producer_epoch
    header.base_sequence = fields.base_sequence
    header.records_count = fields.records_count
    return header


cdef int refuse_header(HeaderFault fault, const BatchFields *fields, Py_ssize_t available) except -1:
    """Raise the CorruptBatchError that describes `fault`."""
    if fault == HEADER_CUT:
        raise CorruptBatchError(f'found {available} bytes, expected a batch header of {HEADER_BYTES}')
    if fault == BATCH_LENGTH_WRONG:
        raise CorruptBatchError(f'found batch length {fields.batch_length}, '
                                f'expected at least {HEADER_BYTES - LOG_OVERHEAD_BYTES}')
    raise CorruptBatchError(f'found magic {fields.magic}, expected {MAGIC}')


cdef uint32_t crc_of(const uint8_t *data, Py_ssize_t size_bytes) noexcept:
    """Return the CRC that the header of the batch at `data` must have."""
    cdef uint32_t computed
    if size_bytes < RELEASE_GIL_BYTES:
        return crc32c_update(0, data + ATTRIBUTES_AT, <size_t>(size_bytes - ATTRIBUTES_AT))
    with nogil:
        computed = crc32c_update(0, data + ATTRIBUTES_AT, <size_t>(size_bytes - ATTRIBUTES_AT))
    return computed


cdef int check_crc_at(const uint8_t *data, Py_ssize_t available, const BatchFields *fields) except -1:
    """Raise CorruptBatchError if the batch is longer than `available` bytes, or if its CRC is wrong."""
    cdef int64_t size_bytes = batch_size_bytes(fields)
    cdef uint32_t computed
    if size_bytes > available:
        raise CorruptBatchError(f'found {available} bytes of the batch, expected {size_bytes}')
    computed = crc_of(data, size_bytes)
    if computed != fields.crc:
        raise CorruptBatchError(f'found CRC {fields.crc:#010x}, expected {computed:#010x}')
    return 0


cdef int read_fields(const Py_buffer *view, Py_ssize_t position, BatchFields *fields) except -1:
    cdef HeaderFault fault
    if position < 0 or position > view.len:
        raise CorruptBatchError(f'position {position} lies outside the {view.len} bytes')
    fault = parse_header(<const uint8_t *>view.buf + position, view.len - position, fields)
    if fault != HEADER_READ:
        refuse_header(fault, fields, view.len - position)
    return 0


def read_header(data, Py_ssize_t position=0):
    """Return the header of the batch at `position`. The batch may be incomplete, and its CRC is not checked.

    Raise CorruptBatchError if there are fewer than 61 bytes, the magic is not 2, or the batch length is below 49.
    """
    cdef Py_buffer view
    cdef BatchFields fields
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        read_fields(&view, position, &fields)
        return header_of(&fields)
    finally:
        PyBuffer_Release(&view)


def check_crc(data, BatchHeader header not None, Py_ssize_t position=0):
    """Raise CorruptBatchError if the batch at `position` is incomplete, or does not match the CRC in its header."""
    cdef Py_buffer view
    cdef BatchFields fields
    fields.batch_length = header.batch_length
    fields.crc = header.crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or position > view.len:
            raise CorruptBatchError(f'position {position} lies outside the {view.len} bytes')
        check_crc_at(<const uint8_t *>view.buf + position, view.len - position, &fields)
    finally:
        PyBuffer_Release(&view)


def iter_batches(data):
    """Yield (header, view) of each whole batch in a buffer. Stop at an incomplete batch. CRCs are not checked. Raise
    CorruptBatchError if the next 61 bytes are not a batch header.
    """
    view = memoryview(data).cast('B')
    cdef Py_ssize_t position = 0, end = len(view)
    cdef BatchHeader header
    cdef int64_t size_bytes
    while end - position >= HEADER_BYTES:
        header = read_header(view, position)
        size_bytes = header.get_size_bytes()
        if size_bytes > end - position:
            return
        yield header, view[position:position + size_bytes]
        position += size_bytes


# --- writing ---------------------------------------------------------------------------------------------------------


cdef tuple as_row(record, int64_t base_offset, int64_t next_delta):
    """Return (offset delta, timestamp, key, value, headers) of a record, which is a Record or a tuple (timestamp_ms,
    key, value[, headers])."""
    cdef int64_t delta = next_delta
    if type(record) is tuple and len(<tuple>record) == 3:
        timestamp_ms, key, value = <tuple>record
        headers = None
    elif isinstance(record, tuple):
        timestamp_ms, key, value, headers = record
    else:
        timestamp_ms, key, value, headers = record.timestamp_ms, record.key, record.value, record.headers
        if record.offset >= 0:
            delta = record.offset - base_offset
    if not next_delta <= delta <= 0x7fffffff:
        raise ValueError(f'found offset {base_offset + delta}, expected {base_offset + next_delta} or above, '
                         f'within 2^31-1 of the base offset')
    return delta, timestamp_ms, as_bytes(key), as_bytes(value), as_headers(headers)


cdef list as_rows(records, int64_t base_offset):
    cdef list rows = []
    cdef int64_t next_delta = 0
    for record in records:
        row = as_row(record, base_offset, next_delta)
        rows.append(row)
        next_delta = <int64_t>row[0] + 1
    return rows


cdef object last_delta_of(list rows, asked):
    """Return `asked`, or if it is None, the offset delta of the last record. Raise ValueError if `asked` is below the
    last record's offset delta.
    """
    if not rows:
        if asked is None:
            raise ValueError('a batch without records needs a last_offset_delta')
        return asked
    delta = rows[len(rows) - 1][0]
    if asked is not None and asked < delta:
        raise ValueError(f'found last offset delta {asked}, expected at least {delta}')
    return delta if asked is None else asked


def encode_batch(records, *, int64_t base_offset=0, int32_t partition_leader_epoch=-1, int compression=0, level=None,
                 log_append_time_ms=None, int64_t producer_id=-1, int16_t producer_epoch=-1, int32_t base_sequence=-1,
                 bint transactional=False, bint control=False, delete_horizon_ms=None, base_timestamp_ms=None,
                 max_timestamp_ms=None, last_offset_delta=None):
    """Encode one batch as a bytearray.

    `records` are Record objects or tuples (timestamp_ms, key, value[, headers]). The offsets of Record objects may have
    gaps; an offset of -1 means the next offset. Tuples get consecutive offsets. Without records, the result is only a
    header (a husk), in which compaction preserves a producer's sequence. A husk is uncompressed, its base timestamp is
    -1, and the caller must give `last_offset_delta`. `base_timestamp_ms` defaults to the timestamp of the first record,
    `max_timestamp_ms` to the largest timestamp, and `last_offset_delta` to that of the last record. Raise ValueError if
    offsets do not ascend from `base_offset`, or if `last_offset_delta` is before the last record.
    """
    cdef RecordWriter writer = RecordWriter(HEADER_BYTES)
    cdef list rows = as_rows(records, base_offset)
    last_offset_delta = last_delta_of(rows, last_offset_delta)
    if max_timestamp_ms is None:
        max_timestamp_ms = max([(<tuple>row)[1] for row in rows]) if rows else -1
    if not rows:
        compression, delete_horizon_ms, base_timestamp_ms = 0, None, -1
    elif delete_horizon_ms is not None:
        base_timestamp_ms = delete_horizon_ms
    elif base_timestamp_ms is None:
        base_timestamp_ms = rows[0][1]

    cdef int64_t base_ms = base_timestamp_ms
    for delta, timestamp_ms, key, value, headers in rows:
        writer.write(<int64_t>timestamp_ms - base_ms, delta, key, value, headers)
    cdef bytearray batch = writer.finish()
    if compression:
        from kbroker.record.compression import compress
        batch[HEADER_BYTES:] = compress(compression, memoryview(batch)[HEADER_BYTES:].tobytes(), level)

    cdef BatchFields fields
    fields.base_offset = base_offset
    fields.partition_leader_epoch = partition_leader_epoch
    fields.attributes = (
        compression
        | (LOG_APPEND_TIME_BIT if log_append_time_ms is not None else 0)
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (CONTROL_BIT if control else 0)
        | (DELETE_HORIZON_BIT if delete_horizon_ms is not None else 0)
    )
    fields.last_offset_delta = last_offset_delta
    fields.base_timestamp_ms = base_ms
    fields.max_timestamp_ms = max_timestamp_ms if log_append_time_ms is None else log_append_time_ms
    fields.producer_id = producer_id
    fields.producer_epoch = producer_epoch
    fields.base_sequence = base_sequence
    fields.records_count = <int32_t>len(rows)
    write_header(<uint8_t *>PyByteArray_AS_STRING(batch), PyByteArray_GET_SIZE(batch), &fields)
    return batch


cdef class BatchEncoder:
    """Encodes a batch record by record, so that `finish` takes little time even for a long batch.

    The records have only values, and all have the same timestamp. The batch has no producer id and is not compressed.
    """
    cdef RecordWriter writer
    cdef int64_t timestamp_ms
    cdef int32_t records_count

    def __init__(self, int64_t timestamp_ms):
        self.writer = RecordWriter(HEADER_BYTES)
        self.timestamp_ms = timestamp_ms

    def __len__(self):
        """Return the number of records added so far."""
        return self.records_count

    def add(self, bytes value not None):
        """Encode one record."""
        self.writer.write(0, self.records_count, None, value, [])
        self.records_count += 1

    def finish(self, *, int64_t base_offset, int32_t partition_leader_epoch):
        """Return the batch as a bytearray. The caller must not add records afterwards. Raise ValueError if there is no
        record.
        """
        cdef BatchFields fields
        cdef bytearray batch
        if not self.records_count:
            raise ValueError('found no record, expected one or more')
        batch = self.writer.finish()
        fields.base_offset = base_offset
        fields.partition_leader_epoch = partition_leader_epoch
        fields.attributes = 0
        fields.last_offset_delta = self.records_count - 1
        fields.base_timestamp_ms = fields.max_timestamp_ms = self.timestamp_ms
        fields.producer_id = NO_PRODUCER_ID
        fields.producer_epoch = NO_PRODUCER_EPOCH
        fields.base_sequence = NO_SEQUENCE
        fields.records_count = self.records_count
        write_header(<uint8_t *>PyByteArray_AS_STRING(batch), PyByteArray_GET_SIZE(batch), &fields)
        return batch


cdef int write_header(uint8_t *at, Py_ssize_t size_bytes, const BatchFields *fields) except -1:
    """Write the header in front of the records, including length and CRC. The caller must have written the records."""
    if size_bytes - LOG_OVERHEAD_BYTES > 0x7fffffff:
        raise ValueError(f'found a batch of {size_bytes} bytes, expected less than 2 GiB')
    write_int64(at, fields.base_offset)
    write_int32(at + 8, <int32_t>(size_bytes - LOG_OVERHEAD_BYTES))
    write_int32(at + PARTITION_LEADER_EPOCH_AT, fields.partition_leader_epoch)
    at[MAGIC_AT] = MAGIC
    write_int16(at + ATTRIBUTES_AT, fields.attributes)
    write_int32(at + LAST_OFFSET_DELTA_AT, fields.last_offset_delta)
    write_int64(at + BASE_TIMESTAMP_AT, fields.base_timestamp_ms)
    write_int64(at + MAX_TIMESTAMP_AT, fields.max_timestamp_ms)
    write_int64(at + PRODUCER_ID_AT, fields.producer_id)
    write_int16(at + PRODUCER_EPOCH_AT, fields.producer_epoch)
    write_int32(at + BASE_SEQUENCE_AT, fields.base_sequence)
    write_int32(at + RECORDS_COUNT_AT, fields.records_count)
    write_int32(at + CRC_AT, <int32_t>crc_of(at, size_bytes))
    return 0


def set_base_offset(batch, int64_t base_offset):
    """Set the base offset in a writable batch. The CRC stays valid, because it does not cover this field."""
    cdef Py_buffer view
    PyObject_GetBuffer(batch, &view, PyBUF_WRITABLE)
    try:
        if view.len < HEADER_BYTES:
            refuse_header(HEADER_CUT, NULL, view.len)
        write_int64(<uint8_t *>view.buf, base_offset)
    finally:
        PyBuffer_Release(&view)


def set_partition_leader_epoch(batch, int32_t partition_leader_epoch):
    """Set the leader epoch in a writable batch. The CRC stays valid, because it does not cover this field."""
    cdef Py_buffer view
    PyObject_GetBuffer(batch, &view, PyBUF_WRITABLE)
    try:
        if view.len < HEADER_BYTES:
            refuse_header(HEADER_CUT, NULL, view.len)
        write_int32(<uint8_t *>view.buf + PARTITION_LEADER_EPOCH_AT, partition_leader_epoch)
    finally:
        PyBuffer_Release(&view)


cdef MarkerKind read_marker(const uint8_t *batch, int64_t size, const BatchFields *fields, Marker *marker) except *:
    """Read the record of a control batch. Return NO_MARKER if it is neither COMMIT nor ABORT, or if compaction has
    emptied the batch. Raise CorruptBatchError if the record extends beyond the batch.
    """
    marker.kind = NO_MARKER
    if not fields.attributes & CONTROL_BIT or not fields.attributes & TRANSACTIONAL_BIT or fields.records_count == 0:
        return NO_MARKER
    try:
        return read_control_record(batch, size, fields, marker)
    except ProtocolError as error:
        raise CorruptBatchError(f'control batch at offset {fields.base_offset}: {error}') from None


cdef MarkerKind read_control_record(const uint8_t *batch, int64_t size, const BatchFields *fields,
                                    Marker *marker) except *:
    cdef Cursor cursor = Cursor(batch + HEADER_BYTES, batch + size)
    cdef const uint8_t *key
    cdef const uint8_t *value
    cdef int16_t control_type
    take_varint(&cursor)                                            # length of the record
    take(&cursor, 1)                                                # attributes
    marker.timestamp_ms = fields.base_timestamp_ms + take_varlong(&cursor)
    take_varint(&cursor)                                            # offset delta
    key = take(&cursor, max(4, take_varint(&cursor)))               # int16 version, int16 type, perhaps more
    control_type = read_int16(key + 2)
    if control_type != 0 and control_type != 1:
        return NO_MARKER
    value = take(&cursor, max(6, take_varint(&cursor)))             # int16 version, int32 coordinator epoch
    marker.coordinator_epoch = read_int32(value + 2)
    marker.kind = COMMIT_MARKER if control_type == 1 else ABORT_MARKER
    return marker.kind

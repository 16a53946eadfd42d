"""Validates batches that a producer has sent, by the rules of Apache Kafka, and prepares them for the log.
`produced_records` checks the individual records.
"""
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kbroker.record.batch cimport (
    ASSIGNED_BITS, COMPRESSION_MASK, CONTROL_BIT, HEADER_BYTES, HEADER_READ, LOG_APPEND_TIME_BIT, LOG_OVERHEAD_BYTES,
    MAGIC_WRONG, TRANSACTIONAL_BIT, BatchFields, HeaderFault, batch_size_bytes, check_crc_at, parse_header,
    refuse_header, write_header,
)
from kbroker.record.framing cimport check_framing
from kbroker.record.produced_records cimport ProduceRules, check_records, refuse_batch
from kbroker.record.records cimport records_of
from kbroker.wire.bytes cimport Cursor

from kbroker.base.errors import ErrorCode, KafkaError

cdef enum:
    # The limits up to which the event loop validates a batch itself: see `room_on_loop`.
    EXPANDED_ON_LOOP_BYTES = 262144
    COMPRESSED_ON_LOOP_BYTES = 65536
    PLAIN_ON_LOOP_BYTES = 2097152
    RECOMPRESSED_ON_LOOP_BYTES = 16384

cdef enum:
    RELEASE_GIL_BYTES = 8192
    ZSTD = 4                # kbroker.record.compression, imported on first use


cdef int refuse_size(code, int64_t found, int64_t allowed) except -1:
    raise KafkaError(code, f'found a batch of {found} bytes, expected at most {allowed}')


cdef int check_fields(const BatchFields *batch, ProduceRules rules, bint allow_zstd) except -1:
    """Check the header of a batch whose CRC is already checked. Raise KafkaError if it breaks a rule."""
    cdef int codec = batch.attributes & COMPRESSION_MASK
    if batch.base_offset != 0:
        refuse_batch(f'found base offset {batch.base_offset}, expected 0')
    if batch.records_count <= 0:
        refuse_batch(f'found {batch.records_count} records, expected at least one')
    if batch.last_offset_delta != batch.records_count - 1:
        refuse_batch(f'found last offset delta {batch.last_offset_delta}, '
                     f'expected {batch.records_count - 1} for {batch.records_count} records')
    if batch.attributes & CONTROL_BIT:
        refuse_batch('found a control batch, expected data: only the broker writes control batches')
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        refuse_batch(f'found base sequence {batch.base_sequence} with producer id {batch.producer_id}, '
                     'expected 0 or more')
    if codec > ZSTD:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f'found codec {codec}, expected 0 to {ZSTD}')
    if codec == ZSTD and not allow_zstd:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                         f'found codec {codec}, expected one below: requests below version 7 do not know zstd')
    return 0


cdef int read_only_batch(const uint8_t *data, Py_ssize_t size_bytes, BatchFields *batch) except -1:
    """Read the header of the batch at `data`. Raise INVALID_RECORD if there is no batch, or if its magic is 0 or 1."""
    cdef HeaderFault fault
    if size_bytes == 0:
        refuse_batch('found no batch, expected one')
    fault = parse_header(data, size_bytes, batch)
    if fault == MAGIC_WRONG and batch.magic in (0, 1):
        refuse_batch(f'found magic {batch.magic}, expected 2')
    if fault != HEADER_READ:
        refuse_header(fault, batch, size_bytes)
    return 0


cdef int check_frame(const uint8_t *data, Py_ssize_t size_bytes, const BatchFields *batch,
                     ProduceRules rules) except -1:
    """Raise KafkaError unless the bytes are exactly one batch, within the size limit and with a valid CRC."""
    if batch_size_bytes(batch) > rules.max_message_bytes:
        refuse_size(ErrorCode.MESSAGE_TOO_LARGE, batch_size_bytes(batch), rules.max_message_bytes)
    check_crc_at(data, size_bytes, batch)
    if batch_size_bytes(batch) < size_bytes:
        refuse_batch(f'found {size_bytes - batch_size_bytes(batch)} bytes after the batch, expected exactly one batch')
    return 0


cdef bytearray recompressed(object records, ProduceRules rules):
    """Return a new batch of the same records, compressed in the codec of the topic. The caller must write its header.
    """
    cdef bytearray batch = bytearray(HEADER_BYTES)
    from kbroker.record.compression import compress
    batch += compress(rules.compression, memoryview(records), rules.compression_level)
    if len(batch) > rules.max_message_bytes:
        refuse_size(ErrorCode.MESSAGE_TOO_LARGE, len(batch), rules.max_message_bytes)
    return batch


cdef bint place_timestamps(BatchFields *fields, bint is_log_append_time, int64_t max_timestamp_ms) noexcept:
    """Set the timestamp type and the maximum timestamp in the header, which the broker guarantees to be right. Return
    True if either has changed.
    """
    cdef int16_t attributes = fields.attributes & ~LOG_APPEND_TIME_BIT
    if is_log_append_time:
        attributes |= LOG_APPEND_TIME_BIT
    elif attributes == fields.attributes and fields.max_timestamp_ms == max_timestamp_ms:
        return False
    fields.attributes = attributes & ASSIGNED_BITS      # a rewritten header has only assigned bits
    fields.max_timestamp_ms = max_timestamp_ms
    return True


def prepare_produced(batch, ProduceRules rules not None, int64_t now_ms, *, bint allow_zstd=True):
    """Validate the records of one partition of a Produce request by the rules of Apache Kafka. Return the batch to
    append.

    If nothing changes except the maximum timestamp and the timestamp type in the header, return `batch` itself, or a
    copy if `batch` is not writable. Otherwise return a new bytearray in the codec of the topic. The base offset and the
    leader epoch do not change here, because the log sets them later. `allow_zstd` must be false for Produce versions
    below 7.

    Raise KafkaError, in this order: INVALID_RECORD (no batch; magic 0 or 1), CORRUPT_MESSAGE (header),
    MESSAGE_TOO_LARGE, CORRUPT_MESSAGE (length, CRC), INVALID_RECORD (more than one batch, offsets, counts, control bit,
    sequence), UNKNOWN_SERVER_ERROR (no such codec), UNSUPPORTED_COMPRESSION_TYPE (zstd), UNKNOWN_SERVER_ERROR and
    INVALID_RECORD (framing), UNKNOWN_SERVER_ERROR and MESSAGE_TOO_LARGE (decompression), INVALID_RECORD (structure or
    size of a record), InvalidRecordsError (INVALID_RECORD for missing keys, INVALID_TIMESTAMP), MESSAGE_TOO_LARGE
    (recompressed), RECORD_LIST_TOO_LARGE.
    """
    cdef Py_buffer view
    cdef BatchFields fields
    cdef Py_ssize_t room_bytes = rules.max_decompressed_bytes
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        read_only_batch(<const uint8_t *>view.buf, view.len, &fields)
        replacement = prepare(<uint8_t *>view.buf, view.len, view.readonly, &fields, rules, now_ms, allow_zstd,
                              &room_bytes)
    finally:
        PyBuffer_Release(&view)
    return batch if replacement is None else replacement


cdef class ExpandedRecords:
    """The decompressed records of a batch, an Output of kbroker.record.compression.

    The memory is allocated and freed without the GIL, because the kernel needs milliseconds to free 100 MiB.
    """

    def __init__(self, Py_ssize_t max_bytes):
        self.max_bytes = max_bytes

    def __dealloc__(self):
        if self.capacity < RELEASE_GIL_BYTES:
            free(self.data)
        else:
            with nogil:
                free(self.data)

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size_bytes, True, flags)

    cpdef expect(self, Py_ssize_t size_bytes):
        """Raise ExpansionError if there is no room for `size_bytes` more."""
        if size_bytes > self.max_bytes - self.size_bytes:
            from kbroker.record.compression import ExpansionError
            raise ExpansionError(self.max_bytes)

    cpdef add(self, piece):
        """Add the next decompressed bytes. Raise ExpansionError if there is no room for them."""
        cdef Py_buffer view
        PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
        try:
            self.expect(view.len)
            with nogil:
                self.append(<const uint8_t *>view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    cdef int append(self, const uint8_t *data, Py_ssize_t size_bytes) except -1 nogil:
        cdef Py_ssize_t capacity = self.capacity
        cdef uint8_t *larger
        if self.size_bytes + size_bytes > capacity:
            capacity = min(self.max_bytes, max(2 * capacity, self.size_bytes + size_bytes))
            larger = <uint8_t *>realloc(self.data, capacity)
            if larger == NULL:
                with gil:
                    raise MemoryError
            self.data = larger
            self.capacity = capacity
        memcpy(self.data + self.size_bytes, data, size_bytes)
        self.size_bytes += size_bytes
        return 0


cdef object expanded(const uint8_t *data, const BatchFields *fields, Py_ssize_t *room_bytes, Cursor *cursor):
    """Decompress the records of a batch, and set `cursor` to the result. Return the object that owns the memory.

    Subtract the size of the result from `room_bytes`. Raise ExpansionError if the records have more than `room_bytes`.
    """
    cdef ExpandedRecords records
    cdef bytes block
    cdef int codec = fields.attributes & COMPRESSION_MASK
    cdef Py_ssize_t size_bytes = batch_size_bytes(fields) - HEADER_BYTES
    check_framing(codec, data + HEADER_BYTES, size_bytes)
    try:
        if room_bytes[0] <= EXPANDED_ON_LOOP_BYTES:
            block = records_of(data, fields, room_bytes[0])
            cursor.at = <const uint8_t *>PyBytes_AS_STRING(block)
            cursor.end = cursor.at + PyBytes_GET_SIZE(block)
            room_bytes[0] -= PyBytes_GET_SIZE(block)
            return block
        from kbroker.record.compression import decompress_to
        records = ExpandedRecords(room_bytes[0])
        try:
            decompress_to(codec, memory_of(data + HEADER_BYTES, size_bytes), records)
        finally:
            room_bytes[0] -= records.size_bytes
    except KafkaError as error:
        refuse_damaged_block(error)
    cursor.at = records.data
    cursor.end = records.data + records.size_bytes
    return records


cdef int refuse_damaged_block(error) except -1:
    """Raise the error for a block that cannot be decompressed, with the code that Apache Kafka returns.

    The code is not CORRUPT_MESSAGE: that code means that the network has damaged the batch, and a producer would send
    the same batch again.
    """
    if error.code is ErrorCode.CORRUPT_MESSAGE:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None
    raise error


cdef object memory_of(const uint8_t *data, Py_ssize_t size_bytes):
    return PyMemoryView_FromMemory(<char *>data, size_bytes, PyBUF_READ)


cdef Py_ssize_t room_on_loop(const BatchFields *fields, ProduceRules rules) noexcept:
    """Return the maximum number of bytes to which the event loop may decompress a batch. Return -1 if a worker thread
    should validate the batch.

    Within this limit, the event loop validates a batch in less than a millisecond. Passing the batch to a worker and
    back takes about as long.
    """
    cdef int64_t size_bytes = batch_size_bytes(fields)
    cdef int codec = fields.attributes & COMPRESSION_MASK
    if size_bytes > rules.max_message_bytes:        # refused before the records are read
        return EXPANDED_ON_LOOP_BYTES
    if rules.compression > 0 and rules.compression != codec:
        return RECOMPRESSED_ON_LOOP_BYTES if size_bytes <= RECOMPRESSED_ON_LOOP_BYTES else -1
    return EXPANDED_ON_LOOP_BYTES if size_bytes <= (COMPRESSED_ON_LOOP_BYTES if codec else PLAIN_ON_LOOP_BYTES) else -1


cdef bytearray prepare(uint8_t *data, Py_ssize_t size_bytes, bint readonly, BatchFields *fields, ProduceRules rules,
                       int64_t now_ms, bint allow_zstd, Py_ssize_t *room_bytes):
    """Do the work of `prepare_produced` for a batch whose header is read. Return None if the bytes at `data` can be
    appended, otherwise the new batch. Set `fields` to the header of the batch to append.

    `room_bytes` is the maximum number of bytes to which compressed records may expand. The size of the decompressed
    records is subtracted from it. Raise ExpansionError if the records have more bytes. The event loop passes the result
    of `room_on_loop`, a worker passes a greater number.
    """
    cdef Cursor cursor
    cdef int64_t max_timestamp_ms
    cdef object block = None
    cdef bytearray replacement = None
    cdef int codec, target
    cdef bint header_changes
    check_frame(data, size_bytes, fields, rules)
    check_fields(fields, rules, allow_zstd)
    codec = fields.attributes & COMPRESSION_MASK
    target = codec if rules.compression < 0 else rules.compression
    cursor.at = data + HEADER_BYTES
    cursor.end = data + size_bytes
    if codec:
        block = expanded(data, fields, room_bytes, &cursor)
    max_timestamp_ms = check_records(cursor, fields, rules, now_ms)

    if rules.is_log_append_time:
        max_timestamp_ms = now_ms
    header_changes = place_timestamps(fields, rules.is_log_append_time, max_timestamp_ms)
    if target != codec:
        fields.attributes = (fields.attributes & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT)) | target
        if not codec:
            block = memory_of(cursor.at, cursor.end - cursor.at)
        replacement = recompressed(block, rules)
        header_changes = True
    elif header_changes and readonly:
        replacement = bytearray((<char *>data)[:size_bytes])
    if replacement is not None:
        data = <uint8_t *>PyByteArray_AS_STRING(replacement)
        size_bytes = PyByteArray_GET_SIZE(replacement)
        fields.batch_length = <int32_t>(size_bytes - LOG_OVERHEAD_BYTES)
    if size_bytes > rules.segment_bytes:
        refuse_size(ErrorCode.RECORD_LIST_TOO_LARGE, size_bytes, rules.segment_bytes)
    if header_changes:
        write_header(data, size_bytes, fields)
    return replacement


cdef class Validation:
    """A job that validates one produced batch in a worker thread. The caller must keep the bytes of the batch valid.

    Calling the job sets `replacement` to the result of `prepare`, and `batch` and `room_bytes` to the values that
    `prepare` sets. The call raises the errors of `prepare_produced`.
    """

    def __call__(self):
        self.replacement = prepare(self.data, self.size_bytes, False, &self.batch, self.rules, self.now_ms,
                                   self.allow_zstd, &self.room_bytes)

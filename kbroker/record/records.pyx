"""Decodes the records of a batch to objects.

The layout of a record is: length varint (the number of bytes behind this field), attributes int8, timestamp delta
varlong, offset delta varint, key, value, header count varint, headers. A key or value is a length varint (-1 means
null) and its bytes. A header is a name (length varint and UTF-8) and a value.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.record.batch cimport (
    COMPRESSION_MASK, HEADER_BYTES, HEADER_READ, LOG_APPEND_TIME_BIT,
    BatchFields, HeaderFault, batch_size_bytes, check_crc_at, parse_header, refuse_header, sequence_after,
)
from kbroker.wire.bytes cimport Cursor, take, take_varint, take_varlong

from kbroker.base.errors import ProtocolError
from kbroker.record.batch import CorruptBatchError

# The limit for the decompressed records of a batch. A batch of max.message.bytes may decompress to a thousand times its
# size. Kafka decompresses records as a stream, but kbroker keeps all records of the batch in memory. Therefore the
# limit is the largest size that an uncompressed batch could have (socket.request.max.bytes: 100 MiB). A Java producer
# that receives MESSAGE_TOO_LARGE splits the batch and sends the parts.
MAX_DECOMPRESSED_BYTES = 100 * 1024 * 1024



cdef inline const uint8_t *take_blob(Cursor *cursor, Py_ssize_t *size, bint *is_odd) except NULL nogil:
    """Read a length field and the bytes of this length. A negative length means null, as in Kafka. Set `is_odd` if the
    length is below -1.
    """
    size[0] = take_varint(cursor)
    if size[0] < 0:
        is_odd[0] = is_odd[0] or size[0] != -1
        size[0] = -1
        return cursor.at
    return take(cursor, size[0])


cdef int refuse_record(const char *what, int64_t found) except -1 with gil:
    raise ProtocolError(f'{what.decode()}: found {found}')


cdef int take_record(Cursor *cursor, RecordFields *record) except -1 nogil:
    """Read one record. Raise ProtocolError if its fields do not have exactly the length in its length field."""
    cdef Cursor body
    cdef Py_ssize_t size = take_varint(cursor)
    cdef int i
    body.at = take(cursor, size)
    body.end = cursor.at
    take(&body, 1)  # the attributes: no bit is assigned
    record.timestamp_delta_ms = take_varlong(&body)
    record.offset_delta = take_varint(&body)
    record.has_odd_null = False
    record.key = take_blob(&body, &record.key_size, &record.has_odd_null)
    record.value = take_blob(&body, &record.value_size, &record.has_odd_null)
    record.headers_count = take_varint(&body)
    if record.headers_count < 0:
        refuse_record(b'header count of a record, expected 0 or more', record.headers_count)
    record.headers = body
    for i in range(record.headers_count):
        take(&body, take_varint(&body))
        take_blob(&body, &size, &record.has_odd_null)
    if body.at != body.end:
        refuse_record(b'bytes after the last header of a record, expected none', body.end - body.at)
    return 0


cdef class Record:
    """One record. `timestamp_ms` is the append time if the batch has LogAppendTime. `sequence` is -1 if the batch has
    no base sequence. `leader_epoch` is -1 if the batch has no leader epoch. In header names, bytes that are not UTF-8
    become surrogate escapes. Equality ignores the leader epoch and the type of the timestamp.
    """

    def __init__(self, int64_t offset, int64_t timestamp_ms, bytes key, bytes value, headers=(), int32_t sequence=-1):
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self.headers = list(headers)
        self.sequence = sequence
        self.leader_epoch = -1

    @property
    def timestamp_type(self):
        return 'LogAppendTime' if self.is_log_append_time else 'CreateTime'

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return as_tuple(self) == as_tuple(other)

    __hash__ = None

    def __repr__(self):
        return (f'Record(offset={self.offset}, timestamp_ms={self.timestamp_ms}, key={self.key!r}, '
                f'value={self.value!r}, headers={self.headers!r}, sequence={self.sequence})')


cdef tuple as_tuple(Record record):
    return record.offset, record.timestamp_ms, record.key, record.value, record.headers, record.sequence


cdef inline bytes blob_of(const uint8_t *start, Py_ssize_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char *>start, size)


cdef list headers_of(RecordFields *fields):
    cdef list headers = []
    cdef Cursor cursor = fields.headers
    cdef const uint8_t *start
    cdef Py_ssize_t size
    cdef bytes key
    cdef int i
    for i in range(fields.headers_count):
        size = take_varint(&cursor)
        key = blob_of(take(&cursor, size), size)
        start = take_blob(&cursor, &size, &fields.has_odd_null)
        headers.append((key.decode('utf-8', 'surrogateescape'), blob_of(start, size)))
    return headers


cdef Record record_of(RecordFields *fields, const BatchFields *batch):
    cdef Record record = Record.__new__(Record)
    record.offset = add_wrapping(batch.base_offset, fields.offset_delta)
    if batch.attributes & LOG_APPEND_TIME_BIT:
        record.timestamp_ms = batch.max_timestamp_ms
    else:
        record.timestamp_ms = add_wrapping(batch.base_timestamp_ms, fields.timestamp_delta_ms)
    record.key = blob_of(fields.key, fields.key_size)
    record.value = blob_of(fields.value, fields.value_size)
    record.headers = headers_of(fields)
    record.sequence = sequence_after(batch.base_sequence, fields.offset_delta)
    record.leader_epoch = batch.partition_leader_epoch
    record.is_log_append_time = batch.attributes & LOG_APPEND_TIME_BIT != 0
    return record


cdef bytes records_of(const uint8_t *data, const BatchFields *fields, Py_ssize_t max_decompressed_bytes):
    """Return the record bytes of the whole batch at `data`, decompressed."""
    cdef Py_ssize_t size_bytes = batch_size_bytes(fields) - HEADER_BYTES
    cdef bytes block = PyBytes_FromStringAndSize(<const char *>data + HEADER_BYTES, size_bytes)
    cdef int codec = fields.attributes & COMPRESSION_MASK
    if not codec:
        return block
    from kbroker.record.compression import decompress
    return decompress(codec, block, max_decompressed_bytes)


def iter_records(batch, *, Py_ssize_t max_decompressed_bytes=MAX_DECOMPRESSED_BYTES):
    """Yield the records of the whole batch at the start of `batch`. The CRC is not checked.

    Raise CorruptBatchError if the batch is malformed or its `records_count` is wrong. Raise KafkaError CORRUPT_MESSAGE
    if the batch cannot be decompressed, and MESSAGE_TOO_LARGE if the records have more than `max_decompressed_bytes`.
    """
    cdef Py_buffer view
    cdef BatchFields fields
    cdef RecordFields record
    cdef HeaderFault fault
    cdef Cursor cursor
    cdef bytes block
    cdef int i
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        fault = parse_header(<const uint8_t *>view.buf, view.len, &fields)
        if fault != HEADER_READ:
            refuse_header(fault, &fields, view.len)
        if batch_size_bytes(&fields) > view.len:
            raise CorruptBatchError(f'found {view.len} bytes of the batch, expected {batch_size_bytes(&fields)}')
        block = records_of(<const uint8_t *>view.buf, &fields, max_decompressed_bytes)
    finally:
        PyBuffer_Release(&view)
    cursor.at = <const uint8_t *>PyBytes_AS_STRING(block)
    cursor.end = cursor.at + PyBytes_GET_SIZE(block)
    for i in range(fields.records_count):
        try:
            take_record(&cursor, &record)
        except ProtocolError as error:
            raise CorruptBatchError(f'record {i} of {fields.records_count}: {error}') from None
        yield record_of(&record, &fields)
    if cursor.at != cursor.end:
        raise CorruptBatchError(f'found {cursor.end - cursor.at} bytes after the last of {fields.records_count} '
                                'records, expected none')


def decode_records(batch, *, Py_ssize_t max_decompressed_bytes=MAX_DECOMPRESSED_BYTES):
    """Return the records of a whole batch as a list; see `iter_records`."""
    return list(iter_records(batch, max_decompressed_bytes=max_decompressed_bytes))

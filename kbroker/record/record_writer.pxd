"""C functions that encode one record. records.pyx describes the layout of a record."""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker.wire.bytes cimport put_unsigned_varint, unsigned_varint_size, zigzag


cdef enum:
    RECORD_OVERHEAD_BYTES = 24  # more than the bytes of a record without key, value and headers
    HEADER_OVERHEAD_BYTES = 10  # more than the bytes of a header without name and value


cdef struct Blob:
    const uint8_t *at
    Py_ssize_t size     # -1: null


cdef struct Rows:
    const Blob *keys                # NULL: all keys are null
    const Blob *values
    const Blob *headers             # encoded, including the count; NULL: no headers
    const int64_t *timestamps_ms    # NULL: each row has `timestamp_ms`
    int64_t timestamp_ms
    const int32_t *order            # the indexes of the rows in writing order; NULL: 0, 1, 2, ...


cdef inline Py_ssize_t varint_size(int64_t value) noexcept nogil:
    return unsigned_varint_size(zigzag(value))


cdef inline uint8_t *put_varint(uint8_t *at, int64_t value) noexcept nogil:
    return put_unsigned_varint(at, zigzag(value))


cdef inline Py_ssize_t blob_size(Py_ssize_t size) noexcept nogil:
    """Return the number of bytes of an encoded value: its length field and its `size` bytes. A size of -1 means null.
    """
    return 1 if size < 0 else varint_size(size) + size


cdef inline uint8_t *put_blob(uint8_t *at, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    at = put_varint(at, size)
    if size > 0:
        memcpy(at, data, size)
        at += size
    return at


cdef inline Py_ssize_t record_body_size(int64_t timestamp_delta_ms, int32_t offset_delta, Py_ssize_t key_size,
                                        Py_ssize_t value_size, Py_ssize_t headers_size) noexcept nogil:
    """Return the value of a record's length field. `headers_size` is the size of the encoded headers, including their
    count.
    """
    return (1 + varint_size(timestamp_delta_ms) + varint_size(offset_delta) + blob_size(key_size)
            + blob_size(value_size) + headers_size)


cdef inline uint8_t *put_record(uint8_t *at, Py_ssize_t body_size, int64_t timestamp_delta_ms, int32_t offset_delta,
                                const Blob *key, const Blob *value) noexcept nogil:
    """Write the fields of a record in front of its headers. Return the address at which the caller must write the
    header count.
    """
    at = put_varint(at, body_size)
    at[0] = 0  # the attributes of a record: no bit is assigned
    at = put_varint(at + 1, timestamp_delta_ms)
    at = put_varint(at, offset_delta)
    at = put_blob(at, key.at, key.size)
    return put_blob(at, value.at, value.size)


cdef inline int64_t row_timestamp_ms(const Rows *rows, Py_ssize_t row) noexcept nogil:
    return rows.timestamp_ms if rows.timestamps_ms == NULL else rows.timestamps_ms[row]


cdef class RecordWriter:
    cdef bytearray data
    cdef Py_ssize_t used

    cdef uint8_t *room(self, Py_ssize_t n, Py_ssize_t largest_bytes) except NULL
    cdef Py_ssize_t write(self, int64_t timestamp_delta_ms, int32_t offset_delta, bytes key, bytes value, list headers,
                          Py_ssize_t largest_bytes=*) except -1
    cdef Py_ssize_t write_rows(self, const Rows *rows, Py_ssize_t first, Py_ssize_t end, int64_t base_timestamp_ms,
                               int32_t offset_delta, Py_ssize_t largest_bytes) except -1
    cdef bytearray finish(self)


cdef Blob blob_of(bytes content) noexcept
cdef bytes as_bytes(blob, str what=*)
cdef list as_headers(headers)
cdef header_pairs(headers)
cdef tuple checked_pair(pair)
cdef bytes header_name(name)

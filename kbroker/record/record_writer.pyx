"""Writes records into a batch that grows, either one by one or from the rows of columns."""
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from collections.abc import Iterable, Mapping

cdef extern from 'Python.h':
    Py_ssize_t PY_SSIZE_T_MAX


cdef Blob NULL_BLOB
NULL_BLOB.at = NULL
NULL_BLOB.size = -1

cdef list NO_HEADERS = []


cdef class RecordWriter:
    """Writes records to a bytearray that is larger than its used part. The writer may reuse `spare`, the bytearray of
    an earlier batch, whose bytes are overwritten.
    """

    def __cinit__(self, Py_ssize_t head_bytes, bytearray spare=None):
        self.data = bytearray(head_bytes + 512) if spare is None else spare
        self.used = head_bytes

    cdef uint8_t *room(self, Py_ssize_t n, Py_ssize_t largest_bytes) except NULL:
        """Make room for the next `n` bytes, and return their address. Enlarge the bytearray by more than `n`, but not
        above `largest_bytes`.
        """
        cdef uint8_t *at
        cdef Py_ssize_t needed = self.used + n
        if needed > PyByteArray_GET_SIZE(self.data):
            PyByteArray_Resize(self.data, max(needed, min(needed + self.used, largest_bytes)))
        at = <uint8_t *>PyByteArray_AS_STRING(self.data) + self.used
        self.used += n
        return at

    cdef Py_ssize_t write(self, int64_t timestamp_delta_ms, int32_t offset_delta, bytes key, bytes value, list headers,
                          Py_ssize_t largest_bytes=PY_SSIZE_T_MAX) except -1:
        """Write a record and return its size in bytes. If the batch would then exceed `largest_bytes`, write nothing
        and return 0.
        """
        cdef Blob key_blob = blob_of(key), value_blob = blob_of(value), part
        cdef Py_ssize_t headers_size = varint_size(len(headers)), body_size, size
        cdef uint8_t *at
        for name, content in headers:
            headers_size += blob_size(blob_of(<bytes>name).size) + blob_size(blob_of(<bytes>content).size)
        body_size = record_body_size(timestamp_delta_ms, offset_delta, key_blob.size, value_blob.size, headers_size)
        size = varint_size(body_size) + body_size
        if size > largest_bytes - self.used:
            return 0
        at = put_record(self.room(size, largest_bytes), body_size, timestamp_delta_ms, offset_delta, &key_blob,
                        &value_blob)
        at = put_varint(at, len(headers))
        for name, content in headers:
            part = blob_of(<bytes>name)
            at = put_blob(at, part.at, part.size)
            part = blob_of(<bytes>content)
            at = put_blob(at, part.at, part.size)
        return size

    cdef Py_ssize_t write_rows(self, const Rows *rows, Py_ssize_t first, Py_ssize_t end, int64_t base_timestamp_ms,
                               int32_t offset_delta, Py_ssize_t largest_bytes) except -1:
        """Write the rows in [first, end), as many as fit into `largest_bytes`. Return the number of rows written."""
        cdef Py_ssize_t i, row, body_size, size = 0, left = largest_bytes - self.used, last = first
        cdef int64_t delta_ms
        cdef Blob key
        cdef uint8_t *at
        while last < end:
            row = last if rows.order == NULL else rows.order[last]
            key = NULL_BLOB if rows.keys == NULL else rows.keys[row]
            body_size = record_body_size(row_timestamp_ms(rows, row) - base_timestamp_ms,
                                         <int32_t>(offset_delta + last - first), key.size, rows.values[row].size,
                                         1 if rows.headers == NULL else rows.headers[row].size)
            if size + varint_size(body_size) + body_size > left:
                break
            size += varint_size(body_size) + body_size
            last += 1
        at = self.room(size, largest_bytes)
        for i in range(first, last):
            row = i if rows.order == NULL else rows.order[i]
            key = NULL_BLOB if rows.keys == NULL else rows.keys[row]
            delta_ms = row_timestamp_ms(rows, row) - base_timestamp_ms
            body_size = record_body_size(delta_ms, <int32_t>(offset_delta + i - first), key.size,
                                         rows.values[row].size, 1 if rows.headers == NULL else rows.headers[row].size)
            at = put_record(at, body_size, delta_ms, <int32_t>(offset_delta + i - first), &key, &rows.values[row])
            if rows.headers == NULL:
                at[0] = 0
                at += 1
            else:
                memcpy(at, rows.headers[row].at, rows.headers[row].size)
                at += rows.headers[row].size
        return last - first

    cdef bytearray finish(self):
        PyByteArray_Resize(self.data, self.used)
        return self.data


cdef Blob blob_of(bytes content) noexcept:
    cdef Blob blob
    if content is None:
        return NULL_BLOB
    blob.at = <const uint8_t *>PyBytes_AS_STRING(content)
    blob.size = PyBytes_GET_SIZE(content)
    return blob


cdef bytes as_bytes(blob, str what='a key or value'):
    """Return a buffer as bytes, or None if `blob` is None. Raise TypeError if `blob` is a str, a number or another
    object without a buffer.
    """
    if blob is None or type(blob) is bytes:
        return <bytes>blob
    try:
        return bytes(memoryview(blob))
    except TypeError:
        raise TypeError(f'found {type(blob).__name__} as {what}, expected bytes or None') from None


cdef list as_headers(headers):
    """Return headers as a list of (name, value) in bytes.

    `headers` is a mapping {name: value} or a sequence of (name, value). A name is a str, or bytes in UTF-8. A value is
    bytes or None. Raise TypeError for any other types, and ValueError for a name that is not UTF-8.
    """
    if not headers:
        return NO_HEADERS
    return [header_of(pair) for pair in header_pairs(headers)]


cdef header_pairs(headers):
    """Return the headers of a record as an iterable of (name, value). Raise TypeError if `headers` is neither a mapping
    nor iterable.
    """
    if type(headers) is list or type(headers) is tuple:
        return headers
    if isinstance(headers, Mapping):
        return headers.items()
    if isinstance(headers, (str, bytes, bytearray)) or not isinstance(headers, Iterable):
        raise TypeError(f'found {type(headers).__name__} as headers, expected pairs of a name and bytes, or a dict')
    return headers


cdef tuple header_of(pair):
    """Return a header (name, value) with both parts as bytes."""
    if type(pair) is not tuple or len(<tuple>pair) != 2:
        pair = checked_pair(pair)
    name, content = <tuple>pair
    name = (<str>name).encode('utf-8', 'surrogateescape') if type(name) is str else header_name(name)
    return name, content if type(content) is bytes else as_bytes(content, 'the value of a header')


cdef tuple checked_pair(pair):
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        return tuple(pair)
    raise TypeError(f'found {pair!r:.100} as a header, expected a pair of a name and bytes')


cdef bytes header_name(name):
    """Return the name of a header as bytes. Raise TypeError if it is neither str nor bytes, and ValueError if it is
    bytes that are not UTF-8.
    """
    if isinstance(name, str):
        return name.encode('utf-8', 'surrogateescape')
    if not isinstance(name, bytes):
        raise TypeError(f'found {type(name).__name__} as the name of a header, expected str, or bytes of UTF-8')
    try:
        name.decode()
    except UnicodeDecodeError:
        raise ValueError(f'found {name!r:.100} as the name of a header, expected UTF-8') from None
    return bytes(name)

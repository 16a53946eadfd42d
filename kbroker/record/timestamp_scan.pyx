"""Searches the records of one batch for a timestamp.

The bytes of the records may arrive in pieces of any size. The search reads only the timestamp and the offset of each
record, and skips keys, values and headers. So it needs the same memory for one record as for a million. A compressed
batch is decompressed only up to the found record.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from kbroker.record.batch cimport COMPRESSION_MASK, HEADER_BYTES, HEADER_READ, LOG_APPEND_TIME_BIT, BatchFields
from kbroker.record.batch cimport batch_size_bytes, parse_header, refuse_header
from kbroker.record.records cimport add_wrapping

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.record.batch import CorruptBatchError
from kbroker.record.compression import ExpansionError, decompress_to
from kbroker.record.records import MAX_DECOMPRESSED_BYTES

cdef enum:
    CUT = 0             # the varint does not end within the available bytes
    ENDLESS = -1


class Found(KafkaError):
    """Raised to end a decompression when the record is found. This is a KafkaError, because a decompressor can be used
    again after a KafkaError.
    """

    def __init__(self):
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, 'the record is found')


cdef inline int read_zigzag(const uint8_t *at, int64_t size, int max_bytes, int64_t *value) noexcept nogil:
    """Read a zigzag varint of at most `max_bytes`. Return its size in bytes. Return CUT if it does not end within
    `size` bytes, or ENDLESS if it does not end within `max_bytes`.
    """
    cdef uint64_t raw = 0
    cdef int i
    for i in range(max_bytes):
        if i == size:
            return CUT
        raw |= <uint64_t>(at[i] & 0x7f) << (7 * i)
        if at[i] < 0x80:
            value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
            return i + 1
    return ENDLESS


cdef class TimestampScan:
    """Finds the first record of one batch whose timestamp is at or after `timestamp_ms` and whose offset is at or above
    `start_offset`.

    A scan is also an Output, which receives the bytes from a decompressor (see `compression`).
    """

    cdef Step scan(self, const uint8_t *at, int64_t size) noexcept nogil:
        """Scan the next `size` bytes of the records."""
        cdef int64_t step, known
        cdef bint is_found = False
        while True:
            step = min(self.skipped, size)
            self.skipped -= step
            at += step
            size -= step
            if size == 0:
                return MORE
            if self.left <= 0:
                return MALFORMED
            known = self.head_bytes
            if known == 0:
                step = self.take_head(at, size, &is_found)
                if step == CUT:
                    memcpy(self.head, at, size)     # a cut head is shorter than LARGEST_HEAD_BYTES
                    self.head_bytes = <int>size
                    return MORE
            else:
                step = min(LARGEST_HEAD_BYTES - known, size)
                memcpy(self.head + known, at, step)
                self.head_bytes += <int>step
                step = self.take_head(self.head, self.head_bytes, &is_found)
                if step == CUT:
                    return MORE
                self.head_bytes = 0
            if step < 0:
                return MALFORMED
            if is_found:
                return FOUND
            self.left -= 1
            self.skipped = step - known     # a head from an earlier piece is not in this piece

    cdef int64_t take_head(self, const uint8_t *at, int64_t size, bint *is_found) noexcept nogil:
        """Read the head of a record, and set `is_found` if the record matches. Return the size of the whole record in
        bytes, CUT if the head is incomplete, or ENDLESS if it is malformed.
        """
        cdef int64_t length = 0, timestamp_ms = 0, offset = 0, end
        cdef int of_length = read_zigzag(at, size, 5, &length), of_timestamp, of_offset
        if of_length <= 0:
            return of_length
        end = of_length + 1             # the position behind the attributes
        if end >= size:
            return CUT if length > 0 else ENDLESS
        of_timestamp = read_zigzag(at + end, size - end, 10, &timestamp_ms)
        if of_timestamp <= 0:
            return of_timestamp
        end += of_timestamp
        of_offset = read_zigzag(at + end, size - end, 5, &offset)
        if of_offset <= 0:
            return of_offset
        if end + of_offset > of_length + length:
            return ENDLESS
        offset = add_wrapping(self.fields.base_offset, offset)
        timestamp_ms = (self.fields.max_timestamp_ms if self.fields.attributes & LOG_APPEND_TIME_BIT
                        else add_wrapping(self.fields.base_timestamp_ms, timestamp_ms))
        if timestamp_ms >= self.timestamp_ms and offset >= self.start_offset:
            self.found_timestamp_ms = timestamp_ms
            self.found_offset = offset
            is_found[0] = True
        return of_length + length

    cdef bint add_bytes(self, const uint8_t *at, int64_t size) except -1:
        """Scan the next bytes of the records. Return whether the record is found. Raise KafkaError if the bytes are
        malformed.
        """
        cdef Step step
        self.expect(size)
        self.room_bytes -= size
        with nogil:
            step = self.scan(at, size)
        if step == MALFORMED:
            self.refuse('bytes that are no record')
        return step == FOUND

    cdef int refuse(self, str found) except -1:
        raise CorruptBatchError(f'found {found} behind {self.fields.records_count - self.left} of the '
                                f'{self.fields.records_count} records of the batch at offset {self.fields.base_offset}')

    cdef int end(self) except -1:
        """End a scan that has found no record, after the last bytes. Raise CorruptBatchError if the last record is
        incomplete.
        """
        if self.left > 0 or self.skipped > 0 or self.head_bytes > 0:
            self.refuse('the end of the records')
        return 0

    def expect(self, int64_t size_bytes) -> None:
        """Raise ExpansionError if there is no room for `size_bytes` more."""
        if size_bytes > self.room_bytes:
            raise ExpansionError(MAX_DECOMPRESSED_BYTES)

    def add(self, piece) -> None:
        """Scan the next decompressed bytes. Raise Found if the record is found. Raise the errors of `find_in_batch`."""
        cdef Py_buffer view
        PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
        try:
            if self.add_bytes(<const uint8_t *>view.buf, view.len):
                raise Found
        finally:
            PyBuffer_Release(&view)

    def decompress(self, data) -> bool:
        """Decompress `data`, the compressed records of the batch, and scan them. Return whether the record is found.
        Raise the errors of `find_in_batch`.
        """
        try:
            decompress_to(self.fields.attributes & COMPRESSION_MASK, data, self)
        except Found:
            return True
        self.end()
        return False


cdef TimestampScan scan_of(const BatchFields *fields, int64_t timestamp_ms, int64_t start_offset):
    """Return a scan of the batch that has the header `fields`."""
    cdef TimestampScan scan = TimestampScan.__new__(TimestampScan)
    scan.fields = fields[0]
    scan.timestamp_ms = timestamp_ms
    scan.start_offset = start_offset
    scan.left = fields.records_count
    scan.room_bytes = MAX_DECOMPRESSED_BYTES if fields.attributes & COMPRESSION_MASK else batch_size_bytes(fields)
    return scan


def find_in_batch(batch, int64_t timestamp_ms, int64_t start_offset=0, Py_ssize_t piece_bytes=65536):
    """Return (timestamp in ms, offset) of the first record in the whole batch `batch` with a timestamp at or after
    `timestamp_ms` and an offset at or above `start_offset`. Return None if there is none.

    Raise KafkaError CORRUPT_MESSAGE if the batch is malformed, and MESSAGE_TOO_LARGE if the decompressed records are
    too large.
    """
    cdef const uint8_t[::1] view = batch
    cdef BatchFields fields
    cdef TimestampScan scan
    cdef Py_ssize_t position, end
    cdef bint is_found = False
    fault = parse_header(&view[0] if len(view) else NULL, len(view), &fields)
    if fault != HEADER_READ:
        refuse_header(fault, &fields, len(view))
    if batch_size_bytes(&fields) > len(view):
        raise CorruptBatchError(f'found {len(view)} bytes of the batch, expected {batch_size_bytes(&fields)}')
    end = batch_size_bytes(&fields)
    scan = scan_of(&fields, timestamp_ms, start_offset)
    if fields.attributes & COMPRESSION_MASK:
        is_found = scan.decompress(memoryview(batch)[HEADER_BYTES:end])
    else:
        position = HEADER_BYTES
        while position < end and not is_found:
            is_found = scan.add_bytes(&view[position], min(piece_bytes, end - position))
            position += piece_bytes
        if not is_found:
            scan.end()
    return (scan.found_timestamp_ms, scan.found_offset) if is_found else None

"""Iterates over the batches of a file, which it reads through a window of bounded size."""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove

from cpython.bytes cimport PyBytes_FromStringAndSize
from kbroker.base.errors import CorruptLogError
from kbroker.record.batch cimport (
    HEADER_BYTES, HEADER_CUT, HEADER_READ, BatchFields, HeaderFault, batch_size_bytes, header_of, parse_header)
from kbroker.wire.crc32c cimport crc32c_update


cdef class BatchWalk:
    """An iteration over the batches of a file. `next` steps to a batch and reads its header into `fields`; `data`
    returns the whole batch, valid until the next step."""

    def __dealloc__(self):
        free(self.window)

    cdef const uint8_t *need(self, int64_t position, int64_t size) except NULL nogil:
        """Return the address of `size` bytes at `position`. The bytes must not extend beyond `end`. From call to call,
        `position` must not decrease.
        """
        if self.window_start + self.window_bytes - position < size:
            with gil:
                self.refill(position, size)
        return self.window + (position - self.window_start)

    cdef int refill(self, int64_t position, int64_t size) except -1:
        """Move the window forward to `position`. Keep the bytes that were already read from there, and read more behind
        them.
        """
        cdef int64_t kept = max(<int64_t>0, self.window_start + self.window_bytes - position)
        cdef int64_t wanted
        cdef uint8_t *wider
        if size > self.capacity:
            wider = <uint8_t *>malloc(size)
            if wider == NULL:
                raise MemoryError()
            free(self.window)
            self.window = wider
            self.capacity = size
            kept = 0
        elif kept > 0:
            memmove(self.window, self.window + (position - self.window_start), kept)
        self.window_start = position
        self.window_bytes = kept
        wanted = min(self.capacity, self.end - position) - kept
        self.window_bytes += self.file.pread(self.window + kept, wanted, position + kept)
        if self.window_bytes < size:
            raise CorruptLogError(f'{self.file.path}: found {self.window_bytes} bytes at {position}, expected {size}')
        return 0

    cdef bint next(self) except -1 nogil:
        """Step to the next batch. Return False at the end, or if no whole batch follows. In the second case, set
        `fault` to the reason.
        """
        self.position = self.next_position
        self.fault = HEADER_READ
        if self.position >= self.end:
            return False
        if self.end - self.position < HEADER_BYTES:
            self.fault = HEADER_CUT
            return False
        self.fault = parse_header(self.need(self.position, HEADER_BYTES), HEADER_BYTES, &self.fields)
        if self.fault == HEADER_READ and batch_size_bytes(&self.fields) > self.end - self.position:
            self.fault = HEADER_CUT
        if self.fault != HEADER_READ:
            return False
        self.next_position = self.position + batch_size_bytes(&self.fields)
        return True

    cdef const uint8_t *data(self) except NULL nogil:
        return self.need(self.position, batch_size_bytes(&self.fields))

    cdef bint crc_matches(self) except -1:
        cdef const uint8_t *data = self.data()
        cdef size_t size = batch_size_bytes(&self.fields)
        cdef bint matches
        with nogil:
            matches = crc32c_update(0, data + 21, size - 21) == self.fields.crc
        return matches

    def __iter__(self):
        """Yield (header, copy of the batch) for each batch. Raise CorruptLogError at the first bytes that are not a
        batch.
        """
        while self.next():
            yield header_of(&self.fields), memoryview(PyBytes_FromStringAndSize(
                <const char *>self.data(), self.next_position - self.position))
        if self.fault != HEADER_READ:
            raise CorruptLogError(f'{self.file.path}: found no batch at {self.position}, '
                                  f'expected one before the end at {self.end}')


cdef BatchWalk walk_batches(File file, int64_t position, int64_t end, int64_t window_bytes):
    """Return a walk over the batches of `file` between `position` and `end`. A batch must begin at `position`."""
    cdef BatchWalk walk = BatchWalk.__new__(BatchWalk)
    walk.file = file
    walk.next_position = position
    walk.end = end
    walk.capacity = max(<int64_t>HEADER_BYTES, min(window_bytes, end - position))
    walk.window = <uint8_t *>malloc(walk.capacity)
    if walk.window == NULL:
        raise MemoryError()
    return walk


cdef int64_t find_batch(File file, int64_t position, int64_t end) except -2:
    """Return the position of the first whole batch with a valid checksum between `position` and `end`, or -1. Try every
    byte.
    """
    cdef BatchWalk walk = walk_batches(file, position, end, SCAN_BYTES)
    while position + HEADER_BYTES <= end:
        walk.next_position = position
        if walk.next() and walk.crc_matches():
            return position
        position += 1
    return -1


def read_batches(File file not None, int64_t position, int64_t end) -> BatchWalk:
    """Return an iterator over (header, batch) of the batches between `position` and `end`."""
    return walk_batches(file, position, end, SCAN_BYTES)

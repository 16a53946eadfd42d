"""A file through which tests observe the broker's changes and make them fail."""
from libc.stdint cimport int64_t, uint8_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from kbroker.log.fs.file cimport File, iovec


cdef class InterposedFile(File):
    """A file that calls `on_write`, `on_truncate` or `on_sync` before a write, a truncation or a sync. Each of these
    methods may raise.
    """

    cdef int pwrite(self, const uint8_t *data, size_t size, int64_t position) except -1:
        error = self.on_write(PyBytes_FromStringAndSize(<const char *>data, size), position)
        if error is None:
            return File.pwrite(self, data, size, position)
        reached, exception = error
        File.pwrite(self, data, min(size, <size_t>reached), position)
        raise exception

    cdef int pwrite_pieces(self, const iovec *pieces, int count, int64_t position) except -1:
        cdef bytes data = b''.join([(<const char *>pieces[i].iov_base)[:pieces[i].iov_len] for i in range(count)])
        return self.pwrite(<const uint8_t *>PyBytes_AS_STRING(data), len(data), position)

    cdef int64_t pread_cached(self, uint8_t *into, size_t size, int64_t position) except -1:
        return File.pread_cached(self, into, self.cached_bytes(size, position), position)

    cdef int truncate(self, int64_t size) except -1:
        self.on_truncate(size)
        return File.truncate(self, size)

    cdef int fdatasync(self) except -1:
        self.on_sync()
        return File.fdatasync(self)

    def on_write(self, data: bytes, position: int):
        """Return None to allow the write. To make it fail, return (number of bytes that reach the file, OSError to
        raise).
        """

    def cached_bytes(self, size: int, position: int) -> int:
        """Return the number of bytes at `position`, up to `size`, that reads must treat as being in the page cache."""
        return size

    def on_truncate(self, size: int) -> None:
        pass

    def on_sync(self) -> None:
        pass

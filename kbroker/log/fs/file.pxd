# cython: language_level=3
from libc.stdint cimport int64_t, uint8_t


cdef extern from '<sys/uio.h>' nogil:
    struct iovec:
        void *iov_base
        size_t iov_len


cdef class File:
    cdef readonly str path
    cdef int descriptor
    cdef readonly bint always_waits          # True if the file system cannot report what is in the page cache

    cdef int pwrite(self, const uint8_t *data, size_t size, int64_t position) except -1
    cdef int pwrite_pieces(self, const iovec *pieces, int count, int64_t position) except -1
    cdef int64_t pread(self, uint8_t *into, size_t size, int64_t position) except -1
    cdef int64_t pread_cached(self, uint8_t *into, size_t size, int64_t position) except -1
    cdef int fdatasync(self) except -1
    cdef int truncate(self, int64_t size) except -1
    cdef int allocate(self, int64_t position, int64_t size) except -1


cdef class Directory(File):
    pass

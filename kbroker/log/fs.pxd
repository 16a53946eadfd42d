# cython: language_level=3
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t


cdef extern from '<sys/uio.h>' nogil:
    struct iovec:
        void *iov_base
        size_t iov_len


cdef class File:
    cdef readonly str path
    cdef int descriptor
    cdef readonly bint always_waits          # the file system cannot tell what is in the page cache

    cdef int pwrite(self, const uint8_t *data, size_t size, int64_t position) except -1
    cdef int pwrite_pieces(self, const iovec *pieces, int count, int64_t position) except -1
    cdef int64_t pread(self, uint8_t *into, size_t size, int64_t position) except -1
    cdef int64_t pread_cached(self, uint8_t *into, size_t size, int64_t position) except -1
    cdef int fdatasync(self) except -1
    cdef int truncate(self, int64_t size) except -1
    cdef int allocate(self, int64_t position, int64_t size) except -1


cdef class LazyFile:
    cdef object fs
    cdef readonly str path
    cdef File file
    cdef Py_ssize_t slot            # among the open files, -1 while it is closed
    cdef bint is_used               # since the last look
    cdef bint awaits_sync

    cdef File get(self, bint create=*)
    cdef int close(self) noexcept


cdef class OpenFiles:
    cdef public Py_ssize_t limit
    cdef PyObject **files           # borrowed: a LazyFile that goes takes itself out
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef Py_ssize_t hand

    cdef int put(self, LazyFile file) except -1
    cdef int forget(self, LazyFile file) noexcept
    cpdef Py_ssize_t release(self, Py_ssize_t wanted)


cdef class Directory(File):
    pass


cdef int sync_descriptor(int descriptor, bint is_directory) noexcept nogil

# cython: language_level=3
from cpython.object cimport PyObject


cdef class Reopenable:
    cdef Py_ssize_t slot            # the index in `OpenFiles.files`, -1 while the file is closed
    cdef bint is_used               # True if the file was used since `release` last passed it
    cdef bint awaits_sync

    cdef int close(self) noexcept


cdef class OpenFiles:
    cdef public Py_ssize_t limit
    cdef PyObject **files           # borrowed references: a file that is deallocated removes itself
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef Py_ssize_t hand

    cdef int put(self, Reopenable file) except -1
    cdef int forget(self, Reopenable file) noexcept
    cpdef Py_ssize_t release(self, Py_ssize_t wanted)


cdef OpenFiles open_files

cdef int open_descriptor(str path, int flags) except -1
cdef int sync_descriptor(int descriptor, bint is_directory) noexcept nogil

# cython: language_level=3
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t


cdef struct Run:
    int64_t first
    int64_t last
    int64_t deadline_ms     # the end of the lock of ACQUIRED records
    PyObject *member_id     # the owner of ACQUIRED records: a counted reference to a str, or NULL
    int32_t change
    int32_t size
    int16_t count           # the number of deliveries
    int8_t state
    int8_t next_state
    int8_t lock_ended       # the lock has ended while a Change was in flight


cdef bint is_like(Run *run, Run *other) noexcept
cdef bint is_owned_by(Run *run, str member_id) noexcept
cdef str owner_of(Run *run)
cdef void set_owner(Run *run, str member_id) noexcept


@cython.final
cdef class Runs:
    cdef Run *at
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity

    cdef Py_ssize_t find(self, int64_t offset) noexcept
    cdef int append(self, Run run) except -1
    cdef int remove_first(self, Py_ssize_t count) except -1
    cdef Py_ssize_t split_at(self, int64_t offset) except -1
    cdef int split_along(self, list offsets) except -1
    cdef Py_ssize_t count_splits(self, list offsets) except -1
    cdef int truncate(self, Py_ssize_t count) except -1
    cdef int make_room(self, Py_ssize_t more) except -1
    cdef int resize(self, Py_ssize_t capacity) except -1

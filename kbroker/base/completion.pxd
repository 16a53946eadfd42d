# cython: language_level=3


from libc.stdint cimport int64_t


cdef class Completion:
    cdef int complete(self, object error, Py_ssize_t part, object result) except -1
    cdef bint is_overdue(self, int64_t monotonic_ms) noexcept


cdef class Steps:
    cpdef bint reach(self, str point, dict facts, proceed) except -1
    cpdef connection_closed(self, int64_t connection_id)
    cpdef close(self)


cdef class Callback(Completion):
    cdef readonly object function
    cdef public int64_t overdue_ms      # the monotonic time from which `is_overdue` is true; 0: never

# cython: language_level=3


cdef class Completion:
    cdef int complete(self, object error, Py_ssize_t part, object result) except -1


cdef class Callback(Completion):
    cdef readonly object function

# cython: language_level=3
cdef Py_ssize_t utf8_length(str text) except -1
cpdef Py_ssize_t memory_of(object value) except -1


cdef class RecentEntries:
    cdef readonly Py_ssize_t held_bytes
    cdef public Py_ssize_t most_bytes
    cdef public Py_ssize_t most_entries
    cdef Py_ssize_t entry_bytes
    cdef object entries             # OrderedDict: the entry that was used longest ago first

    cpdef object get(self, object key)
    cpdef put(self, object key, object value)
    cpdef forget(self, object key)
    cpdef tuple oldest(self)
    cpdef clear(self)

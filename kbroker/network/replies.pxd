from libc.stdint cimport int64_t


cdef class ReplyQueue:
    cdef readonly int64_t next_reply        # the sequence of the request whose reply leaves next
    cdef readonly Py_ssize_t unanswered     # requests whose reply is missing, or waits for one before it
    cdef readonly int64_t queued_bytes      # of replies that were given and not sent
    cdef dict early                         # replies that wait for one before them
    cdef list segments                      # what may be sent now
    cdef Py_ssize_t head_sent               # bytes of the first segment that are sent

    cdef int64_t take_sequence(self) noexcept
    cpdef put(self, int64_t sequence, list segments)
    cdef list frame(self, list segments)
    cdef int release(self, list segments) except -1
    cdef Py_ssize_t stage(self, char *at, Py_ssize_t room) except -1
    cdef int sent(self, Py_ssize_t size) except -1

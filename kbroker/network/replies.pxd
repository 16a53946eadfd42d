from libc.stdint cimport int64_t


cdef extern from '<sys/uio.h>' nogil:
    struct iovec:
        void *iov_base
        size_t iov_len


cdef enum:
    MAX_PIECES = 64
    ALL_SLICES = 0x7fffffff


cdef struct Outgoing:       # the bytes that one call sends
    char *buffer            # memory for small segments and slices of files
    Py_ssize_t room         # the size of `buffer`
    Py_ssize_t used
    Py_ssize_t size         # of all pieces
    Py_ssize_t max_size
    int count
    int waits               # the number of slices to read even if that waits for the disk
    bint is_cold            # whether the slice after the last piece is not in the page cache
    iovec pieces[MAX_PIECES]


cdef class Reply:
    cdef list segments
    cdef int64_t size               # without the prefix
    cdef int64_t memory_bytes
    cdef Py_ssize_t first           # the segment that is sent next, wholly or in part
    cdef int64_t passed             # bytes of the segments before `first`

    cdef bint stage(self, Outgoing *out, int64_t skip) except -1
    cdef int forget(self, int64_t sent) except -1
    cdef tuple slice_after(self, int64_t skip)


cdef class ReplyQueue:
    cdef readonly int64_t next_reply        # the sequence of the request whose reply leaves next
    cdef readonly Py_ssize_t unanswered     # requests without a reply, or whose reply waits for an earlier one
    cdef readonly int64_t queued_bytes      # bytes of replies that were given and not sent
    cdef readonly int64_t memory_bytes      # the part of queued_bytes that is not in files
    cdef int64_t ready_bytes                # the part of queued_bytes that may be sent now
    cdef dict early                         # replies that wait for an earlier one; None before the first
    cdef list ready                         # the replies that may be sent now, each bytes or a Reply
    cdef int64_t head_sent                  # the sent bytes of the first ready reply and its prefix

    cdef int64_t take_sequence(self) noexcept
    cdef bint is_answered(self, int64_t sequence) except -1
    cdef int put(self, int64_t sequence, object segments) except -1
    cdef object accept(self, object segments)
    cdef int release(self, object reply) except -1
    cdef int stage(self, Outgoing *out, int waits) except -1
    cdef tuple next_slice(self)
    cdef int sent(self, int64_t size) except -1
    cdef int forget(self, object reply) except -1

from kbroker.network.replies cimport Outgoing


cdef class Transport:
    cdef int fd
    cdef bint has_more          # bytes that epoll does not report, as they have left the socket already
    cdef bint owes              # bytes that it took from `send`, or its own answers, are not with the socket yet
    cdef bint is_clogged        # it owes so many answers of its own that it reads no more
    cdef bint shakes_hands      # the handshake is not done: each step costs as much as a long turn
    cdef readonly str failure   # the reason of an error for which the error number is too vague

    cdef ssize_t receive(self, char *at, size_t room) noexcept nogil
    cdef ssize_t send(self, const char *at, size_t size) noexcept nogil
    cdef ssize_t send_pieces(self, Outgoing *out) noexcept nogil
    cdef object peer_certificate(self)

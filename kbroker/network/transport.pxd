from kbroker.network.replies cimport Outgoing


cdef class Transport:
    cdef int fd
    cdef bint has_more          # whether bytes have left the socket and are not read, which epoll does not report
    cdef bint owes              # whether bytes given to `send`, or its own answers, wait for the socket
    cdef bint is_clogged        # whether so many of its own answers wait that it reads no more
    cdef bint shakes_hands      # whether the handshake is not done; each step costs as much as a long turn
    cdef readonly str failure   # the reason of an error, if the error number is too vague

    cdef ssize_t receive(self, char *at, size_t room) noexcept nogil
    cdef ssize_t send(self, const char *at, size_t size) noexcept nogil
    cdef ssize_t send_pieces(self, Outgoing *out) noexcept nogil
    cdef object peer_certificate(self)

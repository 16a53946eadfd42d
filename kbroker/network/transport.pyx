"""The transport of a connection's bytes through its socket."""
from libc.errno cimport errno
from libc.string cimport memset
from posix.unistd cimport close

from kbroker.network.replies cimport Outgoing, iovec


cdef extern from '<sys/socket.h>' nogil:
    int MSG_NOSIGNAL
    ssize_t c_recv 'recv'(int fd, void *at, size_t room, int flags)
    ssize_t c_send 'send'(int fd, const void *at, size_t size, int flags)
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr *message, int flags)


cdef class Transport:
    """A plain socket, which the Transport owns.

    Each call returns the number of bytes moved, 0 if the peer has ended the connection, or -errno for an error.
    """

    def __cinit__(self):
        self.fd = -1

    def __init__(self, int fd):
        self.fd = fd

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    cdef ssize_t receive(self, char *at, size_t room) noexcept nogil:
        cdef ssize_t size = c_recv(self.fd, at, room, 0)
        return size if size >= 0 else -errno

    cdef ssize_t send(self, const char *at, size_t size) noexcept nogil:
        cdef ssize_t sent = c_send(self.fd, at, size, MSG_NOSIGNAL)
        return sent if sent >= 0 else -errno

    cdef ssize_t send_pieces(self, Outgoing *out) noexcept nogil:
        cdef msghdr message
        cdef ssize_t sent
        if out.count == 1:
            return self.send(<char *>out.pieces[0].iov_base, out.pieces[0].iov_len)
        memset(&message, 0, sizeof(message))
        message.msg_iov = out.pieces
        message.msg_iovlen = out.count
        sent = sendmsg(self.fd, &message, MSG_NOSIGNAL)
        return sent if sent >= 0 else -errno

    cdef object peer_certificate(self):
        """Return the verified certificate of the peer in DER, or None."""
        return None

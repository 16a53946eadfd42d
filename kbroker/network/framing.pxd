from libc.stdint cimport uint8_t

from kbroker.network.memory cimport ConnectionMemory


cdef class ReceiveBuffers:
    cdef readonly bytearray shared
    cdef list spares
    cdef ConnectionMemory memory

    cdef bytearray take(self, Py_ssize_t needed, Py_ssize_t wanted)
    cdef int give_back(self, bytearray buffer, Py_ssize_t written_bytes) except -1


cdef class Framer:
    cdef readonly Py_ssize_t max_frame_bytes
    cdef ReceiveBuffers buffers
    cdef bytearray buffer       # holds the unhandled bytes: the shared buffer, or one for this peer
    cdef Py_ssize_t start
    cdef Py_ssize_t end
    cdef bint is_lent           # whether a handler keeps a frame in `buffer`

    cdef Py_ssize_t announced(self) except -1
    cdef Py_ssize_t held(self) noexcept
    cdef Py_ssize_t room(self, char **at) except -1
    cdef void received(self, Py_ssize_t size) noexcept
    cdef bint has_frame(self) noexcept
    cdef Py_ssize_t next_frame(self, uint8_t **frame) except -2
    cdef int leave_shared_buffer(self) except -1
    cdef bytearray lend(self)
    cdef int clear(self) except -1
    cdef int move_to(self, bytearray target) except -1

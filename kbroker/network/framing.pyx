"""The frames in the bytes of a peer. A frame is a 4-byte big-endian size, then as many bytes as the size says.

One receive buffer serves all connections, and frames that arrive whole are served from it. The bytes that remain at the
end of a connection's turn are copied to a buffer for this connection. So an idle connection holds no buffer. The memory
of a large frame's buffer grows with the bytes that have arrived, not with the announced size.
"""
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from kbroker.network.memory cimport MAPPED_BYTES, ConnectionMemory
from kbroker.wire.bytes cimport read_int32

from kbroker.base.errors import FrameMemoryError, ProtocolError


cdef enum:
    PREFIX_BYTES = 4
    # Buffers of at least this size are kept as spares: fresh memory costs a page fault for every 4 KiB, which takes
    # longer than receiving 4 KiB.
    MIN_SPARE_BYTES = 64 * 1024
    MAX_SPARE_BYTES = 2 * 1024 * 1024
    MAX_SPARES = 8
    RESERVED_FROM = 2 * 1024 * 1024


# The first four bytes of requests of HTTP.
cdef tuple HTTP_METHODS = (b'GET ', b'POST', b'HEAD', b'PUT ', b'OPTI', b'CONN', b'PRI ', b'DELE', b'PATC')


cdef class ReceiveBuffers:
    """The buffer that all connections share, and a few spare buffers that held large frames."""

    def __init__(self, Py_ssize_t shared_bytes, ConnectionMemory memory not None):
        self.shared = PyByteArray_FromStringAndSize(NULL, shared_bytes)
        self.spares = []
        self.memory = memory

    cdef bytearray take(self, Py_ssize_t needed, Py_ssize_t wanted):
        """Return a spare buffer of `wanted` to 4 * `wanted` bytes.

        If there is none, return a new one of `needed` bytes or more.

        Raise FrameMemoryError if the system has no memory.
        """
        cdef Py_ssize_t size = MIN_SPARE_BYTES
        cdef Py_ssize_t i
        for i in range(len(self.spares)):
            if wanted <= PyByteArray_GET_SIZE(self.spares[i]) <= 4 * wanted:
                return self.spares.pop(i)
        if MIN_SPARE_BYTES < needed <= MAX_SPARE_BYTES:
            while size < needed:
                size *= 2
            needed = size
        try:
            return PyByteArray_FromStringAndSize(NULL, needed)
        except MemoryError:
            raise FrameMemoryError(f'the system has no memory for {needed} bytes of a request') from None

    cdef int give_back(self, bytearray buffer, Py_ssize_t written_bytes) except -1:
        """Keep a buffer as a spare, or free it. Only the first `written_bytes` of a large buffer take memory."""
        cdef Py_ssize_t size = PyByteArray_GET_SIZE(buffer)
        if size >= MAPPED_BYTES:
            return self.memory.unmap(buffer, written_bytes)
        if size < MIN_SPARE_BYTES or size > MAX_SPARE_BYTES:
            return 0
        self.spares.append(buffer)
        self.spares.sort(key=len)
        if len(self.spares) > MAX_SPARES:
            del self.spares[0]
        return 0


cdef class Framer:
    """Splits the bytes of one peer into frames, in whatever portions the bytes arrive. Knows no socket.

    Call `room` and `received`, then `next_frame` until it finds no frame, then `leave_shared_buffer`. Call `room` only
    after `next_frame` has found no frame.
    """

    def __init__(self, ReceiveBuffers buffers not None, Py_ssize_t max_frame_bytes):
        self.buffers = buffers
        self.max_frame_bytes = max_frame_bytes

    @property
    def pending_bytes(self):
        """The number of bytes that have arrived and are not served yet: a part of a frame, or frames that are held
        back.
        """
        return self.end - self.start

    @property
    def held_bytes(self):
        """The number of bytes of memory that the pending bytes of this peer take outside the shared buffer."""
        return self.held()

    cdef Py_ssize_t held(self) noexcept:
        cdef Py_ssize_t size
        if self.buffer is None or self.buffer is self.buffers.shared:
            return 0
        size = PyByteArray_GET_SIZE(self.buffer)
        # Only a new buffer exceeds this size. The kernel gives it memory only for the bytes written to it.
        return size if size <= 2 * RESERVED_FROM else self.end

    cdef Py_ssize_t announced(self) except -1:
        """Return the size of the next frame with its 4-byte prefix, or 0 if the prefix has not arrived completely.

        Raise ProtocolError for a size below 0 or above `max_frame_bytes`.
        """
        cdef Py_ssize_t size
        if self.end - self.start < PREFIX_BYTES:
            return 0
        size = read_int32(<const uint8_t *>PyByteArray_AS_STRING(self.buffer) + self.start)
        if size < 0 or size > self.max_frame_bytes:
            raise ProtocolError(f'frame size: found {size}, expected 0 to {self.max_frame_bytes}'
                                f'{foreign_protocol(bytes(self.buffer[self.start:self.start + PREFIX_BYTES]))}')
        return PREFIX_BYTES + size

    cdef Py_ssize_t room(self, char **at) except -1:
        """Set `at` to the address at which to receive the next bytes. Return the number of bytes that fit there."""
        cdef Py_ssize_t wanted, pending = self.end - self.start
        # If the pending bytes fill at most a quarter of the shared buffer, they are copied back to it. One receive then
        # reads the rest of their frame and the frames behind it. If the pending bytes are more, they stay in their own
        # buffer, whose size doubles until the frame is whole.
        if pending <= PyByteArray_GET_SIZE(self.buffers.shared) // 4:
            if self.buffer is not self.buffers.shared or self.start:
                self.move_to(self.buffers.shared)
        elif self.end == PyByteArray_GET_SIZE(self.buffer):
            # If at least RESERVED_FROM bytes are pending, the new buffer has the size of the whole frame. The unwritten
            # part of the buffer takes no memory. Doubling would copy tens of MiB and hold the loop.
            wanted = self.announced()
            self.move_to(self.buffers.take(wanted if pending >= RESERVED_FROM else min(2 * pending, wanted), wanted))
        at[0] = PyByteArray_AS_STRING(self.buffer) + self.end
        return PyByteArray_GET_SIZE(self.buffer) - self.end

    cdef void received(self, Py_ssize_t size) noexcept:
        self.end += size

    cdef bint has_frame(self) noexcept:
        """Return whether the next frame has arrived completely."""
        cdef Py_ssize_t pending = self.end - self.start
        cdef const uint8_t *prefix
        if pending < PREFIX_BYTES:
            return False
        prefix = <const uint8_t *>PyByteArray_AS_STRING(self.buffer) + self.start
        return 0 <= read_int32(prefix) <= pending - PREFIX_BYTES

    cdef Py_ssize_t next_frame(self, uint8_t **frame) except -2:
        """Set `frame` to the next whole frame, without its prefix.

        Return its size, or -1 if no whole frame has arrived.

        The address is valid until `leave_shared_buffer` or `room`. Raise ProtocolError for a size that is out of
        bounds.
        """
        cdef Py_ssize_t size = self.announced()
        if size == 0 or self.end - self.start < size:
            return -1
        frame[0] = <uint8_t *>PyByteArray_AS_STRING(self.buffer) + self.start + PREFIX_BYTES
        self.start += size
        return size - PREFIX_BYTES

    cdef int leave_shared_buffer(self) except -1:
        """Copy the pending bytes out of the shared buffer, because the turn ends and the next connection overwrites the
        buffer.

        Raise ProtocolError as `next_frame` does.
        """
        if self.start == self.end:
            self.clear()
        elif self.buffer is self.buffers.shared:
            self.move_to(self.buffers.take(self.end - self.start, max(self.end - self.start, self.announced())))
        return 0

    cdef bytearray lend(self):
        """Return the buffer of the frames that were served last, or None if it is the shared buffer.

        The frames' bytes stay in the returned buffer while it is referenced.
        """
        if self.buffer is self.buffers.shared:
            return None
        self.is_lent = True
        return self.buffer

    cdef int clear(self) except -1:
        """Drop the pending bytes."""
        if self.buffer is not None and self.buffer is not self.buffers.shared and not self.is_lent:
            self.buffers.give_back(self.buffer, self.end)
        self.start = self.end = 0
        self.buffer = None
        self.is_lent = False
        return 0

    cdef int move_to(self, bytearray target) except -1:
        # The copy does not overlap: source and target are different buffers, or no bytes are pending. The caller calls
        # `leave_shared_buffer` before the next `room`.
        cdef Py_ssize_t pending = self.end - self.start
        if pending:
            memcpy(PyByteArray_AS_STRING(target), PyByteArray_AS_STRING(self.buffer) + self.start, pending)
        self.clear()
        self.buffer = target
        self.end = pending
        return 0


cdef str foreign_protocol(bytes prefix):
    """Return words for the first bytes of a client of another protocol, or nothing."""
    if prefix[:2] == b'\x16\x03':
        return ': the client speaks TLS, and this listener does not: set its security.protocol to that of the listener'
    if prefix in HTTP_METHODS:
        return ': the client speaks HTTP, and this is a listener for Kafka clients'
    return ''

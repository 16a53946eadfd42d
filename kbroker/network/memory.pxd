from libc.stdint cimport int64_t

from kbroker.network.reactor cimport EventHandler, Reactor
from kbroker.wire.frames cimport KeptFrame


cdef enum:
    # Frames up to this size are not counted, because a connection without a frame costs about as much memory.
    SMALL_FRAME_BYTES = 4096
    # The C library maps each buffer of at least this size separately, and unmaps it as soon as the buffer is freed.
    MAPPED_BYTES = 32 * 1024 * 1024


cdef class ConnectionMemory


cdef class MemoryHolder(EventHandler):
    cdef ConnectionMemory memory
    cdef readonly int64_t framed_bytes  # bytes of frames not served when the last turn ended; 0 if small
    cdef Py_ssize_t frame_bytes         # size of the frame being served; 0 after its handler has kept it
    cdef dict parked                    # sizes of long unanswered requests by sequence; None before the first
    cdef int64_t parked_bytes           # the sum of `parked`
    cdef int64_t charged_bytes          # the share in ConnectionMemory.held_bytes
    cdef int64_t charged_framed_bytes
    cdef int64_t moved_bytes            # bytes received and sent since the last _relieve that checked this peer
    cdef int64_t mark_relief            # the number of that call of _relieve

    cdef bint may_serve(self) noexcept
    cdef bint delays_others(self) except -1
    cdef int park(self, int64_t sequence) except -1
    cdef int unpark(self, int64_t sequence) except -1
    cdef object keep_frame_of(self, bytearray buffer)
    cdef int release_memory(self) except -1


cdef class ConnectionMemory:
    cdef readonly int64_t held_bytes
    cdef readonly int64_t max_held_bytes
    cdef Reactor reactor
    cdef object in_line         # connections that wait for memory, in the order in which they came; an OrderedDict
    cdef int64_t framed_bytes   # the part of held_bytes in frames that are not served
    cdef MemoryHolder leader    # the connection that reads a long frame although memory is full, or None
    cdef int64_t admitted       # the number of connections that left the line for a turn
    cdef int64_t admitted_before
    cdef int64_t reliefs        # calls of _relieve
    cdef bint is_relieving      # _relieve is scheduled
    cdef object leaving         # the buffers that are being unmapped in parts; a deque of LeavingBuffer
    cdef int64_t leaving_bytes  # the part of held_bytes in `leaving`

    cdef bint is_full(self) noexcept
    cdef bint is_overfull(self) noexcept
    cdef int line_up(self, MemoryHolder connection) except -1
    cdef bint may_lead(self, MemoryHolder connection) except -1
    cdef int charge(self, MemoryHolder connection, int64_t held_bytes) except -1
    cdef int forget(self, MemoryHolder connection) except -1
    cdef bint needs_leader(self) noexcept
    cdef int choose_leader(self) except -1
    cdef int admit_next(self) except -1
    cdef int unmap(self, bytearray buffer, int64_t written_bytes) except -1
    cdef int set_free(self, int64_t freed_bytes) except -1


cdef class LeavingBuffer:
    cdef bytearray buffer
    cdef int64_t written_bytes  # bytes at the beginning of the buffer that are still mapped


cdef class ChargedFrame(KeptFrame):
    cdef ConnectionMemory memory
    cdef int64_t charged_bytes

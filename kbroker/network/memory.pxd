from libc.stdint cimport int64_t

from kbroker.network.reactor cimport EventHandler, Reactor
from kbroker.wire.frames cimport KeptFrame


cdef enum:
    # A frame up to this size is not counted: any connection costs about as much.
    SMALL_FRAME_BYTES = 4096
    # The C library maps a buffer from this size on for itself, and unmaps it as soon as it is freed.
    MAPPED_BYTES = 32 * 1024 * 1024


cdef class MemoryHolder(EventHandler):
    cdef readonly int64_t framed_bytes  # in frames not served yet, when the last turn ended; 0 if small
    cdef int64_t charged_bytes          # the share in ConnectionMemory.held_bytes
    cdef int64_t charged_framed_bytes
    cdef int64_t moved_bytes            # received and sent since the last call of _relieve that looked
    cdef int64_t mark_relief            # the number of that call

    cdef bint may_serve(self) noexcept
    cdef bint delays_others(self) except -1


cdef class ConnectionMemory:
    cdef readonly int64_t held_bytes
    cdef readonly int64_t max_held_bytes
    cdef Reactor reactor
    cdef object in_line         # connections that wait for memory, in the order in which they came; an OrderedDict
    cdef int64_t framed_bytes   # the part of held_bytes that is frames which are not served
    cdef MemoryHolder leader    # reads a long frame to its end though the memory is full; may be None
    cdef int64_t admitted       # connections that left the line for a turn
    cdef int64_t admitted_before
    cdef int64_t reliefs        # calls of _relieve
    cdef bint is_relieving      # _relieve is scheduled
    cdef object leaving         # the buffers that are unmapped in parts; a deque of LeavingBuffer
    cdef int64_t leaving_bytes  # the part of held_bytes that they have

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
    cdef int64_t written_bytes  # that are still mapped, at the beginning of the buffer


cdef class ChargedFrame(KeptFrame):
    cdef ConnectionMemory memory
    cdef int64_t charged_bytes

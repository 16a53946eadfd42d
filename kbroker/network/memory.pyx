"""The memory that all connections together hold, and its limit.

When the memory is full, a frame of up to SMALL_FRAME_BYTES is still served if no reply to its connection is unsent.
Longer frames wait in line. One of them at a time is read to its end, so that it can be served and its memory freed.
While connections wait for memory, a connection that holds memory is closed if it sends and receives too few bytes.
"""
import logging
from collections import OrderedDict, deque
from operator import attrgetter

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MAX, int64_t, uintptr_t

from kbroker.network.reactor cimport EventHandler, Reactor
from kbroker.wire.frames cimport KeptFrame
from kbroker.base.ledger import Line


cdef extern from 'Python.h':
    Py_ssize_t Py_REFCNT(PyObject *)


cdef extern from '<sys/mman.h>' nogil:
    int MADV_DONTNEED
    int madvise(void *at, size_t size, int advice)


cdef enum:
    # While connections wait for memory, each connection that holds memory must move (send or receive) at least
    # RELIEF_BYTES in RELIEF_MS, or it is closed.
    RELIEF_BYTES = 64 * 1024
    RELIEF_MS = 250
    MIN_SLACK_BYTES = 16 * 1024 * 1024
    # Unmapping 100 MiB takes 10 to 20 ms. One turn unmaps this many bytes of a buffer, and other turns run before the
    # next part.
    UNMAPPED_AT_ONCE_BYTES = 8 * 1024 * 1024
    UNMAP_INTERVAL_MS = 1
    LARGEST_PAGE_BYTES = 64 * 1024

SMALL_BYTES = SMALL_FRAME_BYTES
RELIEF_INTERVAL_MS = RELIEF_MS

logger = logging.getLogger('kbroker.network')


cdef class MemoryHolder(EventHandler):
    """The part of a connection that counts its memory: frames, requests that are not answered, and kept frames.

    A subclass in C overrides `may_serve` and `delays_others`, and sets `framed_bytes` and `frame_bytes`.
    """

    def __init__(self, ConnectionMemory memory not None):
        self.memory = memory
        self.mark_relief = -1

    cdef bint may_serve(self) noexcept:
        """Return whether the next frame may be served, provided that memory is free."""
        return False

    cdef bint delays_others(self) except -1:
        """Return whether the peer could free memory of the broker by sending or receiving."""
        raise NotImplementedError(f'{type(self).__name__} holds no memory')

    cdef int park(self, int64_t sequence) except -1:
        """Count the bytes of the request that was just served and is not answered yet: its handler may hold them."""
        if self.frame_bytes > SMALL_FRAME_BYTES:
            if self.parked is None:
                self.parked = {}
            self.parked[sequence] = self.frame_bytes
            self.parked_bytes += self.frame_bytes
        return 0

    cdef int unpark(self, int64_t sequence) except -1:
        """Subtract the bytes of a request that now has its reply, if `park` counted them."""
        if self.parked:
            self.parked_bytes -= self.parked.pop(sequence, 0)
        return 0

    cdef object keep_frame_of(self, bytearray buffer):
        """Return a KeptFrame of `buffer`. It takes over the counted memory of the frame that is being served."""
        cdef ChargedFrame kept = ChargedFrame.__new__(ChargedFrame)
        kept.buffer = buffer
        kept.memory = self.memory
        kept.charged_bytes = self.frame_bytes
        self.memory.held_bytes += self.frame_bytes
        self.frame_bytes = 0
        return kept

    cdef int release_memory(self) except -1:
        """Subtract all memory of this connection, which has closed. The frames that handlers keep stay counted."""
        self.parked = None
        self.parked_bytes = 0
        return self.memory.forget(self)


@cython.final
cdef class ConnectionMemory:
    """The memory that the connections hold (`held_bytes`), and its limit. It counts:

    - the buffers of incomplete frames and of frames that are held back, if larger than SMALL_FRAME_BYTES;
    - requests of more than SMALL_FRAME_BYTES that are not answered;
    - replies that are not sent;
    - buffers of MAPPED_BYTES or more that are being unmapped.

    The limit is checked before bytes are read. So one turn of one connection may exceed it. The `leader` may exceed it,
    too: the one connection that reads a long frame to its end although the memory is full. Short requests are served
    until `held_bytes` exceeds the limit by as much again, or by MIN_SLACK_BYTES if that is more. A `max_held_bytes` of
    0 or less means no limit.
    """

    def __init__(self, Reactor reactor not None, int64_t max_held_bytes):
        self.reactor = reactor
        self.max_held_bytes = max_held_bytes if max_held_bytes > 0 else INT64_MAX
        self.in_line = OrderedDict()
        self.leaving = deque()

    def ledger(self):
        return [Line('requests and replies', 'bytes', lambda: self.held_bytes,
                     lambda: None if self.max_held_bytes == INT64_MAX else self.max_held_bytes,
                     'queued.max.request.bytes')]

    cdef bint is_full(self) noexcept:
        return self.held_bytes >= self.max_held_bytes

    cdef bint is_overfull(self) noexcept:
        return self.held_bytes - self.max_held_bytes >= max(self.max_held_bytes, MIN_SLACK_BYTES)

    cdef int charge(self, MemoryHolder connection, int64_t held_bytes) except -1:
        """Set the memory that the connection holds to `held_bytes`, which include its `framed_bytes`.

        Admit a waiting connection if memory is free.
        """
        self.held_bytes += held_bytes - connection.charged_bytes
        connection.charged_bytes = held_bytes
        self.framed_bytes += connection.framed_bytes - connection.charged_framed_bytes
        connection.charged_framed_bytes = connection.framed_bytes
        if self.in_line:
            if not self.is_full():
                self.admit_next()
            elif self.needs_leader():
                self.choose_leader()
        return 0

    cdef int forget(self, MemoryHolder connection) except -1:
        """Subtract all memory of a connection that has closed."""
        self.in_line.pop(connection, None)
        if self.leader is connection:
            self.leader = None
        connection.framed_bytes = 0
        return self.charge(connection, 0)

    cdef int line_up(self, MemoryHolder connection) except -1:
        """Put the connection at the end of the line. It gets a turn when memory is free."""
        self.in_line[connection] = None
        if not self.is_relieving:
            self.is_relieving = True
            self.reactor.machine_timers.after(RELIEF_MS, self._relieve)
        return 0

    cdef bint needs_leader(self) noexcept:
        """Return whether frames fill the memory, so that memory becomes free only if one of them is read to its end."""
        return self.leader is None and self.held_bytes - self.framed_bytes < self.max_held_bytes

    cdef bint may_lead(self, MemoryHolder connection) except -1:
        """Make the connection the leader if one is needed. Return whether it is the leader.

        The leader reads a long frame to its end although the memory is full.
        """
        if self.needs_leader():
            self.leader = connection
        return self.leader is connection

    cdef int choose_leader(self) except -1:
        """Make the next connection in line the leader, so that it reads its long frame to its end."""
        cdef MemoryHolder connection = next(iter(self.in_line))
        if not connection.may_serve():
            self.in_line.move_to_end(connection)
            return 0
        del self.in_line[connection]
        self.admitted += 1
        self.leader = connection
        return self.reactor.give_turn(connection)

    cdef int admit_next(self) except -1:
        """Give the next connection in line a turn because memory is free.

        The end of its turn calls this function again.
        """
        cdef MemoryHolder connection
        while self.in_line:
            connection, _ = self.in_line.popitem(last=False)
            if connection.fd >= 0:
                self.admitted += 1
                return self.reactor.give_turn(connection)
        return 0

    cdef int unmap(self, bytearray buffer, int64_t written_bytes) except -1:
        """Free a buffer of MAPPED_BYTES or more in parts. It counts as held until its last part is unmapped.

        If other code still refers to the buffer when its next part is to be unmapped, the last reference frees it
        instead.
        """
        cdef LeavingBuffer leaving = LeavingBuffer.__new__(LeavingBuffer)
        leaving.buffer = buffer
        leaving.written_bytes = written_bytes
        self.held_bytes += written_bytes
        self.leaving_bytes += written_bytes
        self.leaving.append(leaving)
        if len(self.leaving) == 1:
            self.reactor.machine_timers.after(UNMAP_INTERVAL_MS, self._unmap_part)
        return 0

    def _unmap_part(self):
        """Unmap a part of the first buffer in `leaving`: the last part that is still mapped."""
        cdef LeavingBuffer leaving = self.leaving[0]
        cdef int64_t freed_bytes, kept_bytes = 0
        if Py_REFCNT(<PyObject *>leaving.buffer) == 1:
            kept_bytes = max(<int64_t>0, leaving.written_bytes - UNMAPPED_AT_ONCE_BYTES)
            unmap_from(PyByteArray_AS_STRING(leaving.buffer) + kept_bytes, leaving.written_bytes - kept_bytes)
        if kept_bytes == 0:
            self.leaving.popleft()
        if self.leaving:
            self.reactor.machine_timers.after(UNMAP_INTERVAL_MS, self._unmap_part)
        freed_bytes, leaving.written_bytes = leaving.written_bytes - kept_bytes, kept_bytes
        self.leaving_bytes -= freed_bytes
        self.set_free(freed_bytes)

    cdef int set_free(self, int64_t freed_bytes) except -1:
        """Subtract memory that was freed outside the turns of connections.

        Admit the next connection in line if memory is free.
        """
        self.held_bytes -= freed_bytes
        if self.in_line and not self.is_full():
            self.admit_next()
        return 0

    def _relieve(self):
        """Close connections that hold memory while other connections wait for memory.

        First, close the connections that moved fewer than RELIEF_BYTES since the last call. If the memory is still
        full, and no connection was admitted since the last call, close the connections in line whose frames hold most
        memory, until memory is free.
        """
        cdef MemoryHolder connection
        cdef int64_t closed = 0
        self.is_relieving = False
        self.reliefs += 1       # marks of earlier calls than the last one do not count
        if not self.in_line:
            return
        for handler in list(self.reactor.handlers):
            if isinstance(handler, MemoryHolder) and (<MemoryHolder>handler).delays_others():
                connection = handler
                if connection.mark_relief == self.reliefs - 1 and connection.moved_bytes < RELIEF_BYTES:
                    connection.close('it holds memory that others wait for', logging.INFO)
                    closed += 1
                connection.mark_relief = self.reliefs
                connection.moved_bytes = 0
        if self.is_full() and self.needs_leader() and self.admitted == self.admitted_before:
            for connection in sorted(self.in_line, key=attrgetter('framed_bytes'), reverse=True):
                if self.held_bytes - self.leaving_bytes < self.max_held_bytes or connection.framed_bytes == 0:
                    break
                connection.close('its frame holds memory that others wait for', logging.INFO)
                closed += 1
        self.admitted_before = self.admitted
        if closed:
            logger.warning('requests and replies in memory reached queued.max.request.bytes=%d: closed %d connections '
                           'that held some and moved less than %d bytes in %d ms', self.max_held_bytes, closed,
                           RELIEF_BYTES, RELIEF_MS)
        if self.in_line and not self.is_full():
            self.admit_next()       # memory of a frame kept by its handler was freed outside of a turn
        if self.in_line and not self.is_relieving:
            self.is_relieving = True
            self.reactor.machine_timers.after(RELIEF_MS, self._relieve)


cdef int unmap_from(char *at, size_t size) except -1:
    """Give the kernel back all whole pages between `at` and `at` + `size`. Their content is lost."""
    cdef uintptr_t first = (<uintptr_t>at + LARGEST_PAGE_BYTES - 1) & ~<uintptr_t>(LARGEST_PAGE_BYTES - 1)
    cdef uintptr_t end = (<uintptr_t>at + size) & ~<uintptr_t>(LARGEST_PAGE_BYTES - 1)
    if first < end:
        with nogil:
            madvise(<void *>first, end - first, MADV_DONTNEED)
    return 0


cdef class LeavingBuffer:
    """A buffer that is unmapped in parts, its last part first."""


# __dealloc__ needs the references, so the garbage collector must not clear them when it frees the frame.
@cython.no_gc_clear
cdef class ChargedFrame(KeptFrame):
    """A frame that its handler keeps. Its memory stays counted even after its connection has closed."""

    def __dealloc__(self):
        if self.buffer is not None and PyByteArray_GET_SIZE(self.buffer) >= MAPPED_BYTES:
            self.memory.unmap(self.buffer, PyByteArray_GET_SIZE(self.buffer))
        self.memory.set_free(self.charged_bytes)

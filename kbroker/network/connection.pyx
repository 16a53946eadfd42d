"""One peer: its frames handed out one by one, its replies sent in their order.

Three things hold frames back, and while one does, nothing is read from the socket, so that the peer's send window fills
and it stops:

- the mute: a frame is handed out only when the one before it was answered, or its handler let the next pass;
- MAX_UNANSWERED requests that passed without an answer;
- MAX_QUEUED_BYTES of replies that the peer does not read.

A reply is sent at the end of the tick, with all others that are ready, by one call. A peer that ends its side is still
answered what it asked; one that resets is forgotten without a word.
"""
import logging
import os

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint32_t
from posix.unistd cimport close

from kbroker.network.framing cimport Framer, ReceiveBuffers
from kbroker.network.reactor cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EventHandler, Reactor
from kbroker.network.replies cimport ReplyQueue

from kbroker.errors import ProtocolError


cdef extern from '<sys/socket.h>' nogil:
    int MSG_NOSIGNAL
    ssize_t c_recv 'recv'(int fd, void *at, size_t room, int flags)
    ssize_t c_send 'send'(int fd, const void *at, size_t size, int flags)


cdef enum:
    RECEIVE_BUFFER_BYTES = 128 * 1024
    SEND_BUFFER_BYTES = 256 * 1024
    # What one connection may do in one tick, before the others have their turn.
    RECEIVE_TURN_BYTES = 512 * 1024
    FRAMES_PER_TURN = 64
    MAX_UNANSWERED_REQUESTS = 64
    MAX_QUEUED_REPLY_BYTES = 1024 * 1024
    # Fewer bytes of an unfinished frame than this are no progress: a peer that trickles is as idle as a silent one.
    PROGRESS_BYTES = 4096
    SWEEPS_PER_IDLE_TIME = 4

MAX_UNANSWERED = MAX_UNANSWERED_REQUESTS
MAX_QUEUED_BYTES = MAX_QUEUED_REPLY_BYTES

logger = logging.getLogger('kbroker.network')


cdef class Transport:
    """How bytes pass a plain socket: 0 at the end, -errno for an error. Owns the fd."""

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


cdef class Commons:
    """What the connections of one reactor share: where frames go, the two buffers, the counters.

    `handle(connection, sequence, frame)` gets each frame as a writable view, valid during the call. It, or anybody
    after it, calls `connection.reply(sequence, segments)` once. ProtocolError out of it closes the connection.
    `on_close(connection)` is called once per connection.
    """

    def __init__(self, Reactor reactor not None, handle, on_close, Py_ssize_t max_request_bytes):
        self.reactor = reactor
        self.handle = handle
        self.on_close = on_close
        self.max_request_bytes = max_request_bytes
        self.receive_buffers = ReceiveBuffers(RECEIVE_BUFFER_BYTES)
        self.send_buffer = bytearray(SEND_BUFFER_BYTES)

    @property
    def open(self):
        """Connections that are open."""
        return self.opened - self.closed

    def sweep(self, connections):
        """Close those that made no progress since SWEEPS_PER_IDLE_TIME calls of this."""
        self.sweeps += 1
        for connection in list(connections):
            (<Connection?>connection).close_if_idle()

    @staticmethod
    def sweep_interval_ms(max_idle_ms):
        """How often to call `sweep` so that no connection is closed before `max_idle_ms`, nor long after."""
        return max(1, max_idle_ms // SWEEPS_PER_IDLE_TIME)


cdef class Connection(EventHandler):
    """A connected, non-blocking socket and what was read from it and is to be written to it. Owns `fd` from here on."""

    def __init__(self, Commons commons not None, int fd, client_host='', client_port=-1, local_port=-1):
        self.commons = commons
        self.reactor = commons.reactor
        self.transport = Transport(fd)
        self.framer = Framer(commons.receive_buffers, commons.max_request_bytes)
        self.replies = ReplyQueue()
        self.client_host = client_host
        self.client_port = client_port
        self.local_port = local_port
        self.active_sweep = commons.sweeps
        self.reactor.register(fd, self, EPOLLIN)
        commons.opened += 1
        self.connection_id = commons.opened

    def __repr__(self):
        return f'<connection {self.connection_id} of {self.client_host}:{self.client_port}>'

    @property
    def is_closed(self):
        return self.state == CLOSED

    @property
    def is_reading(self):
        """False while the peer is held up."""
        return self.interest & EPOLLIN != 0

    cpdef reply(self, int64_t sequence, list segments):
        """Answer a request; None if it gets no answer. The reply leaves at the end of the tick, after those before it.

        For a connection that has closed this does nothing. ValueError for a second answer.
        """
        if self.state == CLOSED:
            return
        self.replies.put(sequence, segments)
        self.reactor.call_at_tick_end(self)
        self.let_next_pass(sequence)

    cpdef let_next_pass(self, int64_t sequence):
        """Hand out the next frame though this request has no reply yet: all that it changes is visible already."""
        if sequence == self.last_sequence:
            self.muted = False
        self.resume()

    def close_after_flush(self):
        """Hand out no more frames; close when the requests under way are answered and the answers sent."""
        if self.state == OPEN or self.state == PEER_ENDED:
            self.state = LEAVING
            self.set_interest(self.interest & EPOLLOUT)
            self.reactor.call_at_tick_end(self)

    def close(self, reason, level=logging.WARNING):
        """Close now, and log why. What is not sent yet, and replies that come later, are dropped."""
        if self.state == CLOSED:
            return
        self.state = CLOSED
        logger.log(level, 'connection %d of %s:%d closed: %s', self.connection_id, self.client_host, self.client_port,
                   reason)
        self.reactor.unregister(self)
        # Others may hold this object for long; the memory goes now. A frame that is being handled keeps its own buffer.
        self.transport = None
        self.framer.clear()
        self.replies = ReplyQueue()
        self.commons.closed += 1
        if self.commons.on_close is not None:
            self.commons.on_close(self)

    cdef bint may_hand_out(self) noexcept:
        return (self.state <= PEER_ENDED and not self.muted
                and self.replies.unanswered < MAX_UNANSWERED_REQUESTS
                and self.replies.queued_bytes < MAX_QUEUED_REPLY_BYTES)

    cdef int resume(self) except -1:
        if self.stalled and self.may_hand_out():
            self.stalled = False
            self.reactor.give_turn(self)
        return 0

    cdef int on_events(self, uint32_t events) except -1:
        if self.state == CLOSED:
            return 0
        if events & EPOLLERR or (events & EPOLLHUP and not self.may_hand_out()):
            # Nobody is there to read what is owed. With EPOLLHUP alone the last bytes are still to be read.
            self.close('the peer reset the connection', logging.DEBUG)
            return 0
        if events & EPOLLOUT:
            self.reactor.call_at_tick_end(self)
        try:
            self.take_turn(events)
        except ProtocolError as error:
            if self.state != CLOSED:
                self.send()
            self.close(f'protocol error: {error}')
        return 0

    cdef int take_turn(self, uint32_t events) except -1:
        """Hand out what is here; then read once and hand out that."""
        cdef bint wants_more = self.framer.start == self.framer.end or self.hand_out()
        if self.state == OPEN and events & (EPOLLIN | EPOLLHUP) and wants_more:
            if not self.may_hand_out():
                self.stalled = True
            elif self.receive():
                wants_more = self.hand_out()
        if self.state == CLOSED:
            return 0
        self.framer.settle()
        self.count_progress()
        if self.state == PEER_ENDED and wants_more:
            self.state = LEAVING
            self.reactor.call_at_tick_end(self)
        return self.set_interest(self.interest & EPOLLOUT)

    cdef int receive(self) except -1:
        """Read once. Returns 1 if there is something new."""
        cdef char *at = NULL
        cdef Py_ssize_t room = min(self.framer.room(&at), RECEIVE_TURN_BYTES)
        cdef ssize_t size
        with nogil:
            size = self.transport.receive(at, room)
        if size > 0:
            self.framer.received(size)
            self.commons.received_bytes += size
            return 1
        if size == 0:
            self.state = PEER_ENDED
        elif size != -EAGAIN and size != -EINTR:
            self.close(os.strerror(-size), logging.DEBUG)
        return 0

    cdef bint hand_out(self) except -1:
        """Hand out whole frames, as many as may be now. True if none is left, so that the next needs more bytes."""
        cdef int left = FRAMES_PER_TURN
        while self.may_hand_out():
            self.stalled = False
            if left == 0:
                self.reactor.give_turn(self)
                return False
            frame = self.framer.next_frame()
            if frame is None:
                return True
            left -= 1
            self.last_sequence = self.replies.take_sequence()
            self.muted = True
            self.active_sweep = self.commons.sweeps
            self.commons.requests += 1
            self.commons.handle(self, self.last_sequence, frame)
        if self.state > PEER_ENDED:
            return False
        self.stalled = self.framer.start < self.framer.end
        return not self.stalled

    cdef int on_tick_end(self) except -1:
        if self.state == CLOSED:
            return 0
        self.send()
        if self.state == LEAVING and self.replies.unanswered == 0 and self.replies.queued_bytes == 0:
            self.close('every answer is sent', logging.DEBUG)
        elif self.state != CLOSED:
            self.resume()
        return 0

    cdef int send(self) except -1:
        """Send once, as much as the send buffer holds; the rest has its turn in the next tick or when there is room."""
        cdef char *at = PyByteArray_AS_STRING(self.commons.send_buffer)
        cdef Py_ssize_t staged
        cdef ssize_t size
        try:
            staged = self.replies.stage(at, SEND_BUFFER_BYTES)
        except OSError as error:
            self.close(f'the reply cannot be read: {error}', logging.ERROR)
            return 0
        if staged == 0:
            return self.set_interest(False)
        with nogil:
            size = self.transport.send(at, staged)
        if size < 0:
            if size != -EAGAIN and size != -EINTR:
                self.close(os.strerror(-size), logging.DEBUG)
                return 0
            size = 0
        if size:
            self.replies.sent(size)
            self.commons.sent_bytes += size
            self.active_sweep = self.commons.sweeps
        return self.set_interest(len(self.replies.segments) > 0)

    cdef int set_interest(self, bint wants_out) except -1:
        cdef uint32_t interest = EPOLLOUT if wants_out else 0
        if self.state == OPEN and not self.stalled:
            interest |= EPOLLIN
        return self.reactor.modify(self, interest)

    cdef int count_progress(self) except -1:
        """Let an unfinished frame count as a sign of life whenever PROGRESS_BYTES of it have come."""
        cdef Py_ssize_t pending = self.framer.end - self.framer.start
        if pending - self.counted_bytes >= PROGRESS_BYTES:
            self.active_sweep = self.commons.sweeps
            self.counted_bytes = pending
        elif pending < self.counted_bytes:
            self.counted_bytes = pending
        return 0

    def close_if_idle(self):
        """Part of a sweep. A peer that waits for its answer, and takes what it gets, is not idle."""
        cdef bint awaits_answer = self.replies.unanswered > 0 and not self.replies.segments
        if awaits_answer:
            self.active_sweep = self.commons.sweeps
        elif self.commons.sweeps - self.active_sweep > SWEEPS_PER_IDLE_TIME:
            self.close('idle', logging.INFO)

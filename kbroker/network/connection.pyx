"""One peer: its frames handed out one by one, its replies sent in their order.

Three things hold frames back, and while one does, nothing is read from the socket, so that the peer's send window fills
and it stops:

- the mute: a frame is handed out only when the one before it was answered, or its handler let the next pass;
- MAX_UNANSWERED requests that passed without an answer;
- MAX_QUEUED_BYTES of replies that the peer does not read.

What all connections together hold is bounded too, see `Commons.max_held_bytes`. At that bound a frame of up to
SMALL_FRAME_BYTES still passes, if its connection owes no reply; a longer one that has not begun waits in line. One that
has begun may always come to its end, so that what holds the memory gives it back.

A reply is sent at the end of the tick, with all others that are ready, by one call. Where it needs a part of a file that
is not in the page cache, a worker brings that in first, and nothing else is sent to this peer meanwhile. A peer that ends its side is still
answered what it asked; one that resets is forgotten without a word.
"""
import logging
import os
from collections import deque
from functools import partial

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t
from libc.string cimport memset
from posix.unistd cimport close

from kbroker.network.framing cimport Framer, ReceiveBuffers
from kbroker.network.reactor cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EventHandler, Reactor
from kbroker.network.replies cimport ALL_SLICES, Outgoing, ReplyQueue, iovec
from kbroker.wire.frames cimport FrameServer

from kbroker.errors import ProtocolError


cdef extern from '<sys/socket.h>' nogil:
    int MSG_NOSIGNAL
    ssize_t c_recv 'recv'(int fd, void *at, size_t room, int flags)
    ssize_t c_send 'send'(int fd, const void *at, size_t size, int flags)
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int fd, const msghdr *message, int flags)


cdef enum:
    RECEIVE_BUFFER_BYTES = 128 * 1024
    # What consumers ask of a partition at once, and the head of the reply: a slice of that size leaves in one call, which
    # takes half of what four calls take. (Two calls take a little less, for what is sent is then still in the processor's
    # second cache; but what a read that may not wait asks for is what the kernel reads ahead, and half of it makes cold
    # fetches up to a third slower. Over loopback sendfile, splice and MSG_ZEROCOPY take more, of the peer too.)
    SEND_BUFFER_BYTES = 1024 * 1024 + 4096
    # What one connection may do in one tick, before the others have their turn.
    RECEIVE_TURN_BYTES = 512 * 1024
    SEND_TURN_BYTES = SEND_BUFFER_BYTES
    # A frame up to here is not worth counting: any connection costs about as much.
    SMALL_FRAME_BYTES = 4096
    FRAMES_PER_TURN = 64
    MAX_UNANSWERED_REQUESTS = 64
    MAX_QUEUED_REPLY_BYTES = 1024 * 1024
    # Fewer bytes of an unfinished frame than this are no progress: a peer that trickles is as idle as a silent one.
    PROGRESS_BYTES = 4096
    SWEEPS_PER_IDLE_TIME = 4

MAX_UNANSWERED = MAX_UNANSWERED_REQUESTS
MAX_QUEUED_BYTES = MAX_QUEUED_REPLY_BYTES
SMALL_BYTES = SMALL_FRAME_BYTES
FRAMES_OF_A_TURN = FRAMES_PER_TURN

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


cdef class Commons:
    """What the connections of one reactor share: the server of their frames, the two buffers, the counters.

    `on_close(connection)` is called once per connection.

    `Limits.max_held_bytes` bounds `held_bytes`, what the connections hold in memory: frames that are not whole yet, by the size
    that they announce, and frames that wait; requests of more than SMALL_FRAME_BYTES that are not answered; replies that
    are not sent. It is checked before bytes are read, so one turn of one connection may pass it. 0 or less: no bound.

    `submit(job, done)` is `Worker.submit`, for reads of cold parts of files. Without it the loop waits for the disk.
    """

    def __init__(self, Reactor reactor not None, FrameServer server not None, limits, on_close=None, submit=None):
        self.reactor = reactor
        self.server = server
        self.on_close = on_close
        self.max_request_bytes = limits.max_request_bytes
        self.max_held_bytes = limits.max_held_bytes if limits.max_held_bytes > 0 else INT64_MAX
        self.submit = submit
        self.in_line = deque()
        self.receive_buffers = ReceiveBuffers(RECEIVE_BUFFER_BYTES)
        self.send_buffer = bytearray(SEND_BUFFER_BYTES)
        self.outgoing.buffer = PyByteArray_AS_STRING(self.send_buffer)
        self.outgoing.room = SEND_BUFFER_BYTES
        self.outgoing.max_size = SEND_TURN_BYTES

    @property
    def open(self):
        """Connections that are open."""
        return self.opened - self.closed

    cdef bint is_full(self) noexcept:
        return self.held_bytes >= self.max_held_bytes

    cdef int line_up(self, Connection connection) except -1:
        """Have it looked at again when memory is free, behind those that wait already."""
        if not connection.is_in_line:
            connection.is_in_line = True
            self.in_line.append(connection)
        return 0

    cdef int admit_next(self) except -1:
        """Memory is free: one gets a turn, and the end of its turn calls this again."""
        cdef Connection connection
        while self.in_line:
            connection = self.in_line.popleft()
            connection.is_in_line = False
            if connection.state != CLOSED:
                connection.stalled = False
                return self.reactor.give_turn(connection)
        return 0

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

    def __init__(self, Commons commons not None, int fd, client_host='', client_port=-1, listener_name='',
                 make_transport=Transport):
        self.commons = commons
        self.reactor = commons.reactor
        self.transport = make_transport(fd)
        self.framer = Framer(commons.receive_buffers, commons.max_request_bytes)
        self.replies = ReplyQueue()
        self.client_host = client_host
        self.client_port = client_port
        self.listener_name = listener_name
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

    cpdef reply(self, int64_t sequence, segments):
        """Answer a request with bytes or a list of segments, or with None if it gets no answer. The reply leaves at the end of the tick, after those before it.

        For a connection that has closed this does nothing. ValueError for a second answer.
        """
        if self.state == CLOSED:
            return
        self.replies.put(sequence, segments)
        if self.parked:
            self.parked_bytes -= self.parked.pop(sequence, 0)
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
        self.parked = None
        self.parked_bytes = self.framed_bytes = 0
        self.charge()
        self.commons.closed += 1
        if self.commons.on_close is not None:
            self.commons.on_close(self)

    cdef bint may_hand_out(self) noexcept:
        return (self.state <= PEER_ENDED and not self.muted
                and self.replies.unanswered < MAX_UNANSWERED_REQUESTS
                and self.replies.queued_bytes < MAX_QUEUED_REPLY_BYTES
                and not (self.replies.memory_bytes and self.commons.is_full()))

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
        if self.waits_for_turn:
            return 0  # one turn a tick is enough
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
        cdef bint unread = self.state == OPEN and (events & (EPOLLIN | EPOLLHUP) or self.transport.has_more)
        if unread and wants_more and self.may_read():
            unread = False
            if self.receive():
                wants_more = self.hand_out()
        if self.state == CLOSED:
            return 0
        # Epoll would say it again in each tick. As long as it has not said anything, it need not be told anything.
        self.deaf = self.stalled and (unread or self.deaf)
        self.framer.settle()
        if self.framer.start == self.framer.end:
            self.admitted = False
        self.framed_bytes = max(self.framer.announced(), self.framer.held()) if self.admitted else 0
        self.count_progress()
        self.charge()
        if self.transport.has_more and not self.stalled:
            self.reactor.give_turn(self)
        if self.state == PEER_ENDED and wants_more:
            self.state = LEAVING
            self.reactor.call_at_tick_end(self)
        return self.set_interest(self.interest & EPOLLOUT)

    cdef bint may_read(self) except -1:
        """Whether to read now. If not, the connection is stalled until something changes."""
        cdef bint is_full = self.commons.is_full()
        self.stalled = (not self.may_hand_out()
                        or is_full and not self.admitted and self.framer.announced() > SMALL_FRAME_BYTES)
        if self.stalled and is_full:
            self.commons.line_up(self)
        return not self.stalled

    cdef int receive(self) except -1:
        """Read once. Returns 1 if there is something new."""
        cdef char *at = NULL
        cdef Py_ssize_t room = min(self.framer.room(&at), RECEIVE_TURN_BYTES)
        cdef ssize_t size
        if not self.admitted:
            if self.commons.is_full():
                room = min(room, SMALL_FRAME_BYTES - (self.framer.end - self.framer.start))
            else:
                self.admitted = True
        with nogil:
            size = self.transport.receive(at, room)
        if size > 0:
            self.framer.received(size)
            self.commons.received_bytes += size
            return 1
        if size == 0:
            self.state = PEER_ENDED
        elif size != -EAGAIN and size != -EINTR:
            self.fail(size)
        return 0

    cdef int fail(self, ssize_t size) except -1:
        """Close for what the transport answered."""
        if self.transport.failure is not None:
            self.close(self.transport.failure, logging.INFO)
        else:
            self.close(os.strerror(-size), logging.DEBUG)
        return 0

    cdef bint hand_out(self) except -1:
        """Hand out whole frames, as many as may be now. True if none is left, so that the next needs more bytes."""
        # What frames were cut from stays until the loan ends, even if the connection closes meanwhile.
        cdef bytearray buffer = self.framer.buffer
        try:
            return self.hand_out_frames()
        finally:
            self.commons.server.end_loan()

    cdef bint hand_out_frames(self) except -1:
        cdef int left = FRAMES_PER_TURN
        cdef Py_ssize_t size
        cdef uint8_t *frame = NULL
        while self.may_hand_out() or self.may_hand_out_after_writes():
            self.stalled = False
            if left == 0:
                self.reactor.give_turn(self)
                return False
            size = self.framer.next_frame(&frame)
            if size < 0:
                return True
            left -= 1
            self.last_sequence = self.replies.take_sequence()
            self.muted = True
            self.active_sweep = self.commons.sweeps
            self.commons.requests += 1
            self.serve(frame, size)
            if self.state != CLOSED and not self.replies.is_answered(self.last_sequence):
                self.park(size)
        if self.state > PEER_ENDED:
            return False
        self.stalled = self.framer.start < self.framer.end
        if self.stalled and self.commons.is_full():
            self.commons.line_up(self)
        return not self.stalled

    cdef bint may_hand_out_after_writes(self) except -1:
        """Write what is deferred if the next frame is here and waits for the answer to the one before it.

        Return whether the next frame may be handed out now.
        """
        if not self.muted or self.state > PEER_ENDED or not self.framer.has_frame():
            return False
        self.commons.server.write_deferred()
        return self.may_hand_out()

    cdef int serve(self, uint8_t *frame, Py_ssize_t size) except -1:
        answer = self.commons.server.serve(self, self.last_sequence, frame, size, self.replies.unanswered > 1)
        if answer is not None and self.state != CLOSED:
            self.replies.put(self.last_sequence, answer)
            self.reactor.call_at_tick_end(self)
            self.muted = False
        return 0

    cdef int park(self, Py_ssize_t size) except -1:
        """The request that was handed out last is not answered yet, and may hold what came with it."""
        if size > SMALL_FRAME_BYTES:
            if self.parked is None:
                self.parked = {}
            self.parked[self.last_sequence] = size
            self.parked_bytes += size
        return 0

    cdef int charge(self) except -1:
        """Bring the connection's share of `Commons.held_bytes` up to date; called when a turn ends and after a send."""
        cdef Commons commons = self.commons
        cdef int64_t held_bytes = self.framed_bytes + self.parked_bytes + self.replies.memory_bytes
        commons.held_bytes += held_bytes - self.charged_bytes
        self.charged_bytes = held_bytes
        if commons.in_line and not commons.is_full():
            commons.admit_next()
        return 0

    cdef int on_tick_end(self) except -1:
        if self.state == CLOSED:
            return 0
        self.send()
        self.charge()
        if self.state == LEAVING and (self.replies.unanswered == 0 and self.replies.queued_bytes == 0
                                      and not self.transport.owes):
            self.close('every answer is sent', logging.DEBUG)
        elif self.state != CLOSED:
            self.resume()
        return 0

    cdef int send(self) except -1:
        """Send what is ready until the socket is full, or until it is the turn of others."""
        cdef Outgoing *out = &self.commons.outgoing
        cdef int64_t left = SEND_TURN_BYTES
        cdef ssize_t size = 0
        cdef int waits = ALL_SLICES if self.commons.submit is None else self.is_warm
        if self.is_warming:
            return 0
        while self.replies.ready_bytes or self.transport.owes:
            if left <= 0:
                self.reactor.call_at_tick_end(self)
                break
            try:
                self.replies.stage(out, waits)
            except OSError as error:
                self.close(f'the reply cannot be read: {error}', logging.ERROR)
                return 0
            if self.is_warm:
                self.is_warm = False
                waits = 0
            if out.is_cold and out.size == 0 and not self.transport.owes:
                return self.start_warming()
            with nogil:
                size = self.transport.send_pieces(out)
            if size < 0:
                if size != -EAGAIN and size != -EINTR:
                    return self.fail(size)
                return self.set_interest(True)
            self.replies.sent(size)
            self.commons.sent_bytes += size
            self.active_sweep = self.commons.sweeps
            if size < out.size or self.transport.owes:
                return self.set_interest(True)
            if out.is_cold:
                return self.start_warming()
            left -= size
        return self.set_interest(False)

    cdef int start_warming(self) except -1:
        """What is sent next is cold: have as much of it as one call sends read by the worker."""
        cdef int64_t size
        file, position, size = self.replies.next_slice()
        self.is_warming = True
        self.commons.submit(partial(self._warm, file, min(size, SEND_BUFFER_BYTES), position), self._warmed)
        return self.set_interest(False)

    def _warm(self, file, size, position):
        """In the worker's thread, which reads nothing for a peer that has left."""
        if self.state != CLOSED:
            file.warm(size, position)

    def _warmed(self, error):
        """Go on. What was read is asked for once more in any case: it may have been evicted again."""
        if self.state == CLOSED:
            return
        self.is_warming = False
        if error is not None:
            self.close(f'the reply cannot be read: {error}', logging.ERROR)
            return
        self.is_warm = True
        self.reactor.call_at_tick_end(self)

    cdef int set_interest(self, bint wants_out) except -1:
        cdef uint32_t interest = EPOLLOUT if wants_out else 0
        if self.state == OPEN and not self.deaf:
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
        """Part of a sweep. A peer that waits for us, and takes what it gets, is not idle."""
        cdef bint awaits_answer = self.replies.unanswered > 0 and self.replies.ready_bytes == 0
        if awaits_answer or self.is_warming or self.is_in_line and self.replies.ready_bytes == 0:
            self.active_sweep = self.commons.sweeps
        elif self.commons.sweeps - self.active_sweep > SWEEPS_PER_IDLE_TIME:
            self.close('idle', logging.INFO)

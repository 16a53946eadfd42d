"""Connections.

A connection serves the frames of its peer one by one, and sends the replies in the order of the requests.

Four conditions hold frames back. While one of them is true, the connection does not read its socket, so the peer's send
window fills and the peer stops sending:

- the previous frame is not answered, and its handler has not allowed the next frame to be served;
- MAX_UNANSWERED requests are not answered, although their handlers have allowed the next frames;
- the peer has not read MAX_QUEUED_BYTES of replies;
- the peer has exceeded a quota, and the time passed to `mute` is not over.

`memory` bounds the memory of all connections together. `newcomers` bounds the handshakes and logins in progress.

One call sends all ready replies at the end of the tick. If a part of a file in a reply is not in the page cache, a
worker reads that part first. Until the worker is done, nothing is sent to this peer.

A peer that ends its side of the connection still gets its replies. A connection that the peer resets is closed without
a log line. `states` documents the states of a connection and their transitions.
"""
import logging
import os
from functools import partial

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.errno cimport EAGAIN, EINTR
from libc.stdint cimport int64_t, uint8_t, uint32_t

from kbroker.base.clock cimport Timer, now_us
from kbroker.base.time_counts cimport count_time, described_times
from kbroker.network.framing cimport Framer, ReceiveBuffers
from kbroker.network.memory cimport SMALL_FRAME_BYTES, ConnectionMemory, MemoryHolder
from kbroker.network.reactor cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, FOR_SHARE, NOT_WAITING, Reactor
from kbroker.network.replies cimport ALL_SLICES, Outgoing, ReplyQueue
from kbroker.network.states cimport (
    CLOSED, DEAF, ENDED, ENDED_STALLED, LEAVING, OPEN, READY, STALLED, WARM, WARMING, next_intake, next_output,
)
from kbroker.network.transport cimport Transport
from kbroker.wire.frames cimport FrameServer

from kbroker.base.errors import FrameMemoryError, ProtocolError
from kbroker.network.newcomers import Newcomers


cdef enum:
    RECEIVE_BUFFER_BYTES = 128 * 1024
    # The buffer has room for the 1 MiB that consumers fetch from a partition by default, and for the head of the reply.
    # One call sends these bytes in half the time of four calls with a quarter each. Two calls with half of the bytes
    # each take a little less time than one, because the bytes are still in the processor's second-level cache. But with
    # two calls the kernel reads ahead only half as much, and cold fetches become up to a third slower. Over loopback,
    # sendfile, splice and MSG_ZEROCOPY take more time, for the broker and for its peer.
    SEND_BUFFER_BYTES = 1024 * 1024 + 4096
    # The limits of one turn of a connection.
    RECEIVE_TURN_BYTES = 512 * 1024
    SEND_TURN_BYTES = SEND_BUFFER_BYTES
    FRAMES_PER_TURN = 64
    # A turn reads the clock only between frames, so a single frame may exceed this limit.
    TURN_US = 1000
    # Replies that exceed this size share the time for long sends in a tick: sending 1 MiB takes up to half a
    # millisecond.
    LONG_SEND_BYTES = 64 * 1024
    MAX_UNANSWERED_REQUESTS = 64
    MAX_QUEUED_REPLY_BYTES = 1024 * 1024
    # An unfinished frame counts as progress only after this many further bytes: a peer that sends byte by byte is as
    # idle as a silent peer.
    PROGRESS_BYTES = 4096
    SWEEPS_PER_IDLE_TIME = 4

MAX_UNANSWERED = MAX_UNANSWERED_REQUESTS
MAX_QUEUED_BYTES = MAX_QUEUED_REPLY_BYTES
FRAMES_OF_A_TURN = FRAMES_PER_TURN

logger = logging.getLogger('kbroker.network')


cdef class Commons:
    """The state that all connections of one reactor share: the server of their frames, the two buffers and the
    counters.

    `on_close(connection)` is called once for each connection. `submit(job, done)` is `Worker.submit`. It reads the
    parts of files that are not in the page cache. If `submit` is None, the loop itself reads them and waits for the
    disk.
    """

    def __init__(self, Reactor reactor not None, FrameServer server not None, limits, on_close=None, submit=None,
                 Py_ssize_t receive_buffer_bytes=RECEIVE_BUFFER_BYTES):
        self.reactor = reactor
        self.server = server
        self.on_close = on_close
        self.max_request_bytes = limits.max_request_bytes
        self.memory = ConnectionMemory(reactor, limits.max_held_bytes)
        self.newcomers = Newcomers(reactor.machine_timers.clock, reactor.machine_timers, limits.max_connections)
        self.submit = submit
        self.traffic = {}
        self.receive_buffers = ReceiveBuffers(receive_buffer_bytes, self.memory)
        self.send_buffer = bytearray(SEND_BUFFER_BYTES)
        self.outgoing.buffer = PyByteArray_AS_STRING(self.send_buffer)
        self.outgoing.room = SEND_BUFFER_BYTES
        self.outgoing.max_size = SEND_TURN_BYTES

    cdef object log_of_refusals(self):
        if self.refusals is None:
            from kbroker.network.refusals import Refusals  # seldom needed

            self.refusals = Refusals(self.reactor.timers)
        return self.refusals

    def sweep(self, connections):
        """Close the connections that made no progress during the last SWEEPS_PER_IDLE_TIME intervals between calls."""
        self.sweeps += 1
        for connection in list(connections):
            (<Connection?>connection).close_if_idle()

    @property
    def received_bytes(self):
        """The bytes that all connections have received."""
        return sum([traffic.received_bytes for traffic in self.traffic.values()])

    @property
    def sent_bytes(self):
        """The bytes that all connections have sent."""
        return sum([traffic.sent_bytes for traffic in self.traffic.values()])

    def sent_times(self):
        """Return (bounds in seconds, counts, sum in seconds) of the times between replies and their last bytes."""
        return described_times(&self.send_times)

    @staticmethod
    def sweep_interval_ms(max_idle_ms):
        """Return the milliseconds between two calls of `sweep`.

        With this interval, a connection is closed after `max_idle_ms` without progress, or a little later.
        """
        return max(1, max_idle_ms // SWEEPS_PER_IDLE_TIME)


cdef class ListenerTraffic:
    """The bytes that the connections of one listener have received and sent."""


cdef class Connection(MemoryHolder):
    """A connected, non-blocking socket, the bytes read from it, and the replies to write to it. Owns `fd`."""

    def __init__(self, Commons commons not None, int fd, client_host='', client_port=-1, listener_name='',
                 make_transport=Transport):
        MemoryHolder.__init__(self, commons.memory)
        self.commons = commons
        self.reactor = commons.reactor
        self.transport = make_transport(fd)
        self.framer = Framer(commons.receive_buffers, commons.max_request_bytes)
        self.replies = ReplyQueue()
        self.client_host = client_host
        self.client_port = client_port
        self.listener_name = listener_name
        if listener_name not in commons.traffic:
            commons.traffic[listener_name] = ListenerTraffic()
        self.traffic = commons.traffic[listener_name]
        self.active_sweep = commons.sweeps
        self.last_sequence = self.passed_sequence = -1
        self.reactor.register(fd, self, EPOLLIN)
        commons.opened += 1
        self.connection_id = commons.opened

    def __repr__(self):
        return f'<connection {self.connection_id} of {self.client_host}:{self.client_port}>'

    @property
    def is_closed(self):
        return self.intake == CLOSED

    @property
    def peer_certificate(self):
        """The verified certificate of the peer in DER, or None. It is known before the first frame is served."""
        return self.transport.peer_certificate()

    @property
    def is_reading(self):
        """True while the connection reads its socket; False while it holds frames back."""
        return self.interest & EPOLLIN != 0

    cpdef reply(self, int64_t sequence, segments):
        """Answer a request with bytes or a list of segments, or with None if the protocol gives it no reply.

        The reply is sent at the end of the tick, after the replies to earlier requests. If the connection is closed, do
        nothing. Raise ValueError if the request already has its reply.
        """
        if self.intake == CLOSED:
            return
        self.replies.put(sequence, segments)
        if self.arrived_us:
            self.watch_reply(sequence)
        self.unpark(sequence)
        self.reactor.call_at_tick_end(self)
        self.let_next_pass(sequence)

    cpdef await_login(self, Py_ssize_t largest_frame_bytes):
        """Limit the peer's time until `end_login`. Limit its frames to `largest_frame_bytes`, unless that is 0."""
        if largest_frame_bytes:
            self.framer.max_frame_bytes = min(largest_frame_bytes, self.commons.max_request_bytes)
        self.commons.newcomers.add_login(self)

    cpdef end_login(self):
        self.framer.max_frame_bytes = self.commons.max_request_bytes
        self.commons.newcomers.end_login(self)

    cpdef keep_frame(self):
        """Return the KeptFrame of the frame that is being served, or None if the connection has closed."""
        return None if self.intake == CLOSED else self.keep_frame_of(self.framer.lend())

    cpdef let_next_pass(self, int64_t sequence):
        """Allow the next frame to be served before this request has its reply.

        The handler calls this when all effects of the request are visible.
        """
        self.passed_sequence = max(self.passed_sequence, sequence)
        self.resume()

    cpdef mute(self, int64_t time_ms):
        """Serve no frames for `time_ms`, but send replies. If several calls overlap, the latest end counts."""
        cdef int64_t end_ms = self.reactor.clock.monotonic_ms() + time_ms
        if self.intake == CLOSED or self.muting is not None and self.muting.deadline_ms >= end_ms:
            return
        if self.muting is not None:
            self.muting.cancel()
        self.muting = self.reactor.timers.after(time_ms, self._unmute)

    cpdef int64_t take_network_us(self) except -1:
        """Return the microseconds that the loop spent on receiving and sending since the last call of this function.

        Only the time while `measures_time` was set is counted.
        """
        cdef int64_t network_us = self.network_us
        self.network_us = 0
        return network_us

    def _unmute(self):
        self.muting = None
        self.resume()

    def close_after_flush(self):
        """Serve no more frames. Close the connection when the replies to all requests in flight are sent."""
        if self.intake < LEAVING:
            self.intake = next_intake(self.intake, LEAVING)
            self.set_interest(self.interest & EPOLLOUT)
            self.reactor.call_at_tick_end(self)

    def close(self, reason, level=logging.WARNING):
        """Close the connection immediately, and log the reason.

        Drop unsent replies and the replies of later `reply` calls.
        """
        if self.intake != CLOSED:
            self.end()
            logger.log(level, 'connection %d of %s:%d closed: %s', self.connection_id, self.client_host,
                       self.client_port, reason)

    cdef int refuse(self, reason, level) except -1:
        """Close the connection. If it has served no request, count equal reasons instead of logging each of them."""
        if self.last_sequence >= 0 or not logger.isEnabledFor(level):
            self.close(reason, level)
        elif self.intake != CLOSED:
            self.end()
            self.commons.log_of_refusals().note(self, level, reason)
        return 0

    cdef int end(self) except -1:
        """Close the socket, and free the memory of the connection."""
        self.intake = next_intake(self.intake, CLOSED)
        self.reactor.unregister(self)
        self.commons.newcomers.forget(self)
        # Other code may refer to this closed connection for a long time, so its memory is freed now. `serve_frames`
        # keeps the buffer of the frame that is being handled.
        self.transport = None
        if self.muting is not None:
            self.muting.cancel()
            self.muting = None
        self.framer.clear()
        self.replies = ReplyQueue()
        self.release_memory()
        self.commons.closed += 1
        if self.commons.on_close is not None:
            self.commons.on_close(self)
        return 0

    cdef bint may_serve(self) noexcept:
        return (self.intake < LEAVING and self.passed_sequence == self.last_sequence and self.muting is None
                and self.replies.unanswered < MAX_UNANSWERED_REQUESTS
                and self.replies.queued_bytes < MAX_QUEUED_REPLY_BYTES
                and not self.transport.is_clogged
                and not (self.memory.is_full() and (self.replies.memory_bytes or self.memory.is_overfull())))

    cdef bint delays_others(self) except -1:
        """Return whether the peer could free memory of the broker by sending or receiving."""
        if self.intake == CLOSED or self.output == WARMING:
            return False
        if self.replies.ready_bytes > 0 and self.replies.memory_bytes > SMALL_FRAME_BYTES:
            return True
        return self.memory.leader is self or self.framed_bytes > 0 and self not in self.memory.in_line

    cdef bint is_stalled(self) noexcept:
        return self.intake == STALLED or self.intake == DEAF or self.intake == ENDED_STALLED

    cdef int stall(self) except -1:
        if not self.is_stalled():
            self.intake = next_intake(self.intake, STALLED if self.intake == OPEN else ENDED_STALLED)
        return 0

    cdef int flow(self) except -1:
        if self.is_stalled():
            self.intake = next_intake(self.intake, ENDED if self.intake == ENDED_STALLED else OPEN)
        return 0

    cdef int resume(self) except -1:
        if self.is_stalled() and self.may_serve():
            self.reactor.give_turn(self)
        return 0

    cdef int on_events(self, uint32_t events) except -1:
        if self.intake == CLOSED:
            return 0
        if (events & EPOLLERR and not self.transport.shakes_hands) or (events & EPOLLHUP and not self.may_serve()):
            # The peer reads no more replies. If EPOLLHUP comes without EPOLLERR, the last bytes from the peer are still
            # to be read. During a handshake they are read in any case: they may say why the peer refuses it.
            self.close('the peer reset the connection', logging.DEBUG)
            return 0
        if events & EPOLLOUT:
            self.reactor.call_at_tick_end(self)
        if self.waiting != NOT_WAITING:
            if self.waiting == FOR_SHARE:
                self.missed_events = events
                if self.reactor.is_crowded:     # the long turn asks for its events again
                    self.reactor.modify(self, self.interest & EPOLLOUT)
            return 0  # a connection has one turn per tick
        if events == 0:
            events, self.missed_events = self.missed_events, 0
        elif self.transport.shakes_hands:
            self.missed_events = events
            return self.reactor.give_long_turn(self)
        try:
            self.take_turn(events)
        except ProtocolError as error:
            if self.intake != CLOSED:
                self.send()
            self.refuse(f'protocol error: {error}', logging.WARNING)
        except FrameMemoryError as error:
            if self.intake != CLOSED:
                self.send()
            self.close(str(error))
        if events & EPOLLERR:
            self.close('the peer reset the connection', logging.DEBUG)
        return 0

    cdef int take_turn(self, uint32_t events) except -1:
        """Serve the whole frames that have arrived. Then read once, and serve the frames that are whole by then."""
        cdef bint was_deaf = self.intake == DEAF
        cdef int64_t sequence = self.last_sequence
        cdef bint wants_more = self.framer.start == self.framer.end
        cdef bint unread
        if not wants_more:
            wants_more = self.serve_frames()
        elif self.may_serve():
            self.flow()
        elif self.memory.is_full() and self.is_stalled():
            self.memory.line_up(self)
        unread = self.intake <= DEAF and (events & (EPOLLIN | EPOLLHUP) or self.transport.has_more)
        if unread and wants_more and self.may_read():
            unread = False
            if self.receive(self.memory.is_full() and self.memory.leader is not self):
                wants_more = self.serve_frames()
        if self.intake == CLOSED:
            return 0
        if self.intake == STALLED and (unread or was_deaf):     # epoll would report the same bytes in each tick
            self.intake = next_intake(self.intake, DEAF)
        self.framer.leave_shared_buffer()
        self.framed_bytes = self.framer.held() if self.framer.held() > SMALL_FRAME_BYTES else 0
        self.count_progress()
        if self.memory.leader is self and (self.last_sequence > sequence
                                            or self.framer.announced() <= SMALL_FRAME_BYTES):
            self.memory.leader = None
        self.charge()
        if self.transport.has_more and not self.is_stalled():
            self.reactor.give_long_turn(self)
        if wants_more and self.intake == ENDED:
            self.intake = next_intake(self.intake, LEAVING)
            self.reactor.call_at_tick_end(self)
        return self.set_interest(self.interest & EPOLLOUT)

    cdef bint may_read(self) except -1:
        """Return whether the connection may read now. If it may not, stall it until one of the conditions changes."""
        cdef bint is_full = self.memory.is_full()
        if self.may_serve() and not (is_full and self.framer.announced() > SMALL_FRAME_BYTES
                                     and not self.memory.may_lead(self)):
            self.flow()
            return True
        self.stall()
        if is_full:
            self.memory.line_up(self)
        return False

    cdef int receive(self, bint is_full) except -1:
        """Read once; if the memory is full, read at most a small frame. Return 1 if bytes arrived, else 0."""
        cdef char *at = NULL
        cdef Py_ssize_t room = min(self.framer.room(&at), RECEIVE_TURN_BYTES)
        cdef ssize_t size
        cdef bint shakes_hands = self.transport.shakes_hands
        cdef int64_t began_us = now_us() if self.commons.measures_time else 0
        if is_full:
            room = min(room, SMALL_FRAME_BYTES - (self.framer.end - self.framer.start))
        with nogil:
            size = self.transport.receive(at, room)
        if began_us:
            self.network_us += now_us() - began_us
        if shakes_hands and self.transport.shakes_hands:
            self.commons.newcomers.add_handshake(self)
        elif shakes_hands:
            self.commons.newcomers.end_handshake(self)
        if self.transport.owes:
            self.reactor.call_at_tick_end(self)
        if size > 0:
            self.framer.received(size)
            self.arrived_us = self.reactor.tick_us
            self.traffic.received_bytes += size
            self.moved_bytes += size
            if size == room and not is_full:
                self.reactor.give_long_turn(self)
            return 1
        if size == 0:
            self.intake = next_intake(self.intake, ENDED)
        elif size != -EAGAIN and size != -EINTR:
            self.fail(size)
        return 0

    cdef int fail(self, ssize_t size) except -1:
        """Close the connection because of the error that the transport reported."""
        if self.transport.shakes_hands:
            self.commons.failed_handshakes += 1
        if self.transport.failure is not None:
            self.refuse(self.transport.failure, logging.INFO)
        else:
            self.close(os.strerror(-size), logging.DEBUG)
        return 0

    cdef bint serve_frames(self) except -1:
        """Serve the whole frames that may be served now. Return True if the next frame is incomplete."""
        # This reference keeps the buffer alive until `end_loan`, even if serving a frame closes the connection.
        cdef bytearray buffer = self.framer.buffer
        try:
            return self.serve_whole_frames()
        finally:
            self.commons.server.end_loan()

    cdef bint serve_whole_frames(self) except -1:
        cdef int served = 0
        cdef int64_t end_us = 0
        cdef Py_ssize_t size
        cdef uint8_t *frame = NULL
        while self.may_serve() or self.may_serve_after_writes():
            self.flow()
            if served == FRAMES_PER_TURN or served > 1 and now_us() >= end_us:
                self.reactor.give_long_turn(self)
                return False
            size = self.framer.next_frame(&frame)
            if size < 0:
                return True
            if served == 1:
                end_us = now_us() + TURN_US
            served += 1
            self.last_sequence = self.replies.take_sequence()
            self.active_sweep = self.commons.sweeps
            self.commons.requests += 1
            self.frame_bytes = size
            self.serve_frame(frame, size)
            if self.intake != CLOSED and not self.replies.is_answered(self.last_sequence):
                self.park(self.last_sequence)
        if self.intake >= LEAVING:
            return False
        if self.framer.start == self.framer.end:
            self.flow()
            return True
        self.stall()
        if self.memory.is_full():
            self.memory.line_up(self)
        return False

    cdef bint may_serve_after_writes(self) except -1:
        """Write the deferred appends if the next frame is whole and waits for the reply to the previous frame.

        Return whether the next frame may be served now.
        """
        if self.passed_sequence == self.last_sequence or self.intake >= LEAVING or not self.framer.has_frame():
            return False
        self.commons.server.write_deferred()
        return self.may_serve()

    cdef int serve_frame(self, uint8_t *frame, Py_ssize_t size) except -1:
        self.commons.server.arrived_us = self.arrived_us
        answer = self.commons.server.serve(
            self, self.session, self.last_sequence, frame, size, self.replies.unanswered > 1)
        if answer is not None and self.intake != CLOSED:
            self.replies.put(self.last_sequence, answer)
            if self.arrived_us:
                self.watch_reply(self.last_sequence)
            self.reactor.call_at_tick_end(self)
            self.passed_sequence = self.last_sequence
        return 0

    cdef int charge(self) except -1:
        """Tell `memory` how many bytes this connection holds. Called at the end of a turn and after a send."""
        return self.memory.charge(self, self.framed_bytes + self.parked_bytes + self.replies.memory_bytes)

    cdef int on_tick_end(self) except -1:
        cdef int64_t began_us
        if self.intake == CLOSED:
            return 0
        if self.replies.ready_bytes > LONG_SEND_BYTES and not self.reactor.has_time_for_long_send():
            self.charge()
            return self.reactor.call_at_tick_end(self)
        began_us = now_us() if self.commons.measures_time else 0
        self.send()
        if began_us:
            self.network_us += now_us() - began_us
        self.charge()
        if self.intake == LEAVING and (self.replies.unanswered == 0 and self.replies.queued_bytes == 0
                                      and not self.transport.owes):
            self.close('every answer is sent', logging.DEBUG)
        elif self.intake != CLOSED:
            self.resume()
        return 0

    cdef int send(self) except -1:
        """Send ready replies until the socket accepts no more or SEND_TURN_BYTES are sent."""
        cdef Outgoing *out = &self.commons.outgoing
        cdef int64_t left = SEND_TURN_BYTES
        cdef ssize_t size = 0
        cdef int waits = ALL_SLICES if self.commons.submit is None else self.output == WARM
        if self.output == WARMING:
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
            if self.output == WARM:
                self.output = next_output(self.output, READY)
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
            self.traffic.sent_bytes += size
            if self.watched_us:
                self.count_sent(size)
            self.moved_bytes += size
            self.active_sweep = self.commons.sweeps
            if size < out.size or self.transport.owes:
                return self.set_interest(True)
            if out.is_cold:
                return self.start_warming()
            left -= size
        return self.set_interest(False)

    cdef int watch_reply(self, int64_t sequence) except -1:
        """Measure the time until this reply is sent, unless it waits for an earlier reply or another one is measured.

        So one of the replies that are sent together is measured.
        """
        if self.watched_us == 0 and sequence < self.replies.next_reply and self.replies.ready_bytes:
            self.watched_us = now_us()
            self.watched_bytes = self.replies.ready_bytes
        return 0

    cdef int count_sent(self, int64_t size) except -1:
        self.watched_bytes -= size
        if self.watched_bytes <= 0:
            count_time(&self.commons.send_times, now_us() - self.watched_us)
            self.watched_us = 0
        return 0

    cdef int start_warming(self) except -1:
        """Let a worker read the next part of a file to send, at most SEND_BUFFER_BYTES, because it is not in the page
        cache.
        """
        cdef int64_t size
        file, position, size = self.replies.next_slice()
        size = min(size, SEND_BUFFER_BYTES)
        self.commons.cold_reads += 1
        self.commons.cold_bytes += size
        self.output = next_output(self.output, WARMING)
        self.commons.submit(partial(self._warm, file, size, position), self._warmed)
        return self.set_interest(False)

    def _warm(self, file, size, position):
        """Read a part of `file` into the page cache, unless the connection has closed. The worker calls this."""
        if self.intake != CLOSED:
            file.warm(size, position)

    def _warmed(self, error):
        """Continue to send after the worker has read a part of a file.

        The next send reads this part even if the page cache has evicted it again. Otherwise the connection could wait
        forever.
        """
        if self.intake == CLOSED:
            return
        if error is not None:
            self.close(f'the reply cannot be read: {error}', logging.ERROR)
            return
        self.output = next_output(self.output, WARM)
        self.reactor.call_at_tick_end(self)

    cdef int set_interest(self, bint wants_out) except -1:
        cdef uint32_t interest = EPOLLOUT if wants_out else 0
        if self.intake <= STALLED:
            interest |= EPOLLIN
        return self.reactor.modify(self, interest)

    cdef int count_progress(self) except -1:
        """Record progress for each PROGRESS_BYTES that have arrived of an unfinished frame."""
        cdef Py_ssize_t pending = self.framer.end - self.framer.start
        if pending - self.counted_bytes >= PROGRESS_BYTES:
            self.active_sweep = self.commons.sweeps
            self.counted_bytes = pending
        elif pending < self.counted_bytes:
            self.counted_bytes = pending
        return 0

    def close_if_idle(self):
        """Close the connection if its peer has made no progress in time. A peer that waits for a reply is not idle."""
        cdef bint awaits_answer = self.replies.unanswered > 0 and self.replies.ready_bytes == 0
        if awaits_answer or self.output == WARMING or self in self.memory.in_line and self.replies.ready_bytes == 0:
            self.active_sweep = self.commons.sweeps
        elif self.commons.sweeps - self.active_sweep > SWEEPS_PER_IDLE_TIME:
            self.close('idle', logging.INFO)

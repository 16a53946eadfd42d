"""The event loop: one epoll, one wake-up fd and the timers. It owns only its handlers, and knows nothing about Kafka.

A tick has these steps, in this order:

    1. wait for events, at most until the next timer, without the GIL
    2. turns of connections whose frames were held back and may be served now
    3. events, one `on_events` for each ready fd
    4. long turns: connections that used up their previous turn continue, for LONG_TURNS_US in all
    5. calls that worker threads have queued (`call_soon_threadsafe`)
    6. timers whose time has come; then those of the machine's time, if a test controls the broker's clock
    7. `at_tick_end`: the node writes and flushes the appends of the tick
    8. `on_tick_end` of each handler that called `call_at_tick_end`: a connection sends all replies of the tick in one
       call, and the connections with long replies share LONG_SENDS_US

Steps 4 and 8 are bounded. So they delay a connection only once in a tick, however many other connections want more than
one turn. If a handler raises an exception, `run` raises it, too: an invariant is broken, and the restart recovers.
"""
import os
import signal
import socket
from collections import deque

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, ENOSYS, EPERM, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from posix.unistd cimport close, read, write

from kbroker.base.clock cimport Timers, now_us
from kbroker.base.turn_watch cimport TurnWatch


cdef extern from '<sys/epoll.h>' nogil:
    ctypedef union epoll_data_t:
        void *ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL
    int epoll_create1(int flags)
    int epoll_ctl(int epoll_fd, int operation, int fd, epoll_event *event)
    int epoll_wait(int epoll_fd, epoll_event *events, int max_events, int timeout_ms)

cdef extern from '<sys/eventfd.h>' nogil:
    int EFD_NONBLOCK, EFD_CLOEXEC
    int eventfd(unsigned int count, int flags)


cdef enum:
    BATCH_EVENTS = 256
    MAX_WAIT_MS = 3_600_000
    # The limits of the long turns and of the long sends in a tick. Each tick runs at least one of each.
    LONG_TURNS_US = 1000
    LONG_SENDS_US = 1000


cdef class EventHandler:
    """A handler of a file descriptor. A subclass in C overrides both methods.

    Python code uses `Reactor.watch` instead.
    """

    def __cinit__(self):
        self.fd = -1

    cdef int on_events(self, uint32_t events) except -1:
        """Handle `events` of the fd. In a turn that `give_turn` or `give_long_turn` scheduled, `events` is 0."""
        raise NotImplementedError(f'{type(self).__name__} does not handle events')

    cdef int on_tick_end(self) except -1:
        """Handle the end of the tick. Called once, however often `call_at_tick_end` was called in the tick."""
        raise NotImplementedError(f'{type(self).__name__} does nothing at the end of a tick')


cdef class CallbackHandler(EventHandler):
    cdef object callback

    def __init__(self, callback):
        self.callback = callback

    def __repr__(self):
        return getattr(self.callback, '__qualname__', None) or repr(self.callback)

    cdef int on_events(self, uint32_t events) except -1:
        self.callback()
        return 0


cdef object cannot_create(str call):
    """Return the error of a system call that the reactor cannot do without."""
    cdef int code = errno
    remedy = ''
    if code == ENOSYS or code == EPERM:
        remedy = f'; kbroker needs {call} of Linux. If a container or another sandbox refuses it, permit it there'
    return OSError(code, f'{call}: {os.strerror(code)}{remedy}')


cdef class Reactor:
    """The event loop of one thread. Other threads may call only `call_soon_threadsafe` and `stop`."""

    def __cinit__(self):
        self.epoll_fd = self.wake_fd = -1

    def __init__(self, clock, Timers timers not None, Timers machine_timers=None):
        """Run `timers`, and wait for their deadlines. `clock` is their clock.

        If a test controls that clock, `machine_timers` are others, which follow the machine's time.
        """
        self.clock = clock
        self.timers = timers
        self.machine_timers = timers if machine_timers is None else machine_timers
        self.turn_watch = timers.turn_watch
        self.at_tick_end = []
        self.handlers = set()
        self.retired = []
        self.turns = []
        self.long_turns = deque()
        self.tick_ends = []
        self.calls = deque()
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll_fd < 0:
            raise cannot_create('epoll_create1')
        self.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.wake_fd < 0:
            raise cannot_create('eventfd2')
        self.watch(self.wake_fd, self._forget_wake)

    def __dealloc__(self):
        if self.epoll_fd >= 0:
            close(self.epoll_fd)
        if self.wake_fd >= 0:
            close(self.wake_fd)

    cdef int register(self, int fd, EventHandler handler, uint32_t interest) except -1:
        """Call `handler.on_events` when `fd` is ready. Raise OSError if epoll refuses `fd`."""
        cdef epoll_event event
        event.events = interest
        event.data.ptr = <void *>handler
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
            raise OSError(errno, f'epoll_ctl add {fd}: {os.strerror(errno)}')
        handler.fd = fd
        handler.interest = interest
        self.handlers.add(handler)
        return 0

    cdef int modify(self, EventHandler handler, uint32_t interest) except -1:
        cdef epoll_event event
        if handler.interest == interest or handler.fd < 0:
            return 0
        event.events = interest
        event.data.ptr = <void *>handler
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_MOD, handler.fd, &event) < 0:
            raise OSError(errno, f'epoll_ctl modify {handler.fd}: {os.strerror(errno)}')
        handler.interest = interest
        return 0

    cpdef unregister(self, EventHandler handler):
        """Remove the handler. Call this before closing the fd. If the handler is not registered, do nothing."""
        cdef epoll_event event
        if handler.fd < 0:
            return
        epoll_ctl(self.epoll_fd, EPOLL_CTL_DEL, handler.fd, &event)
        handler.fd = -1
        handler.interest = 0
        self.handlers.discard(handler)
        # The current batch of events may contain an event of this handler, so the handler must live until the end of
        # the batch.
        self.retired.append(handler)

    def watch(self, int fd, callback):
        """Call `callback()` whenever `fd` is readable. Return the handler, for `unregister` and `pause`."""
        handler = CallbackHandler(callback)
        self.register(fd, handler, EPOLLIN)
        return handler

    def watch_room(self, int fd, callback):
        """Call `callback()` whenever `fd` has room for bytes to send. Return the handler, for `unregister`."""
        handler = CallbackHandler(callback)
        self.register(fd, handler, EPOLLOUT)
        return handler

    def pause(self, EventHandler handler):
        """Stop the events of a handler until `resume`."""
        self.modify(handler, 0)

    def resume(self, EventHandler handler):
        self.modify(handler, EPOLLIN)

    cdef int give_turn(self, EventHandler handler) except -1:
        """Call `handler.on_events(0)` in the next tick. That tick does not wait for events."""
        if handler.waiting == NOT_WAITING:
            handler.waiting = FOR_NEXT_TICK
            self.turns.append(handler)
        return 0

    cdef int give_long_turn(self, EventHandler handler) except -1:
        """Call `handler.on_events(0)` in a later tick: after its events, and after the long turns that were scheduled
        before.
        """
        if handler.waiting == NOT_WAITING:
            handler.waiting = FOR_SHARE
            self.long_turns.append(handler)
        return 0

    cdef int call_at_tick_end(self, EventHandler handler) except -1:
        if not handler.waits_for_tick_end:
            handler.waits_for_tick_end = True
            self.tick_ends.append(handler)
        return 0

    cdef bint has_time_for_long_send(self) noexcept:
        """Return whether a handler may send long replies in the current end of a tick.

        If False, the handler calls `call_at_tick_end` to try again in the next tick.
        """
        if self.sends_end_us == 0:
            self.sends_end_us = now_us() + LONG_SENDS_US
            return True
        return now_us() < self.sends_end_us

    def call_soon_threadsafe(self, callback):
        """Call `callback()` on the loop. Callbacks run in the order of the calls of this function.

        Many calls within one tick cost only one write to the wake-up fd.
        """
        self.calls.append(callback)
        self.wake()

    cdef int wake(self) except -1:
        # The GIL makes testing and setting `wake_sent` one step. The write cannot fail, because the counter of the
        # wake-up fd is far from its maximum.
        cdef uint64_t one = 1
        if not self.wake_sent:
            self.wake_sent = True
            write(self.wake_fd, &one, sizeof(one))
        return 0

    def _forget_wake(self):
        """Read the wake-up fd, so that it is not readable until the next `wake`. `tick` runs the queued calls."""
        cdef uint64_t count
        read(self.wake_fd, &count, sizeof(count))
        self.wake_sent = False

    def is_idle(self):
        """Return whether the loop has nothing left to do until an event or a deadline."""
        return not (self.turns or self.long_turns or self.tick_ends or self.calls)

    def on_signal(self, int signal_number, callback):
        """Call `callback()` on the loop, between handlers, for each signal of this number.

        Call this only from the main thread.
        """
        if self.signals is None:
            self.signals = SignalSource(self)
        self.signals.add(signal_number, callback)

    def stop(self):
        """Let `run` return after the current tick. Any thread and any signal handler may call this."""
        self.stopping = True
        self.wake()

    def run(self):
        """Run ticks until `stop` is called. If `stop` was called before `run`, return immediately."""
        while not self.stopping:
            self.tick(-1)
        self.stopping = False

    def run_once(self, timeout_ms=0):
        """Run one tick that waits for at most `timeout_ms`. Return how many fds were ready. Tests use this."""
        return self.tick(timeout_ms)

    def close(self):
        """Close the reactor's fds and restore the signal handlers. The server closes the connections."""
        if self.signals is not None:
            self.signals.close()
            self.signals = None
        for handler in list(self.handlers):
            self.unregister(handler)
        self.retired.clear()
        if self.epoll_fd >= 0:
            close(self.epoll_fd)
            close(self.wake_fd)
            self.epoll_fd = self.wake_fd = -1

    cdef int tick(self, int64_t timeout_ms) except -1:
        cdef epoll_event batch[BATCH_EVENTS]
        cdef EventHandler handler
        cdef list turns
        cdef int ready = self.wait(batch, timeout_ms)
        cdef Py_ssize_t long_turns = len(self.long_turns)
        cdef int i
        self.is_crowded = ready == BATCH_EVENTS
        self.turn_watch.begin_tick()
        self.tick_us = now_us() if self.takes_times else 0
        if self.turns:
            turns, self.turns = self.turns, []
            for handler in turns:
                handler.waiting = NOT_WAITING
                handler.on_events(0)
                self.turn_watch.lap(handler)
        for i in range(ready):
            handler = <EventHandler>batch[i].data.ptr
            if handler.fd >= 0 and batch[i].events & (handler.interest | EPOLLERR | EPOLLHUP):
                handler.on_events(batch[i].events)
                self.turn_watch.lap(handler)
        if long_turns:
            self.run_long_turns(long_turns)
        if self.calls:
            self.run_calls()
        self.timers.run_due_callbacks()
        if self.machine_timers is not self.timers:
            self.machine_timers.run_due_callbacks()
        self.end_tick()
        self.turn_watch.end_tick()
        self.retired.clear()
        return ready

    cdef int wait(self, void *batch, int64_t timeout_ms) except -1:
        cdef int ready, error
        cdef int64_t delay_ms
        if self.turns or self.long_turns or self.tick_ends or self.calls or self.stopping:
            timeout_ms = 0
        else:
            delay_ms = min(self.timers.wait_ms(), MAX_WAIT_MS)
            if self.machine_timers is not self.timers:
                delay_ms = min(delay_ms, self.machine_timers.wait_ms())
            if timeout_ms < 0 or delay_ms < timeout_ms:
                timeout_ms = delay_ms
        with nogil:
            ready = epoll_wait(self.epoll_fd, <epoll_event *>batch, BATCH_EVENTS, <int>timeout_ms)
            error = errno
        if ready >= 0:
            return ready
        if error != EINTR:
            raise OSError(error, f'epoll_wait: {os.strerror(error)}')
        PyErr_CheckSignals()
        return 0

    cdef int run_long_turns(self, Py_ssize_t left) except -1:
        """Run at most `left` long turns, until LONG_TURNS_US are used up.

        `left` is the number scheduled before this tick.
        """
        cdef int64_t end_us = now_us() + LONG_TURNS_US
        cdef EventHandler handler
        while left:
            left -= 1
            handler = self.long_turns.popleft()
            handler.waiting = NOT_WAITING
            handler.on_events(0)
            self.turn_watch.lap(handler)
            if now_us() >= end_us:
                break
        return 0

    cdef int run_calls(self) except -1:
        # Run only the calls queued so far. A call that queues further calls then does not delay the sockets.
        cdef Py_ssize_t left = len(self.calls)
        while left:
            left -= 1
            callback = self.calls.popleft()
            callback()
            self.turn_watch.lap(callback)
        return 0

    cdef int end_tick(self) except -1:
        cdef EventHandler handler
        cdef list tick_ends
        for callback in self.at_tick_end:
            callback()
            self.turn_watch.lap(callback)
        self.sends_end_us = 0
        if self.tick_ends:
            tick_ends, self.tick_ends = self.tick_ends, []
            for handler in tick_ends:
                handler.waits_for_tick_end = False
                handler.on_tick_end()
                self.turn_watch.lap(handler)
        return 0


class SignalSource:
    """Delivers signals as bytes on a socket pair, to which Python's C signal handler writes.

    Because the bytes stay readable, no signal is lost between a check for signals and the wait for events.
    """

    def __init__(self, reactor):
        self._reactor = reactor
        self._callbacks = {}
        self._previous_handlers = {}
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._previous_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._handler = reactor.watch(self._receiver.fileno(), self._receive)

    def add(self, signal_number, callback):
        # The Python handler does nothing. It must be set, because otherwise the signal keeps its default action.
        previous = signal.signal(signal_number, lambda number, frame: None)
        self._previous_handlers.setdefault(signal_number, previous)
        self._callbacks[signal_number] = callback

    def _receive(self):
        for signal_number in self._receiver.recv(4096):
            callback = self._callbacks.get(signal_number)
            if callback is not None:
                callback()

    def close(self):
        for signal_number, previous in self._previous_handlers.items():
            signal.signal(signal_number, previous)
        signal.set_wakeup_fd(self._previous_fd)
        self._reactor.unregister(self._handler)
        self._receiver.close()
        self._sender.close()

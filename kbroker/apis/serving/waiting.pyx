"""Requests that wait for data. Partitions wake them, a tick lets each look once, and they are dropped with their
connection."""


cdef class Waiter:
    """A parked request."""

    cpdef look_again(self):
        """Answer if there is enough data, after a partition has moved."""

    cpdef answer_now(self):
        """Answer with the available data, because the time is over or the broker stops."""

    cpdef give_up(self):
        """Release everything, because the connection has closed."""


cdef class WaitingRoom:
    """All parked requests. A request that appends have woken several times looks again once, at the end of the tick."""

    def __init__(self):
        self.by_connection = {}
        self.woken = []

    def __len__(self):
        return len(self.by_connection)

    cpdef enter(self, connection_id, Waiter waiter):
        """Add the waiter of a connection. A connection has at most one, because it waits for one answer at a time."""
        self.by_connection[connection_id] = waiter

    cpdef leave(self, connection_id):
        cdef Waiter waiter = self.by_connection.pop(connection_id, None)
        if waiter is not None:
            waiter.is_woken = False

    cpdef wake(self, Waiter waiter):
        if not waiter.is_woken:
            waiter.is_woken = True
            self.woken.append(waiter)

    def end_tick(self):
        """Let each woken request look again."""
        cdef list woken
        cdef Waiter waiter
        while self.woken:
            woken, self.woken = self.woken, []
            for waiter in woken:
                if waiter.is_woken:
                    waiter.is_woken = False
                    waiter.look_again()

    def answer_all(self):
        """Answer all requests with the available data: a broker that stops does not wait for data that may never
        arrive."""
        for waiter in tuple(self.by_connection.values()):
            (<Waiter>waiter).answer_now()

    def connection_closed(self, connection_id):
        cdef Waiter waiter = self.by_connection.get(connection_id)
        if waiter is not None:
            waiter.give_up()

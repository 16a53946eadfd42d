"""Parked requests, which wait for data. Partitions wake them. At the end of a tick, each woken request looks for data
once. When a connection closes, its parked request is dropped."""


cdef class Waiter:
    """A parked request."""

    cpdef look_again(self):
        """Answer if there is enough data. Called after a partition has woken the request."""

    cpdef answer_now(self):
        """Answer with the available data. Called when the time is over or the broker stops."""

    cpdef give_up(self):
        """Release everything. Called when the connection has closed."""


cdef class WaitingRoom:
    """All parked requests. A request that was woken several times within a tick looks again only once, at the end of
    the tick."""

    def __init__(self):
        self.by_connection = {}
        self.woken = []

    def __len__(self):
        return len(self.by_connection)

    cpdef enter(self, connection_id, Waiter waiter):
        """Add the parked request of a connection. A connection has at most one, because it waits for one answer at a
        time."""
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
        """Let each woken request look for data again."""
        cdef list woken
        cdef Waiter waiter
        while self.woken:
            woken, self.woken = self.woken, []
            for waiter in woken:
                if waiter.is_woken:
                    waiter.is_woken = False
                    waiter.look_again()

    def answer_all(self):
        """Answer all parked requests with the available data. Called when the broker stops, because it cannot wait for
        data that may never arrive."""
        for waiter in tuple(self.by_connection.values()):
            (<Waiter>waiter).answer_now()

    def connection_closed(self, connection_id):
        cdef Waiter waiter = self.by_connection.get(connection_id)
        if waiter is not None:
            waiter.give_up()

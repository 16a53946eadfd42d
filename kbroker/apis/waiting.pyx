"""Requests that wait for data: woken by partitions, looked at once a turn, forgotten with their connection."""


cdef class Waiter:
    """A parked request."""

    cpdef look_again(self):
        """Something that it waits for has moved."""

    cpdef answer_now(self):
        """Answer with what there is: the time is over, or the broker stops."""

    cpdef give_up(self):
        """Its connection is gone: let go of everything."""


cdef class WaitingRoom:
    """Parked requests. Appends wake them as often as they like; each looks again once, at the end of the turn."""

    def __init__(self):
        self.by_connection = {}
        self.woken = []

    def __len__(self):
        return len(self.by_connection)

    cpdef enter(self, connection_id, Waiter waiter):
        """A connection waits for one answer at a time, so it has one waiter at most."""
        self.by_connection[connection_id] = waiter

    cpdef leave(self, connection_id):
        cdef Waiter waiter = self.by_connection.pop(connection_id, None)
        if waiter is not None:
            waiter.is_woken = False

    cpdef wake(self, Waiter waiter):
        if not waiter.is_woken:
            waiter.is_woken = True
            self.woken.append(waiter)

    def turn_ends(self):
        """Called by the loop after each batch of events."""
        cdef list woken
        cdef Waiter waiter
        while self.woken:
            woken, self.woken = self.woken, []
            for waiter in woken:
                if waiter.is_woken:
                    waiter.is_woken = False
                    waiter.look_again()

    def answer_all(self):
        """Let everyone go with what there is: a stop does not wait for data that may never come."""
        for waiter in tuple(self.by_connection.values()):
            (<Waiter>waiter).answer_now()

    def connection_closed(self, connection_id):
        cdef Waiter waiter = self.by_connection.get(connection_id)
        if waiter is not None:
            waiter.give_up()

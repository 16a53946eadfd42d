"""Deadlines of members of the groups of a shard: sessions, rebalances, joins and syncs."""
from functools import partial

cimport cython
from libc.stdint cimport int64_t

from kbroker.base.clock cimport Clock, Timer, Timers


@cython.final
cdef class Deadline:
    """A deadline that is armed. Its timer may be earlier: it looks at the deadline when it is due."""


cdef class Deadlines:
    """All deadlines that are armed. To arm one again replaces it, which is cheap for one that moves later."""

    def __init__(self, Clock clock not None, Timers timers not None):
        self._clock = clock
        self._timers = timers
        self._armed = {}

    def __len__(self):
        return len(self._armed)

    cpdef bint is_armed(self, str kind, str group_id, str member_id) except -1:
        return (kind, group_id, member_id) in self._armed

    cpdef bint postpone(self, str kind, str group_id, str member_id, int64_t timeout_ms) except -1:
        """Move a deadline to `timeout_ms` from now. Return False if that is not later, or none is armed."""
        cdef int64_t at_ms = self._clock.monotonic_ms() + timeout_ms
        cdef Deadline deadline = self._armed.get((kind, group_id, member_id))
        if deadline is None or deadline.timer.deadline_ms > at_ms:
            return False
        deadline.at_ms = at_ms
        return True

    cpdef arm(self, str kind, str group_id, str member_id, int64_t timeout_ms, missed):
        """Call `missed` in `timeout_ms`, unless the deadline is armed again or cancelled before."""
        cdef tuple key = (kind, group_id, member_id)
        cdef Deadline deadline = self._armed.get(key)
        if deadline is not None:
            if self.postpone(kind, group_id, member_id, timeout_ms):
                deadline.missed = missed
                return
            deadline.timer.cancel()
        deadline = Deadline.__new__(Deadline)
        deadline.at_ms = self._clock.monotonic_ms() + timeout_ms
        deadline.missed = missed
        deadline.timer = self.timer_of(key, timeout_ms)
        self._armed[key] = deadline

    cpdef cancel(self, str kind, str group_id, str member_id):
        """Disarm a deadline, if it is armed."""
        cdef Deadline deadline = self._armed.pop((kind, group_id, member_id), None)
        if deadline is not None:
            deadline.timer.cancel()

    def cancel_all(self):
        cdef Deadline deadline
        for deadline in self._armed.values():
            deadline.timer.cancel()
        self._armed.clear()

    cdef Timer timer_of(self, tuple key, int64_t delay_ms):
        return self._timers.after(delay_ms, partial(self._due, key))

    def _due(self, tuple key):
        cdef Deadline deadline = self._armed[key]
        cdef int64_t left_ms = deadline.at_ms - self._clock.monotonic_ms()
        if left_ms > 0:
            deadline.timer = self.timer_of(key, left_ms)
            return
        del self._armed[key]
        deadline.missed()

"""The deadlines of the members of a shard's groups: sessions, rebalances, joins and syncs."""
from functools import partial

cimport cython
from libc.stdint cimport int64_t

from kbroker.base.clock cimport Clock, Timer, Timers

SESSION = 'session'
"""The kind of the deadline for a member's next heartbeat."""
REBALANCE = 'rebalance'
"""The kind of the deadline at which the member must have given up partitions or tasks."""
JOIN, SYNC = 'join', 'sync'
"""The kinds of the deadlines for the next JoinGroup and the next SyncGroup of a member that speaks the classic
protocol."""
DELAY = 'delay'
"""The kind of the deadline at which a new streams group gets its first targets. Its member id is ''."""


@cython.final
cdef class Deadline:
    """An armed deadline. Its timer may be due earlier; it is then started again for the remaining time."""


cdef class Deadlines:
    """All armed deadlines. Arming a deadline again replaces it, which is cheap if it moves to a later time."""

    def __init__(self, Clock clock not None, Timers timers not None):
        self._clock = clock
        self._timers = timers
        self._armed = {}

    def __len__(self):
        return len(self._armed)

    cpdef bint is_armed(self, str kind, str group_id, str member_id) except -1:
        return (kind, group_id, member_id) in self._armed

    cpdef bint postpone(self, str kind, str group_id, str member_id, int64_t timeout_ms) except -1:
        """Move a deadline to `timeout_ms` from now. Return False if it is not armed, or if its timer is due later than
        that."""
        cdef int64_t at_ms = self._clock.monotonic_ms() + timeout_ms
        cdef Deadline deadline = self._armed.get((kind, group_id, member_id))
        if deadline is None or deadline.timer.deadline_ms > at_ms:
            return False
        deadline.at_ms = at_ms
        return True

    cpdef arm(self, str kind, str group_id, str member_id, int64_t timeout_ms, missed):
        """Call `missed` in `timeout_ms`, unless the deadline is cancelled or armed again before."""
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

    def cancel_member(self, str group_id, str member_id):
        """Disarm all deadlines of a member."""
        for kind in (SESSION, REBALANCE, JOIN, SYNC):
            self.cancel(kind, group_id, member_id)

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

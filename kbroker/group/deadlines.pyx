"""The deadlines in a shard by which members must heartbeat, confirm revocations, join again, or send a SyncGroup."""
from functools import partial

cimport cython
from libc.stdint cimport int64_t

from kbroker.base.clock cimport Clock, Timer, Timers

SESSION = 'session'
"""The kind of deadline by which a member must send its next heartbeat."""
REBALANCE = 'rebalance'
"""The kind of deadline by which a member must confirm that it has given up partitions or tasks."""
JOIN, SYNC = 'join', 'sync'
"""The kinds of deadlines by which a member that speaks the classic protocol must send its next JoinGroup or
SyncGroup."""
DELAY = 'delay'
"""The kind of deadline at which a new streams group gets its first targets. This deadline belongs to no member: its
member id is ''."""


@cython.final
cdef class Deadline:
    """An armed deadline. Its timer may end earlier than the deadline; the timer is then started again for the remaining
    time."""


cdef class Deadlines:
    """All armed deadlines of a shard. Arming an armed deadline again replaces it. That is cheap if the deadline moves
    to a later time."""

    def __init__(self, Clock clock not None, Timers timers not None):
        self._clock = clock
        self._timers = timers
        self._armed = {}

    def __len__(self):
        return len(self._armed)

    cpdef bint is_armed(self, str kind, str group_id, str member_id) except -1:
        return (kind, group_id, member_id) in self._armed

    cpdef bint postpone(self, str kind, str group_id, str member_id, int64_t timeout_ms) except -1:
        """Move a deadline to `timeout_ms` from now, and return True. Return False if the deadline is not armed, or if
        its timer ends later than the new time."""
        cdef int64_t at_ms = self._clock.monotonic_ms() + timeout_ms
        cdef Deadline deadline = self._armed.get((kind, group_id, member_id))
        if deadline is None or deadline.timer.deadline_ms > at_ms:
            return False
        deadline.at_ms = at_ms
        return True

    cpdef arm(self, str kind, str group_id, str member_id, int64_t timeout_ms, missed):
        """Arm a deadline: call `missed` in `timeout_ms`, unless the deadline is cancelled or armed again in the
        meantime."""
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
        """Cancel a deadline, if it is armed."""
        cdef Deadline deadline = self._armed.pop((kind, group_id, member_id), None)
        if deadline is not None:
            deadline.timer.cancel()

    def cancel_member(self, str group_id, str member_id):
        """Cancel all deadlines of a member."""
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

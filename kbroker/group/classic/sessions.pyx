"""The sessions of the members of classic groups. Each request of a member restarts its session timeout."""
from functools import partial

from libc.stdint cimport int64_t

from kbroker.base.clock cimport Clock, Timers
from kbroker.group.classic.group cimport ClassicGroup
from kbroker.group.classic.members cimport Member
from kbroker.group.group cimport Group

from kbroker.group.classic.states import GroupState

cdef enum:
    OWN_TIMEOUT = -1

cdef object STABLE = GroupState.STABLE
cdef object PREPARING_REBALANCE = GroupState.PREPARING_REBALANCE


cdef class Sessions:
    """The sessions of all members of classic groups in one shard. When a member's session ends, `on_silence(group,
    member)` is called."""

    def __init__(self, Clock clock not None, Timers timers not None, on_silence):
        self._clock = clock
        self._timers = timers
        self._on_silence = on_silence

    cpdef restart(self, ClassicGroup group, Member member, int64_t timeout_ms=OWN_TIMEOUT):
        """Restart the member's session: expect the member's next request within `timeout_ms`, by default its session
        timeout.

        If the session's timer ends earlier than the session, it keeps running. When it ends, it is started again for
        the remaining time.
        """
        if timeout_ms == OWN_TIMEOUT:
            timeout_ms = member.session_timeout_ms
        member.session_deadline_ms = self._clock.monotonic_ms() + timeout_ms
        timer = member.session_timer
        if timer is not None:
            if timer.callback is not None and timer.deadline_ms <= member.session_deadline_ms:
                return
            timer.cancel()
        self.await_life(group, member, timeout_ms)

    cpdef touch(self, Group group, str member_id):
        """Restart the session of a classic group's member after an offset commit. In other kinds of groups, only
        heartbeats restart a session."""
        cdef ClassicGroup classic
        if not isinstance(group, ClassicGroup):
            return
        classic = group
        cdef Member member = classic.members.get(member_id)
        if member is not None and (classic.state is STABLE or classic.state is PREPARING_REBALANCE):
            self.restart(classic, member)

    cdef await_life(self, ClassicGroup group, Member member, int64_t timeout_ms):
        member.session_timer = self._timers.after(timeout_ms, partial(self._due, group, member))

    def _due(self, ClassicGroup group, Member member):
        cdef int64_t left_ms = member.session_deadline_ms - self._clock.monotonic_ms()
        if left_ms > 0:
            self.await_life(group, member, left_ms)
        else:
            self._on_silence(group, member)

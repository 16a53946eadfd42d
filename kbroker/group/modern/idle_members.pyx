"""Heartbeats that change nothing, answered without a turn.

Most heartbeats are from a member that has its whole target, in a group that no operation waits for. For such a
heartbeat, the operation `Heartbeats.beat` returns no rows: it only returns the interval, and arms the session's
deadline. `IdleMembers` does the same without an operation. If it is not certain that nothing changes, it leaves the
heartbeat to the operation.
"""
from libc.stdint cimport int32_t, int64_t

from kbroker.base.clock cimport Clock
from kbroker.group.deadlines cimport Deadlines
from kbroker.group.shard cimport Shard

from kbroker.group.deadlines import SESSION
from kbroker.group.modern.reconcile import State

cdef enum:
    LEAST_INTERVAL_MS = 500     # the shortest interval between two heartbeats of a member
    # The members that may heartbeat in a millisecond. In larger groups, the shortest interval is longer.
    MEMBERS_A_MS = 10

cdef object STABLE = State.STABLE


cpdef int64_t next_interval_ms(int64_t configured_ms, bint is_settled, int64_t since_assignment_ms,
                               Py_ssize_t members) except? -1:
    """Return the time until a member's next heartbeat.

    A heartbeat's response tells a member of its new target. The interval is therefore short until the member is
    settled, and while other members may not know the last target. Kafka always names the configured interval; clients
    adopt the interval of each response. An assignment time in the future means that the clock was set back since.
    """
    if is_settled and (since_assignment_ms >= configured_ms or since_assignment_ms < 0):
        return configured_ms
    return min(configured_ms, max(<int64_t>LEAST_INTERVAL_MS, <int64_t>(members // MEMBERS_A_MS)))


cdef class Sender:
    """The sender of a heartbeat: its group, its ids, its client and its epoch."""


cdef class IdleMembers:
    """The idle members of all groups of one kind in a shard. `heartbeats` is the Heartbeats object of the kind."""

    def __init__(self, heartbeats):
        place = heartbeats.place
        self._shard = place.shard
        self._lines = place.turns.lines
        self._deadlines = place.deadlines
        self._changes = place.changes
        self._clock = place.clock
        self._heartbeats = heartbeats
        self._group_config = place.group_config
        self._is_idle = heartbeats.kind.is_idle
        self._group_class = heartbeats.kind.group_class
        self._kind = self._group_class.group_type
        self._has_endpoints = self._kind == 'streams'

    cdef bint find(self, Sender sender, IdleBeat *found) except -1:
        """Set `found` if the heartbeat, which only names its sender, changes nothing. Return False if it must be an
        operation."""
        cdef dict members
        cdef str group_id = sender.group_id, member_id = sender.member_id
        cdef int32_t epoch = sender.epoch
        group = self._shard.groups.get(group_id)
        if type(group) is not self._group_class or epoch <= 0 or group_id in self._lines:
            return False
        members = group.members
        member = members.get(member_id)
        if member is None or member.client_id != sender.client_id or member.client_host != sender.client_host:
            return False
        if sender.instance_id is not None and group.instances.get(sender.instance_id) != member_id:
            return False
        held = member.held
        if held.epoch != epoch or held.state is not STABLE or group.assignment_epoch != epoch or group.epoch != epoch:
            return False
        if group.metadata_version != self._changes.version or not self._is_idle(group, member):
            return False
        found.session_timeout_ms, heartbeat_interval_ms, _ = self._group_config(group_id).timing[self._kind]
        found.interval_ms = next_interval_ms(
            heartbeat_interval_ms, True, self._clock.wall_ms() - <int64_t>group.assigned_at_ms, len(members))
        if self._has_endpoints:
            found.endpoint_epoch = group.endpoint_epoch
        return True

    cdef int serve(self, str group_id, str member_id, IdleBeat *found) except -1:
        """Expect the next heartbeat of the member within its session timeout."""
        if not self._deadlines.postpone(SESSION, group_id, member_id, found.session_timeout_ms):
            self._heartbeats.arm_session(group_id, self._shard.groups[group_id].members[member_id])
        return 0

"""The check for heartbeats that change nothing, which can be answered without a turn.

Most heartbeats come from a member that has its whole target, to a group without pending operations. For a heartbeat of
this kind, the operation `Heartbeats.beat` would append no rows. It would only return the interval, and arm the
session's deadline. `IdleMembers` does the same without an operation. If it is not certain that the heartbeat changes
nothing, the heartbeat becomes an operation.
"""
from libc.stdint cimport int32_t, int64_t

from kbroker.base.clock cimport Clock
from kbroker.group.deadlines cimport Deadlines
from kbroker.group.shard cimport Shard

from kbroker.group.deadlines import SESSION
from kbroker.group.modern.reconcile import State

cdef enum:
    LEAST_INTERVAL_MS = 500     # the shortest interval between two heartbeats of a member
    # The largest number of members that may heartbeat in a millisecond. The shortest interval grows with the number of
    # members so that this number is not exceeded.
    MEMBERS_A_MS = 10

cdef object STABLE = State.STABLE


cpdef int64_t next_interval_ms(int64_t configured_ms, bint is_settled, int64_t since_assignment_ms,
                               Py_ssize_t members) except? -1:
    """Return the time until a member's next heartbeat in ms.

    A member learns of a change of its assignment only from a heartbeat's response. The interval is therefore short
    until the member is settled, and for one configured interval after the last assignment, while other members may not
    know of it yet. Kafka always returns the configured interval; clients adopt the interval of each response. If
    `since_assignment_ms` is negative, the clock was set back after the assignment; the configured interval then
    applies.
    """
    if is_settled and (since_assignment_ms >= configured_ms or since_assignment_ms < 0):
        return configured_ms
    return min(configured_ms, max(<int64_t>LEAST_INTERVAL_MS, <int64_t>(members // MEMBERS_A_MS)))


cdef class Sender:
    """The sender of a heartbeat: the group id, the ids of the member and its client, and the member epoch."""


cdef class IdleMembers:
    """The idle members in all groups of one kind in a shard. The methods find out whether the sender of a heartbeat is
    idle, and serve its heartbeat. `heartbeats` is the Heartbeats object of the kind."""

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
        """Return whether a heartbeat that only names its sender changes nothing. If so, set `found`. If not, the
        heartbeat must become an operation."""
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
        config = self._group_config(group_id)
        found.session_timeout_ms, heartbeat_interval_ms, _ = config.timing[self._kind]
        found.interval_ms = next_interval_ms(
            heartbeat_interval_ms, True, self._clock.wall_ms() - <int64_t>group.assigned_at_ms, len(members))
        if self._has_endpoints:
            found.endpoint_epoch = group.endpoint_epoch
            found.task_offset_interval_ms = config.streams_task_offset_interval_ms
            found.recovery_lag = config.streams_acceptable_recovery_lag
        return True

    cdef int serve(self, str group_id, str member_id, IdleBeat *found) except -1:
        """Move the member's session deadline to one session timeout from now."""
        if not self._deadlines.postpone(SESSION, group_id, member_id, found.session_timeout_ms):
            self._heartbeats.arm_session(group_id, self._shard.groups[group_id].members[member_id])
        return 0

"""The base class of all kinds of groups. It declares the methods that the code for offsets, listings and deletions
calls."""
from libc.stdint cimport int32_t

from kbroker.base.object_memory cimport memory_of
from kbroker.group.commits cimport Commit
from kbroker.group.memory cimport GroupMemory

from kbroker.base.errors import ErrorCode, KafkaError

GROUP_BYTES = 1_000
"""The memory of a group without members, in bytes, measured on CPython 3.11 with 64 bits."""


cdef class Group:
    """The base class of every kind of group.

    * `group_type`: the name of the kind in ListGroups.
    * `protocol_type`: None for a group that only has offsets.
    * `held_bytes`: the memory of the group with its members, in bytes.
    """

    group_type = ''

    def __init__(self, str group_id not None, str protocol_type=None):
        self.group_id = group_id
        self.protocol_type = protocol_type
        self.held_bytes = GROUP_BYTES + memory_of(group_id) + memory_of(protocol_type)

    @property
    def state_name(self):
        """The name of the group's state in ListGroups responses."""
        raise NotImplementedError

    @property
    def is_empty(self):
        """True if the group has no members."""
        raise NotImplementedError

    @property
    def is_dead(self):
        """True if the rows that end the group are in the log, but not durable yet."""
        return False

    @property
    def may_expire(self):
        """True if the group may end when its last offset expires."""
        return self.is_empty

    cpdef hold(self, Py_ssize_t more_bytes):
        """Add `more_bytes`, which may be negative, to the group's memory. Also add it to the memory of all groups, if
        the group is counted there."""
        self.held_bytes += more_bytes
        if self._memory is not None:
            self._memory.hold(more_bytes)

    cpdef hold_in(self, GroupMemory memory):
        """Start to count the group's memory in `memory`, the memory of all groups. If `memory` is None, stop counting
        it."""
        if self._memory is not None:
            self._memory.hold(-self.held_bytes)
        self._memory = memory
        if memory is not None:
            memory.hold(self.held_bytes)

    cpdef check_alive(self):
        """Raise COORDINATOR_NOT_AVAILABLE if the group is being deleted. Clients try again after this error."""
        if self.is_dead:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f'group {self.group_id} is being deleted')

    cpdef check_commit(self, Commit commit, int version):
        """Raise KafkaError unless all offsets of the commit, an OffsetCommit request of this version, may be stored."""
        raise NotImplementedError

    cpdef check_transactional_commit(self, Commit commit, int version):
        """Raise KafkaError unless all offsets of the commit, a TxnOffsetCommit request of this version, may be
        stored."""
        raise NotImplementedError

    cpdef check_fetch(self, str member_id, int32_t member_epoch):
        """Raise KafkaError unless the member that sent an OffsetFetch is in the group. If `member_id` is None and the
        epoch is negative, the request names no member."""

    def check_offset_deletion(self):
        """Raise KafkaError if an OffsetDelete may delete no offsets of the group. Otherwise, it may delete those of
        topics that no member reads."""

    def bury(self, now_ms):
        """Mark the group as dead, because the rows that end it are about to be appended."""

    def read_subscriptions(self):
        """Read the topics that the members subscribe to. This is a generator, which reads in parts. `is_subscribed_to`
        needs the topics."""
        return iter(())

    def is_subscribed_to(self, topic):
        """Return whether a member subscribes to the topic. If so, the group's offsets of the topic must not expire or
        be deleted."""
        raise NotImplementedError

    def kept_since_ms(self, committed):
        """Return the wall time from which the retention time of an offset counts. None means that the offset does not
        expire now."""
        raise NotImplementedError

    def copy(self):
        """Return a copy of the group to which rows can be applied. If a row of this kind of group replaces the whole
        group, return the group itself."""
        return self

    def tombstones(self):
        """Return the tombstones that end the group as pairs (key, None), in the same order as Kafka."""
        raise NotImplementedError

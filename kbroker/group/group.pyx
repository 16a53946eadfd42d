"""A group of any kind, as offsets, listings and deletions see it."""
from libc.stdint cimport int32_t

from kbroker.base.object_memory cimport memory_of
from kbroker.group.commits cimport Commit
from kbroker.group.memory cimport GroupMemory

from kbroker.base.errors import ErrorCode, KafkaError

GROUP_BYTES = 1_000
"""The memory of a group without members, as measured on CPython 3.11 with 64 bits."""


cdef class Group:
    """The base of every kind of group.

    `group_type` is the word for the kind in ListGroups. `protocol_type` is None for a group that only has offsets.
    `held_bytes` is the memory of the group with its members.
    """

    group_type = ''

    def __init__(self, str group_id not None, str protocol_type=None):
        self.group_id = group_id
        self.protocol_type = protocol_type
        self.held_bytes = GROUP_BYTES + memory_of(group_id) + memory_of(protocol_type)

    @property
    def state_name(self):
        """The state as ListGroups answers it."""
        raise NotImplementedError

    @property
    def is_empty(self):
        """The group has no members."""
        raise NotImplementedError

    @property
    def is_dead(self):
        """The end of the group is on its way to the disk."""
        return False

    @property
    def may_expire(self):
        """The group ends with its last offset, as it is now."""
        return self.is_empty

    cpdef hold(self, Py_ssize_t more_bytes):
        """Count memory of the group, where the shard has it among its groups also in the memory of all groups."""
        self.held_bytes += more_bytes
        if self._memory is not None:
            self._memory.hold(more_bytes)

    cpdef hold_in(self, GroupMemory memory):
        """Count the group's memory in that of all groups, from now on; None to count it out."""
        if self._memory is not None:
            self._memory.hold(-self.held_bytes)
        self._memory = memory
        if memory is not None:
            memory.hold(self.held_bytes)

    cpdef check_alive(self):
        """COORDINATOR_NOT_AVAILABLE for a group whose deletion is on its way to the disk: the client comes again."""
        if self.is_dead:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f'group {self.group_id} is being deleted')

    cpdef check_commit(self, Commit commit, int version):
        """Raise KafkaError unless the OffsetCommit of this version may be stored, as a whole."""
        raise NotImplementedError

    cpdef check_transactional_commit(self, Commit commit, int version):
        """Raise KafkaError unless the TxnOffsetCommit of this version may be stored, as a whole."""
        raise NotImplementedError

    cpdef check_fetch(self, str member_id, int32_t member_epoch):
        """Raise KafkaError unless the member of an OffsetFetch is in the group. None and a negative epoch name none."""

    def check_offset_deletion(self):
        """Raise KafkaError unless an OffsetDelete may delete offsets that no member needs."""

    def bury(self, now_ms):
        """Note that the group's end is about to be appended."""

    def read_subscriptions(self):
        """Find out which topics the members are subscribed to, in parts: a generator. `is_subscribed_to` needs it."""
        return iter(())

    def is_subscribed_to(self, topic):
        """Return whether a member is subscribed to the topic. Its offsets must stay then."""
        raise NotImplementedError

    def kept_since_ms(self, committed):
        """Return the time from which the retention of an offset counts, or None while the offset does not expire."""
        raise NotImplementedError

    def copy(self):
        """Return a copy that rows may change; the group itself if rows only ever replace it."""
        return self

    def tombstones(self):
        """Return the rows that end the group, in Kafka's order, as (key, None)."""
        raise NotImplementedError

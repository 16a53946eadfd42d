"""The interface of a group of any kind: the methods that offsets, listings and deletions call."""
from libc.stdint cimport int32_t

from kbroker.base.object_memory cimport memory_of
from kbroker.group.commits cimport Commit
from kbroker.group.memory cimport GroupMemory

from kbroker.base.errors import ErrorCode, KafkaError

GROUP_BYTES = 1_000
"""The memory of a group without members, measured on CPython 3.11 with 64 bits."""


cdef class Group:
    """The base class of every kind of group.

    * `group_type`: the name of the kind in ListGroups.
    * `protocol_type`: None for a group that only has offsets.
    * `held_bytes`: the memory of the group with its members.
    """

    group_type = ''

    def __init__(self, str group_id not None, str protocol_type=None):
        self.group_id = group_id
        self.protocol_type = protocol_type
        self.held_bytes = GROUP_BYTES + memory_of(group_id) + memory_of(protocol_type)

    @property
    def state_name(self):
        """The name of the state in ListGroups."""
        raise NotImplementedError

    @property
    def is_empty(self):
        """The group has no members."""
        raise NotImplementedError

    @property
    def is_dead(self):
        """Rows that end the group are in the log, but not durable yet."""
        return False

    @property
    def may_expire(self):
        """The group may end when the last of its offsets expires."""
        return self.is_empty

    cpdef hold(self, Py_ssize_t more_bytes):
        """Count more memory of the group; less if `more_bytes` is negative. While the shard has the group, count it for
        all groups, too."""
        self.held_bytes += more_bytes
        if self._memory is not None:
            self._memory.hold(more_bytes)

    cpdef hold_in(self, GroupMemory memory):
        """From now on, count the group's memory in `memory`, the memory of all groups. If it is None, stop counting it
        there."""
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
        """Raise KafkaError unless all offsets of the OffsetCommit of this version may be stored."""
        raise NotImplementedError

    cpdef check_transactional_commit(self, Commit commit, int version):
        """Raise KafkaError unless all offsets of the TxnOffsetCommit of this version may be stored."""
        raise NotImplementedError

    cpdef check_fetch(self, str member_id, int32_t member_epoch):
        """Raise KafkaError unless the member of an OffsetFetch is in the group. Member id None and a negative epoch
        mean that the request names no member."""

    def check_offset_deletion(self):
        """Raise KafkaError unless an OffsetDelete may delete the offsets of topics that no member reads."""

    def bury(self, now_ms):
        """Note that the rows that end the group are about to be appended."""

    def read_subscriptions(self):
        """Read the topics that the members subscribe to, in parts: a generator. `is_subscribed_to` needs them."""
        return iter(())

    def is_subscribed_to(self, topic):
        """Return whether a member subscribes to the topic, so that the topic's offsets must stay."""
        raise NotImplementedError

    def kept_since_ms(self, committed):
        """Return the wall time at which the retention of an offset begins; None while the offset does not expire."""
        raise NotImplementedError

    def copy(self):
        """Return a copy that rows may change. Return the group itself if its rows replace it and never change it."""
        return self

    def tombstones(self):
        """Return the tombstones that end the group, in Kafka's order, as (key, None)."""
        raise NotImplementedError

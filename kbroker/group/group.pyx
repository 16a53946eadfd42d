"""The interface of a group of any kind: what offsets, listings and deletions use of it."""
from libc.stdint cimport int32_t

from kbroker.base.object_memory cimport memory_of
from kbroker.group.commits cimport Commit
from kbroker.group.memory cimport GroupMemory

from kbroker.base.errors import ErrorCode, KafkaError

GROUP_BYTES = 1_000
"""The memory of a group without members, as measured on CPython 3.11 with 64 bits."""


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
        """The group is ended by rows that are not durable yet."""
        return False

    @property
    def may_expire(self):
        """The group may end when its last offset expires."""
        return self.is_empty

    cpdef hold(self, Py_ssize_t more_bytes):
        """Count more memory of the group, or less if `more_bytes` is negative. The memory of all groups follows if the
        shard has the group."""
        self.held_bytes += more_bytes
        if self._memory is not None:
            self._memory.hold(more_bytes)

    cpdef hold_in(self, GroupMemory memory):
        """Add the group's memory to that of all groups, from now on. None removes it again."""
        if self._memory is not None:
            self._memory.hold(-self.held_bytes)
        self._memory = memory
        if memory is not None:
            memory.hold(self.held_bytes)

    cpdef check_alive(self):
        """Raise COORDINATOR_NOT_AVAILABLE, after which clients try again, if the deletion of the group is not durable
        yet."""
        if self.is_dead:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f'group {self.group_id} is being deleted')

    cpdef check_commit(self, Commit commit, int version):
        """Raise KafkaError unless the OffsetCommit of this version may be stored, as a whole."""
        raise NotImplementedError

    cpdef check_transactional_commit(self, Commit commit, int version):
        """Raise KafkaError unless the TxnOffsetCommit of this version may be stored, as a whole."""
        raise NotImplementedError

    cpdef check_fetch(self, str member_id, int32_t member_epoch):
        """Raise KafkaError unless the member of an OffsetFetch is in the group. None and a negative epoch stand for no
        member."""

    def check_offset_deletion(self):
        """Raise KafkaError unless an OffsetDelete may delete offsets of topics that no member reads."""

    def bury(self, now_ms):
        """Note that the group's end is about to be appended."""

    def read_subscriptions(self):
        """Read the topics that the members are subscribed to, in parts: a generator. `is_subscribed_to` needs them."""
        return iter(())

    def is_subscribed_to(self, topic):
        """Return whether a member is subscribed to the topic, so that its offsets have to stay."""
        raise NotImplementedError

    def kept_since_ms(self, committed):
        """Return the wall time from which the retention of an offset counts, None while the offset does not expire."""
        raise NotImplementedError

    def copy(self):
        """Return a copy that rows may change, or the group itself if rows replace it and never change it."""
        return self

    def tombstones(self):
        """Return the rows that end the group, in Kafka's order, as (key, None)."""
        raise NotImplementedError

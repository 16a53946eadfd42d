"""Offset commits of clients: OffsetCommit and TxnOffsetCommit requests, reduced to what a group stores."""
from libc.stdint cimport int32_t, int64_t

NO_TOPIC_ID = bytes(16)
TXN_VERSION_WITH_CODES_OF_GROUPS = 6
"""The first version of TxnOffsetCommit that may be answered with GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH (KIP-1319).
In lower versions, ILLEGAL_GENERATION replaces both."""


cdef class NewOffset:
    """The offset that a client commits for one partition. `topic_id` is the id of the existing topic that has the
    committed topic name."""

    def __init__(self, int64_t offset, int32_t leader_epoch=-1, str metadata='', bytes topic_id not None=NO_TOPIC_ID):
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.metadata = metadata
        self.topic_id = topic_id


cdef class Commit:
    """An OffsetCommit or a TxnOffsetCommit request, without the offsets of partitions that do not exist.

    * `offsets`: maps (topic, partition) to its NewOffset.
    * `generation`: the generation that the member sent; in a group that is not classic, the member epoch.
    * `retention_ms`: the time after the commit at which the offsets expire (OffsetCommit versions 2 to 4), or -1 if
      offsets.retention.minutes applies.

    A commit also has the rows that were made from it, so it can be stored only once.
    """

    def __init__(self, str group_id not None, dict offsets not None, int32_t generation=-1, str member_id not None='',
                 str group_instance_id=None, int64_t retention_ms=-1):
        self.group_id = group_id
        self.offsets = offsets
        self.generation = generation
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.retention_ms = retention_ms

    cpdef bint names_member(self) except -1:
        """Return whether the request has a generation, a member id or an instance id."""
        return self.generation >= 0 or self.member_id != '' or self.group_instance_id is not None

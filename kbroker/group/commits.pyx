"""Offset commits of clients, as a group checks them."""
from libc.stdint cimport int32_t, int64_t

NO_TOPIC_ID = bytes(16)


cdef class NewOffset:
    """A client's offset commit for one partition. `topic_id` is that of the existing topic."""

    def __init__(self, int64_t offset, int32_t leader_epoch=-1, str metadata='', bytes topic_id not None=NO_TOPIC_ID):
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.metadata = metadata
        self.topic_id = topic_id


cdef class Commit:
    """An OffsetCommit or the group's half of a TxnOffsetCommit, with the partitions that exist.

    `offsets` has a NewOffset by topic and partition. `generation` is the member epoch where the group is no classic
    one. `retention_ms`: until when the offsets are kept, from now; -1: as offsets.retention.minutes says. OffsetCommit
    versions 2 to 4. A commit is made once: it keeps its rows. Rows of a transaction have no topic id, as in Kafka.
    """

    def __init__(self, str group_id not None, dict offsets not None, int32_t generation=-1, str member_id not None='',
                 str group_instance_id=None, int64_t retention_ms=-1, bint is_transactional=False):
        self.group_id = group_id
        self.offsets = offsets
        self.generation = generation
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.retention_ms = retention_ms
        self.is_transactional = is_transactional

    cpdef bint names_member(self) except -1:
        """Return whether the commit names a generation, a member or an instance."""
        return self.generation >= 0 or self.member_id != '' or self.group_instance_id is not None

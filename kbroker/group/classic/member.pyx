"""A member of a classic group."""
import uuid

from libc.stdint cimport int32_t, int64_t

from kbroker.base.object_memory cimport memory_of

MAX_MEMBER_NAME_LENGTH = 249
"""The longest group.instance.id that Kafka's clients accept (KIP-345)."""
MEMBER_BYTES = 1_200
PROTOCOL_BYTES = 160
"""The memory of a member with its session timer, and of an assignor with empty metadata, as measured on CPython 3.11
with 64 bits. Strings and metadata come on top."""


def new_member_id(client_id, group_instance_id):
    """Return a readable part and a UUID. The part is cut, so that the id is not longer than the protocol allows."""
    return f'{(group_instance_id or client_id)[:MAX_MEMBER_NAME_LENGTH]}-{uuid.uuid4()}'


cdef class Member:
    """A member. `protocols` has the assignors that it offers, best first, each with the member's metadata for it.

    * `is_new`: its first join is parked. It does not know its id, so it cannot heartbeat.
    * `join_done`, `sync_done`: the parked requests, at most one of each. Only the group sets them.
    * `session_deadline_ms`: the end of the session in monotonic time. The timer may be due earlier.
    * `held_bytes`: the memory that the member takes.
    * `metadata_bytes`: the size of its longest metadata.
    """

    def __init__(self, str member_id not None, str group_instance_id, str client_id not None, str client_host not None,
                 int32_t rebalance_timeout_ms, int32_t session_timeout_ms, protocols, bytes assignment not None=b''):
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = tuple(protocols)
        self.assignment = assignment
        self.metadata_bytes = max([len(metadata) for _, metadata in self.protocols], default=0)
        self.held_bytes = (
            MEMBER_BYTES + memory_of(member_id) + memory_of(group_instance_id) + memory_of(client_id)
            + memory_of(client_host)
            + sum([PROTOCOL_BYTES + memory_of(name) + len(metadata) for name, metadata in self.protocols])
            + len(assignment)
        )

    def copy(self):
        """Return a member with the same fields and without parked requests and session."""
        return Member(self.member_id, self.group_instance_id, self.client_id, self.client_host,
                      self.rebalance_timeout_ms, self.session_timeout_ms, self.protocols, self.assignment)

    cdef int adopt_fields(self, Member other) except -1:
        """Adopt the fields that a JoinGroup sets, but not the id."""
        self.held_bytes = other.held_bytes - len(other.assignment) + len(self.assignment)
        self.protocols = other.protocols
        self.metadata_bytes = other.metadata_bytes
        self.rebalance_timeout_ms = other.rebalance_timeout_ms
        self.session_timeout_ms = other.session_timeout_ms
        self.client_id = other.client_id
        self.client_host = other.client_host
        return 0

    cdef int expect_life(self, int64_t now_ms) except -1:
        """Start the time of the session. `Sessions.restart` must follow, because an old timer may have ended."""
        self.session_deadline_ms = now_ms + self.session_timeout_ms
        return 0

    @property
    def is_static(self):
        return self.group_instance_id is not None

    @property
    def is_waiting(self):
        """A join or a sync of the member is parked. The broker has to answer first, so its session does not end."""
        return not self.is_new and (self.join_done is not None or self.sync_done is not None)

    def metadata(self, protocol_name):
        """Return the member's metadata for this assignor, empty bytes if the member does not offer it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b''

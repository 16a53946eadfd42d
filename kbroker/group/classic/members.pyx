"""Classes for the members of a classic group: a member, the parked requests of all members, the assignors that the
members offer, and the topics that the members read."""
import uuid

from libc.stdint cimport int32_t, int64_t

from kbroker.base.object_memory cimport memory_of

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.records import topics_of_subscription

MAX_MEMBER_NAME_LENGTH = 249
"""The length of the longest group.instance.id that Kafka's clients accept (KIP-345), in characters."""
MEMBER_BYTES = 1_200
PROTOCOL_BYTES = 160
"""The memory in bytes of a member with its session timer, and of one assignor that a member offers. Both were measured
on CPython 3.11 with 64 bits, without strings and metadata."""

cdef enum:
    TOPICS_A_PART = 64          # the number of topics that are read between two yields

cdef object NOT_READ = object()


def new_member_id(client_id, group_instance_id):
    """Return a new member id: a readable prefix and a UUID. The prefix is cut so that the id is not longer than the
    protocol allows."""
    return f'{(group_instance_id or client_id)[:MAX_MEMBER_NAME_LENGTH]}-{uuid.uuid4()}'


cdef class Member:
    """A member of a classic group. `protocols` has a pair for each assignor that the member offers, the preferred one
    first: the assignor's name, and the member's metadata for this assignor.

    * `is_new`: true if the client still waits for the response to its first JoinGroup. Until then, it does not know its
      id and cannot heartbeat.
    * `join_done`, `sync_done`: the parked JoinGroup and the parked SyncGroup, or None. Only the group sets them.
    * `session_deadline_ms`: the end of the session in monotonic time. The session's timer may end earlier; it is then
      started again.
    * `held_bytes`: the memory that the member takes, in bytes.
    * `metadata_bytes`: the size of the member's longest metadata, in bytes.
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
        """Return a copy of the member that has no parked requests and no session."""
        return Member(self.member_id, self.group_instance_id, self.client_id, self.client_host,
                      self.rebalance_timeout_ms, self.session_timeout_ms, self.protocols, self.assignment)

    cdef int adopt_fields(self, Member other) except -1:
        """Copy all fields that a JoinGroup sets, except the member id, from `other` to this member."""
        self.held_bytes = other.held_bytes - len(other.assignment) + len(self.assignment)
        self.protocols = other.protocols
        self.metadata_bytes = other.metadata_bytes
        self.rebalance_timeout_ms = other.rebalance_timeout_ms
        self.session_timeout_ms = other.session_timeout_ms
        self.client_id = other.client_id
        self.client_host = other.client_host
        return 0

    cdef int expect_life(self, int64_t now_ms) except -1:
        """Set the end of the session to one session timeout from now. The caller must then call `Sessions.restart`,
        because the session's timer may have ended."""
        self.session_deadline_ms = now_ms + self.session_timeout_ms
        return 0

    @property
    def is_static(self):
        return self.group_instance_id is not None

    @property
    def is_waiting(self):
        """True if a JoinGroup or SyncGroup of the member is parked. The session does not end while the member waits for
        the broker's reply."""
        return not self.is_new and (self.join_done is not None or self.sync_done is not None)

    def metadata(self, protocol_name):
        """Return the member's metadata for the assignor. Return empty bytes if the member does not offer the
        assignor."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b''


cdef class ParkedRequests:
    """The JoinGroup and SyncGroup requests that wait for the rebalance of one group.

    * `joined_count`: the number of members with a parked join.
    * `unsynced_member_ids`: the ids of the generation's members that have not sent a SyncGroup yet.
    """

    def __init__(self, dict members not None):
        self._members = members
        self.unsynced_member_ids = set()

    cpdef park_join(self, Member member, Completion done):
        assert member.join_done is None
        member.join_done = done
        self.joined_count += 1

    cpdef Completion take_join(self, Member member):
        """Remove and return the member's parked JoinGroup, or return None. The caller must answer the JoinGroup."""
        cdef Completion done = member.join_done
        if done is not None:
            member.join_done = None
            self.joined_count -= 1
        return done

    def take_joins(self, int64_t now_ms):
        """Remove all parked JoinGroup requests, and set the ends of all members' sessions.

        Return a list with a pair for each member: the member, and its parked JoinGroup or None.
        """
        cdef Member member
        cdef list taken = []
        for member in self._members.values():
            member.is_new = False
            taken.append((member, member.join_done))
            member.join_done = None
            member.expect_life(now_ms)
        self.joined_count = 0
        return taken

    def absent_members(self):
        """Return the members that have not joined the rebalance, without static members. A static member is removed
        only when its session ends."""
        cdef Member member
        if self.joined_count == len(self._members):
            return []
        return [member for member in self._members.values()
                if member.join_done is None and member.group_instance_id is None]

    cpdef park_sync(self, Member member, Completion done):
        assert member.sync_done is None
        member.sync_done = done
        self.unsynced_member_ids.discard(member.member_id)

    cpdef Completion take_sync(self, Member member):
        """Remove and return the member's parked SyncGroup, or return None. The caller must answer the SyncGroup."""
        cdef Completion done = member.sync_done
        member.sync_done = None
        return done

    def take_syncs(self, int64_t now_ms):
        """Remove all parked SyncGroup requests, and set the ends of their members' sessions. Return a list of pairs: a
        member, and its SyncGroup."""
        cdef Member member
        cdef list taken = []
        for member in self._members.values():
            if member.sync_done is not None:
                taken.append((member, self.take_sync(member)))
                member.expect_life(now_ms)
        return taken

    cdef int await_syncs(self) except -1:
        """Expect a SyncGroup from each member, because a new generation starts."""
        self.unsynced_member_ids = set(self._members)
        return 0

    cpdef note_synced(self, Member member):
        self.unsynced_member_ids.discard(member.member_id)

    cdef int forget(self, str member_id) except -1:
        """Stop expecting a SyncGroup from the member, because it leaves the group."""
        self.unsynced_member_ids.discard(member_id)
        return 0

    cdef int rename(self, str member_id, str new_id) except -1:
        """Expect the SyncGroup of a static member under its new id."""
        if member_id in self.unsynced_member_ids:
            self.unsynced_member_ids.remove(member_id)
            self.unsynced_member_ids.add(new_id)
        return 0


cdef class Assignors:
    """The assignors of a group. For each assignor, they include the number of members that offer it.

    With these counts, a join needs no loop over the members, so that it costs no more in a large group than in a small
    one.
    """

    def __init__(self, str group_id not None, dict members not None):
        self._group_id = group_id
        self._members = members
        self._counts = {}

    cdef int count(self, Member member, int sign) except -1:
        """Update the counts for the assignors of a member that joins (`sign` is 1) or leaves (`sign` is -1)."""
        cdef int number
        for name in {name for name, _ in member.protocols}:
            number = self._counts.get(name, 0) + sign
            if number:
                self._counts[name] = number
            else:
                del self._counts[name]
        return 0

    def is_common(self, name):
        """Return whether all members offer the assignor."""
        return self._counts.get(name, 0) == len(self._members)

    def common(self):
        """Return the assignors that all members offer, in the order in which the first member lists them."""
        if not self._members:
            return []
        return [name for name, _ in next(iter(self._members.values())).protocols if self.is_common(name)]

    def elect(self):
        """Return the assignor with the most votes. Raise INCONSISTENT_GROUP_PROTOCOL if no assignor is offered by all
        members.

        Each member votes for the first assignor in its list that all members offer. In a tie, the assignor wins that
        got its first vote before the other.
        """
        cdef Member member
        cdef list common = self.common()
        cdef dict votes = {}
        if not common:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f'members of {self._group_id} share no assignor')
        if len(common) == 1:
            return common[0]
        for member in self._members.values():
            for name, _ in member.protocols:
                if name in common:
                    votes[name] = votes.get(name, 0) + 1
                    break
        return max(votes, key=votes.get)


cdef class Subscriptions:
    """The topics that the consumers of a group read, taken from the members' metadata.

    The topics are unknown until `read` has run. They stay unknown if the metadata of a member cannot be read.
    """

    def __init__(self):
        self._topics = NOT_READ

    cdef int forget(self) except -1:
        """Forget the topics, because the group's members have changed."""
        self._topics = NOT_READ
        self._version += 1
        return 0

    def read(self, list members not None, str protocol_name):
        """Read the topics, unless they are known. This is a generator, which reads in parts.

        The topics stay unknown if the group has no assignor, or if its members change before the generator has ended.
        """
        cdef int64_t version = self._version
        cdef Py_ssize_t read = 0
        cdef set topics = set()
        cdef Member member
        if self._topics is not NOT_READ:
            return
        self._topics = None
        if protocol_name is None:
            return
        try:
            for member in members:
                for topic in topics_of_subscription(member.metadata(protocol_name)):
                    topics.add(topic)
                    read += 1
                    if read % TOPICS_A_PART == 0:
                        yield
                        if self._version != version:
                            return
        except ValueError:
            return
        self._topics = topics

    cdef bint are_known(self) except -1:
        return self._topics is not None and self._topics is not NOT_READ

    cdef bint have(self, str topic) except -1:
        return topic in self._topics

"""The members of a classic group: a member, its parked requests, the assignors that the members offer, and the topics
that they read."""
import uuid

from libc.stdint cimport int32_t, int64_t

from kbroker.base.object_memory cimport memory_of

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.records import topics_of_subscription

MAX_MEMBER_NAME_LENGTH = 249
"""The longest group.instance.id that Kafka's clients accept (KIP-345)."""
MEMBER_BYTES = 1_200
PROTOCOL_BYTES = 160
"""The memory of a member with its session timer, and that of an assignor, measured on CPython 3.11 with 64 bits.
Neither includes strings and metadata."""

cdef enum:
    TOPICS_A_PART = 64          # the topics of consumers that are read between two yields

cdef object NOT_READ = object()


def new_member_id(client_id, group_instance_id):
    """Return a member id: a readable prefix and a UUID. Cut the prefix so that the id is not longer than the protocol
    allows."""
    return f'{(group_instance_id or client_id)[:MAX_MEMBER_NAME_LENGTH]}-{uuid.uuid4()}'


cdef class Member:
    """A member. `protocols` has the assignors that it offers, best first, each with the member's metadata for this
    assignor.

    * `is_new`: the client waits for the response to its first JoinGroup. It does not know its id and cannot heartbeat.
    * `join_done`, `sync_done`: the parked JoinGroup and the parked SyncGroup, or None. Only the group sets them.
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
        """Return a member with the same fields, but without parked requests and without a session."""
        return Member(self.member_id, self.group_instance_id, self.client_id, self.client_host,
                      self.rebalance_timeout_ms, self.session_timeout_ms, self.protocols, self.assignment)

    cdef int adopt_fields(self, Member other) except -1:
        """Copy the fields that a JoinGroup sets from `other`. Keep the id."""
        self.held_bytes = other.held_bytes - len(other.assignment) + len(self.assignment)
        self.protocols = other.protocols
        self.metadata_bytes = other.metadata_bytes
        self.rebalance_timeout_ms = other.rebalance_timeout_ms
        self.session_timeout_ms = other.session_timeout_ms
        self.client_id = other.client_id
        self.client_host = other.client_host
        return 0

    cdef int expect_life(self, int64_t now_ms) except -1:
        """Move the end of the session to one session timeout from now. `Sessions.restart` must follow: the timer may
        have ended."""
        self.session_deadline_ms = now_ms + self.session_timeout_ms
        return 0

    @property
    def is_static(self):
        return self.group_instance_id is not None

    @property
    def is_waiting(self):
        """A join or a sync of the member is parked. The session does not end while the member waits for the broker's
        reply."""
        return not self.is_new and (self.join_done is not None or self.sync_done is not None)

    def metadata(self, protocol_name):
        """Return the member's metadata for this assignor, empty bytes if the member does not offer it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b''


cdef class ParkedRequests:
    """The JoinGroup and SyncGroup requests of the members of a group that wait for the rebalance.

    * `joined_count`: the number of members with a parked join.
    * `unsynced_member_ids`: the members of the generation that have not sent a SyncGroup yet.
    """

    def __init__(self, dict members not None):
        self._members = members
        self.unsynced_member_ids = set()

    cpdef park_join(self, Member member, Completion done):
        assert member.join_done is None
        member.join_done = done
        self.joined_count += 1

    cpdef Completion take_join(self, Member member):
        """Remove and return the parked join, or return None if there is none. The caller must answer it."""
        cdef Completion done = member.join_done
        if done is not None:
            member.join_done = None
            self.joined_count -= 1
        return done

    def take_joins(self, int64_t now_ms):
        """Remove all parked joins, and start the sessions of all members.

        Return a list of all members, each with its parked join, or None if the member has none.
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
        """Return the members that have not joined. Leave out static members, which only the end of their sessions
        removes."""
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
        """Remove and return the parked sync, or return None if there is none. The caller must answer it."""
        cdef Completion done = member.sync_done
        member.sync_done = None
        return done

    def take_syncs(self, int64_t now_ms):
        """Remove all parked syncs, and start the sessions of their members. Return a list of these members with their
        syncs."""
        cdef Member member
        cdef list taken = []
        for member in self._members.values():
            if member.sync_done is not None:
                taken.append((member, self.take_sync(member)))
                member.expect_life(now_ms)
        return taken

    cdef int await_syncs(self) except -1:
        """Expect a SyncGroup from each member, because a generation starts."""
        self.unsynced_member_ids = set(self._members)
        return 0

    cpdef note_synced(self, Member member):
        self.unsynced_member_ids.discard(member.member_id)

    cdef int forget(self, str member_id) except -1:
        """Expect no SyncGroup from the member, because it leaves the group."""
        self.unsynced_member_ids.discard(member_id)
        return 0

    cdef int rename(self, str member_id, str new_id) except -1:
        """Expect the SyncGroup of a static member under its new id."""
        if member_id in self.unsynced_member_ids:
            self.unsynced_member_ids.remove(member_id)
            self.unsynced_member_ids.add(new_id)
        return 0


cdef class Assignors:
    """The assignors of a group, each with the number of members that offer it.

    With these counts, no join needs a loop over the members. A join to a large group costs no more than one to a small
    group.
    """

    def __init__(self, str group_id not None, dict members not None):
        self._group_id = group_id
        self._members = members
        self._counts = {}

    cdef int count(self, Member member, int sign) except -1:
        """Count the assignors of a member that joins (`sign` is 1) or leaves (-1)."""
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
        """Return the assignors that all members offer, in the first member's order."""
        if not self._members:
            return []
        return [name for name, _ in next(iter(self._members.values())).protocols if self.is_common(name)]

    def elect(self):
        """Return the assignor with the most votes. Raise INCONSISTENT_GROUP_PROTOCOL if no assignor is offered by all
        members.

        Each member votes for the first of its assignors that all members offer. In a tie, the assignor that got its
        first vote earlier wins.
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
    """The topics that the members of a group of consumers read, taken from their metadata.

    The topics are unknown until `read` has run. They stay unknown if the metadata of a member cannot be read.
    """

    def __init__(self):
        self._topics = NOT_READ

    cdef int forget(self) except -1:
        """Forget the topics, because the members have changed."""
        self._topics = NOT_READ
        self._version += 1
        return 0

    def read(self, list members not None, str protocol_name):
        """Read the topics in parts, unless they are known: a generator.

        The topics stay unknown if there is no assignor, or if the members change before the generator has ended.
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

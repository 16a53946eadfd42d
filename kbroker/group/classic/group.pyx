"""A classic group: who its members are and where its rebalance stands. No timers, no log: `membership` moves it."""

import enum
import uuid

from libc.stdint cimport int32_t, int64_t

from kbroker.base.clock cimport Timer
from kbroker.base.completion cimport Completion
from kbroker.base.object_memory cimport memory_of
from kbroker.group.commits cimport Commit
from kbroker.group.group cimport Group
from kbroker.group.records cimport CommittedOffset

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.records import topics_of_subscription
from kbroker.protocol.messages import GroupMetadataKey

CONSUMER_PROTOCOL_TYPE = 'consumer'
MAX_MEMBER_NAME_LENGTH = 249
"""The longest group.instance.id that Kafka's clients accept (KIP-345)."""
MOST_PROTOCOLS = 64
"""The most assignors that a member may offer. Kafka's clients offer one to five."""
MOST_MEMBERS = 15_000
"""The most members of a group, whatever group.max.size says: the parts of a rebalance that cannot be divided take less
than 10 ms."""
MEMBER_BYTES = 1_200
PROTOCOL_BYTES = 160
"""The memory of a member with its session timer, and of an assignor with empty metadata, as measured on CPython 3.11
with 64 bits. Strings and metadata come on top."""

cdef enum:
    MEMBERS_A_PART = 64         # how many members are looked at between two yields


class GroupState(enum.Enum):
    """The value is what DescribeGroups and ListGroups answer."""

    EMPTY = 'Empty'
    PREPARING_REBALANCE = 'PreparingRebalance'
    COMPLETING_REBALANCE = 'CompletingRebalance'
    STABLE = 'Stable'
    DEAD = 'Dead'


TRANSITIONS = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
"""Empty -> Preparing: the first join. Preparing -> Completing: all who were awaited have joined. Completing ->
Stable: the leader's assignment is durable. Back to Preparing: a join, a leave or an expiry. Preparing -> Empty:
no member joined. Dead: the group's tombstone is in the log, not yet durable; nothing leaves that state."""


cdef object IS_DEAD = GroupState.DEAD
cdef object IS_EMPTY = GroupState.EMPTY
cdef object IS_STABLE = GroupState.STABLE
cdef object IS_COMPLETING = GroupState.COMPLETING_REBALANCE
cdef object IS_PREPARING = GroupState.PREPARING_REBALANCE


cdef class Member:
    """One member. `protocols`: the assignors that it offers, best first, each with the member's metadata for it.

    `is_new`: its first join is still parked: it does not know its id, so it cannot heartbeat. `join_done` and
    `sync_done` are the parked requests, at most one of each; only the group sets them. `session_deadline_ms`: when the
    session ends, in monotonic time; the timer may be earlier. `held_bytes`: the memory that the member takes.
    `metadata_bytes`: the size of its longest metadata.
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

    def as_it_is(self):
        """Return a copy of the fields that a JoinGroup sets, to restore them after a failure."""
        return Member(self.member_id, self.group_instance_id, self.client_id, self.client_host,
                      self.rebalance_timeout_ms, self.session_timeout_ms, self.protocols, self.assignment)

    cdef int take_fields(self, Member other) except -1:
        """Adopt the fields that a JoinGroup sets."""
        self.held_bytes = other.held_bytes - len(other.assignment) + len(self.assignment)
        self.protocols = other.protocols
        self.metadata_bytes = other.metadata_bytes
        self.rebalance_timeout_ms = other.rebalance_timeout_ms
        self.session_timeout_ms = other.session_timeout_ms
        self.client_id = other.client_id
        self.client_host = other.client_host
        return 0

    @property
    def is_static(self):
        return self.group_instance_id is not None

    @property
    def is_waiting(self):
        """Parked in a join or a sync: the broker owes it an answer, so its session does not run out."""
        return not self.is_new and (self.join_done is not None or self.sync_done is not None)

    def metadata(self, protocol_name):
        """Return the metadata that the member sent for this assignor, empty if it does not know the assignor."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b''


cdef class ClassicGroup(Group):
    """State of one group. A group with `protocol_type` None is a simple one: offsets, no members ever.

    `state_since_ms`: wall time of the last transition; None when loaded from a row that does not know it. `members` by
    id; `static_member_ids` by group.instance.id (KIP-345). `pending_members`: timers by ids given out with
    MEMBER_ID_REQUIRED that have not joined yet (KIP-394). `stored_generation`: the one whose assignments were appended,
    so that a leader that syncs twice does not overrule itself. `member_added`: a member has joined since the initial
    rebalance delay was last extended.

    Counts replace loops over the members, so a join into a large group costs no more than one into a small group:
    `joined_count` members wait in a join; `_protocol_counts` has the number of members that offer an assignor.
    `metadata_bytes` is the sum of the members'. `revision` changes with the members. `_subscribed_topics` is NOT_READ
    until they are asked for.
    """

    group_type = 'classic'

    def __init__(self, str group_id not None, *, state_since_ms=None, state=GroupState.EMPTY, int32_t generation=0,
                 str protocol_type=None, str protocol_name=None):
        super().__init__(group_id, protocol_type)
        self.state_since_ms = state_since_ms
        self.state = state
        self.previous_state = GroupState.EMPTY
        self.generation = generation
        self.protocol_name = protocol_name
        self.members = {}
        self.static_member_ids = {}
        self.pending_members = {}
        self.unsynced_member_ids = set()
        self.stored_generation = -1
        self._protocol_counts = {}
        self._subscribed_topics = NOT_READ

    def transition_to(self, state, int64_t now_ms):
        """Raises AssertionError for a transition that is not in the table: a bug, never a client's doing."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f'group {self.group_id!r}: {self.state.value} -> {state.value} is no transition')
        self.previous_state, self.state, self.state_since_ms = self.state, state, now_ms

    def is_in(self, *states):
        return self.state in states

    @property
    def state_name(self):
        return self.state.value

    @property
    def is_empty(self):
        return self.state is IS_EMPTY

    @property
    def is_dead(self):
        return self.state is IS_DEAD

    @property
    def may_expire(self):
        return self.state is IS_EMPTY and not self.pending_members

    def check_offset_deletion(self):
        """NON_EMPTY_GROUP if the members are no consumers, so that their topics are unknown."""
        if self.state is not IS_EMPTY and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f'group {self.group_id} has {len(self.members)} members')

    def bury(self, now_ms):
        self.transition_to(IS_DEAD, now_ms)

    def tombstones(self):
        return [(GroupMetadataKey(group=self.group_id), None)]

    @property
    def is_blank(self):
        """Return whether no member ever joined or committed, and none is pending any more."""
        return self.generation == 0 and not self.members and not self.pending_members and self.protocol_type is None

    def is_leader(self, member_id):
        return self.leader_id == member_id

    @property
    def rebalance_timeout_ms(self):
        """The longest that any member asks for."""
        cdef Member member
        cdef int32_t longest_ms = 0
        for member in self.members.values():
            longest_ms = max(longest_ms, member.rebalance_timeout_ms)
        return longest_ms

    def new_member_id(self, client_id, group_instance_id):
        """A readable part, cut so that the whole fits the protocol's strings whatever the client calls itself, and a
        UUID."""
        return f'{(group_instance_id or client_id)[:MAX_MEMBER_NAME_LENGTH]}-{uuid.uuid4()}'

    cpdef Member check_member(self, str member_id, str group_instance_id):
        """The member. UNKNOWN_MEMBER_ID; FENCED_INSTANCE_ID when its group.instance.id belongs to a newer one
        (KIP-345)."""
        if group_instance_id is not None:
            current = self.static_member_ids.get(group_instance_id)
            if current is not None and current != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID, f'{group_instance_id} belongs to {current}, not {member_id}'
                )
            if current is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f'group {self.group_id} has no instance {group_instance_id}'
                )
        cdef Member member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f'group {self.group_id} has no member {member_id!r}')
        return member

    cpdef check_generation(self, int32_t generation):
        if generation != self.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f'found generation {generation}, expected {self.generation}')

    # Offsets

    cpdef check_commit(self, Commit commit, int version):
        """UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE."""
        self.check_alive()
        if self.is_standalone(commit):
            return
        if not commit.names_member():
            if self.state is IS_EMPTY:
                return
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f'group {self.group_id} has members, and the commit names none'
            )
        self.check_member(commit.member_id, commit.group_instance_id)
        self.check_generation(commit.generation)
        if self.state is IS_COMPLETING:
            # The member knows its generation but has no assignment in it yet: it commits again after its sync.
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    cpdef check_transactional_commit(self, Commit commit, int version):
        """UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, COORDINATOR_NOT_AVAILABLE. Not so a rebalance: the
        generation, if the client names one, is fence enough (KIP-447)."""
        self.check_alive()
        if commit.names_member() and not self.is_standalone(commit):
            self.check_member(commit.member_id, commit.group_instance_id)
            self.check_generation(commit.generation)

    cdef bint is_standalone(self, Commit commit) except -1:
        """Return whether a consumer without group management, or an administrator, commits to an empty group."""
        return commit.generation < 0 and self.state is IS_EMPTY

    def kept_since_ms(self, CommittedOffset committed not None):
        """From when the retention counts (KIP-211): the last commit for groups without members and for topics that the
        members of a stable group of consumers do not read; for other groups the time that the last member left, None
        while there are some."""
        if self.protocol_type is None:
            return committed.commit_timestamp_ms
        if self.state is IS_EMPTY:
            return committed.commit_timestamp_ms if self.state_since_ms is None else self.state_since_ms
        if self.state is IS_STABLE and self.protocol_type == CONSUMER_PROTOCOL_TYPE and self.knows_subscriptions:
            return committed.commit_timestamp_ms
        return None

    # Members

    def add(self, Member member not None, protocol_type):
        if not self.members:
            self.hold(memory_of(protocol_type) - memory_of(self.protocol_type))
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_member_ids[member.group_instance_id] = member.member_id
        self.count(member, 1)

    def remove(self, Member member not None):
        """Forget the member and its timer. The parked requests are the caller's to answer first."""
        assert member.join_done is None and member.sync_done is None
        if member.session_timer is not None:
            member.session_timer.cancel()
        del self.members[member.member_id]
        self.unsynced_member_ids.discard(member.member_id)
        if member.group_instance_id is not None:
            del self.static_member_ids[member.group_instance_id]
        if self.is_leader(member.member_id):
            self.leader_id = next(iter(self.members), None)
        self.count(member, -1)

    def update(self, Member member not None, Member joining not None):
        """The member joins again: it takes the fields of `joining`, but not the id."""
        self.count(member, -1)
        member.take_fields(joining)
        self.count(member, 1)

    cdef int count(self, Member member, int sign) except -1:
        """Add the member to the counts, or take it out of them."""
        cdef int number
        for name in {name for name, _ in member.protocols}:
            number = self._protocol_counts.get(name, 0) + sign
            if number:
                self._protocol_counts[name] = number
            else:
                del self._protocol_counts[name]
        self.hold(sign * member.held_bytes)
        self.metadata_bytes += sign * member.metadata_bytes
        self.revision += 1
        self._subscribed_topics = NOT_READ
        return 0

    def rename_static_member(self, Member member not None, member_id):
        """The instance came back under a new member id; its assignment and leadership stay (KIP-345)."""
        assert member.group_instance_id is not None
        del self.members[member.member_id]
        self.members[member_id] = member
        if self.is_leader(member.member_id):
            self.leader_id = member_id
        if member.member_id in self.unsynced_member_ids:
            self.unsynced_member_ids.remove(member.member_id)
            self.unsynced_member_ids.add(member_id)
        member.member_id = member_id
        self.static_member_ids[member.group_instance_id] = member_id

    def has_room_for(self, member_id, Py_ssize_t max_size):
        """group.max.size. While a rebalance gathers its members those that have joined count: so a group that is too
        large (the setting was lowered) sheds the ones that come last."""
        cdef Member member
        if self.is_in(GroupState.EMPTY, GroupState.DEAD):
            return True
        member = self.members.get(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            return (member is not None and member.join_done is not None) or self.joined_count < max_size
        return member is not None or len(self.members) < max_size

    # Parked requests

    cpdef park_join(self, Member member, Completion done):
        assert member.join_done is None
        member.join_done = done
        self.joined_count += 1

    cpdef Completion take_join(self, Member member):
        """Return the parked join, if there is one, for the caller to answer."""
        cdef Completion done = member.join_done
        if done is not None:
            member.join_done = None
            self.joined_count -= 1
        return done

    cpdef park_sync(self, Member member, Completion done):
        assert member.sync_done is None
        member.sync_done = done
        self.unsynced_member_ids.discard(member.member_id)

    cpdef Completion take_sync(self, Member member):
        cdef Completion done = member.sync_done
        member.sync_done = None
        return done

    def note_synced(self, Member member not None):
        self.unsynced_member_ids.discard(member.member_id)

    def note_new(self, Member member not None):
        """The member's first join is parked: it does not know its id."""
        member.is_new = True

    def take_joins(self, int64_t now_ms):
        """Return all members in a list, each with its parked join or None. From now on their sessions run."""
        cdef Member member
        cdef list taken = []
        for member in self.members.values():
            member.is_new = False
            taken.append((member, member.join_done))
            member.join_done = None
            self.expect_life(member, now_ms)
        self.joined_count = 0
        return taken

    def take_syncs(self, int64_t now_ms):
        """Return the members that wait in a sync in a list, each with it. From now on their sessions run."""
        cdef Member member
        cdef list taken = []
        for member in self.members.values():
            if member.sync_done is not None:
                taken.append((member, self.take_sync(member)))
                self.expect_life(member, now_ms)
        return taken

    cdef int expect_life(self, Member member, int64_t now_ms) except -1:
        """Start the session's time. `Sessions.restart` must follow: an old timer may have been spent."""
        member.session_deadline_ms = now_ms + member.session_timeout_ms
        return 0

    def assign(self, dict assignments not None):
        """Give each member its assignment, by member id. A member without one gets an empty one."""
        cdef Member member
        cdef bytes assignment
        for member in self.members.values():
            assignment = assignments.get(member.member_id, b'')
            self.hold(len(assignment) - len(member.assignment))
            member.held_bytes += len(assignment) - len(member.assignment)
            member.assignment = assignment

    def absent_members(self):
        """Return the members that did not join, but for the static ones: those have their session's time."""
        cdef Member member
        if self.joined_count == len(self.members):
            return []
        return [member for member in self.members.values()
                if member.join_done is None and member.group_instance_id is None]

    def everyone_joined(self):
        return not self.pending_members and self.joined_count == len(self.members)

    def elect_joined_leader(self):
        """Keep the leader if it joined, else choose the first member that did. Return False if none did."""
        cdef Member leader = self.members.get(self.leader_id or '')
        cdef Member member
        if leader is None or leader.join_done is not None:
            return leader is not None
        for member in self.members.values():
            if member.join_done is not None:
                self.leader_id = member.member_id
                return True
        return False

    # Protocols

    def supports(self, protocol_type, protocols):
        """May a member with these assignors be in the group? One of them must be known to all its members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return protocol_type == self.protocol_type and any([self.is_common(name) for name, _ in protocols])

    def is_common(self, name):
        """Is the assignor known to all members?"""
        return self._protocol_counts.get(name, 0) == len(self.members)

    def common_protocols(self):
        """Return the assignors that all members know, in the order of the first member."""
        if not self.members:
            return []
        return [name for name, _ in next(iter(self.members.values())).protocols if self.is_common(name)]

    def select_protocol(self):
        """Each member votes for the first of its assignors that all know; most votes win, then the one voted for
        first."""
        cdef Member member
        cdef list common = self.common_protocols()
        if not common:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f'members of {self.group_id} share no assignor')
        cdef dict votes = {}
        if len(common) == 1:
            return common[0]
        for member in self.members.values():
            for name, _ in member.protocols:
                if name in common:
                    votes[name] = votes.get(name, 0) + 1
                    break
        return max(votes, key=votes.get)

    def choose_protocol(self):
        """Choose the assignor of a group whose members were not joined one by one. INCONSISTENT_GROUP_PROTOCOL."""
        self.protocol_name = self.select_protocol()

    def start_generation(self, int64_t now_ms):
        """Everyone who is awaited has joined: next generation, with an assignor, or Empty without one."""
        self.generation += 1
        self.unsynced_member_ids = set(self.members)
        self.revision += 1
        self._subscribed_topics = NOT_READ
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = self.leader_id = None
            self.transition_to(GroupState.EMPTY, now_ms)

    # Subscriptions

    def read_subscriptions(self):
        """Read which topics the members are subscribed to, in parts: a generator. `is_subscribed_to` needs it.

        A change of the members meanwhile leaves the topics unknown.
        """
        cdef int64_t revision = self.revision
        cdef Py_ssize_t looked_at = 0
        cdef set topics = set()
        cdef Member member
        if self._subscribed_topics is not NOT_READ:
            return
        self._subscribed_topics = None
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol_name is None:
            return
        try:
            for member in list(self.members.values()):
                for topic in topics_of_subscription(member.metadata(self.protocol_name)):
                    topics.add(topic)
                    looked_at += 1
                    if looked_at % MEMBERS_A_PART == 0:
                        yield
                        if self.revision != revision:
                            return
        except ValueError:
            return
        self._subscribed_topics = topics

    @property
    def knows_subscriptions(self):
        """Could the topics be read from the members' metadata?"""
        return self._subscribed_topics is not None and self._subscribed_topics is not NOT_READ

    def is_subscribed_to(self, topic):
        """Is the topic read by a member? Unknown counts as yes for consumers: their offsets are not to be dropped."""
        if not self.members:
            return False
        if not self.knows_subscriptions:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self._subscribed_topics


cdef object NOT_READ = object()

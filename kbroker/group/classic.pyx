"""A classic group: who its members are and where its rebalance stands. No timers, no log: `membership` moves it."""

import enum
import uuid
from collections import Counter

from libc.stdint cimport int32_t, int64_t

from kbroker.clock cimport Timer

from kbroker.errors import ErrorCode, KafkaError

CONSUMER_PROTOCOL_TYPE = 'consumer'
MAX_MEMBER_NAME_LENGTH = 249
"""The longest group.instance.id that Kafka's clients accept (KIP-345)."""


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


cdef class Member:
    """One member. `protocols`: the assignors that it offers, best first, each with the member's metadata for it.

    `is_new`: its first join is still parked: it does not know its id, so it cannot heartbeat. `join_done` and
    `sync_done` are the parked answers, at most one of each. `session_deadline_ms`: when the session ends, in monotonic
    time; the timer may be earlier.
    """

    def __init__(self, str member_id not None, str group_instance_id, str client_id not None, str client_host not None,
                 int32_t rebalance_timeout_ms, int32_t session_timeout_ms, protocols, bytes assignment not None=b''):
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment

    def as_it_is(self):
        """Return a copy of the fields that a JoinGroup sets, to restore them after a failure."""
        return Member(self.member_id, self.group_instance_id, self.client_id, self.client_host,
                      self.rebalance_timeout_ms, self.session_timeout_ms, self.protocols, self.assignment)

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


cdef class ClassicGroup:
    """State of one group. A group with `protocol_type` None is a simple one: offsets, no members ever.

    `state_since_ms`: wall time of the last transition; None when loaded from a row that does not know it. `members` by
    id; `static_member_ids` by group.instance.id (KIP-345). `pending_members`: timers by ids given out with
    MEMBER_ID_REQUIRED that have not joined yet (KIP-394). `stored_generation`: the one whose assignments were appended,
    so that a leader that syncs twice does not overrule itself. `subscribed_topics`: None if they cannot be read from
    the members' metadata. `member_added`: a member has joined since the initial rebalance delay was last extended.
    """

    def __init__(self, str group_id not None, *, state_since_ms=None, state=GroupState.EMPTY, int32_t generation=0,
                 str protocol_type=None, str protocol_name=None):
        self.group_id = group_id
        self.state_since_ms = state_since_ms
        self.state = state
        self.previous_state = GroupState.EMPTY
        self.generation = generation
        self.protocol_type = protocol_type
        self.protocol_name = protocol_name
        self.members = {}
        self.static_member_ids = {}
        self.pending_members = {}
        self.unsynced_member_ids = set()
        self.stored_generation = -1

    def transition_to(self, state, int64_t now_ms):
        """Raises AssertionError for a transition that is not in the table: a bug, never a client's doing."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f'group {self.group_id!r}: {self.state.value} -> {state.value} is no transition')
        self.previous_state, self.state, self.state_since_ms = self.state, state, now_ms

    def is_in(self, *states):
        return self.state in states

    @property
    def is_blank(self):
        """Return whether no member ever joined or committed, and none is pending any more."""
        return self.generation == 0 and not self.members and not self.pending_members and self.protocol_type is None

    def is_leader(self, member_id):
        return self.leader_id == member_id

    @property
    def rebalance_timeout_ms(self):
        """The longest that any member asks for."""
        return max([member.rebalance_timeout_ms for member in self.members.values()], default=0)

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

    cpdef check_alive(self):
        """COORDINATOR_NOT_AVAILABLE for a group whose deletion is on its way to the disk: the client comes again."""
        if self.state is IS_DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f'group {self.group_id} is being deleted')

    # Members

    def add(self, Member member not None, protocol_type):
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_member_ids[member.group_instance_id] = member.member_id

    def remove(self, Member member not None):
        """Forget the member and its timer. The parked answers are the caller's to give first."""
        if member.session_timer is not None:
            member.session_timer.cancel()
        del self.members[member.member_id]
        self.unsynced_member_ids.discard(member.member_id)
        if member.group_instance_id is not None:
            del self.static_member_ids[member.group_instance_id]
        if self.is_leader(member.member_id):
            self.leader_id = next(iter(self.members), None)

    def rename_static_member(self, Member member not None, member_id):
        """The instance came back under a new member id; its place, assignment and leadership stay (KIP-345)."""
        assert member.group_instance_id is not None
        renamed = {member_id if known is member else key: known for key, known in self.members.items()}
        if self.is_leader(member.member_id):
            self.leader_id = member_id
        if member.member_id in self.unsynced_member_ids:
            self.unsynced_member_ids.remove(member.member_id)
            self.unsynced_member_ids.add(member_id)
        self.members = renamed
        member.member_id = member_id
        self.static_member_ids[member.group_instance_id] = member_id

    def has_room_for(self, member_id, max_size):
        """group.max.size. While a rebalance gathers its members those that have joined count: so a group that is too
        large (the setting was lowered) sheds the ones that come last."""
        if self.is_in(GroupState.EMPTY, GroupState.DEAD):
            return True
        member = self.members.get(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            joined = sum([other.join_done is not None for other in self.members.values()])
            return (member is not None and member.join_done is not None) or joined < max_size
        return member is not None or len(self.members) < max_size

    def everyone_joined(self):
        return not self.pending_members and all([member.join_done is not None for member in self.members.values()])

    def elect_joined_leader(self):
        """Keep the leader if it joined, else choose the first member that did. Return False if none did."""
        leader = self.members.get(self.leader_id or '')
        if leader is not None and leader.join_done is None:
            joined = next((member for member in self.members.values() if member.join_done is not None), None)
            if joined is None:
                return False
            self.leader_id = joined.member_id
        return leader is not None

    # Protocols

    def supports(self, protocol_type, protocols):
        """May a member with these assignors be in the group? One of them must be known to all its members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return protocol_type == self.protocol_type and not self.common_protocols().isdisjoint(
            name for name, _ in protocols
        )

    def common_protocols(self):
        offers = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*offers) if offers else set()

    def select_protocol(self):
        """Each member votes for the first of its assignors that all know; most votes win, then the one voted for
        first."""
        common = self.common_protocols()
        if not common:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f'members of {self.group_id} share no assignor')
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def start_generation(self, int64_t now_ms, topics_of):
        """Everyone who is awaited has joined: next generation, with an assignor, or Empty without one.

        `topics_of` reads the topics of a consumer's subscription; ValueError when it cannot.
        """
        self.generation += 1
        self.unsynced_member_ids = set(self.members)
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = self.leader_id = None
            self.transition_to(GroupState.EMPTY, now_ms)
        self.note_subscriptions(topics_of)

    def note_subscriptions(self, topics_of):
        """Work out `subscribed_topics` for the generation that starts or was loaded."""
        self.subscribed_topics = None
        if not self.members:
            self.subscribed_topics = frozenset()
        elif self.protocol_type == CONSUMER_PROTOCOL_TYPE and self.protocol_name is not None:
            try:
                subscriptions = [topics_of(member.metadata(self.protocol_name)) for member in self.members.values()]
            except ValueError:
                return
            self.subscribed_topics = frozenset(topic for topics in subscriptions for topic in topics)

    def is_subscribed_to(self, topic):
        """Is the topic read by a member? Unknown counts as yes for consumers: their offsets are not to be dropped."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed_topics

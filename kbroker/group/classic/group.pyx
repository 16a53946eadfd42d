"""A classic group: its members, and the state of its rebalance. The module `membership` changes the group and appends
its rows."""
from libc.stdint cimport int32_t, int64_t

from kbroker.base.object_memory cimport memory_of
from kbroker.group.classic.members cimport Assignors, Member, ParkedRequests, Subscriptions
from kbroker.group.commits cimport Commit
from kbroker.group.group cimport Group
from kbroker.group.records cimport CommittedOffset

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.classic.states import TRANSITIONS, GroupState
from kbroker.protocol.messages import GroupMetadataKey

CONSUMER_PROTOCOL_TYPE = 'consumer'
MOST_PROTOCOLS = 64
"""The largest number of assignors that a member may offer. Kafka's clients offer one to five."""
MOST_MEMBERS = 15_000
"""The largest number of members of a group, even if group.max.size is larger. Some parts of a rebalance handle all
members without a yield. With this many members, each of these parts takes less than 10 ms."""

cdef object DEAD = GroupState.DEAD
cdef object EMPTY = GroupState.EMPTY
cdef object STABLE = GroupState.STABLE
cdef object COMPLETING_REBALANCE = GroupState.COMPLETING_REBALANCE
cdef object PREPARING_REBALANCE = GroupState.PREPARING_REBALANCE


cdef class ClassicGroup(Group):
    """A classic group. If `protocol_type` is None, the group never had members, and has only offsets.

    * `state_since_ms`: the wall time of the last transition; None if the group was loaded from a row that has no such
      time.
    * `static_member_ids`: the member ids of static members by their group.instance.id (KIP-345).
    * `pending_members`: the member ids that MEMBER_ID_REQUIRED gave to clients that have not joined yet (KIP-394). Each
      has a timer.
    * `stored_generation`: the generation whose assignments were last appended. If the leader of this generation sends
      another SyncGroup, its assignments are ignored.
    * `member_added`: true if a member has joined after the last extension of the initial rebalance delay.
    * `parked`: the members' JoinGroup and SyncGroup requests that wait for the rebalance.
    * `metadata_bytes`: the sum of the members' `metadata_bytes`.
    * `revision`: a number that changes with each change of the members.
    """

    group_type = 'classic'

    def __init__(self, str group_id not None, *, state_since_ms=None, state=EMPTY, int32_t generation=0,
                 str protocol_type=None, str protocol_name=None):
        super().__init__(group_id, protocol_type)
        self.state_since_ms = state_since_ms
        self.state = state
        self.previous_state = EMPTY
        self.generation = generation
        self.protocol_name = protocol_name
        self.members = {}
        self.static_member_ids = {}
        self.pending_members = {}
        self.parked = ParkedRequests(self.members)
        self.stored_generation = -1
        self.assignors = Assignors(group_id, self.members)
        self._subscriptions = Subscriptions()

    def transition_to(self, state, int64_t now_ms):
        """Change the group's state. Raise AssertionError if TRANSITIONS does not allow the transition. No client can
        cause this error."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f'group {self.group_id!r}: {self.state.value} -> {state.value} is no transition')
        self.previous_state, self.state, self.state_since_ms = self.state, state, now_ms

    @property
    def state_name(self):
        return self.state.value

    @property
    def is_empty(self):
        return self.state is EMPTY

    @property
    def is_dead(self):
        return self.state is DEAD

    @property
    def may_expire(self):
        return self.state is EMPTY and not self.pending_members

    def check_offset_deletion(self):
        """Raise NON_EMPTY_GROUP if the group has members that are not consumers, because the broker does not know which
        topics they read."""
        if self.state is not EMPTY and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f'group {self.group_id} has {len(self.members)} members')

    def bury(self, now_ms):
        self.transition_to(DEAD, now_ms)

    def tombstones(self):
        return [(GroupMetadataKey(group=self.group_id), None)]

    @property
    def is_blank(self):
        """Return True if the group has never had a member or an offset and has no pending member now."""
        return self.generation == 0 and not self.members and not self.pending_members and self.protocol_type is None

    def is_leader(self, member_id):
        return self.leader_id == member_id

    @property
    def rebalance_timeout_ms(self):
        """The longest rebalance timeout of the members, in ms."""
        cdef Member member
        cdef int32_t longest_ms = 0
        for member in self.members.values():
            longest_ms = max(longest_ms, member.rebalance_timeout_ms)
        return longest_ms

    cpdef Member check_member(self, str member_id, str group_instance_id):
        """Return the member that a request names. Raise UNKNOWN_MEMBER_ID if the group does not have the member or the
        instance.

        Raise FENCED_INSTANCE_ID if another member has taken over the group.instance.id (KIP-345).
        """
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
        """Raise ILLEGAL_GENERATION unless `generation` is the group's current generation."""
        if generation != self.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f'found generation {generation}, expected {self.generation}')

    # Offsets

    cpdef check_commit(self, Commit commit, int version):
        """Raise KafkaError unless the OffsetCommit may be stored.

        Errors: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE.
        """
        self.check_alive()
        if self.is_standalone(commit):
            return
        if not commit.names_member():
            if self.state is EMPTY:
                return
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f'group {self.group_id} has members, and the commit names none'
            )
        self.check_member(commit.member_id, commit.group_instance_id)
        self.check_generation(commit.generation)
        if self.state is COMPLETING_REBALANCE:
            # The member has no assignment in the new generation yet. Its client commits again after its SyncGroup.
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    cpdef check_transactional_commit(self, Commit commit, int version):
        """Raise KafkaError unless the TxnOffsetCommit may be stored. A rebalance in progress is no error (KIP-447).

        Errors: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, COORDINATOR_NOT_AVAILABLE.
        """
        self.check_alive()
        if commit.names_member() and not self.is_standalone(commit):
            self.check_member(commit.member_id, commit.group_instance_id)
            self.check_generation(commit.generation)

    cdef bint is_standalone(self, Commit commit) except -1:
        """Return True if the group is empty and the commit names no member: a consumer without group management or an
        administrator sent it."""
        return commit.generation < 0 and self.state is EMPTY

    def kept_since_ms(self, CommittedOffset committed not None):
        """Return the wall time from which the retention time of an offset counts, by the rules of KIP-211. None means
        that the offset does not expire now.

        * A group that has never had members: the time of the commit.
        * An empty group: the time at which the last member left, or the time of the commit if the former is not known.
        * A stable group of consumers whose topics are known: the time of the commit.
        * Any other group: None.
        """
        if self.protocol_type is None:
            return committed.commit_timestamp_ms
        if self.state is EMPTY:
            return committed.commit_timestamp_ms if self.state_since_ms is None else self.state_since_ms
        if self.state is STABLE and self.protocol_type == CONSUMER_PROTOCOL_TYPE and (
                self._subscriptions.are_known()):
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
        """Remove the member and stop its session timer. The caller must already have answered the member's parked
        requests."""
        assert member.join_done is None and member.sync_done is None
        if member.session_timer is not None:
            member.session_timer.cancel()
        del self.members[member.member_id]
        self.parked.forget(member.member_id)
        if member.group_instance_id is not None:
            del self.static_member_ids[member.group_instance_id]
        if self.is_leader(member.member_id):
            self.leader_id = next(iter(self.members), None)
        self.count(member, -1)

    def update(self, Member member not None, Member joining not None):
        """Copy the fields of a new JoinGroup from `joining` to `member`. The member keeps its id."""
        self.count(member, -1)
        member.adopt_fields(joining)
        self.count(member, 1)

    cdef int count(self, Member member, int sign) except -1:
        """Update the group's counts for a member that joins (`sign` is 1) or leaves (`sign` is -1)."""
        self.assignors.count(member, sign)
        self.hold(sign * member.held_bytes)
        self.metadata_bytes += sign * member.metadata_bytes
        self.revision += 1
        self._subscriptions.forget()
        return 0

    def rename_static_member(self, Member member not None, member_id):
        """Give a static member a new id (KIP-345). The member keeps its assignment, and stays the leader if it was."""
        assert member.group_instance_id is not None
        del self.members[member.member_id]
        self.members[member_id] = member
        if self.is_leader(member.member_id):
            self.leader_id = member_id
        self.parked.rename(member.member_id, member_id)
        member.member_id = member_id
        self.static_member_ids[member.group_instance_id] = member_id

    def has_room_for(self, member_id, Py_ssize_t max_size):
        """Return whether a member may join a group of at most `max_size` members.

        During a rebalance, only members that have already joined it count. A group that is too large because
        group.max.size was lowered therefore loses the members that join last.
        """
        cdef Member member
        if self.state is EMPTY or self.state is DEAD:
            return True
        member = self.members.get(member_id)
        if self.state is PREPARING_REBALANCE:
            return (member is not None and member.join_done is not None) or self.parked.joined_count < max_size
        return member is not None or len(self.members) < max_size

    def assign(self, dict assignments not None):
        """Store the members' assignments. `assignments` maps member ids to assignments; a member without an entry gets
        an empty assignment."""
        cdef Member member
        cdef bytes assignment
        for member in self.members.values():
            assignment = assignments.get(member.member_id, b'')
            self.hold(len(assignment) - len(member.assignment))
            member.held_bytes += len(assignment) - len(member.assignment)
            member.assignment = assignment

    def everyone_joined(self):
        return not self.pending_members and self.parked.joined_count == len(self.members)

    def elect_joined_leader(self):
        """Keep the leader if it has joined the rebalance. If it has not, elect the first member that has.

        Return False if no member has joined.
        """
        cdef Member leader = self.members.get(self.leader_id or '')
        cdef Member member
        if leader is None or leader.join_done is not None:
            return leader is not None
        for member in self.members.values():
            if member.join_done is not None:
                self.leader_id = member.member_id
                return True
        return False

    # Assignors

    def supports(self, protocol_type, protocols):
        """Return whether a member that offers these assignors may join the group. At least one of the assignors must be
        one that all members offer, unless the group is empty."""
        if self.state is EMPTY:
            return bool(protocol_type) and bool(protocols)
        return protocol_type == self.protocol_type and any([self.assignors.is_common(name) for name, _ in protocols])

    def choose_protocol(self):
        """Elect the group's assignor. Raise INCONSISTENT_GROUP_PROTOCOL if no assignor is offered by all members."""
        self.protocol_name = self.assignors.elect()

    def start_generation(self, int64_t now_ms):
        """Start the next generation, and elect its assignor. If the group has no members, it becomes Empty."""
        self.generation += 1
        self.parked.await_syncs()
        self.revision += 1
        self._subscriptions.forget()
        if self.members:
            self.protocol_name = self.assignors.elect()
            self.transition_to(COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = self.leader_id = None
            self.transition_to(EMPTY, now_ms)

    # Subscriptions

    def read_subscriptions(self):
        """Read the topics that the members subscribe to. This is a generator, which reads in parts. `is_subscribed_to`
        needs the topics.

        If the members change before the generator has ended, the topics stay unknown.
        """
        is_of_consumers = self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return self._subscriptions.read(list(self.members.values()), self.protocol_name if is_of_consumers else None)

    def is_subscribed_to(self, topic):
        """Return whether a member reads the topic. If the members are consumers whose topics are not known, return
        True, so that no offset expires."""
        if not self.members:
            return False
        if not self._subscriptions.are_known():
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return self._subscriptions.have(topic)

"""The answers to JoinGroup and SyncGroup requests of classic groups. They wait until an operation has ended.

An answer lets the next request of its connection pass at once. That request must not find a group that is half changed.
"""

from collections import deque

from kbroker.base.completion cimport Completion

from kbroker.base.errors import ErrorCode
from kbroker.protocol.messages import JoinGroupResponse, SyncGroupResponse

VERSION_WITH_SKIP_ASSIGNMENT = 9
"""The version of JoinGroup that can tell a leader to skip the assignment (KIP-814)."""

cdef enum:
    ANSWERS_A_PART = 16         # how many requests are answered between two yields
    MEMBERS_A_PART = 64         # how many members are listed between two yields


class ClassicAnswers:
    """The answers of one shard that wait for `send`.

    `_outbox` has completions of requests with their responses, `_works` generators that answer many requests in parts.
    The session of a member that gets an answer starts again.
    """

    def __init__(self, sessions, clock, long_work):
        self._sessions = sessions
        self._clock = clock
        self._long_work = long_work
        self._outbox = deque()
        self._works = deque()

    def add(self, done, response):
        """Answer a request with this response at the next `send`."""
        self._outbox.append((done, response))

    def then(self, work):
        """Start a generator at the next `send`, after the other answers."""
        self._works.append(work)

    def send(self):
        """Send all answers, because the operation on the group has ended."""
        while self._outbox:
            done, response = self._outbox.popleft()
            (<Completion?>done).complete(None, 0, response)
        while self._works:
            self._long_work.start(self._works.popleft())

    # JoinGroup

    def generation_started(self, group):
        """Answer all parked joins with the generation that starts."""
        self.then(self._answer_joins(group, group.take_joins(self._clock.monotonic_ms())))

    def _answer_joins(self, group, joins):
        """Answer joins with the generation that starts: a generator. The leader is last, because it needs all members.

        `joins` has all members of the generation, each with its parked join, or None if it did not join.
        """
        answered = 0
        leader_id, leader_joins = group.leader_id, []
        head = _join_response(group)
        for member, done in joins:
            self._restart_session(group, member)
            if done is not None and member.member_id == leader_id:
                leader_joins.append((member, done))
            elif done is not None:
                yield from _answer_join(group, member, done, head)
                answered += 1
                if answered % ANSWERS_A_PART == 0:
                    yield
        for leader, done in leader_joins:
            yield from _answer_join(group, leader, done, head)

    def joined(self, group, member, done):
        """Answer a join with the current generation."""
        self.then(_answer_join(group, member, done, None))

    def replaced(self, group, member, version, old_leader_id, done):
        """Answer the join of a static member that has returned under a new id without a rebalance."""
        self.then(self._answer_replaced(group, member, version, old_leader_id, done))

    def _answer_replaced(self, group, member, version, old_leader_id, done):
        head = _join_response(group)
        skips = group.is_leader(member.member_id)
        if skips and version >= VERSION_WITH_SKIP_ASSIGNMENT:
            head.skip_assignment = True
        elif skips:
            # Without skip_assignment (KIP-814), the leader would assign again. So the response names its old id.
            head.leader = old_leader_id or ''
        yield from _answer_join(group, member, done, head)

    def refuse_join(self, group, member, code):
        """Answer the member's parked JoinGroup, if there is one, with an error."""
        done = group.take_join(member)
        if done is not None:
            member_id = '' if code is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            self.add(done, JoinGroupResponse(error_code=code, member_id=member_id))

    # SyncGroup

    def synced(self, group, member, done):
        """Answer a sync with the member's stored assignment."""
        self.add(done, _sync_response(group, member.assignment))

    def assigned(self, group, assignments):
        """Answer all parked syncs with the assignments by member id."""
        self.then(self._answer_syncs(group, assignments, group.take_syncs(self._clock.monotonic_ms())))

    def _answer_syncs(self, group, assignments, syncs):
        head = _sync_response(group, b'')
        for index, (member, done) in enumerate(syncs):
            if index and index % ANSWERS_A_PART == 0:
                yield
            self._restart_session(group, member)
            (<Completion?>done).complete(None, 0, SyncGroupResponse(
                protocol_type=head.protocol_type, protocol_name=head.protocol_name,
                assignment=assignments.get(member.member_id, b'')))

    def refuse_syncs(self, group, code):
        """Answer all parked syncs with an error."""
        self.then(self._refuse_syncs(group, code, group.take_syncs(self._clock.monotonic_ms())))

    def _refuse_syncs(self, group, code, syncs):
        for index, (member, done) in enumerate(syncs):
            if index and index % ANSWERS_A_PART == 0:
                yield
            self._restart_session(group, member)
            (<Completion?>done).complete(None, 0, SyncGroupResponse(error_code=code))

    def refuse_sync(self, group, member, code):
        """Answer the member's parked SyncGroup, if there is one, with an error."""
        done = group.take_sync(member)
        if done is not None:
            self.add(done, SyncGroupResponse(error_code=code))

    # JoinGroup and SyncGroup

    def refuse_all(self, group, code):
        """Answer all parked joins and syncs with an error."""
        self.then(self._refuse_all(group, code, list(group.members.values())))

    def _refuse_all(self, group, code, members):
        for index, member in enumerate(members):
            if index and index % ANSWERS_A_PART == 0:
                self.send()
                yield
            self.refuse_join(group, member, code)
            self.refuse_sync(group, member, code)
        self.send()

    def _restart_session(self, group, member):
        if group.members.get(member.member_id) is member:
            self._sessions.restart(group, member)


def _answer_join(group, member, done, head):
    """Answer a join with the response `head`, or with the current generation if it is None: a generator.

    The leader also gets the members, because it computes their assignments.
    """
    members = []
    if head is None:
        head = _join_response(group)
    if head.leader == member.member_id:
        for index, each in enumerate(list(group.members.values())):
            if index and index % MEMBERS_A_PART == 0:
                yield
            members.append(
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    metadata=each.metadata(head.protocol_name),
                )
            )
    (<Completion?>done).complete(None, 0, JoinGroupResponse(
        generation_id=head.generation_id, protocol_type=head.protocol_type, protocol_name=head.protocol_name,
        leader=head.leader, skip_assignment=head.skip_assignment, member_id=member.member_id, members=members))


def _join_response(group):
    """Return a response with the current generation, without the fields that depend on the member."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or '',
    )


def _sync_response(group, assignment):
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=assignment
    )

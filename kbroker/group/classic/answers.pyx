"""The replies to JoinGroup and SyncGroup requests of classic groups. They are queued until the current operation on the
group has ended.

As soon as a reply is sent, the broker serves the next request of the same connection. That request must not see a group
that the operation has changed only in part.
"""

from collections import deque

from kbroker.base.completion cimport Completion

from kbroker.base.errors import ErrorCode
from kbroker.protocol.messages import JoinGroupResponse, SyncGroupResponse

VERSION_WITH_SKIP_ASSIGNMENT = 9
"""The first version of JoinGroup in which the response can tell the leader that it need not compute assignments
(KIP-814)."""

cdef enum:
    ANSWERS_A_PART = 16         # the number of requests that are answered between two yields
    MEMBERS_A_PART = 64         # the number of members that a response lists between two yields


class ClassicAnswers:
    """The queued replies of one shard. `send` sends them.

    `_outbox` has pairs of a request's completion and its response. `_works` has generators, each of which answers many
    requests in parts. A reply to a member restarts the member's session.
    """

    def __init__(self, sessions, clock, long_work):
        self._sessions = sessions
        self._clock = clock
        self._long_work = long_work
        self._outbox = deque()
        self._works = deque()

    def add(self, done, response):
        """Queue a response for the next `send`, which completes `done` with the response."""
        self._outbox.append((done, response))

    def then(self, work):
        """Queue a generator that answers requests. `send` starts it after it has sent the queued responses."""
        self._works.append(work)

    def send(self):
        """Send all queued responses, and start the queued generators. Called when an operation on the group has
        ended."""
        while self._outbox:
            done, response = self._outbox.popleft()
            (<Completion?>done).complete(None, 0, response)
        while self._works:
            self._long_work.start(self._works.popleft())

    # JoinGroup

    def generation_started(self, group):
        """Answer all parked JoinGroup requests, because a new generation starts."""
        self.then(self._answer_joins(group, group.parked.take_joins(self._clock.monotonic_ms())))

    def _answer_joins(self, group, joins):
        """Answer the JoinGroup requests of the generation that starts. This is a generator, which answers them in
        parts.

        `joins` has a pair for each member of the generation: the member, and its parked JoinGroup or None. The leader
        is answered last, because its response names all members.
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
        """Answer a JoinGroup of the member with the group's current generation."""
        self.then(_answer_join(group, member, done, None))

    def replaced(self, group, member, version, old_leader_id, done):
        """Answer the JoinGroup of a static member that has returned under a new id, and whose return needs no
        rebalance."""
        self.then(self._answer_replaced(group, member, version, old_leader_id, done))

    def _answer_replaced(self, group, member, version, old_leader_id, done):
        head = _join_response(group)
        skips = group.is_leader(member.member_id)
        if skips and version >= VERSION_WITH_SKIP_ASSIGNMENT:
            head.skip_assignment = True
        elif skips:
            # In versions without skip_assignment (KIP-814), a client that the response names as the leader would assign
            # again. The response therefore names the leader's old id.
            head.leader = old_leader_id or ''
        yield from _answer_join(group, member, done, head)

    def refuse_join(self, group, member, code):
        """If the member has a parked JoinGroup, answer it with an error."""
        done = group.parked.take_join(member)
        if done is not None:
            member_id = '' if code is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            self.add(done, JoinGroupResponse(error_code=code, member_id=member_id))

    # SyncGroup

    def synced(self, group, member, done):
        """Answer a SyncGroup with the member's stored assignment."""
        self.add(done, _sync_response(group, member.assignment))

    def assigned(self, group, assignments):
        """Answer all parked SyncGroup requests with the assignments. `assignments` maps each member id to an
        assignment."""
        self.then(self._answer_syncs(group, assignments, group.parked.take_syncs(self._clock.monotonic_ms())))

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
        """Answer all parked SyncGroup requests with an error."""
        self.then(self._refuse_syncs(group, code, group.parked.take_syncs(self._clock.monotonic_ms())))

    def _refuse_syncs(self, group, code, syncs):
        for index, (member, done) in enumerate(syncs):
            if index and index % ANSWERS_A_PART == 0:
                yield
            self._restart_session(group, member)
            (<Completion?>done).complete(None, 0, SyncGroupResponse(error_code=code))

    def refuse_sync(self, group, member, code):
        """If the member has a parked SyncGroup, answer it with an error."""
        done = group.parked.take_sync(member)
        if done is not None:
            self.add(done, SyncGroupResponse(error_code=code))

    # JoinGroup and SyncGroup

    def refuse_all(self, group, code):
        """Answer all parked JoinGroup and SyncGroup requests with an error."""
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
    """Answer a JoinGroup with the fields of `head`, or with those of the current generation if `head` is None. This is
    a generator.

    The response to the leader also lists the members, because the leader computes their assignments.
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
    """Return a JoinGroup response with the fields of the current generation that are the same for all members."""
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

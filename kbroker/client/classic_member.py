"""A member of a consumer group in the classic protocol: it joins, assigns as leader, sends heartbeats, and leaves.

    join():   every member: JoinGroup; the leader also assigns --> every member: SyncGroup --> partitions
    stable:   Heartbeat every heartbeat.interval.ms; the answer REBALANCE_IN_PROGRESS means: join again

A join waits for the other members, which may be busy for as long as max.poll.interval.ms. So a join is a `_Round`,
which one poll begins and later polls continue. While the program is busy between two polls, the heartbeat thread
continues the round. JoinGroup and SyncGroup block their connection, so other requests use a second connection.

With `range`, a member gives up all partitions when it joins. With only `cooperative-sticky` it keeps them, drops the
partitions that the leader revokes, and joins again immediately. Then the leader can assign the dropped partitions to
another member (KIP-429).
"""
from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.assignor import (
    COOPERATIVE_STICKY,
    RANGE,
    assign_ranges,
    decode_assignment,
    decode_member,
    encode_assignment,
    encode_subscription,
)
from kbroker.client.cluster import KeyType
from kbroker.client.connection import Connection
from kbroker.client.errors import ClientError, check, known_code
from kbroker.client.group_member import GroupMember
from kbroker.client.sticky_assignor import assign_cooperatively
from kbroker.client.time_limit import OutOfTime
from kbroker.protocol import messages
from kbroker.protocol.consumer_protocol import PROTOCOL_TYPE

JOIN_GRACE_MS = 5000
"""The time for which a JoinGroup may remain unanswered after the rebalance timeout, at which the broker answers."""

ASSIGNORS = {RANGE: assign_ranges, COOPERATIVE_STICKY: assign_cooperatively}

_E = ErrorCode


@dataclass(slots=True)
class _Round:
    """A join in progress."""

    topics: frozenset[str]
    kept: set[TopicPartition]
    """The partitions that the member keeps during the join. Cleared if the group has removed the member."""
    connection: Connection | None = None
    answer: Any = None
    """The answer to JoinGroup."""
    assignments: list[Any] | None = None
    """The assignments that this member has computed as leader; None for a member that is not the leader."""


class _Joined(NamedTuple):
    """The result of a join."""

    topics: frozenset[str]
    kept: set[TopicPartition]
    assigned: list[TopicPartition]


class ClassicMember(GroupMember):
    """A member in the classic protocol. A leader assigns by the assignor that the group has chosen."""

    # Errors after which the member must join again: the group has ended this generation, or has removed the member.
    lost_place = frozenset({_E.REBALANCE_IN_PROGRESS, _E.ILLEGAL_GENERATION, _E.UNKNOWN_MEMBER_ID})

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._has_generation = False
        """True while the member belongs to the last generation of the group, even during a rebalance."""
        self._is_cooperative = self._settings.assignors == (COOPERATIVE_STICKY,)
        self._round: _Round | None = None
        self._joined: _Joined | None = None
        """The result of a join that the heartbeat thread has ended, until `join` returns it; else None."""

    @property
    def sends_heartbeats(self) -> bool:
        return self._has_generation

    @property
    def has_lost_place(self) -> bool:
        return not self._has_generation

    def surrendered(self, topics: Collection[str], owned: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the owned partitions that the member gives up before it joins: all of them.

        With a cooperative assignor, return no partition, because the answer to the join shows which partitions to give
        up.
        """
        return set() if self._is_cooperative else set(owned)

    def join(self, topics: Collection[str], owned: Iterable[TopicPartition] = ()) -> list[TopicPartition]:
        """Join the next generation, and return the assigned partitions.

        Raise OutOfTime while other members have not joined; the next call continues the join. If the topics have
        changed by then, the member joins once more.
        """
        if self._joined is None:
            if self._round is None:
                self._round = self._next_round(frozenset(topics), owned)
            self._joined = self._finish(self._round)
        joined, self._joined = self._joined, None
        self.keeps_positions = bool(joined.kept)
        self.must_join = not joined.kept <= set(joined.assigned) or joined.topics != frozenset(topics)
        self._next_heartbeat_ms = self._clock.monotonic_ms() + (
            0 if self.must_join else self._settings.heartbeat_interval_ms)
        return joined.assigned

    @property
    def is_joining(self) -> bool:
        return self._round is not None

    def continue_joining(self) -> None:
        if self._round is None:
            return
        try:
            with self._cluster.within(0):
                self._joined = self._finish(self._round)
        except OutOfTime:
            return
        self._next_heartbeat_ms = self._clock.monotonic_ms() + self._settings.heartbeat_interval_ms

    def _next_round(self, topics: frozenset[str], owned: Iterable[TopicPartition]) -> _Round:
        return _Round(topics, set(owned) if self._is_cooperative and self._has_generation else set())

    def _finish(self, current: _Round) -> _Joined:
        """Continue a join until it ends. After OutOfTime, a later call can continue the join."""
        while True:
            try:
                assigned = self._take_steps(current)
            except OutOfTime:
                raise
            except BaseException as error:
                self._round = None
                if current.answer is None or not isinstance(error, KafkaError) or not self._note_lost_place(error.code):
                    raise
                current = self._round = self._next_round(current.topics, current.kept)
                continue
            self._round, self._has_generation = None, True
            return _Joined(current.topics, current.kept, assigned)

    def _take_steps(self, current: _Round) -> list[TopicPartition]:
        patience_ms = self._settings.max_poll_interval_ms + JOIN_GRACE_MS
        if current.answer is None:
            current.answer = self._retrying(lambda: self._join_once(current), 'JoinGroup', patience_ms)
        answer = current.answer
        if current.assignments is None:
            current.assignments = self._assign(answer) if answer.leader == answer.member_id else []
        assignments = current.assignments
        assignment = self._retrying(lambda: self._sync(current, answer, assignments), 'SyncGroup', patience_ms)
        return decode_assignment(assignment)

    def _coordinator(self) -> Connection:
        purpose = 'coordinator' if self._round is None else 'coordinator during a join'
        return self._cluster.coordinator(KeyType.GROUP, self.group_id, purpose)

    def _coordinator_of(self, current: _Round) -> Connection:
        current.connection = super()._coordinator()
        return current.connection

    def _join_once(self, current: _Round) -> Any:
        """Send a JoinGroup that claims the partitions in `kept`. Clear `kept` if the group has removed the member."""
        rebalance_timeout_ms = self._settings.max_poll_interval_ms
        while True:
            kept = current.kept
            subscription = encode_subscription(current.topics, kept, self.generation_id if kept else -1)
            answer = self._coordinator_of(current).call(messages.JoinGroupRequest(
                group_id=self.group_id, session_timeout_ms=self._settings.session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms, member_id=self.member_id,
                group_instance_id=self._settings.group_instance_id, protocol_type=PROTOCOL_TYPE,
                protocols=[messages.JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=subscription)
                           for name in self._settings.assignors]),
                rebalance_timeout_ms + JOIN_GRACE_MS)
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:   # KIP-394: the join needs a member id
                self.member_id = answer.member_id
            elif answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ''
                kept.clear()
            else:
                check(answer.error_code, self._words('JoinGroup'), api='JoinGroup')
                self.member_id, self.generation_id = answer.member_id, answer.generation_id
                return answer

    def _assign(self, answer: Any) -> list[Any]:
        """Compute the assignments of all members, if this member is the leader."""
        if answer.skip_assignment:      # KIP-814: a static leader came back, and no partition moves
            return []
        members = [decode_member(row.member_id, row.group_instance_id, row.metadata) for row in answer.members]
        wanted = {topic for member in members for topic in member.topics}
        known = self._retrying(lambda: self._cluster.refresh(wanted), 'Metadata').topics
        counts = {topic.name: len(topic.partitions) for topic in known if not topic.error_code}
        return [messages.SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id,
                                                                     assignment=encode_assignment(partitions))
                for member_id, partitions in ASSIGNORS[answer.protocol_name](members, counts).items()]

    def _sync(self, current: _Round, answer: Any, assignments: list[Any]) -> bytes:
        synced = self._coordinator_of(current).call(messages.SyncGroupRequest(
            group_id=self.group_id, generation_id=self.generation_id, member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id, protocol_type=PROTOCOL_TYPE,
            protocol_name=answer.protocol_name, assignments=assignments),
            self._settings.max_poll_interval_ms + JOIN_GRACE_MS)
        check(synced.error_code, self._words('SyncGroup'), api='SyncGroup')
        return bytes(synced.assignment)

    def heartbeat_if_due(self) -> None:
        """Send a heartbeat if it is due. Set `must_join` if the group rebalances or has removed this member."""
        now_ms = self._clock.monotonic_ms()
        if not self._has_generation or now_ms < self._next_heartbeat_ms or self._round is not None:
            return      # the group awaits no heartbeat of a member that joins
        self._next_heartbeat_ms = now_ms + self._settings.heartbeat_interval_ms
        try:
            answer = self._coordinator().call(messages.HeartbeatRequest(
                group_id=self.group_id, generation_id=self.generation_id, member_id=self.member_id,
                group_instance_id=self._settings.group_instance_id), self._settings.session_timeout_ms)
            code = known_code(answer.error_code)
        except OutOfTime:
            self._next_heartbeat_ms = now_ms        # the answer is still awaited
            raise
        except ClientError as error:
            if error.is_lasting:
                raise
            self._cluster.forget()
            return
        except KafkaError as error:
            code = error.code
        if code.retriable:
            self._cluster.forget()
        elif code is not ErrorCode.NONE and not self._note_lost_place(code):
            check(code, self._words('Heartbeat'), api='Heartbeat')

    def leave(self) -> None:
        """Leave the group, which releases the partitions immediately.

        A static member sends no LeaveGroup: it remains a member until its session ends.
        """
        self._has_generation = False
        self._end_round()
        # A member with an id must leave even if it has not joined. Otherwise the next rebalance would wait for its
        # session to end.
        is_known = self.generation_id >= 0 or bool(self.member_id)
        if not is_known or self._settings.group_instance_id is not None:
            return
        connection = self._coordinator()
        if connection.version_of(messages.LeaveGroupRequest) < 3:
            request = messages.LeaveGroupRequest(group_id=self.group_id, member_id=self.member_id)
        else:
            request = messages.LeaveGroupRequest(group_id=self.group_id, members=[
                messages.LeaveGroupRequest.MemberIdentity(member_id=self.member_id)])
        self._former_place = self.metadata
        answer = connection.call(request)
        self.generation_id, self.member_id, self.must_join = -1, '', True
        for row in (answer, *answer.members):
            if known_code(row.error_code) is not ErrorCode.UNKNOWN_MEMBER_ID:      # the group has already removed it
                check(row.error_code, self._words('LeaveGroup'))

    def _end_round(self) -> None:
        """Give up a join in progress. Close its connection, because a later request would wait for the answer to the
        join.
        """
        if self._round is not None and self._round.connection is not None:
            self._round.connection.close()
        self._round = self._joined = None

    def _note_lost_place(self, code: ErrorCode) -> bool:
        """Return True, and set `must_join`, if the error means that the member must join again."""
        if code not in self.lost_place:
            return False
        self._joined = None
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ''
        if code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self._has_generation = False
        self.must_join = True
        return True

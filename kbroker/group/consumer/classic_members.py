"""The requests of the classic protocol (JoinGroup, SyncGroup, Heartbeat and LeaveGroup), whatever the kind of their
group.

For a classic group, `membership` serves the request. A member that speaks the classic protocol can also join a consumer
group. Its JoinGroup is then served by the steps of a heartbeat, with the table of functions that `joining_kind`
returns. The member's generation is its member epoch. A consumer group has no leader: the broker's assignor computes the
assignments.
"""
from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

from kbroker.base.completion import Callback, Completion, complete
from kbroker.base.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.base.lean_dataclasses import replace
from kbroker.base.long_work import result_of
from kbroker.group.classic.group import CONSUMER_PROTOCOL_TYPE
from kbroker.group.classic.membership import Membership
from kbroker.group.consumer.group import ConsumerGroup
from kbroker.group.consumer.heartbeat import ConsumerDraft
from kbroker.group.consumer.member import ClassicFields, ConsumerMember
from kbroker.group.consumer.migration import DISABLED, Migration, without_consumer_fields
from kbroker.group.deadlines import JOIN, SYNC
from kbroker.group.group import Group
from kbroker.group.kinds import Steps
from kbroker.group.modern.group import ModernGroup
from kbroker.group.modern.heartbeat import JOIN_EPOCH, MEMBERS_A_PART, Call, Heartbeats, Kind, Place, unknown_member
from kbroker.group.modern.reconcile import State
from kbroker.group.modern.static_members import renamed, static_member
from kbroker.group.turns import Operation, Outcome
from kbroker.protocol import messages
from kbroker.protocol.consumer_protocol import decode_message

VERSION_WITH_MEMBER_ID_REQUIRED = 4
"""The first version of JoinGroup in which a client without a member id must request an id before it joins (KIP-394)."""

PASS_ON = object()
"""The reply of an operation that passes the request on to `membership`, because the group is a classic group."""


class Join(NamedTuple):
    """A JoinGroup request, with its version and the id and host of its client."""

    request: Any
    version: int
    client_id: str
    client_host: str


class JoinFields(NamedTuple):
    """The fields of a JoinGroup under the names that a heartbeat's fields have. `is_new_id` is true if the JoinGroup
    has no member id."""

    group_id: str
    member_id: str
    is_new_id: bool
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    topic_partitions: Sequence[Any]
    member_epoch: int = JOIN_EPOCH
    subscribed_topic_regex: str = ''
    server_assignor: str | None = None


class ClassicMembers:
    """The requests of the classic protocol in one shard. `kind` is the table of functions for consumer groups."""

    def __init__(self, place: Place, kind: Kind, migration: Migration, membership: Membership):
        self.place = place
        self.migration = migration
        self.membership = membership
        self.heartbeats = Heartbeats(place, self.joining_kind(kind))

    def joining_kind(self, kind: Kind) -> Kind:
        """Return a copy of `kind`, the table of functions for consumer groups, that serves a JoinGroup as a
        heartbeat."""
        return replace(kind, find=find_joining, successor=successor_by_join, reply=join_response,
                       after=self.after_join)

    def _in_line(self, group_id: str, operation: Operation, pass_on: Callable[[], None], done: Completion) -> None:
        """Run an operation in the group's next turn. Complete `done` with the operation's reply, or call `pass_on` if
        the reply is PASS_ON."""
        def ended(error: KafkaError | None, reply: object) -> None:
            if error is not None or reply is not PASS_ON:
                complete(done, error, reply)
                return
            try:
                pass_on()
            except KafkaError as refused:
                complete(done, refused, None)

        self.place.turns.submit(group_id, operation, Callback(ended))

    # JoinGroup

    def join(self, join: Join, done: Completion) -> None:
        """Serve a JoinGroup. While a turn of the group is in progress, the request waits for the next turn.

        Raise COORDINATOR_NOT_AVAILABLE if the group is being deleted.
        """
        group = self.place.shard.groups.get(join.request.group_id)
        if group is not None:
            group.check_alive()
        if self.place.turns.is_busy(join.request.group_id):
            self._submit_join(join, done)
        else:
            self._join_now(join, done)

    def _join_now(self, join: Join, done: Completion) -> None:
        if isinstance(self.place.shard.groups.get(join.request.group_id), ModernGroup):
            self._submit_join(join, done)
        else:
            self.membership.join(join.request, join.version, join.client_id, join.client_host, done)

    def _submit_join(self, join: Join, done: Completion) -> None:
        self._in_line(join.request.group_id, partial(self.serve_join, join), partial(self._join_now, join, done), done)

    def serve_join(self, join: Join, group: Group | None) -> Steps[Outcome] | Outcome:
        """Serve a JoinGroup to a modern group, as an operation. A member joins a consumer group that has members. A
        modern group without members ends, and `membership` serves the request.

        Errors: INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, GROUP_MAX_SIZE_REACHED,
        INVALID_SESSION_TIMEOUT, INVALID_REQUEST.
        """
        if not isinstance(group, ModernGroup):
            return Outcome(reply=PASS_ON)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            return self._join_consumers(join, group)
        self.membership.check_join(join.request)
        if not group.is_empty or not group.gives_way_to_classic or not join.request.protocol_type or (
                not join.request.protocols):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                             f'group {group.group_id} is of type {group.group_type}, and the join does not fit it')
        if join.request.member_id:
            raise unknown_member(group, join.request.member_id)
        return Outcome(group.tombstones(), PASS_ON)

    def _join_consumers(self, join: Join, group: ConsumerGroup) -> Steps[Outcome]:
        request = join.request
        self.membership.check_join(request)
        fields = join_fields(join, self.migration)
        self.heartbeats.check_size(group, fields.request)
        self._check_protocols(group, request)
        if fields.request.is_new_id and request.group_instance_id is None and (
                join.version >= VERSION_WITH_MEMBER_ID_REQUIRED):
            return Outcome(reply=messages.JoinGroupResponse(
                error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=fields.request.member_id))
        last = self._last_of_consumer_protocol(group, fields)
        if last is None:
            return (yield from self.heartbeats.beat(fields, group))
        return (yield from self._downgrade_before(group, last, fields))

    def _check_protocols(self, group: ConsumerGroup, request: Any) -> None:
        """Raise INCONSISTENT_GROUP_PROTOCOL unless the member is a consumer with an assignor that all classic members
        of the group offer, and the settings allow migration."""
        if self.migration.policy != DISABLED and request.protocol_type == CONSUMER_PROTOCOL_TYPE and any(
                group.protocol_counts.get(protocol.name, 0) == group.classic_count for protocol in request.protocols):
            return
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f'consumer group {group.group_id} takes no member of type {request.protocol_type!r} with '
            f'{[protocol.name for protocol in request.protocols]}; group.consumer.migration.policy is '
            f'{self.migration.policy}')

    def _last_of_consumer_protocol(self, group: ConsumerGroup, call: Call) -> ConsumerMember | None:
        """Return the static member that the request replaces, if it is the last member that speaks the consumer
        protocol. Otherwise, return None."""
        request = call.request
        known = group.members.get(group.instances.get(request.instance_id or '', ''))
        if known is None or known.classic is not None or not request.is_new_id:
            return None
        return known if self.migration.may_replace_last(group) else None

    def _downgrade_before(self, group: ConsumerGroup, last: ConsumerMember, call: Call) -> Steps[Outcome]:
        """Replace the consumer group by a classic group with the same members. The classic group then serves the
        JoinGroup, which replaces the static member `last`."""
        is_at_rest = group.epoch == group.assignment_epoch and all([
            member.held.is_reconciled_to(group.epoch) for member in group.members.values() if member is not last])
        members = [without_consumer_fields(member, call.classic) if member is last else member
                   for member in group.members.values()]
        return (yield from self.migration.downgrade(group, members, PASS_ON, members, rebalances=not is_at_rest))

    def after_join(self, draft: ConsumerDraft, _call: Call) -> None:
        """Fence the member unless it sends a SyncGroup within its rebalance timeout."""
        self.place.deadlines.cancel(JOIN, draft.group.group_id, draft.member.member_id)
        self._arm(SYNC, draft.group.group_id, draft.member)

    def _arm(self, kind: str, group_id: str, member: ConsumerMember) -> None:
        """Arm the deadline that fences the member unless it sends a JoinGroup or SyncGroup, according to `kind`, within
        its rebalance timeout."""
        self.place.deadlines.arm(kind, group_id, member.member_id, member.rebalance_timeout_ms,
                                 partial(self.heartbeats.submit_fence, group_id, member.member_id, None))

    # SyncGroup and Heartbeat only read the group, so they need no turn

    def sync(self, request: Any, done: Completion) -> None:
        """Serve a SyncGroup.

        * Errors in a consumer group: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
          INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS.
        * Errors in a classic group: those of `Membership.sync`.
        """
        group = self.place.shard.groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            self.membership.sync(request, done)
            return
        member = self._classic_member(group, request)
        assert member.classic is not None
        for found, expected in ((request.protocol_type, CONSUMER_PROTOCOL_TYPE),
                                (request.protocol_name, member.classic.protocols[0][0])):
            if found is not None and found != expected:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f'found {found!r}, expected {expected!r}')
        if self._is_behind(group, member) and member.held.state is not State.UNREVOKED:
            self._call_to_join(group.group_id, member)
        self.place.deadlines.cancel(SYNC, group.group_id, member.member_id)
        self.heartbeats.arm_session(group.group_id, member)
        complete(done, None, messages.SyncGroupResponse(
            protocol_type=request.protocol_type, protocol_name=request.protocol_name,
            assignment=self.migration.assignment_bytes(member, member.held.assigned)))

    def heartbeat_of_classic(self, request: Any) -> None:
        """Serve a Heartbeat.

        * Errors in a consumer group: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS.
        * Errors in a classic group: those of `Membership.heartbeat`.
        """
        group = self.place.shard.groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            self.membership.heartbeat(request)
            return
        member = self._classic_member(group, request)
        self.heartbeats.arm_session(group.group_id, member)
        if self._is_behind(group, member) or member.held.state is State.UNREVOKED or (
                member.held.state is State.UNRELEASED and not group.waits_for_others(member)):
            self._call_to_join(group.group_id, member)

    def _classic_member(self, group: ConsumerGroup, request: Any) -> ConsumerMember:
        """Return the classic member that sent the request. Raise ILLEGAL_GENERATION unless the request's generation is
        the member's epoch."""
        if request.group_instance_id is None:
            member = group.member(request.member_id)
        else:
            member = static_member(group, Named(request.member_id, request.group_instance_id))
        if member.classic is None:
            raise unknown_member(group, request.member_id)
        if request.generation_id != member.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION,
                             f'found generation {request.generation_id}, expected {member.epoch}')
        return member

    def _is_behind(self, group: ConsumerGroup, member: ConsumerMember) -> bool:
        """Return whether the member has to join again to get its assignment.

        If all members of the group are classic members, no ConsumerGroupHeartbeat computes new targets. A member must
        then also join again if new targets can be computed, because its JoinGroup computes them.
        """
        if group.assignment_epoch > member.epoch:
            return True
        return group.classic_count == len(group.members) and (
            (group.epoch > group.assignment_epoch and self.heartbeats.may_assign(group, self.place.clock.wall_ms()))
            or self.heartbeats.is_due(group))

    def _call_to_join(self, group_id: str, member: ConsumerMember) -> None:
        """Raise REBALANCE_IN_PROGRESS. Fence the member unless it sends a JoinGroup within its rebalance timeout."""
        if not self.place.deadlines.is_armed(JOIN, group_id, member.member_id):
            self._arm(JOIN, group_id, member)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f'member {member.member_id} has to join again')

    # LeaveGroup

    def leave_classic(self, request: Any) -> Generator[object, None, Any]:
        """Serve a LeaveGroup in parts, and return the response. Remove the members that the request names, whichever
        protocol they speak."""
        group_id = request.group_id
        while isinstance(self.place.shard.groups.get(group_id), ConsumerGroup):
            error, reply = yield from result_of(lambda done: self.place.turns.submit(
                group_id, partial(self.serve_leave, request), Callback(done)))
            if error is not None:
                raise error
            if reply is not PASS_ON:
                return reply
        return (yield from self.membership.leave(request))

    def serve_leave(self, request: Any, group: Group | None) -> Steps[Outcome] | Outcome:
        if not isinstance(group, ConsumerGroup):
            return Outcome(reply=PASS_ON)
        return self._leave_consumers(request, group)

    def _leave_consumers(self, request: Any, group: ConsumerGroup) -> Steps[Outcome]:
        answers, gone = [], dict[str, ConsumerMember]()
        for number, identity in enumerate(request.members):
            if number % MEMBERS_A_PART == MEMBERS_A_PART - 1:
                yield
            code = ErrorCode.NONE
            try:
                member = leaving_member(group, identity)
                gone[member.member_id] = member
            except KafkaError as error:
                code = error.code
            answers.append(messages.LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code))
        response = messages.LeaveGroupResponse(members=answers)
        if not gone:
            return Outcome(reply=response)
        return (yield from self.heartbeats.fence(group, gone.values(), response))


def find_joining(group: ConsumerGroup, call: Call) -> ConsumerMember | None:
    """Return the existing member that a JoinGroup is from; None for a new member. Raise UNKNOWN_MEMBER_ID or
    FENCED_INSTANCE_ID if the request names a member id that its instance id does not have."""
    request = call.request
    if request.instance_id is None:
        return group.members.get(request.member_id)
    if not request.is_new_id:
        return static_member(group, request)
    return group.members.get(group.instances.get(request.instance_id, ''))


def successor_by_join(before: ConsumerMember, request: Any) -> ConsumerMember:
    """Return the member `before` under the member id of the request."""
    return before if before.member_id == request.member_id else renamed(before, request.member_id)


def join_response(draft: ConsumerDraft, _call: Call, _interval_ms: int) -> Any:
    member = draft.member
    assert member.classic is not None
    return messages.JoinGroupResponse(
        generation_id=member.epoch, protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=member.classic.protocols[0][0], leader='', member_id=member.member_id, members=[])


class Named(NamedTuple):
    """The ids by which a request names a member."""

    member_id: str
    instance_id: str | None


def leaving_member(group: ConsumerGroup, identity: Any) -> ConsumerMember:
    """Return the member that a LeaveGroup asks to remove. An administrator names a static member only by its instance
    id.

    Raise UNKNOWN_MEMBER_ID if the group does not have the member, FENCED_INSTANCE_ID if another member id has the
    instance id.
    """
    if identity.group_instance_id is None:
        return group.member(identity.member_id)
    member_id = identity.member_id or group.instances.get(identity.group_instance_id, '')
    return static_member(group, Named(member_id, identity.group_instance_id))


def join_fields(join: Join, migration: Migration) -> Call:
    """Convert a JoinGroup to a heartbeat. Raise INCONSISTENT_GROUP_PROTOCOL unless its metadata is the subscription of
    a consumer.
    """
    request = join.request
    protocols = tuple((protocol.name, protocol.metadata) for protocol in request.protocols)
    try:
        if not protocols:
            raise ProtocolError('found no assignor')
        subscription = decode_message(messages.ConsumerProtocolSubscription, protocols[0][1])
    except ProtocolError as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                         f'not the subscription of a consumer: {error}') from error
    topic_class = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
    owned = migration.by_id((topic.topic, topic.partitions) for topic in subscription.owned_partitions)
    fields = JoinFields(
        group_id=request.group_id, member_id=request.member_id or str(uuid.uuid4()), is_new_id=not request.member_id,
        instance_id=request.group_instance_id, rack_id=subscription.rack_id,
        # JoinGroup version 0 has no rebalance timeout. The session timeout is used instead.
        rebalance_timeout_ms=(request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0
                              else request.session_timeout_ms),
        topic_partitions=[topic_class(topic_id=topic_id, partitions=sorted(partitions))
                          for topic_id, partitions in owned.items()])
    return Call(fields, frozenset(subscription.topics), join.client_id, join.client_host, no_topic,
                ClassicFields(request.session_timeout_ms, protocols))


def no_topic(_name: str) -> bool:
    """Return False: the client may describe no topic. The rights are needed only for regular expressions, which classic
    members do not have."""
    return False

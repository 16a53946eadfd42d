"""Members that speak the classic protocol, in groups of any kind: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

`membership` serves the classic groups. A member of a consumer group joins by the steps of a heartbeat, and its
generation is its member epoch. It has no leader: the group's assignor computes its assignment.
"""
from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple

from kbroker.base.completion import Callback, Completion, complete
from kbroker.base.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.base.long_work import result_of
from kbroker.group.classic.group import CONSUMER_PROTOCOL_TYPE
from kbroker.group.classic.membership import Membership
from kbroker.group.consumer.group import ConsumerGroup
from kbroker.group.consumer.heartbeat import JOIN, SYNC, ConsumerDraft, ConsumerHeartbeats, static_member
from kbroker.group.consumer.member import ClassicFields, ConsumerMember
from kbroker.group.consumer.migration import DISABLED, Migration, without_consumer_fields
from kbroker.group.consumer.regexes import Regexes
from kbroker.group.group import Group
from kbroker.group.modern.group import ModernGroup, Steps
from kbroker.group.modern.heartbeat import JOIN_EPOCH, Call, Place, unknown_member
from kbroker.group.modern.reconcile import State
from kbroker.group.turns import Operation, Outcome
from kbroker.protocol import messages
from kbroker.protocol.consumer_protocol import decode_message

VERSION_WITH_MEMBER_ID_REQUIRED = 4
"""The version of JoinGroup whose clients ask for a member id first (KIP-394)."""

PASS_ON = object()
"""The reply of an operation that found no group of today: the request goes on to `membership`."""


class Join(NamedTuple):
    """A JoinGroup with its client."""

    request: Any
    version: int
    client_id: str
    client_host: str


class JoinFields(NamedTuple):
    """The fields of a JoinGroup as those of a heartbeat. `is_new_id`: the request names no member id."""

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


class ClassicMembers(ConsumerHeartbeats):
    """The requests of the classic protocol in a shard."""

    def __init__(self, place: Place, regexes: Regexes, migration: Migration, membership: Membership):
        super().__init__(place, regexes, migration)
        self.membership = membership

    def _in_line(self, group_id: str, operation: Operation, pass_on: Callable[[], None], done: Completion) -> None:
        """Run an operation in the group's next turn. If it replies PASS_ON, `pass_on` is called instead of `done`."""
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
        """Serve a JoinGroup. While a turn changes the group, the request waits for the next one.

        COORDINATOR_NOT_AVAILABLE if the turn ends a classic group.
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
        """Let a member join a consumer group with members; end another group without members: an operation.

        INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, GROUP_MAX_SIZE_REACHED,
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
        self.check_size(group, fields.request)
        self._check_protocols(group, request)
        if fields.request.is_new_id and request.group_instance_id is None and (
                join.version >= VERSION_WITH_MEMBER_ID_REQUIRED):
            return Outcome(reply=messages.JoinGroupResponse(
                error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=fields.request.member_id))
        last = self._last_of_consumer_protocol(group, fields)
        if last is None:
            return (yield from self.beat(fields, group))
        return (yield from self._downgrade_before(group, last, fields))

    def _check_protocols(self, group: ConsumerGroup, request: Any) -> None:
        """INCONSISTENT_GROUP_PROTOCOL unless the member shares an assignor with all classic members."""
        if self.migration.policy != DISABLED and request.protocol_type == CONSUMER_PROTOCOL_TYPE and any(
                group.protocol_counts.get(protocol.name, 0) == group.classic_count for protocol in request.protocols):
            return
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f'consumer group {group.group_id} takes no member of type {request.protocol_type!r} with '
            f'{[protocol.name for protocol in request.protocols]}; group.consumer.migration.policy is '
            f'{self.migration.policy}')

    def _last_of_consumer_protocol(self, group: ConsumerGroup, call: Call) -> ConsumerMember | None:
        """Return the static member that the request replaces, if it is the last one of the consumer protocol."""
        request = call.request
        known = group.members.get(group.instances.get(request.instance_id or '', ''))
        if known is None or known.classic is not None or not request.is_new_id:
            return None
        return known if self.migration.may_replace_last(group) else None

    def _downgrade_before(self, group: ConsumerGroup, last: ConsumerMember, call: Call) -> Steps[Outcome]:
        """Make a classic group of a consumer group, whose static member is about to be replaced by the classic one."""
        is_at_rest = group.epoch == group.assignment_epoch and all([
            member.held.is_reconciled_to(group.epoch) for member in group.members.values() if member is not last])
        members = [without_consumer_fields(member, call.classic) if member is last else member
                   for member in group.members.values()]
        classic, rows = yield from self.migration.downgrade(group, members, self.place.clock.wall_ms())
        return Outcome(rows, PASS_ON, partial(self.after_downgrade, group.group_id, members, not is_at_rest), classic)

    # The steps of a heartbeat, as a join takes them

    def find_group(self, request: Any, found: Group | None) -> tuple[ConsumerGroup, list[Any]]:
        assert isinstance(found, ConsumerGroup)
        return found, []

    def find_member(self, group: ConsumerGroup, call: Call) -> ConsumerMember | None:
        """UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        request = call.request
        if request.instance_id is None:
            return group.members.get(request.member_id)
        if not request.is_new_id:
            return static_member(group, request)
        return group.members.get(group.instances.get(request.instance_id, ''))

    def origin_of(self, before: ConsumerMember | None, call: Call) -> ConsumerMember:
        if before is None or before.member_id == call.request.member_id:
            return super().origin_of(None, call) if before is None else before
        return self.successor_of(before, call.request.member_id)

    def reply(self, draft: ConsumerDraft, call: Call) -> Any:
        member = draft.member
        assert member.classic is not None
        return messages.JoinGroupResponse(
            generation_id=member.epoch, protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=member.classic.protocols[0][0], leader='', member_id=member.member_id, members=[])

    def after_beat(self, draft: ConsumerDraft, call: Call, version: int) -> None:
        super().after_beat(draft, call, version)
        group_id, member = draft.group.group_id, draft.member
        self.place.deadlines.cancel(JOIN, group_id, member.member_id)
        self._arm(SYNC, group_id, member)

    def _arm(self, kind: str, group_id: str, member: ConsumerMember) -> None:
        """Expect a request of the member within its rebalance timeout."""
        self.place.deadlines.arm(kind, group_id, member.member_id, member.rebalance_timeout_ms,
                                 partial(self.submit_fence, group_id, member.member_id, None))

    # SyncGroup and Heartbeat see the group as it is adopted

    def sync(self, request: Any, done: Completion) -> None:
        """Serve a SyncGroup. In a consumer group: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        INCONSISTENT_GROUP_PROTOCOL, REBALANCE_IN_PROGRESS."""
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
        self.arm_session(group.group_id, member)
        complete(done, None, messages.SyncGroupResponse(
            protocol_type=request.protocol_type, protocol_name=request.protocol_name,
            assignment=self.migration.assignment_bytes(member, member.held.assigned)))

    def heartbeat_of_classic(self, request: Any) -> None:
        """Serve a Heartbeat. In a consumer group: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
        REBALANCE_IN_PROGRESS."""
        group = self.place.shard.groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            self.membership.heartbeat(request)
            return
        member = self._classic_member(group, request)
        self.arm_session(group.group_id, member)
        if self._is_behind(group, member) or member.held.state is State.UNREVOKED or (
                member.held.state is State.UNRELEASED and not group.waits_for_others(member)):
            self._call_to_join(group.group_id, member)

    def _classic_member(self, group: ConsumerGroup, request: Any) -> ConsumerMember:
        """Return the member of a request that names a generation."""
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

        Where all members are classic, no heartbeat computes the next assignment: their joins do.
        """
        if group.assignment_epoch > member.epoch:
            return True
        return group.classic_count == len(group.members) and (
            (group.epoch > group.assignment_epoch and self.may_assign(group, self.place.clock.wall_ms()))
            or self.is_due(group))

    def _call_to_join(self, group_id: str, member: ConsumerMember) -> None:
        """Raise REBALANCE_IN_PROGRESS, and expect a JoinGroup."""
        if not self.place.deadlines.is_armed(JOIN, group_id, member.member_id):
            self._arm(JOIN, group_id, member)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f'member {member.member_id} has to join again')

    # LeaveGroup

    def leave_classic(self, request: Any) -> Generator[object, None, Any]:
        """Serve a LeaveGroup: a generator that returns the response. It removes members of any protocol."""
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
            if number % 64 == 63:
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
        return (yield from self.fence(group, gone.values(), response))


class Named(NamedTuple):
    """The names of a member in a request."""

    member_id: str
    instance_id: str | None


def leaving_member(group: ConsumerGroup, identity: Any) -> ConsumerMember:
    """Return the member to remove. An administrator names a static one by its instance alone.

    UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID.
    """
    if identity.group_instance_id is None:
        return group.member(identity.member_id)
    member_id = identity.member_id or group.instances.get(identity.group_instance_id, '')
    return static_member(group, Named(member_id, identity.group_instance_id))


def join_fields(join: Join, migration: Migration) -> Call:
    """Return a JoinGroup as a heartbeat. INCONSISTENT_GROUP_PROTOCOL for one that is no consumer's."""
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
        # Version 0 has no rebalance timeout: the session timeout stands for both.
        rebalance_timeout_ms=(request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0
                              else request.session_timeout_ms),
        topic_partitions=[topic_class(topic_id=topic_id, partitions=sorted(partitions))
                          for topic_id, partitions in owned.items()])
    return Call(fields, frozenset(subscription.topics), join.client_id, join.client_host, no_topic,
                ClassicFields(request.session_timeout_ms, protocols))


def no_topic(_name: str) -> bool:
    """A classic member has no regular expression, and starts the resolution of none."""
    return False

"""Histories of groups whose members change between the classic and the consumer protocol. They run on two brokers.

The histories also use the operations of `group_histories`. Each classic member has its own connection, because a
JoinGroup of a classic group waits for the other members. When an operation ends, all of its requests have their
answers.
"""
from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from typing import Any

import group_histories
from group_histories import GroupSide, Join
from histories import WAIT_LIMIT_S
from support.brokers.in_process_broker import frame_of, read_answer
from support.clients.raw_client import RawClient
from support.messages.message_builder import build

from kbroker.base.errors import ErrorCode
from kbroker.client.assignor import Member, assign_ranges, decode_assignment, encode_assignment
from kbroker.protocol import messages
from kbroker.protocol.consumer_protocol import decode_message, encode_message, version_of

SETTINGS = {
    **group_histories.SETTINGS,
    'group.min.session.timeout.ms': '600',
    # `range` is the only assignor, because classic members do not vote for one and because its order does not depend on
    # a hash.
    'group.consumer.assignors': 'range',
}
SESSION_MS = 300_000
SHORT_CLASSIC_SESSION_MS = 600
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION = 9, 5, 4, 5
SUBSCRIPTION_VERSIONS = {'A': 0, 'B': 1, 'C': 2, 'D': 3, 'E': 3}
INSTANCE = 'static'
NO_GROUP = ('', '')
EMPTY_CONSUMER_GROUP = ('consumer', 'Empty')
BLOBS: dict[str, Any] = {
    'subscription': messages.ConsumerProtocolSubscription, 'metadata': messages.ConsumerProtocolSubscription,
    'member_metadata': messages.ConsumerProtocolSubscription, 'assignment': messages.ConsumerProtocolAssignment,
    'member_assignment': messages.ConsumerProtocolAssignment,
}
"""Maps the fields with bytes that members exchange to the messages in these bytes."""


@dataclasses.dataclass
class ClassicMember:
    """A member of the classic protocol at one broker, with its last unanswered request."""

    slot: str
    client: RawClient
    topics: str = ''
    protocols: tuple[str, ...] = ('range',)
    is_static: bool = False
    session_ms: int = SESSION_MS
    member_id: str = ''
    generation: int = -1
    protocol_name: str = ''
    owned: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    request: Any = None
    version: int = 0
    before: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The fields that a join changes, with their previous values. If the group refuses the join, `change_back` restores
    them.
    """

    @property
    def instance_id(self) -> str | None:
        return INSTANCE if self.is_static else None

    def send(self, request: Any, version: int) -> None:
        self.request, self.version = request, version
        self.client.send(frame_of(request, version, self.slot))

    def change(self, **fields: Any) -> None:
        """Set fields for a join. Remember their previous values, because the group may refuse the join."""
        self.before = {name: getattr(self, name) for name in fields}
        for name, value in fields.items():
            setattr(self, name, value)

    def change_back(self) -> None:
        for name, value in self.before.items():
            setattr(self, name, value)

    def has_answer(self) -> bool:
        return self.client.has_data()

    def receive(self) -> Any:
        request, self.request = self.request, None
        return read_answer(request, self.version, self.client.receive())


class MixedSide(GroupSide):
    """One broker in a history with members of both protocols."""

    def __init__(self, address: str, group: str):
        super().__init__(address, group)
        self.classic: dict[str, ClassicMember] = {}
        self._slots: dict[str, str] = {}
        """Maps the id of a classic member to its name in comparable answers."""
        self.converted: dict[str, str] = {}
        """Maps the slot of a member of the consumer protocol to its id, if it has kept the id that it had as a classic
        member.
        """
        self._leader: tuple[str, Any] | None = None
        """(slot of the last leader, answer to its join)."""

    def close(self) -> None:
        for member in self.classic.values():
            member.client.close()
        super().close()

    # ---- the group

    def listed(self) -> tuple[str, str]:
        """Return the type and the state of the group."""
        answer = self.peer.ask('ListGroups', 5, types_filter=[], states_filter=[])
        found = [group for group in answer.groups if group.group_id == self.group]
        return (found[0].group_type, found[0].group_state) if found else NO_GROUP

    def is_consumer_group(self) -> bool:
        kind, state = self.listed()
        return kind == 'consumer' and state != 'Empty'

    def classic_members(self) -> list[str]:
        """Return the slots of the members of a classic group."""
        described = self.peer.ask('DescribeGroups', 5, groups=[self.group]).groups[0]
        ids = {member.member_id for member in described.members}
        return [slot for slot, member in sorted(self.classic.items()) if member.member_id in ids]

    def members_in_words(self) -> str:
        known = {slot: member.member_id for slot, member in sorted(self.classic.items())}
        described = self.peer.ask('DescribeGroups', 5, groups=[self.group]).groups[0]
        return f'{self.listed()} has {[member.member_id for member in described.members]}, the history has {known}'

    def let_requests_pass(self) -> None:
        """Wait until the coordinator has begun to serve all requests that were sent before this call. It has one queue
        for each partition of the offsets topic.
        """
        for _ in range(2):
            self.peer.ask('Heartbeat', HEARTBEAT_VERSION, group_id=self.group, member_id='nobody', generation_id=0)
        self.peer.wait_for_a_record()

    def await_end_of(self, slot: str) -> None:
        super().await_end_of(self.converted.get(slot, slot))

    # ---- answers

    def heartbeat(self, slot: str, version: int = 1, **fields: Any) -> Any:
        return super().heartbeat(slot, version, **{'member_id': self.converted.get(slot, slot), **fields})

    def comparable(self, value: Any, name: str = '') -> Any:
        if isinstance(value, bytes) and name in BLOBS:
            return self._blob(value, BLOBS[name])
        if isinstance(value, str) and name == 'leader':
            return value != ''      # brokers may choose any member
        if isinstance(value, str) and value in self._slots:
            return self._slots[value]
        return super().comparable(value, name)

    def _blob(self, data: bytes, message_class: Any) -> Any:
        if not data:
            return b''
        return version_of(message_class, data), super().comparable(decode_message(message_class, data))

    def rows(self) -> list[list[tuple[str, Any]]]:
        """Return the rows, except those that change nothing. Kafka writes such a row for a new classic group before a
        member joins it. If a static member was replaced and its subscription has changed, Kafka writes its target
        twice.
        """
        batches = []
        for batch in super().rows():
            left: list[tuple[str, Any]] = []
            for row in batch:
                if not is_blank(*row) and not (row[0] == 'ConsumerGroupTargetAssignmentMember' and row in left):
                    left.append(row)
            if left:
                batches.append(left)
        return batches

    # ---- the requests of classic members

    def member(self, slot: str) -> ClassicMember:
        if slot not in self.classic:
            self.classic[slot] = ClassicMember(slot, RawClient.at(self.peer.address))
        return self.classic[slot]

    def join_request(self, member: ClassicMember) -> Any:
        version = SUBSCRIPTION_VERSIONS[member.slot]
        owned: dict[str, list[int]] = {}
        for topic, partition in member.owned:
            owned.setdefault(topic, []).append(partition)
        blob = encode_message(build(
            'ConsumerProtocolSubscription', topics=[self.topic(name) for name in member.topics],
            owned_partitions=[dict(topic=topic, partitions=partitions) for topic, partitions in owned.items()],
            generation_id=member.generation, rack_id=f'rack-{member.slot}'), version)
        return build(
            'JoinGroupRequest', group_id=self.group, session_timeout_ms=member.session_ms,
            rebalance_timeout_ms=group_histories.REBALANCE_TIMEOUT_MS, member_id=member.member_id,
            group_instance_id=member.instance_id, protocol_type='consumer',
            protocols=[dict(name=protocol, metadata=blob) for protocol in member.protocols])

    def adopt_id(self, member: ClassicMember, member_id: str) -> None:
        member.member_id = member_id
        if member_id:
            self._slots[member_id] = f'<{member.slot}>'

    def join(self, slot: str) -> list[tuple[str, Any]]:
        """Let a member join. Then let the other members join for which a classic group waits. Return the answers."""
        self.member(slot).send(self.join_request(self.member(slot)), JOIN_VERSION)
        return self.receive_joins(slot)

    def receive_joins(self, slot: str) -> list[tuple[str, Any]]:
        answers: list[tuple[str, Any]] = []
        waiting = [slot]
        deadline_s = time.monotonic() + WAIT_LIMIT_S
        while waiting:
            assert time.monotonic() < deadline_s, (
                f'{waiting} wait for a member that the history has lost: {self.members_in_words()}, {answers}')
            came = [each for each in waiting if self.member(each).has_answer()]
            for each in came:
                answer = self.receive_join(self.member(each))
                answers.append((each, answer))
                if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                    waiting.remove(each)
                else:
                    self.member(each).send(self.join_request(self.member(each)), JOIN_VERSION)
            if not came:
                for each in self.awaited_beside(waiting):
                    self.member(each).send(self.join_request(self.member(each)), JOIN_VERSION)
                    waiting.append(each)
        return answers

    def awaited_beside(self, waiting: list[str]) -> list[str]:
        """Return the members for whose joins a classic group waits. Omit the members in `waiting`, which have already
        sent their joins.
        """
        self.let_requests_pass()
        if any(self.member(each).has_answer() for each in waiting) or (
                self.listed() != ('classic', 'PreparingRebalance')):
            return []
        return [each for each in self.classic_members() if each not in waiting]

    def receive_join(self, member: ClassicMember) -> Any:
        answer = member.receive()
        if answer.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.adopt_id(member, answer.member_id)
        elif answer.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            member.member_id = ''
        elif answer.error_code != ErrorCode.REBALANCE_IN_PROGRESS:      # in an upgrade, the member is in the new group
            member.change_back()
        if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            member.before = {}
        if answer.error_code == ErrorCode.NONE:
            member.generation, member.protocol_name = answer.generation_id, answer.protocol_name
            if answer.members:
                self._leader = member.slot, answer
        return answer

    def sync_request(self, slot: str, assignments: dict[str, Any], shift: int = 0) -> Any:
        member = self.member(slot)
        return build(
            'SyncGroupRequest', group_id=self.group, generation_id=member.generation + shift,
            member_id=member.member_id, group_instance_id=member.instance_id, protocol_type='consumer',
            protocol_name=member.protocol_name, assignments=[
                dict(member_id=member_id, assignment=encode_assignment(partitions))
                for member_id, partitions in assignments.items()])

    def receive_sync(self, slot: str) -> Any:
        answer = self.member(slot).receive()
        if answer.error_code == ErrorCode.NONE:
            self.member(slot).owned = decode_assignment(answer.assignment)
        return answer

    def assignments_of(self, answer: Any) -> dict[str, Any]:
        """Return {member id: partitions} as the leader assigns them. `answer` is the answer to the leader's join."""
        counts = {self.topic(name): len(self.partitions_of(name)) for name in self.topic_ids}
        subscribed = {each.member_id: decode_message(messages.ConsumerProtocolSubscription, each.metadata).topics
                      for each in answer.members}
        return dict(assign_ranges([
            Member(self._slots.get(each.member_id, each.member_id), each.group_instance_id,
                   frozenset(subscribed[each.member_id])) for each in answer.members], counts))

    def partitions_of(self, name: str) -> range:
        answer = self.peer.ask('Metadata', topics=[dict(name=self.topic(name))], allow_auto_topic_creation=False)
        return range(len(answer.topics[0].partitions))

    def sync(self, joined: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Let the members in `joined` sync, the leader first. Return the answers."""
        last = {slot: answer for slot, answer in joined if answer.error_code == ErrorCode.NONE}
        leaders = [slot for slot, answer in last.items() if answer.members]
        if last and not leaders and self._leader is not None and (
                self.listed() == ('classic', 'CompletingRebalance')):
            # The members joined again before the leader has synced. Their syncs would wait for the leader's sync.
            self.sync([self._leader])
        answers = []
        for slot in [*leaders, *(slot for slot in sorted(last) if slot not in leaders)]:
            self.member(slot).send(self.sync_request(slot, self.leaders_choice(slot, last)), SYNC_VERSION)
            answers.append((slot, self.receive_sync(slot)))
        return answers

    def leaders_choice(self, slot: str, joined: dict[str, Any]) -> dict[str, Any]:
        """Return the assignments that a member sends in its sync. Only a leader sends any."""
        shown = self.assignments_of(joined[slot]) if joined[slot].members else {}
        ids = {self._slots.get(each.member_id, each.member_id): each.member_id for each in joined[slot].members}
        return {ids[name]: partitions for name, partitions in shown.items()}


def is_blank(kind: str, row: Any) -> bool:
    value = row[1]
    return kind == 'GroupMetadata' and value is not None and not value['generation'] and not value['members']


def all_comparable(side: MixedSide, answers: Iterable[tuple[str, Any]]) -> list[Any]:
    """Return (slot, answer) pairs in comparable form, and separately the members that a leader's answer lists."""
    found, members = [], []
    for slot, answer in answers:
        comparable = side.comparable(answer)
        if comparable.pop('members', None):
            members.append(side.comparable(answer.members))
        comparable.pop('leader', None)
        if answer.error_code not in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            comparable.pop('member_id', None)       # some errors of Kafka name it, no client looks there
        found.append((slot, comparable))
    return [sorted(found, key=repr), members]


# ---- operations

@dataclasses.dataclass(frozen=True)
class ClassicJoin:
    """A classic member joins, or joins again. All members for which the group then waits join again, too. Then all of
    them sync. A static member that is `fresh` has forgotten its member id.
    """

    slot: str
    topics: str
    is_static: bool = False
    protocols: tuple[str, ...] = ('range',)
    fresh: bool = False
    syncs: bool = True

    def run(self, side: MixedSide) -> Any:
        prepare(side, self)
        joined = side.join(self.slot)
        return [all_comparable(side, joined), all_comparable(side, side.sync(joined) if self.syncs else [])]


def prepare(side: MixedSide, operation: Any) -> None:
    """Set the fields of the member that joins. In a consumer group, the member gets an id from its slot, because the
    order of the members depends on the id. When a member joins an empty consumer group, it sends no id. Kafka would
    refuse an id there, and forget the group without a tombstone, but kbroker keeps the group.
    """
    member = side.member(operation.slot)
    forgets_id = (operation.is_static and operation.fresh) or side.listed() == EMPTY_CONSUMER_GROUP
    member.change(topics=operation.topics, is_static=operation.is_static, protocols=operation.protocols,
                  member_id='' if forgets_id else member.member_id)
    if not member.member_id and not member.is_static and side.is_consumer_group():
        side.adopt_id(member, member.slot.lower())


@dataclasses.dataclass(frozen=True)
class AskForId:
    """A dynamic classic member asks a consumer group for an id, and never uses it."""

    slot: str

    def run(self, side: MixedSide) -> Any:
        if not side.is_consumer_group():
            return None
        member = ClassicMember(self.slot, RawClient.at(side.peer.address), 'a')
        member.send(side.join_request(member), JOIN_VERSION)
        answer = member.receive()
        member.client.close()
        return ErrorCode(answer.error_code).name, answer.member_id != ''


@dataclasses.dataclass(frozen=True)
class JoinDuringRebalance:
    """A member of the consumer protocol joins while a classic member waits, either for the joins of other members or
    for its assignment.
    """

    join: Join
    slot: str
    topics: str
    awaits: str

    def run(self, side: MixedSide) -> Any:
        members = side.classic_members() if side.listed()[0] == 'classic' else []
        if not members or self.slot in members:
            return None
        prepare(side, ClassicJoin(self.slot, self.topics))
        return self._join_during_joins(side) if self.awaits == 'others' else self._join_during_syncs(side)

    def _join_during_joins(self, side: MixedSide) -> Any:
        joined = self._park_join(side)
        answer = self.join.run(side)
        # If the join has not upgraded the group, the group still waits for the other members.
        late = side.receive_joins(self.slot)
        return [all_comparable(side, joined), answer, all_comparable(side, late),
                all_comparable(side, side.sync(late))]

    def _join_during_syncs(self, side: MixedSide) -> Any:
        joined = side.join(self.slot)
        last = {slot: answer for slot, answer in joined if answer.error_code == ErrorCode.NONE}
        waiting = [slot for slot, answer in last.items() if not answer.members]
        for slot in waiting:
            side.member(slot).send(side.sync_request(slot, {}), SYNC_VERSION)
        side.let_requests_pass()
        answer = self.join.run(side)
        leaders = [(slot, answer) for slot, answer in last.items() if answer.members]
        late = side.sync(leaders) + [(slot, side.receive_sync(slot)) for slot in waiting]
        return [all_comparable(side, joined), answer, all_comparable(side, late)]

    def _park_join(self, side: MixedSide) -> list[tuple[str, Any]]:
        """Send a JoinGroup. If the answer gives the member an id, repeat the request with this id. Return the answers
        that arrived before the join waits.
        """
        answers: list[tuple[str, Any]] = []
        member = side.member(self.slot)
        member.send(side.join_request(member), JOIN_VERSION)
        if not member.member_id:
            answers.append((self.slot, side.receive_join(member)))
            member.send(side.join_request(member), JOIN_VERSION)
        while not (side.let_requests_pass() or member.has_answer()) and (
                side.listed() != ('classic', 'PreparingRebalance')):
            pass
        return answers


@dataclasses.dataclass(frozen=True)
class ClassicBeat:
    """A classic member sends a heartbeat. Its generation is the member's generation plus `shift`."""

    slot: str
    shift: int = 0

    def run(self, side: MixedSide) -> Any:
        member = side.member(self.slot)
        member.send(build('HeartbeatRequest', group_id=side.group, member_id=member.member_id or self.slot,
                          generation_id=max(member.generation, 0) + self.shift,
                          group_instance_id=member.instance_id), HEARTBEAT_VERSION)
        return side.comparable(member.receive())


@dataclasses.dataclass(frozen=True)
class ClassicSync:
    """A classic member of a consumer group syncs again. Its generation is the member's generation plus `shift`."""

    slot: str
    shift: int = 0

    def run(self, side: MixedSide) -> Any:
        if not side.is_consumer_group():
            return None
        side.member(self.slot).send(side.sync_request(self.slot, {}, self.shift), SYNC_VERSION)
        return side.comparable(side.receive_sync(self.slot))


@dataclasses.dataclass(frozen=True)
class ClassicLeave:
    """Members leave by one LeaveGroup request. Classic members are given by their slots, and members of the consumer
    protocol by their ids.
    """

    slots: str
    consumers: str = ''
    by_instance: bool = False

    def run(self, side: MixedSide) -> Any:
        identities = [dict(member_id='' if self.by_instance and side.member(slot).is_static
                           else side.member(slot).member_id or slot,
                           group_instance_id=side.member(slot).instance_id) for slot in self.slots]
        identities += [dict(member_id=slot, group_instance_id=None) for slot in self.consumers]
        answer = side.peer.ask('LeaveGroup', LEAVE_VERSION, group_id=side.group, members=identities)
        for slot, left in zip(self.slots, answer.members, strict=False):
            if left.error_code == ErrorCode.NONE:
                side.member(slot).member_id = ''
        return side.comparable(answer)


@dataclasses.dataclass(frozen=True)
class ClassicCrash:
    """A classic member of a consumer group joins with a short session, and sends nothing more."""

    slot: str

    def run(self, side: MixedSide) -> Any:
        member = side.member(self.slot)
        if not member.member_id or not side.is_consumer_group():
            return None
        member.session_ms = SHORT_CLASSIC_SESSION_MS
        joined = side.join(self.slot)
        member.session_ms = SESSION_MS
        if joined[-1][1].error_code == ErrorCode.NONE:
            side.await_end_of(member.member_id)
            member.member_id = ''
        return all_comparable(side, joined)


@dataclasses.dataclass(frozen=True)
class Convert:
    """A classic member continues as a member of the consumer protocol with the same id."""

    slot: str
    topics: str

    def run(self, side: MixedSide) -> Any:
        member = side.member(self.slot)
        member_id = member.member_id or side.converted.get(self.slot, self.slot)
        answer = side.heartbeat(
            self.slot, member_id=member_id, member_epoch=0, topic_partitions=[], instance_id=member.instance_id,
            rebalance_timeout_ms=group_histories.REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=list(map(side.topic, self.topics)))
        if answer['error_code'] == 'NONE':
            side.converted[self.slot], member.member_id = member_id, ''
        return answer


@dataclasses.dataclass(frozen=True)
class ClassicCommit:
    """A classic member commits an offset. Its generation is the member's generation plus `shift`."""

    slot: str
    partition: int
    shift: int = 0
    version: int = 8

    def run(self, side: MixedSide) -> Any:
        member = side.member(self.slot)
        return side.comparable(side.peer.ask(
            'OffsetCommit', self.version, group_id=side.group, member_id=member.member_id or self.slot,
            group_instance_id=member.instance_id,
            generation_id_or_member_epoch=max(member.generation, 0) + self.shift,
            topics=[dict(name=side.topic('a'), partitions=[dict(
                partition_index=self.partition, committed_offset=5, committed_metadata='')])]))

"""The heartbeats of consumer groups (KIP-848): what they do besides the steps that all kinds share."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import replace
from kbroker.base.long_work import Pace
from kbroker.group.assignors import range as range_assignor
from kbroker.group.assignors import uniform as uniform_assignor
from kbroker.group.assignors.spec import Spec, SpecMember
from kbroker.group.classic.group import MOST_MEMBERS, ClassicGroup
from kbroker.group.consumer import rows as consumer_rows
from kbroker.group.consumer.group import ConsumerGroup
from kbroker.group.consumer.member import NOTHING, ConsumerMember, Target
from kbroker.group.consumer.migration import Migration
from kbroker.group.consumer.regexes import Regexes, compiled
from kbroker.group.group import Group
from kbroker.group.modern.group import ModernGroup, Row, Steps
from kbroker.group.modern.heartbeat import (
    JOIN_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    REBALANCE,
    Call,
    Draft,
    Heartbeats,
    not_found,
    unknown_member,
)
from kbroker.group.modern.idle_members import SESSION
from kbroker.group.modern.reconcile import Assigned, reconcile
from kbroker.group.turns import Outcome
from kbroker.protocol import messages

ASSIGNORS = {module.NAME: module.assign for module in (uniform_assignor, range_assignor)}
NO_TIMEOUT = -1
JOIN, SYNC = 'join', 'sync'
"""The deadlines of members that speak the classic protocol, besides their sessions."""

LONG_ASSIGNMENT = 500
"""The topics of a member from which on its row, and the answer about it, are parts of their own."""

ConsumerDraft = Draft[ConsumerGroup, ConsumerMember]


class ConsumerHeartbeats(Heartbeats[ConsumerGroup, ConsumerMember]):
    """The heartbeats of the consumer groups in a shard."""

    group_class: ClassVar[type[ModernGroup[Any, Any]]] = ConsumerGroup
    rows: ClassVar[Any] = consumer_rows

    def __init__(self, place: Any, regexes: Regexes, migration: Migration):
        super().__init__(place)
        self.regexes = regexes
        self.migration = migration

    def beat(self, call: Call, found: Group | None) -> Steps[Outcome]:
        """A member that joins a classic group with members upgrades it first."""
        if call.request.member_epoch != JOIN_EPOCH or not isinstance(found, ClassicGroup) or found.is_empty:
            return (yield from super().beat(call, found))
        held_bytes = found.held_bytes
        group, rows = yield from self.migration.upgrade(found)
        self.place.shard.memory.check(max(group.held_bytes - held_bytes, 0))
        members = list(group.members.values())
        outcome = yield from super().beat(call, group)

        def after() -> None:
            self.migration.long_work.start(self.arm_upgraded(group.group_id, members))
            if outcome.after is not None:
                outcome.after()

        return Outcome([*rows, *outcome.rows], outcome.reply, after)

    def arm_upgraded(self, group_id: str, members: list[ConsumerMember]) -> Steps[None]:
        """Expect heartbeats of the members that an upgraded group had."""
        for number, member in enumerate(members):
            if number % 64 == 63:
                yield
            group = self.place.shard.groups.get(group_id)
            if isinstance(group, ConsumerGroup) and member.member_id in group.members and (
                    not self.place.deadlines.is_armed(SESSION, group_id, member.member_id)):
                self.arm_session(group_id, member)

    def may_replace(self, found: Group) -> bool:
        return isinstance(found, ClassicGroup) and found.is_empty

    def max_size(self) -> int:
        wanted: int = self.place.config.group_consumer_max_size
        return min(wanted, MOST_MEMBERS)

    def is_idle(self, group: ConsumerGroup, member: ConsumerMember) -> bool:
        """Regular expressions may be due to be resolved again."""
        return member.classic is None and not group.regexes

    # Members

    def find_member(self, group: ConsumerGroup, call: Call) -> ConsumerMember | None:
        """UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID."""
        request = call.request
        if request.instance_id is None:
            return super().find_member(group, call)
        if request.member_epoch != JOIN_EPOCH:
            return static_member(group, request)
        known_id = group.instances.get(request.instance_id)
        if known_id is None:
            return group.members.get(request.member_id)
        known = group.members[known_id]
        if known.classic is None and known.epoch != LEAVE_FOR_A_WHILE_EPOCH:
            raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID,
                             f'instance {request.instance_id} belongs to {known_id}, which has not left')
        return known

    def check_epoch(self, member: ConsumerMember, request: Any) -> None:
        """FENCED_MEMBER_EPOCH. The epoch before is good enough for a member that lost the reply and owns no more than
        its last answer named."""
        epoch = request.member_epoch
        if epoch == JOIN_EPOCH or epoch == member.epoch:
            return
        if epoch < member.epoch and epoch == member.held.previous_epoch and request.topic_partitions is not None and (
                all(is_part(topic.partitions, member.held.assigned.get(topic.topic_id, {}))
                    for topic in request.topic_partitions)):
            return
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, f'found member epoch {epoch}, expected {member.epoch}')

    def origin_of(self, before: ConsumerMember | None, call: Call) -> ConsumerMember:
        request = call.request
        if before is None:
            return ConsumerMember(member_id=request.member_id)
        if request.instance_id is None or request.member_epoch != JOIN_EPOCH or (
                before.classic is None and before.epoch != LEAVE_FOR_A_WHILE_EPOCH):
            return before
        return self.successor_of(before, request.member_id)

    def successor_of(self, before: ConsumerMember, member_id: str) -> ConsumerMember:
        """Return a static member under its new id, before it knows its assignment."""
        return replace(before, member_id=member_id, held=replace(before.held, epoch=0, previous_epoch=0))

    def updated(self, origin: ConsumerMember, call: Call) -> ConsumerMember:
        request = call.request
        given: dict[str, Any] = {'client_id': call.client_id, 'client_host': call.client_host, 'classic': call.classic}
        if call.names is not None:
            given['names'] = call.names
        if request.subscribed_topic_regex is not None:
            given['regex'] = request.subscribed_topic_regex
        if request.rebalance_timeout_ms != NO_TIMEOUT:
            given['rebalance_timeout_ms'] = request.rebalance_timeout_ms
        for name, value in (('instance_id', request.instance_id), ('rack_id', request.rack_id),
                            ('assignor', request.server_assignor)):
            if value is not None:
                given[name] = value
        changed = {name: value for name, value in given.items() if getattr(origin, name) != value}
        return replace(origin, **changed) if changed else origin

    # Subscriptions

    def change_subscription(self, draft: ConsumerDraft, call: Call) -> Steps[bool]:
        """INVALID_REGULAR_EXPRESSION."""
        origin, member, group = draft.origin, draft.member, draft.group
        bumps = member.names != origin.names
        if member.regex != origin.regex:
            if member.regex and member.regex not in group.regexes:
                compiled(member.regex)
            dropped = group.dropped_regex(draft.before, member)
            if dropped is not None:
                draft.rows.append(consumer_rows.regex_tombstone(group.group_id, dropped))
            bumps = bumps or bool(dropped) or member.regex in group.resolved or not member.regex
        yield from ()
        return bumps

    def epoch_rows(self, group: ConsumerGroup, epoch: int, new_hash: int) -> list[Row]:
        rows = [consumer_rows.epoch_row(group.group_id, epoch, new_hash)]
        if group.has_partition_metadata:
            rows.append(consumer_rows.partition_metadata_tombstone(group.group_id))
        return rows

    def rows_of_dropped_subscriptions(self, group: ConsumerGroup, gone: list[ConsumerMember]) -> list[Row]:
        leaving: dict[str, int] = {}
        for member in gone:
            leaving[member.regex] = leaving.get(member.regex, 0) + 1
        return [consumer_rows.regex_tombstone(group.group_id, regex)
                for regex, count in leaving.items() if regex and group.regexes[regex] == count]

    # Targets

    def compute_targets(self, draft: ConsumerDraft) -> Steps[dict[str, Any]]:
        group, pace = draft.group, Pace()
        partitions: dict[bytes, int] = {}
        topics: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}
        members = []
        for member in draft.members():
            subscription = member.names, member.regex
            if subscription not in topics:
                topics[subscription] = yield from self.topic_ids(group, member, partitions)
            members.append(SpecMember(member.member_id, member.instance_id, topics[subscription],
                                      draft.stored_target(member.member_id) or NOTHING))
            if pace.spend():
                yield
        is_homogeneous = len(topics) < 2 and not any(names and regex for names, regex in topics)
        spec = Spec(members, {topic_id: partitions[topic_id] for topic_id in sorted(partitions)}, is_homogeneous)
        assign = ASSIGNORS[preferred_assignor(draft.members(), self.place.config.group_consumer_assignors)]
        targets: dict[str, Any] = yield from assign(spec)
        return targets

    def topic_ids(self, group: ConsumerGroup, member: ConsumerMember,
                  partitions: dict[bytes, int]) -> Steps[frozenset[bytes]]:
        """Return the ids of the existing topics that a member subscribes to. Note their numbers of partitions."""
        pace, find = Pace(), self.place.changes.topics.topic
        found = set()
        for name in group.topics_of(member):
            topic = find(name)
            if topic is not None:
                found.add(topic.topic_id)
                partitions[topic.topic_id] = len(topic.partitions)
            if pace.spend():
                yield
        return frozenset(found)

    # Reconciliation

    def reconcile(self, draft: ConsumerDraft, call: Call) -> Steps[None]:
        origin, member, group = draft.origin, draft.member, draft.group
        is_changed = member.names != origin.names or member.regex != origin.regex
        if not is_changed and origin.held.is_reconciled_to(draft.assignment_epoch):
            return
        yield from group.index_owners()
        subscribed = yield from self.topic_ids(group, member, {})
        held = yield from reconcile(
            origin.held, draft.assignment_epoch, draft.target() or NOTHING, group.owner,
            owned_partitions(call.request), subscribed if group.topics_of(member) else None, is_changed)
        if held != origin.held:
            is_long = len(held.assigned) + len(held.pending) > LONG_ASSIGNMENT
            if is_long:
                yield
            draft.member = replace(member, held=held)
            draft.rows.append(consumer_rows.current_row(group.group_id, member.member_id, held))
            if is_long:
                yield

    def reply(self, draft: ConsumerDraft, call: Call) -> Any:
        request, member = call.request, draft.member
        is_full = request.rebalance_timeout_ms != NO_TIMEOUT and request.topic_partitions is not None and (
            call.names is not None or request.subscribed_topic_regex is not None)
        assignment = None
        if request.member_epoch == JOIN_EPOCH or is_full or (
                draft.before is not None and member.held.assigned != draft.before.held.assigned):
            assignment = assignment_of(member.held)
        return messages.ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=member.epoch,
            heartbeat_interval_ms=self.interval_ms(draft), assignment=assignment)

    def is_settled(self, draft: ConsumerDraft) -> bool:
        return draft.member.held.is_reconciled_to(draft.assignment_epoch)

    # Deadlines

    def after_beat(self, draft: ConsumerDraft, call: Call, version: int) -> None:
        super().after_beat(draft, call, version)
        group_id, member = draft.group.group_id, draft.member
        if member.held is not draft.origin.held:
            self.follow_revocation(group_id, member)
        if call.classic is None:
            self.regexes.look_after(self.place.shard, self.place.turns, group_id, call.may_describe)

    def follow_revocation(self, group_id: str, member: ConsumerMember) -> None:
        """A classic member has a deadline to join instead."""
        if member.classic is None:
            super().follow_revocation(group_id, member)
        else:
            self.place.deadlines.cancel(REBALANCE, group_id, member.member_id)

    def start_deadlines(self, group: ConsumerGroup) -> None:
        super().start_deadlines(group)
        for member in group.members.values():
            self.follow_revocation(group.group_id, member)

    def session_timeout_ms(self, group_id: str, member: ConsumerMember) -> int:
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return super().session_timeout_ms(group_id, member)

    def disarm(self, group_id: str, member_id: str) -> None:
        super().disarm(group_id, member_id)
        for kind in (JOIN, SYNC):
            self.place.deadlines.cancel(kind, group_id, member_id)

    # Leaving

    def fence(self, group: ConsumerGroup, members: Iterable[ConsumerMember], reply: object) -> Steps[Outcome]:
        """Remove members. Without the last one of the consumer protocol, the group becomes a classic one."""
        gone = list(members)
        if not self.migration.may_downgrade(group, gone):
            return (yield from super().fence(group, gone, reply))
        everyone, gone_ids = list(group.members.values()), {member.member_id for member in gone}
        left = [member for member in everyone if member.member_id not in gone_ids]
        classic, rows = yield from self.migration.downgrade(group, left, self.place.clock.wall_ms())
        return Outcome(rows, reply, partial(self.after_downgrade, group.group_id, everyone, True), classic)

    def after_downgrade(self, group_id: str, members: list[ConsumerMember], rebalances: bool) -> None:
        """The group has become a classic one: its members' deadlines are those of such a group."""
        self.migration.start_downgraded(group_id, rebalances=rebalances)
        self.migration.long_work.start(self._disarm_all(group_id, members))

    def _disarm_all(self, group_id: str, members: list[ConsumerMember]) -> Steps[None]:
        """Cancel the deadlines of members, in parts, but for those that are in a consumer group again."""
        for number, member in enumerate(members):
            if number % 64 == 63:
                yield
            group = self.place.shard.groups.get(group_id)
            if not isinstance(group, ConsumerGroup) or member.member_id not in group.members:
                self.disarm(group_id, member.member_id)

    def leave(self, call: Call, found: Group | None) -> Steps[Outcome] | Outcome:
        """GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        request = call.request
        if not isinstance(found, ConsumerGroup):
            raise not_found(request.group_id)
        member = found.member(request.member_id) if request.instance_id is None else static_member(found, request)
        reply = messages.ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        if request.member_epoch != LEAVE_FOR_A_WHILE_EPOCH:
            return self.fence(found, [member], reply)
        held = replace(member.held, epoch=LEAVE_FOR_A_WHILE_EPOCH, pending={}, assigned={
            topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in member.held.assigned.items()})
        return Outcome([consumer_rows.current_row(found.group_id, member.member_id, held)], reply)


def static_member(group: ConsumerGroup, request: Any) -> ConsumerMember:
    """Return the member of a request with an instance id. UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    known_id = group.instances.get(request.instance_id)
    if known_id is None:
        raise unknown_member(group, request.member_id)
    if known_id != request.member_id:
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID,
                         f'instance {request.instance_id} belongs to {known_id}, not {request.member_id}')
    return group.members[known_id]


def preferred_assignor(members: Iterable[ConsumerMember], assignors: Sequence[str]) -> str:
    """Return the assignor that most members ask for, or the broker's first if they ask for none that it has."""
    votes = Counter([member.assignor for member in members])
    known = [name for name in votes if name is not None and name in assignors]
    return max(known, key=votes.__getitem__, default=assignors[0])


def is_part(partitions: list[int], assigned: Mapping[int, int]) -> bool:
    return all(partition in assigned for partition in partitions)


def owned_partitions(request: Any) -> Target | None:
    """Return the partitions that the member reports to own, None if it does not report any."""
    if request.topic_partitions is None:
        return None
    return {topic.topic_id: frozenset(topic.partitions) for topic in request.topic_partitions}


def assignment_of(held: Assigned[bytes]) -> Any:
    """Return the assignment in the answer to a member: without the partitions that it has to give up."""
    response = messages.ConsumerGroupHeartbeatResponse
    return response.Assignment(topic_partitions=[
        response.TopicPartitions(topic_id=topic_id, partitions=list(partitions))
        for topic_id, partitions in held.assigned.items()])

"""The functions that `modern/heartbeat` calls for heartbeats of consumer groups (KIP-848)."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.base.lean_dataclasses import replace
from kbroker.base.long_work import Pace
from kbroker.group.assignors import range as range_assignor
from kbroker.group.assignors import uniform as uniform_assignor
from kbroker.group.assignors.spec import Spec, SpecMember
from kbroker.group.classic.group import MOST_MEMBERS, ClassicGroup
from kbroker.group.consumer import rows
from kbroker.group.consumer.group import ConsumerGroup
from kbroker.group.consumer.member import NOTHING, ConsumerMember, Target
from kbroker.group.consumer.migration import Migration
from kbroker.group.consumer.regexes import Regexes, compiled
from kbroker.group.group import Group
from kbroker.group.kinds import Row, Steps
from kbroker.group.modern.heartbeat import (
    JOIN_EPOCH,
    Call,
    Draft,
    Kind,
    Place,
    not_found,
    partitions_reply,
)
from kbroker.group.modern.reconcile import reconcile
from kbroker.group.modern.static_members import find_member, successor
from kbroker.protocol import messages
from kbroker.settings.config import Config

ASSIGNORS = {module.NAME: module.assign for module in (uniform_assignor, range_assignor)}
NO_TIMEOUT = -1

LONG_ASSIGNMENT = 500
"""If an assignment has more topics than this number, the work yields before and after it encodes the assignment."""

ConsumerDraft = Draft[ConsumerGroup, ConsumerMember]


class ConsumerSteps:
    """The functions of the table of consumer groups that use parts of the coordinator."""

    def __init__(self, place: Place, regexes: Regexes, migration: Migration):
        self.place = place
        self.regexes = regexes
        self.migration = migration

    def kind(self) -> Kind:
        """Return the table of functions for consumer groups."""
        return Kind(
            ConsumerGroup, Draft, max_size=max_size, find=find_member, fields=fields_of, owned=owned_partitions,
            subscribe=self.subscribe, targets=self.targets, reconcile=self.reconcile, reply=reply, farewell=farewell,
            is_idle=is_idle, replace_other=self.replace_other, downgrade=self.migration.downgrade_without,
            after=self.after, successor=successor, after_failed_join=self.migration.abandon_upgrade)

    def replace_other(self, found: Group) -> Steps[tuple[ConsumerGroup, list[Row]]]:
        """Return the consumer group that replaces a classic group, and its rows. If the classic group has members,
        upgrade the group with its members."""
        if not isinstance(found, ClassicGroup):
            raise not_found(found.group_id)
        if found.is_empty:
            return ConsumerGroup(found.group_id), found.tombstones()
        held_bytes = found.held_bytes
        group, upgrade_rows = yield from self.migration.upgrade(found)
        self.place.shard.memory.check(max(group.held_bytes - held_bytes, 0))
        return group, upgrade_rows

    def subscribe(self, draft: ConsumerDraft, call: Call) -> Steps[bool]:
        """Return whether the member's subscription, or the assignor that most members prefer, has changed so that the
        group needs a new epoch. If a regular expression has lost its last subscriber, add the tombstone of its row to
        the draft.

        Raise INVALID_REGULAR_EXPRESSION if a new regular expression cannot be compiled.
        """
        origin, member, group = draft.origin, draft.member, draft.group
        needs_epoch = member.names != origin.names
        if member.regex != origin.regex:
            if member.regex and member.regex not in group.regexes:
                compiled(member.regex)
            dropped = group.dropped_regex(draft.before, member)
            if dropped is not None:
                draft.rows.append(rows.regex_tombstone(group.group_id, dropped))
            needs_epoch = needs_epoch or bool(dropped) or member.regex in group.resolved or not member.regex
        yield from ()
        return needs_epoch or (call.classic is None and self.assignor(group.assignor_votes) != self.assignor(
            group.votes_with(draft.before, member)))

    def targets(self, draft: ConsumerDraft) -> Steps[dict[str, Any]]:
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
        assign = ASSIGNORS[self.assignor(group.votes_with(draft.before, draft.member))]
        targets: dict[str, Any] = yield from assign(spec)
        return targets

    def assignor(self, votes: Mapping[str, int]) -> str:
        return preferred_assignor(votes, self.place.config.group_consumer_assignors)

    def topic_ids(self, group: ConsumerGroup, member: ConsumerMember,
                  partitions: dict[bytes, int]) -> Steps[frozenset[bytes]]:
        """Return the ids of the existing topics that a member subscribes to. Store each topic's number of partitions in
        `partitions`, by topic id."""
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
            draft.rows.append(rows.current_row(group.group_id, member.member_id, held))
            if is_long:
                yield

    def after(self, draft: ConsumerDraft, call: Call) -> None:
        """Resolve the group's regular expressions if it is time to do so."""
        self.regexes.look_after(self.place, draft.group.group_id, call.may_describe)


def max_size(config: Config) -> int:
    return min(int(config.group_consumer_max_size), MOST_MEMBERS)


def fields_of(call: Call) -> dict[str, Any]:
    """Return the fields of the member that the request sets, by name."""
    request = call.request
    fields: dict[str, Any] = {'client_id': call.client_id, 'client_host': call.client_host, 'classic': call.classic}
    if call.names is not None:
        fields['names'] = call.names
    if request.subscribed_topic_regex is not None:
        fields['regex'] = request.subscribed_topic_regex
    if request.rebalance_timeout_ms != NO_TIMEOUT:
        fields['rebalance_timeout_ms'] = request.rebalance_timeout_ms
    for name, value in (('instance_id', request.instance_id), ('rack_id', request.rack_id),
                        ('assignor', request.server_assignor)):
        if value is not None:
            fields[name] = value
    return fields


def reply(draft: ConsumerDraft, call: Call, interval_ms: int) -> Any:
    """Return the response to the heartbeat. It has the assignment if the member joins, if the request has all fields,
    or if the assignment has changed."""
    request = call.request
    is_full = request.rebalance_timeout_ms != NO_TIMEOUT and request.topic_partitions is not None and (
        call.names is not None or request.subscribed_topic_regex is not None)
    return partitions_reply(messages.ConsumerGroupHeartbeatResponse, draft, interval_ms,
                            request.member_epoch == JOIN_EPOCH or is_full)


def farewell(request: Any) -> Any:
    return messages.ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)


def is_idle(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return False if the member is a classic member, or if the group has regular expressions, because it may be time
    to resolve them again. Otherwise, return True."""
    return member.classic is None and not group.regexes


def preferred_assignor(votes: Mapping[str, int], assignors: Sequence[str]) -> str:
    """Return the one of the broker's assignors that most members prefer. `votes` maps each assignor to the number of
    these members. If two have equally many, or no member prefers any, return the first of them in `assignors`."""
    return max(assignors, key=lambda name: votes.get(name, 0))


def owned_partitions(request: Any) -> Target | None:
    """Return the partitions that the member reports as its own, by topic id; None if the request has no list of
    partitions.

    As in Kafka, the request may list a topic several times. The partitions of all its entries are included.
    """
    if request.topic_partitions is None:
        return None
    owned: dict[bytes, frozenset[int]] = {}
    for topic in request.topic_partitions:
        owned[topic.topic_id] = owned.get(topic.topic_id, frozenset()).union(topic.partitions)
    return owned

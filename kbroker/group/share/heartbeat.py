"""The functions that `modern/heartbeat` calls for heartbeats of share groups (KIP-932).

Only partitions with an initialized share state are assigned to members. A heartbeat initializes missing share states;
the next heartbeat assigns their partitions. A row of the group lists the partitions with initialized states. A
partition is added to this row only when its state is durable.
"""
from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

from kbroker.base.lean_dataclasses import replace
from kbroker.base.long_work import Pace, result_of
from kbroker.group.assignors import simple
from kbroker.group.assignors.spec import Spec, SpecMember
from kbroker.group.group import Group
from kbroker.group.kinds import Row, Steps
from kbroker.group.modern.heartbeat import (
    JOIN_EPOCH,
    Call,
    Draft,
    Kind,
    Place,
    find_dynamic,
    not_found,
    partitions_reply,
)
from kbroker.group.modern.reconcile import reconcile_shared
from kbroker.group.share import member_rows as rows
from kbroker.group.share.group import ShareGroup
from kbroker.group.share.member_rows import NOTHING, ShareMember, States, Target, TopicState
from kbroker.group.share.rows import UNKNOWN_OFFSET, ShareKey
from kbroker.group.share.state import ShareStates
from kbroker.protocol import messages
from kbroker.security.escape import shown
from kbroker.settings.config import Config
from kbroker.topics.registry import TopicRegistry

log = logging.getLogger(__name__)

ASSIGNOR = simple.NAME

ShareDraft = Draft[ShareGroup, ShareMember]


class ShareSteps:
    """The functions of the table of share groups that use parts of the coordinator."""

    def __init__(self, place: Place, states: ShareStates):
        self.place = place
        self.states = states

    def kind(self) -> Kind:
        """Return the table of functions for share groups."""
        return Kind(
            ShareGroup, Draft, max_size=max_size, find=find_dynamic, fields=fields_of, owned=owned,
            subscribe=subscribe, targets=self.targets, reconcile=self.reconcile, reply=reply, farewell=farewell,
            is_idle=self.is_idle, replace_other=replace_other)

    def is_idle(self, group: ShareGroup, _member: ShareMember) -> bool:
        return group.is_known_covered and group.complete_version == self.place.changes.version

    def targets(self, draft: ShareDraft) -> Steps[dict[str, Any]]:
        pace, numbering = Pace(), Numbering(draft.group.initialized)
        topics: dict[frozenset[str], frozenset[bytes]] = {}
        members = []
        for member in draft.members():
            if member.names not in topics:
                topics[member.names] = yield from self.topic_ids(member)
            target = draft.stored_target(member.member_id) or NOTHING
            members.append(SpecMember(member.member_id, None, topics[member.names],
                                      (yield from numbering.numbers(target, pace))))
            if pace.spend():
                yield
        subscribed = sorted(frozenset().union(*topics.values()))
        spec = Spec(members, {topic_id: numbering.count(topic_id) for topic_id in subscribed}, len(topics) < 2)
        assigned = yield from simple.assign(spec)
        targets: dict[str, Any] = {}
        for member_id, found in assigned.items():
            targets[member_id] = yield from numbering.partitions(found, pace)
            if pace.spend():
                yield
        return targets

    def topic_ids(self, member: ShareMember) -> Steps[frozenset[bytes]]:
        """Return the ids of the existing topics that a member subscribes to."""
        pace, find = Pace(), self.place.changes.topics.topic
        found = set()
        for name in member.names:
            topic = find(name)
            if topic is not None:
                found.add(topic.topic_id)
            if pace.spend():
                yield
        return frozenset(found)

    def reconcile(self, draft: ShareDraft, _call: Call) -> Steps[None]:
        """Assign the member its target. Then initialize the missing share states of the group's subscribed topics."""
        origin, member = draft.origin, draft.member
        is_changed = member.names != origin.names
        if is_changed or origin.epoch != draft.assignment_epoch:
            subscribed = yield from self.topic_ids(member)
            held = yield from reconcile_shared(
                origin.held, draft.assignment_epoch, draft.target() or NOTHING, subscribed, is_changed)
            if held != origin.held:
                draft.member = replace(member, held=held)
                draft.rows.append(rows.current_row(draft.group.group_id, member.member_id, held))
        yield from self.complete_states(draft)

    # Share states

    def complete_states(self, draft: ShareDraft) -> Steps[None]:
        """Initialize the missing share states of the subscribed topics, and wait until they are durable. Add the
        group's row that lists all initialized states to the draft."""
        group, changes = draft.group, self.place.changes
        is_unchanged = draft.before is not None and draft.member.names == draft.before.names
        version = changes.version
        if is_unchanged and not changes.concern(group.names, group.complete_version):
            group.complete_version = version
            return
        missing = yield from self.missing(group, draft.names())
        added = (yield from self.initialize(group, draft.epoch, missing)) if missing else {}
        initialized = without_deleted(merged(group.initialized, added), changes.topics)
        if initialized != group.initialized:
            draft.rows.append(rows.states_row(group.group_id, initialized, {}))
        elif is_unchanged and not missing:
            group.complete_version = version

    def missing(self, group: ShareGroup, names: Iterable[str]) -> Steps[dict[bytes, TopicState]]:
        """Return the partitions that have no initialized share state, by topic id, of the topics with these names."""
        pace, find = Pace(), self.place.changes.topics.topic
        found: dict[bytes, TopicState] = {}
        for name in list(names):
            topic = find(name)
            if topic is None:
                continue
            known = group.initialized.get(topic.topic_id)
            has = frozenset() if known is None else known.partitions
            if len(has) < len(topic.partitions):
                found[topic.topic_id] = TopicState(name, frozenset(range(len(topic.partitions))) - has)
                pace.spend(len(topic.partitions) // 8)
            if pace.spend():
                yield
        return found

    def initialize(self, group: ShareGroup, epoch: int, missing: States) -> Steps[dict[bytes, TopicState]]:
        """Initialize the share states of the partitions in `missing`, and wait until they are durable. Return the
        partitions for which this succeeded.

        As in Kafka 4.4, further partitions of a topic of which the group has share states start at offset 0. With
        `share.auto.offset.reset=latest`, the group would otherwise miss the records that were produced to a new
        partition before its assignment.
        """
        group_id = group.group_id
        starts = {ShareKey(group_id, topic_id, partition): 0 if topic_id in group.initialized else UNKNOWN_OFFSET
                  for topic_id, state in missing.items() for partition in state.partitions}
        failed = yield from result_of(partial(self.states.initialize, starts, epoch))
        for key, error in islice(failed.items(), 1):
            log.warning('%d share states of group %s were not initialized; partition %s: %s', len(failed),
                        shown(group_id), key.partition, error)
        return without_failed(missing, failed)


def max_size(config: Config) -> int:
    return int(config.group_share_max_size)


def replace_other(found: Group) -> Steps[tuple[ShareGroup, list[Row]]]:
    """Raise GROUP_ID_NOT_FOUND, because a share group never replaces a group of another kind."""
    yield from ()
    raise not_found(found.group_id)


def fields_of(call: Call) -> dict[str, Any]:
    """Return the fields of the member that the request sets, by name."""
    fields: dict[str, Any] = {'client_id': call.client_id, 'client_host': call.client_host}
    if call.names is not None:
        fields['names'] = call.names
    if call.request.rack_id is not None:
        fields['rack_id'] = call.request.rack_id
    return fields


def owned(_request: Any) -> Target:
    """Return an empty mapping. Members of a share group do not report their partitions, because several members may
    have the same partition."""
    return NOTHING


def subscribe(draft: ShareDraft, _call: Call) -> Steps[bool]:
    """Return whether the group needs a new epoch: either the member's subscription has changed, or the targets do not
    contain exactly the initialized partitions."""
    if draft.member.names != draft.origin.names:
        return True
    return draft.epoch <= draft.assignment_epoch and not (yield from draft.group.is_covered())


def reply(draft: ShareDraft, call: Call, interval_ms: int) -> Any:
    """Return the response to the heartbeat. It has the assignment if the member joins, if the request lists topics, or
    if the assignment has changed."""
    return partitions_reply(messages.ShareGroupHeartbeatResponse, draft, interval_ms,
                            call.request.member_epoch == JOIN_EPOCH or call.names is not None)


def farewell(request: Any) -> Any:
    return messages.ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)


class Numbering:
    """A numbering of each topic's initialized partitions from 0. The assignor needs it, because it expects partitions
    without gaps.

    A number differs from its partition only in a topic with a gap: a partition that is not initialized although a
    higher one is.
    """

    def __init__(self, initialized: States):
        self._initialized = initialized
        self._sorted: dict[bytes, list[int]] = {}
        for topic_id, state in initialized.items():
            if state.partitions and max(state.partitions) >= len(state.partitions):
                self._sorted[topic_id] = sorted(state.partitions)

    def count(self, topic_id: bytes) -> int:
        state = self._initialized.get(topic_id)
        return 0 if state is None else len(state.partitions)

    def numbers(self, target: Target, pace: Pace) -> Steps[Target]:
        """Replace each partition in a target by its number, which is its index in the topic's sorted list of
        initialized partitions."""
        if not self._sorted:
            return target
        found = dict(target)
        for topic_id, in_order in self._sorted.items():
            if topic_id in target:
                found[topic_id] = frozenset(
                    number for number, partition in enumerate(in_order) if partition in target[topic_id])
                if pace.spend(1 + len(in_order) // 8):
                    yield
        return found

    def partitions(self, target: Target, pace: Pace) -> Steps[Target]:
        """Replace each number in a target by its partition. This is the reverse of `numbers`."""
        if not self._sorted:
            return target
        found = dict(target)
        for topic_id, in_order in self._sorted.items():
            if topic_id in target:
                found[topic_id] = frozenset(in_order[number] for number in target[topic_id])
                if pace.spend(1 + len(in_order) // 8):
                    yield
        return found


def merged(initialized: States, more: States) -> dict[bytes, TopicState]:
    """Return the union of two mappings from topic ids to partitions."""
    found = dict(initialized)
    for topic_id, state in more.items():
        known = found.get(topic_id)
        found[topic_id] = state if known is None else TopicState(state.name, known.partitions | state.partitions)
    return found


def without_deleted(states: States, topics: TopicRegistry) -> dict[bytes, TopicState]:
    """Return a copy of `states` without topics that do not exist."""
    return {topic_id: state for topic_id, state in states.items() if topics.topic_by_id(topic_id) is not None}


def without_failed(states: States, failed: Iterable[ShareKey]) -> dict[bytes, TopicState]:
    """Return a copy of `states` without the partitions that are in `failed`."""
    gone: dict[bytes, set[int]] = {}
    for key in failed:
        gone.setdefault(key.topic_id, set()).add(key.partition)
    left = {topic_id: TopicState(state.name, state.partitions - gone.get(topic_id, set()))
            for topic_id, state in states.items()}
    return {topic_id: state for topic_id, state in left.items() if state.partitions}

"""Administration of the offsets of share groups, and deletion of share groups. A share group has a share state for each
partition instead of a committed offset.

A group's rows and its share states are in different logs. Before share states are deleted, a row of the group lists
their topics as being deleted. If the broker crashes during the deletion, no partition without a share state is
therefore assigned afterwards.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from kbroker.base.completion import Callback, Completion, complete
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import result_of
from kbroker.group.group import Group
from kbroker.group.kinds import Row, Steps
from kbroker.group.modern.heartbeat import not_found
from kbroker.group.share.group import ShareGroup
from kbroker.group.share.heartbeat import merged, without_failed
from kbroker.group.share.member_rows import TopicState, states_row
from kbroker.group.share.rows import ShareKey
from kbroker.group.share.state import ShareStates
from kbroker.group.turns import Operation, Outcome, Turns
from kbroker.topics.registry import TopicRegistry

Starts = Mapping[tuple[bytes, int], int]
"""Maps (topic id, partition) to the partition's new start offset."""


class ShareOffsets:
    """The operations that alter and delete the offsets of share groups in one shard, and that delete share groups."""

    def __init__(self, turns: Turns, states: ShareStates, topics: TopicRegistry):
        self._turns = turns
        self._states = states
        self._topics = topics

    def alter(self, group_id: str, starts: Starts, done: Completion) -> None:
        """Set the start offsets of partitions for an empty group, and forget the acknowledgements in these partitions.
        Create the group if it does not exist.

        `done` completes with {(topic id, partition): KafkaError} for the partitions that failed. If the whole operation
        fails, `done` completes with NON_EMPTY_GROUP, or with GROUP_ID_NOT_FOUND for a group of another type.
        """
        self._turns.submit(group_id, partial(self._alter, group_id, starts), done)

    def _alter(self, group_id: str, starts: Starts, found: Group | None) -> Steps[Outcome]:
        group = ShareGroup(group_id) if found is None else empty_share_group(group_id, found)
        failed = yield from result_of(partial(
            self._states.initialize, {ShareKey(group_id, *place): offset for place, offset in starts.items()},
            group.epoch))
        wanted: dict[bytes, set[int]] = {}
        for topic_id, index in starts:
            wanted.setdefault(topic_id, set()).add(index)
        names = {topic_id: self._topics.topic_by_id(topic_id) for topic_id in wanted}
        added = {topic_id: TopicState(topic.name, frozenset(wanted[topic_id]))
                 for topic_id, topic in names.items() if topic is not None}
        initialized = merged(group.initialized, without_failed(added, failed))
        rows = [] if initialized == group.initialized else [states_row(group_id, initialized, {})]
        return Outcome(rows, {(key.topic_id, key.partition): error for key, error in failed.items()})

    def delete(self, group_id: str, topic_ids: Collection[bytes], done: Completion) -> None:
        """Delete the share states that an empty group has for the given topics.

        `done` completes with the ids of the topics whose states were deleted; the group had no state of the other given
        topics. If the group never had a share state, `done` completes with None. If the deletion fails, `done`
        completes with GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, or an error of `ShareStates.delete`.
        """
        self._delete_in_turns(group_id, topic_ids, partial(self._end_states, group_id, topic_ids), done)

    def delete_group(self, group_id: str, done: Completion) -> None:
        """Delete an empty group and its share states. `done` completes with the same errors as in `delete`."""
        self._delete_in_turns(group_id, None, partial(self._end_group, group_id), done)

    def _delete_in_turns(self, group_id: str, topic_ids: Collection[bytes] | None, delete: Operation,
                         done: Completion) -> None:
        """In one turn, append a row that lists the topics as being deleted; in a later turn, run the operation
        `delete`. If `topic_ids` is None, the whole group is deleted."""
        def noted(error: KafkaError | None, known: Any) -> None:
            if error is not None or known is None:
                complete(done, error, None)
                return
            self._turns.submit(group_id, delete, Callback(
                lambda error, _result: complete(done, error, None if error is not None else known)))

        self._turns.submit(group_id, partial(self._note_deletion, group_id, topic_ids), Callback(noted))

    def _note_deletion(self, group_id: str, topic_ids: Collection[bytes] | None, found: Group | None) -> Outcome:
        """Return the row that lists topics as being deleted. Reply with the ids of those given topics of which the
        group has share states.

        If `topic_ids` is not None and the group has no row of share states, the reply is None.
        """
        group = empty_share_group(group_id, found)
        deleting = {topic_id: state.name for topic_id, state in group.initialized.items()
                    if topic_ids is None or topic_id in topic_ids}
        left = {topic_id: state for topic_id, state in group.initialized.items() if topic_id not in deleting}
        if topic_ids is not None and not group.has_states_row:
            return Outcome()
        return Outcome([states_row(group_id, left, deleting)] if deleting else (), frozenset(deleting))

    def _end_states(self, group_id: str, topic_ids: Collection[bytes], found: Group | None) -> Steps[Outcome]:
        group = empty_share_group(group_id, found)
        keys = yield from self._states.keys_of(group_id)
        yield from self._delete_states([
            key for key in keys if key.topic_id in topic_ids and key.topic_id not in group.initialized])
        return Outcome([states_row(group_id, group.initialized, {})])

    def _end_group(self, group_id: str, found: Group | None) -> Steps[Outcome]:
        group = empty_share_group(group_id, found)
        yield from self._delete_states((yield from self._states.keys_of(group_id)))
        rows: list[Row] = group.tombstones()
        return Outcome(rows)

    def _delete_states(self, keys: list[ShareKey]) -> Steps[None]:
        """Delete share states, and wait until their deletion is durable. If a deletion fails, raise the first error."""
        failed = yield from result_of(partial(self._states.delete, keys))
        for error in failed.values():
            raise error


def empty_share_group(group_id: str, found: Group | None) -> ShareGroup:
    """Return the share group if it is empty. Raise GROUP_ID_NOT_FOUND if there is no share group with this id,
    NON_EMPTY_GROUP if the group has members."""
    if not isinstance(found, ShareGroup):
        raise not_found(group_id)
    if found.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f'group {group_id} has members')
    return found

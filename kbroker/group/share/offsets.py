"""The administration of share groups. The offsets of a share group are the share states of its partitions.

The row of a group and its share states are in two logs. Before states are deleted, the group's row lists their topics
as being deleted. After a crash, no partition is therefore assigned without a share state.
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
"""The start offset of each partition, by topic id and partition."""


class ShareOffsets:
    """The operations on the offsets of a shard's share groups, and the deletion of the groups."""

    def __init__(self, turns: Turns, states: ShareStates, topics: TopicRegistry):
        self._turns = turns
        self._states = states
        self._topics = topics

    def alter(self, group_id: str, starts: Starts, done: Completion) -> None:
        """Set the start offsets of an empty group, and forget its acknowledgements. Create the group if it does not
        exist.

        `done` completes with {(topic id, partition): KafkaError}, which has the partitions that failed. The errors of
        the whole operation are NON_EMPTY_GROUP, and GROUP_ID_NOT_FOUND for a group of another type.
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
        """Delete the share states of topics of an empty group.

        `done` completes with the ids of the topics whose states were deleted; the group has no state of the other
        topics. It completes with None if the group never had a share state. The errors are GROUP_ID_NOT_FOUND,
        NON_EMPTY_GROUP, and the errors of `ShareStates.delete`.
        """
        self._delete_in_turns(group_id, topic_ids, partial(self._end_states, group_id, topic_ids), done)

    def delete_group(self, group_id: str, done: Completion) -> None:
        """Delete an empty group with its share states. The errors are those of `delete`."""
        self._delete_in_turns(group_id, None, partial(self._end_group, group_id), done)

    def _delete_in_turns(self, group_id: str, topic_ids: Collection[bytes] | None, delete: Operation,
                         done: Completion) -> None:
        """List the topics to delete in the group's row, then delete their states. `topic_ids` is None for the whole
        group."""
        def noted(error: KafkaError | None, known: Any) -> None:
            if error is not None or known is None:
                complete(done, error, None)
                return
            self._turns.submit(group_id, delete, Callback(
                lambda error, _result: complete(done, error, None if error is not None else known)))

        self._turns.submit(group_id, partial(self._note_deletion, group_id, topic_ids), Callback(noted))

    def _note_deletion(self, group_id: str, topic_ids: Collection[bytes] | None, found: Group | None) -> Outcome:
        """Write the group's row before a deletion. Reply with the ids of the given topics that the group has states of.

        For a deletion of topics, the reply is None if the group has no row with share states.
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
        """Delete share states, and wait until the deletion is durable. Raise the first error."""
        failed = yield from result_of(partial(self._states.delete, keys))
        for error in failed.values():
            raise error


def empty_share_group(group_id: str, found: Group | None) -> ShareGroup:
    """Return the share group if it is empty. Raise GROUP_ID_NOT_FOUND if there is none, and NON_EMPTY_GROUP."""
    if not isinstance(found, ShareGroup):
        raise not_found(group_id)
    if found.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f'group {group_id} has members')
    return found

"""The kinds of groups, and the one way in for the rows of a group."""
from __future__ import annotations

from typing import Any

from kbroker.base.errors import CorruptLogError
from kbroker.group.classic.group import ClassicGroup, GroupState, Member
from kbroker.group.consumer.group import ConsumerGroup
from kbroker.group.group import Group
from kbroker.group.modern.group import ModernGroup
from kbroker.group.share.group import ShareGroup
from kbroker.group.streams.group import StreamsGroup
from kbroker.protocol.messages import GroupMetadataKey

MODERN_KINDS: tuple[type[ModernGroup[Any, Any]], ...] = (ConsumerGroup, ShareGroup, StreamsGroup)

_KIND_OF_ROW = {key_name: kind for kind in MODERN_KINDS for key_name in kind.row_handlers}


def group_id_of(key: Any) -> str:
    """Return the group that a row belongs to."""
    found: str = key.group if type(key) is GroupMetadataKey else key.group_id
    return found


def apply_row(group: Group | None, key: Any, value: Any) -> Group | None:
    """Apply a row, which may be that of a tombstone, to the group of its key, if there is one.

    Return the group: a new one, `group` itself with a change, or None if it has ended. Raises CorruptLogError for a row
    of another kind of group than the one that exists. A group that only has offsets may become any kind.
    """
    if type(key) is GroupMetadataKey:
        if value is not None:
            return restore_classic_group(key.group, value)
        return None if isinstance(group, ClassicGroup) else group
    kind = _KIND_OF_ROW.get(type(key).__name__)
    if kind is None:
        return group
    if isinstance(group, kind):
        return group.apply(key, value)
    if value is None:
        return group
    if group is not None and group.protocol_type is not None:
        raise CorruptLogError(f'found a row of type {key.row_type} of group {key.group_id!r}, which is of type '
                              f'{group.group_type}')
    return kind(key.group_id).apply(key, value)


def restore_classic_group(group_id: str, value: Any) -> ClassicGroup:
    """Return the group that a row describes: Stable with its members, or Empty."""
    group = ClassicGroup(
        group_id,
        state_since_ms=None if value.current_state_timestamp == -1 else value.current_state_timestamp,
        state=GroupState.STABLE if value.members else GroupState.EMPTY,
        generation=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
    )
    for row in value.members:
        group.add(
            Member(
                row.member_id,
                row.group_instance_id,
                row.client_id,
                row.client_host,
                # Version 0 has none: the session timeout stood for both.
                row.rebalance_timeout or row.session_timeout,
                row.session_timeout,
                [(value.protocol or '', row.subscription)],
                row.assignment,
            ),
            value.protocol_type,
        )
    group.leader_id = value.leader
    return group

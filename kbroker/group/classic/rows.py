"""The functions that make a classic group from its row. `encoder` writes the row."""
from __future__ import annotations

from typing import Any

from kbroker.group.classic.group import ClassicGroup
from kbroker.group.classic.members import Member
from kbroker.group.classic.states import GroupState
from kbroker.group.group import Group


def apply_row(group: Group | None, key: Any, value: Any) -> Group | None:
    """Return the group that the row describes. For a tombstone, return None if `group` is a classic group, else `group`
    unchanged."""
    if value is not None:
        return restore_group(key.group, value)
    return None if isinstance(group, ClassicGroup) else group


def restore_group(group_id: str, value: Any) -> ClassicGroup:
    """Return the classic group that a row describes. Its state is Stable if the row has members, else Empty."""
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
                # Version 0 of the row has no rebalance timeout. The session timeout is used instead.
                row.rebalance_timeout or row.session_timeout,
                row.session_timeout,
                [(value.protocol or '', row.subscription)],
                row.assignment,
            ),
            value.protocol_type,
        )
    group.leader_id = value.leader
    return group

"""The states of a classic group, and the allowed transitions between them."""
from __future__ import annotations

import enum


class GroupState(enum.Enum):
    """The state of a classic group. The value is the state's name in DescribeGroups and ListGroups responses."""

    EMPTY = 'Empty'
    PREPARING_REBALANCE = 'PreparingRebalance'
    COMPLETING_REBALANCE = 'CompletingRebalance'
    STABLE = 'Stable'
    DEAD = 'Dead'


TRANSITIONS = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}
"""Maps each state to the states that may follow it:

* Empty -> Preparing: the first member joins.
* Preparing -> Completing: all awaited members have joined.
* Preparing -> Empty: no member has joined.
* Completing -> Stable: the leader's assignments are durable.
* Completing, Stable -> Preparing: a member joins, leaves or is removed.
* Dead: the group's tombstone is in the log, but not durable yet. No state follows Dead.
"""

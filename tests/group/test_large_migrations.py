"""Upgrades and downgrades of large groups: no turn of the event loop takes long.

All rows of an upgrade are in one batch. With the default of max.message.bytes, groups of up to about three thousand
members can therefore be upgraded. Times are processor times of this thread, so that the load of the machine does not
change them.
"""
import gc

import pytest
from support.runner.attempts import assert_within
from support.worlds.consumer_groups import Consumer, consumer_group
from support.worlds.group_coordinator import GROUP
from support.worlds.measured_world import MeasuredWorld

from kbroker.base.errors import ErrorCode
from kbroker.client.assignor import decode_assignment, encode_assignment, encode_subscription
from kbroker.group.classic.group import ClassicGroup
from kbroker.group.classic.members import Member
from kbroker.group.classic.states import GroupState

MEMBERS = 1_500
LONGEST_TURN_S = 0.010
SESSION_MS = 45_000


@pytest.fixture(autouse=True)
def _without_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def world_with(members):
    """Return a world with a classic group of `members` members. Each member has one partition of the topic `t`."""
    world = MeasuredWorld(group_consumer_assignment_interval_ms=0, group_consumer_min_assignment_interval_ms=0,
                          group_consumer_assignors='range')
    world.topics.create('t', members + 1)
    metadata = encode_subscription(['t'])
    group = ClassicGroup(GROUP, state=GroupState.STABLE, generation=3, protocol_name='range',
                         state_since_ms=world.clock.wall_ms())
    for number in range(members):
        group.add(Member(f'm{number:05}', None, 'client', '/127.0.0.1', 300_000, SESSION_MS,
                         [('range', metadata), ('roundrobin', metadata)], encode_assignment([('t', number)])),
                  'consumer')
    world.groups._part(GROUP).shard.add_group(group)
    return world


def upgraded(world, members):
    """Upgrade the group: a member that speaks the consumer protocol joins. Return the new member."""
    newcomer = Consumer(world, 'newcomer', names=['t'])
    assert newcomer.join().code is ErrorCode.NONE
    group = consumer_group(world)
    assert (len(group.members), group.classic_count, group.epoch) == (members + 1, members, 4)
    return newcomer


def downgrade(world, newcomer, members):
    """Downgrade the group: `newcomer` leaves, and the remaining members get their assignments in a classic group."""
    assert newcomer.leave().code is ErrorCode.NONE
    group = world.groups.describe(GROUP, 'classic')
    assert (len(group.members), group.generation) == (members, 4)
    assert len({partition for member in group.members.values()
                for _, partition in decode_assignment(member.assignment)}) == members
    assert all(len(member.protocols) == 2 for member in group.members.values())


def test_a_large_group_is_upgraded_and_downgraded_and_no_turn_is_long():
    world = world_with(MEMBERS)
    newcomer = upgraded(world, MEMBERS)
    downgrade(world, newcomer, MEMBERS)
    world.advance(SESSION_MS)
    assert world.state() in ('Empty', 'none')
    assert_within(world.longest_turn_s, LONGEST_TURN_S)

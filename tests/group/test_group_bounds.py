"""The memory that groups can take is bounded. When the bound is reached, existing members and new commits of existing
offsets still work."""

import pytest
from support.worlds.group_coordinator import GROUP, Client, World, stable_group, subscription

from kbroker.base.errors import ErrorCode
from kbroker.group.classic.encoder import group_row
from kbroker.group.classic.group import MOST_PROTOCOLS

MIB = 1024 * 1024
FULL = {'kbroker_group_memory_max_bytes': 64 * 1024}


def groups_of(world):
    return {group.group_id for group in world.groups.list_groups()}


def test_a_member_that_offers_a_hundred_thousand_assignors_is_refused(world):
    protocols = [(f'p{index}', b'') for index in range(100_000)]
    assert Client(world, protocols=protocols).join_once().code is ErrorCode.INVALID_REQUEST
    assert groups_of(world) == set()
    most = Client(world, protocols=protocols[:MOST_PROTOCOLS])
    answer = most.join()
    world.run_due()
    assert answer.value.protocol_name == 'p0'


def test_requests_that_fail_leave_no_group_behind(world):
    stranger = Client(world)
    stranger.member_id = 'nobody'
    assert stranger.join_once().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.sync().code is stranger.heartbeat() is stranger.leave() is ErrorCode.UNKNOWN_MEMBER_ID
    too_short = Client(world, session_timeout_ms=1)
    assert too_short.join_once().code is ErrorCode.INVALID_SESSION_TIMEOUT
    assert groups_of(world) == set()
    assert world.groups.memory.held_bytes == 0


def test_a_flood_of_member_ids_keeps_the_newest_and_keeps_no_client_out(world):
    world.groups.pending_members._most = 100
    early = Client(world, group_id='early')
    early.member_id = early.join_once().value.member_id
    for index in range(200):
        assert Client(world, group_id=f'g{index}').join_once().code is ErrorCode.MEMBER_ID_REQUIRED
    assert len(world.groups.pending_members) == 100
    assert len(groups_of(world)) == 100  # the other groups never had a member
    assert early.join_once().code is ErrorCode.UNKNOWN_MEMBER_ID
    early.member_id = ''
    answer = early.join()
    world.run_due()
    assert answer.code is ErrorCode.NONE


def test_pending_members_make_room_for_members_when_memory_ends():
    world = World(**FULL)
    for index in range(200):
        assert Client(world, group_id=f'g{index}').join_once().code is ErrorCode.MEMBER_ID_REQUIRED
        assert world.groups.memory.held_bytes <= 64 * 1024
    answer = Client(world, group_id='real').join()
    world.run_due()
    assert answer.code is ErrorCode.NONE


def test_groups_with_long_names_end_at_the_bound_and_give_their_memory_back():
    world = World(kbroker_group_memory_max_bytes=64 * MIB)
    codes = [
        world.commit(('orders', 0), 1, group_id=f'{index}' + 'g' * 32_000).code for index in range(3_000)
    ]
    held = codes.index(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert 1_000 < held < 64 * MIB // 32_000
    assert set(codes[:held]) == {ErrorCode.NONE}
    assert world.groups.memory.held_bytes <= 64 * MIB
    again = world.commit(('orders', 0), 2, group_id='0' + 'g' * 32_000)
    assert again.code is ErrorCode.NONE  # an existing offset can be committed again
    world.clock.advance(8 * 86_400_000)
    world.groups.sweep()
    world.run_due()
    assert groups_of(world) == set()
    assert world.groups.memory.held_bytes == 0


def test_members_go_on_when_memory_has_ended():
    world = World(**FULL)
    first, second = stable_group(world, Client(world, 'a'), Client(world, 'b'))
    full = None
    for index in range(100):
        full = Client(world, group_id=f'g{index}', version=3).join_once()
        if full.came and full.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            break
    assert full.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    first.protocols = [('range', subscription('orders'))]
    joins = [first.join(), second.join()]
    world.run_due()
    assert {join.code for join in joins} == {ErrorCode.NONE}
    assert first.joined(joins[0]).heartbeat() is ErrorCode.NONE


def test_a_group_row_that_exceeds_the_largest_message_is_refused_as_kafka_refuses_it():
    world = World(message_max_bytes=10_000)
    client = Client(world)
    joining = client.join()
    world.run_due()
    client.joined(joining)
    assert client.sync({client.member_id: bytes(10_000)}).code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.state() == 'PreparingRebalance'
    assert world.partition.stored == []
    client.joined(client.join())
    assert client.sync({client.member_id: bytes(9_000)}).code is ErrorCode.NONE


def test_metadata_that_can_never_be_stored_is_refused_and_leaves_the_group_alone():
    world = World(message_max_bytes=10_000)
    stable_group(world, Client(world, 'a'))
    large = Client(world, 'b', protocols=[('range', bytes(10_000))])
    assert large.join().code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.state() == 'Stable'


def test_a_commit_that_exceeds_the_largest_message_is_refused_as_kafka_refuses_it():
    world = World(message_max_bytes=1_000)
    assert world.commit(('orders', 0), 1, metadata='m' * 2_000).code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.partition.stored == []
    assert groups_of(world) == set()


def test_the_row_of_a_group_names_the_size_that_it_may_have(world):
    (client,) = stable_group(world, Client(world))
    with pytest.raises(Exception, match='exceeds the 20 bytes'):
        group_row(world.groups.describe(GROUP, 'classic'), {client.member_id: b'all'}, 20)

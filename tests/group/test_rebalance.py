"""Rebalances of classic groups: members join, sync, leave, crash and return."""

import pytest
from support.worlds.group_coordinator import GROUP, Client, World, stable_group, subscription

from kbroker.base.errors import ErrorCode
from kbroker.group.classic.group import ClassicGroup
from kbroker.group.classic.states import TRANSITIONS, GroupState


def test_a_new_dynamic_member_gets_its_id_first(world):
    client = Client(world, 'billing')
    answer = client.join_once()
    assert answer.code is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.value.member_id.startswith('billing-')
    assert world.state() == 'Empty'


@pytest.mark.parametrize('version', [0, 3])
def test_clients_of_old_versions_join_without_getting_an_id_first(world, version):
    client = Client(world, version=version)
    answer = client.join_once()
    world.run_due()
    assert answer.code is ErrorCode.NONE


def test_a_single_member_leads_and_gets_what_it_assigned(world):
    client = Client(world)
    answer = client.join()
    world.run_due()
    client.joined(answer)
    assert answer.value.leader == client.member_id
    assert [member.member_id for member in answer.value.members] == [client.member_id]
    assert answer.value.members[0].metadata == subscription('orders')
    assert (answer.value.protocol_type, answer.value.protocol_name, answer.value.generation_id) == (
        'consumer',
        'range',
        1,
    )
    sync = client.sync({client.member_id: b'all'})
    assert (sync.code, sync.value.assignment) == (ErrorCode.NONE, b'all')
    assert world.state() == 'Stable'
    assert client.heartbeat() is ErrorCode.NONE


def test_the_initial_delay_gathers_members_into_one_generation():
    world = World(group_initial_rebalance_delay_ms=3000)
    first, second = Client(world, 'a'), Client(world, 'b')
    joins = [first.join()]
    world.advance(2900)
    joins.append(second.join())
    world.advance(2900)
    assert not joins[0].came  # the second join has extended the delay
    world.advance(200)
    assert {join.value.generation_id for join in joins} == {1}
    assert len(joins[0].value.members) == 2 and joins[1].value.members == []


def test_the_initial_delay_ends_with_the_rebalance_timeout():
    world = World(group_initial_rebalance_delay_ms=3000)
    first = Client(world, 'a', rebalance_timeout_ms=5000).join()
    for _ in range(5):
        world.advance(999)
        Client(world, 'b', rebalance_timeout_ms=5000).join()
    assert not first.came
    world.advance(10)
    assert first.came


def test_a_second_member_brings_everyone_to_a_new_generation(world):
    (first,) = stable_group(world, Client(world, 'a'))
    second = Client(world, 'b')
    joining = second.join()
    assert world.state() == 'PreparingRebalance'
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    rejoining = first.join()
    first.joined(rejoining), second.joined(joining)
    assert first.generation == second.generation == 2
    waiting = second.sync()
    assert not waiting.came
    first.sync({first.member_id: b'1', second.member_id: b'2'})
    assert waiting.value.assignment == b'2'


def test_a_member_that_does_not_rejoin_in_time_is_removed(world):
    (first,) = stable_group(world, Client(world, 'a', rebalance_timeout_ms=20_000, session_timeout_ms=60_000))
    joining = Client(world, 'b', rebalance_timeout_ms=10_000).join()
    world.advance(19_999)  # almost the longest timeout of a member
    assert not joining.came
    world.advance(1)
    assert [member.member_id for member in joining.value.members] == [joining.value.member_id]
    assert first.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_makes_the_others_rebalance(world):
    first, second = stable_group(world, Client(world, 'a'), Client(world, 'b'))
    assert second.leave() is ErrorCode.NONE
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    first.joined(first.join())
    assert list(world.groups.describe(GROUP, 'classic').members) == [first.member_id]


def test_the_last_member_that_leaves_empties_the_group(world):
    (client,) = stable_group(world, Client(world))
    client.leave()
    group = world.groups.describe(GROUP, 'classic')
    assert (group.state, group.generation, group.protocol_type, group.protocol_name) == (
        GroupState.EMPTY,
        2,
        'consumer',
        None,
    )


def test_a_member_that_crashes_is_noticed_by_its_session_timeout(world):
    first, second = stable_group(world, Client(world, 'a'), Client(world, 'b'))
    for _ in range(3):
        world.advance(3333)
        assert first.heartbeat() is ErrorCode.NONE
    world.advance(1)
    assert first.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_when_the_leader_leaves_another_leads(world):
    first, second = stable_group(world, Client(world, 'a'), Client(world, 'b'))
    assert world.groups.describe(GROUP, 'classic').leader_id == first.member_id
    first.leave()
    assert second.join().value.leader == second.member_id


def test_a_leader_that_joins_again_makes_everyone_rebalance(world):
    """When a topic gets new partitions, the leader's metadata does not change. The leader requests a new assignment by
    joining again."""
    first, second = stable_group(world, Client(world, 'a'), Client(world, 'b'))
    answer = first.join()
    assert not answer.came
    assert second.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_follower_that_joins_again_unchanged_gets_the_current_generation(world):
    _, second = stable_group(world, Client(world, 'a'), Client(world, 'b'))
    answer = second.join()
    assert (answer.value.generation_id, answer.value.members) == (second.generation, [])
    assert world.state() == 'Stable'
    assert second.sync().value.assignment == b'b'


def test_a_follower_with_changed_metadata_makes_everyone_rebalance(world):
    """With a cooperative assignor, a partition moves in two steps: its member revokes it, then joins again with
    metadata that no longer lists it."""
    _, second = stable_group(world, Client(world, 'a'), Client(world, 'b'))
    second.protocols = [('range', subscription('payments'))]
    assert not second.join().came
    assert world.state() == 'PreparingRebalance'


def test_a_member_that_missed_its_join_answer_gets_it_again(world):
    client = Client(world)
    client.joined_answer = client.join()
    world.run_due()
    client.member_id = client.joined_answer.value.member_id
    again = client.join()
    assert (again.value.generation_id, len(again.value.members)) == (1, 1)
    assert world.state() == 'CompletingRebalance'


def test_a_join_during_sync_sends_the_waiting_back_to_join(world):
    first, second = stable_group(world, Client(world, 'a'), Client(world, 'b'))
    rejoins = [first.join(), second.join()]
    first.joined(rejoins[0]), second.joined(rejoins[1])
    waiting = second.sync()
    Client(world, 'c').join()
    assert waiting.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_joins_but_does_not_sync_is_removed(world):
    first, second = stable_group(
        world, Client(world, 'a', session_timeout_ms=100_000), Client(world, 'b', session_timeout_ms=100_000)
    )
    rejoins = [first.join(), second.join()]
    first.joined(rejoins[0]), second.joined(rejoins[1])
    waiting = second.sync()
    world.advance(30_000)
    assert waiting.code is ErrorCode.REBALANCE_IN_PROGRESS
    assert first.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert second.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_the_assignor_that_most_members_prefer_wins(world):
    metadata = subscription('orders')
    preferences = [['sticky', 'range'], ['range', 'sticky'], ['range', 'sticky', 'own']]
    clients = [
        Client(world, f'c{index}', protocols=[(name, metadata) for name in names])
        for index, names in enumerate(preferences)
    ]
    stable_group(world, *clients)
    assert world.groups.describe(GROUP, 'classic').protocol_name == 'range'


@pytest.mark.parametrize(
    ('protocol_type', 'protocols'),
    [('connect', [('range', b'')]), ('consumer', [('own', b'')]), ('', [('range', b'')]), ('consumer', [])],
)
def test_a_member_with_nothing_in_common_is_refused(world, protocol_type, protocols):
    stable_group(world, Client(world))
    stranger = Client(world)
    stranger.protocol_type, stranger.protocols = protocol_type, protocols
    assert stranger.join().code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize('session_timeout_ms', [-1, 0, 5_999, 1_800_001, 2**31 - 1])
def test_session_timeouts_out_of_bounds_are_refused(world, session_timeout_ms):
    assert Client(world, session_timeout_ms=session_timeout_ms).join().code is ErrorCode.INVALID_SESSION_TIMEOUT


def test_an_empty_group_id_is_refused(world):
    client = Client(world, group_id='')
    assert client.join().code is client.sync().code is client.heartbeat() is ErrorCode.INVALID_GROUP_ID


def test_a_full_group_takes_no_more():
    world = World(group_max_size=2)
    stable_group(world, Client(world, 'a'), Client(world, 'b'))
    assert Client(world, 'c').join().code is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_requests_of_another_generation_or_member_are_refused(world):
    (client,) = stable_group(world, Client(world))
    client.generation += 1
    assert client.heartbeat() is client.sync().code is ErrorCode.ILLEGAL_GENERATION
    client.member_id = 'stranger'
    assert client.heartbeat() is client.sync().code is client.join().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert client.leave() is ErrorCode.UNKNOWN_MEMBER_ID
    client.group_id = 'nowhere'
    assert client.heartbeat() is client.sync().code is client.join().code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_sync_with_another_protocol_is_refused(world):
    (client,) = stable_group(world, Client(world))
    assert client.sync(protocol_type='connect', protocol_name='range').code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.sync(protocol_type='consumer', protocol_name='own').code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.sync(protocol_type='consumer', protocol_name='range').code is ErrorCode.NONE


def test_a_pending_member_that_never_joins_leaves_nothing_behind(world):
    Client(world).join_once()
    assert world.state() == 'Empty'
    world.advance(10_000)
    assert world.state() == 'none'
    assert world.partition.stored == []


def test_a_rebalance_waits_for_pending_members(world):
    (first,) = stable_group(world, Client(world, 'a', session_timeout_ms=20_000))
    second = Client(world, 'b')
    second.member_id = second.join_once().value.member_id
    rejoin = first.join()
    assert not rejoin.came
    second.join_once()
    assert len(rejoin.value.members) == 2


def test_a_rebalance_does_not_wait_for_pending_members_that_are_gone(world):
    (first,) = stable_group(world, Client(world, 'a', session_timeout_ms=20_000))
    Client(world, 'b', session_timeout_ms=6_000).join_once()
    rejoin = first.join()
    world.advance(6_000)
    assert len(rejoin.value.members) == 1


def test_a_new_member_that_waits_too_long_has_to_join_again(world):
    stable_group(world, Client(world, 'a', rebalance_timeout_ms=900_000, session_timeout_ms=1_800_000))
    waiting = Client(world, 'b', version=3).join()
    world.advance(5 * 60_000)
    assert waiting.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_does_not_expire_while_its_join_is_parked(world):
    first, second = stable_group(world, Client(world, 'a'), Client(world, 'b', session_timeout_ms=25_000))
    parked = first.join()
    world.advance(20_000)
    assert not parked.came
    second.join()
    assert parked.code is ErrorCode.NONE


def test_an_offset_commit_keeps_the_session_alive(world):
    (client,) = stable_group(world, Client(world))
    for offset in range(5):
        world.advance(6_000)
        assert world.commit(('orders', 0), offset, **client.identity).code is ErrorCode.NONE
    assert client.heartbeat() is ErrorCode.NONE


def test_every_transition_outside_the_table_is_refused():
    for before in GroupState:
        for after in GroupState:
            group = ClassicGroup('g', state=before)
            if after in TRANSITIONS[before]:
                group.transition_to(after, 5)
                assert (group.state, group.previous_state, group.state_since_ms) == (after, before, 5)
            else:
                with pytest.raises(AssertionError, match='is no transition'):
                    group.transition_to(after, 5)


# The disk


def test_an_assignment_is_sent_when_it_is_durable():
    world = World(immediate=False)
    client = Client(world)
    joining = client.join()
    world.run_due()
    syncing = client.joined(joining).sync({client.member_id: b'all'})
    assert not syncing.came
    assert world.state() == 'CompletingRebalance'
    world.flush()
    assert syncing.value.assignment == b'all'
    assert world.state() == 'Stable'


def test_an_assignment_that_a_rebalance_overtook_is_dropped():
    world = World(immediate=False)
    first = Client(world, 'a')
    joining = first.join()
    world.run_due()
    syncing = first.joined(joining).sync({first.member_id: b'all'})
    Client(world, 'b').join()
    assert syncing.code is ErrorCode.REBALANCE_IN_PROGRESS
    world.flush()
    assert world.state() == 'PreparingRebalance'


def test_a_leader_that_syncs_twice_stores_one_assignment():
    world = World(immediate=False)
    client = Client(world)
    joining = client.join()
    world.run_due()
    client.joined(joining)
    first, second = client.sync({client.member_id: b'1'}), client.sync({client.member_id: b'2'})
    assert first.code is ErrorCode.REBALANCE_IN_PROGRESS
    world.flush()
    assert second.value.assignment == b'1'
    assert len(world.partition.stored) == 1


def test_an_assignment_that_cannot_be_stored_makes_the_members_join_again(world):
    from kbroker.base.errors import KafkaError

    client = Client(world)
    joining = client.join()
    world.run_due()
    world.partition.refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    assert client.joined(joining).sync({client.member_id: b'all'}).code is ErrorCode.NOT_COORDINATOR
    assert world.state() == 'PreparingRebalance'
    world.partition.refuse(None)
    client.joined(client.join())
    assert client.sync({client.member_id: b'all'}).value.assignment == b'all'


def test_after_a_restart_members_go_on_where_they_were(world):
    first, second = stable_group(world, Client(world, 'a'), Client(world, 'b'))
    before = world.sees()
    world.restart()
    assert world.sees() == before
    assert first.heartbeat() is second.heartbeat() is ErrorCode.NONE
    assert second.sync().value.assignment == b'b'


def test_after_a_restart_members_have_their_session_timeout_to_show_up(world):
    first, second = stable_group(world, Client(world, 'a'), Client(world, 'b', session_timeout_ms=30_000))
    world.restart()
    world.advance(9_999)
    assert second.heartbeat() is ErrorCode.NONE
    world.advance(1)
    assert first.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert second.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_an_empty_group_is_empty_after_a_restart(world):
    (client,) = stable_group(world, Client(world))
    client.leave()
    before = world.sees()
    world.restart()
    assert world.sees() == before

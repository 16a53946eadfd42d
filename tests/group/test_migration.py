"""Migration between the classic and the consumer protocol. The members of a group change one after the other, so that a
group can have members of both protocols."""

import pytest
from support.worlds.consumer_groups import Consumer, assignment_in, batches_of_types, consumer_group, last_batch
from support.worlds.group_coordinator import GROUP, Client, World, stable_group

from kbroker.base.errors import ErrorCode
from kbroker.client.assignor import decode_assignment, encode_assignment, encode_subscription


@pytest.fixture
def world():
    return world_of()


def world_of(**settings):
    world = World(**{'group_consumer_assignment_interval_ms': 0, 'group_consumer_min_assignment_interval_ms': 0,
                     **settings})
    world.topics.create('t', 4)
    return world


def reader(world, name='c', owned=(), **fields):
    """Return a client that speaks the classic protocol and subscribes to the topic `t`."""
    return Client(world, name, protocols=[('range', encode_subscription(['t'], owned))], **fields)


def stable(world, *clients, assignments=None):
    """Form a stable classic group of the clients. The partitions of the topic `t` are divided between them, or
    `assignments` says how."""
    stable_group(world, *clients)
    # The assignments of `stable_group` are names instead of partitions. The leader therefore joins again, and assigns
    # partitions in the rebalance.
    leader_id = world.groups.describe(GROUP, 'classic').leader_id
    leader = next(client for client in clients if client.member_id == leader_id)
    others = [client for client in clients if client is not leader]
    answers = {leader: leader.join()}
    for client in others:
        answers[client] = client.join()
    world.run_due()
    for client, answer in answers.items():
        client.joined(answer)
    shares = assignments or {client.member_id: encode_assignment([('t', number) for number in range(
        index * 4 // len(clients), (index + 1) * 4 // len(clients))]) for index, client in enumerate(clients)}
    leader_id = world.groups.describe(GROUP, 'classic').leader_id
    syncs = [client.sync(shares if client.member_id == leader_id else None)
             for client in sorted(clients, key=lambda client: client.member_id != leader_id)]
    world.run_due()
    assert [sync.code for sync in syncs] == [ErrorCode.NONE] * len(clients)


def rejoin(world, client, owned):
    """Let a member join again and report that it owns the partitions `owned`. Return the partitions of its new
    assignment."""
    client.protocols = [('range', encode_subscription(['t'], [('t', partition) for partition in owned]))]
    answer = client.join()
    world.run_due()
    client.joined(answer)
    sync = client.sync()
    world.run_due()
    assert sync.code is ErrorCode.NONE
    return {partition for _, partition in decode_assignment(sync.value.assignment)}


def test_an_upgrade_keeps_the_last_assignment_and_the_join_goes_on_in_the_same_batch(world):
    classic = reader(world)
    stable(world, classic)
    generation = classic.generation
    world.commit(('t', 0), 7, **classic.identity)
    a = Consumer(world, 'a', names=['t'])
    assert assignment_in(world, a.join()) == {}
    assert a.epoch == generation + 1
    assert last_batch(world) == ['T2', '5', '3', '7', '6', '8', '5', '3', '7', '7', '6', '8']
    group = consumer_group(world)
    held = group.members[classic.member_id].held
    (partitions,) = held.assigned.values()
    assert (held.epoch, held.previous_epoch, set(partitions)) == (generation, generation, {0, 1, 2, 3})
    assert set(partitions.values()) == {generation}
    assert world.offset(('t', 0)) == 7
    assert classic.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS


def test_partitions_move_between_members_of_both_protocols(world):
    classic = reader(world)
    stable(world, classic)
    a = Consumer(world, 'a', names=['t'])
    a.join()
    kept = rejoin(world, classic, {0, 1, 2, 3})
    assert len(kept) == 2
    assert classic.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert assignment_in(world, a.heartbeat()) is None
    assert rejoin(world, classic, kept) == kept
    assert assignment_in(world, a.heartbeat()) == {'t': {0, 1, 2, 3} - kept}
    assert (classic.heartbeat(), classic.generation) == (ErrorCode.NONE, a.epoch)
    assert consumer_group(world).state_name == 'Stable'


def test_requests_that_wait_are_told_to_rebalance(world):
    first, second = reader(world, 'first'), reader(world, 'second')
    stable(world, first)
    joins = [second.join()]
    a = Consumer(world, 'a', names=['t'])
    assert a.join().code is ErrorCode.NONE
    world.run_due()
    assert [join.code for join in joins] == [ErrorCode.REBALANCE_IN_PROGRESS]
    assert set(consumer_group(world).members) == {first.member_id, second.member_id, 'a'}


def test_a_sync_that_waits_is_told_to_rebalance(world):
    first, second = reader(world, 'first'), reader(world, 'second')
    stable(world, first)
    join = second.join()
    first.joined(first.join())
    world.run_due()
    second.joined(join)
    leader_id = world.groups.describe(GROUP, 'classic').leader_id
    follower = second if leader_id == first.member_id else first
    sync = follower.sync()
    assert Consumer(world, 'a', names=['t']).join().code is ErrorCode.NONE
    world.run_due()
    assert sync.code is ErrorCode.REBALANCE_IN_PROGRESS


def test_classic_members_come_again_while_the_upgrade_is_on_its_way_to_the_disk():
    world = world_of(immediate=False)
    classic = reader(world)
    world.flush()
    answer = classic.join()
    world.run_due()
    classic.joined(answer)
    sync = classic.sync({classic.member_id: encode_assignment([('t', 0)])})
    world.flush()
    world.run_due()
    assert sync.code is ErrorCode.NONE
    joined = Consumer(world, 'a', names=['t']).join()
    world.run_due()
    assert not joined.came
    assert classic.join().code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert classic.heartbeat() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.flush()
    world.run_due()
    again = classic.join()
    world.flush()
    world.run_due()
    assert [joined.code, again.code] == [ErrorCode.NONE, ErrorCode.NONE]
    assert set(consumer_group(world).members) == {classic.member_id, 'a'}


def test_a_crash_in_an_upgrade_leaves_the_classic_group():
    world = world_of(immediate=False)
    classic = reader(world)
    answer = classic.join()
    world.run_due()
    classic.joined(answer)
    sync = classic.sync({classic.member_id: encode_assignment([('t', 0)])})
    world.flush()
    world.run_due()
    assert sync.code is ErrorCode.NONE
    Consumer(world, 'a', names=['t']).join()
    world.run_due()
    world.restart()
    assert world.state() == 'Stable'
    assert classic.heartbeat() is ErrorCode.NONE


def test_an_upgrade_that_is_not_stored_leaves_the_classic_group_which_rebalances(world):
    classic = reader(world)
    stable(world, classic)
    a = Consumer(world, 'a', regex='(')
    assert a.join().code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert world.state() == 'PreparingRebalance'
    answer = classic.join()
    world.run_due()
    assert answer.code is ErrorCode.NONE


@pytest.mark.parametrize('policy', ['disabled', 'downgrade'])
def test_a_policy_may_forbid_upgrades(policy):
    world = world_of(group_consumer_migration_policy=policy)
    classic = reader(world)
    stable(world, classic)
    assert Consumer(world, 'a', names=['t']).join().code is ErrorCode.GROUP_ID_NOT_FOUND
    assert (world.state(), classic.heartbeat()) == ('Stable', ErrorCode.NONE)


@pytest.mark.parametrize('assignment', [b'\0', encode_assignment([('t', 0)])[:-4] + b'\0\0\0\1x'])
def test_an_assignment_that_only_its_assignor_understands_is_not_upgraded(world, assignment):
    classic = reader(world)
    answer = classic.join()
    world.run_due()
    classic.joined(answer)
    classic.sync({classic.member_id: assignment})
    assert Consumer(world, 'a', names=['t']).join().code is ErrorCode.GROUP_ID_NOT_FOUND
    assert (world.state(), classic.heartbeat()) == ('Stable', ErrorCode.NONE)


def test_members_that_are_no_consumers_are_not_upgraded(world):
    classic = Client(world)
    classic.protocol_type = 'connect'
    stable_group(world, classic)
    assert Consumer(world, 'a', names=['t']).join().code is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.state() == 'Stable'


def mixed(world, **fields):
    """Form a stable group of a member that speaks the consumer protocol and one that speaks the classic protocol.
    Return both."""
    a = Consumer(world, 'a', names=['t'], **fields)
    a.join()
    classic = reader(world)
    assert rejoin(world, classic, ()) == set()
    kept = assignment_in(world, a.heartbeat())['t']
    a.heartbeat({'t': kept})
    assert classic.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert rejoin(world, classic, ()) == {0, 1, 2, 3} - kept
    assert consumer_group(world).state_name == 'Stable'
    return a, classic


def test_the_last_member_of_the_consumer_protocol_leaves_a_classic_group_behind(world):
    a, classic = mixed(world)
    epoch = consumer_group(world).epoch
    world.commit(('t', 0), 7, version=9, member_id='a', generation=a.epoch)
    assert a.leave().code is ErrorCode.NONE
    assert last_batch(world) == ['T8', 'T8', 'T7', 'T7', 'T6', 'T5', 'T5', 'T4', 'T3', '2']
    group = world.groups.describe(GROUP, 'classic')
    assert (group.state_name, group.generation, group.leader_id) == ('PreparingRebalance', epoch, classic.member_id)
    assert classic.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    answer = classic.join()
    world.run_due()
    assert (answer.value.leader, answer.value.generation_id) == (classic.member_id, epoch + 1)
    assert world.offset(('t', 0)) == 7


def test_a_downgrade_ends_the_targets_of_members_that_have_none(world):
    a = Consumer(world, 'a', names=['t'])
    a.join()
    idle = Client(world, 'c', protocols=[('range', encode_subscription([], ()))])
    idle.join()
    world.run_due()
    a.leave()
    assert last_batch(world) == ['T8', 'T8', 'T7', 'T7', 'T6', 'T5', 'T5', 'T4', 'T3', '2']


def test_a_restart_after_a_downgrade_finds_the_classic_group(world):
    a, classic = mixed(world)
    a.leave()
    world.restart()
    group = world.groups.describe(GROUP, 'classic')
    assert group.state_name == 'Stable'
    assert len(decode_assignment(group.members[classic.member_id].assignment)) == 2
    assert classic.heartbeat() is ErrorCode.NONE


def test_a_session_that_ends_may_downgrade_the_group(world):
    _, classic = mixed(world)
    for _ in range(10):
        world.advance(5_000)
        if classic.heartbeat() is not ErrorCode.NONE:
            break
    assert world.state() == 'PreparingRebalance'


def test_a_policy_may_forbid_downgrades_and_classic_members_go_on_in_a_consumer_group():
    world = world_of(group_consumer_migration_policy='upgrade')
    a, classic = mixed(world)
    a.leave()
    assert consumer_group(world).classic_count == 1
    assert classic.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert rejoin(world, classic, ()) == {0, 1, 2, 3}
    assert classic.heartbeat() is ErrorCode.NONE


def test_a_classic_member_replaces_the_last_static_one_of_the_consumer_protocol(world):
    a, _ = mixed(world, instance='i')
    a.leave_for_a_while()
    successor = reader(world, 'successor', instance='i')
    answer = successor.join()
    world.run_due()
    assert answer.code is ErrorCode.NONE
    group = world.groups.describe(GROUP, 'classic')
    assert (group.state_name, group.static_member_ids) == ('Stable', {'i': answer.value.member_id})
    assert len(decode_assignment(group.members[answer.value.member_id].assignment)) == 2


def test_a_group_of_both_protocols_survives_a_restart(world):
    a, classic = mixed(world)
    world.restart()
    assert (classic.heartbeat(), assignment_in(world, a.heartbeat())) == (ErrorCode.NONE, None)
    world.advance(9_999)
    assert set(consumer_group(world).members) == {'a', classic.member_id}
    world.advance(1)
    assert set(consumer_group(world).members) == {'a'}


def test_a_classic_member_that_does_not_join_again_in_time_is_fenced(world):
    a, classic = mixed(world)
    b = Consumer(world, 'b', names=['t'])
    b.join()
    for _ in range(6):
        assert classic.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        a.heartbeat()
        b.heartbeat()
        world.advance(5_000)
    assert set(consumer_group(world).members) == {'a', 'b'}


def test_a_classic_member_that_does_not_sync_in_time_is_fenced(world):
    a = Consumer(world, 'a', names=['t'])
    a.join()
    classic = reader(world)
    classic.joined(classic.join())
    for _ in range(6):
        assert classic.member_id in consumer_group(world).members
        classic.heartbeat()
        a.heartbeat()
        world.advance(5_000)
    assert set(consumer_group(world).members) == {'a'}


def test_errors_of_classic_requests_in_a_consumer_group(world):
    a, classic = mixed(world)
    classic.generation -= 1
    assert (classic.heartbeat(), classic.sync().code) == (ErrorCode.ILLEGAL_GENERATION, ErrorCode.ILLEGAL_GENERATION)
    classic.generation += 1
    assert classic.sync(protocol_type='connect').code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert classic.sync(protocol_name='roundrobin').code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    other = Client(world, 'other', protocols=[('roundrobin', encode_subscription(['t']))])
    assert other.join().code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    broken = Client(world, 'broken', protocols=[('range', b'')])
    assert broken.join().code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    as_classic = reader(world)
    as_classic.member_id, as_classic.generation = 'a', a.epoch
    assert as_classic.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert as_classic.sync().code is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_administrator_removes_members_of_any_protocol_in_one_batch(world):
    a, _ = mixed(world)
    b = Consumer(world, 'b', names=['t'])
    b.join()
    before = len(batches_of_types(world))
    as_classic = reader(world)
    as_classic.member_id = 'a'
    assert as_classic.leave() is ErrorCode.NONE
    assert as_classic.leave() is ErrorCode.UNKNOWN_MEMBER_ID
    assert batches_of_types(world)[before:] == [['T8', 'T7', 'T5', '3']]
    assert a.heartbeat().code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_policy_may_keep_classic_members_out():
    world = world_of(group_consumer_migration_policy='disabled')
    Consumer(world, 'a', names=['t']).join()
    assert reader(world, version=3).join().code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_member_may_change_its_protocol_in_place(world):
    _, classic = mixed(world)
    successor = Consumer(world, classic.member_id, names=['t'])
    assert assignment_in(world, successor.join()) == {'t': {
        partition for epochs in consumer_group(world).members[classic.member_id].held.assigned.values()
        for partition in epochs}}
    assert consumer_group(world).classic_count == 0

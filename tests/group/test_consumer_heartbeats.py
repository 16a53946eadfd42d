"""Consumer groups (KIP-848): the steps of the heartbeat."""

import pytest
from support.worlds.consumer_groups import Consumer, assignment_in, batches_of_types, consumer_group, last_batch
from support.worlds.group_coordinator import World

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.messages import ConsumerGroupHeartbeatRequest

HOUR_MS = 3_600_000


def world_of(partitions=2, **settings):
    """Return a world with the topic `t`. By default, the assignment interval is 0, so every heartbeat may compute new
    targets."""
    world = World(**{'group_consumer_assignment_interval_ms': 0, 'group_consumer_min_assignment_interval_ms': 0,
                     **settings})
    world.topics.create('t', partitions)
    return world


def test_a_first_member_gets_everything_at_once():
    world = world_of()
    a = Consumer(world, 'a', names=['t'])
    answer = a.join()
    assert (a.epoch, assignment_in(world, answer)) == (2, {'t': {0, 1}})
    assert batches_of_types(world) == [['5', '3', '7', '6', '8']]
    assert consumer_group(world).state_name == 'Stable'


def test_heartbeats_are_frequent_while_members_may_not_know_their_targets():
    world = world_of()
    a, b = Consumer(world, 'a', names=['t']), Consumer(world, 'b', names=['t'])
    assert a.join().value.heartbeat_interval_ms == 500
    world.advance(5000)
    assert a.heartbeat().value.heartbeat_interval_ms == 5000
    assert b.join().value.heartbeat_interval_ms == 500
    world.advance(5000)
    assert b.heartbeat().value.heartbeat_interval_ms == 500     # it waits for partitions of `a`
    (kept,) = assignment_in(world, a.heartbeat())['t']
    assert a.heartbeat({'t': {kept}}).value.heartbeat_interval_ms == 5000
    assert b.heartbeat().value.heartbeat_interval_ms == 5000


def test_heartbeats_are_never_less_frequent_than_configured():
    world = world_of(group_consumer_heartbeat_interval_ms=400, group_consumer_min_heartbeat_interval_ms=400)
    assert Consumer(world, 'a', names=['t']).join().value.heartbeat_interval_ms == 400


def test_a_topic_that_a_member_reports_twice_counts_with_all_of_its_partitions():
    world = world_of()
    a, b = Consumer(world, 'a', names=['t']), Consumer(world, 'b', names=['t'])
    a.join()
    b.join()
    (kept,) = assignment_in(world, a.heartbeat())['t']
    topic_class = ConsumerGroupHeartbeatRequest.TopicPartitions
    topic_id = world.topics.topic('t').topic_id
    a.heartbeat(topic_partitions=[topic_class(topic_id=topic_id, partitions=[partition])
                                  for partition in (1 - kept, kept)])
    assert a.epoch == 2     # it still owns the partition that it has to give up


def test_partitions_move_when_their_owner_has_given_them_up():
    world = world_of()
    a, b = Consumer(world, 'a', names=['t']), Consumer(world, 'b', names=['t'])
    a.join()
    assert (assignment_in(world, b.join()), b.epoch) == ({}, 3)
    assert consumer_group(world).state_name == 'Reconciling'
    (kept,) = assignment_in(world, a.heartbeat())['t']
    assert a.epoch == 2
    assert (assignment_in(world, a.heartbeat({'t': {kept}})), a.epoch) == (None, 3)
    assert (assignment_in(world, b.heartbeat()), b.epoch) == ({'t': {1 - kept}}, 3)
    assert consumer_group(world).state_name == 'Stable'


def test_an_idle_heartbeat_writes_nothing_and_is_answered_at_once():
    world = world_of(immediate=False)
    a = Consumer(world, 'a', names=['t'])
    a.join()
    world.flush()
    world.run_due()
    stored = world.partition.stored
    answer = a.heartbeat()
    assert answer.came
    assert (assignment_in(world, answer), world.partition.stored) == (None, stored)


def test_nothing_is_answered_before_it_is_durable_and_all_that_wait_share_a_batch():
    world = world_of(immediate=False)
    members = [Consumer(world, name, names=['t']) for name in 'abc']
    first, *others = [member.join() for member in members]
    assert not first.came
    world.flush()
    world.run_due()
    assert first.came
    assert not any(answer.came for answer in others)
    assert len(batches_of_types(world)) == 2
    world.flush()
    world.run_due()
    assert [answer.value.member_epoch for answer in others] == [3, 4]


def test_a_restart_goes_on_where_the_rows_stand():
    world = world_of()
    a, b = Consumer(world, 'a', names=['t']), Consumer(world, 'b', names=['t'])
    a.join()
    b.join()
    a.heartbeat()
    before = vars(consumer_group(world))
    world.restart()
    after = vars(consumer_group(world))
    for name in ('members', 'targets', 'epoch', 'assignment_epoch', 'metadata_hash', 'names', 'subscriptions'):
        assert after[name] == before[name]
    kept = next(iter(consumer_group(world).members['a'].held.assigned.values()))
    assert (assignment_in(world, a.heartbeat({'t': set(kept)})), a.epoch) == (None, 3)
    assert assignment_in(world, b.heartbeat())['t'] == {0, 1} - set(kept)


def test_a_session_that_ends_fences_the_member():
    world = world_of()
    a, b = Consumer(world, 'a', names=['t']), Consumer(world, 'b', names=['t'])
    a.join()
    b.join()
    world.advance(44_000)
    b.heartbeat()
    world.advance(2_000)
    assert last_batch(world) == ['T8', 'T7', 'T5', '3']
    assert list(consumer_group(world).members) == ['b']
    assert a.heartbeat().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert (assignment_in(world, b.heartbeat()), b.epoch) == ({'t': {0, 1}}, 4)


def test_a_member_that_does_not_give_partitions_up_in_time_is_fenced():
    world = world_of()
    a, b = Consumer(world, 'a', names=['t'], rebalance_timeout_ms=10_000), Consumer(world, 'b', names=['t'])
    a.join()
    b.join()
    a.heartbeat()
    world.advance(9_999)
    assert set(consumer_group(world).members) == {'a', 'b'}
    world.advance(1)
    assert set(consumer_group(world).members) == {'b'}


def test_a_member_that_has_given_partitions_up_is_not_fenced():
    world = world_of()
    a, b = Consumer(world, 'a', names=['t'], rebalance_timeout_ms=10_000), Consumer(world, 'b', names=['t'])
    a.join()
    b.join()
    a.heartbeat({'t': assignment_in(world, a.heartbeat())['t']})
    world.advance(20_000)
    assert set(consumer_group(world).members) == {'a', 'b'}


def test_leaving_bumps_the_epoch_and_leaves_the_rows_of_the_group():
    world = world_of()
    a = Consumer(world, 'a', names=['t'])
    a.join()
    answer = a.leave()
    assert (answer.value.member_id, answer.value.member_epoch, answer.value.heartbeat_interval_ms) == ('a', -1, 0)
    assert last_batch(world) == ['T8', 'T7', 'T5', '3', '6']
    group = consumer_group(world)
    assert (group.state_name, group.epoch, group.assignment_epoch, group.metadata_hash) == ('Empty', 3, 3, 0)
    world.restart()
    assert consumer_group(world).epoch == 3


@pytest.mark.parametrize(('epoch', 'owned', 'code'), [
    (5, None, ErrorCode.FENCED_MEMBER_EPOCH),
    (3, None, ErrorCode.NONE),
    (2, None, ErrorCode.FENCED_MEMBER_EPOCH),
    (2, {'t': {2}}, ErrorCode.FENCED_MEMBER_EPOCH),
    (2, {'t': {0}}, ErrorCode.NONE),
    (2, {}, ErrorCode.NONE),
    (1, {}, ErrorCode.FENCED_MEMBER_EPOCH),
])
def test_only_the_epoch_and_the_one_before_with_its_partitions_are_accepted(epoch, owned, code):
    world = world_of()
    a = Consumer(world, 'a', names=['t'])
    a.join()
    a.heartbeat(subscribed_topic_names=['t', 'orders'])
    assert a.epoch == 3
    a.epoch = epoch
    assert a.heartbeat(owned).code is code


def test_a_newcomer_within_the_interval_waits_for_a_later_heartbeat():
    world = world_of(group_consumer_assignment_interval_ms=1000)
    a, b = Consumer(world, 'a', names=['t']), Consumer(world, 'b', names=['t'])
    a.join()
    assert (assignment_in(world, b.join()), b.epoch) == ({}, 2)
    assert consumer_group(world).state_name == 'Assigning'
    world.advance(1000)
    assert consumer_group(world).state_name == 'Assigning'
    a.heartbeat()
    assert consumer_group(world).state_name == 'Reconciling'


def test_the_first_member_after_the_last_has_left_is_assigned_within_the_interval():
    world = world_of(group_consumer_assignment_interval_ms=1000)
    a, b = Consumer(world, 'a', names=['t']), Consumer(world, 'b', names=['t'])
    a.join()
    a.leave()
    world.restart()
    b.join()
    assert consumer_group(world).state_name == 'Stable'


def test_a_change_of_the_assignor_that_most_members_prefer_begins_a_new_epoch():
    world = world_of()
    a, b = Consumer(world, 'a', names=['t'], assignor='uniform'), Consumer(world, 'b', names=['t'])
    a.join()
    b.join()
    epoch = consumer_group(world).epoch
    b.heartbeat(server_assignor='uniform')
    assert consumer_group(world).epoch == epoch
    a.heartbeat(server_assignor='range')        # one vote each: the broker's first assignor stays
    assert consumer_group(world).epoch == epoch
    b.heartbeat(server_assignor='range')
    assert consumer_group(world).epoch == epoch + 1
    world.restart()
    assert consumer_group(world).assignor_votes == {'range': 2}
    a.leave()
    assert consumer_group(world).assignor_votes == {'range': 1}


def test_a_clock_that_was_set_back_delays_no_assignment():
    """After the clock is set back, the time of the last assignment is in the future. The next assignment must not wait
    for it."""
    world = world_of(group_consumer_assignment_interval_ms=1000)
    a, b = Consumer(world, 'a', names=['t']), Consumer(world, 'b', names=['t'])
    a.join()
    world.clock.set_wall_ms(world.clock.wall_ms() - 3 * HOUR_MS)
    b.join()
    assert consumer_group(world).state_name == 'Reconciling'


def test_a_clock_that_was_set_back_does_not_make_heartbeats_frequent():
    world = world_of()
    a = Consumer(world, 'a', names=['t'])
    a.join()
    world.clock.set_wall_ms(world.clock.wall_ms() - 3 * HOUR_MS)
    for _ in range(2):      # the second heartbeat changes nothing
        assert a.heartbeat().value.heartbeat_interval_ms == 5000


def test_a_group_that_is_full_takes_known_members_only():
    world = world_of(group_consumer_max_size=1)
    a = Consumer(world, 'a', names=['t'])
    a.join()
    assert Consumer(world, 'b', names=['t']).join().code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert a.join().code is ErrorCode.NONE


def test_unknown_groups_and_members_are_refused():
    world = world_of()
    a = Consumer(world, 'a', names=['t'])
    a.epoch = 4
    assert a.heartbeat().code is ErrorCode.GROUP_ID_NOT_FOUND
    assert a.leave().code is ErrorCode.GROUP_ID_NOT_FOUND
    Consumer(world, 'b', names=['t']).join()
    a.epoch = 4
    assert a.heartbeat().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert a.leave().code is ErrorCode.UNKNOWN_MEMBER_ID


def test_new_partitions_reach_the_group_with_a_heartbeat():
    world = world_of()
    a = Consumer(world, 'a', names=['t'])
    a.join()
    world.topics.add_partitions('t', 3)
    assert (assignment_in(world, a.heartbeat()), a.epoch) == ({'t': {0, 1, 2}}, 3)
    assert last_batch(world) == ['3', '7', '6', '8']


def test_partitions_of_a_deleted_topic_are_revoked():
    world = world_of()
    a = Consumer(world, 'a', names=['t', 'orders'])
    a.join()
    world.topics.delete('t')
    assert assignment_in(world, a.heartbeat()) == {'orders': {0, 1, 2, 3}}
    assert (a.heartbeat({'orders': {0, 1, 2, 3}}).value.member_epoch, consumer_group(world).state_name) == (3, 'Stable')


def test_a_topic_that_is_created_later_counts_when_it_appears():
    world = world_of()
    a = Consumer(world, 'a', names=['later'])
    assert assignment_in(world, a.join()) == {}
    world.topics.create('later', 2)
    assert assignment_in(world, a.heartbeat()) == {'later': {0, 1}}


def test_a_failed_append_changes_nothing():
    world = world_of(immediate=False)
    a = Consumer(world, 'a', names=['t'])
    a.join()
    world.flush()
    world.run_due()
    world.partition.refuse(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, 'no'))
    answer = Consumer(world, 'b', names=['t']).join()
    world.run_due()
    assert answer.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert list(consumer_group(world).members) == ['a']

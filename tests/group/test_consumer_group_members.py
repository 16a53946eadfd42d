"""Consumer groups (KIP-848): static members, regular expressions, and changes between the types of groups."""

import pytest
from support.worlds.consumer_groups import Consumer, assignment_in, batches_of_types, consumer_group, last_batch
from support.worlds.group_coordinator import GROUP, Client, World, stable_group

from kbroker.base.errors import ErrorCode, KafkaError


@pytest.fixture
def world():
    """Return a world with the topic `t`. The assignment interval is 0, so every heartbeat may compute new targets."""
    made = World(group_consumer_assignment_interval_ms=0, group_consumer_min_assignment_interval_ms=0)
    made.topics.create('t', 2)
    return made


# Static members


def test_a_static_member_that_comes_back_has_its_partitions_at_once(world):
    a, b = Consumer(world, 'a', names=['t'], instance='one'), Consumer(world, 'b', names=['t'])
    a.join()
    b.join()
    kept = assignment_in(world, a.heartbeat())
    a.heartbeat(kept)
    b.heartbeat()
    a.leave_for_a_while()
    assert last_batch(world) == ['8']
    assert consumer_group(world).members['a'].epoch == -2
    again = Consumer(world, 'a2', names=['t'], instance='one')
    assert (assignment_in(world, again.join()), again.epoch) == (kept, 3)
    assert last_batch(world) == ['T8', 'T7', 'T5', '5', '7', '8', '5', '8']
    assert set(consumer_group(world).members) == {'a2', 'b'}
    assert b.heartbeat().value.member_epoch == 3


def test_the_target_of_a_static_member_under_a_new_id_is_written_once_if_it_stays(world):
    a = Consumer(world, 'a', names=['t', 'u'], instance='one')
    a.join()
    a.leave_for_a_while()
    again = Consumer(world, 'a2', names=['t'], instance='one')
    assert assignment_in(world, again.join()) == {'t': {0, 1}}
    assert last_batch(world) == ['T8', 'T7', 'T5', '5', '7', '8', '5', '3', '6', '8']


def test_a_member_that_takes_over_from_a_static_one_is_assigned_once(world):
    away, known = Consumer(world, 's', names=['t'], instance='one'), Consumer(world, 'a', names=['t'])
    away.join()
    known.join()
    away.leave_for_a_while()
    again = Consumer(world, 'a', names=['t', 'u'], instance='one')
    assert assignment_in(world, again.join()) == {'t': {0, 1}}
    assert set(consumer_group(world).members) == {'a'}


def test_a_static_member_that_is_away_is_fenced_when_its_session_ends(world):
    a = Consumer(world, 'a', names=['t'], instance='one')
    a.join()
    a.leave_for_a_while()
    world.advance(44_999)
    assert list(consumer_group(world).members) == ['a']
    world.advance(1)
    assert consumer_group(world).is_empty


def test_the_old_epoch_of_a_static_member_that_is_away_is_fenced(world):
    a = Consumer(world, 'a', names=['t'], instance='one')
    a.join()
    epoch = a.epoch
    a.leave_for_a_while()
    a.epoch = epoch
    assert a.heartbeat().code is ErrorCode.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize('member_id', ['a', 'b'])
def test_an_instance_that_has_not_left_is_not_released(world, member_id):
    Consumer(world, 'a', names=['t'], instance='one').join()
    newcomer = Consumer(world, member_id, names=['t'], instance='one')
    assert newcomer.join().code is ErrorCode.UNRELEASED_INSTANCE_ID


def test_a_known_member_that_joins_again_without_its_instance_keeps_it(world):
    Consumer(world, 'a', names=['t'], instance='one').join()
    assert Consumer(world, 'a', names=['t']).join().code is ErrorCode.NONE
    assert consumer_group(world).instances == {'one': 'a'}


def test_instances_are_fenced_or_unknown(world):
    Consumer(world, 'a', names=['t'], instance='one').join()
    other = Consumer(world, 'b', names=['t'], instance='one')
    other.epoch = 2
    assert other.heartbeat().code is ErrorCode.FENCED_INSTANCE_ID
    assert other.leave().code is ErrorCode.FENCED_INSTANCE_ID
    assert other.leave_for_a_while().code is ErrorCode.FENCED_INSTANCE_ID
    other.instance, other.epoch = 'two', 2
    assert other.heartbeat().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert other.leave().code is ErrorCode.UNKNOWN_MEMBER_ID


# Regular expressions


def test_a_regular_expression_is_resolved_after_the_join_and_assigned_with_the_next_heartbeat(world):
    a = Consumer(world, 'a', regex='t|orders')
    assert (assignment_in(world, a.join()), a.epoch) == ({}, 1)
    assert batches_of_types(world) == [['5', '8'], ['16', '3']]
    assert assignment_in(world, a.heartbeat()) == {'t': {0, 1}, 'orders': {0, 1, 2, 3}}
    assert consumer_group(world).state_name == 'Stable'


def test_a_regular_expression_that_is_not_valid_is_refused(world):
    assert Consumer(world, 'a', regex='(').join().code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert world.groups.list_groups() == []


def test_topics_that_may_not_be_described_do_not_match(world):
    a = Consumer(world, 'a', regex='.*', may_describe=lambda name: name == 't')
    a.join()
    assert assignment_in(world, a.heartbeat()) == {'t': {0, 1}}


def test_a_new_topic_is_found_although_the_clock_was_set_back(world):
    a = Consumer(world, 'a', regex='t.*')
    a.join()
    a.heartbeat()
    world.topics.create('t2', 1)
    world.clock.set_wall_ms(world.clock.wall_ms() - 10_800_000)
    a.heartbeat()
    assert assignment_in(world, a.heartbeat()) == {'t': {0, 1}, 't2': {0}}


def test_a_resolution_that_failed_is_not_repeated_at_once_although_the_clock_was_set_back(world, caplog):
    """After the clock is set back, the time of the last successful resolution is in the future, so it does not prevent
    a new resolution. The time of the failed attempt must prevent it."""
    a = Consumer(world, 'a', regex='t.*')
    a.join()
    a.heartbeat()
    world.topics.create('t2', 1)
    world.clock.set_wall_ms(world.clock.wall_ms() - 10_800_000)
    world.partition.refuse(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, 'refused'))
    for _ in range(3):
        a.heartbeat()
    assert sum('were not stored' in record.getMessage() for record in caplog.records) == 1


def test_a_new_topic_is_found_ten_seconds_after_the_last_resolution(world):
    a = Consumer(world, 'a', regex='t.*')
    a.join()
    a.heartbeat()
    world.topics.create('t2', 1)
    world.advance(10_000)
    a.heartbeat()
    assert assignment_in(world, a.heartbeat()) is None
    world.advance(1)
    a.heartbeat()
    assert assignment_in(world, a.heartbeat()) == {'t': {0, 1}, 't2': {0}}


def test_the_last_subscriber_takes_the_regular_expression_along(world):
    a, b = Consumer(world, 'a', regex='t'), Consumer(world, 'b', regex='t')
    a.join()
    b.join()
    assert last_batch(world)[0] != 'T16'
    a.leave()
    assert last_batch(world) == ['T8', 'T7', 'T5', '3']
    b.leave()
    assert last_batch(world) == ['T8', 'T7', 'T5', 'T16', '3', '6']
    group = consumer_group(world)
    assert (group.regexes, group.resolved, group.names, group.metadata_hash) == ({}, {}, {}, 0)


def test_names_in_place_of_a_regular_expression_end_it(world):
    a = Consumer(world, 'a', regex='orders')
    a.join()
    a.heartbeat()
    assignment_in(world, a.heartbeat(subscribed_topic_names=['t'], subscribed_topic_regex=''))
    assert last_batch(world) == ['5', 'T16', '3', '7', '6', '8']
    assert set(consumer_group(world).names) == {'t'}


def test_a_restart_keeps_what_an_expression_matched(world):
    a = Consumer(world, 'a', regex='t')
    a.join()
    a.heartbeat()
    world.restart()
    assert set(consumer_group(world).names) == {'t'}
    assert (assignment_in(world, a.heartbeat()), a.epoch) == (None, 2)


# Types


def test_an_empty_classic_group_becomes_a_consumer_group_and_keeps_its_offsets(world):
    classic = Client(world)
    stable_group(world, classic)
    assert Consumer(world, 'a', names=['t']).join().code is ErrorCode.GROUP_ID_NOT_FOUND
    classic.leave()
    world.run_due()
    world.commit(('t', 0), 7)
    assert Consumer(world, 'a', names=['t']).join().code is ErrorCode.NONE
    assert last_batch(world)[:2] == ['T2', '5']
    assert world.offset(('t', 0)) == 7
    world.restart()
    assert [group.group_type for group in world.groups.list_groups()] == ['consumer']
    assert world.offset(('t', 0)) == 7


def test_offsets_of_no_members_become_those_of_a_consumer_group(world):
    world.commit(('t', 0), 7)
    a = Consumer(world, 'a', names=['t'])
    assert a.join().code is ErrorCode.NONE
    assert world.offset(('t', 0)) == 7


def test_members_that_are_no_consumers_join_a_consumer_group_only_when_that_is_empty(world):
    a = Consumer(world, 'a', names=['t'])
    a.join()
    classic = Client(world, version=3)
    classic.protocol_type = 'connect'
    assert classic.join().code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    a.leave()
    answer = classic.join()
    world.run_due()
    assert answer.code is ErrorCode.NONE
    assert last_batch(world) == ['T6', 'T4', 'T3']
    assert [group.group_type for group in world.groups.list_groups()] == ['classic']


def test_a_classic_join_that_no_group_takes_leaves_an_empty_consumer_group_alone(world):
    a = Consumer(world, 'a', names=['t'])
    a.join()
    a.leave()
    stored = world.partition.stored
    assert Client(world, version=3, session_timeout_ms=1).join().code is ErrorCode.INVALID_SESSION_TIMEOUT
    unknown = Client(world, version=3)
    unknown.member_id = 'b'
    assert unknown.join().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.partition.stored == stored


def test_classic_requests_find_no_member_in_a_consumer_group(world):
    Consumer(world, 'a', names=['t']).join()
    classic = Client(world)
    classic.member_id, classic.generation = 'a', 2
    assert classic.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert classic.sync().code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_missed_its_session_while_the_broker_was_down_has_its_full_time(world):
    a = Consumer(world, 'a', names=['t'])
    a.join()
    world.advance(40_000)
    world.restart()
    world.advance(44_999)
    assert list(consumer_group(world).members) == ['a']
    world.advance(1)
    assert consumer_group(world).is_empty
    assert world.groups.describe(GROUP, 'consumer').state_name == 'Empty'

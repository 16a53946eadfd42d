"""Share groups (KIP-932): heartbeats of members, initialization of share states, and administration of offsets."""
from __future__ import annotations

import pytest
from support.worlds.consumer_groups import Consumer, assignment_in, batches_of_types, last_batch
from support.worlds.group_coordinator import GROUP, Answer, World
from support.worlds.share_groups import Sharer, share_group

from kbroker.base.errors import ErrorCode
from kbroker.group.commits import Commit
from kbroker.group.share.rows import ShareKey


def world_of(partitions=3, **settings):
    """Return a world with the topic `t`. By default, the assignment interval is 0, so every heartbeat may compute new
    targets."""
    world = World(**{'group_share_assignment_interval_ms': 0, 'group_share_min_assignment_interval_ms': 0, **settings})
    world.topics.create('t', partitions)
    return world


def topic_id(world, name='t'):
    return world.topics.topic(name).topic_id


def state(world, partition=0, name='t'):
    return world.groups.share_states.summary(ShareKey(GROUP, topic_id(world, name), partition))


def do(world, operation, *arguments):
    answer = Answer()
    answer.attempt(lambda: operation(*arguments, answer.completion()))
    world.run_due()
    return answer


def alter(world, starts, group_id=GROUP):
    return do(world, world.groups.share_offsets(group_id).alter, group_id,
              {(topic_id(world), partition): offset for partition, offset in starts.items()})


def delete_offsets(world, *names, group_id=GROUP):
    return do(world, world.groups.share_offsets(group_id).delete, group_id, [topic_id(world, name) for name in names])


def test_a_first_member_gets_its_partitions_with_the_second_heartbeat():
    world = world_of()
    a = Sharer(world, 'a', 't')
    joined = a.join()
    assert (assignment_in(world, joined), a.epoch, joined.value.heartbeat_interval_ms) == ({}, 2, 500)
    assert batches_of_types(world) == [['10', '11', '13', '12', '14', '15']]
    assert state(world).state_epoch == 2
    assert (assignment_in(world, a.heartbeat()), a.epoch) == ({'t': {0, 1, 2}}, 3)
    assert last_batch(world) == ['11', '13', '12', '14']
    assert assignment_in(world, a.heartbeat()) is None
    assert len(batches_of_types(world)) == 2


def test_several_members_share_partitions_and_nothing_is_revoked():
    world = world_of(partitions=1)
    a, b = Sharer(world, 'a', 't'), Sharer(world, 'b', 't')
    a.join()
    a.heartbeat()
    assert (assignment_in(world, b.join()), b.epoch) == ({'t': {0}}, 4)
    assert (assignment_in(world, a.heartbeat()), a.epoch) == (None, 4)
    assert share_group(world).state_name == 'Stable'


def test_nothing_is_assigned_before_its_share_state_is_durable():
    world = world_of(immediate=False)
    answer = Sharer(world, 'a', 't').join()
    world.run_due()
    assert not answer.came
    assert world.partition.stored == []
    world.topics.get('__share_group_state', 0).flush()
    world.run_due()
    world.flush()
    world.run_due()
    assert assignment_in(world, answer) == {}


def test_added_partitions_and_new_topics_are_initialized_and_assigned():
    world = world_of(partitions=1)
    a = Sharer(world, 'a', 't', 'later')
    a.join()
    a.heartbeat()
    world.topics.add_partitions('t', 2)
    world.topics.create('later', 1)
    assert assignment_in(world, a.heartbeat()) is None
    assert assignment_in(world, a.heartbeat()) == {'t': {0, 1}, 'later': {0}}


def test_partitions_of_a_known_topic_start_at_0_and_those_of_a_new_topic_by_the_configs():
    """Under `share.auto.offset.reset=latest`, the group once missed the records that were produced to a new partition
    before its assignment."""
    world = world_of(partitions=1)
    a = Sharer(world, 'a', 't', 'later')
    a.join()
    a.heartbeat()
    world.topics.add_partitions('t', 3)
    world.topics.create('later', 1)
    a.heartbeat()
    assert [state(world, partition).start_offset for partition in range(3)] == [-1, 0, 0]
    assert state(world, 0, 'later').start_offset == -1


def test_a_deleted_topic_leaves_the_assignment_and_the_row():
    world = world_of()
    world.topics.create('u', 1)
    a = Sharer(world, 'a', 't', 'u')
    a.join()
    a.heartbeat()
    world.topics.delete('u')
    assert assignment_in(world, a.heartbeat()) == {'t': {0, 1, 2}}
    assert [each.name for each in share_group(world).initialized.values()] == ['t']
    stored = len(batches_of_types(world))
    a.heartbeat()
    assert len(batches_of_types(world)) == stored


def test_a_restart_goes_on_where_the_rows_stand():
    world = world_of()
    a = Sharer(world, 'a', 't')
    a.join()
    a.heartbeat()
    before = vars(share_group(world))
    world.restart()
    after = vars(share_group(world))
    for name in ('members', 'targets', 'epoch', 'assignment_epoch', 'metadata_hash', 'names', 'initialized'):
        assert after[name] == before[name]
    assert (assignment_in(world, a.heartbeat()), a.epoch) == (None, 3)
    world.advance(46_000)
    assert share_group(world).state_name == 'Empty'


def test_a_changed_subscription_is_told_at_once():
    world = world_of(partitions=1)
    world.topics.create('u', 1)
    a = Sharer(world, 'a', 't', 'u')
    a.join()
    a.heartbeat()
    assert assignment_in(world, a.heartbeat(subscribed_topic_names=['u'])) == {'u': {0}}
    assert assignment_in(world, a.heartbeat(subscribed_topic_names=['u'])) == {'u': {0}}


def test_a_session_that_ends_fences_the_member():
    world = world_of()
    a = Sharer(world, 'a', 't')
    a.join()
    world.advance(45_000)
    assert last_batch(world) == ['T14', 'T13', 'T10', '11', '12']
    assert a.heartbeat().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert share_group(world).state_name == 'Empty'


def test_the_first_member_after_the_last_has_left_is_assigned_within_the_interval():
    world = world_of(group_share_assignment_interval_ms=1000)
    a, b = Sharer(world, 'a', 't'), Sharer(world, 'b', 't')
    a.join()
    a.leave()
    world.restart()
    assert assignment_in(world, b.join())['t']


def test_leaving_removes_the_member():
    world = world_of()
    a = Sharer(world, 'a', 't')
    a.join()
    answer = a.leave()
    assert (answer.value.member_id, answer.value.member_epoch) == ('a', -1)
    assert last_batch(world) == ['T14', 'T13', 'T10', '11', '12']
    assert a.leave().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert Sharer(world, 'a', group_id='none').leave().code is ErrorCode.GROUP_ID_NOT_FOUND


def test_the_epoch_before_is_good_enough_and_others_are_fenced():
    world = world_of()
    a = Sharer(world, 'a', 't')
    a.join()
    a.heartbeat()
    assert a.heartbeat(member_epoch=2).code is ErrorCode.NONE
    for epoch in (1, 4):
        assert a.heartbeat(member_epoch=epoch).code is ErrorCode.FENCED_MEMBER_EPOCH
    assert assignment_in(world, a.join()) == {'t': {0, 1, 2}}
    assert Sharer(world, 'b', 't').heartbeat(member_epoch=3).code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_full_group_takes_no_more_members():
    world = world_of(group_share_max_size=1)
    a = Sharer(world, 'a', 't')
    a.join()
    assert Sharer(world, 'b', 't').join().code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert a.join().code is ErrorCode.NONE


def test_groups_of_other_kinds_stay_what_they_are():
    world = world_of()
    Sharer(world, 'a', 't').join()
    consumer = Consumer(world, 'c', names=['t'])
    assert consumer.join().code is ErrorCode.GROUP_ID_NOT_FOUND
    other = Consumer(world, 'c', names=['t'], group_id='g2')
    other.join()
    other.leave()
    assert Sharer(world, 'a', 't', group_id='g2').join().code is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize('check', ['check_commit', 'check_transactional_commit'])
def test_a_share_group_takes_no_offsets(check):
    world = world_of()
    Sharer(world, 'a', 't').join()
    with pytest.raises(Exception) as raised:
        getattr(share_group(world), check)(Commit(GROUP, {}), 9)
    assert raised.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_are_altered_in_a_group_without_members_only():
    world = world_of()
    assert alter(world, {1: 7}).value == {}
    assert batches_of_types(world) == [['15']]
    assert (state(world, 1).start_offset, state(world, 1).state_epoch, state(world, 0)) == (7, 1, None)
    a = Sharer(world, 'a', 't')
    assert assignment_in(world, a.join()) == {'t': {1}}
    assert assignment_in(world, a.heartbeat()) == {'t': {0, 1, 2}}
    assert [state(world, partition).start_offset for partition in range(3)] == [0, 7, 0]
    assert alter(world, {0: 1}).code is ErrorCode.NON_EMPTY_GROUP
    a.leave()
    assert alter(world, {0: 1, 1: 2}).value == {}
    assert [state(world, partition).start_offset for partition in range(3)] == [1, 2, 0]


def test_deleted_offsets_begin_again():
    world = world_of()
    a = Sharer(world, 'a', 't')
    a.join()
    assert delete_offsets(world, 't').code is ErrorCode.NON_EMPTY_GROUP
    a.leave()
    assert delete_offsets(world, 't', 'orders').value == {topic_id(world)}
    assert (state(world), share_group(world).initialized) == (None, {})
    assert delete_offsets(world, 't').value == set()
    assert delete_offsets(world, 't', group_id='none').code is ErrorCode.GROUP_ID_NOT_FOUND
    a.join()
    assert state(world) is not None


def test_a_group_that_never_had_a_share_state_answers_no_topic():
    world = world_of()
    a = Sharer(world, 'a', 'unknown')
    a.join()
    a.leave()
    written = len(batches_of_types(world))
    for _ in range(2):
        answer = delete_offsets(world, 't')
        assert (answer.came, answer.error, answer.value) == (True, None, None)
    assert len(batches_of_types(world)) == written


def test_a_deleted_group_leaves_no_share_state():
    world = world_of()
    a = Sharer(world, 'a', 't')
    a.join()
    assert do(world, world.groups.delete_group, GROUP).code is ErrorCode.NON_EMPTY_GROUP
    a.leave()
    deleted = do(world, world.groups.delete_group, GROUP)
    assert (deleted.came, deleted.error) == (True, None)
    assert batches_of_types(world)[-2:] == [['15'], ['T12', 'T15', 'T11']]
    assert state(world) is None
    assert not [group for group in world.groups.list_groups() if group.group_id == GROUP]
    assert world.groups.memory.held_bytes == 0


def test_a_share_group_does_not_expire():
    world = world_of()
    a = Sharer(world, 'a', 't')
    a.join()
    a.leave()
    world.advance(8 * 24 * 60 * 60 * 1000)
    assert share_group(world).state_name == 'Empty'

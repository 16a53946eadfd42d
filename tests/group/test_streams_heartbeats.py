"""Streams groups (KIP-1071): the steps of the heartbeat."""

import pytest
from support.worlds.consumer_groups import Consumer, batches_of_types, last_batch
from support.worlds.group_coordinator import GROUP, Answer, World
from support.worlds.streams_groups import StreamsClient, active_tasks, statuses, streams_group, topology

from kbroker.base.errors import ErrorCode
from kbroker.group.streams.member import OFFSET_BYTES, DescriptionEpochs
from kbroker.group.streams.topology import Status
from kbroker.protocol.messages import StreamsGroupHeartbeatRequest


def world_of(partitions=2, delay_ms=0, **settings):
    """Return a world with the topic `t`. By default, the assignment interval is 0, so every heartbeat may compute new
    targets."""
    world = World(**{'group_streams_assignment_interval_ms': 0, 'group_streams_min_assignment_interval_ms': 0,
                     'group_streams_initial_rebalance_delay_ms': delay_ms, **settings})
    world.topics.create('t', partitions)
    return world


def test_a_first_member_gets_all_tasks_at_once_without_a_delay():
    world = world_of()
    a = StreamsClient(world, 'a')
    answer = a.join()
    assert (a.epoch, active_tasks(answer), statuses(answer)) == (2, {'0': {0, 1}}, {})
    assert batches_of_types(world) == [['19', '23', '17', '21', '20', '22']]
    assert streams_group(world).state_name == 'Stable'


def test_a_new_group_waits_for_more_members():
    world = world_of(delay_ms=3000)
    a, b = StreamsClient(world, 'a'), StreamsClient(world, 'b')
    answer = a.join()
    assert (a.epoch, active_tasks(answer)) == (1, {})
    assert statuses(answer) == {
        Status.ASSIGNMENT_DELAYED: 'Assignment delayed due to the configured initial rebalance delay.'}
    assert last_batch(world) == ['19', '23', '17', '22']
    b.join()
    world.advance(3000)
    assert last_batch(world) == ['21', '21', '20']
    assert len(active_tasks(a.heartbeat({}))['0']) == len(active_tasks(b.heartbeat({}))['0']) == 1
    assert streams_group(world).state_name == 'Stable'


def test_a_task_moves_when_its_owner_has_given_it_up():
    world = world_of()
    a, b = StreamsClient(world, 'a'), StreamsClient(world, 'b')
    a.join()
    assert (active_tasks(b.join()), b.epoch) == ({}, 3)
    (kept,) = active_tasks(a.heartbeat({'0': {0, 1}}))['0']
    assert active_tasks(b.heartbeat({})) is None
    assert active_tasks(a.heartbeat({'0': {kept}})) is None
    assert (a.epoch, active_tasks(b.heartbeat({}))) == (3, {'0': {1 - kept}})
    assert streams_group(world).state_name == 'Stable'


def test_a_group_without_its_source_topics_is_not_ready_until_they_exist():
    world = world_of()
    a = StreamsClient(world, 'a', declared=topology(sources=('later',)))
    answer = a.join()
    assert (active_tasks(answer), statuses(answer)) == ({}, {
        Status.MISSING_SOURCE_TOPICS: 'Source topics later are missing.'})
    assert (streams_group(world).state_name, a.heartbeat({}).code) == ('NotReady', ErrorCode.NONE)
    world.topics.create('later', 3)
    assert active_tasks(a.heartbeat({})) == {'0': {0, 1, 2}}


def test_missing_changelogs_have_to_be_created():
    world = world_of()
    a = StreamsClient(world, 'a', declared=topology(changelogs=('log',)))
    assert statuses(a.join()) == {Status.MISSING_INTERNAL_TOPICS: 'Internal topics are missing: log'}
    world.topics.create('log', 2)
    assert active_tasks(a.heartbeat({})) == {'0': {0, 1}}


def test_another_topology_is_refused_and_an_older_one_is_stale():
    world = world_of()
    StreamsClient(world, 'a', declared=topology(1)).join()
    assert StreamsClient(world, 'b', declared=topology(1, ('orders',))).join().code is ErrorCode.INVALID_REQUEST
    assert Status.STALE_TOPOLOGY in statuses(StreamsClient(world, 'c', declared=topology(0)).join())


def test_members_of_one_process_never_have_a_task_twice():
    world = world_of(group_streams_num_standby_replicas=1)
    world.topics.create('log', 2)
    declared = topology(changelogs=('log',))
    a, b = (StreamsClient(world, name, process='p', declared=declared) for name in 'ab')
    a.join()
    b.join()
    for targets in streams_group(world).targets.values():
        assert all(role == 'active' for role, _ in targets)


def test_a_restart_goes_on_where_the_rows_stand():
    world = world_of()
    a, b = StreamsClient(world, 'a'), StreamsClient(world, 'b')
    a.join()
    b.join()
    a.heartbeat({'0': {0, 1}})
    before = vars(streams_group(world))
    world.restart()
    after = vars(streams_group(world))
    for name in ('members', 'targets', 'epoch', 'assignment_epoch', 'metadata_hash', 'names', 'topology',
                 'validated_epoch', 'assignment_configs'):
        assert after[name] == before[name], name
    for name in ('_active', '_in_process'):
        assert after[name]._held == before[name]._held != {}, name
    kept = next(iter(streams_group(world).members['a'].held.assigned.values()))
    a.heartbeat({'0': set(kept)})
    assert active_tasks(b.heartbeat({})) == {'0': {0, 1} - set(kept)}


def test_a_session_that_ends_and_a_leave_fence_the_member():
    world = world_of()
    a, b = StreamsClient(world, 'a'), StreamsClient(world, 'b')
    a.join()
    world.advance(44_000)
    b.join()
    world.advance(2_000)
    assert last_batch(world) == ['T22', 'T21', 'T19', '17']
    assert a.heartbeat().code is ErrorCode.UNKNOWN_MEMBER_ID
    answer = b.leave()
    assert (answer.value.member_id, answer.value.member_epoch) == ('b', -1)
    assert streams_group(world).state_name == 'Empty'


def test_the_first_member_after_the_last_has_left_is_assigned_within_the_interval():
    world = world_of(group_streams_assignment_interval_ms=1000)
    a, b = StreamsClient(world, 'a'), StreamsClient(world, 'b')
    a.join()
    a.leave()
    assert last_batch(world) == ['T22', 'T21', 'T19', '17', '20']
    world.restart()
    assert active_tasks(b.join()) == {'0': {0, 1}}


def test_the_epochs_of_topology_descriptions_in_a_row_of_kafka_stay_in_the_rows_that_replace_it():
    world = world_of()
    a, b = StreamsClient(world, 'a'), StreamsClient(world, 'b')
    a.join()
    key, value = streams_group(world).epoch_rows(2, 0)[0]
    value.stored_description_topology_epoch, value.failed_description_topology_epoch = 4, 5
    streams_group(world).apply(key, value)
    b.join()
    a.leave()
    world.restart()
    assert streams_group(world).described == DescriptionEpochs(stored=4, failed=5)


def test_a_member_that_does_not_give_tasks_up_in_time_is_fenced():
    world = world_of()
    a, b = StreamsClient(world, 'a', rebalance_timeout_ms=10_000), StreamsClient(world, 'b')
    a.join()
    b.join()
    a.heartbeat({'0': {0, 1}})
    world.advance(10_000)
    assert set(streams_group(world).members) == {'b'}


def test_a_shutdown_is_reported_to_all_until_the_group_is_empty():
    world = world_of()
    a, b = StreamsClient(world, 'a'), StreamsClient(world, 'b')
    a.join()
    b.join()
    assert Status.SHUTDOWN_APPLICATION in statuses(a.heartbeat(shutdown_application=True))
    assert statuses(b.heartbeat())[Status.SHUTDOWN_APPLICATION].startswith('Streams group member a ')
    a.leave()
    b.leave()
    assert statuses(b.join()) == {}


def test_a_member_that_leaves_can_request_the_shutdown():
    """A client that shuts its application down may leave before its next heartbeat. The broker forgot such a request,
    and the other instances went on."""
    world = world_of()
    a, b = StreamsClient(world, 'a'), StreamsClient(world, 'b')
    a.join()
    b.join()
    a.send(member_epoch=-1, shutdown_application=True)
    assert statuses(b.heartbeat())[Status.SHUTDOWN_APPLICATION].startswith('Streams group member a ')
    b.leave()
    assert statuses(b.join()) == {}


def test_a_member_that_was_removed_can_request_the_shutdown_while_it_leaves():
    """The broker forgot the request, because the group does not have the member. Kafka keeps it."""
    world = world_of()
    a, b = StreamsClient(world, 'a'), StreamsClient(world, 'b')
    b.join()
    assert a.send(member_epoch=-1, shutdown_application=True).error == ErrorCode.UNKNOWN_MEMBER_ID
    assert statuses(b.heartbeat())[Status.SHUTDOWN_APPLICATION].startswith('Streams group member a ')


def test_a_shutdown_that_is_requested_of_an_empty_group_is_reported_to_the_next_member():
    """As in Kafka, only the removal of the last member ends a request. A join does not."""
    world = world_of()
    a, b = StreamsClient(world, 'a'), StreamsClient(world, 'b')
    a.join()
    a.leave()
    a.send(member_epoch=-1, shutdown_application=True)
    assert statuses(b.join())[Status.SHUTDOWN_APPLICATION].startswith('Streams group member a ')


def test_an_empty_group_is_deleted_with_all_its_rows():
    world = world_of()
    a = StreamsClient(world, 'a')
    a.join()
    a.leave()
    world.groups.delete_group(GROUP, Answer().completion())
    world.run_due()
    assert last_batch(world) == ['T20', 'T17', 'T23']
    world.restart()
    assert not world.groups.list_groups()


@pytest.mark.parametrize(('epoch', 'code'), [
    (4, ErrorCode.STALE_MEMBER_EPOCH), (3, ErrorCode.NONE), (2, ErrorCode.NONE), (1, ErrorCode.STALE_MEMBER_EPOCH),
])
def test_commits_with_an_older_epoch_are_good_for_tasks_held_since_then(epoch, code):
    world = world_of(partitions=1)
    a, b = StreamsClient(world, 'a'), StreamsClient(world, 'b')
    a.join()
    b.join()
    a.heartbeat({'0': {0}})
    assert a.epoch == 3
    answer = world.commit(('t', 0), 5, version=9, member_id='a', generation=epoch)
    world.run_due()
    assert answer.code is code


@pytest.mark.parametrize(('epoch', 'owned', 'code'), [
    (3, None, ErrorCode.FENCED_MEMBER_EPOCH), (2, None, ErrorCode.NONE), (1, None, ErrorCode.FENCED_MEMBER_EPOCH),
])
def test_a_wrong_epoch_is_fenced(epoch, owned, code):
    world = world_of()
    a = StreamsClient(world, 'a')
    a.join()
    a.epoch = epoch
    assert a.heartbeat(owned).code is code


def test_a_task_that_the_topology_does_not_have_is_refused():
    world = world_of()
    a = StreamsClient(world, 'a')
    a.join()
    assert a.heartbeat({'0': {2}}).code is ErrorCode.INVALID_REQUEST
    assert a.heartbeat({'1': {0}}).code is ErrorCode.INVALID_REQUEST


def endpoint(host):
    return StreamsGroupHeartbeatRequest.Endpoint(host=host, port=65_535)


def endpoints_in(answer):
    """Return (endpoint epoch, partitions) from an answer. `partitions` maps the host of each endpoint to its active
    partitions; it is None if the answer has no list of endpoints."""
    endpoints = answer.value.partitions_by_user_endpoint
    return answer.value.endpoint_information_epoch, None if endpoints is None else {
        each.user_endpoint.host: [(topic.topic, topic.partitions) for topic in each.active_partitions]
        for each in endpoints}


# Static members


def tag(key):
    return StreamsGroupHeartbeatRequest.KeyValue(key=key, value='a')


def restarted(world, member_id='a2', instance='one', **options):
    return StreamsClient(world, member_id, **{'process': 'process-a', **options}, instance=instance)


def test_a_static_member_that_comes_back_has_its_tasks_at_once_without_a_new_epoch():
    world = world_of()
    a, b = StreamsClient(world, 'a', instance='one'), StreamsClient(world, 'b')
    a.join()
    b.join()
    kept = active_tasks(a.heartbeat({'0': {0, 1}}))
    a.heartbeat(kept)
    b.heartbeat({})
    epoch = streams_group(world).epoch
    away = a.leave_for_a_while()
    assert (away.value.member_id, away.value.member_epoch, last_batch(world)) == ('a', -2, ['22'])
    world.restart()
    again = restarted(world)
    assert active_tasks(again.join()) == kept
    assert last_batch(world) == ['T22', 'T21', 'T19', '19', '21', '22', '19', '22']
    assert (streams_group(world).epoch, again.epoch, sorted(streams_group(world).members)) == (
        epoch, epoch, ['a2', 'b'])
    assert a.heartbeat().code is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize('change', [
    {'process_id': 'other'}, {'rack_id': 'r'}, {'client_tags': [tag('zone')]},
    {'topology': topology(0)}])
def test_a_static_member_that_comes_back_otherwise_begins_a_new_epoch(change):
    world = world_of()
    a = StreamsClient(world, 'a', declared=topology(1), instance='one')
    a.join()
    a.leave_for_a_while()
    again = restarted(world, declared=topology(1))
    again.join(**change)
    assert (streams_group(world).epoch, again.epoch) == (3, 3)


def test_an_instance_that_has_not_left_is_not_released_and_an_unknown_one_is_no_member():
    world = world_of()
    StreamsClient(world, 'a', instance='one').join()
    assert restarted(world).join().code is ErrorCode.UNRELEASED_INSTANCE_ID
    stranger = restarted(world, instance='two')
    stranger.epoch = 2
    assert stranger.heartbeat().code is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.leave_for_a_while().code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_stays_away_is_fenced_when_its_session_ends():
    world = world_of()
    a = StreamsClient(world, 'a', instance='one')
    a.join()
    a.leave_for_a_while()
    world.advance(45_000)
    assert streams_group(world).state_name == 'Empty'


def test_a_full_group_lets_a_static_member_come_back():
    world = world_of(group_streams_max_size=1)
    a = StreamsClient(world, 'a', instance='one')
    a.join()
    a.leave_for_a_while()
    assert StreamsClient(world, 'b').join().code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert restarted(world).join().code is ErrorCode.NONE


# Offsets of tasks


def offsets(numbers, subtopology='0'):
    """Return the offsets of tasks, from a mapping of task numbers to offsets."""
    return [StreamsGroupHeartbeatRequest.TaskOffset(subtopology_id=subtopology, partition=number, offset=offset)
            for number, offset in numbers.items()]


def test_a_member_that_has_reported_the_offset_of_a_task_gets_it_when_its_owner_leaves():
    world = world_of(partitions=1)
    a, b, c = (StreamsClient(world, name) for name in 'abc')
    a.join()
    b.join()
    c.join(task_offsets=offsets({0: 70}))
    a.leave()
    b.heartbeat({})
    assert {name: bool(target) for name, target in streams_group(world).targets.items()} == {'b': False, 'c': True}


def test_offsets_stay_until_the_member_reports_others_or_leaves():
    world = world_of()
    a = StreamsClient(world, 'a')
    a.join(task_offsets=offsets({0: 8}))
    assert streams_group(world).task_offsets == {}  # as in Kafka, the join that creates the group does not count
    a.heartbeat(task_offsets=offsets({0: 1, 1: 2}), task_end_offsets=offsets({5: 6}, 'any'))
    with_three = streams_group(world).held_bytes
    both = {'a': ({'0': {0: 1, 1: 2}}, {'any': {5: 6}})}
    assert streams_group(world).task_offsets == both
    a.heartbeat({})
    assert streams_group(world).task_offsets == both
    a.heartbeat(task_offsets=offsets({0: 9}))
    assert streams_group(world).task_offsets == {'a': ({'0': {0: 9}}, {'any': {5: 6}})}
    assert streams_group(world).held_bytes == with_three - OFFSET_BYTES
    b = StreamsClient(world, 'b')
    b.join()
    a.leave()
    assert streams_group(world).task_offsets == {}
    assert streams_group(world).copy().held_bytes == streams_group(world).held_bytes


@pytest.mark.parametrize('name', ['task_offsets', 'task_end_offsets'])
def test_two_offsets_of_a_task_are_refused(name):
    world = world_of()
    a = StreamsClient(world, 'a')
    a.join()
    twice = offsets({0: 1}) * 2
    assert a.heartbeat(**{name: twice}).code is ErrorCode.INVALID_REQUEST
    assert a.heartbeat({}, **{name: offsets({0: 1, 1: 1})}).code is ErrorCode.NONE


def test_offsets_without_memory_for_them_are_refused():
    world = world_of(kbroker_group_memory_max_bytes=1024 * 1024)
    a = StreamsClient(world, 'a')
    a.join()
    many = dict.fromkeys(range(100_000), 0)
    assert a.heartbeat(task_offsets=offsets(many)).code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert streams_group(world).task_offsets == {}


def test_a_member_without_a_required_tag_is_told_so_in_every_answer():
    world = world_of(group_streams_rack_aware_assignment_tags='zone,rack')
    a = StreamsClient(world, 'a')
    tags = [tag('zone')]
    expected = {Status.MISSING_CLIENT_TAGS: 'Missing required client tags for rack-aware standby assignment: [rack]. '
                                            "Configure them via 'client.tag.<tagKey>' in your Streams config."}
    assert statuses(a.join(client_tags=tags)) == statuses(a.heartbeat()) == expected
    assert streams_group(world).assignment_configs == {
        'num.standby.replicas': '0', 'rack.aware.assignment.tags': 'zone,rack'}
    tags.append(tag('rack'))
    assert statuses(a.join(client_tags=tags)) == {}


def test_endpoints_are_sent_to_a_client_that_does_not_know_them():
    world = world_of()
    a, b = StreamsClient(world, 'a'), StreamsClient(world, 'b')
    assert endpoints_in(a.join(user_endpoint=endpoint('x'), endpoint_information_epoch=-1)) == (
        0, {'x': [('t', [0, 1])]})
    assert endpoints_in(a.heartbeat(endpoint_information_epoch=0)) == (0, None)
    assert endpoints_in(b.join(endpoint_information_epoch=-1)) == (0, {'x': [('t', [0, 1])]})
    b.leave()
    a.leave()
    assert endpoints_in(b.join(endpoint_information_epoch=-1)) == (0, {})


def test_the_state_of_the_endpoints_has_a_new_number_when_a_member_with_an_endpoint_joins_or_gets_other_tasks():
    world = world_of()
    a, b = StreamsClient(world, 'a'), StreamsClient(world, 'b')
    a.join(user_endpoint=endpoint('x'))
    assert endpoints_in(b.join()) == (0, None)
    number, endpoints = endpoints_in(a.heartbeat({}))
    assert (number, len(endpoints['x'][0][1])) == (1, 1)
    kept = set(endpoints['x'][0][1])
    assert endpoints_in(a.heartbeat({'0': kept}, endpoint_information_epoch=1)) == (1, None)
    assert endpoints_in(b.heartbeat({}, endpoint_information_epoch=1)) == (1, None)
    assert set(endpoints_in(b.join(user_endpoint=endpoint('y')))[1]) == {'x', 'y'}
    assert endpoints_in(b.leave()) == (0, None)


def test_a_group_of_another_kind_is_not_found_and_an_empty_classic_one_is_replaced():
    world = world_of()
    Consumer(world, 'c', names=['t']).join()
    assert StreamsClient(world, 'a').join().code is ErrorCode.GROUP_ID_NOT_FOUND
    world.commit(('t', 0), 7, group_id='other')
    world.run_due()
    a = StreamsClient(world, 'a', group_id='other')
    assert a.join().code is ErrorCode.NONE
    assert (streams_group(world, 'other').state_name, world.offset(('t', 0), 'other')) == ('Stable', 7)

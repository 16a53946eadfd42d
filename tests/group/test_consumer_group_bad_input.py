"""Invalid requests to consumer groups. Each request gets the same error as in Kafka, changes nothing and takes no
memory."""

import pytest
from support.worlds.consumer_groups import Consumer, consumer_group
from support.worlds.group_coordinator import GROUP, Client, World, subscription
from support.worlds.share_groups import Sharer
from support.worlds.streams_groups import StreamsClient

from kbroker.base.errors import ErrorCode
from kbroker.base.long_work import run_to_end
from kbroker.protocol.messages import LeaveGroupRequest

KEPT = ('members', 'targets', 'epoch', 'assignment_epoch', 'assigned_at_ms', 'metadata_hash', 'names', 'subscriptions',
        'instances', 'regexes', 'resolved', 'held_bytes', 'has_partition_metadata')


@pytest.fixture
def world():
    """Return a world with a group of two members, whose epochs are 3. `a` has partition 0 of the topic `t`. The static
    member `s` waits for partition 1."""
    world = World(group_consumer_assignment_interval_ms=0, group_consumer_min_assignment_interval_ms=0,
                  group_consumer_migration_policy='disabled', kbroker_group_memory_max_bytes=1_000_000)
    world.topics.create('t', 2)
    a, s = Consumer(world, 'a', names=['t']), Consumer(world, 's', names=['t'], instance='i')
    a.join()
    s.join()
    a.heartbeat()
    a.heartbeat({'t': {0}})
    assert (a.epoch, s.epoch) == (3, 3)
    Sharer(world, 'm', 't', group_id='share').join()
    StreamsClient(world, 'm', group_id='streams').join()
    classic = Client(world, group_id='classic')
    answer = classic.join()
    world.run_due()
    classic.joined(answer).sync({classic.member_id: b''})
    world.run_due()
    return world


def footprint(world):
    """Return the state that an invalid request must not change: rows, groups, memory and deadlines."""
    group = consumer_group(world)
    return (
        list(world.partition.stored), {found.group_id: found.group_type for found in world.groups.list_groups()},
        {name: getattr(group, name) for name in KEPT}, world.groups.memory.held_bytes, world.groups.deadlines_count,
        len(world.groups.regexes), len(world.groups.pending_members))


def a(world, epoch=3, **fields):
    member = Consumer(world, 'a', **fields)
    member.epoch = epoch
    return member


def stranger(world, epoch=3, **fields):
    member = Consumer(world, 'stranger', names=['t'], **fields)
    member.epoch = epoch
    return member


def foreign(group_id, ask):
    return lambda world: ask(stranger(world, group_id=group_id))


def classic_join(world, group_id, member_id=''):
    client = Client(world, group_id=group_id, protocols=[('range', subscription('t'))])
    client.member_id = member_id
    return client.join_once()


def classic_beat(world, member_id):
    client = Client(world)
    client.member_id, client.generation = member_id, 3
    return client.heartbeat()


def classic_leave(world, member_id):
    members = [LeaveGroupRequest.MemberIdentity(member_id=member_id)]
    (left,) = run_to_end(world.groups.leave(LeaveGroupRequest(group_id=GROUP, members=members))).members
    return ErrorCode(left.error_code)


REGEXES = ['(', '*', '[b-a]', 'a{1001}', r'\pX', '(?=a)', '(' * 200 + ')' * 200, 'x' * 100_000, '(a{100}){100}']

BAD = {
    'a heartbeat to no group': (lambda world: stranger(world, group_id='none').heartbeat(), 'GROUP_ID_NOT_FOUND'),
    'leaving no group': (lambda world: stranger(world, group_id='none').leave(), 'GROUP_ID_NOT_FOUND'),
    'leaving no group for a while': (
        lambda world: stranger(world, group_id='none', instance='x').leave_for_a_while(), 'GROUP_ID_NOT_FOUND'),
    'a heartbeat of a stranger': (lambda world: stranger(world).heartbeat(), 'UNKNOWN_MEMBER_ID'),
    'a heartbeat of a stranger with partitions': (
        lambda world: stranger(world).heartbeat({'t': {0, 1}}), 'UNKNOWN_MEMBER_ID'),
    'a stranger leaves': (lambda world: stranger(world).leave(), 'UNKNOWN_MEMBER_ID'),
    'an epoch ahead': (lambda world: a(world, 4).heartbeat(), 'FENCED_MEMBER_EPOCH'),
    'the largest epoch': (lambda world: a(world, 2**31 - 1).heartbeat(), 'FENCED_MEMBER_EPOCH'),
    'an epoch before the last one': (lambda world: a(world, 1).heartbeat({'t': {0}}), 'FENCED_MEMBER_EPOCH'),
    'the last epoch without partitions': (lambda world: a(world, 2).heartbeat(), 'FENCED_MEMBER_EPOCH'),
    'the last epoch with foreign partitions': (
        lambda world: a(world, 2).heartbeat({'t': {0, 1}}), 'FENCED_MEMBER_EPOCH'),
    'the last epoch with a partition that is not there': (
        lambda world: a(world, 2).heartbeat({'t': {2**31 - 1}}), 'FENCED_MEMBER_EPOCH'),
    'an instance that has not left': (
        lambda world: stranger(world, 0, instance='i').join(), 'UNRELEASED_INSTANCE_ID'),
    'an instance of another member': (lambda world: a(world, instance='i').heartbeat(), 'FENCED_INSTANCE_ID'),
    'an instance of another member leaves': (lambda world: a(world, instance='i').leave(), 'FENCED_INSTANCE_ID'),
    'an unknown instance': (lambda world: a(world, instance='x').heartbeat(), 'UNKNOWN_MEMBER_ID'),
    'an unknown instance leaves': (
        lambda world: stranger(world, instance='x').leave_for_a_while(), 'UNKNOWN_MEMBER_ID'),
    **{f'a regular expression, {regex[:20]}': (
        lambda world, regex=regex: stranger(world, 0, regex=regex).join(), 'INVALID_REGULAR_EXPRESSION')
       for regex in REGEXES},
    **{f'a member brings a regular expression, {regex[:20]}': (
        lambda world, regex=regex: a(world).heartbeat(subscribed_topic_regex=regex), 'INVALID_REGULAR_EXPRESSION')
       for regex in REGEXES[:4]},
    'more than memory has room for': (
        lambda world: stranger(world, 0).join(subscribed_topic_names=[f't{number}' for number in range(10_000)]),
        'COORDINATOR_LOAD_IN_PROGRESS'),
    **{f'{what} a group of {kind}': (foreign(kind, ask), 'GROUP_ID_NOT_FOUND')
       for kind in ('share', 'streams', 'classic')
       for what, ask in (('joining', Consumer.join), ('a heartbeat to', Consumer.heartbeat),
                         ('leaving', Consumer.leave))},
    'a classic join': (lambda world: classic_join(world, GROUP), 'INCONSISTENT_GROUP_PROTOCOL'),
    'a classic join of a member': (lambda world: classic_join(world, GROUP, 'a'), 'INCONSISTENT_GROUP_PROTOCOL'),
    'a classic join to a share group': (
        lambda world: classic_join(world, 'share'), 'INCONSISTENT_GROUP_PROTOCOL'),
    'a classic join to a streams group': (
        lambda world: classic_join(world, 'streams'), 'INCONSISTENT_GROUP_PROTOCOL'),
    'a classic heartbeat': (lambda world: classic_beat(world, 'a'), 'UNKNOWN_MEMBER_ID'),
    'a classic heartbeat of a stranger': (lambda world: classic_beat(world, 'stranger'), 'UNKNOWN_MEMBER_ID'),
    'a stranger leaves by the classic protocol': (lambda world: classic_leave(world, 'stranger'), 'UNKNOWN_MEMBER_ID'),
    'a commit with an epoch ahead': (
        lambda world: world.commit(('t', 0), 1, version=9, member_id='a', generation=4), 'STALE_MEMBER_EPOCH'),
    'a commit of a partition that another member has': (
        lambda world: world.commit(('t', 1), 1, version=9, member_id='a', generation=2), 'STALE_MEMBER_EPOCH'),
    'a commit of a stranger': (
        lambda world: world.commit(('t', 0), 1, version=9, member_id='stranger', generation=3), 'UNKNOWN_MEMBER_ID'),
    'a commit without a member': (lambda world: world.commit(('t', 0), 1, version=9), 'UNKNOWN_MEMBER_ID'),
    'a commit that knows no epochs': (
        lambda world: world.commit(('t', 0), 1, version=8, member_id='a', generation=3), 'UNSUPPORTED_VERSION'),
    'a commit of a member to no group': (
        lambda world: world.commit(('t', 0), 1, version=9, group_id='none', member_id='a', generation=3),
        'GROUP_ID_NOT_FOUND'),
    'a commit in a transaction with an epoch ahead': (
        lambda world: world.commit_transactional(('t', 0), 1, 7, member_id='a', generation=4), 'ILLEGAL_GENERATION'),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_input_changes_nothing(world, name):
    ask, code = BAD[name]
    before = footprint(world)
    answer = ask(world)
    world.run_due()
    assert (answer if isinstance(answer, ErrorCode) else answer.code) is ErrorCode[code]
    assert footprint(world) == before
    assert a(world).heartbeat().code is ErrorCode.NONE


def test_a_stranger_to_a_full_group_changes_nothing():
    world = World(group_consumer_max_size=1)
    world.topics.create('t', 2)
    Consumer(world, 'a', names=['t']).join()
    before = footprint(world)
    assert stranger(world, 0).join().code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert stranger(world, 0, instance='x').join().code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert footprint(world) == before


def test_refused_joins_leave_no_group_behind(world):
    before = footprint(world)
    for number in range(100):
        assert stranger(world, 0, group_id=f'g{number}', regex='(').join().code is (
            ErrorCode.INVALID_REGULAR_EXPRESSION)
    assert footprint(world) == before


def test_deadlines_end_with_their_members(world):
    for number in range(20):
        member = Consumer(world, f'm{number}', names=['t'], rebalance_timeout_ms=5_000)
        member.join()
        if number % 2:
            member.leave()
    assert world.groups.deadlines_count <= world.groups.most_deadlines
    world.advance(200_000)
    assert world.groups.deadlines_count == 0

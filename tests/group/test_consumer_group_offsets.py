"""Offsets of consumer groups: commits and fetches with a member epoch, deletion, and expiry."""

import pytest
from support.worlds.consumer_groups import Consumer, assignment_in, consumer_group, last_batch
from support.worlds.group_coordinator import GROUP, World

from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.commits import NO_TOPIC_ID, TXN_VERSION_WITH_CODES_OF_GROUPS
from kbroker.group.records import OffsetRow, read_row
from kbroker.record.records import decode_records

T0, T1 = ('t', 0), ('t', 1)
DAY_MS = 24 * 60 * 60_000


@pytest.fixture
def world():
    made = World(group_consumer_assignment_interval_ms=0, group_consumer_min_assignment_interval_ms=0)
    made.topics.create('t', 2)
    return made


@pytest.fixture
def member(world):
    """Return a member with epoch 3 that got both partitions in epoch 2."""
    found = Consumer(world, 'a', names=['t'])
    found.join()
    found.heartbeat(subscribed_topic_names=['t', 'later'])
    assert found.epoch == 3
    return found


def commit(world, epoch, member_id='a', *, version=9, partition=T0, **fields):
    return world.commit(partition, 5, version=version, generation=epoch, member_id=member_id, **fields).code


def commit_transactional(world, epoch, member_id='a', partition=T0, version=5, **fields):
    return world.commit_transactional(
        partition, 5, 1000, generation=epoch, member_id=member_id, version=version, **fields).code


@pytest.mark.parametrize(('epoch', 'member_id', 'version', 'code'), [
    (3, 'a', 9, ErrorCode.NONE),
    (2, 'a', 9, ErrorCode.NONE),                    # the member has had the partition since this epoch
    (1, 'a', 9, ErrorCode.STALE_MEMBER_EPOCH),
    (4, 'a', 9, ErrorCode.STALE_MEMBER_EPOCH),
    (-1, 'a', 9, ErrorCode.STALE_MEMBER_EPOCH),
    (3, 'b', 9, ErrorCode.UNKNOWN_MEMBER_ID),
    (-1, '', 9, ErrorCode.UNKNOWN_MEMBER_ID),
    (3, 'a', 8, ErrorCode.UNSUPPORTED_VERSION),
    (3, 'b', 8, ErrorCode.UNKNOWN_MEMBER_ID),
])
def test_a_commit_names_a_member_and_an_epoch_since_which_it_has_the_partition(world, member, epoch, member_id, version,
                                                                               code):
    assert commit(world, epoch, member_id, version=version) is code
    assert world.offset(T0) == (5 if code is ErrorCode.NONE else -1)


@pytest.mark.parametrize('version', [5, 6])
@pytest.mark.parametrize(('epoch', 'member_id', 'code'), [
    (3, 'a', ErrorCode.NONE),
    (2, 'a', ErrorCode.NONE),
    (-1, '', ErrorCode.NONE),
    (-1, 'a', ErrorCode.STALE_MEMBER_EPOCH),
    (1, 'a', ErrorCode.STALE_MEMBER_EPOCH),
    (4, 'a', ErrorCode.STALE_MEMBER_EPOCH),
    (3, 'b', ErrorCode.UNKNOWN_MEMBER_ID),
])
def test_a_commit_in_a_transaction_may_name_no_member(world, member, epoch, member_id, code, version):
    if version < TXN_VERSION_WITH_CODES_OF_GROUPS and code is ErrorCode.STALE_MEMBER_EPOCH:
        code = ErrorCode.ILLEGAL_GENERATION
    assert commit_transactional(world, epoch, member_id, version=version) is code


@pytest.mark.parametrize(('version', 'code'), [(5, ErrorCode.ILLEGAL_GENERATION), (6, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_commit_in_a_transaction_with_an_epoch_needs_a_group(world, version, code):
    assert commit_transactional(world, 0, '', version=version, group_id='none') is code
    assert commit_transactional(world, -1, 'a', version=version, group_id='none') is ErrorCode.NONE


def test_rows_of_commits_have_a_topic_id_unless_they_have_an_expiry_time(world, member):
    assert commit(world, 3, 'a') is commit_transactional(world, 3, 'a') is ErrorCode.NONE
    assert world.commit(T0, 5, version=4, group_id='simple', retention_ms=DAY_MS).code is ErrorCode.NONE
    rows = [read_row(record.key, record.value, record.offset)
            for batch in world.partition.stored for record in decode_records(batch)]
    plain, transactional, expiring = [row.committed for row in rows if isinstance(row, OffsetRow)]
    assert plain.topic_id == transactional.topic_id == world.topics.topic('t').topic_id
    assert expiring.topic_id == NO_TOPIC_ID


def test_an_older_epoch_does_not_do_for_a_partition_that_came_later(world):
    a, b = Consumer(world, 'a', names=['t']), Consumer(world, 'b', names=['t'])
    a.join()
    b.join()
    (kept,) = assignment_in(world, a.heartbeat())['t']
    a.heartbeat({'t': {kept}})
    b.heartbeat()
    a.leave()
    b.heartbeat()
    assert b.epoch == 4
    assert commit(world, 3, 'b', partition=('t', 1 - kept)) is ErrorCode.NONE
    assert commit(world, 3, 'b', partition=('t', kept)) is ErrorCode.STALE_MEMBER_EPOCH


def test_partitions_that_are_to_be_given_up_may_still_be_committed(world):
    a, b = Consumer(world, 'a', names=['t']), Consumer(world, 'b', names=['t'])
    a.join()
    b.join()
    (kept,) = assignment_in(world, a.heartbeat())['t']
    assert commit(world, 2, partition=('t', 1 - kept)) is ErrorCode.NONE


def test_a_group_without_members_takes_commits_of_administrators(world):
    member = Consumer(world, 'a', names=['t'])
    member.join()
    member.leave()
    assert commit(world, -1, '', version=8) is ErrorCode.NONE
    assert commit_transactional(world, -1, '', partition=T1) is ErrorCode.NONE
    assert commit(world, 0, '') is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(('member_id', 'epoch', 'code'), [
    (None, -1, None),
    ('a', 3, None),
    ('a', 2, ErrorCode.STALE_MEMBER_EPOCH),
    ('a', 4, ErrorCode.STALE_MEMBER_EPOCH),
    ('b', 3, ErrorCode.UNKNOWN_MEMBER_ID),
    (None, 3, ErrorCode.UNKNOWN_MEMBER_ID),
])
def test_a_fetch_names_a_member_and_its_epoch(world, member, member_id, epoch, code):
    if code is None:
        world.groups.check_fetch(GROUP, member_id, epoch)
        return
    with pytest.raises(KafkaError) as refused:
        world.groups.check_fetch(GROUP, member_id, epoch)
    assert refused.value.code is code


def test_commits_do_not_keep_a_session_alive(world, member):
    world.advance(40_000)
    assert commit(world, 3) is ErrorCode.NONE
    world.advance(10_000)
    assert consumer_group(world).is_empty


def test_offsets_of_subscribed_topics_cannot_be_deleted(world, member):
    commit(world, 3)
    results = []
    world.groups.delete_offsets(GROUP, [T0], Callback(lambda error, result: results.append(result)))
    world.run_due()
    member.leave()
    world.groups.delete_offsets(GROUP, [T0], Callback(lambda error, result: results.append(result)))
    world.run_due()
    assert results == [{T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}, {T0: ErrorCode.NONE}]
    assert world.offset(T0) == -1


def test_offsets_of_topics_without_a_subscriber_expire_while_the_group_has_members(world, member):
    commit(world, 3)
    member.heartbeat(subscribed_topic_names=['later'])
    member.heartbeat({})
    for _ in range(8 * 24 * 60 * 2):
        world.clock.advance(30_000)
    world.groups.sweep()
    world.run_due()
    assert world.offset(T0) == -1


def test_a_group_ends_when_it_has_no_members_and_no_offsets(world, member):
    commit(world, 3)
    member.leave()
    world.groups.sweep()
    world.run_due()
    assert consumer_group(world).is_empty
    world.clock.advance(8 * DAY_MS)
    world.groups.sweep()
    world.run_due()
    assert world.groups.list_groups() == []
    assert last_batch(world) == ['T6', 'T4', 'T3']
    world.restart()
    assert world.groups.list_groups() == []


def test_a_group_with_members_is_not_deleted(world, member):
    errors = []
    world.groups.delete_group(GROUP, Callback(lambda error, result: errors.append(error)))
    assert errors[0].code is ErrorCode.NON_EMPTY_GROUP
    commit(world, 3)
    member.leave()
    world.groups.delete_group(GROUP, Callback(lambda error, result: errors.append(error)))
    world.run_due()
    assert errors[1] is None
    assert (world.groups.list_groups(), world.offset(T0)) == ([], -1)

"""A complete broker describes the records that share groups hold."""
from __future__ import annotations

import json

import pytest
from share_client import RELEASE, RENEW, ShareClient

from kbroker.base.long_work import run_to_end
from kbroker.group.share.holds import MOST_BYTES, MOST_RANGES, HoldsFilter, describe_holds

LOCK_MS = 30_000


@pytest.fixture
def member(client, member):
    """Write four batches of one record to the topic, and return the member of the share group."""
    produce(client, 4)
    return member


def produce(client, count):
    for _ in range(count):
        client.produce(client.batch(b'value'))


def holds(node, **wanted):
    return run_to_end(describe_holds(node.share_partitions, node.clock, HoldsFilter(**wanted)))


def places(found):
    return [(each['member_id'], each['first_offset'], each['last_offset'], each['delivery_count'])
            for each in found['ranges']]


def test_nothing_is_held_before_the_first_fetch_and_after_the_outcome(node, member):
    nothing = {'records': 0, 'ranges': [], 'left_out': 0}
    assert holds(node) == nothing
    member.acquired()
    assert holds(node)['records'] == 4
    member.say(0, 3)
    assert holds(node) == nothing


def test_a_held_range_has_its_member_its_times_and_its_delivery_count(node, member):
    began_ms = node.clock.wall_ms()
    assert member.acquired(max_records=2) == [(0, 1, 1)]
    node.clock.advance(1000)
    assert holds(node) == {'records': 2, 'left_out': 0, 'ranges': [{
        'group_id': 'g1', 'topic': 'orders', 'partition': 0, 'first_offset': 0, 'last_offset': 1, 'member_id': 'm1',
        'delivery_count': 1, 'since_ms': began_ms, 'lock_ends_ms': began_ms + LOCK_MS, 'is_ending': False}]}


def test_a_released_record_is_held_again_by_its_next_member(node, member):
    member.acquired(max_records=2)
    member.say(1, 1, RELEASE)
    other = ShareClient(node, member.topic_id, 'm2')
    other.acquired(max_records=1)
    assert places(holds(node)) == [('m1', 0, 0, 1), ('m2', 1, 1, 2)]


def test_a_renewal_moves_both_times_of_a_lock(node, member):
    member.acquired()
    node.clock.advance(LOCK_MS - 1)
    assert member.say(0, 3, RENEW, is_renew_ack=True) == 0
    held, = holds(node)['ranges']
    assert (held['since_ms'], held['lock_ends_ms']) == (node.clock.wall_ms(), node.clock.wall_ms() + LOCK_MS)


def test_a_record_whose_outcome_waits_for_the_disk_is_held(node, member, disk):
    member.acquired()
    disk.is_held = True
    member.begin('ShareAcknowledge', 2, connection=member.connection, group_id='g1', member_id='m1',
                 share_session_epoch=member.epoch, topics=[{'topic_id': member.topic_id, 'partitions': [
                     {'partition_index': 0, 'acknowledgement_batches': [
                         {'first_offset': 0, 'last_offset': 3, 'acknowledge_types': [1]}]}]}])
    held, = holds(node)['ranges']
    assert held['is_ending'] and held['lock_ends_ms'] is not None
    node.clock.advance(LOCK_MS)
    node.turn()
    held, = holds(node)['ranges']
    assert (held['is_ending'], held['lock_ends_ms'], held['since_ms']) == (True, None, None)


def test_a_question_for_a_topic_a_partition_or_a_group_leaves_the_others_out(node, client, member):
    other = ShareClient(node, client.create_topic('audit', 2), group_id='g2', partitions=2)
    other.initialize()
    for partition in (0, 1):
        client.produce(client.batch(b'value'), topic='audit', partition=partition)
    member.acquired()
    other.fetch_shares()
    assert holds(node)['records'] == 6
    assert holds(node, topic='audit')['records'] == 2
    assert [each['partition'] for each in holds(node, topic='audit', partition=1)['ranges']] == [1]
    assert holds(node, topic='orders', partition=1)['records'] == 0
    assert [each['group_id'] for each in holds(node, group_id='g1')['ranges']] == ['g1']
    assert holds(node, topic='lost') == {'records': 0, 'ranges': [], 'left_out': 0}


def test_the_first_ranges_of_a_share_partition_are_named_and_the_rest_is_counted(node, client, member):
    produce(client, 2 * MOST_RANGES)
    member.acquired()
    for offset in range(1, 2 * MOST_RANGES + 4, 2):
        member.say(offset, offset)
    found = holds(node)
    assert found['records'] == MOST_RANGES + 2 and found['left_out'] == 2
    assert [each['first_offset'] for each in found['ranges']] == list(range(0, 2 * MOST_RANGES, 2))


def test_long_names_do_not_make_the_description_long(node, client):
    topic_id = node.topics.topic('orders').topic_id
    client.produce(client.batch(b'value'))
    escaped = '\u2603' * (MOST_BYTES // 6 + 1)
    names = [escaped, *('y' * 10_000 + str(number) for number in range(5)), 'z']
    for name in names:
        member = ShareClient(node, topic_id, group_id=name)
        member.initialize()
        member.acquired()
    found = holds(node)
    assert (found['records'], found['left_out']) == (len(names), len(names) - len(found['ranges']))
    assert [each['group_id'][0] for each in found['ranges']] == ['y', 'y', 'y', 'z']
    assert sum(len(json.dumps(each)) for each in found['ranges']) <= MOST_BYTES


def test_a_share_partition_that_is_dropped_meanwhile_is_left_out(node, member):
    member.acquired()
    other = ShareClient(node, member.topic_id, group_id='g2')
    other.initialize()
    other.acquired()
    steps = describe_holds(node.share_partitions, node.clock, HoldsFilter())
    next(steps)
    node.share_partitions.drop_group('g2')
    assert run_to_end(steps)['records'] == 4

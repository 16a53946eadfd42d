"""The exact bytes of the rows of streams groups, and the members that are decoded from these rows. Covers KIP-1251.
"""

import pytest

from kbroker.base.errors import CorruptLogError
from kbroker.group.assignors.sticky import Role
from kbroker.group.coordinator import KINDS
from kbroker.group.modern.heartbeat import NO_TIME
from kbroker.group.modern.reconcile import Assigned, State
from kbroker.group.records import read_row
from kbroker.group.streams import rows
from kbroker.group.streams.member import DescriptionEpochs, Endpoint, StreamsMember
from kbroker.protocol.messages import StreamsGroupHeartbeatRequest as Request
from kbroker.protocol.rows import encode_row_key, encode_row_value

T = 1_700_000_000_000
HASH_OF_T = -7909395294144551977
GROUP, MEMBER = '00026731', '00026d31'
ACTIVE, STANDBY = (Role.ACTIVE, '0'), (Role.STANDBY, '0')
TOPOLOGY = Request.Topology(epoch=0, subtopologies=[Request.Subtopology(
    subtopology_id='0', source_topics=['t'], source_topic_regex=[], repartition_sink_topics=[],
    state_changelog_topics=[Request.TopicInfo(
        name='app-store-changelog', partitions=0, replication_factor=0,
        topic_configs=[Request.KeyValue(key='cleanup.policy', value='compact')])],
    repartition_source_topics=[], copartition_groups=[])])


def member(**fields):
    return StreamsMember(member_id='m1', client_id='c', client_host='/127.0.0.1', rebalance_timeout_ms=300_000,
                         topology_epoch=0, process_id='p1', **fields)


@pytest.mark.parametrize(('row', 'key', 'value'), [
    (rows.epoch_row('g1', 2, HASH_OF_T, 0, {'num.standby.replicas': '0'}, DescriptionEpochs()), '0011' + GROUP,
     '000000000002923c2ee2c05e23d702000400000000011902156e756d2e7374616e6462792e7265706c69636173023000'),
    (rows.epoch_row('g1', 3, 5, 1, {'num.standby.replicas': '1', 'rack.aware.assignment.tags': 'zone,rack'},
                    DescriptionEpochs(1, 2)), '0011' + GROUP,
     '000000000003000000000000000504000400000001013f03156e756d2e7374616e6462792e7265706c696361730231001b7261636b2e61'
     '776172652e61737369676e6d656e742e746167730a7a6f6e652c7261636b00020400000001030400000002'),
    (rows.member_row('g1', member()), '0013' + GROUP + MEMBER,
     '0000000002630b2f3132372e302e302e31000493e000000000037031ff0100'),
    (rows.assignment_epoch_row('g1', 2, T), '0014' + GROUP, '0000000000020100080000018bcfe56800'),
    (rows.assignment_epoch_row('g1', 3, NO_TIME), '0014' + GROUP, '00000000000300'),
    (rows.target_row('g1', 'm1', {ACTIVE: frozenset({0, 1, 2})}), '0015' + GROUP + MEMBER,
     '00000202300400000000000000010000000200010100'),
    (rows.current_row('g1', 'm1', Assigned(State.STABLE, 2, 0, {ACTIVE: {0: 2, 1: 2, 2: 2}})), '0016' + GROUP + MEMBER,
     '00000000000200000000010202300400000000000000010000000201000d04000000020000000200000002010101010100'),
    (rows.topology_row('g1', TOPOLOGY), '0017' + GROUP,
     '0000000000000202300202740102146170702d73746f72652d6368616e67656c6f67000000000000020f636c65616e75702e706f6c69637908'
     '636f6d7061637400000101010000'),
])
def test_rows_have_exactly_these_bytes(row, key, value):
    found_key, found_value = row
    assert (encode_row_key(found_key).hex(), encode_row_value(found_value, 0).hex()) == (key, value)


@pytest.mark.parametrize('held', [
    Assigned(State.STABLE, 3, 2, {ACTIVE: {0: 2, 1: 3}, STANDBY: {2: 0}}),
    Assigned(State.UNREVOKED, 3, 3, {ACTIVE: {0: 2}}, {ACTIVE: {1: 3}, STANDBY: {2: 0}}),
    Assigned(State.UNRELEASED, 4, 3),
    Assigned(State.UNKNOWN, 4, 3),
])
def test_an_assignment_is_read_back_from_its_row(held):
    assert rows.read_current(rows.current_row('g1', 'm1', held)[1]) == held


def test_a_member_is_read_back_from_its_row():
    there = member(instance_id='i', rack_id='r', endpoint=Endpoint('host', 65_535), tags=(('zone', 'a'),))
    assert rows.read_member(StreamsMember(member_id='m1'), rows.member_row('g1', there)[1]) == there


def test_tasks_of_members_that_share_them_have_an_empty_list_of_epochs_as_in_kafka():
    _, value = rows.current_row('g1', 'm1', Assigned(assigned={ACTIVE: {0: 2}, STANDBY: {1: 0}}))
    assert [value.active_tasks[0].assignment_epochs, value.standby_tasks[0].assignment_epochs] == [[2], []]


PARTS = Request.Topology(epoch=0, subtopologies=[Request.Subtopology(
    subtopology_id='0', source_topics=['t', 'u'], source_topic_regex=[], repartition_sink_topics=['r'],
    state_changelog_topics=TOPOLOGY.subtopologies[0].state_changelog_topics,
    repartition_source_topics=[Request.TopicInfo(name='r', partitions=2, replication_factor=0, topic_configs=[])],
    copartition_groups=[Request.CopartitionGroup(
        source_topics=[0, 1], source_topic_regex=[], repartition_source_topics=[0])])])
WHOLE_ROWS = {
    'epoch': rows.epoch_row('g1', 2, HASH_OF_T, 0, {'num.standby.replicas': '0'}, DescriptionEpochs(1, 2)),
    'member': rows.member_row('g1', member(endpoint=Endpoint('host', 1), tags=(('zone', 'a'),))),
    'assignment epoch': rows.assignment_epoch_row('g1', 2, T),
    'target': rows.target_row('g1', 'm1', {ACTIVE: frozenset({0, 1}), STANDBY: frozenset({2})}),
    'current': rows.current_row('g1', 'm1', Assigned(State.UNREVOKED, 3, 3, {ACTIVE: {0: 2}}, {STANDBY: {2: 0}})),
    'topology': rows.topology_row('g1', PARTS),
}


def replayed(encoded):
    """Apply encoded rows to a new group, as a load does. Return the group after the last row."""
    group = None
    for offset, (key, value) in enumerate(encoded):
        row = read_row(key, value, offset)
        if row is not None:
            group = KINDS.apply_row(group, row.key, row.value)
    if group is not None:
        assert group.copy().held_bytes == group.held_bytes
        assert group.state_name and isinstance(group.tombstones(), list)
    return group


@pytest.mark.parametrize('damaged', WHOLE_ROWS)
def test_a_damaged_row_is_read_as_another_one_or_reported_as_damage(damaged):
    encoded = {name: (encode_row_key(key), encode_row_value(value, 0)) for name, (key, value) in WHOLE_ROWS.items()}
    key, value = encoded[damaged]
    others = [row for name, row in encoded.items() if name != damaged]
    versions = [(key[:length], value) for length in range(len(key))] + [
        (key, value[:length]) for length in range(len(value))]
    for place in range(len(key) + len(value)):
        for bits in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            changed = bytearray(key + value)
            changed[place] ^= bits
            versions.append((bytes(changed[:len(key)]), bytes(changed[len(key):])))
    reported = 0
    for version in versions:
        try:
            replayed([*others, version])
        except CorruptLogError:
            reported += 1
    assert 0 < reported < len(versions)


@pytest.mark.parametrize('index', [2, -1])
def test_a_topology_whose_copartition_group_has_no_such_topic_is_damage(index):
    key, value = rows.topology_row('g1', PARTS)
    value.subtopologies[0].copartition_groups[0].source_topics = [0, index]
    with pytest.raises(CorruptLogError, match=f'found topic {index} in a copartition group'):
        replayed([(encode_row_key(key), encode_row_value(value, 0))])

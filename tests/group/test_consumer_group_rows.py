"""The exact bytes of the rows of consumer groups, and the groups that a load makes from these rows. Covers KIP-1251.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.base.errors import CorruptLogError
from kbroker.base.long_work import run_to_end
from kbroker.group.classic.group import ClassicGroup
from kbroker.group.consumer import rows
from kbroker.group.consumer.group import ConsumerGroup
from kbroker.group.consumer.member import ClassicFields, ConsumerMember, Resolved
from kbroker.group.coordinator import KINDS
from kbroker.group.modern.heartbeat import NO_TIME
from kbroker.group.modern.reconcile import FREE, Assigned, State
from kbroker.protocol.messages import ShareGroupMetadataKey
from kbroker.protocol.rows import encode_row_key, encode_row_value

T = 1_700_000_000_000
TOPIC = bytes(range(16))
HASH_OF_T = -7909395294144551977
MEMBER = ConsumerMember(member_id='m1', client_id='c', client_host='/127.0.0.1', names=frozenset({'t'}),
                        rebalance_timeout_ms=300_000)
SUBSCRIPTION = bytes.fromhex('000100000001000174ffffffff00000000')


def with_fields(**fields):
    return ConsumerMember(member_id='m1', client_id='c', client_host='/127.0.0.1', names=frozenset({'t'}),
                          rebalance_timeout_ms=300_000, **fields)


def since(epoch, *partitions):
    return {TOPIC: dict.fromkeys(partitions, epoch)}


@pytest.mark.parametrize(('row', 'key', 'value'), [
    (rows.epoch_row('g1', 2, HASH_OF_T), '000300026731', '000000000002010008923c2ee2c05e23d7'),
    (rows.member_row('g1', MEMBER), '00050002673100026d31',
     '0000000002630b2f3132372e302e302e3102027401000493e00001000100'),
    (rows.member_row('g1', with_fields(instance_id='i1', rack_id='r1', assignor='range')), '00050002673100026d31',
     '000003693103723102630b2f3132372e302e302e3102027401000493e00672616e676501000100'),
    (rows.member_row('g1', with_fields(classic=ClassicFields(45_000, (('range', SUBSCRIPTION),)))),
     '00050002673100026d31',
     '0000000002630b2f3132372e302e302e3102027401000493e000010020010000afc8020672616e6765120001000000010001'
     '74ffffffff000000000000'),
    (rows.assignment_epoch_row('g1', 2, T), '000600026731', '0000000000020100080000018bcfe56800'),
    (rows.assignment_epoch_row('g1', 3, NO_TIME), '000600026731', '00000000000300'),
    (rows.target_row('g1', 'm1', {TOPIC: frozenset({0, 1, 2})}), '00070002673100026d31',
     '000002000102030405060708090a0b0c0d0e0f040000000000000001000000020000'),
    (rows.target_row('g1', 'm1', {}), '00070002673100026d31', '00000100'),
    (rows.current_row('g1', 'm1', Assigned(State.STABLE, 2, 0, since(2, 0, 1, 2))), '00080002673100026d31',
     '000000000002000000000002000102030405060708090a0b0c0d0e0f0400000000000000010000000201000d04000000020000000200000002'
     '0100'),
    (rows.current_row('g1', 'm1', Assigned(State.UNREVOKED, 2, 2, since(2, 0), since(2, 1, 2))),
     '00080002673100026d31',
     '000000000002000000020102000102030405060708090a0b0c0d0e0f0200000000010005020000000202000102030405060708090a0b0c0d'
     '0e0f03000000010000000201000903000000020000000200'),
    (rows.regex_row('g1', '^t.*', Resolved(frozenset({'t'}), 100, T), ['t']), '00100002673100045e742e2a',
     '000002027400000000000000640000018bcfe5680000'),
])
def test_rows_have_kafkas_bytes(row, key, value):
    assert encode_row_key(row[0]).hex() == key
    assert encode_row_value(row[1], 0).hex() == value


ALL_ROWS = [
    rows.epoch_row('g1', 3, HASH_OF_T),
    rows.assignment_epoch_row('g1', 3, T),
    rows.member_row('g1', with_fields(instance_id='i1', regex='t.*')),
    rows.target_row('g1', 'm1', {TOPIC: frozenset({0, 1})}),
    rows.current_row('g1', 'm1', Assigned(State.STABLE, 3, 2, since(2, 0, 1))),
    rows.regex_row('g1', 't.*', Resolved(frozenset({'t', 't2'}), 100, T), ['t', 't2']),
]


def loaded(found):
    group = None
    for key, value in found:
        group = KINDS.apply_row(group, key, value)
    return group


@pytest.mark.parametrize('order', list(itertools.permutations(range(len(ALL_ROWS)))),
                         ids=lambda order: ''.join(map(str, order)))
def test_rows_may_come_in_any_order(order):
    group = loaded([ALL_ROWS[number] for number in order])
    assert isinstance(group, ConsumerGroup)
    (member,) = group.members.values()
    assert member == with_fields(instance_id='i1', regex='t.*',
                                 held=Assigned(State.STABLE, 3, 2, since(2, 0, 1)))
    assert (group.epoch, group.assignment_epoch, group.assigned_at_ms) == (3, 3, T)
    assert group.targets == {'m1': {TOPIC: frozenset({0, 1})}}
    assert (group.names, group.regexes, group.instances) == ({'t': 2, 't2': 1}, {'t.*': 1}, {'i1': 'm1'})
    run_to_end(group.index_owners())
    assert [group.owner(TOPIC, partition) for partition in (0, 1, 2)] == [3, 3, FREE]


def test_the_tombstones_of_a_group_end_it_in_kafkas_order():
    group = loaded(ALL_ROWS)
    tombstones = group.tombstones()
    assert [key.row_type for key, _ in tombstones] == [8, 7, 6, 5, 16, 4, 3]
    empty = loaded(ALL_ROWS).held_bytes - ConsumerGroup('g1').held_bytes
    assert empty > 0
    for key, value in tombstones[:-1]:
        assert KINDS.apply_row(group, key, value) is group
    assert (group.members, group.targets, group.names, group.regexes, group.resolved) == ({}, {}, {}, {}, {})
    assert group.held_bytes == ConsumerGroup('g1').held_bytes
    assert KINDS.apply_row(group, *tombstones[-1]) is None


def test_tombstones_of_what_is_not_there_change_nothing():
    for key, value in loaded(ALL_ROWS).tombstones():
        assert KINDS.apply_row(None, key, value) is None


@pytest.mark.parametrize(('epoch', 'expected'), [(5, 5), (-2, 0)])
def test_partitions_without_assignment_epochs_have_that_of_the_member(epoch, expected):
    key, value = rows.current_row('g1', 'm1', Assigned(State.STABLE, epoch, 4, since(2, 0, 1)))
    value.assigned_partitions[0].assignment_epochs = None
    assert KINDS.apply_row(None, key, value).members['m1'].held.assigned == since(expected, 0, 1)


def test_a_state_from_the_future_is_unknown():
    key, value = rows.current_row('g1', 'm1', Assigned(State.STABLE, 5, 4))
    value.state = 9
    assert KINDS.apply_row(None, key, value).members['m1'].held.state is State.UNKNOWN


def test_a_copy_is_independent():
    group = loaded(ALL_ROWS)
    run_to_end(group.index_owners())
    twin = group.copy()
    twin.apply(*rows.current_row('g1', 'm1', Assigned(State.STABLE, 4, 3, since(2, 0))))
    twin.apply(*rows.member_row('g1', with_fields()))
    assert (group.owner(TOPIC, 0), group.owner(TOPIC, 1), group.regexes) == (3, 3, {'t.*': 1})
    assert (twin.owner(TOPIC, 0), twin.owner(TOPIC, 1), twin.regexes) == (4, FREE, {})
    assert group.held_bytes != twin.held_bytes


def test_only_a_group_that_just_has_offsets_gives_way_to_the_rows_of_another_kind():
    key, value = ALL_ROWS[0]
    assert isinstance(KINDS.apply_row(ClassicGroup('g1'), key, value), ConsumerGroup)
    with pytest.raises(CorruptLogError):
        KINDS.apply_row(ClassicGroup('g1', protocol_type='consumer'), key, value)
    group = loaded(ALL_ROWS)
    assert KINDS.apply_row(group, ShareGroupMetadataKey(group_id='g1'), None) is group


MEMBER_IDS = st.sampled_from('abc')
NAMES = st.frozensets(st.sampled_from(['t', 'u', 'v']))


@given(st.lists(st.tuples(MEMBER_IDS, st.none() | st.tuples(NAMES, st.sampled_from(['', 't', '.*'])))))
def test_the_indexes_are_those_of_the_members(changes):
    group = ConsumerGroup('g1')
    for member_id, fields in changes:
        if fields is None:
            group.apply(*rows.member_tombstone('g1', member_id))
        else:
            names, regex = fields
            group.apply(*rows.member_row('g1', ConsumerMember(member_id=member_id, names=names, regex=regex)))
    members = group.members.values()
    assert set(group.names) == {name for member in members for name in member.names}
    assert sum(group.subscriptions.values()) == len(members)
    assert group.regexes == {regex: count for regex in ('t', '.*')
                             if (count := sum(member.regex == regex for member in members))}
    for member_id in list(group.members):
        group.apply(*rows.member_tombstone('g1', member_id))
    assert group.held_bytes == ConsumerGroup('g1').held_bytes


@given(st.lists(st.tuples(st.sampled_from(['t', '.*']), st.none() | NAMES)), NAMES)
def test_the_topics_that_expressions_match_are_counted_beside_those_that_members_name(changes, names):
    group = ConsumerGroup('g1')
    empty_bytes = group.held_bytes
    group.apply(*rows.member_row('g1', ConsumerMember(member_id='a', names=names)))
    matched = {}
    for regex, topics in changes:
        if topics is None:
            matched.pop(regex, None)
            group.apply(*rows.regex_tombstone('g1', regex))
        else:
            matched[regex] = topics
            group.apply(*rows.regex_row('g1', regex, Resolved(topics, 1, T), sorted(topics)))
    counted = [name for topics in (names, *matched.values()) for name in topics]
    assert group.names == {name: counted.count(name) for name in counted}
    for regex in matched:
        group.apply(*rows.regex_tombstone('g1', regex))
    group.apply(*rows.member_tombstone('g1', 'a'))
    assert (group.names, group.held_bytes) == ({}, empty_bytes)

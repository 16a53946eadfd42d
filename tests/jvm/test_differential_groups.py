"""Random histories of consumer groups run on Apache Kafka 4.3 and on kbroker. Answers and rows agree, step by step.

Covers KIP-848.
"""
from __future__ import annotations

import pytest
from comparisons import Comparison
from group_histories import (
    SETTINGS,
    Ask,
    Beat,
    ChangeTopic,
    Commit,
    Crash,
    FetchOffsets,
    GroupSide,
    Join,
    Leave,
    Odd,
)
from hypothesis import given
from hypothesis import strategies as st
from support.kafka.beside_kafka import repeated

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

STATIC_JOIN = r"^(?:Join\([^()]*is_static=True[^()]*\)|Odd\(.*'instance_id', 'static'.*\)): "


def rows_of(kind: str, text: str = '') -> str:
    """Return a pattern for a difference between rows that are all of this kind. The text of Kafka's rows contains
    `text`.
    """
    return rf'batch \d+: Kafka alone \[(?=.*{text}.*, kbroker alone)(?:(?!ConsumerGroup(?!{kind}\b)).)+$'


DIFFERENCES = {
    STATIC_JOIN + r'answer\.assignment\.topic_partitions: Kafka \[\], kbroker \[\{':
        'a dynamic member that joins again with an instance id gets nothing from Kafka until the next target',
    STATIC_JOIN + rows_of('CurrentMemberAssignment', r"'assigned_partitions': \[\]"):
        'the row of that member',
    r"^Join\([^()]*topics='',.*\): (" + rows_of('TargetAssignmentMember') + '|'
    r"batch 0: Kafka (\['ConsumerGroupMemberMetadata', )('ConsumerGroupTargetAssignmentMember', )+('ConsumerGroupTarget"
    r"AssignmentMetadata', 'ConsumerGroupCurrentMemberAssignment'\]), kbroker \2('[a-zA-Z]*Member', )+\4$)":
        'a member that joins without topics while a target is due is assigned topics of the other members by Kafka',
}
"""Maps a pattern to the reason for accepting the differences whose text it matches."""

SLOTS = st.sampled_from('AAABBBCCDE')
STATIC_SLOTS = st.sampled_from('DE')
OWN_TOPICS = {'A': 'a', 'B': 'ab', 'C': 'abc', 'D': 'bc', 'E': 'ac'}
"""Maps each member to its subscription in groups with the assignor uniform. The subscriptions differ, because Kafka
orders topics with equal subscriptions by a hash.
"""
SUBSCRIPTIONS = st.sampled_from(['', 'a', 'b', 'c', 'ab', 'bc', 'abc'])
REGEXES = st.sampled_from(['-(a|b)', '-.*', '-[bc]', '-x'])
REPORTS = st.sampled_from(['null', 'empty', 'last', 'both'])
SHIFTS = st.sampled_from([0, 0, 0, 0, 1, -1, -2])
ODD_FIELDS = st.fixed_dictionaries({
    'version': st.sampled_from([0, 1, 1]),
    'group_id': st.sampled_from(['', 'other']),
    'member_epoch': st.sampled_from([-3, -2, -1, 0, 1]),
    'instance_id': st.sampled_from([None, None, '', 'static']),
    'rack_id': st.sampled_from([None, None, '', ' ', 'r']),
    'rebalance_timeout_ms': st.sampled_from([-1, 60000]),
    'subscribed_topic_names': st.sampled_from([None, '', 'a']),
    'subscribed_topic_regex': st.sampled_from([None, None, '', '(']),
    'server_assignor': st.sampled_from([None, None, '', 'range', 'no-such-assignor']),
    'topic_partitions': st.sampled_from([None, '', 'a']),
})


def odd(slot, fields, names_the_group):
    """Return a heartbeat with arbitrary fields, in the group of the history or in a group with an odd name."""
    if names_the_group:
        fields = {name: value for name, value in fields.items() if name != 'group_id'}
    return Odd(slot, tuple(fields.items()))


def joins(assignor, regex):
    """Return a strategy for joins. With `range`, a third of the joins are those of static members, and a third have a
    regular expression.
    """
    if assignor == 'uniform':
        return st.builds(lambda slot: Join(slot, OWN_TOPICS[slot], assignor), SLOTS)
    return st.one_of(
        st.builds(Join, SLOTS, SUBSCRIPTIONS, st.just(assignor)),
        st.builds(Join, STATIC_SLOTS, SUBSCRIPTIONS, st.just(assignor), st.just(True)),
        st.builds(Join, SLOTS, SUBSCRIPTIONS, st.just(assignor), st.just(False), st.just(regex)))


def operations(assignor, regex):
    """Return a strategy for operations. In more than half of them, a member follows the protocol."""
    changes = st.none() if assignor == 'uniform' else SUBSCRIPTIONS
    follows = st.builds(Beat, SLOTS, st.just('last'))
    questions = st.sampled_from([
        'describe', 'describe as classic', 'delete', 'delete offsets', 'list ', 'list consumer', 'list Classic',
        'list nonsense', 'list /stable', 'list CONSUMER/Reconciling', 'list /Empty Dead'])
    return st.one_of(
        *[follows] * 8,
        *[joins(assignor, regex)] * 2,
        st.builds(Beat, SLOTS, REPORTS),
        st.builds(Beat, SLOTS, REPORTS, SHIFTS),
        st.builds(Beat, SLOTS, REPORTS, st.just(0), changes, st.booleans()),
        st.builds(Leave, SLOTS, st.sampled_from([-1, -1, -2])),
        st.builds(Crash, SLOTS),
        st.builds(ChangeTopic, st.sampled_from(['create', 'delete', 'grow']), st.sampled_from('abc')),
        st.builds(odd, st.sampled_from('AZ') if assignor == 'range' else st.just('A'), ODD_FIELDS, st.booleans()),
        st.builds(Commit, st.one_of(SLOTS, SLOTS, st.just('')), st.sampled_from('ab'), st.integers(0, 2), SHIFTS,
                  st.sampled_from([8, 9, 9, 10])),
        st.builds(FetchOffsets, st.none() | SLOTS, SHIFTS, st.sampled_from([8, 9, 10])),
        st.builds(Ask, questions))


@st.composite
def histories(draw):
    """Draw a history: the joins of a few members, followed by random operations."""
    assignor = draw(st.sampled_from(['range', 'uniform']))
    regex = draw(REGEXES)
    first = draw(st.lists(joins(assignor, regex), min_size=1, max_size=4))
    return first + draw(st.lists(operations(assignor, regex), min_size=10, max_size=50))


COMPARISON = Comparison(GroupSide, SETTINGS, DIFFERENCES)


@repeated(12)
@given(histories())
def test_kbroker_and_kafka_answer_a_history_alike(addresses, history):
    assert COMPARISON.unexplained(addresses, history) == []


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_histories_are_answered_alike(addresses, soak_count, tally):
    COMPARISON.soak(addresses, histories(), soak_count(1000), tally)


JOINED = [Join('A', 'ab', 'range'), Join('B', 'ab', 'range'), Beat('A'), Beat('A', 'last'), Beat('B', 'last')]


@pytest.mark.parametrize('history', [
    pytest.param([*JOINED, Ask('describe')], id='two members'),
    pytest.param([*JOINED, Crash('A'), Beat('B', 'last'), Ask('describe')], id='a crash'),
    pytest.param([*JOINED, Leave('A'), Beat('B', 'last'), Leave('B'), Ask('describe'), Ask('list '), Ask('delete'),
                  Ask('describe')], id='all leave'),
    pytest.param([Join('A', 'a', 'range', True), Leave('A', -2), Join('B', 'a', 'range', True), Ask('describe'),
                  Join('C', 'a', 'range', True), Beat('A')], id='a static member'),
    pytest.param([Join('A', '', 'range', False, '-.*'), Beat('A'), Beat('A', 'last'), ChangeTopic('delete', 'b'),
                  Beat('A'), Beat('A', 'last'), Ask('describe'), Leave('A')], id='a regular expression'),
    pytest.param([*JOINED, Commit('A', 'a', 0, 0, 9), Commit('A', 'a', 1, -1, 10), Commit('A', 'a', 0, 1, 9),
                  Commit('A', 'a', 0, 0, 8), Commit('', 'b', 0, 0, 9), FetchOffsets('A', 0, 10),
                  FetchOffsets('A', 1, 9), FetchOffsets(None, 0, 9), ChangeTopic('delete', 'a')], id='offsets'),
    pytest.param([Join('A', 'a', 'range'), Join('A', 'a', 'range', True)], id='a dynamic member becomes static'),
    pytest.param([Join('E', 'b', 'range', True), Join('A', 'a', 'range'), Join('D', 'ab', 'range'),
                  Join('C', 'abc', 'range'), Leave('E', -2), Join('D', 'bc', 'range', True), Beat('D', 'last'),
                  Ask('describe')], id='a dynamic member takes over from a static one'),
    pytest.param([*JOINED, ChangeTopic('grow', 'a'), Beat('A'), Beat('B'), Beat('A', 'last'), Beat('B', 'last'),
                  Ask('describe')], id='more partitions'),
    pytest.param([Join(slot, topics, 'uniform') for slot, topics in OWN_TOPICS.items()] + [
        Beat(slot, 'last') for slot in 'ABCDEABCDEABCDE'] + [Ask('describe'), Leave('C')] + [
        Beat(slot, 'last') for slot in 'ABDEABDEABDE'] + [Ask('describe')], id='uniform, five subscriptions'),
])
def test_a_history_of_the_everyday_is_answered_alike(addresses, history):
    assert COMPARISON.unexplained(addresses, history) == []


EXPRESSIONS = [
    '-a', '-(?i)A', '-(?i:B)', '-(?i)(?-i)A', '-[[:alpha:]]', '-[[:^digit:]]', '-[[:letter:]]', r'-\pL', r'-\p{Ll}',
    r'-\P{Lu}', r'-\p{^Lu}', r'-\p{Any}', r'-\pX', '-(?P<n>a)', '-(?P<n>a)|(?P<n>b)', '-(?P<>a)', '-(?P<1>a)',
    r'-\Qa\E', r'-\Qa', r'-\x61', r'-\x{62}', r'-\x{110000}', r'-\141', r'-\8', r'-\1', '-(?s).', r'-\ba', r'-\B',
    r'-\Ba', '(?m)-.$', r'-a\z', r'-a\Z', r'\A', '-(?=a)', '-(?x)a', '-(?-)a', '-(?)a', '-a**', '-a*?', '-a{1}',
    '-a{2}{3}', '-a{1001}', '-(a{100}){11}', '-a{,3}', '-a{01}', '(', ')', '[', '-[b-a]', r'-[a-\d]', '-[]a]',
    '-[^]a]', '-[a-c-]', '-a(?i)*', '-(|a)*', '\\', r'-\C', r'-\_a', r'-\q', '-a|-b', '*', '+', '|*', '-^a', '-a$',
    '-(?U)a+', '-a{99999999999}', '-[[:alpha:]', r'\p', r'-\h', r'-\pN*a']


def test_regular_expressions_are_valid_and_match_as_in_kafka(addresses):
    history = [operation for text in EXPRESSIONS
               for operation in (Join('A', '', 'range', False, text), Leave('A'))]
    assert COMPARISON.unexplained(addresses, history) == []

"""Random histories of share groups run on Apache Kafka 4.3 and on kbroker. Answers and rows agree, step by step.

Covers KIP-932.
"""
from __future__ import annotations

import pytest
from comparisons import Comparison
from group_histories import Ask, ChangeTopic, Commit, FetchOffsets, Join, Leave
from hypothesis import given
from hypothesis import strategies as st
from share_member_histories import (
    SETTINGS,
    AlterOffsets,
    DeleteRecords,
    DeleteShareOffsets,
    DescribeShareOffsets,
    Fill,
    FirstFetch,
    OddShareBeat,
    Reset,
    ShareBeat,
    ShareCrash,
    ShareJoin,
    ShareLeave,
    ShareSide,
)
from support.kafka.beside_kafka import repeated, unexplained_step

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

DIFFERENCES = {
    "^FirstFetch.*Kafka .*OFFSET_NOT_AVAILABLE":
        'Kafka does not let a group begin whose records are all older than by_duration says; kbroker begins at the end',
    r"batch 0: Kafka alone \[\], kbroker alone \[\('ShareGroupTargetAssignmentMember'(?!.*'ShareGroup(?!Target))":
        'Kafka writes no target that only loses a deleted topic',
    r"batch 0: Kafka alone \[(?=.*\('(\w\d)', \d+\).*, kbroker alone \[(?!.*'\1'))(?:(?!ShareGroup(?!Target)).)+$":
        'a target of Kafka keeps the partitions of a deleted topic',
    r"^DeleteShareOffsets\(topics='aa'\): answer\.responses: Kafka \[\{[^}]*\}, \{":
        'kbroker answers a name once that a request repeats',
}
"""Maps a pattern to the reason for accepting the differences whose text it matches. A history ends with an accepted
difference.
"""

SUBSCRIPTIONS = {
    'one topic': {'A': ['a'], 'B': ['a'], 'C': ['a'], 'D': ['a']},
    'one member': {'A': ['', 'a', 'b', 'ab', 'abc', 'z']},
    'own topics': {'A': ['a'], 'B': ['ab'], 'C': ['abc']},
}
"""The subscriptions of the members. Kafka defines no order for the partitions of several topics that members with equal
subscriptions get.
"""
SHIFTS = st.sampled_from([0, 0, 1, -1, -2])
STARTS = st.tuples(st.sampled_from('aaabcz'), st.integers(0, 2), st.sampled_from([-2, -1, 0, 1, 7]))
"""Start offsets. Kafka creates a group even for an unknown partition of a known topic."""
ODD_FIELDS = st.fixed_dictionaries({
    'member_epoch': st.sampled_from([-3, -2, -1, 0, 1]),
    'rack_id': st.sampled_from([None, None, '', ' ', 'r']),
    'subscribed_topic_names': st.sampled_from([None, '', 'a']),
}, optional={
    'group_id': st.sampled_from(['', ' ']),
    'member_id': st.sampled_from(['', ' ', 'x' * 36, 'x' * 37]),
})


def operations(subscriptions):
    """Return a strategy for operations. In about half of them, a member follows the protocol."""
    slots = st.sampled_from(list(subscriptions))
    pairs = st.sampled_from([(slot, topics) for slot, choices in subscriptions.items() for topics in choices])
    questions = st.sampled_from(['describe', 'describe', 'describe as classic', 'delete', 'delete offsets', 'list ',
                                 'list share', 'list Classic', 'list /stable', 'list SHARE/Empty', 'list /Dead'])
    return st.one_of(
        *[st.builds(ShareBeat, slots)] * 6,
        *[st.builds(lambda pair: ShareJoin(*pair), pairs)] * 2,
        st.builds(ShareBeat, slots, SHIFTS),
        st.builds(lambda pair, shift: ShareBeat(pair[0], shift, pair[1]), pairs, SHIFTS),
        st.builds(ShareLeave, slots),
        st.just(ShareLeave(''.join(subscriptions))),
        st.builds(ShareCrash, slots),
        st.builds(ChangeTopic, st.sampled_from(['create', 'delete', 'grow']), st.sampled_from('abc')),
        st.builds(lambda fields: OddShareBeat('A', tuple(fields.items())), ODD_FIELDS),
        *[st.builds(AlterOffsets, st.lists(STARTS, min_size=1, max_size=3).map(tuple))] * 2,
        *[st.builds(DeleteShareOffsets, st.sampled_from(['a', 'b', 'ab', 'z', 'az', 'c', 'aa', '']))] * 2,
        *[st.builds(DescribeShareOffsets, st.sampled_from([None, 'a', 'ab', 'z', 'c', '']), st.integers(0, 1))] * 2,
        st.builds(Fill, st.integers(0, 2), st.integers(1, 9)),
        st.builds(Commit, st.sampled_from(['', 'A']), st.just('a'), st.integers(0, 2), st.just(0), st.just(9)),
        st.just(FetchOffsets(None, 0, 9)),
        st.builds(Ask, questions))


@st.composite
def histories(draw):
    subscriptions = SUBSCRIPTIONS[draw(st.sampled_from(list(SUBSCRIPTIONS)))]
    return draw(st.lists(operations(subscriptions), min_size=10, max_size=40))


COMPARISON = Comparison(ShareSide, SETTINGS, DIFFERENCES, unexplained_step)


@repeated(6)
@given(histories())
def test_kbroker_and_kafka_answer_a_history_of_share_members_alike(addresses, history):
    assert COMPARISON.unexplained(addresses, history) == []


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_histories_of_share_members_are_answered_alike(addresses, soak_count, tally):
    COMPARISON.soak(addresses, histories(), soak_count(500), tally)


JOINED = [ShareJoin('A', 'a'), ShareJoin('B', 'a'), ShareBeat('A'), ShareBeat('B'), ShareBeat('A'), ShareBeat('B')]
EVERYWHERE = tuple((topic, partition, 1) for topic in 'abcz' for partition in (0, 4))


@pytest.mark.parametrize('history', [
    pytest.param([*JOINED, Ask('describe'), ShareLeave('A'), ShareBeat('B'), Ask('describe'), ShareLeave('B'),
                  Ask('describe'), Ask('list '), DescribeShareOffsets(None), Ask('delete'), Ask('describe')],
                 id='members come and go'),
    pytest.param([*JOINED, ShareBeat('A', -1), ShareBeat('A', 1), ShareBeat('A', -2), ShareBeat('C'),
                  ShareLeave('C'), ShareJoin('A', 'a'), ShareJoin('A', 'b'), ShareBeat('A'), ShareBeat('A', -1)],
                 id='wrong epochs'),
    pytest.param([ShareJoin('A', 'ac'), ShareBeat('A'), ChangeTopic('create', 'c'), ShareBeat('A'), ShareBeat('A'),
                  ChangeTopic('grow', 'a'), ShareBeat('A'), ShareBeat('A'), Ask('describe'),
                  ChangeTopic('delete', 'c'), ShareBeat('A'), ShareBeat('A'), Ask('describe'),
                  DescribeShareOffsets(None)], id='topics that come, grow and go'),
    pytest.param([*JOINED, Fill(0, 5), DescribeShareOffsets('az'), AlterOffsets((('a', 0, 1),)),
                  DeleteShareOffsets('a'), Ask('delete'), ShareLeave('AB'), AlterOffsets(EVERYWHERE),
                  DescribeShareOffsets('abz'), DescribeShareOffsets(None), DeleteShareOffsets('az'),
                  DeleteShareOffsets('az'), DescribeShareOffsets('a', 0), ShareJoin('A', 'a'), ShareBeat('A'),
                  Ask('describe')], id='offsets of a group with members, and without'),
    pytest.param([DeleteShareOffsets('a'), DescribeShareOffsets('a'), DescribeShareOffsets(None),
                  AlterOffsets((('z', 0, 0),)), Ask('describe'), Ask('delete'), AlterOffsets((('a', 0, 3),)),
                  Ask('describe'), Ask('list '), DeleteShareOffsets('a'), Ask('describe'), Ask('delete')],
                 id='offsets of no group'),
    pytest.param([ShareJoin('A', 'z'), ShareLeave('A'), DeleteShareOffsets('az'), DeleteShareOffsets('a'),
                  AlterOffsets((('a', 0, 3),)), DeleteShareOffsets('az'), DeleteShareOffsets('a'), Ask('delete')],
                 id='offsets of a group that has never had any'),
    pytest.param([Join('A', 'a'), ShareJoin('B', 'a'), ShareBeat('B'), ShareLeave('B'), Ask('describe'),
                  AlterOffsets((('a', 0, 3),)), DeleteShareOffsets('a'), DescribeShareOffsets('a'),
                  DescribeShareOffsets(None), Leave('A'), ShareJoin('B', 'a'), AlterOffsets((('a', 0, 3),))],
                 id='a consumer group of the name'),
    pytest.param([ShareJoin('A', 'a'), Join('B', 'a'), Commit('', 'a', 0, 0, 9), Ask('describe as classic'),
                  ShareLeave('A'), Join('B', 'a'), Commit('', 'a', 0, 0, 9), FetchOffsets(None, 0, 9)],
                 id='a consumer in a share group'),
])
def test_an_everyday_history_of_share_members_is_answered_alike(addresses, history):
    assert COMPARISON.unexplained(addresses, history) == []


HOUR_MS = 3_600_000
RECORDS = [Fill(0, 3, 5 * HOUR_MS), Fill(0, 2, 2 * HOUR_MS), Fill(0, 4), DeleteRecords(1)]
MEMBER = [ShareJoin('A', 'a'), ShareBeat('A'), ShareBeat('A')]


@pytest.mark.parametrize('value', ['earliest', 'latest', 'by_duration:P1D', 'by_duration:PT3H', 'by_duration:PT1H',
                                   'by_duration:PT4H-90M', 'by_duration:PT0S'])
def test_a_group_starts_where_its_offset_reset_says(addresses, value):
    """The first fetch finds no record. The records that are appended after it show where the group starts."""
    history = [*RECORDS, Reset(value), *MEMBER, FirstFetch('A'), Fill(0, 2), FirstFetch('B')]
    assert COMPARISON.unexplained(addresses, history) == []


def test_offset_resets_are_valid_as_in_kafka(addresses):
    assert COMPARISON.unexplained(addresses, [Reset(value) for value in (
        'none', 'EARLIEST', 'Latest', '', ' earliest', 'by_duration', 'by_duration:', 'by_duration:P', 'by_duration:PT',
        'by_duration:1h', 'by_duration:P1W', 'by_duration:P1Y', 'by_duration:-PT1H', 'by_duration:PT-1H',
        'by_duration:-PT-1H', 'by_duration:+PT1H', 'by_duration:PT2H-30M', 'by_duration:pt1.5s', 'by_duration:PT1,5S',
        'by_duration:PT.5S', 'by_duration:PT1.S', 'by_duration:P1D', 'by_duration:P1DT', 'by_duration:PT0S',
        'by_duration: PT1H', 'BY_DURATION:PT1H', 'by_duration:PT1M1H', 'by_duration:P1DT1H1M1S',
        'by_duration:PT1H:PT2H', 'by_duration:PT1.1234567890S', 'by_duration:P99999999999999999999D')]) == []

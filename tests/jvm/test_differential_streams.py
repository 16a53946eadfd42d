"""Random histories of streams groups run on Apache Kafka and on kbroker. Answers and rows agree, step by step.

Covers KIP-1071.
"""
from __future__ import annotations

import pytest
from comparisons import Comparison
from group_histories import Ask, ChangeTopic, Commit, FetchOffsets
from hypothesis import given
from hypothesis import strategies as st
from streams_histories import (
    ODD_SHAPES,
    SETTINGS,
    SHAPES,
    DeleteInternal,
    OddBeat,
    RequiredTags,
    Standbys,
    StreamsBeat,
    StreamsCrash,
    StreamsJoin,
    StreamsLeave,
    StreamsSide,
)
from support.kafka.beside_kafka import repeated, unexplained_step

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

DIFFERENCES = {
    r"^StreamsJoin\(.*shape='(one id twice|a repartition topic with -1 partitions|a copartition group of an? "
    r"(unknown|negative) (repartition )?topic)'.*error_code: Kafka '(UNKNOWN_SERVER_ERROR|"
    r"INVALID_REQUEST)', kbroker 'STREAMS_INVALID_TOPOLOGY'":
        'Kafka does not check these: it fails with an exception, or as for another topology than that of the group',
    r"^StreamsJoin\(.*shape='(one id twice|a repartition topic with -1 partitions|a copartition group of an? "
    r"(unknown|negative) (repartition )?topic)'.*error_code: Kafka 'NONE', kbroker 'STREAMS_INVALID_TOPOLOGY'":
        'Kafka does not look at a topology whose epoch is older than that of the group',
    r"^Streams.*error_code: Kafka 'UNKNOWN_SERVER_ERROR', kbroker 'NONE'":
        'Kafka cannot describe the endpoints while a topic of the topology does not exist',
    r"^Ask\(question='list /NotReady":
        'kbroker finds NotReady by the name of the state too, which Kafka shows and does not find',
}
"""Maps a pattern to the reason for accepting the differences whose text it matches. A history ends with an accepted
difference.
"""

SLOTS = st.sampled_from('AAABBBCC')
REPORTS = st.sampled_from(['null', 'empty', 'last', 'both'])
SHIFTS = st.sampled_from([0, 0, 0, 0, 1, -1, -2])
TASKS = st.sampled_from([None, None, (), ({'subtopology_id': '0', 'partitions': [0]},),
                         ({'subtopology_id': '9', 'partitions': [0]},), ({'subtopology_id': '0', 'partitions': [99]},)])
ODD_FIELDS = st.fixed_dictionaries({
    'group_id': st.sampled_from(['', ' ', None]),
    'member_epoch': st.sampled_from([-3, -2, -1, 0, 1]),
    'instance_id': st.sampled_from([None, None, None, '', 'static']),
    'rack_id': st.sampled_from([None, None, '', ' ', 'r']),
    'rebalance_timeout_ms': st.sampled_from([-1, 60000, 60000]),
    'topology': st.sampled_from([None, 'a', 'a', 'state']),
    'process_id': st.sampled_from([None, '', 'A']),
    'task_offsets': st.sampled_from([None, None, None, ()]),
    'task_end_offsets': st.sampled_from([None, None, None, ()]),
    'active_tasks': TASKS, 'standby_tasks': TASKS, 'warmup_tasks': TASKS,
})


STATIC = (('instance_id', 'one'),)
TAGGED = (('client_tags', ({'key': 'zone', 'value': 'a'},)),)
OFFSETS = (('task_offsets', tuple({'subtopology_id': '0', 'partition': number, 'offset': 5 * number}
                                  for number in range(3))), ('task_end_offsets', ()))
SHUTDOWN = (('shutdown_application', True),)
TWICE = (('task_offsets', ({'subtopology_id': '0', 'partition': 0, 'offset': 5},) * 2),)


def odd(slot, fields):
    """Return a heartbeat with arbitrary fields, in the group of the history or in a group with an odd name."""
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()
              if name != 'group_id' or value is not None}
    return OddBeat(slot, tuple(fields.items()))


def joins(shapes):
    """Return a strategy for joins. A member is in its own process or in process A, and may have an endpoint."""
    return st.builds(StreamsJoin, SLOTS, shapes, st.sampled_from(['', '', 'A']),
                     st.sampled_from([0, 0, 0, 0, 1]), st.sampled_from(['', '', 'host']),
                     st.sampled_from([*[()] * 4, STATIC, STATIC, TAGGED, OFFSETS, STATIC + TAGGED, STATIC + OFFSETS,
                                      SHUTDOWN]))


def operations(shape):
    """Return a strategy for operations. In more than half of them, a member follows the protocol."""
    shapes = st.sampled_from([shape] * 8 + [*SHAPES, *ODD_SHAPES])
    follows = st.builds(StreamsBeat, SLOTS, st.just('last'))
    questions = st.sampled_from(['describe', 'describe as classic', 'delete', 'delete offsets', 'list ', 'list streams',
                                 'list Classic', 'list /stable', 'list STREAMS/Reconciling', 'list /not_ready',
                                 'list /NotReady Empty'])
    return st.one_of(
        *[follows] * 8,
        *[joins(shapes)] * 2,
        st.builds(StreamsBeat, SLOTS, REPORTS),
        st.builds(StreamsBeat, SLOTS, REPORTS, SHIFTS),
        st.builds(StreamsBeat, SLOTS, st.just('last'), st.just(0), st.just(False), st.just('last'),
                  st.sampled_from([STATIC, STATIC, OFFSETS, TWICE, ()]), st.sampled_from([0, 1])),
        st.builds(StreamsLeave, SLOTS, st.sampled_from([-1, -2, -2]),
                  st.sampled_from([STATIC, STATIC, STATIC + SHUTDOWN])),
        st.builds(RequiredTags, st.sampled_from(['', 'zone', 'zone,rack'])),
        st.builds(StreamsBeat, SLOTS, st.just('last'), st.just(0), st.booleans(), st.sampled_from(['last', '0', '99'])),
        st.builds(StreamsLeave, SLOTS, st.sampled_from([-1, -1, -2]), st.sampled_from([(), (), SHUTDOWN])),
        st.builds(StreamsCrash, SLOTS),
        st.builds(ChangeTopic, st.sampled_from(['create', 'delete', 'grow']), st.sampled_from('abc')),
        st.builds(DeleteInternal, st.sampled_from('rs')),
        st.builds(Standbys, st.sampled_from([0, 1, 2])),
        st.builds(odd, st.sampled_from('AZ'), ODD_FIELDS),
        st.builds(Commit, st.one_of(SLOTS, SLOTS, st.just('')), st.sampled_from('ab'), st.integers(0, 2), SHIFTS,
                  st.sampled_from([8, 9, 9, 10])),
        st.builds(FetchOffsets, st.none() | SLOTS, SHIFTS, st.sampled_from([8, 9, 10])),
        st.builds(Ask, questions))


@st.composite
def histories(draw):
    """Draw a history: the joins of a few members, followed by random operations."""
    shape = draw(st.sampled_from(list(SHAPES)))
    first = draw(st.lists(joins(st.just(shape)), min_size=1, max_size=4))
    return first + draw(st.lists(operations(shape), min_size=10, max_size=40))


COMPARISON = Comparison(StreamsSide, SETTINGS, DIFFERENCES, unexplained_step)


@repeated(15)
@given(histories())
def test_kbroker_and_kafka_answer_a_history_alike(addresses, history):
    assert COMPARISON.unexplained(addresses, history) == []


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_histories_are_answered_alike(addresses, soak_count, tally):
    COMPARISON.soak(addresses, histories(), soak_count(300), tally)


JOINED = [StreamsJoin('A', 'a'), StreamsJoin('B', 'a'), StreamsBeat('A'), StreamsBeat('A', 'last'),
          StreamsBeat('B', 'last')]


@pytest.mark.parametrize('history', [
    pytest.param([*JOINED, Ask('describe')], id='two members'),
    pytest.param([StreamsJoin('A', 'a', changes=STATIC), StreamsJoin('B', 'a'), StreamsBeat('A', changes=STATIC),
                  StreamsBeat('A', 'last', changes=STATIC), StreamsBeat('B', 'last'),
                  StreamsJoin('C', 'a', changes=STATIC), StreamsLeave('A', -2), StreamsLeave('A', -2, STATIC),
                  Ask('describe'),
                  StreamsJoin('C', 'a', 'A', changes=STATIC), StreamsBeat('A', changes=STATIC),
                  StreamsBeat('C', 'last', changes=STATIC), StreamsLeave('C', -2, STATIC),
                  StreamsJoin('D', 'a', changes=STATIC), Ask('describe'), StreamsLeave('D', -1, STATIC),
                  StreamsBeat('D', changes=STATIC), StreamsLeave('B')], id='a static member'),
    pytest.param([StreamsJoin('A', 'state', changes=OFFSETS), StreamsBeat('A', changes=TWICE),
                  StreamsJoin('B', 'state', changes=OFFSETS), Standbys(1), StreamsBeat('A', 'last'),
                  StreamsBeat('B', 'last', changes=OFFSETS), StreamsLeave('A'), StreamsBeat('B', 'last'),
                  StreamsJoin('C', 'state'), StreamsBeat('B', 'last'), Ask('describe')], id='offsets of tasks'),
    pytest.param([StreamsJoin('A', 'a', changes=TAGGED), RequiredTags('zone'), StreamsBeat('A', 'last'),
                  StreamsJoin('B', 'a'), StreamsBeat('B', version=0), RequiredTags('zone,rack'),
                  StreamsBeat('A', 'last'), StreamsBeat('B', 'last'), RequiredTags(''), StreamsBeat('A', 'last')],
                 id='client tags'),
    pytest.param([*JOINED, StreamsCrash('A'), StreamsBeat('B', 'last'), Ask('describe')], id='a crash'),
    pytest.param([*JOINED[:-1], StreamsCrash('A'), StreamsJoin('A', 'a')], id='a crash, and the process comes back'),
    pytest.param([*JOINED, StreamsLeave('A'), StreamsBeat('B', 'last'), StreamsLeave('B'), Ask('describe'),
                  Ask('list '), Ask('delete'), Ask('describe')], id='all leave'),
    pytest.param([StreamsJoin('A', 'c'), StreamsBeat('A'), Ask('list /not_ready'), ChangeTopic('create', 'c'),
                  StreamsBeat('A'), ChangeTopic('delete', 'c'), StreamsBeat('A'), StreamsBeat('A', 'last'),
                  Ask('describe')], id='a source comes and goes'),
    pytest.param([StreamsJoin('A', 'count'), StreamsBeat('A'), DeleteInternal('s'), StreamsBeat('A'),
                  StreamsBeat('A', 'last'), StreamsBeat('A', 'last'), Ask('describe')],
                 id='a changelog is deleted and created again'),
    pytest.param([StreamsJoin('A', 'state'), StreamsBeat('A'), ChangeTopic('grow', 'a'), StreamsBeat('A'),
                  StreamsBeat('A', 'last'), Ask('describe')], id='a source outgrows its changelog'),
    pytest.param([Standbys(1), StreamsJoin('A', 'state'), StreamsBeat('A'), StreamsJoin('B', 'state'),
                  StreamsBeat('A', 'last'), StreamsBeat('B', 'last'), StreamsBeat('A', 'last'),
                  StreamsBeat('B', 'last'), StreamsJoin('C', 'state', 'A'), StreamsBeat('A', 'last'),
                  StreamsBeat('B', 'last'), StreamsBeat('C', 'last'), Ask('describe'), Standbys(0),
                  StreamsBeat('A', 'last'), StreamsBeat('B', 'last'), Ask('describe')], id='standby tasks'),
    pytest.param([StreamsJoin('A', 'a', endpoint='x'), StreamsJoin('B', 'a'), StreamsBeat('A', endpoints='0'),
                  StreamsBeat('A', 'last'), StreamsBeat('B', 'last', endpoints='0'), StreamsBeat('B', endpoints='99'),
                  StreamsJoin('B', 'a', endpoint='y'), StreamsBeat('A'), StreamsLeave('A'), StreamsBeat('B')],
                 id='endpoints'),
    pytest.param([StreamsJoin('B', 'a, c with state'), ChangeTopic('create', 'c'),
                  StreamsJoin('A', 'a, c with state', endpoint='x'), StreamsBeat('A', 'last')],
                 id='an endpoint with more tasks than one of its sources has partitions'),
    pytest.param([StreamsJoin('B', 'a', 'A'), StreamsJoin('A', 'a', 'A'), StreamsBeat('A', 'last'),
                  ChangeTopic('grow', 'a'), StreamsBeat('A', 'last')], id='two members of a process get new tasks'),
    pytest.param([*[StreamsJoin(slot, 'c') for slot in 'ABC'], ChangeTopic('create', 'c'),
                  *[StreamsBeat(slot, 'last') for slot in 'ABCABC'], Ask('describe')],
                 id='three members without a task get some at once'),
    pytest.param([*JOINED, StreamsBeat('A', shutdown=True), StreamsBeat('B', shutdown=True), StreamsBeat('A'),
                  StreamsLeave('A'), StreamsBeat('B'), StreamsLeave('B'), StreamsJoin('B', 'a')], id='a shutdown'),
    pytest.param([*JOINED, StreamsLeave('A', changes=SHUTDOWN), StreamsBeat('B'), StreamsLeave('B', changes=SHUTDOWN),
                  StreamsJoin('B', 'a')], id='a shutdown by a member that leaves'),
    pytest.param([StreamsJoin('A', 'count'), StreamsBeat('A', 'last'), StreamsLeave('A'), DeleteInternal('s'),
                  Ask('describe')], id='a changelog is deleted when the members have left'),
    pytest.param([StreamsJoin('A', 'a', epoch=1), StreamsJoin('B', 'a', epoch=0), StreamsJoin('C', 'a, b', epoch=0),
                  StreamsJoin('D', 'a', epoch=2), StreamsJoin('D', 'a, b', epoch=1), StreamsBeat('B'),
                  Ask('describe')], id='topologies of other epochs'),
    pytest.param([*JOINED, Commit('A', 'a', 0, 0, 9), Commit('A', 'a', 1, -1, 10), Commit('A', 'a', 0, 1, 9),
                  Commit('A', 'a', 0, 0, 8), Commit('', 'b', 0, 0, 9), FetchOffsets('A', 0, 10),
                  FetchOffsets('A', 1, 9), FetchOffsets(None, 0, 9), ChangeTopic('delete', 'a')], id='offsets'),
])
def test_a_history_of_the_everyday_is_answered_alike(addresses, history):
    assert COMPARISON.unexplained(addresses, history) == []


@pytest.mark.parametrize('shape', [*SHAPES, *ODD_SHAPES])
def test_a_topology_is_judged_alike(addresses, shape):
    assert COMPARISON.unexplained(addresses, [StreamsJoin('A', shape), StreamsBeat('A'), StreamsBeat('A', 'last'),
                                   Ask('describe')]) == []

"""Random histories of groups that change their protocol run on Apache Kafka 4.3 and on kbroker. Answers and rows agree,
step by step.

Covers KIP-848.
"""
from __future__ import annotations

import pytest
from comparisons import Comparison
from group_histories import Ask, Beat, ChangeTopic, Crash, Join, Leave
from hypothesis import given
from hypothesis import strategies as st
from migration_histories import (
    SETTINGS,
    AskForId,
    ClassicBeat,
    ClassicCommit,
    ClassicCrash,
    ClassicJoin,
    ClassicLeave,
    ClassicSync,
    Convert,
    JoinDuringRebalance,
    MixedSide,
)
from support.kafka.beside_kafka import repeated

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

TAKEOVER = r"^ClassicJoin\([^)]*is_static=True[^)]*\), fresh[^)]*\): "
DIFFERENCES = {
    TAKEOVER + r"batch 0: Kafka \[[^]]*'ConsumerGroupMetadata', 'GroupMetadata'\], "
               r"kbroker \[[^]]*'ConsumerGroupMetadata', 'GroupMetadata'\]$":
        'a classic member replaces the last static one of the consumer protocol: Kafka replaces it, then downgrades',
    TAKEOVER + r"batch 0: Kafka alone .*'GroupMetadata'.*, kbroker alone \[\('GroupMetadata'":
        'kbroker downgrades with the old member, and the classic group replaces it',
    TAKEOVER + r"answer: Kafka .*'generation_id': 0, .*, kbroker .*'error_code': 'NONE', 'generation_id': [1-9]":
        'Kafka answers that its subscription has changed with generation 0, so that it joins again; kbroker '
        'with the next generation',
    TAKEOVER + r"answer: Kafka .*'generation_id': (\d+), .*'skip_assignment': False, .*, kbroker "
               r".*'generation_id': \1, .*'skip_assignment': True, ":
        'if its subscription is the same, the classic group of kbroker answers its leader with the members',
    TAKEOVER + r"answer: Kafka .*'generation_id': (\d+), .*'skip_assignment': True, .*, kbroker "
               r".*'generation_id': \1, .*'skip_assignment': False, ":
        'a member takes over from the leader of a downgraded group, which Kafka chooses in the order of a hash table',
    TAKEOVER + r"answer: Kafka \[\[\[\('[DE]', .*, kbroker \[\[\[\('[ABC]', ":
        'where members have not yet moved to their targets, kbroker lets all members join again',
    TAKEOVER + r"batch 1: Kafka (alone )?\[\], kbroker (alone )?\[\(?'GroupMetadata'":
        'in a batch of its own',
    r"^ClassicBeat\(.*answer\.error_code: Kafka 'NONE', kbroker 'REBALANCE_IN_PROGRESS'$":
        'in a consumer group of classic members alone, Kafka assigns what a gone member had when some member joins; '
        'kbroker asks them to',
    r"^(JoinDuringRebalance\(join=)?(Join|ClassicJoin|Convert)\(slot='.', topics=''.*batch 0: Kafka "
    r".*ConsumerGroupTargetAssignmentMember":
        'a member that joins without topics while a target is due is assigned topics of the other members by Kafka',
}
"""Maps a pattern to the reason for accepting the differences whose text it matches."""

POLICIES = [pytest.param({'group.consumer.migration.policy': policy}, id=policy)
            for policy in ('bidirectional', 'upgrade', 'downgrade', 'disabled')]
CONSUMERS, CLASSICS = st.sampled_from('AABC'), st.sampled_from('ABBC')
STATIC_SLOTS = st.sampled_from('DE')
SUBSCRIPTIONS = st.sampled_from(['a', 'b', 'ab', 'ab', 'abc', ''])
PROTOCOLS = st.sampled_from([('range',), ('range',), ('range', 'roundrobin'), ('roundrobin',)])
"""The lists of protocols that classic members send. All lists have the same order, because Kafka may choose any
protocol if several get equally many votes.
"""
SHIFTS = st.sampled_from([0, 0, 0, 1, -1])

CONSUMER_JOINS = st.one_of(
    st.builds(Join, CONSUMERS, SUBSCRIPTIONS), st.builds(Join, CONSUMERS, SUBSCRIPTIONS),
    st.builds(Join, STATIC_SLOTS, SUBSCRIPTIONS, st.none(), st.just(True)))
CLASSIC_JOINS = st.one_of(
    st.builds(ClassicJoin, CLASSICS, SUBSCRIPTIONS, st.just(False), PROTOCOLS, st.just(False),
              st.sampled_from([True, True, True, False])),
    st.builds(ClassicJoin, CLASSICS, SUBSCRIPTIONS),
    st.builds(ClassicJoin, STATIC_SLOTS, SUBSCRIPTIONS, st.just(True), PROTOCOLS, st.booleans()))
OPERATIONS = st.one_of(
    *[CONSUMER_JOINS] * 3,
    *[CLASSIC_JOINS] * 4,
    *[st.builds(Beat, st.sampled_from('ABCDE'), st.just('last'))] * 5,
    st.builds(Beat, st.sampled_from('ABCDE'), st.sampled_from(['null', 'empty']), SHIFTS),
    st.builds(Leave, st.sampled_from('ABCDE'), st.sampled_from([-1, -1, -2])),
    st.builds(Leave, STATIC_SLOTS, st.just(-2)),
    st.builds(Crash, CONSUMERS),
    *[st.builds(ClassicBeat, st.sampled_from('ABCDE'), SHIFTS)] * 2,
    st.builds(ClassicSync, st.sampled_from('ABCDE'), SHIFTS),
    st.builds(ClassicLeave, st.sampled_from(['A', 'B', 'C', 'AB', 'ABC', 'DE']), st.sampled_from(['', '', 'A', 'AB']),
              st.booleans()),
    st.builds(ClassicCrash, CLASSICS),
    st.builds(Convert, CLASSICS, SUBSCRIPTIONS),
    st.builds(JoinDuringRebalance, CONSUMER_JOINS, CLASSICS, SUBSCRIPTIONS, st.sampled_from(['others', 'assignment'])),
    st.builds(ClassicCommit, CLASSICS, st.integers(0, 2), SHIFTS, st.sampled_from([8, 9])),
    st.builds(AskForId, CLASSICS),
    st.builds(ChangeTopic, st.sampled_from(['create', 'delete', 'grow']), st.sampled_from('abc')),
    st.builds(Ask, st.sampled_from(['describe', 'describe as classic', 'delete', 'list '])))


@st.composite
def histories(draw):
    """Draw a history: the joins of a few members of both protocols, followed by random operations."""
    first = draw(st.lists(draw(st.sampled_from([CONSUMER_JOINS, CLASSIC_JOINS, CLASSIC_JOINS])), min_size=1,
                          max_size=3))
    return first + draw(st.lists(OPERATIONS, min_size=8, max_size=40))


COMPARISON = Comparison(MixedSide, SETTINGS, DIFFERENCES)


@pytest.mark.parametrize('addresses', POLICIES[:1], indirect=True)
@repeated(12)
@given(histories())
def test_kbroker_and_kafka_answer_a_history_of_both_protocols_alike(addresses, history):
    assert COMPARISON.unexplained(addresses, history) == []


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize('addresses', POLICIES, indirect=True)
def test_many_histories_of_both_protocols_are_answered_alike(addresses, soak_count, tally):
    COMPARISON.soak(addresses, histories(), soak_count(250), tally)


TWO_CLASSIC = [ClassicJoin('A', 'ab'), ClassicJoin('B', 'ab')]
UPGRADED = [*TWO_CLASSIC, Join('C', 'ab')]
TURN = [ClassicJoin('A', 'ab'), ClassicJoin('B', 'ab'), Beat('C', 'last')]
MIXED = [*UPGRADED, *TURN, *TURN, *TURN]


EVERYDAY = [
    pytest.param([*MIXED, Ask('describe'), ClassicBeat('A'), ClassicSync('A')], id='an upgrade'),
    pytest.param([*MIXED, Leave('C'), Ask('list '), ClassicBeat('A'), ClassicJoin('A', 'ab'),
                  Ask('describe as classic')], id='a downgrade by leave'),
    pytest.param([Join('A', 'b'), ClassicJoin('B', ''), Leave('A'), Ask('list ')],
                 id='a downgrade with a member that reads nothing'),
    pytest.param([*MIXED, Crash('C'), ClassicJoin('B', 'ab')], id='a downgrade by the end of a session'),
    pytest.param([*MIXED, ClassicLeave('A', 'C'), ClassicJoin('B', 'ab')], id='an administrator removes both kinds'),
    pytest.param([*UPGRADED, Leave('C'), ClassicJoin('A', 'ab')], id='a downgrade before the members have moved'),
    pytest.param([*MIXED, Convert('A', 'ab'), Convert('B', 'ab'), Beat('A', 'last'), Beat('B', 'last'),
                  Beat('C', 'last'), ClassicJoin('D', 'ab', True), ClassicJoin('E', 'ab', True, fresh=True),
                  Leave('C'), Leave('A'), Leave('B'), ClassicJoin('E', 'ab', True)], id='roll over and back'),
    pytest.param([ClassicJoin('D', 'ab', True), ClassicJoin('A', 'ab'), Join('E', 'ab', None, True),
                  ClassicBeat('D'), ClassicJoin('A', 'ab'), Leave('E', -2), ClassicJoin('D', 'ab', True, fresh=True),
                  ClassicBeat('A'), Ask('list ')], id='static takeovers in both directions'),
    pytest.param([*MIXED, Leave('C'), Join('C', 'ab'), *TURN], id='a downgrade, then an upgrade in its rebalance'),
    pytest.param([Join('D', 'b', None, True), ClassicJoin('D', 'b', True)], id='a lone static member goes back'),
    pytest.param([*TWO_CLASSIC, JoinDuringRebalance(Join('C', 'ab'), 'C', 'ab', 'others'), *TURN],
                 id='a join that waits'),
    pytest.param([*TWO_CLASSIC, JoinDuringRebalance(Join('C', 'ab'), 'C', 'ab', 'assignment'), *TURN],
                 id='a sync that waits'),
    pytest.param([Join('A', 'ab'), AskForId('B'), ClassicJoin('B', 'ab'), ClassicCommit('B', 0),
                  ClassicCommit('B', 1, -1), ClassicCommit('B', 1, 1), ClassicCommit('B', 2, 0, 9), Beat('A', 'last'),
                  Beat('A', 'last'), ClassicBeat('B'), ClassicJoin('B', 'ab'), ClassicSync('B', 1), ClassicCrash('B')],
                 id='a classic member in a consumer group'),
]


@pytest.mark.parametrize('addresses', POLICIES[:1], indirect=True)
@pytest.mark.parametrize('history', EVERYDAY)
def test_a_migration_of_the_everyday_is_answered_alike(addresses, history):
    assert COMPARISON.unexplained(addresses, history) == []


@pytest.mark.parametrize('addresses', POLICIES[1:], indirect=True)
@pytest.mark.parametrize('history', EVERYDAY[:3])
def test_each_policy_allows_or_refuses_as_kafka_s(addresses, history):
    assert COMPARISON.unexplained(addresses, history) == []

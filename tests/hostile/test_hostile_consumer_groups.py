"""Attacks with consumer groups (KIP-848): crowds, wrong epochs, huge subscriptions, expressions that do not compile."""
from __future__ import annotations

import pytest
from hostile.siege import create, replies_to
from support.brokers.in_process_broker import frame_of, read_answer

from kbroker.base.errors import ErrorCode
from kbroker.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ListGroupsRequest,
)

# The session time-out is so long that no session ends, however slow the machine is.
SETTINGS = {'offsets.topic.num.partitions': '1', 'group.consumer.session.timeout.ms': '600000',
            'group.consumer.max.session.timeout.ms': '600000'}


def heartbeat(member_id, epoch=0, group_id='crowd', **fields):
    if epoch == 0:
        fields = {'rebalance_timeout_ms': 600_000, 'topic_partitions': [], 'subscribed_topic_names': ['t'], **fields}
    return ConsumerGroupHeartbeatRequest(group_id=group_id, member_id=member_id, member_epoch=epoch, **fields)


def all_answers(client, requests):
    """Send the heartbeats, many of them at once. Return the answers."""
    requests = list(requests)
    frames = [frame_of(request, 1) for request in requests]
    return [read_answer(request, 1, reply)
            for request, reply in zip(requests, replies_to(client, frames), strict=True)]


def prepare(broker, partitions=100):
    """Create the topic t and `__consumer_offsets`."""
    with broker.connect() as client:
        create(client, 't', partitions)
    broker.find_coordinator()


def groups_of(client):
    return {group.group_id for group in client.ask(ListGroupsRequest(states_filter=[], types_filter=[]), 5).groups}


@pytest.mark.parametrize(('members', 'rss_mb'), [(1_000, 150), pytest.param(10_000, 300, marks=pytest.mark.soak)])
def test_a_crowd_of_members_joins_lives_and_leaves(besieged, members, rss_mb):
    broker = besieged(SETTINGS)
    prepare(broker)
    ids = [f'member-{number}' for number in range(members)]
    with broker.watched(rss_mb=rss_mb), broker.connect() as attacker:
        joined = all_answers(attacker, [heartbeat(member_id) for member_id in ids])
        assert {answer.error_code for answer in joined} == {0}
        epochs = {answer.member_id: answer.member_epoch for answer in joined}
        for _ in range(2):
            for answer in all_answers(attacker, [heartbeat(member_id, epoch) for member_id, epoch in epochs.items()]):
                assert answer.error_code == 0
                epochs[answer.member_id] = answer.member_epoch
        described = attacker.ask(ConsumerGroupDescribeRequest(
            group_ids=['crowd'], include_authorized_operations=False), 1).groups[0]
        assert (described.error_code, len(described.members)) == (0, members)
        left = all_answers(attacker, [heartbeat(member_id, -1) for member_id in ids])
        assert {answer.error_code for answer in left} == {0}


def test_heartbeats_with_wrong_epochs_members_and_groups(besieged):
    broker = besieged(SETTINGS)
    prepare(broker)
    with broker.connect() as attacker:
        assert attacker.ask(heartbeat('m'), 1).error_code == 0
        with broker.watched(rss_mb=150):
            wrong = [heartbeat('m', 2**31 - 1), heartbeat('m', -3), heartbeat('m', -2), heartbeat('nobody', 2),
                     heartbeat('nobody', -1), heartbeat('m', 2, group_id='none'), heartbeat('', 0),
                     heartbeat('n', subscribed_topic_names=None), heartbeat('n', server_assignor='none'),
                     heartbeat('n', subscribed_topic_regex='('), heartbeat('n', rebalance_timeout_ms=-1)]
            answers = all_answers(attacker, wrong * 2_000)
        codes = [ErrorCode(answer.error_code).name for answer in answers]
        assert codes[:len(wrong)] == ['FENCED_MEMBER_EPOCH', 'INVALID_REQUEST', 'INVALID_REQUEST', 'UNKNOWN_MEMBER_ID',
                         'UNKNOWN_MEMBER_ID', 'GROUP_ID_NOT_FOUND', 'INVALID_REQUEST', 'INVALID_REQUEST',
                         'UNSUPPORTED_ASSIGNOR', 'INVALID_REGULAR_EXPRESSION', 'INVALID_REQUEST']
        assert codes == codes[:len(wrong)] * 2_000
        assert attacker.ask(heartbeat('m', 2), 1).error_code == 0
        assert groups_of(attacker) == {'crowd'}


def test_subscriptions_to_a_hundred_thousand_topics(besieged):
    broker = besieged(SETTINGS)
    prepare(broker)
    with broker.watched(rss_mb=200), broker.connect() as attacker:
        names = [f'topic-{number}' for number in range(100_000)]
        for _ in range(5):
            assert attacker.ask(heartbeat('m', subscribed_topic_names=names), 1).error_code == ErrorCode.INVALID_REQUEST
        assert groups_of(attacker) == set()


def test_members_that_name_ten_thousand_topics_each(besieged):
    broker = besieged(SETTINGS | {'kbroker.group.memory.max.bytes': '16777216'})
    prepare(broker)
    with broker.watched(rss_mb=250), broker.connect() as attacker:
        codes = []
        for member in range(10):
            names = [f'{member}-{number}' for number in range(10_000)]
            codes.append(attacker.ask(heartbeat(f'm{member}', subscribed_topic_names=names), 1).error_code)
        assert codes[0] == 0
        assert codes[-1] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_an_assignment_that_names_a_hundred_thousand_partitions(besieged):
    broker = besieged(SETTINGS)
    prepare(broker)
    with broker.watched(rss_mb=200), broker.connect() as attacker:
        joined = attacker.ask(heartbeat('m'), 1)
        owned = [ConsumerGroupHeartbeatRequest.TopicPartitions(
            topic_id=joined.assignment.topic_partitions[0].topic_id, partitions=list(range(100_000)))]
        for _ in range(10):
            assert attacker.ask(heartbeat('m', 2, topic_partitions=owned), 1).error_code == 0
            assert attacker.ask(heartbeat('m', 1, topic_partitions=owned), 1).error_code == (
                ErrorCode.FENCED_MEMBER_EPOCH)
        many = [ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=number.to_bytes(16, 'big'), partitions=[0])
                for number in range(100_000)]
        for _ in range(5):
            assert attacker.ask(heartbeat('m', 2, topic_partitions=many), 1).error_code == 0


def test_expressions_that_are_expensive_to_compile_or_to_match(besieged):
    broker = besieged(SETTINGS)
    prepare(broker)
    with broker.connect() as client:
        for number in range(300):
            create(client, 'a' * 200 + f'-{number}', 1)
        client.ask(heartbeat('m', subscribed_topic_regex='a'), 1)     # the first one imports the engine, which is slow
    expensive = ['(' * 90 + 'a' + ')' * 90, '(a*)*b', '(a|a)*b', '(a?){200}a{200}b', '.*' * 200 + 'b', 'a{1000}',
                 '(x{100}){100}', '[' + 'a-z' * 1_000 + ']*', '|'.join('a' * number for number in range(1, 60)),
                 '(?i)' + 'aB' * 700, 'x' * 4_000]
    with broker.watched(rss_mb=150), broker.connect() as attacker:
        for round_ in range(5):
            for number, regex in enumerate(expensive):
                answer = attacker.ask(heartbeat('m', group_id=f'g{round_}-{number}', subscribed_topic_names=None,
                                                subscribed_topic_regex=regex), 1)
                assert answer.error_code in (0, ErrorCode.INVALID_REGULAR_EXPRESSION)


def test_many_groups_of_one_member_each(besieged):
    broker = besieged(SETTINGS | {'kbroker.group.memory.max.bytes': '20000000'})
    prepare(broker, 1)
    with broker.watched(rss_mb=150), broker.connect() as attacker:
        codes = [answer.error_code for answer in all_answers(attacker, [
            heartbeat('m', group_id=f'g{number}') for number in range(10_000)])]
        assert codes[0] == 0
        assert codes[-1] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

"""Attacks with groups: crowds of members, member ids that are never used, long names."""
from __future__ import annotations

import pytest
from hostile.siege import many_connections, replies_to
from support.brokers.in_process_broker import frame_of, read_answer

from kbroker.base.errors import ErrorCode
from kbroker.protocol.messages import JoinGroupRequest


def join_request(group_id='crowd', member_id='', protocols=1):
    return JoinGroupRequest(
        group_id=group_id, session_timeout_ms=600_000, rebalance_timeout_ms=600_000, member_id=member_id,
        protocol_type='consumer',
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=f'p{index}', metadata=b'\0\0\0\0\0\0')
                   for index in range(protocols)])


@pytest.mark.parametrize(('members', 'worst_limit_ms'), [
    # All connections send at the same moment. The broker serves each of them once before it serves the good client
    # again.
    (4_000, 100),
    pytest.param(10_000, 120, marks=pytest.mark.soak)])
def test_a_crowd_of_members_joins_one_group(besieged, members, worst_limit_ms):
    broker = besieged({'group.initial.rebalance.delay.ms': '5000'})
    broker.find_coordinator()
    with broker.watched(rss_mb=200, worst_limit_ms=worst_limit_ms), many_connections(broker, members) as clients:
        request = join_request()
        for client in clients:
            client.send(frame_of(request, 3))
        generations = {read_answer(request, 3, client.receive()).generation_id for client in clients}
        assert generations == {1}


def test_member_ids_are_asked_for_and_never_used(besieged):
    broker = besieged()
    broker.find_coordinator()
    with broker.watched(rss_mb=200), broker.connect() as attacker:
        frame = frame_of(join_request(), 9)
        for _ in replies_to(attacker, [frame] * 50_000):
            pass


def test_groups_with_long_names(besieged):
    broker = besieged({'kbroker.group.memory.max.bytes': '67108864'})
    broker.find_coordinator()
    with broker.watched(rss_mb=200), broker.connect() as attacker:
        for index in range(5_000):
            attacker.ask(join_request(f'{index}' + 'g' * 32_000), 9)


def test_members_that_offer_a_hundred_thousand_assignors(besieged):
    broker = besieged()
    broker.find_coordinator()
    with broker.watched(rss_mb=150), broker.connect() as attacker:
        for _ in range(20):
            answer = attacker.ask(join_request(protocols=100_000), 9)
            assert answer.error_code == ErrorCode.INVALID_REQUEST

"""No part of a share request holds the loop for long, however many records the request acknowledges one by one."""
from __future__ import annotations

import gc
import time

import pytest
from share_client import ACCEPT, RELEASE, ShareClient, ranges
from support.brokers.in_process_broker import InProcessBroker
from support.runner.attempts import assert_within

from kbroker.base.errors import ErrorCode
from kbroker.base.turn_watch import TurnWatch

LOCKS = 10_000
LONGEST_TURN_S = 0.010
GROUP_RESOURCE = 32


@pytest.fixture
def member(client, member):
    """Return a member that has acquired as many records as may be in flight."""
    assert client.alter(GROUP_RESOURCE, 'g1', share_partition_max_record_locks=str(LOCKS)) == 0
    for _ in range(10):
        client.produce(client.batch(*[b'v'] * (LOCKS // 10)))
    assert sum(last - first + 1 for first, last, _ in ranges(
        member.fetch_shares(max_records=LOCKS, max_bytes=1 << 24))) == LOCKS
    return member


@pytest.fixture
def watch():
    return TurnWatch(measures_cpu=True)


@pytest.fixture
def node(tmp_path, watch):
    with InProcessBroker(tmp_path, {'group.share.max.partition.max.record.locks': str(LOCKS)}, watch=watch) as node:
        yield node


def longest_turn_s(member, watch, begin):
    """Begin a request, and return the processor time in seconds of the longest turn until the broker answers it.
    Garbage collection is off."""
    node = member.broker
    ends_s = []
    end_tick = node.end_tick

    def timed_end():
        began_s = time.thread_time()
        end_tick()
        ends_s.append(time.thread_time() - began_s)

    node.end_tick = timed_end
    gc.collect()
    gc.disable()
    try:
        parked = begin()
        while not parked.is_answered:
            node.turn()
    finally:
        gc.enable()
    assert parked.answer.responses[0].partitions[0].error_code == 0
    return max(*ends_s, watch.longest_turn_us / 1e6)


def acknowledge(member, batches):
    return member.begin('ShareAcknowledge', 2, connection=member.connection, group_id=member.group_id,
                        member_id=member.member_id, share_session_epoch=member.epoch, topics=[
                            {'topic_id': member.topic_id, 'partitions': [
                                {'partition_index': 0, 'acknowledgement_batches': batches}]}])


def test_records_acknowledged_one_by_one_are_written_in_short_turns(member, watch):
    batches = [{'first_offset': offset, 'last_offset': offset,
                'acknowledge_types': [ACCEPT if offset % 2 else RELEASE]} for offset in range(LOCKS)]
    longest_s = longest_turn_s(member, watch, lambda: acknowledge(member, batches))
    (live,) = member.broker.share_partitions._live.values()
    assert live.records.runs_count == LOCKS
    assert_within(longest_s, LONGEST_TURN_S)


def test_a_type_for_each_record_is_taken_in_short_turns(member, watch):
    batches = [{'first_offset': 0, 'last_offset': LOCKS - 1,
                'acknowledge_types': [ACCEPT, RELEASE] * (LOCKS // 2)}]
    longest_s = longest_turn_s(member, watch, lambda: acknowledge(member, batches))
    assert_within(longest_s, LONGEST_TURN_S)


def test_more_acknowledgements_than_records_in_flight_change_nothing(member):
    batches = [{'first_offset': 0, 'last_offset': 0, 'acknowledge_types': [ACCEPT]}] * 20_001
    assert acknowledged_code(member, batches) == ErrorCode.INVALID_REQUEST
    batches = [{'first_offset': 0, 'last_offset': 20_000, 'acknowledge_types': [ACCEPT] * 20_001}]
    assert acknowledged_code(member, batches) == ErrorCode.INVALID_REQUEST
    assert member.say(0, LOCKS - 1) == 0


def acknowledged_code(member, batches):
    parked = acknowledge(member, batches)
    member.settle()
    answer = parked.answer
    member.advance(answer)
    return answer.responses[0].partitions[0].error_code


def test_an_acknowledgement_that_names_a_record_twice_changes_nothing(member):
    batches = [{'first_offset': 0, 'last_offset': 1, 'acknowledge_types': [ACCEPT]},
               {'first_offset': 1, 'last_offset': 1, 'acknowledge_types': [RELEASE]}]
    assert acknowledged_code(member, batches) == ErrorCode.INVALID_RECORD_STATE
    assert member.say(0, LOCKS - 1) == 0


def test_the_first_fault_of_an_acknowledgement_is_answered(member):
    other = ShareClient(member.broker, member.topic_id, 'm2')
    other.fetch_shares()
    batches = [{'first_offset': offset, 'last_offset': offset, 'acknowledge_types': [ACCEPT]}
               for offset in (0, 2 * LOCKS)]
    assert acknowledged_code(other, batches) == ErrorCode.INVALID_RECORD_STATE
    assert acknowledged_code(member, batches) == ErrorCode.INVALID_REQUEST

"""A broker is killed while a group changes between the classic and the consumer protocol. After the restart the group
uses one of the two, and still has its offsets.

A classic member stays in the group. A member of the consumer protocol joins it, which upgrades the group. When the new
member leaves, the group is downgraded. The test kills the broker at a random moment during the upgrade and during the
downgrade.

Covers KIP-848, and promise 2 of docs/design.md.
"""
from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from support.brokers.broker_process import BrokerProcess
from support.brokers.in_process_broker import frame_of
from support.clients.promises import findings_in
from support.clients.raw_client import RawClient
from support.messages.message_builder import build

from kbroker.base.errors import ErrorCode
from kbroker.client.assignor import decode_assignment, encode_assignment, encode_subscription

GROUP, TOPIC, PARTITIONS = 'rolled', 'orders', 4
NEWCOMER = 'newcomer'
DEFAULT_ROUNDS = 12
SOAK_ROUNDS = 200
LONGEST_DELAY_S = 0.02
SESSION_MS, REBALANCE_MS = 120_000, 120_000
SETTINGS = {'group.initial.rebalance.delay.ms': '0', 'group.consumer.assignment.interval.ms': '0',
            'group.consumer.min.assignment.interval.ms': '0', 'offsets.topic.num.partitions': '2'}
TRANSIENT = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
EVERYTHING = {(TOPIC, partition) for partition in range(PARTITIONS)}


class RolledGroup:
    """The group as its two members see it."""

    def __init__(self, broker: BrokerProcess):
        self.broker = broker
        self.client: RawClient
        self.topic_id = b''
        self.member_id = ''
        self.generation = -1
        self.owned: set[Any] = set()
        self.epoch = 0
        self.assigned: set[Any] = set()
        self.committed = 0
        self.connect()

    def connect(self) -> None:
        self.client = RawClient.at(self.broker.address)
        while self.ask('FindCoordinator', 4, coordinator_keys=[GROUP], key_type=0).coordinators[0].error_code:
            pass

    def request(self, api: str, **fields: Any) -> Any:
        return build(f'{api}Request', **fields)

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        while True:
            answer = self.client.ask(self.request(api, **fields), version)
            if getattr(answer, 'error_code', 0) not in TRANSIENT:
                return answer

    def kill_during(self, request: Any, version: int, delay_s: float | None) -> None:
        """Send a request, kill the broker after `delay_s`, and restart it. With None, kill the broker after its answer.
        """
        self.client.send(frame_of(request, version))
        if delay_s is None:
            self.client.receive()
        else:
            threading.Event().wait(delay_s)
        self.broker.kill9()
        self.client.close()
        self.broker.start()
        self.connect()

    def group_type(self) -> str:
        found = [group.group_type for group in self.ask('ListGroups', 5).groups if group.group_id == GROUP]
        assert len(found) == 1, found
        return found[0]

    # ---- the classic member

    def join_classic(self) -> None:
        """Join and sync until the broker no longer asks the member to join again."""
        while True:
            answer = self.ask('JoinGroup', 9, group_id=GROUP, member_id=self.member_id, session_timeout_ms=SESSION_MS,
                              rebalance_timeout_ms=REBALANCE_MS, protocol_type='consumer', protocols=[
                                  dict(name='range', metadata=encode_subscription([TOPIC], self.owned))])
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
                continue
            assert answer.error_code == 0, answer
            self.member_id, self.generation = answer.member_id, answer.generation_id
            assignments = [dict(member_id=self.member_id, assignment=encode_assignment(EVERYTHING))]
            synced = self.ask('SyncGroup', 5, group_id=GROUP, member_id=self.member_id, generation_id=self.generation,
                              protocol_type='consumer', protocol_name='range',
                              assignments=assignments if answer.leader else [])
            if synced.error_code != ErrorCode.REBALANCE_IN_PROGRESS:
                assert synced.error_code == 0, synced
                self.owned = set(decode_assignment(synced.assignment))
                return

    def beat_classic(self) -> int:
        return int(self.ask('Heartbeat', 4, group_id=GROUP, member_id=self.member_id,
                            generation_id=self.generation).error_code)

    # ---- the member of the consumer protocol

    def newcomers_join(self) -> Any:
        return self.request('ConsumerGroupHeartbeat', group_id=GROUP, member_id=NEWCOMER, member_epoch=0,
                            rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=[TOPIC], topic_partitions=[])

    def newcomers_leave(self) -> Any:
        return self.request('ConsumerGroupHeartbeat', group_id=GROUP, member_id=NEWCOMER, member_epoch=-1)

    def send_for_newcomer(self, request: Any) -> Any:
        answer = self.client.ask(request, 1)
        while answer.error_code in TRANSIENT:
            answer = self.client.ask(request, 1)
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            assert {topic.topic_id for topic in answer.assignment.topic_partitions} <= {self.topic_id}
            self.assigned = {(TOPIC, partition) for topic in answer.assignment.topic_partitions
                         for partition in topic.partitions}
        return answer

    def beat_newcomer(self) -> None:
        self.send_for_newcomer(self.request(
            'ConsumerGroupHeartbeat', group_id=GROUP, member_id=NEWCOMER, member_epoch=self.epoch,
            topic_partitions=[dict(topic_id=self.topic_id, partitions=[number for _, number in sorted(self.assigned)])]
            if self.assigned else []))

    # ---- offsets

    def commit(self, member_id: str, epoch: int) -> None:
        answer = self.ask('OffsetCommit', 9, group_id=GROUP, member_id=member_id, generation_id_or_member_epoch=epoch,
                          topics=[dict(name=TOPIC, partitions=[dict(
                              partition_index=0, committed_offset=self.committed + 1, committed_metadata='')])])
        assert answer.topics[0].partitions[0].error_code == 0, answer
        self.committed += 1

    def check_offsets(self) -> None:
        while True:
            answer = self.ask('OffsetFetch', 9, require_stable=True, groups=[dict(
                group_id=GROUP, topics=[dict(name=TOPIC, partition_indexes=[0])])])
            if answer.groups[0].error_code not in TRANSIENT:
                break
        assert answer.groups[0].topics[0].partitions[0].committed_offset == self.committed


def upgrade(group: RolledGroup, delay_s: float | None) -> str:
    """Kill the broker during an upgrade. Return the type of the group that the restart found."""
    group.kill_during(group.newcomers_join(), 1, delay_s)
    found = group.group_type()
    group.check_offsets()
    assert group.beat_classic() == (ErrorCode.REBALANCE_IN_PROGRESS if found == 'consumer' else ErrorCode.NONE)
    group.assigned = set()
    group.send_for_newcomer(group.newcomers_join())
    while len(group.owned) + len(group.assigned) != PARTITIONS or group.beat_classic() or not group.assigned:
        group.join_classic()
        group.beat_newcomer()
    assert group.owned | group.assigned == EVERYTHING
    assert group.group_type() == 'consumer'
    group.commit(NEWCOMER, group.epoch)
    return found


def downgrade(group: RolledGroup, delay_s: float | None) -> str:
    """Kill the broker during a downgrade. Return the type of the group that the restart found."""
    group.kill_during(group.newcomers_leave(), 1, delay_s)
    found = group.group_type()
    group.check_offsets()
    if found == 'consumer':
        assert group.beat_classic() == ErrorCode.NONE
        group.send_for_newcomer(group.newcomers_leave())
    group.join_classic()
    assert group.owned == EVERYTHING
    assert group.group_type() == 'classic'
    assert group.beat_classic() == ErrorCode.NONE
    group.commit(group.member_id, group.generation)
    return found


def run_rounds(directory: Any, rounds: int, durability: str) -> set[tuple[str, str]]:
    """Run the rounds. Return the set of (`upgrade` or `downgrade`, type of the group after the restart)."""
    rng = random.Random(7)
    found = set()
    with BrokerProcess(directory, {**SETTINGS, 'kbroker.durability': durability}) as broker:
        group = RolledGroup(broker)
        created = group.ask('CreateTopics', 7, timeout_ms=30000, topics=[
            dict(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)])
        group.topic_id = created.topics[0].topic_id
        group.join_classic()
        group.commit(group.member_id, group.generation)
        for number in range(rounds):
            delay_s = rng.random() * LONGEST_DELAY_S if number else None
            found.add(('upgrade', upgrade(group, delay_s)))
            found.add(('downgrade', downgrade(group, delay_s)))
        group.client.close()
        broker.stop()
    assert findings_in(str(directory)) == []
    return found


@pytest.mark.parametrize('durability', ['disk', 'page-cache'])
def test_a_group_goes_on_in_one_protocol_when_its_broker_is_killed_during_a_migration(tmp_path, durability):
    found = run_rounds(tmp_path / 'data', DEFAULT_ROUNDS, durability)
    assert {('upgrade', 'consumer'), ('downgrade', 'classic')} <= found


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_group_goes_on_when_its_broker_is_killed_during_hundreds_of_migrations(tmp_path, soak_count, tally):
    rounds = soak_count(SOAK_ROUNDS, DEFAULT_ROUNDS)
    run_rounds(tmp_path / 'data', rounds, 'disk')
    tally('kills of a broker, a client or an application', rounds)

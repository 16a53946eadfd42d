"""Apache Kafka 4.4 on the directory of a killed kbroker writes the dead letters that kbroker has not written, and no
others. The directory then returns to kbroker.

Covers KIP-1191.
"""
from __future__ import annotations

import base64
import time
import uuid

import pytest
from support.clients.raw_client import RawClient
from support.kafka.apache_kafka import KafkaProcess
from support.messages.message_builder import build
from support.worlds.dead_letter_world import (
    GROUP,
    GROUP_CONFIGS,
    PARTITIONS,
    QUEUE,
    QUEUE_PARTITIONS,
    DeadLetterWorld,
    once,
)

from kbroker.base.clock import Clock, ManualClock
from kbroker.daemon.hand_over import hand_over
from kbroker.settings.config import Config

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

LIMIT_S = 240
RECORDS = 8
WRITTEN = [(0, 0), (0, 1), (2, 4)]
WAITING = [(0, 2), (1, 0), (1, 1), (2, 5)]


def test_kafka_continues_with_the_dead_letters_that_a_killed_kbroker_has_not_written(tmp_path):
    directory = tmp_path / 'data'
    clock = ManualClock(Clock().wall_ms())
    with DeadLetterWorld(directory, clock) as world:
        world.prepare(group={**GROUP_CONFIGS, 'share.delivery.count.limit': '10'})
        for partition in range(PARTITIONS):
            world.produce(partition, *[(b'k', b'v')] * RECORDS)
        world.fetch()
        world.reject(*WRITTEN)
        world.hold_worker()
        world.reject(*WAITING)
        assert world.places() == once(WRITTEN) and world.archiving() == set(WAITING)
        topic_id = world.key(0).topic_id
        world.broker.crash()
    hand_over(Config({'log.dirs': str(directory)}))
    with KafkaProcess(directory, {'share.coordinator.state.topic.num.partitions': '2'}, '4.4') as kafka:
        with RawClient.at(kafka.address, 30) as client:
            await_dead_letters(client, topic_id, len(WRITTEN) + len(WAITING))
        kafka.stop()
    with DeadLetterWorld(directory, ManualClock(Clock().wall_ms())) as world:
        world.settle()
        assert world.archiving() == set() and world.places() == once([*WRITTEN, *WAITING])
        delivered = set(world.fetch())
        assert delivered == {(partition, offset) for partition in range(PARTITIONS) for offset in range(RECORDS)} - {
            *WRITTEN, *WAITING}


def await_dead_letters(client: RawClient, topic_id: bytes, count: int) -> None:
    """Load the share partitions by fetches, and wait until the queue has `count` records.

    A fetch loads nothing if Kafka does not know the topic yet, so it is repeated, each time in a new session. The loop
    has a deadline, because `hand_over` has ended the alarm of pytest-timeout.
    """
    session, deadline, found = uuid.uuid4(), time.monotonic() + LIMIT_S, 0
    fetch = build(
        'ShareFetchRequest', group_id=GROUP, member_id=base64.urlsafe_b64encode(session.bytes).decode().rstrip('='),
        share_session_epoch=0, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, max_records=1, batch_size=1,
        share_acquire_mode=0, topics=[{'topic_id': topic_id, 'partitions': [
            {'partition_index': index} for index in range(PARTITIONS)]}])
    while found < count:
        assert time.monotonic() < deadline, f'found {found} dead letters, expected {count}'
        client.ask(fetch, 2)
        topic, = client.ask(build('ListOffsetsRequest', replica_id=-1, topics=[{'name': QUEUE, 'partitions': [
            {'partition_index': index, 'timestamp': -1} for index in range(QUEUE_PARTITIONS)]}]), 7).topics
        found = sum(max(0, partition.offset) for partition in topic.partitions)
    assert found == count

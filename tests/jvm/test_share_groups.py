"""Kafka's Java share consumer and `kafka-share-groups` work with a live broker.

Covers KIP-932.
"""
from __future__ import annotations

import pytest
from confluent_kafka import Producer
from support.clients.librdkafka import create_topics
from support.kafka.apache_kafka import run_tool

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

COMMAND = 'org.apache.kafka.tools.consumer.group.ShareGroupCommand'
CONSUMER = 'org.apache.kafka.tools.consumer.ConsoleShareConsumer'


def test_a_share_group_is_reset_read_described_and_deleted(shared_broker):
    topic = group = 'shared-by-java'
    server = '--bootstrap-server', shared_broker.address
    create_topics(shared_broker.address, **{topic: 3})
    run_tool(COMMAND, *server, '--group', group, '--reset-offsets', '--to-earliest', '--topic', topic, '--execute')
    values = [f'v{number}' for number in range(300)]
    producer = Producer({'bootstrap.servers': shared_broker.address})
    for number, value in enumerate(values):
        producer.produce(topic, value.encode(), partition=number % 3)
    assert producer.flush(60) == 0
    output = run_tool(CONSUMER, *server, '--topic', topic, '--group', group, '--max-messages', '300',
                      '--timeout-ms', '60000')
    assert sorted(word for word in output.split() if word in set(values)) == sorted(values)
    described = run_tool(COMMAND, *server, '--group', group, '--describe')
    assert {(row[2], row[4]) for row in map(str.split, described.splitlines()) if row[:1] == [group]} == {
        ('0', '0'), ('1', '0'), ('2', '0')}
    assert 'Successful' in run_tool(COMMAND, *server, '--group', group, '--delete-offsets', '--topic', topic)
    run_tool(COMMAND, *server, '--group', group, '--delete')
    assert group not in run_tool(COMMAND, *server, '--list')

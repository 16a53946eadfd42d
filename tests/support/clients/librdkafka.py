"""Common uses of librdkafka's clients: creating topics, and reading partitions to their ends."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

LIMIT_S = 120


def create_topics(address: str, *topics: NewTopic, **partitions: int) -> None:
    """Create topics. A keyword argument is the name of a topic with its number of partitions."""
    topics += tuple(NewTopic(name, count, 1) for name, count in partitions.items())
    admin = AdminClient({'bootstrap.servers': address})
    for created in admin.create_topics(list(topics)).values():
        created.result(LIMIT_S)


def read_to_the_end(address: str, partitions: Iterable[tuple[str, int]],
                    isolation: str = 'read_committed') -> list[Any]:
    """Return all messages of these partitions, up to their current ends."""
    consumer = Consumer({'bootstrap.servers': address, 'group.id': 'inspector', 'isolation.level': isolation,
                         'enable.partition.eof': True, 'enable.auto.commit': False, 'log_level': 0})
    left = set(partitions)
    consumer.assign([TopicPartition(*each, OFFSET_BEGINNING) for each in sorted(left)])
    messages = []
    while left:
        message = consumer.poll(LIMIT_S)
        assert message is not None, f'{sorted(left)}: found neither a record nor the end in {LIMIT_S} s'
        if message.error() is None:
            messages.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            left.discard((message.topic(), message.partition()))
    consumer.close()
    return messages


def values_of(address: str, topic: str, partitions: Iterable[int], isolation: str = 'read_committed') -> list[str]:
    """Return the values in these partitions of a topic, in the order of the partitions."""
    messages = read_to_the_end(address, [(topic, partition) for partition in partitions], isolation)
    return [message.value().decode() for message in sorted(messages, key=lambda message: message.partition())]


def committed_offset(address: str, group: str, topic: str, partition: int = 0) -> int:
    """Return the offset that a group has committed."""
    consumer = Consumer({'bootstrap.servers': address, 'group.id': group})
    found, = consumer.committed([TopicPartition(topic, partition)], LIMIT_S)
    consumer.close()
    return int(found.offset)

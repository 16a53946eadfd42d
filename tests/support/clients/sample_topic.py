"""A topic with data of every kind, for tests that read the topic with command-line tools."""
import contextlib
from collections.abc import Iterator

import confluent_kafka
from confluent_kafka import TopicPartition
from support.clients.librdkafka import LIMIT_S, create_topics

TRANSACTION_TIMEOUT_MS = 600_000
"""A timeout so long that the broker does not abort the open transaction, however slow the machine is."""


@contextlib.contextmanager
def sample_topic(address: str) -> Iterator[None]:
    """Write `orders` with two partitions: 20 records outside transactions, and a committed, an aborted and an open
    transaction.

    The group `readers` has committed offset 10 of partition 0. The transaction stays open until the context ends.
    """
    create_topics(address, orders=2)
    plain = confluent_kafka.Producer({'bootstrap.servers': address, 'compression.type': 'zstd'})
    for number in range(20):
        plain.produce('orders', f'plain {number}', f'k{number}', partition=number % 2, headers=[('h', b'x')])
    assert plain.flush(LIMIT_S) == 0
    consumer = confluent_kafka.Consumer({'bootstrap.servers': address, 'group.id': 'readers',
                                         'auto.offset.reset': 'earliest'})
    producer = confluent_kafka.Producer({'bootstrap.servers': address, 'transactional.id': 'history',
                                         'transaction.timeout.ms': TRANSACTION_TIMEOUT_MS})
    producer.init_transactions(LIMIT_S)
    for offset, end in ((10, producer.commit_transaction), (15, producer.abort_transaction)):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce('orders', end.__name__, partition=partition)
        producer.send_offsets_to_transaction([TopicPartition('orders', 0, offset)],
                                             consumer.consumer_group_metadata(), LIMIT_S)
        assert producer.flush(LIMIT_S) == 0
        end(LIMIT_S)
    producer.begin_transaction()
    producer.produce('orders', 'open', partition=0)
    assert producer.flush(LIMIT_S) == 0
    yield
    consumer.close()

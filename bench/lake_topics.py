"""Topics for the benches of tables. Every value is different and compresses to about half: a repeated value would make
every writer look fast."""
from __future__ import annotations

import base64
import random
from collections.abc import Iterator

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

WORDS = (
    'about', 'after', 'again', 'before', 'between', 'carrier', 'country', 'customer', 'delivery', 'during', 'every',
    'from', 'invoice', 'item', 'large', 'morning', 'never', 'number', 'order', 'other', 'paid', 'parcel', 'point',
    'price', 'quick', 'return', 'second', 'shipped', 'small', 'street', 'their', 'there', 'under', 'warehouse', 'which')
RANDOM_SHARE = 0.34
"""The share of a value that is random bytes. In Base64, they take 4/3 of it. With the words, a value then compresses to
about half."""
KEYS = 100_000
LIMIT_S = 120


def values(count: int, size_bytes: int) -> Iterator[bytes]:
    """Yield the JSON of orders. Each value has the size."""
    chance = random.Random(size_bytes)
    words = ' '.join(chance.choices(WORDS, k=min(count, 400_000) * 8 + size_bytes)).encode()
    for number in range(count):
        text = b'{"id":%d,"cents":%d,"token":"%s","note":"' % (
            number, chance.randrange(10**6), base64.b64encode(chance.randbytes(int(size_bytes * RANDOM_SHARE))))
        left = size_bytes - len(text) - 2
        at = chance.randrange(len(words) - left)
        yield text + words[at:at + left] + b'"}'


def filled(address: str, topic: str, count: int, size_bytes: int, partitions: int) -> None:
    """Create a topic with records of values of this size, the same number in each partition."""
    admin = AdminClient({'bootstrap.servers': address})
    admin.create_topics([NewTopic(topic, partitions, config={'max.message.bytes': '104857600'})])[topic].result(LIMIT_S)
    producer = Producer({'bootstrap.servers': address, 'linger.ms': 50, 'batch.size': 262_144,
                         'message.max.bytes': 104_857_600, 'queue.buffering.max.kbytes': 262_144,
                         'queue.buffering.max.messages': 500_000})
    for number, value in enumerate(values(count, size_bytes)):
        while True:
            try:
                producer.produce(topic, value, b'k%d' % (number % KEYS), partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
        if not number % 1000:
            producer.poll(0)
    left = producer.flush(LIMIT_S)
    assert left == 0, f'{topic}: {left} records were not delivered'


def removed(address: str, topic: str) -> None:
    admin = AdminClient({'bootstrap.servers': address})
    admin.delete_topics([topic])[topic].result(LIMIT_S)

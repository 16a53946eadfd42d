"""Topics with committed, aborted and open transactions, and functions that consume and ingest them."""
import itertools
import json
import threading
import time

import confluent_kafka
import pyarrow.parquet
from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

LIMIT_S = 120
NUMBERS = itertools.count()


def create_topic(address, partitions=2, name=None, **config):
    name = name or f'topic{next(NUMBERS)}'
    admin = AdminClient({'bootstrap.servers': address})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(LIMIT_S)
    return name


def delete_topic(address, name):
    admin = AdminClient({'bootstrap.servers': address})
    admin.delete_topics([name])[name].result(LIMIT_S)


def add_partitions(address, name, count):
    admin = AdminClient({'bootstrap.servers': address})
    admin.create_partitions([NewPartitions(name, count)])[name].result(LIMIT_S)


def delete_records(address, name, partition, offset):
    admin = AdminClient({'bootstrap.servers': address})
    place = TopicPartition(name, partition, offset)
    admin.delete_records([place])[place].result(LIMIT_S)


class Writer:
    """Writes transactions one after the other. Each value occurs in only one record.

    It may live longer than the broker, so librdkafka logs nothing about lost connections.
    """

    def __init__(self, address, transactional_id):
        self.producer = confluent_kafka.Producer({
            'bootstrap.servers': address, 'transactional.id': transactional_id, 'linger.ms': 1, 'log_level': 0})
        self.producer.init_transactions(LIMIT_S)
        self._looker = confluent_kafka.Consumer({'bootstrap.servers': address, 'group.id': 'looker',
                                                 'isolation.level': 'read_uncommitted', 'log_level': 0})
        self._touched = set()

    def write(self, topic, records, end='commit', partitions=2, value=None):
        """Write a transaction of `records` records. `end` is 'commit', 'abort', or None, which leaves the transaction
        open."""
        self.producer.begin_transaction()
        self._touched = {TopicPartition(topic, number % partitions) for number in range(min(records, partitions))}
        for number in range(records):
            self.producer.produce(topic, value if value is not None else f'{next(NUMBERS)}', key=f'{number}',
                                  partition=number % partitions)
        assert self.producer.flush(LIMIT_S) == 0
        if end is not None:
            self.end(end)

    def end(self, how):
        """End the transaction and wait for its markers: the coordinator answers before they are written."""
        before = self._ends()
        getattr(self.producer, f'{how}_transaction')(LIMIT_S)
        deadline = time.monotonic() + LIMIT_S
        while any(now == then for now, then in zip(self._ends(), before, strict=True)):
            assert time.monotonic() < deadline, 'no markers'

    def _ends(self):
        return [self._looker.get_watermark_offsets(place, LIMIT_S)[1]
                for place in sorted(self._touched, key=lambda place: place.partition)]


class SteadyWriter(threading.Thread):
    """Writes transactions until it is stopped, and aborts every third one."""

    def __init__(self, address, topic):
        super().__init__()
        self.writer, self.topic, self.is_over = Writer(address, f'steady-{topic}'), topic, threading.Event()

    def run(self):
        number = 0
        while not self.is_over.wait(0.2):
            number += 1
            self.writer.write(self.topic, 40, 'abort' if number % 3 == 0 else 'commit')

    def __enter__(self):
        self.start()

    def __exit__(self, *_):
        self.is_over.set()
        self.join()


def consumed(address, topic):
    """Return (partition, offset, key, value) of all records that a read_committed consumer receives, in the order of
    the log."""
    consumer = confluent_kafka.Consumer({'bootstrap.servers': address, 'group.id': 'judge', 'enable.auto.commit': False,
                                         'isolation.level': 'read_committed', 'enable.partition.eof': True})
    partitions = sorted(consumer.list_topics(topic, LIMIT_S).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    rows, left = [], len(partitions)
    while left:
        message = consumer.poll(LIMIT_S)
        assert message is not None, 'the consumer gets neither a record nor the end of the partition'
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            left -= 1
        else:
            rows.append((message.partition(), message.offset(), message.key(), message.value()))
    consumer.close()
    return sorted(rows)


def ingested(to):
    """Return (partition, offset, key, value) of each row in all visible runs, like `consumed`. A duplicate row is
    returned twice."""
    rows = []
    for path in sorted(to.glob('run=*/**/*.parquet')):
        table = pyarrow.parquet.ParquetFile(path).read(columns=['partition', 'offset', 'key', 'value'])
        rows += zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True)
    return sorted(rows)


def progress_of(state):
    return json.loads((state / 'progress.json').read_text())

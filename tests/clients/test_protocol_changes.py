"""The members of a group of librdkafka change their group protocol (KIP-848) one after the other, while they copy
records. Covers KIP-890.
"""
import confluent_kafka
import pytest
from behaviours import fresh, until
from confluent_kafka import Consumer, Producer, TopicPartition
from test_confluent import ConfluentClient

pytestmark = pytest.mark.timeout(240)

PARTITIONS = 4
A_BATCH = 40


class Copier:
    """A member that copies records to another topic, each batch in a transaction together with its offsets."""

    def __init__(self, address, group, source, target, protocol):
        own = {} if protocol == 'consumer' else {'session.timeout.ms': 10_000, 'heartbeat.interval.ms': 500}
        self.consumer = Consumer({
            'bootstrap.servers': address, 'group.id': group, 'group.protocol': protocol,
            'auto.offset.reset': 'earliest', 'enable.auto.commit': False, 'isolation.level': 'read_committed', **own})
        self.producer = Producer({'bootstrap.servers': address, 'transactional.id': fresh('copier')})
        self.producer.init_transactions(120)
        self.target = target
        self.consumer.subscribe([source])

    def copy(self):
        """Copy the available records in a transaction. If the transaction fails, abort it and seek back to its first
        records."""
        messages = [message for message in self.consumer.consume(20, 0.1) if message.error() is None]
        if not messages:
            return
        self.producer.begin_transaction()
        try:
            for message in messages:
                self.producer.produce(self.target, message.value())
            offsets = {}
            for message in messages:
                offsets[message.topic(), message.partition()] = message.offset() + 1
            self.producer.send_offsets_to_transaction(
                [TopicPartition(*partition, offset) for partition, offset in offsets.items()],
                self.consumer.consumer_group_metadata(), 30)
            self.producer.commit_transaction(120)
        except confluent_kafka.KafkaException:
            self.producer.abort_transaction(120)
            firsts = {}
            for message in messages:
                firsts.setdefault((message.topic(), message.partition()), message.offset())
            held = {(each.topic, each.partition) for each in self.consumer.assignment()}
            for partition, offset in firsts.items():
                if partition in held:
                    self.consumer.seek(TopicPartition(*partition, offset))

    def close(self):
        self.consumer.close()


class Flow:
    """A flow of records: a producer writes them, and the members of a group copy them to another topic."""

    def __init__(self, client):
        self.address = client.address
        self.source, self.target = client.new_topic('source', PARTITIONS), client.new_topic('target', 1)
        self.group = fresh('group')
        self.written = 0
        self.producer = Producer({'bootstrap.servers': self.address})
        self.members = []

    def write(self):
        for _ in range(A_BATCH):
            self.producer.produce(self.source, str(self.written).encode(), partition=self.written % PARTITIONS)
            self.written += 1
        self.producer.flush(120)

    def join(self, protocol):
        self.members.append(Copier(self.address, self.group, self.source, self.target, protocol))
        self.write()
        self.settle()

    def leave(self):
        """Let the oldest member leave, and wait until the remaining members have a stable assignment."""
        self.members.pop(0).close()
        self.write()
        self.settle()

    def settle(self):
        until(self.is_shared_after_a_step)

    def is_shared_after_a_step(self):
        for member in self.members:
            member.copy()
        counts = [len(member.consumer.assignment()) for member in self.members]
        return sum(counts) == PARTITIONS and min(counts) >= PARTITIONS // len(self.members)

    def copied(self):
        reader = Consumer({'bootstrap.servers': self.address, 'group.id': fresh('reader'),
                           'isolation.level': 'read_committed', 'auto.offset.reset': 'earliest'})
        reader.assign([TopicPartition(self.target, 0, 0)])
        found = []

        def everything():
            for member in self.members:
                member.copy()
            found.extend(int(message.value()) for message in reader.consume(500, 0.1) if message.error() is None)
            return len(found) >= self.written

        until(everything)
        found.extend(int(message.value()) for message in reader.consume(500, 1) if message.error() is None)
        reader.close()
        return found


def test_a_group_changes_its_protocol_and_back_and_copies_each_record_once(shared_broker):
    flow = Flow(ConfluentClient(shared_broker.address))
    flow.join('classic')
    flow.join('classic')
    for protocol in ('consumer', 'consumer', 'classic', 'classic'):
        flow.leave()
        flow.join(protocol)
    assert sorted(flow.copied()) == list(range(flow.written))
    for member in flow.members:
        member.close()

"""Topics for the Spark bench. Batches are encoded once, and produced with the same bytes to every broker."""
from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Any

from kbroker.base.errors import ErrorCode
from kbroker.client.admin import LATEST, Admin, NewTopic
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.config import ClientConfig
from kbroker.client.connection import Connection
from kbroker.client.errors import check
from kbroker.protocol import messages
from kbroker.record.batch import encode_batch
from kbroker.record.compression import Compression

BATCH_BYTES = 16_384
KEY_BYTES = 16
TEMPLATES = 16
IN_FLIGHT = 32
BATCHES_OF_A_TRANSACTION = 50
PRODUCE_VERSION = 11
"""The last version of Produce with which the broker does not add the partition to the transaction."""
TIMESTAMP_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Topic:
    """A topic of `records` records in transactions, of which `aborted_percent` percent are aborted. If that is 0, the
    topic has no transactions."""

    record_bytes: int
    codec: Compression = Compression.NONE
    aborted_percent: int = 0
    partitions: int = 2
    records: int = 0

    @property
    def name(self) -> str:
        return f'records-{self.record_bytes}-{self.codec.name.lower()}-{self.aborted_percent}-{self.partitions}'

    @property
    def records_of_a_batch(self) -> int:
        return BATCH_BYTES // (self.record_bytes + KEY_BYTES + 10)

    @property
    def transactions(self) -> list[bool]:
        """Return a list with True for each committed transaction and False for each aborted one. Aborted transactions
        are spread evenly."""
        batches = -(-self.records // self.records_of_a_batch // self.partitions)
        share = self.aborted_percent / 100
        return [int((number + 1) * share) == int(number * share)
                for number in range(-(-batches // BATCHES_OF_A_TRANSACTION))]

    @property
    def visible_records(self) -> int:
        return sum(self.transactions) * BATCHES_OF_A_TRANSACTION * self.partitions * self.records_of_a_batch


def value_of(chance: random.Random, size_bytes: int) -> bytes:
    """Return a value of which one half is compressible text and the other half hardly compressible digits."""
    return (chance.randbytes(size_bytes // 4).hex() + 'the quick brown fox jumps over it ' * size_bytes
            )[:size_bytes].encode()


def records_of(topic: Topic, seed: int) -> list[tuple[int, bytes, bytes]]:
    chance = random.Random(seed)
    return [(TIMESTAMP_MS + number, chance.randbytes(KEY_BYTES // 2).hex().encode(),
             value_of(chance, topic.record_bytes)) for number in range(topic.records_of_a_batch)]


class Filler:
    """Fills topics of one broker."""

    def __init__(self, address: str):
        self._cluster = Cluster(ClientConfig.load(address, None))
        self._waiting: deque[Connection] = deque()

    def fill(self, topic: Topic) -> None:
        errors = Admin(self._cluster).create_topics([
            NewTopic(topic.name, topic.partitions, configs={'retention.ms': '-1'})])  # the records have an old date
        assert errors == {topic.name: None}, errors
        self._cluster.retrying(lambda: self._lead(topic), 'until there are leaders',
                               also={ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
        templates = [records_of(topic, seed) for seed in range(TEMPLATES)]
        if not topic.aborted_percent:
            encoded = [encode_batch(records, compression=topic.codec) for records in templates]
            for number in range(len(topic.transactions) * BATCHES_OF_A_TRANSACTION):
                self._produce(topic, None, encoded[number % TEMPLATES])
            self._drain()
            return
        self._transact(topic, templates)

    def remove(self, topic: Topic) -> None:
        errors = Admin(self._cluster).delete_topics([topic.name])
        assert errors == {topic.name: None}, errors

    def _lead(self, topic: Topic) -> None:
        """Raise KafkaError if a partition is not ready, which Apache Kafka reveals only in the answer to a request for
        the partition."""
        Admin(self._cluster).list_offsets({(topic.name, partition): LATEST for partition in range(topic.partitions)})

    def _transact(self, topic: Topic, templates: list[list[tuple[int, bytes, bytes]]]) -> None:
        transactional_id = topic.name
        producer = self._ask(transactional_id, messages.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=60_000), 4)
        sequence = 0
        for is_committed in topic.transactions:
            self._ask(transactional_id, messages.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id, v3_and_below_producer_id=producer.producer_id,
                v3_and_below_producer_epoch=producer.producer_epoch,
                v3_and_below_topics=[messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                    name=topic.name, partitions=list(range(topic.partitions)))]), 3)
            for number in range(BATCHES_OF_A_TRANSACTION):
                batch = encode_batch(templates[number % TEMPLATES], compression=topic.codec, transactional=True,
                                     producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
                                     base_sequence=sequence)
                sequence += topic.records_of_a_batch
                self._produce(topic, transactional_id, batch)
            self._drain()
            self._ask(transactional_id, messages.EndTxnRequest(
                transactional_id=transactional_id, producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch, committed=is_committed), 4)
        # The broker answers InitProducerId when the markers of the previous transaction are written.
        self._ask(transactional_id, messages.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=60_000), 4)

    def _ask(self, transactional_id: str, request: Any, version: int) -> Any:
        def ask() -> Any:
            connection = self._cluster.coordinator(KeyType.TRANSACTION, transactional_id)
            answer = connection.call(request, max_version=version)
            code = getattr(answer, 'error_code', 0) or next(
                (partition.partition_error_code for topic in getattr(answer, 'results_by_topic_v3_and_below', ())
                 for partition in topic.results_by_partition), 0)
            check(code, type(request).__name__)
            return answer
        return self._cluster.retrying(ask, type(request).__name__, also={ErrorCode.CONCURRENT_TRANSACTIONS})

    def _produce(self, topic: Topic, transactional_id: str | None, batch: bytearray) -> None:
        """Produce a batch to each partition of a topic."""
        request = messages.ProduceRequest
        if len(self._waiting) >= IN_FLIGHT:
            self._receive()
        connection = self._cluster.retrying(lambda: self._cluster.leader(topic.name, 0), 'metadata')
        connection.send(request(transactional_id=transactional_id, acks=-1, timeout_ms=30_000, topic_data=[
            request.TopicProduceData(name=topic.name, partition_data=[
                request.PartitionProduceData(index=partition, records=batch)
                for partition in range(topic.partitions)])]), PRODUCE_VERSION)
        self._waiting.append(connection)

    def _receive(self) -> None:
        answer = self._waiting.popleft().receive()
        for topic in answer.responses:
            for partition in topic.partition_responses:
                check(partition.error_code, topic.name)

    def _drain(self) -> None:
        while self._waiting:
            self._receive()

"""Builds Produce requests, and finds the batches of each request that is answered or lost."""
from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from kbroker.base.clock import Clock
from kbroker.client.accumulator import PartitionQueue, ProducerBatch
from kbroker.client.cluster import Cluster
from kbroker.client.connection import Connection, SentInPlace
from kbroker.client.stream_settings import ProducerSettings
from kbroker.client.transaction_manager import TransactionManager
from kbroker.protocol.messages import ProduceRequest

_NUMBERS = itertools.count(1)
LAST_VERSION = 12
"""The last version of Produce that names topics. Version 13 only replaces the names with topic ids."""
LAST_VERSION_BEFORE_TRANSACTION_VERSION_2 = 11
"""The last version of Produce without the protocol of KIP-890. Version 12 adds the partition to the transaction, which
requires transaction.version 2.
"""

LEAST_IN_PLACE_BYTES = 4096
"""The size of a batch from which it is sent without a copy. Copying a smaller batch costs less than a separate part."""


@dataclass(slots=True)
class InFlight:
    node_id: int
    batches: dict[PartitionQueue, ProducerBatch]
    deadline_ms: int


class ProduceRequests:
    """The Produce requests in flight, at most `max_in_flight` at each broker."""

    def __init__(self, cluster: Cluster, settings: ProducerSettings, clock: Clock):
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._by_connection: dict[Connection, deque[InFlight]] = {}
        # A connection returns answers in the order of its requests, so each producer has separate connections.
        self._purpose = f'produce {next(_NUMBERS)}'

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the oldest request times out, in ms of the monotonic clock."""
        return min((requests[0].deadline_ms for requests in self._by_connection.values() if requests), default=None)

    @property
    def in_flight(self) -> int:
        """The number of requests that await an answer."""
        return sum(map(len, self._by_connection.values()))

    def connections(self) -> list[Connection]:
        """Return the connections with requests in flight."""
        return [connection for connection, requests in self._by_connection.items() if requests and connection.is_open]

    def has_room(self, node_id: int) -> bool:
        return all(len(requests) < self._settings.max_in_flight for requests in self._by_connection.values()
                   if requests and requests[0].node_id == node_id)

    def are_full(self, node_ids: Collection[int]) -> bool:
        """Return whether none of the brokers may get another request before it answers one."""
        full = {requests[0].node_id for requests in self._by_connection.values()
                if len(requests) >= self._settings.max_in_flight}
        return bool(full) and full.issuperset(node_ids)

    def send(self, node_id: int, batches: dict[PartitionQueue, ProducerBatch],
             transactions: TransactionManager) -> None:
        """Send the batches in one request to the broker `node_id`, which is the leader of their partitions. Raise
        ClientError for a network failure.
        """
        connection = self._cluster.node(node_id, self._purpose)
        max_version, is_transactional = LAST_VERSION, transactions.is_transactional
        if is_transactional and not transactions.is_version_2:
            max_version = LAST_VERSION_BEFORE_TRANSACTION_VERSION_2
        topics: dict[str, list[Any]] = {}
        for queue, batch in batches.items():
            records: Any = batch.encoded(is_transactional)
            if len(records) >= LEAST_IN_PLACE_BYTES:
                records = SentInPlace(records)
            topics.setdefault(queue.topic, []).append(
                ProduceRequest.PartitionProduceData(index=queue.partition, records=records))
        topic_data = [ProduceRequest.TopicProduceData(name=name, partition_data=rows) for name, rows in topics.items()]
        acks = self._settings.acks
        request_timeout_ms = self._cluster.config.request_timeout_ms
        connection.send(ProduceRequest(
            transactional_id=self._settings.transactional_id, acks=acks, timeout_ms=request_timeout_ms,
            topic_data=topic_data), max_version, expect_response=acks != 0)
        if acks != 0:
            self._by_connection.setdefault(connection, deque()).append(
                InFlight(node_id, batches, self._clock.monotonic_ms() + request_timeout_ms))

    def receive(self, connection: Connection) -> tuple[InFlight, Any]:
        """Receive an answer on a readable connection. Return its request and the answer.

        Raise ClientError for a network failure.
        """
        answer = connection.receive()
        return self._by_connection[connection].popleft(), answer

    def rows(self, request: InFlight, answer: Any) -> Iterator[tuple[PartitionQueue, ProducerBatch, Any]]:
        """Yield (queue, batch, row) for each batch of the request. The row is None if the answer has no row for the
        batch.
        """
        rows = {(topic.name, row.index): row for topic in answer.responses for row in topic.partition_responses}
        for queue, batch in request.batches.items():
            yield queue, batch, rows.get((queue.topic, queue.partition))

    def lost(self) -> list[InFlight]:
        """Remove and return the requests that timed out, or whose connection is closed. Close the connection after a
        timeout.
        """
        lost: list[InFlight] = []
        now_ms = self._clock.monotonic_ms()
        for connection, requests in list(self._by_connection.items()):
            if requests and requests[0].deadline_ms <= now_ms:
                connection.close()
            if not connection.is_open:
                lost += self._by_connection.pop(connection)
        return lost

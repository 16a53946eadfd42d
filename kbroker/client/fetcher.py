"""Fetch requests in flight, one at each leader, and the records in their answers.

A request waits at its broker for records or until fetch.max.wait.ms is over; the caller does not block meanwhile. The
answer for a position that has changed since (a seek, another assignment) is dropped.
"""
from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kbroker.client.assignor import TopicPartition, by_topic
from kbroker.client.cluster import Cluster
from kbroker.client.connection import Connection
from kbroker.client.errors import ClientError
from kbroker.client.readiness import await_ready
from kbroker.client.stream_settings import ISOLATION_LEVELS, ConsumerSettings
from kbroker.clock import Clock
from kbroker.errors import KafkaError
from kbroker.protocol.messages import FetchRequest
from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import BatchHeader, check_crc, iter_batches
from kbroker.record.records import Record, decode_records

_NUMBERS = itertools.count(1)
LAST_FETCH_VERSION = 12
"""Later versions identify topics by id; nothing else in them concerns consumers."""


class ConsumedBatch(NamedTuple):
    """The records of one data batch to deliver, in order."""

    topic: str
    partition: int
    header: BatchHeader
    records: list[Record]
    delivery_count: int | None = None
    """The number of times that a share group has delivered the records, this one included."""


class FetchedPartition(NamedTuple):
    """One partition in an answer; `row` is the PartitionData of FetchResponse."""

    topic: str
    partition: int
    fetch_offset: int
    row: Any


@dataclass(slots=True)
class _InFlight:
    positions: dict[TopicPartition, int]
    deadline_ms: int


class Fetcher:
    """Sends Fetch requests and receives their answers.

    Raises ClientError only for lasting failures; a broken connection is reopened by the next request.
    """

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, clock: Clock | None = None,
                 sleep: Callable[[float], None] = time.sleep):
        self._cluster = cluster
        self._settings = settings
        self._clock = clock or Clock()
        self._sleep = sleep
        self._in_flight: dict[Connection, _InFlight] = {}
        # A connection returns answers in the order of requests, so it must not be shared with other users.
        self._purpose = f'fetch {next(_NUMBERS)}'

    def close(self) -> None:
        """Close the connections without waiting for requests in flight."""
        for connection in self._in_flight:
            connection.close()
        self._in_flight.clear()

    def send(self, positions: Mapping[TopicPartition, int]) -> None:
        """Send a Fetch to every leader without one in flight. Raises KafkaError for a partition without a leader."""
        by_connection: dict[Connection, dict[TopicPartition, int]] = {}
        for partition, offset in positions.items():
            connection = self._cluster.leader(*partition, self._purpose)
            if connection not in self._in_flight:
                by_connection.setdefault(connection, {})[partition] = offset
        for connection, wanted in by_connection.items():
            try:
                connection.send(self._request(wanted), LAST_FETCH_VERSION)
            except ClientError as error:
                self._lose(connection, error)
                continue
            deadline_ms = (self._clock.monotonic_ms() + self._settings.fetch_max_wait_ms
                           + self._cluster.config.request_timeout_ms)
            self._in_flight[connection] = _InFlight(wanted, deadline_ms)

    def receive(self, timeout_ms: int) -> list[FetchedPartition]:
        """Return the answers that have arrived; without any, wait for the first one, for at most `timeout_ms`."""
        fetched: list[FetchedPartition] = []
        connections = list(self._in_flight)
        if not connections:
            # Without a request in flight there is no socket to wait for, and an immediate retry is useless.
            self._sleep(min(timeout_ms, self._cluster.config.retry_backoff_ms) / 1000)
            return fetched
        if any(connection.has_buffered for connection in connections):
            timeout_ms = 0
        patience_ms = min(request.deadline_ms for request in self._in_flight.values()) - self._clock.monotonic_ms()
        timeout_ms = max(min(timeout_ms, patience_ms), 0)
        ready = await_ready(connections, timeout_ms).readable
        for connection in connections:
            if connection in ready or connection.has_buffered:
                fetched += self._take(connection)
            elif self._in_flight[connection].deadline_ms <= self._clock.monotonic_ms():
                self._lose(connection, ClientError(f'{connection.address} did not answer Fetch'))
        return fetched

    def _take(self, connection: Connection) -> list[FetchedPartition]:
        try:
            answer = connection.receive()
        except ClientError as error:
            self._lose(connection, error)
            return []
        positions = self._in_flight.pop(connection).positions
        return [FetchedPartition(topic.topic, row.partition_index, positions[topic.topic, row.partition_index], row)
                for topic in answer.responses for row in topic.partitions
                if (topic.topic, row.partition_index) in positions]

    def _lose(self, connection: Connection, error: ClientError) -> None:
        self._in_flight.pop(connection, None)
        connection.close()
        if error.is_lasting:
            raise error
        self._cluster.forget()

    def _request(self, positions: dict[TopicPartition, int]) -> Any:
        settings = self._settings
        return fetch_request(
            positions, ISOLATION_LEVELS.index(settings.isolation_level), settings.fetch_max_bytes,
            settings.max_partition_fetch_bytes, settings.fetch_max_wait_ms, settings.fetch_min_bytes)


def fetch_request(positions: Mapping[TopicPartition, int], isolation_level: int, max_bytes: int,
                  partition_max_bytes: int, max_wait_ms: int, min_bytes: int = 1) -> FetchRequest:
    """Return a Fetch from these offsets on, without a session (KIP-227), for versions up to LAST_FETCH_VERSION."""
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=[
        FetchRequest.FetchPartition(partition=index, fetch_offset=positions[topic, index],
                                    partition_max_bytes=partition_max_bytes)
        for index in indexes]) for topic, indexes in by_topic(positions).items()]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes,
                        isolation_level=isolation_level, session_id=0, session_epoch=-1, topics=topics)


def consumed_batches(fetched: FetchedPartition, check_crcs: bool = True) -> Iterator[ConsumedBatch]:
    """Yield the records of an answer to deliver, as `delivered` selects them.

    `aborted_transactions` is null in answers to read_uncommitted: then all data batches are delivered.
    """
    row = fetched.row
    aborted = AbortFilter([(entry.producer_id, entry.first_offset) for entry in row.aborted_transactions or ()])
    return delivered(fetched.topic, fetched.partition, iter_batches(row.records or b''), fetched.fetch_offset, aborted,
                     check_crcs)


def delivered(topic: str, partition: int, batches: Iterable[tuple[BatchHeader, memoryview]], start_offset: int,
              aborted: AbortFilter, check_crcs: bool = True) -> Iterator[ConsumedBatch]:
    """Yield the records at and after `start_offset`, without markers and without those that `aborted` hides.

    Raises KafkaError(CORRUPT_MESSAGE), which names the partition and the offset.
    """
    for header, batch in batches:
        if header.last_offset < start_offset:
            continue
        try:
            if check_crcs:
                check_crc(batch, header)
            if not aborted.admits(header, batch) or header.is_control:
                continue
            records = decode_records(batch)
        except KafkaError as error:
            raise KafkaError(error.code, f'{topic}-{partition}, offset {header.base_offset}: {error}') from None
        if header.base_offset < start_offset:
            records = [record for record in records if record.offset >= start_offset]
        if records:
            yield ConsumedBatch(topic, partition, header, records)


def next_offset(fetched: FetchedPartition) -> int:
    """Return the offset after the last whole batch, delivered or not (markers take offsets too)."""
    offset = fetched.fetch_offset
    for header, _ in iter_batches(fetched.row.records or b''):
        offset = max(offset, header.last_offset + 1)
    return offset

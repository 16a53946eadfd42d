"""Keeps one Fetch request in flight at each leader.

A request waits at its broker until there are records or fetch.max.wait.ms is over. The caller does not block during
that time. If a seek or a new assignment has changed a position during the request, the consumer drops the answer for
it.
"""
from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kbroker.base.clock import Clock
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.assignor import by_topic
from kbroker.client.cluster import Cluster
from kbroker.client.connection import Connection
from kbroker.client.consumed import FetchedPartition
from kbroker.client.errors import ClientError
from kbroker.client.readiness import await_ready
from kbroker.client.stream_settings import ISOLATION_LEVELS, ConsumerSettings
from kbroker.client.time_limit import OutOfTime
from kbroker.protocol.messages import FetchRequest

_NUMBERS = itertools.count(1)
LAST_FETCH_VERSION = 12
"""The last version of Fetch that identifies topics by name. No other change in later versions concerns consumers."""


@dataclass(slots=True)
class _InFlight:
    positions: dict[TopicPartition, int]
    deadline_ms: int


class Fetcher:
    """Sends Fetch requests and receives their answers.

    The methods raise ClientError only for lasting failures. After any other failure, the next request reopens the
    connection.
    """

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, clock: Clock | None = None,
                 sleep: Callable[[float], None] = time.sleep):
        self._cluster = cluster
        self._settings = settings
        self._clock = clock or Clock()
        self._sleep = sleep
        self._in_flight: dict[Connection, _InFlight] = {}
        # A connection returns answers in the order of its requests, so each fetcher has separate connections.
        self._purpose = f'fetch {next(_NUMBERS)}'

    def close(self) -> None:
        """Close the connections without waiting for requests in flight."""
        for connection in self._in_flight:
            connection.close()
        self._in_flight.clear()

    def send(self, positions: Mapping[TopicPartition, int]) -> None:
        """Send a Fetch to every leader that has no Fetch in flight. Raise KafkaError for a partition without a
        leader.
        """
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
        """Return the answers that have arrived. If no answer has arrived, wait for one, for at most `timeout_ms`.

        The records of an answer are valid until the next call, which reuses their memory.
        """
        fetched: list[FetchedPartition] = []
        connections = list(self._in_flight)
        if not connections:
            # Without a request in flight, there is no socket to wait for. The sleep keeps the caller from retrying
            # immediately.
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
            answer = connection.receive(reuses_buffer=True)
        except OutOfTime:       # the rest of the answer follows
            return []
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
    """Return a Fetch that starts at these offsets, without a fetch session (KIP-227), for versions up to
    LAST_FETCH_VERSION.
    """
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=[
        FetchRequest.FetchPartition(partition=index, fetch_offset=positions[topic, index],
                                    partition_max_bytes=partition_max_bytes)
        for index in indexes]) for topic, indexes in by_topic(positions).items()]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes,
                        isolation_level=isolation_level, session_id=0, session_epoch=-1, topics=topics)

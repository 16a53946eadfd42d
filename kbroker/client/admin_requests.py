"""Sends each request of an Admin to the broker that can answer it, and retries after transient errors."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.arguments import partitions_of
from kbroker.client.cluster import RETRIED, Cluster, KeyType, OutOfDate
from kbroker.client.connection import Connection
from kbroker.client.errors import error_of
from kbroker.client.exclusive_use import ExclusiveUse
from kbroker.client.opening import Servers, open_cluster

if TYPE_CHECKING:
    from typing import Unpack

    from kbroker.client.options import ConnectionOptions


class ResourceType(IntEnum):
    """Kafka's codes for the types of resources that have configs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


Resource = tuple[ResourceType, str]
"""The type and the name of a resource. A broker's name is its id; '' selects the defaults of all brokers."""


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """The settings of an Admin: none, because an Admin has only the settings of its connections."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> AdminSettings:
        """Return the settings. Ignore `properties`, which has settings of other clients, such as those of a
        producer.
        """
        return cls()

    @classmethod
    def defaults(cls) -> dict[str, str]:
        return {}


class AdminRequests:
    """The base class of Admin: owns the connections, and sends each request to the broker that can answer it."""

    def __init__(self, servers: Servers = None, settings: Mapping[str, object] | None = None,
                 **options: Unpack[ConnectionOptions]):
        opening = open_cluster(servers, settings, options, AdminSettings)
        self._cluster = opening.cluster
        self._use = ExclusiveUse('an admin') if opening.is_owned else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def cluster(self) -> Cluster:
        """Return the cluster with its connections.

        Raise RuntimeError if a different thread has used them first, in a forked process, and after `close`.
        """
        if self._use is not None:
            self._use.check()
        return self._cluster

    def close(self) -> None:
        """Close the connections, unless other clients share them."""
        if self._use is not None:
            if not self._use.is_refused:
                self._use.check()
            self._use.end()
            self._cluster.close()

    # ---- routing and retries

    @property
    def _timeout_ms(self) -> int:
        return self.cluster.config.request_timeout_ms

    def _retrying(self, operation: Any, what: str, also: Collection[ErrorCode] = ()) -> Any:
        return self.cluster.retrying(operation, what, also)

    def _group_coordinator(self, group_id: str) -> Connection:
        return self.cluster.coordinator(KeyType.GROUP, group_id, '')

    def _ask_controller(self, request: Any, what: str) -> Any:
        def ask() -> Any:
            answer = self.cluster.controller().call(request)
            for field in ('topics', 'responses', 'results'):
                for row in getattr(answer, field, ()):
                    if row.error_code == ErrorCode.NOT_CONTROLLER:
                        raise error_of(row.error_code, what, row.error_message)
            return answer
        return self._retrying(ask, what)

    def _ask_owner(self, resource: Resource, request: Any, what: str) -> Any:
        """Send a request about one broker's settings to that broker, a request about any other resource to any
        broker.
        """
        kind, name = resource
        is_one_broker = kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and name.isascii() and name.isdigit()
        return self._retrying(
            lambda: (self.cluster.node(int(name)) if is_one_broker else self.cluster.any()).call(request), what)

    def _ask_group(self, group_id: str, request: Any, what: str, max_version: int | None = None) -> Any:
        def ask() -> Any:
            answer = self._group_coordinator(group_id).call(request, max_version=max_version)
            rows = [answer, *getattr(answer, 'results', ()),
                    *(row for topic in getattr(answer, 'topics', ()) for row in topic.partitions)]
            for row in rows:
                raise_transient(row, f'group {group_id!r}')
            return answer
        return self._retrying(ask, f'{what} of group {group_id!r}')

    def _ask_all(self, request: Any, what: str, min_version: int,
                 broker_ids: Collection[int] | None = None) -> list[tuple[int, Any]]:
        """Send the request to all brokers, or to `broker_ids`. Return (broker id, answer) for each, sorted by id."""
        if not self.cluster.nodes:
            self._retrying(lambda: self.cluster.refresh(()), what)

        def ask(node_id: int) -> Any:
            answer = self.cluster.node(node_id).call(request, min_version=min_version)
            raise_transient(answer, f'{what} of broker {node_id}')
            return answer
        return [(node_id, self._retrying(lambda node_id=node_id: ask(node_id), f'{what} of broker {node_id}'))
                for node_id in sorted(self.cluster.nodes if broker_ids is None else broker_ids)]

    def _ask_leaders(self, partitions: Iterable[TopicPartition], ask: Any, what: str,
                     broker_id: int | None = None) -> dict[TopicPartition, Any]:
        """Call `ask(connection, {topic: partitions})` for each leader, and return one row for each partition.

        With `broker_id`, only this broker is asked.
        """
        partitions = partitions_of(partitions)

        def run() -> dict[TopicPartition, Any]:
            connections: dict[Connection, list[TopicPartition]] = {}
            for at in partitions:
                leader = self.cluster.leader(*at) if broker_id is None else self.cluster.node(broker_id)
                connections.setdefault(leader, []).append(at)
            found = {}
            for connection, wanted in connections.items():
                for topic, row in ask(connection, indexes_by_topic(wanted)):
                    raise_transient(row, f'{what} of {topic}-{row.partition_index}')
                    if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and broker_id is None:
                        raise OutOfDate(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                                        f'{what}: {connection.address} does not know {topic}-{row.partition_index}')
                    found[topic, row.partition_index] = row
            if missing := set(partitions) - found.keys():
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f'{what}: no answer for {words_of(min(missing))}')
            return found

        answers: dict[TopicPartition, Any] = self._retrying(run, what)
        return answers


def indexes_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def words_of(what: TopicPartition | Resource) -> str:
    return f'{what[0].name.lower()} {what[1]}' if isinstance(what[0], ResourceType) else f'{what[0]}-{what[1]}'


def only_one(rows: list[Any], what: str) -> Any:
    if len(rows) != 1:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f'{what}: found {len(rows)} answers, expected 1')
    return rows[0]


def error_in(row: Any, what: str) -> KafkaError | None:
    if not row.error_code:
        return None
    return error_of(row.error_code, what, getattr(row, 'error_message', None), api_of(row))


def api_of(row: Any) -> str:
    """Return the name of the API that has answered with this row."""
    return type(row).__qualname__.partition('Response')[0]


def raise_transient(row: Any, what: str, also: Collection[ErrorCode] = ()) -> None:
    """Raise the error of the row if `retrying` retries it, or if its code is in `also`."""
    code = getattr(row, 'error_code', 0)
    if code in RETRIED or code in also:
        raise error_of(code, what, getattr(row, 'error_message', None))

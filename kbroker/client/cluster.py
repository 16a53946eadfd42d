"""The brokers of a cluster: connections, metadata, coordinators, and retries after leaders or coordinators change.

The first request to an address for a purpose opens a connection, and later requests reuse it. As in Kafka's clients,
requests to coordinators use separate connections, because a Fetch that waits at the broker would delay them.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.config import ClientConfig
from kbroker.client.connection import Connection
from kbroker.client.errors import AnswerTimeout, ClientError, PartitionOffline, check, error_of, known_code
from kbroker.client.time_limit import OPENING_MS, OutOfTime, TimeLimit
from kbroker.protocol import messages

T = TypeVar('T')

JITTER = 0.2

TOPIC_CREATION_MS = 3000
"""The time for which the client waits for a topic that the broker creates automatically.
"""

KEYS_AT_ONCE = 1_000
"""The largest number of transactional ids in one request."""
FIND_COORDINATOR_VERSION_OF_SEVERAL = 4
TOPICS_BY_ID_VERSION = 12
"""The first version of Metadata that accepts ids without names. Brokers that assign partitions by id support it."""

RETRIED = frozenset({
    ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.KAFKA_STORAGE_ERROR,
})
"""Transient errors. An unknown topic is not transient, because a mistyped name must fail immediately."""


class OutOfDate(KafkaError):
    """A broker's answer contradicts the client's metadata, for example while a topic is created or moved.

    The client refreshes the metadata and retries.
    """


class KeyType(IntEnum):
    """The key types that FindCoordinator knows."""

    GROUP = 0
    TRANSACTION = 1


class Node(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionMetadata(NamedTuple):
    partition: int
    leader_id: int
    """The broker id of the leader; -1 if the partition has no leader."""
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    error: ErrorCode


class CutRetries(NamedTuple):
    """The state of an operation's retries at the time when the call ended."""

    spent_ms: int = 0
    """The time that the tries have taken, including the pause before the next try."""
    tries: int = 0
    due_ms: int = 0
    """The time at which the next try may begin, in ms of the monotonic clock."""


class TopicMetadata(NamedTuple):
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: dict[int, PartitionMetadata]


class Cluster:
    """A cluster and its connections.

    The methods raise ClientError for a network failure, KafkaError for an error that a broker returns.
    """

    def __init__(self, config: ClientConfig, clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep):
        self.config = config
        self.nodes: dict[int, Node] = {}
        self.cluster_id: str | None = None
        self.controller_id = -1
        self._clock = clock or Clock()
        self._sleep = sleep
        self._connections: dict[tuple[str, int, str], Connection] = {}
        self._proven: set[tuple[str, int]] = set()
        """The addresses at which a broker has answered.

        The client's settings are not the cause of a later failure at one of these addresses.
        """
        self._topics: dict[str, TopicMetadata] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self.limit = TimeLimit(self._clock)
        self._opening_ms: dict[tuple[str, int], int] = {}
        """Maps each address whose last connection attempt was cut short to the ms that the next attempt may take."""
        self._cut: dict[str, CutRetries] = {}
        """Maps each operation whose retries were cut short by the end of a call to the state of these retries."""

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def end_within(self, limit_ms: int) -> None:
        """Limit the total time of all later calls, retries and new connections. After `limit_ms`, each of them fails.

        The resolution of a host name is not limited.
        """
        self.limit.end_within(limit_ms)

    def within(self, limit_ms: float) -> AbstractContextManager[None]:
        """Limit the calls in a block. After `limit_ms` they raise OutOfTime, and their requests remain in flight."""
        return self.limit.within(limit_ms)

    # ---- connections

    def any(self) -> Connection:
        """Return a connection to any broker.

        Prefer an open idle connection to a new one, and a known broker to a bootstrap server. Raise ClientError if no
        broker can be reached.
        """
        self._close_idle()
        for (_, _, purpose), connection in self._connections.items():
            is_unfinished = not purpose and connection.has_unfinished_call      # the new call may ask the same
            if connection.is_open and (is_unfinished or not connection.in_flight):
                return self._bounded(connection)
        failures = []
        known = [(node.host, node.port) for node in self.nodes.values()]
        for host, port in sorted(dict.fromkeys([*known, *self.config.bootstrap]), key=self._patience_ms):
            try:
                return self._connect(host, port)
            except ClientError as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        raise ClientError('no broker can be reached: ' + '; '.join(map(str, failures)),
                          is_lasting=all(failure.is_lasting for failure in failures))

    def node(self, node_id: int, purpose: str = '') -> Connection:
        """Return the connection to the broker with this id. Raise KafkaError(BROKER_NOT_AVAILABLE) for an unknown
        id.
        """
        if node_id not in self.nodes:
            self.refresh(())
        node = self.nodes.get(node_id)
        if node is None:
            found = ', '.join(map(str, sorted(self.nodes)))
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f'broker {node_id} is not in the cluster: found {found}')
        try:
            return self._connect(node.host, node.port, purpose, node_id)
        except ClientError as error:
            if (node.host, node.port) in self.config.bootstrap:
                raise
            raise ClientError(f'{error} (the address that broker {node_id} advertises; see advertised.listeners)',
                              error.is_lasting) from None

    def controller(self) -> Connection:
        """Return the connection for controller requests.

        Raise KafkaError(NOT_CONTROLLER) while there is no controller.
        """
        if self.controller_id not in self.nodes:
            self.refresh(())
        if self.controller_id not in self.nodes:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, 'the cluster names no controller at the moment')
        return self.node(self.controller_id)

    def leader(self, topic: str, partition: int, purpose: str = '') -> Connection:
        """Return the connection to the leader of a partition.

        Raise KafkaError with UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, or the broker's error for the topic.
        Raise PartitionOffline if the replica of a running broker is offline.
        """
        return self.node(self.partition(topic, partition).leader_id, purpose)

    def partition(self, topic: str, partition: int) -> PartitionMetadata:
        """Return the metadata of a partition that has a leader. Raise the same errors as `leader`."""
        known = self._topics.get(topic)
        found = None if known is None else known.partitions.get(partition)
        if found is None or found.leader_id < 0:
            self.topics([topic])
            found = self._existing(topic, partition)
            if found.leader_id < 0:
                raise self._without_leader(topic, found)
        return found

    def leaderless(self, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], KafkaError]:
        """Return {partition: error} for the partitions that have no leader. Raise the same errors as `topics`."""
        without = [at for at in partitions if not self._has_leader(*at)]
        if without:
            self.topics({topic for topic, _ in without})
        return {(topic, partition): self._without_leader(topic, self._existing(topic, partition))
                for topic, partition in without if not self._has_leader(topic, partition)}

    def _has_leader(self, topic: str, partition: int) -> bool:
        known = self._topics.get(topic)
        return known is not None and partition in known.partitions and known.partitions[partition].leader_id >= 0

    def _existing(self, topic: str, partition: int) -> PartitionMetadata:
        known = self._topics[topic].partitions
        if partition not in known:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'{topic}-{partition} does not exist: the topic has '
                             f'{len(known)} partitions')
        return known[partition]

    def _without_leader(self, topic: str, found: PartitionMetadata) -> KafkaError:
        """Return the error for a partition that has no leader.

        The error is lasting if a running broker has an offline replica, because that broker cannot use the partition's
        files (KIP-112). Otherwise it is transient: the broker of the replica is down and may come back.
        """
        where = f'{topic}-{found.partition}'
        running = [str(node_id) for node_id in found.offline_replicas if node_id in self.nodes]
        if running:
            return PartitionOffline(
                ErrorCode.KAFKA_STORAGE_ERROR, f'{where} is offline: its log directory on broker {", ".join(running)} '
                'has failed, or its files there are damaged')
        down = ''.join(f'; broker {node_id} is down' for node_id in found.offline_replicas)
        return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f'{where} has no leader at the moment{down}')

    def coordinator(self, key_type: KeyType, key: str, purpose: str = 'coordinator') -> Connection:
        """Return the connection to the coordinator of a group or transactional.id.

        Raise KafkaError(COORDINATOR_NOT_AVAILABLE) while there is no coordinator.
        """
        return self.node(self.coordinator_id(key_type, key), purpose)

    def coordinator_id(self, key_type: KeyType, key: str) -> int:
        """Return the broker id of the coordinator. Raise the same errors as `coordinator`."""
        (node_id,) = self.coordinator_ids(key_type, [key])
        return node_id

    def coordinator_ids(self, key_type: KeyType, keys: Collection[str]) -> dict[int, list[str]]:
        """Return {broker id of a coordinator: its keys}. Raise the same errors as `coordinator`."""
        unknown = [key for key in keys if (key_type, key) not in self._coordinators]
        if unknown:
            connection = self.any()
            several = connection.version_of(messages.FindCoordinatorRequest) >= FIND_COORDINATOR_VERSION_OF_SEVERAL
            for part in ([unknown] if several else [[key] for key in unknown]):
                self._find_coordinators(connection, key_type, part, several)
        found: dict[int, list[str]] = {}
        for key in keys:
            found.setdefault(self._coordinators[key_type, key], []).append(key)
        return found

    def _find_coordinators(self, connection: Connection, key_type: KeyType, keys: list[str], several: bool) -> None:
        kind = 'group' if key_type == KeyType.GROUP else 'transactional.id'
        if several:
            request = messages.FindCoordinatorRequest(coordinator_keys=keys, key_type=key_type)
            answers = {row.key: row for row in connection.call(request).coordinators}
        else:
            request = messages.FindCoordinatorRequest(key=keys[0], key_type=key_type)
            answers = {keys[0]: connection.call(request, max_version=FIND_COORDINATOR_VERSION_OF_SEVERAL - 1)}
        for key in keys:
            words = f'the coordinator of {kind} {key!r}'
            if (row := answers.get(key)) is None:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f'{words}: found no answer, expected one')
            check(row.error_code, words, row.error_message)
            self.nodes[row.node_id] = Node(row.node_id, row.host, row.port)
            self._coordinators[key_type, key] = row.node_id

    def _connect(self, host: str, port: int, purpose: str = '', node_id: int = -1) -> Connection:
        self._close_idle()
        connection = self._connections.get((host, port, purpose))
        if connection is None or not connection.is_open:
            self._check_time_left()
            patience_ms = self._patience_ms((host, port))
            try:
                with self.limit.at_least(patience_ms):
                    connection = Connection(host, port, self.config, node_id, self._clock, self.limit)
            except (AnswerTimeout, OutOfTime) as error:
                # After request.timeout.ms, too, the call has no time for another address: the next call tries it.
                if isinstance(error, AnswerTimeout) and self.limit.left_ms(1) > 0:
                    raise
                self._opening_ms[host, port] = min(2 * patience_ms, self.config.connection_setup_timeout_ms)
                if self.limit.is_bounded:
                    raise OutOfTime(str(error)) from error
                raise
            except ClientError as error:
                error.is_lasting = error.is_lasting and (host, port) not in self._proven
                raise
            self._opening_ms.pop((host, port), None)
            self._proven.add((host, port))
            self._connections[host, port, purpose] = connection
        return self._bounded(connection)

    def _patience_ms(self, address: tuple[str, int]) -> int:
        return self._opening_ms.get(address, OPENING_MS)

    def _bounded(self, connection: Connection) -> Connection:
        """Return `connection`. Raise ClientError if the time limit set by `end_within` is over."""
        self._check_time_left()
        return connection

    def _check_time_left(self) -> None:
        if self.limit.is_finally_over:
            raise ClientError('found no time left for another request: the client is being closed')

    def _close_idle(self) -> None:
        """Close the connections that were idle for connections.max.idle.ms. A broker would close them a little
        later.
        """
        oldest_ms = self._clock.monotonic_ms() - self.config.connections_max_idle_ms
        for key, connection in list(self._connections.items()):
            if connection.used_ms < oldest_ms and not connection.in_flight:
                connection.close()
                del self._connections[key]

    # ---- metadata

    def refresh(self, topics: Collection[str] | None = None, allow_auto_topic_creation: bool = False) -> Any:
        """Fetch and store the metadata of these topics, or of all topics for None. Return the MetadataResponse.

        Raise ClientError if the broker belongs to another cluster than the brokers that have answered before.
        """
        connection = self.any()
        wanted = None if topics is None else [messages.MetadataRequest.MetadataRequestTopic(name=name)
                                              for name in topics]
        answer = connection.call(messages.MetadataRequest(topics=wanted,
                                                          allow_auto_topic_creation=allow_auto_topic_creation))
        check(answer.error_code, f'broker {connection.address}: Metadata')
        if None not in (self.cluster_id, answer.cluster_id) and self.cluster_id != answer.cluster_id:
            raise ClientError(f'{connection.address} belongs to cluster {answer.cluster_id}, expected '
                              f'{self.cluster_id}, which this client has used before', is_lasting=True)
        self.nodes = {row.node_id: Node(row.node_id, row.host, row.port, row.rack) for row in answer.brokers}
        self.cluster_id, self.controller_id = answer.cluster_id, answer.controller_id
        if topics is None:
            self._topics.clear()
        for topic in answer.topics:
            self._topics.pop(topic.name, None)
            if topic.name and not topic.error_code:
                self._topics[topic.name] = _topic_metadata(topic)
        return answer

    def topics(self, names: Collection[str] | None = None,
               allow_auto_topic_creation: bool = False) -> dict[str, TopicMetadata]:
        """Fetch and return {name: topic} for `names`, or for all topics that the client may describe.

        Raise KafkaError if a topic in `names` has an error, such as UNKNOWN_TOPIC_OR_PARTITION.
        """
        answer = self.refresh(names, allow_auto_topic_creation)
        if names is None:
            return dict(sorted(self._topics.items()))
        for topic in answer.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise error_of(topic.error_code, f'topic {topic.name}', 'it does not exist')
            check(topic.error_code, f'topic {topic.name}', api='Metadata')
        if missing := set(names) - self._topics.keys():
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f'topic {min(missing)}: found no answer in the metadata')
        return {name: self._topics[name] for name in names}

    def found_or_created(self, topic: str, limit_ms: int) -> TopicMetadata:
        """Return the topic. If it does not exist, and the broker has auto.create.topics.enable, wait until it exists.

        Raise KafkaError(UNKNOWN_TOPIC_OR_PARTITION) after TOPIC_CREATION_MS, or after `limit_ms` if that is less.
        """
        return self.retrying(lambda: self.topics([topic], allow_auto_topic_creation=True), f'topic {topic}',
                             also=(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,),
                             timeout_ms=min(TOPIC_CREATION_MS, limit_ms))[topic]

    def find_topics(self, names: Collection[str]) -> dict[str, TopicMetadata | None]:
        """Fetch and return {name: topic} for `names`.

        The value for a topic that does not exist is None. A topic with a different error is missing.
        """
        answer = self.refresh(names)
        return {topic.name: self._topics.get(topic.name) for topic in answer.topics
                if topic.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)}

    def names_of(self, topic_ids: Collection[bytes]) -> dict[bytes, str]:
        """Fetch and return {topic id: name}.

        A topic that does not exist, or that the client may not describe, is missing.
        """
        request, connection = messages.MetadataRequest, self.any()
        answer = connection.call(request(allow_auto_topic_creation=False, topics=[
            request.MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in topic_ids]),
            min_version=TOPICS_BY_ID_VERSION)
        check(answer.error_code, f'broker {connection.address}: Metadata')
        return {topic.topic_id: topic.name for topic in answer.topics if not topic.error_code}

    def forget(self) -> None:
        """Drop the cached leaders and coordinators, which may be out of date. The next use requests them again."""
        self._topics.clear()
        self._coordinators.clear()

    def forget_topics(self, names: Collection[str]) -> None:
        """Drop the metadata of topics that are not in use."""
        for name in names:
            self._topics.pop(name, None)

    # ---- retries

    def retrying(self, operation: Callable[[], T], what: str, also: Collection[ErrorCode] = (),
                 timeout_ms: int | None = None, patience_ms: int = 0) -> T:
        """Return the result of `operation`. After a transient error, run the operation again after a back-off.

        The codes in RETRIED and `also` are transient. A broken connection is transient after the cluster was reached
        once. PartitionOffline is not transient. Each retry drops cached leaders and coordinators. After
        default.api.timeout.ms (or `timeout_ms`), raise the last error, with `what` and the elapsed time in its message.
        `patience_ms` is the time for which the operation itself may wait at a broker, in addition to the time of the
        retries.

        Raise OutOfTime if the time of the whole call (see `within`) ends first. The next call with an equal `what`
        continues the retries.
        """
        limit_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        cut = self._resume(what)
        began_ms, tries = self._clock.monotonic_ms() - cut.spent_ms, cut.tries
        backoff_ms = float(self.config.retry_backoff_ms)
        while True:
            tries += 1
            failure: KafkaError | ClientError | OutOfTime
            try:
                with self.within(limit_ms + patience_ms - (self._clock.monotonic_ms() - began_ms)):
                    return operation()
            except (KafkaError, ClientError) as error:
                if not self._is_transient(error, also):
                    raise
                failure, pause_ms = error, backoff_ms
            except OutOfTime as error:
                failure, pause_ms = error, 0
            now_ms = self._clock.monotonic_ms()
            limit_of_this_ms = limit_ms + (patience_ms if isinstance(failure, OutOfTime) else 0)
            own_left_ms = self.limit.finally_left_ms(limit_of_this_ms - (now_ms - began_ms))
            if pause_ms >= own_left_ms:     # another thread may have set the final end in the meantime
                raise _gave_up(failure, what, tries, now_ms - began_ms) from failure
            if isinstance(failure, OutOfTime) or pause_ms >= self.limit.left_ms(own_left_ms):
                self._cut[what] = CutRetries(now_ms - began_ms + int(pause_ms), tries, now_ms + int(pause_ms))
                raise OutOfTime(str(failure)) from failure
            self.forget()
            self._pause(backoff_ms)
            backoff_ms = min(backoff_ms * 2, self.config.retry_backoff_max_ms)

    def _resume(self, what: str) -> CutRetries:
        """Return the state of the retries that were cut short by the end of an earlier call.

        First wait until the next try may begin. Raise OutOfTime if the call ends before.
        """
        cut = self._cut.pop(what, CutRetries())
        wait_ms = cut.due_ms - self._clock.monotonic_ms()
        if wait_ms > 0:
            self.forget()
            if wait_ms > self.limit.left_ms(wait_ms):
                self._sleep(self.limit.left_ms(wait_ms) / 1000)
                self._cut[what] = cut
                raise OutOfTime(f'{what}: the time of the call ended before the next try')
            self._sleep(wait_ms / 1000)
        return cut

    def _pause(self, backoff_ms: float) -> None:
        """Sleep for about `backoff_ms`. The jitter keeps clients that failed together from retrying together."""
        from random import uniform
        self._sleep(self.limit.left_ms(backoff_ms * uniform(1 - JITTER, 1 + JITTER)) / 1000)

    def _is_transient(self, error: KafkaError | ClientError, also: Collection[ErrorCode]) -> bool:
        if isinstance(error, PartitionOffline):
            return False
        if isinstance(error, KafkaError):
            return error.code in RETRIED or error.code in also or isinstance(error, OutOfDate)
        return bool(self.nodes) and not error.is_lasting


def _gave_up(error: KafkaError | ClientError | OutOfTime, what: str, tries: int,
             waited_ms: int) -> KafkaError | ClientError:
    text = f'{what}: {error} (tried {tries} times in {waited_ms} ms)'
    return KafkaError(error.code, text) if isinstance(error, KafkaError) else ClientError(text)


def _topic_metadata(topic: Any) -> TopicMetadata:
    return TopicMetadata(topic.name, topic.topic_id, topic.is_internal, {
        row.partition_index: PartitionMetadata(
            row.partition_index, row.leader_id, row.leader_epoch, tuple(row.replica_nodes), tuple(row.isr_nodes),
            tuple(row.offline_replicas), known_code(row.error_code))
        for row in sorted(topic.partitions, key=lambda row: int(row.partition_index))})


"""The state of a whole cluster: brokers, features, API versions, offline partitions and open transactions.

Each part is asked on its own, so a broker that lacks an API, or that denies it, costs only one part.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kbroker import __version__
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import LATEST, IsolationLevel
from kbroker.client.errors import ClientError, check
from kbroker.protocol import messages, schema

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.client.descriptions import TransactionInfo
    from kbroker_tools.base.view import TopicInfo
    from kbroker_tools.cluster.live_view import LiveView

Result = TypeVar('Result')

OPEN_STATES = ('Ongoing', 'PrepareCommit', 'PrepareAbort')
IDS_AT_ONCE = 1000
OFFSETS_AT_ONCE = 1000
FENCED_SINCE = 2
"""The first version of DescribeCluster that returns fenced brokers."""


class Broker(NamedTuple):
    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool | None
    """None if the broker that answered cannot tell."""
    is_controller: bool


class Feature(NamedTuple):
    name: str
    supported: tuple[int, int]
    finalized: int | None


class ApiVersions(NamedTuple):
    """The versions of one API that a broker serves and that this client knows."""

    key: int
    name: str
    served: tuple[int, int] | None
    known: tuple[int, int] | None

    @property
    def chosen(self) -> int | None:
        """The version that the client uses, or None if both have no version in common."""
        if self.served is None or self.known is None or max(self.served[0], self.known[0]) > min(
                self.served[1], self.known[1]):
            return None
        return min(self.served[1], self.known[1])


class Held(NamedTuple):
    """A partition whose last stable offset is below the high watermark."""

    topic: str
    partition: int
    last_stable_offset: int
    high_watermark: int

    @property
    def distance(self) -> int:
        return self.high_watermark - self.last_stable_offset


@dataclass
class Overview:
    """The parts that could be read. A part that could not be read is None, and `missing` has its reason."""

    cluster_id: str | None = None
    brokers: list[Broker] | None = None
    features: list[Feature] | None = None
    api_versions: dict[int, list[ApiVersions]] = field(default_factory=dict)
    """Maps the id of each broker that answers to its versions."""
    topics: dict[str, TopicInfo] | None = None
    open_transactions: list[TransactionInfo] | None = None
    """The open transactions, the oldest first."""
    held: list[Held] | None = None
    """The held partitions, the one that holds back most first."""
    missing: dict[str, str] = field(default_factory=dict)
    """Maps the name of a part to the reason why it is missing."""
    failed: bool = False
    """True if a part is missing for another reason than a broker that lacks its API."""

    @property
    def partitions(self) -> int:
        return sum(len(topic.partitions) for topic in (self.topics or {}).values())

    @property
    def offline(self) -> list[TopicPartition]:
        return [(row.topic, row.partition) for topic in (self.topics or {}).values() for row in topic.partitions
                if row.leader < 0]

    @property
    def under_replicated(self) -> list[TopicPartition]:
        return [(row.topic, row.partition) for topic in (self.topics or {}).values() for row in topic.partitions
                if len(row.in_sync_replicas) < len(row.replicas)]


def read_overview(view: LiveView) -> Overview:
    """Return the overview of a cluster. Raise ClientError or KafkaError if no broker can be reached."""
    cluster = view.cluster
    cluster.refresh(())
    found = Overview(cluster.cluster_id)

    def read(name: str, function: Callable[[], Result]) -> Result | None:
        try:
            return function()
        except (KafkaError, ClientError) as error:
            found.missing[name] = str(error)
            found.failed |= not isinstance(error, KafkaError) or error.code != ErrorCode.UNSUPPORTED_VERSION
        return None

    found.brokers = read('brokers', lambda: read_brokers(cluster))
    found.features = read('features', lambda: read_features(cluster))
    for node_id in sorted(cluster.nodes):
        versions = read(f'API versions of broker {node_id}', partial(read_versions, cluster, node_id))
        if versions is not None:
            found.api_versions[node_id] = versions
    found.topics = read('partitions', view.topics)
    found.open_transactions = read('open transactions', lambda: read_open_transactions(view))
    if found.topics is not None:
        topics = found.topics
        found.held = read('held partitions', lambda: read_held(view, topics))
    return found


def read_brokers(cluster: Cluster) -> list[Broker]:
    """Return the brokers, sorted by id. A broker without DescribeCluster does not tell which brokers are fenced."""
    connection = cluster.any()
    try:
        version = connection.version_of(messages.DescribeClusterRequest)
        answer = connection.call(messages.DescribeClusterRequest(include_fenced_brokers=version >= FENCED_SINCE))
        check(answer.error_code, 'DescribeCluster', answer.error_message)
    except KafkaError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        cluster.refresh(())
        return [Broker(*node, None, node.node_id == cluster.controller_id)
                for node in sorted(cluster.nodes.values())]
    tells_fenced = version >= FENCED_SINCE
    return sorted(Broker(row.broker_id, row.host, row.port, row.rack, row.is_fenced if tells_fenced else None,
                         row.broker_id == answer.controller_id) for row in answer.brokers)


def read_features(cluster: Cluster) -> list[Feature]:
    request = messages.ApiVersionsRequest(client_software_name='kbroker', client_software_version=__version__)
    answer = cluster.any().call(request)
    check(answer.error_code, 'ApiVersions')
    finalized = {row.name: row.max_version_level for row in answer.finalized_features}
    return [Feature(row.name, (row.min_version, row.max_version), finalized.get(row.name))
            for row in sorted(answer.supported_features, key=lambda row: str(row.name))]


def known_apis() -> Iterator[tuple[int, str, tuple[int, int]]]:
    """Yield the key, the name and the versions of each API that this client knows."""
    for name in schema.declarations():
        if name.endswith('Request'):
            found: Any = getattr(messages, name)
            if found.api_key is not None:
                yield found.api_key, name.removesuffix('Request'), found.versions


def read_versions(cluster: Cluster, node_id: int) -> list[ApiVersions]:
    """Return the versions of one broker, with all APIs that the broker or this client knows, sorted by key."""
    served = cluster.node(node_id).api_versions
    rows = [ApiVersions(key, name, served.get(key), versions) for key, name, versions in known_apis()]
    unknown = served.keys() - {row.key for row in rows}
    return sorted(rows + [ApiVersions(key, 'UNKNOWN', served[key], None) for key in unknown])


def read_open_transactions(view: LiveView) -> list[TransactionInfo]:
    """Return the open transactions, the oldest first."""
    ids = [row.transactional_id for row in view.admin.list_transactions(OPEN_STATES)]
    found: list[TransactionInfo] = []
    for start in range(0, len(ids), IDS_AT_ONCE):
        found += [row for row in view.transactions_of(ids[start:start + IDS_AT_ONCE]).values()
                  if row.state in OPEN_STATES]
    return sorted(found, key=lambda row: (row.start_timestamp_ms is None, row.start_timestamp_ms or 0,
                                          row.transactional_id))


def read_held(view: LiveView, topics: dict[str, TopicInfo]) -> list[Held]:
    """Return the partitions whose last stable offset is held, with the largest distance first.

    The last stable offsets are read before the high watermarks. So a partition with new records may seem held.
    """
    partitions = [(row.topic, row.partition) for topic in topics.values() for row in topic.partitions
                  if row.leader >= 0]
    found = []
    for start in range(0, len(partitions), OFFSETS_AT_ONCE):
        some = dict.fromkeys(partitions[start:start + OFFSETS_AT_ONCE], LATEST)
        stable = view.admin.list_offsets(some, IsolationLevel.READ_COMMITTED)
        ends = view.admin.list_offsets(some)
        found += [Held(*at, stable[at].offset, ends[at].offset) for at in some
                  if stable[at].offset < ends[at].offset]
    return sorted(found, key=lambda held: (-held.distance, held.topic, held.partition))

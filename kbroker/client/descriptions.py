"""Settings, credentials, producers, transactions and groups, as described by an Admin or read from a log directory.

Times are milliseconds since the epoch. An absent value is None.
"""
from __future__ import annotations

from kbroker.base.lean_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A source that has a value for a setting. The source of the highest precedence determines the value in use."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting of a topic, a broker or a group, as described by DescribeConfigs."""

    name: str
    value: str | None
    """The value as a text; None for a secret."""
    source: str
    """The name of the value's source: DEFAULT_CONFIG, DYNAMIC_TOPIC_CONFIG, STATIC_BROKER_CONFIG ..., or UNKNOWN."""
    is_sensitive: bool = False
    is_read_only: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    """All sources that have a value, the source of the highest precedence first; empty unless requested."""
    type: str = 'UNKNOWN'
    """The name of the type: BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD, or UNKNOWN."""
    documentation: str | None = None


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """A credential of a user, without its secrets (KIP-554)."""

    mechanism: str
    """SCRAM-SHA-256, SCRAM-SHA-512, or the code of a mechanism that the client does not know."""
    iterations: int


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """The size of a replica of a partition in a log directory (KIP-113)."""

    topic: str
    partition: int
    size_bytes: int
    """The sum of the sizes of the replica's segments."""
    offset_lag: int
    """The number of offsets that the replica is behind. A future replica is compared with the current one."""
    is_future: bool
    """True while the replica is being moved to this log directory."""


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A log directory of a broker, with the sizes of its replicas (DescribeLogDirs, KIP-113)."""

    broker_id: int
    path: str
    """The path on the broker's machine."""
    error: str | None
    """The name of the error code if the broker cannot use the directory, such as KAFKA_STORAGE_ERROR."""
    replicas: tuple[ReplicaSize, ...]
    total_bytes: int | None
    """The size of the file system; None if the broker is older than Kafka 3.3."""
    usable_bytes: int | None


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """The state that a partition has stored for one producer id (DescribeProducers, KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    """The epoch of the coordinator that wrote the last marker; -1 before the first marker."""
    transaction_first_offset: int | None


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str
    """The name of the state: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit or CompleteAbort."""


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """The state of a transactional.id, from its coordinator or from its last row in `__transaction_state`."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_timestamp_ms: int | None
    partitions: tuple[tuple[str, int], ...]
    """The partitions of the transaction, in the order of the coordinator's answer or of the row."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    coordinator_id: int
    state: str
    """The state of the group; '' if the broker's version of ListGroups is below 4."""
    protocol_type: str
    group_type: str
    """The type of the group (classic, consumer, share, streams); '' if the broker's version of ListGroups is below
    5.
    """


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[tuple[str, int], ...]
    epoch: int | None = None
    """The member epoch; None for the classic protocol."""
    target_assignment: tuple[tuple[str, int], ...] | None = None
    """The assignment that the group has chosen for the member; None unless the group type is consumer (KIP-848)."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    group_id: str
    state: str
    """The name of the state, such as Empty, Stable, PreparingRebalance or Reconciling.

    For a group read from a log directory, the state is derived from the rows of the group.
    """
    protocol_type: str
    protocol: str
    """The assignor."""
    coordinator_id: int
    members: tuple[GroupMemberInfo, ...]
    epoch: int | None = None
    """The epoch of the group; None for the classic protocol, like `assignment_epoch`."""
    assignment_epoch: int | None = None

    @property
    def group_type(self) -> str:
        """The type of the described group: classic, consumer, share or streams."""
        if self.protocol_type in ('share', 'streams'):
            return self.protocol_type
        return 'classic' if self.epoch is None else 'consumer'


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """The offset of a partition from which a share group delivers records.

    `start_offset` is None until the group has chosen it.
    """

    topic: str
    partition: int
    leader_epoch: int | None
    start_offset: int | None
    lag: int | None
    """The number of offsets from `start_offset` to the end of the log that no member has finished; None if unknown."""


@dataclass(frozen=True, slots=True)
class StreamsMemberInfo:
    """A member of a streams group (KIP-1071). `tasks` maps each role to {subtopology: task numbers}."""

    member_id: str
    process_id: str
    client_id: str
    client_host: str
    epoch: int
    topology_epoch: int
    is_classic: bool
    tasks: dict[str, dict[str, list[int]]]
    target: dict[str, dict[str, list[int]]]


@dataclass(frozen=True, slots=True)
class SubtopologyInfo:
    """The topics that a subtopology reads and writes."""

    subtopology_id: str
    sources: tuple[str, ...]
    repartition_sources: tuple[str, ...]
    changelogs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopologyNode:
    """A node in the description of a topology (KIP-1331).

    `topics` has the topics of a source, or the topic of a sink. It is empty if the sink chooses a topic for each
    record. `successors` has the names of the nodes that get its records.
    """

    name: str
    kind: str
    """source, processor, sink, or UNKNOWN."""
    topics: tuple[str, ...]
    stores: tuple[str, ...]
    successors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopologyDescription:
    """The nodes of an application, as its members have described them (KIP-1331)."""

    subtopologies: dict[str, tuple[TopologyNode, ...]]
    """Maps the id of each subtopology to its nodes."""
    global_stores: tuple[tuple[TopologyNode, TopologyNode], ...]
    """The source and the processor of each global store."""


@dataclass(frozen=True, slots=True)
class StreamsGroupInfo:
    group_id: str
    state: str
    coordinator_id: int
    epoch: int
    assignment_epoch: int
    subtopologies: tuple[SubtopologyInfo, ...]
    members: tuple[StreamsMemberInfo, ...]
    assignor: str | None = None
    """The assignor of the next assignment; None if the broker is older than Kafka 4.4."""
    topology_status: str = 'NOT_REQUESTED'
    """NOT_REQUESTED, NOT_STORED, FAILED (the broker could not get it), AVAILABLE, or UNKNOWN."""
    topology_description: TopologyDescription | None = None
    """The description of the topology if `topology_status` is AVAILABLE, otherwise None."""

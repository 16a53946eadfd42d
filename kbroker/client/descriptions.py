"""Settings, credentials, producers, transactions and groups, as described by an Admin or read from a log directory.

Times are milliseconds since the epoch. An absent value is None.
"""
from __future__ import annotations

from kbroker.base.lean_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A source that sets the value, or would set it if no source of higher precedence did."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting of a topic, a broker or a group (DescribeConfigs)."""

    name: str
    value: str | None
    """The value as a text; None for a secret."""
    source: str
    """The source by Kafka's name: DEFAULT_CONFIG, DYNAMIC_TOPIC_CONFIG, STATIC_BROKER_CONFIG ..., or UNKNOWN."""
    is_sensitive: bool = False
    is_read_only: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    """The sources in the order of precedence; empty unless they were requested."""
    type: str = 'UNKNOWN'
    """The type by Kafka's name: BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD, or UNKNOWN."""
    documentation: str | None = None


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """A credential of a user, without its secrets (KIP-554)."""

    mechanism: str
    """SCRAM-SHA-256 or SCRAM-SHA-512, or the number of an unknown mechanism."""
    iterations: int


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """A partition's state of one producer id (DescribeProducers, KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    """The coordinator's epoch in the last marker; -1 before the first marker."""
    transaction_first_offset: int | None


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: str
    """The state by Kafka's name: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort."""


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
    """The partitions in the order of the source."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    coordinator_id: int
    state: str
    """The state of the group; empty before ListGroups 4."""
    protocol_type: str
    group_type: str
    """The type of the group: classic, consumer, share or streams; empty before ListGroups 5."""


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
    """The assignment that the member is to reach; None unless the protocol is consumer (KIP-848)."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    group_id: str
    state: str
    """The state by Kafka's name, such as Empty, Stable, PreparingRebalance or Reconciling.

    For a directory, its rows imply it.
    """
    protocol_type: str
    protocol: str
    """The assignor."""
    coordinator_id: int
    members: tuple[GroupMemberInfo, ...]
    epoch: int | None = None
    """The group epoch. This field and the next one are None for the classic protocol."""
    assignment_epoch: int | None = None

    @property
    def group_type(self) -> str:
        """Kafka's type of the described group: classic, consumer, share or streams."""
        if self.protocol_type in ('share', 'streams'):
            return self.protocol_type
        return 'classic' if self.epoch is None else 'consumer'


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """The offset at which a share group begins in a partition. `start_offset` is None until the group has chosen it."""

    topic: str
    partition: int
    leader_epoch: int | None
    start_offset: int | None
    lag: int | None
    """The number of offsets from the start to the end of the log that no member has finished; None if unknown."""


@dataclass(frozen=True, slots=True)
class StreamsMemberInfo:
    """A member of a streams group (KIP-1071). Tasks are numbers by role and by subtopology."""

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
    """The topics of a subtopology."""

    subtopology_id: str
    sources: tuple[str, ...]
    repartition_sources: tuple[str, ...]
    changelogs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamsGroupInfo:
    group_id: str
    state: str
    coordinator_id: int
    epoch: int
    assignment_epoch: int
    subtopologies: tuple[SubtopologyInfo, ...]
    members: tuple[StreamsMemberInfo, ...]

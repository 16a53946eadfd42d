"""The state of the metadata, which results from replaying the metadata log record by record.

A `MetadataImage` keeps the content of every kind of record, even of kinds that kbroker does not use. So a reader of the
directory sees the same state as Apache Kafka. The values in the dictionaries of an image are replaced, and never
changed, so a copy can share them with the original. A batch is replayed on a copy before it is written, so that the log
never contains a batch that cannot be replayed.
"""
from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NoReturn, TypeVar

from kbroker.base.errors import CorruptLogError
from kbroker.base.lean_dataclasses import dataclass, field, replace
from kbroker.metadata.features import ELIGIBLE_LEADER_REPLICAS_VERSION, KRAFT_VERSION, METADATA_VERSION
from kbroker.metadata.topic_names import flat_name_of
from kbroker.protocol import messages

NO_LEADER = -1
NO_LEADER_CHANGE = -2

K = TypeVar('K')
V = TypeVar('V')


class ResourceType(enum.IntEnum):
    """The types of resources that have configs, with Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """A partition. `directories` contains the log directory of each replica, in the order of `replicas`."""

    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[bytes, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = 0
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    @classmethod
    def of(cls, record: messages.PartitionRecord) -> PartitionImage:
        """Return the partition of a Partition record."""
        return cls(
            record.partition_id, tuple(record.replicas), tuple(record.isr), record.leader, record.leader_epoch,
            record.partition_epoch, tuple(record.directories), tuple(record.removing_replicas),
            tuple(record.adding_replicas), record.leader_recovery_state, tuple(record.eligible_leader_replicas or ()),
            tuple(record.last_known_elr or ()))

    def merge(self, change: messages.PartitionChangeRecord) -> PartitionImage:
        """Return the partition after `change`.

        If `change` names a leader, even the current one, the leader epoch is raised.
        """
        changed: dict[str, Any] = {
            name: tuple(value) for name in _CHANGEABLE if (value := getattr(change, name)) is not None}
        if change.leader != NO_LEADER_CHANGE:
            changed['leader'] = change.leader
            changed['leader_epoch'] = self.leader_epoch + 1
        if change.leader_recovery_state != -1:
            changed['leader_recovery_state'] = change.leader_recovery_state
        return replace(self, partition_epoch=self.partition_epoch + 1, **changed)


_CHANGEABLE = ('isr', 'replicas', 'removing_replicas', 'adding_replicas', 'directories', 'eligible_leader_replicas',
               'last_known_elr')


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic. `partitions` are sorted by index. `configs` are the configs that the topic itself sets."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...] = ()
    configs: dict[str, str] = field(default_factory=dict)

    def has_partition(self, index: int) -> bool:
        position = bisect_left(self.partitions, index, key=attrgetter('index'))
        return position < len(self.partitions) and self.partitions[position].index == index


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A registered broker. `end_points` and `features` are the structs in its RegisterBroker record."""

    broker_id: int
    incarnation_id: bytes
    broker_epoch: int
    end_points: tuple[Any, ...]
    features: tuple[Any, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[bytes, ...]
    cordoned_log_dirs: tuple[bytes, ...] | None


@dataclass
class MetadataImage:
    """The state of the cluster after the record at `metadata_offset`."""

    cluster_id: str = ''
    node_id: int = -1
    metadata_offset: int = -1
    """The offset of the last replayed record, or -1 if no record was replayed."""
    metadata_epoch: int = 0
    timestamp_ms: int = -1
    """The append time of the last replayed batch, in milliseconds since the Unix epoch."""
    kraft_version: int = 0
    voters: tuple[Any, ...] = ()
    """The structs of the last KRaftVoters record. Each has a voter and its log directory (kraft.version 1)."""
    leader_change_voters: tuple[int, ...] | None = None
    """The voter ids of the last LeaderChange record, or None if the log has no such record."""
    features: dict[str, int] = field(default_factory=dict)
    brokers: dict[int, BrokerImage] = field(default_factory=dict)
    controllers: dict[int, Any] = field(default_factory=dict)
    topics: dict[str, TopicImage] = field(default_factory=dict)
    topics_by_id: dict[bytes, TopicImage] = field(default_factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    client_quotas: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = field(default_factory=dict)
    next_producer_id: int = 0
    flat_names: dict[str, str] = field(default_factory=dict)
    """Maps the flat name of each topic with a '.' or '_' in its name to the topic's name.

    A flat name has '_' instead of '.'.

    Two topics with the same flat name would have the same metric names.
    """
    access_control_entries: dict[bytes, Any] = field(default_factory=dict)
    scram_credentials: dict[tuple[str, int], Any] = field(default_factory=dict)
    delegation_tokens: dict[str, Any] = field(default_factory=dict)
    open_transaction: list[Any] | None = None
    """The records since the last BeginTransaction, or None if no transaction is open.

    They take effect at EndTransaction.
    """
    _changing: dict[bytes, dict[int, PartitionImage]] = field(default_factory=dict)
    """The partitions that the current batch has changed: maps a topic id to {partition index: partition}.

    A batch may change thousands of partitions. So the tuple of a topic's partitions is built only once for each batch.
    """

    @property
    def metadata_version(self) -> int:
        """The finalized level of metadata.version, or 0 if the log has no level of it yet."""
        return self.features.get(METADATA_VERSION, 0)

    @property
    def finalized_features(self) -> dict[str, int]:
        """The finalized level of each feature.

        It includes kraft.version, from a control record, if its level is above 0.
        """
        return {**self.features, KRAFT_VERSION: self.kraft_version} if self.kraft_version else dict(self.features)

    @property
    def eligible_leader_replicas_enabled(self) -> bool:
        """True if KIP-966 is enabled. A partition then keeps its eligible leaders when its in-sync set is empty."""
        return self.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) >= 1

    def copy(self) -> MetadataImage:
        """Return a copy. Replaying records on the copy does not change this image."""
        def own(value: Any) -> Any:
            return value.copy() if isinstance(value, dict | list) else value
        return MetadataImage(**{name: own(value) for name, value in vars(self).items()})

    def replay(self, records: Iterable[Any], last_offset: int, epoch: int, timestamp_ms: int) -> None:
        """Apply the records of one batch. Raise CorruptLogError if a record contradicts the state."""
        self.metadata_offset = last_offset
        for record in records:
            self.replay_record(record)
        self.end_batch(last_offset, epoch, timestamp_ms)

    def replay_record(self, record: Any) -> None:
        """Apply one record of a batch. The caller calls `end_batch` after the last record of the batch."""
        if self.open_transaction is None or type(record) in _NOT_HELD:
            self._apply(record)
        else:
            self.open_transaction.append(record)

    def end_batch(self, last_offset: int, epoch: int, timestamp_ms: int) -> None:
        """Set the end offset, epoch and timestamp of the image to those of the batch whose records were applied."""
        self.metadata_offset = last_offset
        self.metadata_epoch = epoch
        self.timestamp_ms = timestamp_ms
        self._store_changed_partitions()

    def _apply(self, record: Any) -> None:
        _REPLAY[type(record)](self, record)

    def _refuse(self, reason: str) -> NoReturn:
        raise CorruptLogError(f'metadata log, batch that ends at offset {self.metadata_offset}: {reason}')

    # -- control records and transactions

    def _leader_change(self, record: messages.LeaderChangeMessage) -> None:
        self.leader_change_voters = tuple(voter.voter_id for voter in record.voters)

    def _kraft_version(self, record: messages.KRaftVersionRecord) -> None:
        self.kraft_version = record.kraft_version

    def _voters(self, record: messages.VotersRecord) -> None:
        self.voters = tuple(record.voters)

    def _begin_transaction(self, record: messages.BeginTransactionRecord) -> None:
        if self.open_transaction is not None:
            self._refuse('found BeginTransaction inside a transaction')
        self.open_transaction = []

    def _end_transaction(self, record: messages.EndTransactionRecord) -> None:
        for held in self._close_transaction('EndTransaction'):
            self._apply(held)

    def _abort_transaction(self, record: messages.AbortTransactionRecord) -> None:
        self._close_transaction('AbortTransaction')

    def _close_transaction(self, found: str) -> list[Any]:
        held, self.open_transaction = self.open_transaction, None
        if held is None:
            self._refuse(f'found {found}, and no transaction is open')
        return held

    def _nothing(self, record: Any) -> None:
        """Ignore a record. NoOp only advances the offset.

        ZkMigrationState is obsolete, because Kafka no longer uses ZooKeeper.
        """

    # -- brokers and controllers

    def _register_broker(self, record: messages.RegisterBrokerRecord) -> None:
        cordoned = record.cordoned_log_dirs
        self.brokers[record.broker_id] = BrokerImage(
            record.broker_id, record.incarnation_id, record.broker_epoch, tuple(record.end_points),
            tuple(record.features), record.rack, record.fenced, record.in_controlled_shutdown, tuple(record.log_dirs),
            None if cordoned is None else tuple(cordoned))

    def _unregister_broker(self, record: messages.UnregisterBrokerRecord) -> None:
        self._registered(record.broker_id, record.broker_epoch)
        del self.brokers[record.broker_id]

    def _broker_registration_change(self, record: messages.BrokerRegistrationChangeRecord) -> None:
        changed: dict[str, Any] = {}
        if record.fenced:
            changed['fenced'] = record.fenced == 1
        if record.in_controlled_shutdown:
            changed['in_controlled_shutdown'] = True
        if record.log_dirs:
            changed['log_dirs'] = tuple(record.log_dirs)
        if record.cordoned_log_dirs is not None:
            changed['cordoned_log_dirs'] = tuple(record.cordoned_log_dirs)
        broker = self._registered(record.broker_id, record.broker_epoch)
        self.brokers[record.broker_id] = replace(broker, **changed)

    def _fence_broker(self, record: messages.FenceBrokerRecord) -> None:
        self.brokers[record.id] = replace(self._registered(record.id, record.epoch), fenced=True)

    def _unfence_broker(self, record: messages.UnfenceBrokerRecord) -> None:
        self.brokers[record.id] = replace(self._registered(record.id, record.epoch), fenced=False)

    def _registered(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        broker = self.brokers.get(broker_id)
        if broker is None:
            self._refuse(f'found a change of broker {broker_id}, which is not registered')
        if broker.broker_epoch != broker_epoch:
            self._refuse(f'found broker {broker_id} at epoch {broker_epoch}, expected {broker.broker_epoch}')
        return broker

    def _register_controller(self, record: messages.RegisterControllerRecord) -> None:
        self.controllers[record.controller_id] = record

    def _unregister_controller(self, record: messages.UnregisterControllerRecord) -> None:
        self.controllers.pop(record.controller_id, None)

    # -- topics

    def _put_topic(self, topic: TopicImage) -> None:
        self.topics[topic.name] = self.topics_by_id[topic.topic_id] = topic

    def _topic_of(self, topic_id: bytes) -> TopicImage:
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            self._refuse(f'found topic id {topic_id.hex()}, which names no topic')
        return topic

    def _topic(self, record: messages.TopicRecord) -> None:
        if record.name in self.topics or record.topic_id in self.topics_by_id:
            self._refuse(f'found topic {record.name} with id {record.topic_id.hex()}, and the name or the id is taken')
        self._store_changed_partitions()    # stores the topic before, so that each topic is stored in turn
        configs = self.configs.get((ResourceType.TOPIC, record.name), {})
        flat_name = flat_name_of(record.name)
        if flat_name is not None:
            self.flat_names[flat_name] = record.name
        self._put_topic(TopicImage(record.name, record.topic_id, configs=configs))

    def _partitions_of(self, topic: TopicImage) -> dict[int, PartitionImage]:
        """Return {index: partition} of the topic. Records of the current batch may change this dict."""
        partitions = self._changing.get(topic.topic_id)
        if partitions is None:
            partitions = {partition.index: partition for partition in topic.partitions}
            self._changing[topic.topic_id] = partitions
        return partitions

    def _store_changed_partitions(self) -> None:
        """Store the changed partitions in their topics, sorted by index: a snapshot may contain them in any order."""
        for topic_id, partitions in self._changing.items():
            in_order = tuple(partitions[index] for index in sorted(partitions))
            self._put_topic(replace(self.topics_by_id[topic_id], partitions=in_order))
        self._changing.clear()

    def _partition(self, record: messages.PartitionRecord) -> None:
        self._partitions_of(self._topic_of(record.topic_id))[record.partition_id] = PartitionImage.of(record)

    def _partition_change(self, record: messages.PartitionChangeRecord) -> None:
        topic = self._topic_of(record.topic_id)
        partitions = self._partitions_of(topic)
        if record.partition_id not in partitions:
            self._refuse(f'found a change of partition {record.partition_id} of {topic.name}, which does not exist')
        partitions[record.partition_id] = partitions[record.partition_id].merge(record)

    def _remove_topic(self, record: messages.RemoveTopicRecord) -> None:
        topic = self._topic_of(record.topic_id)
        self._changing.pop(topic.topic_id, None)
        del self.topics[topic.name], self.topics_by_id[topic.topic_id]
        self.configs.pop((ResourceType.TOPIC, topic.name), None)
        flat_name = flat_name_of(topic.name)
        if flat_name is not None:
            self.flat_names.pop(flat_name, None)

    def _clear_elr(self, record: messages.ClearElrRecord) -> None:
        if record.topic_name and record.topic_name not in self.topics:
            self._refuse(f'found ClearElr of topic {record.topic_name}, which does not exist')
        self._store_changed_partitions()
        for topic in [self.topics[record.topic_name]] if record.topic_name else list(self.topics.values()):
            if not any(found.eligible_leader_replicas or found.last_known_elr for found in topic.partitions):
                continue
            self._put_topic(replace(topic, partitions=tuple(
                replace(partition, eligible_leader_replicas=(), last_known_elr=()) for partition in topic.partitions)))

    # -- settings, quotas, ids, security

    def _config(self, record: messages.ConfigRecord) -> None:
        resource = record.resource_type, record.resource_name
        configs = _with_value(self.configs, resource, record.name, record.value)
        if record.resource_type == ResourceType.TOPIC and record.resource_name in self.topics:
            self._put_topic(replace(self.topics[record.resource_name], configs=configs))

    def _feature_level(self, record: messages.FeatureLevelRecord) -> None:
        if record.name == KRAFT_VERSION:
            return  # the control record of kraft.version is authoritative
        if record.feature_level:
            self.features[record.name] = record.feature_level
        else:
            self.features.pop(record.name, None)

    def _producer_ids(self, record: messages.ProducerIdsRecord) -> None:
        if record.next_producer_id <= self.next_producer_id:
            self._refuse(f'found {record.next_producer_id} as the next producer id, expected more than '
                         f'{self.next_producer_id}')
        self.next_producer_id = record.next_producer_id

    def _client_quota(self, record: messages.ClientQuotaRecord) -> None:
        parts = ((part.entity_type, part.entity_name) for part in record.entity)
        entity = tuple(sorted(parts, key=lambda part: part[0]))
        _with_value(self.client_quotas, entity, record.key, None if record.remove else record.value)

    def _access_control_entry(self, record: messages.AccessControlEntryRecord) -> None:
        self.access_control_entries[record.id] = record

    def _remove_access_control_entry(self, record: messages.RemoveAccessControlEntryRecord) -> None:
        self.access_control_entries.pop(record.id, None)

    def _scram_credential(self, record: messages.UserScramCredentialRecord) -> None:
        self.scram_credentials[record.name, record.mechanism] = record

    def _remove_scram_credential(self, record: messages.RemoveUserScramCredentialRecord) -> None:
        self.scram_credentials.pop((record.name, record.mechanism), None)

    def _delegation_token(self, record: messages.DelegationTokenRecord) -> None:
        self.delegation_tokens[record.token_id] = record

    def _remove_delegation_token(self, record: messages.RemoveDelegationTokenRecord) -> None:
        self.delegation_tokens.pop(record.token_id, None)


def _with_value(rows: dict[K, dict[str, V]], key: K, name: str, value: V | None) -> dict[str, V]:
    """Set `name` to `value` in the row of `key`, or remove `name` if `value` is None. Return the new row.

    If the new row is empty, remove it from `rows`. The old row does not change, because copies of the image share it.
    """
    row = dict(rows.get(key, {}))
    if value is None:
        row.pop(name, None)
    else:
        row[name] = value
    if row:
        rows[key] = row
    else:
        rows.pop(key, None)
    return row


_REPLAY: dict[type, Callable[[MetadataImage, Any], None]] = {
    messages.LeaderChangeMessage: MetadataImage._leader_change,
    messages.KRaftVersionRecord: MetadataImage._kraft_version,
    messages.VotersRecord: MetadataImage._voters,
    messages.SnapshotHeaderRecord: MetadataImage._nothing,
    messages.SnapshotFooterRecord: MetadataImage._nothing,
    messages.BeginTransactionRecord: MetadataImage._begin_transaction,
    messages.EndTransactionRecord: MetadataImage._end_transaction,
    messages.AbortTransactionRecord: MetadataImage._abort_transaction,
    messages.NoOpRecord: MetadataImage._nothing,
    messages.ZkMigrationStateRecord: MetadataImage._nothing,
    messages.RegisterBrokerRecord: MetadataImage._register_broker,
    messages.UnregisterBrokerRecord: MetadataImage._unregister_broker,
    messages.BrokerRegistrationChangeRecord: MetadataImage._broker_registration_change,
    messages.FenceBrokerRecord: MetadataImage._fence_broker,
    messages.UnfenceBrokerRecord: MetadataImage._unfence_broker,
    messages.RegisterControllerRecord: MetadataImage._register_controller,
    messages.UnregisterControllerRecord: MetadataImage._unregister_controller,
    messages.TopicRecord: MetadataImage._topic,
    messages.PartitionRecord: MetadataImage._partition,
    messages.PartitionChangeRecord: MetadataImage._partition_change,
    messages.RemoveTopicRecord: MetadataImage._remove_topic,
    messages.ClearElrRecord: MetadataImage._clear_elr,
    messages.ConfigRecord: MetadataImage._config,
    messages.FeatureLevelRecord: MetadataImage._feature_level,
    messages.ProducerIdsRecord: MetadataImage._producer_ids,
    messages.ClientQuotaRecord: MetadataImage._client_quota,
    messages.AccessControlEntryRecord: MetadataImage._access_control_entry,
    messages.RemoveAccessControlEntryRecord: MetadataImage._remove_access_control_entry,
    messages.UserScramCredentialRecord: MetadataImage._scram_credential,
    messages.RemoveUserScramCredentialRecord: MetadataImage._remove_scram_credential,
    messages.DelegationTokenRecord: MetadataImage._delegation_token,
    messages.RemoveDelegationTokenRecord: MetadataImage._remove_delegation_token,
}

CONTROL_RECORDS = (messages.LeaderChangeMessage, messages.KRaftVersionRecord, messages.VotersRecord,
                   messages.SnapshotHeaderRecord, messages.SnapshotFooterRecord)
TRANSACTION_RECORDS = (messages.BeginTransactionRecord, messages.EndTransactionRecord, messages.AbortTransactionRecord)
_NOT_HELD = frozenset((*CONTROL_RECORDS, *TRANSACTION_RECORDS))

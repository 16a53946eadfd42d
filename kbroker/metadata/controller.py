"""The only voter of the metadata quorum: it leads, registers this broker, and makes every change to the metadata.

An operation builds its records, replays them on a copy of the image, writes them as one batch, and adopts the copy once
the batch is on the disk. So an operation takes effect as a whole or not at all, also after a crash. If a write or a
sync fails, nothing is adopted. The operation and every later one raise KafkaError(KAFKA_STORAGE_ERROR), because the
content of the disk is unknown until a restart.

One batch at a time is in flight: written, but not durable. An operation that is a generator waits while another thread
syncs the log. An operation at once syncs in the calling thread. It makes a batch in flight durable and adopts it before
it writes its own, so the order of adoption is that of the log.
"""
from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.ledger import Line
from kbroker.base.long_work import run_to_end
from kbroker.log.fs import FileSystem, sync_inline
from kbroker.log.jobs import Sync
from kbroker.log.verification import Past
from kbroker.metadata.batches import MAX_RECORDS, encode_control, encode_data
from kbroker.metadata.changes import RECORDS_AT_ONCE, Change, Commit, Steps, Turns, check_batch_length, check_batch_size
from kbroker.metadata.config_records import check_config_sizes, config_record, longest_encoding
from kbroker.metadata.directory import (
    META_PROPERTIES_FILE,
    DirectoryRefusedError,
    MetaProperties,
    check_unformatted,
    check_writable,
    default_features,
    feature_levels,
    format_directory,
    random_uuid,
    read_meta_properties,
)
from kbroker.metadata.features import (
    DIRECTORIES_SINCE,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
)
from kbroker.metadata.image import (
    CONTROL_RECORDS,
    NO_LEADER,
    MetadataImage,
    PartitionImage,
    ResourceType,
    TopicImage,
)
from kbroker.metadata.lost_log import proof_of_loss, way_back
from kbroker.metadata.quorum_log import QuorumLog
from kbroker.metadata.scram_records import MOST_CREDENTIALS
from kbroker.metadata.snapshots import bootstrap_records
from kbroker.metadata.topic_names import check_collision, check_topic_name
from kbroker.protocol.messages import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    EndTransactionRecord,
    KRaftVersionRecord,
    LeaderChangeMessage,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    VotersRecord,
)
from kbroker.settings.config import Config, Listener, validate_broker_configs, validate_topic_configs
from kbroker.settings.group_resources import validate_group_configs
from kbroker.settings.groups import GROUP_SETTINGS
from kbroker.settings.listeners import SECURITY_PROTOCOLS
from kbroker.settings.table import TOPIC_SETTINGS

PRODUCER_ID_BLOCK = 1000
MAX_PRODUCER_ID = 2**63 - 1
MIN_INSYNC_REPLICAS = 'min.insync.replicas'
CLUSTER_METADATA = '__cluster_metadata'

Resource = tuple[int, str]
"""Type and name of what has configs."""

Charge = Callable[[int], object]
"""A function that counts partitions to be created or deleted. It raises KafkaError if they are too many."""

_FENCE, _UNFENCE = 1, -1

logger = logging.getLogger(__name__)


class NewTopic(NamedTuple):
    """One topic of a CreateTopics request."""

    name: str
    partitions: int
    configs: Mapping[str, str | None] = MappingProxyType({})


def charge_nothing(_partitions: int) -> None:
    """Count nothing: the change has no quota."""


class MetadataController:
    """The metadata of this broker. Call `open`, `register`, any operations, `begin_shutdown`, `finish_shutdown`.

    Each operation replaces `image` instead of changing it: keep the controller, not the image.
    The caller holds the log directory's `.lock` throughout.
    """

    supported_features = SUPPORTED_FEATURES
    """Lowest and highest level by feature; the finalized levels are `image.features`."""

    def __init__(self, image: MetadataImage, log: QuorumLog, properties: MetaProperties, config: Config, clock: Clock,
                 sync: Sync = sync_inline):
        self.image = image
        self._log = log
        self._config = config
        self._clock = clock
        self._sync = sync
        self.node_id = properties.node_id
        self.cluster_id = properties.cluster_id
        self.directory_id = properties.directory_id
        self.on_failure: Callable[[str], object] = lambda reason: None
        """Called when a change cannot be written."""
        self.broker_epoch = -1
        """The epoch of this registration; -1 before `register`."""
        self.turns = Turns()
        """The order of the long changes."""
        self.on_change: list[Callable[[Sequence[Any]], object]] = []
        """Called with the records of each change that has taken effect."""
        self._changes: list[Change] = []
        """The changes that are being prepared."""
        self._in_flight: Commit | None = None
        """The batch that is written and not durable yet."""

    # -- start and stop

    @classmethod
    def open(cls, fs: FileSystem, log_dir: str, config: Config, clock: Clock,
             past: Past | None = None, sync: Sync = sync_inline) -> MetadataController:
        """Read the metadata, formatting an empty directory first, and become leader of the next epoch.

        `sync` syncs the log for the operations that wait.

        Raises, before anything is written: DirectoryRefusedError if the directory does not belong to this node alone,
        or if `past` proves that the metadata log lost records; CorruptLogError if it is damaged. Raises
        KafkaError(KAFKA_STORAGE_ERROR) if a write fails, OSError if a read fails.
        """
        if not fs.exists(os.path.join(log_dir, META_PROPERTIES_FILE)):
            format_directory(fs, log_dir, config.node_id, clock.wall_ms())
        controller, bootstrap = cls._read(fs, log_dir, config, clock, sync)
        proof = None if past is None else proof_of_loss(past, controller._log, controller.image)
        if proof is not None:
            raise DirectoryRefusedError(f'{controller._log.directory}: {proof}. {way_back(controller._log, log_dir)}')
        controller._lead()
        if bootstrap:
            controller._bootstrap(bootstrap)
        logger.info('leading the metadata of cluster %s in epoch %d, offset %d', controller.cluster_id,
                    controller._log.epoch, controller._log.end_offset)
        return controller

    @classmethod
    def check(cls, fs: FileSystem, log_dir: str, config: Config, clock: Clock) -> None:
        """Raise the errors that `open` raises before it writes."""
        if fs.exists(os.path.join(log_dir, META_PROPERTIES_FILE)):
            cls._read(fs, log_dir, config, clock)
        else:
            check_unformatted(fs, log_dir)

    @classmethod
    def _read(cls, fs: FileSystem, log_dir: str, config: Config, clock: Clock,
              sync: Sync = sync_inline) -> tuple[MetadataController, list[Any]]:
        """Return the controller of a directory that may be written, and the records that its log must begin with."""
        properties = read_meta_properties(fs, log_dir)
        image = MetadataImage(properties.cluster_id, properties.node_id)
        log = QuorumLog(fs, log_dir, config.metadata_log_segment_bytes)
        log.load(image)
        bootstrap: list[Any] = []
        if not image.metadata_version:
            bootstrap = bootstrap_records(fs, log_dir, log.directory) or default_features()
        check_writable(image, log, properties, config.node_id, bootstrap)
        return cls(image, log, properties, config, clock, sync), bootstrap

    def _lead(self) -> None:
        voter = LeaderChangeMessage.Voter(voter_id=self.node_id)
        records: list[Any] = [LeaderChangeMessage(leader_id=self.node_id, voters=[voter], granting_voters=[voter])]
        if self._log.end_offset == 0 and self.image.kraft_version:
            # The records that formatting wrote into the snapshot at offset 0 are not part of the log yet.
            records += [KRaftVersionRecord(kraft_version=self.image.kraft_version),
                        VotersRecord(voters=list(self.image.voters))]
        self._log.begin_epoch(self.node_id, self.image.kraft_version)
        self._commit(records)
        self._log.write_leader_epochs()
        if self.image.open_transaction is not None:
            self._commit([AbortTransactionRecord(reason='Controller failover')])

    def _bootstrap(self, records: list[Any]) -> None:
        """Write the first data of a log, a transaction in one batch: `records`, which set at least metadata.version."""
        levels = feature_levels(records)
        if levels.get(ELIGIBLE_LEADER_REPLICAS_VERSION):
            # KIP-966 requires the cluster's min.insync.replicas in the log, so that changes to it are recorded.
            records = [*records, config_record(ResourceType.BROKER, '', MIN_INSYNC_REPLICAS,
                                                str(self._config.min_insync_replicas))]
        self._commit([BeginTransactionRecord(name='Bootstrap records'), *records, EndTransactionRecord()],
                     metadata_version=levels[METADATA_VERSION])

    def register(self, listeners: Sequence[Listener]) -> None:
        """Register a new incarnation of this broker, reachable at `listeners`, and elect it leader of every partition.

        Every start elects leaders again, also after a crash: leader epochs grow, so epochs that clients hold are old.
        """
        broker_epoch = self._log.end_offset
        end_points = [RegisterBrokerRecord.BrokerEndpoint(name=listener.name, host=listener.host, port=listener.port,
                                                          security_protocol=SECURITY_PROTOCOLS[listener.protocol])
                      for listener in listeners]
        features = [RegisterBrokerRecord.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
                    for name, (low, high) in SUPPORTED_FEATURES.items()]
        self._commit([RegisterBrokerRecord(
            broker_id=self.node_id, incarnation_id=random_uuid(), broker_epoch=broker_epoch, end_points=end_points,
            features=features, rack=self._config.broker_rack, fenced=True, log_dirs=self._directories())])
        self.broker_epoch = broker_epoch
        unfence = BrokerRegistrationChangeRecord(broker_id=self.node_id, broker_epoch=broker_epoch, fenced=_UNFENCE)
        self._commit_in_batches([unfence, *self._change_partitions(self._elect, lambda partition: True)])

    def begin_shutdown(self) -> None:
        """Announce the shutdown and give up leadership. From here on nothing may be appended to a partition."""
        resign = self._change_partitions(self._resign, lambda partition: partition.leader == self.node_id)
        if resign:
            self._commit_in_batches([BrokerRegistrationChangeRecord(
                broker_id=self.node_id, broker_epoch=self.broker_epoch, in_controlled_shutdown=1), *resign])

    def finish_shutdown(self) -> int:
        """Fence this broker and close the log, once the partitions are closed.

        Returns the broker epoch for `.kafka_cleanshutdown`.
        """
        self._commit([BrokerRegistrationChangeRecord(
            broker_id=self.node_id, broker_epoch=self.broker_epoch, fenced=_FENCE)])
        self.close()
        return self.broker_epoch

    @property
    def log(self) -> QuorumLog:
        return self._log

    @property
    def end_offset(self) -> int:
        """The offset behind the last record of the metadata log."""
        return self._log.end_offset

    def ledger(self) -> list[Line]:
        return [Line('SCRAM credentials', '', lambda: len(self.image.scram_credentials), lambda: MOST_CREDENTIALS,
                     'fixed')]

    def close(self) -> None:
        """Close the log as a crash would, without a clean shutdown."""
        self._log.close()

    # -- elections

    def _change_partitions(self, change: Callable[[bytes, PartitionImage], PartitionChangeRecord],
                           wanted: Callable[[PartitionImage], bool]) -> list[PartitionChangeRecord]:
        return [change(topic.topic_id, partition)
                for topic in self.image.topics.values() for partition in topic.partitions if wanted(partition)]

    def _elect(self, topic_id: bytes, partition: PartitionImage) -> PartitionChangeRecord:
        record = PartitionChangeRecord(partition_id=partition.index, topic_id=topic_id, leader=self.node_id)
        if self.image.eligible_leader_replicas_enabled:
            record.eligible_leader_replicas = record.last_known_elr = []
        if self.image.eligible_leader_replicas_enabled or partition.isr != (self.node_id,):
            record.isr = [self.node_id]
        return record

    def _resign(self, topic_id: bytes, partition: PartitionImage) -> PartitionChangeRecord:
        record = PartitionChangeRecord(partition_id=partition.index, topic_id=topic_id, leader=NO_LEADER)
        if self.image.eligible_leader_replicas_enabled:
            record.isr = []
            record.eligible_leader_replicas = record.last_known_elr = [self.node_id]
        return record

    # -- topics
    # A change is a generator: it yields between small parts, and waits for its sync. Its caller takes a turn of
    # `turns`, so that no two such changes overlap. A change at once (`create_topic`, `allocate_producer_id_block`) may
    # come in between.

    def create_topics(self, new_topics: Sequence[NewTopic], *, validate_only: bool = False,
                      charge: Charge = charge_nothing) -> Steps[list[TopicImage | KafkaError]]:
        """Create the topics in one batch. Returns for each, in request order, the topic or its error.

        With `validate_only` nothing is written; the results are those of a real call. `charge` gets the number of
        partitions of each valid topic; a KafkaError that it raises is the topic's error. Raises errors of the whole
        batch: POLICY_VIOLATION if it would be too large, KAFKA_STORAGE_ERROR.
        """
        with self._preparing() as change:
            refused = yield from self._add_topics(change, new_topics, charge)
            after = self._validated(change) if validate_only else (yield from self._commit_change(change))
        return [refused.get(new.name) or after.topics[new.name] for new in new_topics]

    def _add_topics(self, change: Change, new_topics: Sequence[NewTopic],
                    charge: Charge = charge_nothing) -> Steps[dict[str, KafkaError]]:
        """Add the records of all good topics, and return the errors of the others."""
        check_batch_length(sum(max(0, new.partitions) for new in new_topics))
        times = Counter(new.name for new in new_topics)
        refused: dict[str, KafkaError] = {}
        for new in new_topics:
            try:
                if times[new.name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST,
                                     f'Topic {new.name!r} is named {times[new.name]} times')
                self._check_new_topic(new)
                charge(new.partitions)
            except KafkaError as error:
                refused[new.name] = error.with_traceback(None)
                yield
            else:
                yield from self._add(change, self._topic_records(new))
        return refused

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str | None] | None = None) -> TopicImage:
        """Create one topic at once.

        Raises KafkaError: INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS, INVALID_CONFIG and those
        of `create_topics`.
        """
        with self._preparing() as change:
            refused = run_to_end(self._add_topics(change, [NewTopic(name, partitions, configs or {})]))
            if name in refused:
                raise refused[name]
            return self._commit_change_at_once(change).topics[name]

    def _check_new_topic(self, new: NewTopic) -> None:
        check_topic_name(new.name)
        if new.name == CLUSTER_METADATA:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'{CLUSTER_METADATA} is the metadata log and no topic')
        for image in self._images():
            if new.name in image.topics:
                raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f'Topic {new.name!r} already exists')
            check_collision(new.name, image.flat_names)
        if new.partitions < 1:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f'found {new.partitions} partitions, expected at least 1')
        check_batch_length(new.partitions + len(new.configs))
        check_config_sizes(new.configs)
        validate_topic_configs(new.configs, self._config)

    def _topic_records(self, new: NewTopic) -> Iterator[Any]:
        topic_id = random_uuid()
        yield TopicRecord(name=new.name, topic_id=topic_id)
        for key, value in new.configs.items():
            yield config_record(ResourceType.TOPIC, new.name, key, value)
        if MIN_INSYNC_REPLICAS in new.configs and self.image.eligible_leader_replicas_enabled:
            yield ClearElrRecord(topic_name=new.name)
        yield from self._partition_records(topic_id, range(new.partitions))

    def _partition_records(self, topic_id: bytes, indexes: Iterable[int]) -> Iterator[PartitionRecord]:
        return (PartitionRecord(partition_id=index, topic_id=topic_id, replicas=[self.node_id], isr=[self.node_id],
                                leader=self.node_id, leader_epoch=0, partition_epoch=0, directories=self._directories())
                for index in indexes)

    def _directories(self) -> list[bytes]:
        return [self.directory_id] if self.image.metadata_version >= DIRECTORIES_SINCE else []

    def create_partitions(self, counts: Mapping[str, int], *, validate_only: bool = False,
                          charge: Charge = charge_nothing) -> Steps[list[TopicImage | KafkaError]]:
        """Increase each topic of `counts` to so many partitions, in one batch. Returns for each the topic or its error.

        The errors are UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS and those of `charge`, which gets the number of
        added partitions of each topic. Raises as `create_topics`.
        """
        refused: dict[str, KafkaError] = {}
        with self._preparing() as change:
            for name, count in counts.items():
                try:
                    topic = self._existing(name)
                    found = len(topic.partitions)
                    if count <= found:
                        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f'found {count} partitions, expected more than '
                                         f'the {found} of topic {name!r}')
                    charge(count - found)
                except KafkaError as error:
                    refused[name] = error.with_traceback(None)
                    yield
                else:
                    check_batch_length(len(change.records) + count - found)
                    yield from self._add(change, self._partition_records(topic.topic_id, range(found, count)))
            after = self._validated(change) if validate_only else (yield from self._commit_change(change))
        return [refused.get(name) or after.topics[name] for name in counts]

    def delete_topics(self, topics: Sequence[str | bytes],
                      charge: Charge = charge_nothing) -> Steps[list[TopicImage | KafkaError]]:
        """Delete topics by name or id, in one batch. Returns for each, in order, the deleted topic or its error.

        `charge` gets the number of partitions of each topic; a KafkaError that it raises is the topic's error.
        """
        check_batch_length(len(topics))
        results: list[TopicImage | KafkaError] = []
        doomed: set[bytes] = set()
        with self._preparing() as change:
            for topic in topics:
                try:
                    found = self._existing(topic)
                    if found.topic_id not in doomed:
                        charge(len(found.partitions))
                except KafkaError as error:
                    results.append(error.with_traceback(None))
                    yield
                else:
                    results.append(found)
                    if found.topic_id not in doomed:
                        doomed.add(found.topic_id)
                        yield from self._add(change, [RemoveTopicRecord(topic_id=found.topic_id)])
            yield from self._commit_change(change)
        return results

    def _existing(self, topic: str | bytes) -> TopicImage:
        if isinstance(topic, str):
            if topic not in self.image.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'Topic {topic!r} does not exist')
            return self.image.topics[topic]
        if topic not in self.image.topics_by_id:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f'There is no topic of id {topic.hex()}')
        return self.image.topics_by_id[topic]

    # -- settings

    def alter_configs(self, wanted: Mapping[Resource, Mapping[str, str | None]], *,
                      validate_only: bool = False) -> Steps[dict[Resource, KafkaError | None]]:
        """Set the keys of each resource, and remove those whose value is None. Return the error of each resource.

        All good resources are one batch, as in Kafka, or several if one cannot hold them; one resource is never
        divided. For a BROKER the name '' means all brokers. Values of topics, brokers and groups are validated
        here. The errors are INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION, BROKER_ID_NOT_REGISTERED, INVALID_REQUEST,
        POLICY_VIOLATION, KAFKA_STORAGE_ERROR.
        """
        results: dict[Resource, KafkaError | None] = {}
        left = deque(wanted.items())
        while left:
            written: list[Resource] = []
            with self._preparing() as change:
                while left:
                    (resource, changes) = left[0]
                    try:
                        records = self._config_records(resource, changes)
                        size_bytes = sum(map(longest_encoding, records))
                        if written and not change.has_room(len(records), size_bytes):
                            break
                        check_batch_length(len(records))
                        check_batch_size(size_bytes)
                    except KafkaError as error:
                        results[resource] = error.with_traceback(None)
                    else:
                        results[resource] = None
                        written.append(resource)
                        yield from self._add(change, records)
                    left.popleft()
                    yield
                if not validate_only:
                    try:
                        yield from self._commit_change(change)
                    except KafkaError as error:
                        results.update(dict.fromkeys(written, error.with_traceback(None)))
        return results

    def _config_records(self, resource: Resource, changes: Mapping[str, str | None]) -> list[Any]:
        """Return the records that change a resource. Raises KafkaError if a change is not allowed."""
        resource_type, name = resource
        self._check_configs(resource_type, name, changes)
        current = self.image.configs.get(resource, {})
        records: list[Any] = [config_record(resource_type, name, key, value) for key, value in changes.items()
                              if current.get(key) != value]
        if self.image.eligible_leader_replicas_enabled and any(
                record.name == MIN_INSYNC_REPLICAS for record in records):
            records.append(ClearElrRecord(topic_name=name))
        return records

    def _check_configs(self, resource_type: int, name: str, changes: Mapping[str, str | None]) -> None:
        check_config_sizes(changes)
        if resource_type == ResourceType.TOPIC:
            self._existing(name)
            merged = {**self.image.configs.get((resource_type, name), {}), **changes}
            # A newer Kafka may have written keys that are unknown here; they may stay or be removed.
            validate_topic_configs({key: value for key, value in merged.items() if value is not None
                                    and (key in changes or key in TOPIC_SETTINGS)}, self._config)
        elif resource_type == ResourceType.BROKER:
            if name not in ('', str(self.node_id)):
                raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f'found broker {name!r}, expected {self.node_id}')
            validate_broker_configs(self._config, changes, per_broker=bool(name))
            if MIN_INSYNC_REPLICAS in changes and self.image.eligible_leader_replicas_enabled:
                self._check_cluster_min_insync_replicas(name, changes[MIN_INSYNC_REPLICAS])
        elif resource_type == ResourceType.GROUP and name:
            merged = {**self.image.configs.get((resource_type, name), {}), **changes}
            validate_group_configs(self._config, {key: value for key, value in merged.items() if value is not None
                                                  and (key in changes or key in GROUP_SETTINGS)})
        elif resource_type != ResourceType.CLIENT_METRICS or not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'found resource type {resource_type} with the name {name!r}, '
                             'expected a topic, a broker, a group or a client metrics subscription')

    def _check_cluster_min_insync_replicas(self, name: str, value: str | None) -> None:
        """Reject a change that KIP-966 forbids: the cluster needs exactly one value, always in the log."""
        if name:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f'{MIN_INSYNC_REPLICAS} cannot be set for one broker while '
                             'eligible leader replicas are enabled')
        if value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f'{MIN_INSYNC_REPLICAS} of the cluster cannot be removed while '
                             'eligible leader replicas are enabled')

    # -- producer ids

    def allocate_producer_id_block(self) -> range:
        """Return 1000 producer ids that are never allocated again: the block is in the log before this returns."""
        self.finish_commit()
        block = self._next_producer_id_block()
        self._commit([self._producer_ids_record(block)])
        return block

    def allocate_producer_id_block_later(self) -> Steps[range]:
        """Return the same, once it is durable."""
        yield from self._wait_for_flight()
        block = self._next_producer_id_block()
        yield from self._commit_later([self._producer_ids_record(block)])
        return block

    def _next_producer_id_block(self) -> range:
        first = self.image.next_producer_id
        if first > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f'the producer ids are used up: the next is {first}')
        return range(first, first + PRODUCER_ID_BLOCK)

    def _producer_ids_record(self, block: range) -> ProducerIdsRecord:
        return ProducerIdsRecord(broker_id=self.node_id, broker_epoch=self.broker_epoch, next_producer_id=block.stop)

    # -- scratch, append, adopt

    def _preview(self, records: Sequence[Any]) -> MetadataImage:
        """Return the image as it would be after `records`."""
        last_offset = self._log.end_offset + len(records) - 1
        return self.image.after(records, last_offset, self._log.epoch, self._clock.wall_ms())

    def _commit(self, records: Sequence[Any], *, metadata_version: int | None = None) -> MetadataImage:
        """Write `records`, all control or all data, as one batch at once and adopt it. No records, no batch."""
        if not records:
            return self.image
        check_batch_length(len(records))
        self.finish_commit()
        commit = self._begin_records(records, metadata_version or self.image.metadata_version)
        self.finish_commit()
        return commit.check()

    def _commit_later(self, records: Sequence[Any]) -> Steps[None]:
        """Write a few data records, and wait until they are durable and adopted. No batch may be in flight."""
        commit = self._begin_records(records, self.image.metadata_version)
        yield from self._durable(commit)

    def _begin_records(self, records: Sequence[Any], metadata_version: int) -> Commit:
        """Write records as one batch, which is in flight from now on."""
        place = {'base_offset': self._log.end_offset, 'epoch': self._log.epoch, 'timestamp_ms': self._clock.wall_ms()}
        if isinstance(records[0], CONTROL_RECORDS):
            batch = encode_control(records, **place)
        else:
            batch = encode_data(records, **place, metadata_version=metadata_version)
        return self._begin(batch, Commit(records, self._preview(records)))

    @contextmanager
    def _preparing(self) -> Iterator[Change]:
        """A change from now on until it is committed or given up."""
        change = Change(self.image, self._clock.wall_ms(), self.image.metadata_version)
        self._changes.append(change)
        try:
            yield change
        finally:
            if change in self._changes:
                self._changes.remove(change)

    def _images(self) -> Iterator[MetadataImage]:
        """Yield the image, and those that the changes in progress lead to."""
        yield self.image
        if self._in_flight is not None:
            yield self._in_flight.image
        for change in self._changes:
            yield change.image

    def _add(self, change: Change, records: Iterable[Any]) -> Steps[None]:
        for number, record in enumerate(records):
            if number % RECORDS_AT_ONCE == 0:
                yield
            change.add(record)

    def write(self, records: Iterable[Any]) -> Steps[None]:
        """Write records that the caller has validated as one batch: all of them take effect, or none.

        It returns once they are durable. Other changes may take effect meanwhile; a caller whose records depend on the
        image takes a turn of `turns` before it reads the image. Raises KafkaError: POLICY_VIOLATION if the batch would
        be too large, KAFKA_STORAGE_ERROR.
        """
        with self._preparing() as change:
            yield from self._add(change, records)
            yield from self._commit_change(change)

    def _validated(self, change: Change) -> MetadataImage:
        """Return the image that a change would lead to."""
        change.image.end_batch(self.image.metadata_offset, self.image.metadata_epoch, self.image.timestamp_ms)
        return change.image

    def _commit_change(self, change: Change) -> Steps[MetadataImage]:
        """Write the change as one batch, and wait until it is durable and adopted. No records, no batch."""
        if not change.records:
            return self.image
        yield from self._wait_for_flight()
        return (yield from self._durable(self._begin_change(change)))

    def _wait_for_flight(self) -> Steps[None]:
        """Wait until no batch is in flight."""
        while self._in_flight is not None:
            yield from self._in_flight.ended.wait()

    def _durable(self, commit: Commit) -> Steps[MetadataImage]:
        """Let the batch in flight be synced, and wait until it is adopted."""
        self._sync(self._log.files_to_sync(), partial(self._end, commit))
        yield from commit.ended.wait()
        return commit.check()

    def _commit_change_at_once(self, change: Change) -> MetadataImage:
        self.finish_commit()
        commit = self._begin_change(change)
        self.finish_commit()
        return commit.check()

    def _begin_change(self, change: Change) -> Commit:
        """Write a change, which gets no records of others from now on: they would come behind it."""
        self._changes.remove(change)
        batch = change.batch.finish(base_offset=self._log.end_offset, partition_leader_epoch=self._log.epoch)
        change.image.end_batch(self._log.end_offset + len(change.records) - 1, self._log.epoch, change.timestamp_ms)
        return self._begin(batch, Commit(change.records, change.image))

    def _begin(self, batch: bytearray, commit: Commit) -> Commit:
        """Write the batch of `commit`, which is in flight from now on."""
        check_batch_size(len(batch))
        try:
            self._log.write(batch, len(commit.records))
        except KafkaError as error:
            self.on_failure(str(error))
            raise
        self._in_flight = commit
        return commit

    def finish_commit(self) -> None:
        """Make the batch in flight durable and adopt it, if there is one, before this returns."""
        if self._in_flight is not None:
            sync_inline(self._log.files_to_sync(at_once=True), partial(self._end, self._in_flight))

    def sync_inline(self) -> None:
        """Sync in the calling thread from now on: a stop is about to close the sync threads."""
        self._sync = sync_inline

    def _end(self, commit: Commit, error: OSError | None) -> None:
        """Adopt a batch that was synced, or take the log offline if its sync failed.

        `finish_commit` may have ended the commit before the thread reports. An error of the thread still counts.
        """
        if error is not None:
            commit.failure = self._log.fail_sync(error)
        if commit is self._in_flight:
            self._in_flight = None
            if error is None:
                self._log.mark_synced()
                self._adopt(commit)
            commit.ended.end()
        if error is not None:
            self.on_failure(str(commit.failure))

    def _adopt(self, commit: Commit) -> None:
        self.image = commit.image
        for change in self._changes:
            change.image.replay(commit.records, commit.image.metadata_offset, commit.image.metadata_epoch,
                                commit.image.timestamp_ms)
        for callback in self.on_change:
            callback(commit.records)

    def take_offline(self, reason: str) -> None:
        """Mark the log directory as failed: every later change raises KAFKA_STORAGE_ERROR with `reason`."""
        self._log.take_offline(reason)

    def _commit_in_batches(self, records: Sequence[Any]) -> None:
        """Write records that need no common batch: any prefix of them is a valid state."""
        for start in range(0, len(records), MAX_RECORDS):
            self._commit(records[start:start + MAX_RECORDS])

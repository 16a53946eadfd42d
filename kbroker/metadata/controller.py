"""The controller: the only voter, and so the leader, of the metadata quorum.

It registers this broker and makes every change of the metadata.

The operations of `topics`, of `configs` and of this module create records. `commits` writes all of them.
"""
from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError, NewerFormatError
from kbroker.base.ledger import Line
from kbroker.log.fs import FileSystem, sync_inline
from kbroker.log.jobs import Sync
from kbroker.log.verification import Past
from kbroker.metadata.changes import Result, Steps
from kbroker.metadata.commits import Commits
from kbroker.metadata.config_operations import ConfigOperations
from kbroker.metadata.config_records import MIN_INSYNC_REPLICAS, config_record
from kbroker.metadata.directory import (
    META_PROPERTIES_FILE,
    DirectoryRefusedError,
    MetaProperties,
    check_unformatted,
    check_writable,
    feature_levels,
    feature_records,
    format_directory,
    later_release,
    random_uuid,
    read_meta_properties,
)
from kbroker.metadata.features import (
    DEFAULT_FEATURES,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    newer_level,
)
from kbroker.metadata.image import NO_LEADER, MetadataImage, PartitionImage, ResourceType
from kbroker.metadata.lost_log import proof_of_loss, recovery_advice
from kbroker.metadata.quorum_log import QuorumLog
from kbroker.metadata.scram_records import MOST_CREDENTIALS
from kbroker.metadata.snapshots import bootstrap_records
from kbroker.metadata.topic_operations import TopicOperations, directories_of
from kbroker.protocol.messages import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    EndTransactionRecord,
    KRaftVersionRecord,
    LeaderChangeMessage,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    VotersRecord,
)
from kbroker.settings.config import Config
from kbroker.settings.listeners import SECURITY_PROTOCOLS, Listener

PRODUCER_ID_BLOCK = 1000
MAX_PRODUCER_ID = 2**63 - 1
_FENCE, _UNFENCE = 1, -1

logger = logging.getLogger(__name__)


class MetadataController:
    """The metadata of this broker.

    Call `open`, `register`, any operations, `begin_shutdown` and `finish_shutdown`, in this order. Each operation
    replaces `image`. So keep a reference to the controller, not to the image. The caller must hold the `.lock` of the
    log directory all the time.
    """

    supported_features = SUPPORTED_FEATURES
    """Maps each feature to the lowest and the highest level that this broker supports.

    `image.features` contains the finalized levels.
    """

    def __init__(self, image: MetadataImage, log: QuorumLog, properties: MetaProperties, config: Config, clock: Clock,
                 sync: Sync = sync_inline):
        self.commits = Commits(image, log, clock, sync)
        self.topics = TopicOperations(self.commits, config, properties)
        self.configs = ConfigOperations(self.commits, config, properties.node_id)
        self._log = log
        self._config = config
        self.node_id = properties.node_id
        self.cluster_id = properties.cluster_id
        self.directory_id = properties.directory_id
        self.broker_epoch = -1
        """The broker epoch of the current registration, or -1 before `register`."""

    @property
    def image(self) -> MetadataImage:
        """The state after the last durable change."""
        return self.commits.image

    def at_once(self, steps: Steps[Result]) -> Result:
        """Run an operation to its end without waiting, as `Commits.at_once` does."""
        return self.commits.at_once(steps)

    def take_offline(self, reason: str) -> None:
        """Mark the log directory as failed. Every later change raises KAFKA_STORAGE_ERROR with `reason`."""
        self._log.take_offline(reason)

    # -- start and stop

    @classmethod
    def open(cls, fs: FileSystem, log_dir: str, config: Config, clock: Clock,
             past: Past | None = None, sync: Sync = sync_inline) -> MetadataController:
        """Read the metadata, and become the leader of the next epoch. If the directory is empty, format it first.

        `sync` syncs the log in another thread, for operations that wait.

        - Before the first write, raise DirectoryRefusedError if the directory belongs to another node, too, or if
          `past` proves that the metadata log has lost records.
        - Before the first write, raise CorruptLogError if the log is damaged.
        - Raise KafkaError(KAFKA_STORAGE_ERROR) if a write fails, OSError if a read fails.
        """
        if not fs.exists(os.path.join(log_dir, META_PROPERTIES_FILE)):
            format_directory(fs, log_dir, config.node_id, clock.wall_ms())
        controller, bootstrap = cls._read(fs, log_dir, config, clock, sync)
        proof = None if past is None else proof_of_loss(past, controller._log, controller.image)
        if proof is not None:
            advice = recovery_advice(controller._log, log_dir)
            raise DirectoryRefusedError(f'{controller._log.directory}: {proof}. {advice}')
        controller._lead()
        if bootstrap:
            controller._bootstrap(bootstrap)
        logger.info('leading the metadata of cluster %s in epoch %d, offset %d', controller.cluster_id,
                    controller._log.epoch, controller._log.end_offset)
        return controller

    @classmethod
    def check(cls, fs: FileSystem, log_dir: str, config: Config, clock: Clock) -> None:
        """Raise the errors about the directory that `open` would raise before its first write. Write nothing."""
        if fs.exists(os.path.join(log_dir, META_PROPERTIES_FILE)):
            cls._read(fs, log_dir, config, clock)
        else:
            check_unformatted(fs, log_dir)

    @classmethod
    def _read(cls, fs: FileSystem, log_dir: str, config: Config, clock: Clock,
              sync: Sync = sync_inline) -> tuple[MetadataController, list[Any]]:
        """Return (controller, records with which the log must begin) for a directory.

        Raise DirectoryRefusedError if it must not be written.
        """
        properties = read_meta_properties(fs, log_dir)
        image = MetadataImage(properties.cluster_id, properties.node_id)
        log = QuorumLog(fs, log_dir, config.metadata_log_segment_bytes)
        try:
            log.load(image)
        except NewerFormatError as error:
            levels = {KRAFT_VERSION: image.kraft_version, **image.features, **feature_levels(error.records)}
            problem = newer_level(levels) or str(error)
            raise DirectoryRefusedError(f'{problem}. {later_release(fs, log_dir)}') from error
        bootstrap: list[Any] = []
        if not image.metadata_version:
            bootstrap = bootstrap_records(fs, log_dir, log.directory) or feature_records(DEFAULT_FEATURES)
        check_writable(fs, log_dir, image, log, properties, config.node_id, bootstrap)
        return cls(image, log, properties, config, clock, sync), bootstrap

    def _lead(self) -> None:
        voter = LeaderChangeMessage.Voter(voter_id=self.node_id)
        records: list[Any] = [LeaderChangeMessage(leader_id=self.node_id, voters=[voter], granting_voters=[voter])]
        if self._log.end_offset == 0 and self.image.kraft_version:
            # Formatting wrote these records only into the snapshot at offset 0. The log does not contain them yet.
            records += [KRaftVersionRecord(kraft_version=self.image.kraft_version),
                        VotersRecord(voters=list(self.image.voters))]
        self._log.begin_epoch(self.node_id, self.image.kraft_version)
        self._write(records)
        self._log.write_leader_epochs()
        if self.image.open_transaction is not None:
            self._write([AbortTransactionRecord(reason='Controller failover')])

    def _bootstrap(self, records: list[Any]) -> None:
        """Write the first records of the log, as a transaction in one batch.

        At least metadata.version must be among `records`.
        """
        levels = feature_levels(records)
        if levels.get(ELIGIBLE_LEADER_REPLICAS_VERSION):
            # KIP-966 requires a record with the cluster's min.insync.replicas in the log, so that later changes of it
            # are recorded.
            records = [*records, config_record(ResourceType.BROKER, '', MIN_INSYNC_REPLICAS,
                                                str(self._config.min_insync_replicas))]
        self._write([BeginTransactionRecord(name='Bootstrap records'), *records, EndTransactionRecord()],
                    levels[METADATA_VERSION])

    def register(self, listeners: Sequence[Listener]) -> None:
        """Register a new incarnation of this broker, with the addresses in `listeners`.

        Elect the broker leader of every partition.

        Every start elects leaders again, even after a crash. This raises the leader epochs, so the epochs that clients
        know from before the start are outdated.
        """
        broker_epoch = self._log.end_offset
        end_points = [RegisterBrokerRecord.BrokerEndpoint(name=listener.name, host=listener.host, port=listener.port,
                                                          security_protocol=SECURITY_PROTOCOLS[listener.protocol])
                      for listener in listeners]
        features = [RegisterBrokerRecord.BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
                    for name, (low, high) in SUPPORTED_FEATURES.items()]
        self._write([RegisterBrokerRecord(
            broker_id=self.node_id, incarnation_id=random_uuid(), broker_epoch=broker_epoch, end_points=end_points,
            features=features, rack=self._config.broker_rack, fenced=True,
            log_dirs=directories_of(self.image, self.directory_id))])
        self.broker_epoch = broker_epoch
        unfence = BrokerRegistrationChangeRecord(broker_id=self.node_id, broker_epoch=broker_epoch, fenced=_UNFENCE)
        elected = self._change_partitions(self._elect, lambda partition: True)
        self.at_once(self.commits.write_in_batches([unfence, *elected]))

    def begin_shutdown(self) -> None:
        """Announce the shutdown and give up the leadership of all partitions.

        After this, nothing may be appended to a partition.
        """
        resign = self._change_partitions(self._resign, lambda partition: partition.leader == self.node_id)
        if resign:
            announcement = BrokerRegistrationChangeRecord(
                broker_id=self.node_id, broker_epoch=self.broker_epoch, in_controlled_shutdown=1)
            self.at_once(self.commits.write_in_batches([announcement, *resign]))

    def finish_shutdown(self) -> int:
        """Fence this broker and close the log. The caller must have closed the partitions.

        Return the broker epoch to store in `.kafka_cleanshutdown`.
        """
        self._write([BrokerRegistrationChangeRecord(
            broker_id=self.node_id, broker_epoch=self.broker_epoch, fenced=_FENCE)])
        self.close()
        return self.broker_epoch

    @property
    def log(self) -> QuorumLog:
        return self._log

    @property
    def end_offset(self) -> int:
        """The offset after the last record of the metadata log."""
        return self._log.end_offset

    def ledger(self) -> list[Line]:
        return [Line('SCRAM credentials', '', lambda: len(self.image.scram_credentials), lambda: MOST_CREDENTIALS,
                     'fixed')]

    def close(self) -> None:
        """Close the log without a clean shutdown, as a crash would."""
        self._log.close()

    def _write(self, records: Sequence[Any], metadata_version: int | None = None) -> None:
        """Write records as one batch, and adopt the batch before returning."""
        self.at_once(self.commits.write(records, metadata_version))

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

    # -- producer ids

    def allocate_producer_id_block(self) -> Steps[range]:
        """Return a block of 1000 producer ids.

        The block is durable before it is returned, and its ids are never allocated again.

        Raise KafkaError UNKNOWN_SERVER_ERROR if all ids are used up, KAFKA_STORAGE_ERROR if a write or a sync fails.
        """
        yield from self.commits.settle()
        first = self.image.next_producer_id
        if first > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f'the producer ids are used up: the next is {first}')
        block = range(first, first + PRODUCER_ID_BLOCK)
        with self.commits.preparing() as change:    # no yield before the write: another allocation could run
            change.put(ProducerIdsRecord(broker_id=self.node_id, broker_epoch=self.broker_epoch,
                                         next_producer_id=block.stop))
            yield from self.commits.commit(change)
        return block

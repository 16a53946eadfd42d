"""The records from which an image can be rebuilt, in Apache Kafka's order. They are the content of a snapshot."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kbroker.metadata.features import DIRECTORIES_SINCE, METADATA_VERSION
from kbroker.metadata.image import BrokerImage, MetadataImage, PartitionImage
from kbroker.protocol.messages import (
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    KRaftVersionRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    SnapshotHeaderRecord,
    TopicRecord,
    VotersRecord,
)


def control_records_of(image: MetadataImage) -> list[Any]:
    """Return the control records with which a snapshot begins."""
    header = SnapshotHeaderRecord(last_contained_log_timestamp=image.timestamp_ms)
    if not image.kraft_version:
        return [header]
    return [header, KRaftVersionRecord(kraft_version=image.kraft_version), VotersRecord(voters=list(image.voters))]


def records_of(image: MetadataImage) -> Iterator[Any]:
    """Yield the data records of a snapshot.

    The record of metadata.version is first, because this level determines the versions of all other records.
    """
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION, name)):
        yield FeatureLevelRecord(name=name, feature_level=image.features[name])
    for broker in image.brokers.values():
        yield _broker_record(broker)
    yield from image.controllers.values()
    for topic in image.topics.values():
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for partition in topic.partitions:
            yield _partition_record(topic.topic_id, partition, image.metadata_version)
    for (resource_type, resource_name), configs in image.configs.items():
        for name, value in configs.items():
            yield ConfigRecord(resource_type=resource_type, resource_name=resource_name, name=name, value=value)
    for entity, quotas in image.client_quotas.items():
        for key, limit in quotas.items():
            yield ClientQuotaRecord(
                entity=[ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                key=key, value=limit, remove=False)
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
    yield from image.access_control_entries.values()
    yield from image.scram_credentials.values()
    yield from image.delegation_tokens.values()


def _broker_record(broker: BrokerImage) -> RegisterBrokerRecord:
    record = RegisterBrokerRecord(
        broker_id=broker.broker_id, incarnation_id=broker.incarnation_id, broker_epoch=broker.broker_epoch,
        end_points=list(broker.end_points), features=list(broker.features), rack=broker.rack, fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown, log_dirs=list(broker.log_dirs))
    if broker.cordoned_log_dirs is not None:
        record.cordoned_log_dirs = list(broker.cordoned_log_dirs)
    return record


def _partition_record(topic_id: bytes, partition: PartitionImage, metadata_version: int) -> PartitionRecord:
    record = PartitionRecord(
        partition_id=partition.index, topic_id=topic_id, replicas=list(partition.replicas), isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas), adding_replicas=list(partition.adding_replicas),
        leader=partition.leader, leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch, partition_epoch=partition.partition_epoch)
    if metadata_version >= DIRECTORIES_SINCE:
        record.directories = list(partition.directories)
    if partition.eligible_leader_replicas:
        record.eligible_leader_replicas = list(partition.eligible_leader_replicas)
    if partition.last_known_elr:
        record.last_known_elr = list(partition.last_known_elr)
    return record

"""Checks of the brokers that CreateTopics and CreatePartitions requests assign to partitions."""
from __future__ import annotations

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.batches import MAX_RECORDS


def check_count(assignments: int) -> None:
    """Raise KafkaError POLICY_VIOLATION if there are more assignments than one batch of the metadata log can hold."""
    if assignments > MAX_RECORDS:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f'found {assignments} assignments, expected at most {MAX_RECORDS}')


def check_replicas(broker_ids: list[int], node_id: int) -> None:
    """Raise KafkaError INVALID_REPLICA_ASSIGNMENT unless the list has exactly one element, the id of this broker."""
    if broker_ids != [node_id]:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                         f'brokers {broker_ids}, and this cluster has broker {node_id} only')

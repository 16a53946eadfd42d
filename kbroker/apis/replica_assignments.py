"""The brokers that a client assigns to a partition, in CreateTopics and CreatePartitions."""
from __future__ import annotations

from kbroker.errors import ErrorCode, KafkaError


def check_replicas(broker_ids: list[int], node_id: int, strict: bool) -> None:
    """Raises KafkaError INVALID_REPLICA_ASSIGNMENT. Brokers that do not exist are refused only if `strict`."""
    if not broker_ids or min(broker_ids) < 0 or len(set(broker_ids)) < len(broker_ids):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f'different broker ids expected, found {broker_ids}')
    if strict and broker_ids != [node_id]:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                         f'brokers {broker_ids}, and this cluster has broker {node_id} only')

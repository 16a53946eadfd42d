"""The brokers that a client assigns to a partition, in CreateTopics and CreatePartitions."""
from __future__ import annotations

from kbroker.errors import ErrorCode, KafkaError


def check_replicas(broker_ids: list[int], node_id: int) -> None:
    """Raises KafkaError INVALID_REPLICA_ASSIGNMENT unless the one broker of this cluster is assigned, once."""
    if broker_ids != [node_id]:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                         f'brokers {broker_ids}, and this cluster has broker {node_id} only')

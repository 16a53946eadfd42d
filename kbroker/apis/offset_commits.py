"""What OffsetCommit and TxnOffsetCommit share: the partitions that they name, looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kbroker.group.offsets import NewOffset, TopicPartition


def offsets_to_commit(request: Any, hosted: Sequence[Any]) -> dict[TopicPartition, NewOffset]:
    """The offsets for the partitions that exist. `hosted` has each topic of the request as it is hosted, or None."""
    found: dict[TopicPartition, NewOffset] = {}
    for topic, known in zip(request.topics, hosted, strict=True):
        for partition in topic.partitions if known is not None else ():
            if 0 <= partition.partition_index < len(known.partitions):
                found[known.name, partition.partition_index] = NewOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata,
                    known.topic_id,
                )
    return found

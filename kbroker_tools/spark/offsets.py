"""Offsets of partitions, and their form in JSON: {"topic":{"0":23}}, as in Spark's own connector."""
from __future__ import annotations

from kbroker.base.topic_partition import TopicPartition

Offsets = dict[TopicPartition, int]


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return the offsets as {topic: {partition: offset}}, the form of Spark's connector. Topics and partitions are
    sorted."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def from_json(offsets: dict[str, dict[str, int]]) -> Offsets:
    return {(topic, int(partition)): offset
            for topic, partitions in offsets.items() for partition, offset in partitions.items()}

"""The search for partitions whose last stable offset is below the high watermark. Two requests serve many
partitions."""
from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kbroker.base.errors import CorruptLogError, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker_tools.base.view import View

if TYPE_CHECKING:
    from kbroker_tools.cluster.live_view import LiveView

BATCH = 1000
"""The most partitions in one request for offsets."""


def held_of(view: View, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions whose last stable offset may be held. Raise KafkaError or OSError if offsets cannot be
    read.

    The last stable offsets are read before the high watermarks. A partition to which records are appended between these
    reads may therefore be returned although it is not held.
    """
    if view.is_live:
        return _held_live(view, list(partitions))   # type: ignore[arg-type]
    found = []
    for topic, partition in partitions:
        try:
            offsets = view.partition_offsets(topic, partition)
        except (KafkaError, CorruptLogError):
            found.append((topic, partition))    # when the partition's facts are gathered, the error is reported
            continue
        if offsets.last_stable_offset < offsets.high_watermark:
            found.append((topic, partition))
    return found


def _held_live(view: LiveView, partitions: list[TopicPartition]) -> list[TopicPartition]:
    from kbroker.client.admin import LATEST, IsolationLevel
    found: list[TopicPartition] = []
    for start in range(0, len(partitions), BATCH):
        some = dict.fromkeys(partitions[start:start + BATCH], LATEST)
        stable = view.admin.list_offsets(some, IsolationLevel.READ_COMMITTED)
        ends = view.admin.list_offsets(some)
        found += [at for at in some if stable[at].offset < ends[at].offset]
    return found

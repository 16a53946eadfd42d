"""Topics and partitions: their number, sizes and offsets, and those that are offline."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kbroker.base.lean_dataclasses import dataclass
from kbroker.metrics.rooms import Rooms, partitions_in_parts
from kbroker.metrics.table import MOST_SERIES, Metric, Sample

if TYPE_CHECKING:
    from kbroker.metadata.changes import Steps

TOPIC_SERIES = f'topics, at most {MOST_SERIES:,}'
PARTITION_SERIES = f'partitions, at most {MOST_SERIES:,}'

TOPICS = Metric('kbroker_topics', 'gauge', 'Topics, with the internal ones.')
PARTITIONS = Metric('kbroker_partitions', 'gauge', 'Partitions, with those of internal topics.')
OFFLINE = Metric('kbroker_partitions_offline', 'gauge',
                 'Partitions that are not served: all of them if the log directory has failed, else the damaged ones.')
TOPIC_PARTITIONS = Metric('kbroker_topic_partitions', 'gauge', 'Partitions of the topic.', labels=('topic',),
                          series=TOPIC_SERIES)
TOPIC_SIZE = Metric('kbroker_topic_size_bytes', 'gauge', 'The size of the logs of the topic, without their indexes.',
                    'bytes', ('topic',), TOPIC_SERIES)
TOPIC_SEGMENTS = Metric('kbroker_topic_segments', 'gauge', 'Segments of the topic.', labels=('topic',),
                        series=TOPIC_SERIES)
START_OFFSET = Metric('kbroker_partition_log_start_offset', 'gauge', 'The first offset of the partition.',
                      labels=('topic', 'partition'), series=PARTITION_SERIES)
HIGH_WATERMARK = Metric('kbroker_partition_high_watermark', 'gauge', 'The offset up to which all records are durable.',
                        labels=('topic', 'partition'), series=PARTITION_SERIES)


class TopicSize(NamedTuple):
    """The partitions of a topic, and the size of their logs."""

    size_bytes: int
    topic: str
    partitions: int
    segments: int


@dataclass
class PartitionSurvey:
    """The topics of a broker at one time. `high_watermarks` is the sum of the high watermarks of all partitions: it
    grows by one with each record and marker.
    """

    topics: list[TopicSize]
    partitions: int
    offline: int
    size_bytes: int
    segments: int
    high_watermarks: int


def survey(rooms: Rooms) -> Steps[PartitionSurvey]:
    """Return the topics of a broker, as long work."""
    found = PartitionSurvey([], 0, 0, 0, 0, 0)
    damaged = len(rooms.logs.verification.offline())
    topic, count, size_bytes, segments = '', 0, 0, 0
    for partitions in partitions_in_parts(rooms.topics):
        if partitions[0].topic != topic:
            if count:
                found.topics.append(TopicSize(size_bytes, topic, count, segments))
            topic, count, size_bytes, segments = partitions[0].topic, 0, 0, 0
        count += len(partitions)
        for partition in partitions:
            size_bytes += partition.size_bytes
            segments += partition.segments_count
            found.high_watermarks += partition.high_watermark
        yield
    if count:
        found.topics.append(TopicSize(size_bytes, topic, count, segments))
    found.partitions = sum(each.partitions for each in found.topics)
    found.size_bytes = sum(each.size_bytes for each in found.topics)
    found.segments = sum(each.segments for each in found.topics)
    found.offline = damaged if rooms.logs.failure is None else found.partitions
    return found


def collect(rooms: Rooms) -> Iterator[Sample | None]:
    """Yield the samples of all topics and partitions."""
    found = yield from survey(rooms)
    yield TOPICS, (), len(found.topics)
    yield PARTITIONS, (), found.partitions
    yield OFFLINE, (), found.offline
    for each in found.topics:
        yield TOPIC_PARTITIONS, (each.topic,), each.partitions
    for each in found.topics:
        yield TOPIC_SIZE, (each.topic,), each.size_bytes
    for each in found.topics:
        yield TOPIC_SEGMENTS, (each.topic,), each.segments
    for partitions in partitions_in_parts(rooms.topics):
        for partition in partitions:
            yield START_OFFSET, (partition.topic, str(partition.partition)), partition.log_start_offset
    for partitions in partitions_in_parts(rooms.topics):
        for partition in partitions:
            yield HIGH_WATERMARK, (partition.topic, str(partition.partition)), partition.high_watermark

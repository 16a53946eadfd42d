"""Bytes and records: by listener, and by topic."""
from __future__ import annotations

from collections.abc import Iterator

from kbroker.metrics.table import Metric, Sample
from kbroker.network.connection import Commons
from kbroker.topics.registry import TopicRegistry

LISTENER_IN = Metric(
    'kbroker_listener_received_bytes', 'counter', 'Bytes that clients have sent, after decryption.', 'bytes',
    ('listener',), 'listeners with a connection since the start')
LISTENER_OUT = Metric(
    'kbroker_listener_sent_bytes', 'counter', 'Bytes that were sent to clients, before encryption.', 'bytes',
    ('listener',), 'listeners with a connection since the start')
TOPIC_RECORDS_IN = Metric(
    'kbroker_topic_produced_records', 'counter',
    'Records that producers have appended, without batches that they had appended already.', labels=('topic',),
    series='topics with traffic')
TOPIC_BYTES_IN = Metric(
    'kbroker_topic_produced_bytes', 'counter', 'Bytes of the batches that producers have appended, as they sent them.',
    'bytes', ('topic',), 'topics with traffic')
TOPIC_RECORDS_OUT = Metric(
    'kbroker_topic_fetched_records', 'counter',
    'Offsets in the batches that consumers have fetched. The broker does not open the batches, so markers of '
    'transactions and offsets removed by compaction count. For share groups, acquired records count.',
    labels=('topic',), series='topics with traffic')
TOPIC_BYTES_OUT = Metric(
    'kbroker_topic_fetched_bytes', 'counter', 'Bytes of the batches that consumers have fetched.', 'bytes',
    ('topic',), 'topics with traffic')

METRICS = (LISTENER_IN, LISTENER_OUT, TOPIC_RECORDS_IN, TOPIC_BYTES_IN, TOPIC_RECORDS_OUT, TOPIC_BYTES_OUT)
OF_TOPICS = (TOPIC_RECORDS_IN, TOPIC_BYTES_IN, TOPIC_RECORDS_OUT, TOPIC_BYTES_OUT)
PARTITIONS_AT_ONCE = 10_000


def collect(commons: Commons, topics: TopicRegistry) -> Iterator[Sample | None]:
    """Yield the samples of traffic. A topic without traffic since the start of the broker has no samples."""
    listeners = list(commons.traffic.items())
    for name, traffic in listeners:
        yield LISTENER_IN, (name,), traffic.received_bytes
    for name, traffic in listeners:
        yield LISTENER_OUT, (name,), traffic.sent_bytes
    found, partitions = [], 0
    for topic in topics.topics():
        counts = topic.traffic()
        if any(counts):
            found.append((topic.name, counts))
        partitions += len(topic.partitions) + 10
        if partitions > PARTITIONS_AT_ONCE:
            partitions = 0
            yield None
    for number, metric in enumerate(OF_TOPICS):
        for name, counts in found:
            if counts[number]:
                yield metric, (name,), counts[number]

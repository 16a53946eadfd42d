"""The metrics of the exporter. Those that begin with `kafka_` have the names and labels of kafka_exporter, so that its
dashboards show them."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from kbroker import __version__
from kbroker.base.lean_dataclasses import dataclass
from kbroker.metrics.table import Metric, Sample
from kbroker_tools.exporter.facts import ClusterFacts, GroupLag

PARTITIONS = 'partitions'
OFFSETS = 'partitions in which groups have offsets'
TOPICS = 'topics'
GROUPS = 'groups'
OPEN = 'open transactions'
OF_PARTITION = ('topic', 'partition')
OF_KAFKA_GROUP = ('consumergroup', 'topic', 'partition')
OF_GROUP = ('group', 'topic', 'partition')


def gauge(name: str, help_text: str, labels: tuple[str, ...] = (), series: str = '1', unit: str = '') -> Metric:
    return Metric(name, 'gauge', help_text, unit, labels, series)


UP = gauge('kbroker_exporter_up', 'Whether the last collection reached the cluster.')
BUILD = Metric('kbroker_exporter_build_info', 'info', 'The version of the exporter.', labels=('version',))
COLLECTED = gauge('kbroker_exporter_collection_timestamp_seconds', 'When the last successful collection began.',
                  unit='seconds')
DURATION = gauge('kbroker_exporter_collection_duration_seconds', 'How long the last successful collection took.',
                 unit='seconds')
COLLECTIONS = Metric('kbroker_exporter_collections', 'counter', 'Collections, by outcome.', labels=('result',),
                     series='2')
SCRAPES = Metric('kbroker_exporter_scrapes', 'counter', 'Scrapes. Several may share a collection.')
REQUESTS = gauge('kbroker_exporter_collection_requests', 'Requests of the last collection to brokers, by API.',
                 ('api',), 'APIs')
READ = gauge('kbroker_exporter_collection_read_bytes', 'Bytes of records that the last collection read, to count '
             'records and to find ages.', unit='bytes')
PROBLEMS = gauge('kbroker_exporter_collection_problems', 'Objects, such as partitions, that the last collection left '
                 'out after an error.', ('what', 'error'), 'kinds of errors')

BROKERS = gauge('kafka_brokers', 'Brokers of the cluster.')
BROKER_INFO = gauge('kafka_broker_info', 'The address of a broker.', ('id', 'address'), 'brokers')
CLUSTER_INFO = Metric('kbroker_exporter_cluster_info', 'info', 'The id of the cluster and of its active controller.',
                      labels=('cluster_id', 'controller'))
TOPIC_PARTITIONS = gauge('kafka_topic_partitions', 'Partitions of a topic.', ('topic',), TOPICS)
CURRENT_OFFSET = gauge('kafka_topic_partition_current_offset', 'The high watermark of a partition.', OF_PARTITION,
                       PARTITIONS)
OLDEST_OFFSET = gauge('kafka_topic_partition_oldest_offset', 'The log start offset of a partition.', OF_PARTITION,
                      PARTITIONS)
STABLE_OFFSET = gauge('kbroker_exporter_partition_last_stable_offset', 'The last stable offset of a partition.',
                      OF_PARTITION, PARTITIONS)
HELD = gauge('kbroker_exporter_partition_held_offsets', 'Offsets between the last stable offset and the high '
             'watermark: open transactions hold them back from read_committed consumers.', OF_PARTITION, PARTITIONS)
LEADER = gauge('kafka_topic_partition_leader', 'The broker id of the leader of a partition; -1 without a leader.',
               OF_PARTITION, PARTITIONS)
PREFERRED = gauge('kafka_topic_partition_leader_is_preferred', 'Whether the first replica is the leader.',
                  OF_PARTITION, PARTITIONS)
REPLICAS = gauge('kafka_topic_partition_replicas', 'Replicas of a partition.', OF_PARTITION, PARTITIONS)
IN_SYNC = gauge('kafka_topic_partition_in_sync_replica', 'In-sync replicas of a partition.', OF_PARTITION, PARTITIONS)
UNDER_REPLICATED = gauge('kafka_topic_partition_under_replicated_partition', 'Whether a partition has fewer in-sync '
                         'replicas than replicas.', OF_PARTITION, PARTITIONS)
OFFLINE = gauge('kbroker_exporter_offline_partitions', 'Partitions without a leader.')

SIZE = gauge('kbroker_exporter_topic_size_bytes', 'Bytes of the files of all replicas of a topic.', ('topic',), TOPICS,
             'bytes')
REPLICA_SIZE = gauge('kbroker_exporter_partition_size_bytes', 'Bytes of the files of a replica.',
                     ('topic', 'partition', 'broker'), 'replicas', 'bytes')
DIRECTORY_ONLINE = gauge('kbroker_exporter_log_directory_online', 'Whether a log directory can be used.',
                         ('broker', 'log_directory'), 'log directories')
DIRECTORY_TOTAL = gauge('kbroker_exporter_log_directory_total_bytes', 'Bytes of the volume of a log directory.',
                        ('broker', 'log_directory'), 'log directories', 'bytes')
DIRECTORY_USABLE = gauge('kbroker_exporter_log_directory_usable_bytes', 'Free bytes of the volume of a log directory.',
                         ('broker', 'log_directory'), 'log directories', 'bytes')

GROUP_INFO = Metric('kbroker_exporter_group_info', 'info', 'The kind, the state and the coordinator of a group.',
                    labels=('group', 'kind', 'state', 'coordinator'), series=GROUPS)
MEMBERS = gauge('kafka_consumergroup_members', 'Members of a group.', ('consumergroup',), GROUPS)
COMMITTED = gauge('kafka_consumergroup_current_offset', 'The committed offset of a group.', OF_KAFKA_GROUP, OFFSETS)
COMMITTED_SUM = gauge('kafka_consumergroup_current_offset_sum', 'The sum of the committed offsets of a group in a '
                      'topic.', ('consumergroup', 'topic'), 'topics in which groups have offsets')
LAG = gauge('kafka_consumergroup_lag', 'Offsets between the committed offset of a group and the high watermark.',
            OF_KAFKA_GROUP, OFFSETS)
LAG_SUM = gauge('kafka_consumergroup_lag_sum', 'The sum of the lags of a group in a topic.',
                ('consumergroup', 'topic'), 'topics in which groups have offsets')
STABLE_LAG = gauge('kbroker_exporter_group_lag_to_last_stable_offset', 'Offsets between the committed offset of a '
                   'group and the last stable offset.', OF_GROUP, OFFSETS)
RECORDS = gauge('kbroker_exporter_group_lag_records', 'Records that a read_committed consumer of the group gets before '
                'it reaches the last stable offset. Absent unless the number is exact.', OF_GROUP, OFFSETS)
RECORDS_LEAST = gauge('kbroker_exporter_group_lag_records_at_least', 'The lower bound of the records, where the exact '
                      'number is not known and the bound is above 0.', OF_GROUP, OFFSETS)
RECORDS_MOST = gauge('kbroker_exporter_group_lag_records_at_most', 'The upper bound of the records, where the exact '
                     'number is not known.', OF_GROUP, OFFSETS)
AGE = gauge('kbroker_exporter_group_offset_age_seconds', 'The age of the first batch that the group has not read; 0 if '
            'it has read all.', OF_GROUP, OFFSETS, 'seconds')
SHARE_LAG = gauge('kbroker_exporter_share_group_lag', 'Offsets that no member of a share group has finished.', OF_GROUP,
                  'partitions of share groups')

OPEN_COUNT = gauge('kbroker_exporter_transactions_open', 'Open transactions, by the broker id of their coordinator and '
                   'their state.', ('coordinator', 'state'), 'three a broker')
OLDEST = gauge('kbroker_exporter_transaction_oldest_open_age_seconds', 'The age of the oldest open transaction; 0 if '
               'none is open.', unit='seconds')
TRANSACTION_AGE = gauge('kbroker_exporter_transaction_open_age_seconds', 'The age of an open transaction.',
                        ('transactional_id', 'coordinator', 'producer_id', 'state'), OPEN, 'seconds')
TRANSACTION_TIMEOUT = gauge('kbroker_exporter_transaction_timeout_seconds', 'The time after which the coordinator '
                            'aborts an open transaction.', ('transactional_id',), OPEN, 'seconds')
HANGING_COUNT = gauge('kbroker_exporter_transactions_hanging', 'Partitions with a transaction that no coordinator will '
                      'end, as kbroker-transactions find-hanging finds them.')
HANGING_AGE = gauge('kbroker_exporter_transaction_hanging_age_seconds', 'The time since the last record of a hanging '
                    'transaction.', ('topic', 'partition', 'producer_id'), 'hanging transactions', 'seconds')

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


@dataclass
class Counts:
    """The exporter's counters."""

    successes: int = 0
    failures: int = 0
    scrapes: int = 0


def samples(facts: ClusterFacts | None, counts: Counts) -> Iterator[Sample | None]:
    """Yield the samples of all metrics. Without facts, the cluster was not reached."""
    yield UP, (), float(facts is not None)
    yield BUILD, (__version__,), 1.0
    yield COLLECTIONS, ('success',), float(counts.successes)
    yield COLLECTIONS, ('failure',), float(counts.failures)
    yield SCRAPES, (), float(counts.scrapes)
    if facts is None:
        return
    yield COLLECTED, (), facts.at_ms / 1000
    yield DURATION, (), facts.took_ms / 1000
    for api, number in sorted(facts.requests.items()):
        yield REQUESTS, (api,), number
    yield READ, (), facts.fetched_bytes
    for problem in facts.problems:
        yield PROBLEMS, (problem.what, problem.error), problem.objects
    yield from _of_brokers(facts)
    yield from _of_topics(facts)
    yield from _of_sizes(facts)
    yield from _of_groups(facts)
    yield from _of_lags(facts)
    yield from _of_transactions(facts)


def _of_brokers(facts: ClusterFacts) -> Iterator[Sample | None]:
    yield CLUSTER_INFO, (facts.cluster_id or '', str(facts.controller_id)), 1.0
    yield BROKERS, (), len(facts.brokers)
    for node_id, node in sorted(facts.brokers.items()):
        yield BROKER_INFO, (str(node_id), f'{node.host}:{node.port}'), 1.0


def _of_topics(facts: ClusterFacts) -> Iterator[Sample | None]:
    for name, topic in facts.topics.items():
        yield TOPIC_PARTITIONS, (name,), len(topic.partitions)
    for at, ends in facts.ends.items():
        yield CURRENT_OFFSET, _labels(at), ends.high_watermark
    for at, ends in facts.ends.items():
        yield OLDEST_OFFSET, _labels(at), ends.log_start_offset
    for at, ends in facts.ends.items():
        yield STABLE_OFFSET, _labels(at), ends.last_stable_offset
    for at, ends in sorted(facts.ends.items(), key=lambda each: -each[1].held):
        yield HELD, _labels(at), ends.held
    rows = [(name, row) for name, topic in facts.topics.items() for row in topic.partitions.values()]
    for name, row in rows:
        yield LEADER, (name, str(row.partition)), row.leader_id
    for name, row in rows:
        yield PREFERRED, (name, str(row.partition)), float(row.leader_id in row.replicas[:1])
    for name, row in rows:
        yield REPLICAS, (name, str(row.partition)), len(row.replicas)
    for name, row in rows:
        yield IN_SYNC, (name, str(row.partition)), len(row.in_sync_replicas)
    for name, row in rows:
        yield UNDER_REPLICATED, (name, str(row.partition)), float(len(row.in_sync_replicas) < len(row.replicas))
    yield OFFLINE, (), sum(row.leader_id < 0 for _, row in rows)


def _of_sizes(facts: ClusterFacts) -> Iterator[Sample | None]:
    by_topic: Counter[str] = Counter()
    for size in facts.sizes:
        by_topic[size.topic] += size.size_bytes
    yield None
    for topic, size_bytes in by_topic.most_common():
        yield SIZE, (topic,), size_bytes
    for size in sorted(facts.sizes, key=lambda each: -each.size_bytes):
        yield REPLICA_SIZE, (size.topic, str(size.partition), str(size.broker_id)), size.size_bytes
    for each in facts.log_directories:
        yield DIRECTORY_ONLINE, (str(each.broker_id), each.path), float(each.is_online)
    for metric, field in ((DIRECTORY_TOTAL, 'total_bytes'), (DIRECTORY_USABLE, 'usable_bytes')):
        for each in facts.log_directories:
            if (number := getattr(each, field)) is not None:
                yield metric, (str(each.broker_id), each.path), number


def _of_groups(facts: ClusterFacts) -> Iterator[Sample | None]:
    for group in facts.groups:
        yield GROUP_INFO, (group.group_id, group.kind, group.state, str(group.coordinator_id)), 1.0
    for group in facts.groups:
        if group.members is not None:
            yield MEMBERS, (group.group_id,), group.members


def _of_lags(facts: ClusterFacts) -> Iterator[Sample | None]:
    """Yield the samples of lags, the largest lags first: if a metric has too many series, those are kept."""
    lags = facts.lags
    for lag in lags:
        yield COMMITTED, _group_labels(lag), lag.committed_offset
    for lag in lags:
        yield LAG, _group_labels(lag), lag.to_high_watermark
    for lag in sorted(lags, key=lambda each: -each.to_last_stable_offset):
        yield STABLE_LAG, _group_labels(lag), lag.to_last_stable_offset
    by_most = sorted(lags, key=lambda each: -each.records.most)
    for lag in by_most:
        if lag.records.is_exact:
            yield RECORDS, _group_labels(lag), lag.records.most
    for lag in by_most:
        if not lag.records.is_exact and lag.records.least:
            yield RECORDS_LEAST, _group_labels(lag), lag.records.least
    for lag in by_most:
        if not lag.records.is_exact:
            yield RECORDS_MOST, _group_labels(lag), lag.records.most
    for lag in sorted(lags, key=lambda each: -(each.age_ms or 0)):
        if lag.age_ms is not None:
            yield AGE, _group_labels(lag), lag.age_ms / 1000
    yield from _of_sums(facts)
    for share in sorted(facts.share_lags, key=lambda each: -each.lag):
        yield SHARE_LAG, (*share[:2], str(share.partition)), share.lag


def _of_sums(facts: ClusterFacts) -> Iterator[Sample | None]:
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for lag in facts.lags:
        committed, distance = sums.get(lag[:2], (0, 0))
        sums[lag[:2]] = committed + lag.committed_offset, distance + lag.to_high_watermark
    yield None
    for labels, (committed, _) in sums.items():
        yield COMMITTED_SUM, labels, committed
    for labels, (_, distance) in sums.items():
        yield LAG_SUM, labels, distance


def _of_transactions(facts: ClusterFacts) -> Iterator[Sample | None]:
    found = facts.open_transactions
    for (coordinator, state), number in sorted(Counter((each.coordinator_id, each.state) for each in found).items()):
        yield OPEN_COUNT, (str(coordinator), state), number
    starts_ms = [each.start_timestamp_ms for each in found if each.start_timestamp_ms is not None]
    yield OLDEST, (), max(facts.at_ms - min(starts_ms, default=facts.at_ms), 0) / 1000
    for each in found:
        if each.start_timestamp_ms is not None:
            labels = (each.transactional_id, str(each.coordinator_id), str(each.producer_id), each.state)
            yield TRANSACTION_AGE, labels, max(facts.at_ms - each.start_timestamp_ms, 0) / 1000
    for each in found:
        yield TRANSACTION_TIMEOUT, (each.transactional_id,), each.timeout_ms / 1000
    yield HANGING_COUNT, (), len(facts.hanging)
    for hanging in facts.hanging:
        yield (HANGING_AGE, (hanging.topic, str(hanging.partition), str(hanging.producer.producer_id)),
               max(facts.at_ms - hanging.producer.last_timestamp_ms, 0) / 1000)


def _labels(at: Any) -> tuple[str, str]:
    return at[0], str(at[1])


def _group_labels(lag: GroupLag) -> tuple[str, str, str]:
    return lag.group_id, lag.topic, str(lag.partition)

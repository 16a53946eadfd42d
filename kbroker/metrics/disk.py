"""The disk: syncs, bytes that wait for one, and reads that the page cache could not answer."""
from __future__ import annotations

from collections.abc import Iterator

from kbroker.metrics.table import Distribution, Metric, Sample
from kbroker.network.connection import Commons
from kbroker.network.sync_threads import SyncThreads
from kbroker.topics.registry import TopicRegistry

SYNCS = Metric(
    'kbroker_sync_seconds', 'histogram',
    'Time of the syncs of the files of one partition, or of the metadata log, without the wait for a thread.',
    'seconds')
FILES = Metric('kbroker_synced_files', 'counter', 'Files and directories synced.')
FAILURES = Metric('kbroker_sync_failures', 'counter', 'Syncs that failed. The log directory is offline after one.')
UNSYNCED = Metric(
    'kbroker_unsynced_bytes', 'gauge',
    'Bytes of batches that no finished sync covers. With kbroker.durability=page-cache these are the bytes that the '
    'broker has never asked the kernel to write.', 'bytes')
COLD_READS = Metric(
    'kbroker_page_cache_misses', 'counter',
    'Parts of log files that a thread read for a consumer, because the page cache did not hold them.')
COLD_BYTES = Metric('kbroker_page_cache_missed_bytes', 'counter', 'Bytes of these parts of log files.', 'bytes')

METRICS = (SYNCS, FILES, FAILURES, UNSYNCED, COLD_READS, COLD_BYTES)
PARTITIONS_AT_ONCE = 10_000


def collect(sync_threads: SyncThreads, commons: Commons, topics: TopicRegistry) -> Iterator[Sample | None]:
    """Yield the samples of the disk. The sum over many partitions is made in parts."""
    yield SYNCS, (), Distribution(*sync_threads.sync_times())
    yield FILES, (), sync_threads.files
    yield FAILURES, (), sync_threads.failures
    unsynced_bytes = partitions = 0
    for topic in topics.topics():
        unsynced_bytes += topic.unsynced_bytes()
        partitions += len(topic.partitions) + 10
        if partitions > PARTITIONS_AT_ONCE:
            partitions = 0
            yield None
    yield UNSYNCED, (), unsynced_bytes
    yield COLD_READS, (), commons.cold_reads
    yield COLD_BYTES, (), commons.cold_bytes

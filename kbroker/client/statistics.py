"""The counts of a client, for graphs: what has happened since its construction, and what it holds now."""
from __future__ import annotations

from collections.abc import Collection

from kbroker.base.topic_partition import TopicPartition

PRODUCER_COUNTS = (
    'record_send_total', 'record_error_total', 'record_retry_total', 'batch_split_total', 'request_total',
    'commit_total', 'abort_total')
CONSUMER_COUNTS = ('records_consumed_total', 'bytes_consumed_total', 'fetch_total', 'commit_total', 'rebalance_total')


class Counts(dict[str, int]):
    """Counts by name, all of which begin at 0. Only these names can be counted."""

    def __init__(self, names: tuple[str, ...]):
        super().__init__(dict.fromkeys(names, 0))

    def add(self, name: str, count: int = 1) -> None:
        """Add to a count. Raises KeyError for a name that is not declared."""
        self[name] += count


class Lags(dict[TopicPartition, int]):
    """The records behind the last fetched one of each partition, as of its last fetch."""

    def note(self, partition: TopicPartition, lag: int, assigned: Collection[TopicPartition]) -> None:
        """Keep a lag, and forget those of partitions that are no longer assigned."""
        self[partition] = lag
        if len(self) > len(assigned):
            for known in self.keys() - set(assigned):
                del self[known]

    def total(self, assigned: Collection[TopicPartition]) -> int:
        return sum(self.get(partition, 0) for partition in assigned)

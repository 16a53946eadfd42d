"""The counts of a client, for graphs: totals since the client was constructed, and present values."""
from __future__ import annotations

from collections.abc import Collection

from kbroker.base.topic_partition import TopicPartition

PRODUCER_COUNTS = (
    'record_send_total', 'record_error_total', 'record_retry_total', 'batch_split_total', 'request_total',
    'commit_total', 'abort_total')
CONSUMER_COUNTS = ('records_consumed_total', 'bytes_consumed_total', 'fetch_total', 'commit_total', 'rebalance_total')


class Counts(dict[str, int]):
    """Maps each declared name to its count, which begins at 0. Other names cannot be counted."""

    def __init__(self, names: tuple[str, ...]):
        super().__init__(dict.fromkeys(names, 0))

    def add(self, name: str, count: int = 1) -> None:
        """Add to a count. Raise KeyError for a name that is not declared."""
        self[name] += count


class Lags(dict[TopicPartition, int]):
    """Maps each partition to its lag at the last fetch: the number of records after the last fetched record."""

    def note(self, partition: TopicPartition, lag: int, assigned: Collection[TopicPartition]) -> None:
        """Store the lag of a partition, and remove the lags of partitions that are no longer assigned."""
        self[partition] = lag
        if len(self) > len(assigned):
            for known in self.keys() - set(assigned):
                del self[known]

    def total(self, assigned: Collection[TopicPartition]) -> int:
        return sum(self.get(partition, 0) for partition in assigned)

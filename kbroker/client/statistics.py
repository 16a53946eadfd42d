"""The counts of a client, for graphs: what has happened since its construction, and what it holds now."""
from __future__ import annotations

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

"""The limits of a fetch from one share partition, and of the acquisition that it makes."""
from __future__ import annotations

from typing import NamedTuple


class FetchLimits(NamedTuple):
    """The limits in a member's fetch request. `is_exact` is set in the acquire mode record_limit."""

    max_bytes: int
    max_records: int
    batch_size: int
    is_exact: bool


class Wanted(NamedTuple):
    """The limits of one acquisition: those of the fetch and those of the group.

    If `is_exact`, at most `max_records` records are acquired. Otherwise whole batches are acquired until `max_records`
    is reached. An acquired range then ends at the first end of a batch at which it has `batch_size` records.
    """

    max_records: int
    batch_size: int
    is_exact: bool
    max_record_locks: int
    delivery_count_limit: int

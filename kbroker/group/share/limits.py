"""The limits of a fetch from one share partition, and of the acquisition that it makes."""
from __future__ import annotations

from typing import NamedTuple


class FetchLimits(NamedTuple):
    """The limits in the request of a member. `is_exact`: acquire mode record_limit."""

    max_bytes: int
    max_records: int
    batch_size: int
    is_exact: bool


class Wanted(NamedTuple):
    """The limits of one acquisition: those of the fetch and those of the group.

    If `is_exact`, at most `max_records` are acquired. Otherwise whole batches are acquired until there are at least as
    many. An acquired range then ends at the end of a batch once it has `batch_size` records.
    """

    max_records: int
    batch_size: int
    is_exact: bool
    max_record_locks: int
    delivery_count_limit: int

"""The limits of a fetch from one share partition, and the limits of the acquisition for this fetch."""
from __future__ import annotations

from typing import NamedTuple


class FetchLimits(NamedTuple):
    """The limits in a member's ShareFetch request. `is_exact` is true in the acquire mode record_limit."""

    max_bytes: int
    max_records: int
    batch_size: int
    is_exact: bool


class Wanted(NamedTuple):
    """The limits of one acquisition of records, from the fetch request and from the group's configs.

    * If `is_exact` is true, at most `max_records` records are acquired.
    * If `is_exact` is false, whole batches are acquired until there are at least `max_records` records. An acquired
      range ends after the batch that brings it to `batch_size` records or more.
    """

    max_records: int
    batch_size: int
    is_exact: bool
    max_record_locks: int
    delivery_count_limit: int

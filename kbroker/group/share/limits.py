"""The limits of a fetch from one share partition, and of the acquisition that it makes."""
from __future__ import annotations

from typing import NamedTuple


class FetchLimits(NamedTuple):
    """The limits that a member asks for. `is_exact`: acquire mode record_limit."""

    max_bytes: int
    max_records: int
    batch_size: int
    is_exact: bool


class Wanted(NamedTuple):
    """The limits of one acquisition: those of the fetch and those of the group.

    `is_exact`: never more than `max_records`. Otherwise whole batches are acquired until there are at least as many,
    and an acquired range ends at the end of a batch once it has `batch_size` records.
    """

    max_records: int
    batch_size: int
    is_exact: bool
    max_record_locks: int
    delivery_count_limit: int

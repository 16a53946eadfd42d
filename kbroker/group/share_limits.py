"""The limits of a share group, and those of one acquisition, as the share partitions take them."""
from __future__ import annotations

from typing import NamedTuple

from kbroker.group.group_config import GroupConfig


class ShareLimits(NamedTuple):
    """The settings of a share group that its share partitions follow."""

    record_lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    max_record_locks: int = 2_000
    auto_offset_reset: str = 'latest'
    is_read_committed: bool = False
    allows_renewal: bool = True


class Wanted(NamedTuple):
    """One acquisition: what the fetch asks for and what the group allows.

    `is_exact`: never more than `max_records` (acquire mode record_limit). Otherwise whole batches are acquired until
    there are at least as many, and an acquired range ends at the end of a batch once it has `batch_size` records.
    """

    max_records: int
    batch_size: int
    is_exact: bool
    max_record_locks: int
    delivery_count_limit: int


def limits_of(config: GroupConfig) -> ShareLimits:
    """Return the limits that a group's configs set."""
    return ShareLimits(config.share_record_lock_duration_ms, config.share_delivery_count_limit,
                       config.share_partition_max_record_locks, config.share_auto_offset_reset,
                       config.share_isolation_level == 'read_committed', config.share_renew_acknowledge_enable)

"""A description, for operators, of the records that members of share groups hold.

A member holds the records that it has acquired. No request of Kafka's protocol shows held records, and they are known
only in memory. The size of the description is bounded: it lists only the first ranges of held records in each share
partition, and has the number of ranges that are not listed.
"""
from __future__ import annotations

import json
from typing import Any, NamedTuple

from kbroker.base.clock import Clock
from kbroker.base.long_work import Pace
from kbroker.group.share.partitions import LivePartition, SharePartitions
from kbroker.metadata.changes import Steps

MOST_RANGES = 20
"""The largest number of ranges that a description lists for one share partition."""
MOST_BYTES = 32_768
"""The largest size of all listed ranges together, encoded as JSON, in bytes."""
LEAST_BYTES = 512
"""When fewer than this number of bytes remain of MOST_BYTES, no ranges of further share partitions are listed."""

Run = tuple[int, int, int, str, int | None, bool]
"""A run of held records, as `SharePartition.held` returns it."""


class HoldsFilter(NamedTuple):
    """A selection of the share partitions to describe. A field that is None does not restrict the selection: for
    example, `topic=None` selects the partitions of all topics."""

    topic: str | None = None
    partition: int | None = None
    group_id: str | None = None

    def includes(self, live: LivePartition) -> bool:
        return (self.topic in (None, live.partition.topic) and self.partition in (None, live.key.partition)
                and self.group_id in (None, live.key.group_id))


def describe_holds(share_partitions: SharePartitions, clock: Clock, wanted: HoldsFilter) -> Steps[dict[str, Any]]:
    """Return a description of the held records in the selected share partitions: `records` is their number, `ranges`
    lists ranges of them, and `left_out` is the number of ranges that are not listed.

    The description may omit a share partition that is loaded while the description is made.
    """
    pace = Pace()
    records, left_out, size_bytes = 0, 0, 0
    ranges: list[dict[str, Any]] = []
    for live in share_partitions.all():
        if pace.spend():
            yield
        if live.records is None or not wanted.includes(live):
            continue
        is_full = size_bytes + LEAST_BYTES > MOST_BYTES
        held_records, held_ranges, runs = live.records.held(0 if is_full else MOST_RANGES)
        lock_ms = share_partitions.config_of(live.key.group_id).share_record_lock_duration_ms
        records += held_records
        left_out += held_ranges
        for run in runs:
            described = describe_run(live, run, clock, lock_ms)
            described_bytes = len(json.dumps(described))
            if size_bytes + described_bytes > MOST_BYTES:
                break       # the ranges of another share partition may be shorter
            size_bytes += described_bytes
            ranges.append(described)
            left_out -= 1
        yield
    return {'records': records, 'ranges': ranges, 'left_out': left_out}


def describe_run(live: LivePartition, run: Run, clock: Clock, lock_ms: int) -> dict[str, Any]:
    """Return a JSON object that describes a run of held records. `since_ms` is the wall time at which the records were
    locked, computed from the end of the lock and the group's current lock duration.

    `since_ms` is null if the lock has ended, or if the group's lock duration was shortened after the lock began.
    """
    first, last, delivery_count, member_id, deadline_ms, is_ending = run
    since_ms = lock_ends_ms = None
    if deadline_ms is not None:
        left_ms = deadline_ms - clock.monotonic_ms()
        lock_ends_ms = clock.wall_ms() + left_ms
        since_ms = lock_ends_ms - lock_ms if left_ms <= lock_ms else None
    return {'group_id': live.key.group_id, 'topic': live.partition.topic, 'partition': live.key.partition,
            'first_offset': first, 'last_offset': last, 'member_id': member_id, 'delivery_count': delivery_count,
            'since_ms': since_ms, 'lock_ends_ms': lock_ends_ms, 'is_ending': is_ending}

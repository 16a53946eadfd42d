"""The committed records of a topic."""
from __future__ import annotations

from typing import Any

from kbroker.client import Admin, Consumer
from kbroker.client.admin import LATEST

EMPTY_POLLS = 120
POLL_MS = 500


def committed_records(admin: Admin, topic: str, partitions: int = 1) -> list[tuple[int, Any]]:
    """Return the committed records with their partitions. Raise AssertionError if an open transaction hides some of
    them.

    The broker answers a commit before it writes the markers. The function therefore reads up to the end of the log, and
    waits for the markers.
    """
    assigned = [(topic, partition) for partition in range(partitions)]
    ends = admin.list_offsets(dict.fromkeys(assigned, LATEST))
    found: list[tuple[int, Any]] = []
    left = EMPTY_POLLS
    with Consumer(admin.cluster, isolation_level='read_committed', auto_offset_reset='earliest') as consumer:
        consumer.assign(assigned)
        while any((consumer.position(*each) or 0) < ends[each].offset for each in assigned):
            batches = consumer.poll(POLL_MS)
            left -= not batches
            assert left, f'{topic} is not readable up to its end'
            found += [(batch.partition, record) for batch in batches for record in batch.records()]
    return found

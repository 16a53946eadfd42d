"""Share groups: records in flight, redeliveries, and dead letters."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.base.lean_dataclasses import dataclass
from kbroker.base.long_work import Pace
from kbroker.metrics.rooms import Rooms
from kbroker.metrics.table import MOST_SERIES, Metric, Sample

if TYPE_CHECKING:
    from kbroker.metadata.changes import Steps

IN_FLIGHT = Metric('kbroker_share_group_in_flight_records', 'gauge',
                   'Records of the share group that were delivered and are not finished, or that follow such a record.',
                   labels=('group',), series=f'share groups in use, at most {MOST_SERIES:,}')
ACQUIRED = Metric('kbroker_share_acquired_records', 'counter', 'Deliveries of records to members of share groups.')
REDELIVERED = Metric('kbroker_share_redelivered_records', 'counter',
                     'Deliveries of records that had been delivered to the same share group before.')
WAITING = Metric('kbroker_share_dead_letters_waiting', 'gauge', 'Records whose dead letters are not written yet.')
WRITTEN = Metric('kbroker_share_dead_letters_written', 'counter', 'Dead letters that were written.')
REFUSED = Metric('kbroker_share_dead_letters_refused', 'counter',
                 'Dead letters that were not written because a setting forbids it.')
FAILURES = Metric('kbroker_share_dead_letter_failures', 'counter', 'Failed attempts to write dead letters.')


@dataclass
class ShareSurvey:
    """The share groups of a broker at one time. `in_flight` maps each group in use to its records in flight."""

    in_flight: dict[str, int]
    acquired: int
    redelivered: int
    dead_letters: dict[str, int]


def survey(rooms: Rooms) -> Steps[ShareSurvey]:
    """Return the share groups of a broker, as long work."""
    shares, pace = rooms.share_partitions, Pace()
    in_flight: dict[str, int] = {}
    for live in shares.all():
        if live.records is not None and not live.is_dropped:
            in_flight[live.key.group_id] = in_flight.get(live.key.group_id, 0) + live.records.in_flight
        if pace.spend():
            yield
    dead_letters = yield from shares.dead_letter_counts()
    return ShareSurvey(in_flight, shares.acquired_records, shares.redelivered_records, dead_letters)


def collect(rooms: Rooms) -> Iterator[Sample | None]:
    """Yield the samples of all share groups."""
    found = yield from survey(rooms)
    for group_id, records in found.in_flight.items():
        yield IN_FLIGHT, (group_id,), records
    yield ACQUIRED, (), found.acquired
    yield REDELIVERED, (), found.redelivered
    yield WAITING, (), found.dead_letters['waiting']
    yield WRITTEN, (), found.dead_letters['written']
    yield REFUSED, (), found.dead_letters['refused']
    yield FAILURES, (), found.dead_letters['failures']

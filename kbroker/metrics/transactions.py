"""Transactions: their states, their outcomes, and the partitions whose last stable offset they hold back."""
from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush, heappushpop, nsmallest
from typing import TYPE_CHECKING, NamedTuple

from kbroker.base.errors import KafkaError
from kbroker.base.lean_dataclasses import dataclass, field
from kbroker.metrics.rooms import Rooms, partitions_in_parts
from kbroker.metrics.table import Metric, Sample
from kbroker.transaction.state import IDLE

if TYPE_CHECKING:
    from kbroker.metadata.changes import Steps
    from kbroker.topics.partition import Partition

MOST_OLDEST = 20
"""The most open transactions of a survey."""
MOST_HELD = 20
"""The most held partitions of a survey."""
HELD_AT_ONCE = 512
NO_PRODUCER_ID = -1
MOST_PARTITIONS_OF_ONE = 20
"""The most partitions that a survey lists for one transaction."""

IDS = Metric('kbroker_transactional_ids', 'gauge', 'Transactional ids that the broker knows, by the state of their '
             'transaction.', labels=('state',), series='6 states')
BEGUN = Metric('kbroker_transactions_begun', 'counter', 'Transactions that have begun.')
COMMITTED = Metric('kbroker_transactions_committed', 'counter', 'Transactions that were committed.')
ABORTED = Metric('kbroker_transactions_aborted', 'counter', 'Transactions that were aborted, by whichever cause.')
TIMED_OUT = Metric('kbroker_transactions_timed_out', 'counter',
                   'Transactions that the broker aborted because they were open for longer than their timeout.')
FENCED = Metric('kbroker_transactions_fenced', 'counter',
                'Transactions that were aborted because another client initialised their transactional id.')
LATE = Metric('kbroker_transactions_late_requests_refused', 'counter',
              'Requests that were refused because they arrived late, on a connection that their client had left.')
OPEN = Metric('kbroker_transactions_open', 'gauge', 'Transactions that have begun and are not complete.')
OLDEST_AGE = Metric('kbroker_transaction_oldest_open_age_seconds', 'gauge',
                    'The age of the oldest open transaction, 0 if none is open.', 'seconds')
HELD = Metric('kbroker_partitions_held', 'gauge',
              'Partitions whose last stable offset is below the high watermark: an open transaction holds it.')
HELD_OFFSETS = Metric('kbroker_partitions_held_offsets', 'gauge', 'Offsets between the last stable offset and the '
                      'high watermark, which a read_committed consumer cannot read yet, in all partitions together.')
DISTANCE = Metric('kbroker_partition_last_stable_offset_distance', 'gauge', 'Offsets between the last stable offset '
                  'and the high watermark, of the partitions that are held most.', labels=('topic', 'partition'),
                  series=f'the {MOST_HELD} partitions with the greatest distance')
HANGING = Metric('kbroker_transactions_hanging', 'gauge', 'Partitions that are held by a transaction which the '
                 'coordinator does not know: only an operator can abort it.')


class OpenTransaction(NamedTuple):
    """An open transaction.

    `partitions` has the first of its `partitions_count` partitions. `held_offsets` counts what read_committed consumers
    cannot read in these partitions because no earlier transaction than this one is open there.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    start_ms: int
    timeout_ms: int
    partitions: list[tuple[str, int]]
    partitions_count: int
    held_offsets: int


class HeldPartition(NamedTuple):
    """A partition whose last stable offset is below its high watermark.

    `producer_id` is the producer of the earliest open transaction, -1 if none is open any more. `transactional_id` is
    '' if the coordinator does not know that transaction.
    """

    distance: int
    topic: str
    partition: int
    last_stable_offset: int
    high_watermark: int
    producer_id: int
    transactional_id: str = ''


@dataclass
class TransactionSurvey:
    """The transactions of a broker at one time.

    `oldest` and `held` have the first of many. `hanging` is the number of partitions that are held by a transaction
    which the coordinator does not know.
    """

    by_state: dict[str, int]
    begun: int
    committed: int
    aborted: int
    timed_out: int
    fenced: int
    late_requests_refused: int
    open_count: int
    oldest: list[OpenTransaction]
    oldest_age_ms: int
    held_count: int
    held_offsets: int
    held: list[HeldPartition]
    hanging: int


class _Held(NamedTuple):
    """A held partition, and the transaction that holds it."""

    partition: Partition
    producer_id: int
    first_offset: int


@dataclass
class _HeldPartitions:
    """The held partitions. `greatest` is a heap of the `most` partitions with the greatest distances."""

    most: int
    count: int = 0
    offsets: int = 0
    greatest: list[HeldPartition] = field(default_factory=list)
    holders: list[_Held] = field(default_factory=list)
    producer_ids: set[int] = field(default_factory=set)

    def add(self, partition: Partition, distance: int) -> None:
        self.count += 1
        self.offsets += distance
        holder = partition.first_open_producer
        producer_id = NO_PRODUCER_ID
        if holder is not None:
            producer_id = holder.producer_id
            self.holders.append(_Held(partition, producer_id, holder.transaction_first_offset))
            self.producer_ids.add(producer_id)
        high_watermark = partition.high_watermark
        found = HeldPartition(distance, partition.topic, partition.partition, high_watermark - distance,
                              high_watermark, producer_id)
        if len(self.greatest) < self.most:
            heappush(self.greatest, found)
        else:
            heappushpop(self.greatest, found)


def survey(rooms: Rooms) -> Steps[TransactionSurvey]:
    """Return the transactions of a broker, as long work."""
    oldest = yield from oldest_open(rooms, MOST_OLDEST)
    found = yield from _find_held(rooms, MOST_HELD)
    names = yield from rooms.transactions.names_of_producers(found.producer_ids)
    hanging = 0
    if not rooms.transactions.store.is_loading:
        hanging = yield from _count_hanging(found.holders, names)
    coordinator = rooms.transactions
    store = coordinator.store
    age_ms = rooms.clock.wall_ms() - oldest[0].start_ms if oldest else 0
    held = [each._replace(transactional_id=names.get(each.producer_id, ''))
            for each in sorted(found.greatest, reverse=True)]
    return TransactionSurvey(
        {state.title: count for state, count in store.counts_by_state.items()}, store.begun, store.committed,
        store.aborted, coordinator.ender.timed_out, coordinator.ender.fenced, store.stale_requests.refused,
        store.open_count, oldest, max(0, age_ms), found.count, found.offsets, held, hanging)


def oldest_open(rooms: Rooms, most: int) -> Steps[list[OpenTransaction]]:
    """Return, as long work, the `most` transactions that have been open for the longest time, the oldest first."""
    found = []
    for _, transactional_id in (yield from rooms.transactions.oldest_open(most)):
        described = _describe(rooms, transactional_id)
        if described is not None:
            found.append(described)
        yield
    return found


def _describe(rooms: Rooms, transactional_id: str) -> OpenTransaction | None:
    """Return None if the transaction has ended since it was found."""
    try:
        row = rooms.transactions.describe(transactional_id)
    except KafkaError:
        return None
    if row.state in IDLE or row.start_timestamp_ms < 0:
        return None
    partitions = nsmallest(MOST_PARTITIONS_OF_ONE, row.partitions)
    held_offsets = 0
    for topic, number in partitions:
        partition = rooms.topics.find(topic, number)
        holder = None if partition is None else partition.first_open_producer
        if partition is not None and holder is not None and holder.producer_id == row.producer_id:
            held_offsets += partition.high_watermark - partition.last_stable_offset
    return OpenTransaction(transactional_id, row.state.title, row.producer_id, row.producer_epoch,
                           row.start_timestamp_ms, row.timeout_ms, partitions, len(row.partitions), held_offsets)


def _find_held(rooms: Rooms, most: int) -> Steps[_HeldPartitions]:
    found = _HeldPartitions(most)
    for partitions in partitions_in_parts(rooms.topics):
        for partition in partitions:
            distance = partition.high_watermark - partition.last_stable_offset
            if distance > 0:
                found.add(partition, distance)
        yield
    return found


def held_partitions(rooms: Rooms, most: int) -> Steps[list[HeldPartition]]:
    """Return, as long work, the `most` partitions that are held most, in no order."""
    found = yield from _find_held(rooms, most)
    names = yield from rooms.transactions.names_of_producers(found.producer_ids)
    named = []
    for number, held in enumerate(found.greatest, 1):
        named.append(held._replace(transactional_id=names.get(held.producer_id, '')))
        if number % HELD_AT_ONCE == 0:
            yield
    return named


def _count_hanging(found: list[_Held], names: dict[int, str]) -> Steps[int]:
    """Count the partitions that the same transaction still holds, and whose producer has no name.

    The names were collected after the partitions. So a transaction that the coordinator knew during the whole time has
    a name, and any other one that it knew has ended.
    """
    count = 0
    for number, held in enumerate(found, 1):
        if held.producer_id not in names and not held.partition.is_deleted:
            holder = held.partition.first_open_producer
            count += (holder is not None and holder.producer_id == held.producer_id
                      and holder.transaction_first_offset == held.first_offset)
        if number % HELD_AT_ONCE == 0:
            yield
    return count


def collect(rooms: Rooms) -> Iterator[Sample | None]:
    """Yield the samples of all transactions."""
    found = yield from survey(rooms)
    for state, count in found.by_state.items():
        yield IDS, (state,), count
    yield BEGUN, (), found.begun
    yield COMMITTED, (), found.committed
    yield ABORTED, (), found.aborted
    yield TIMED_OUT, (), found.timed_out
    yield FENCED, (), found.fenced
    yield LATE, (), found.late_requests_refused
    yield OPEN, (), found.open_count
    yield OLDEST_AGE, (), found.oldest_age_ms / 1000
    yield HELD, (), found.held_count
    yield HELD_OFFSETS, (), found.held_offsets
    for held in found.held:
        yield DISTANCE, (held.topic, str(held.partition)), held.distance
    yield HANGING, (), found.hanging

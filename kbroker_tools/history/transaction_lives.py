"""The transactions of one transactional.id, combined from its rows in `__transaction_state` and from partitions.

A transaction is identified in the rows by its start time, which all of its rows carry. A marker belongs to the
transaction whose Prepare row names its producer id and epoch. From transaction.version 2 on, this pair is unique to the
transaction, because every ending bumps the epoch (KIP-890). In earlier versions, all transactions of a producer share
the pair, and their times are compared. Compaction leaves only the last row of an id. The partitions then are the only
trace of earlier transactions.
"""
from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kbroker.base.topic_partition import TopicPartition
from kbroker.transaction.state import PREPARED, TransactionRow, TransactionState
from kbroker_tools.rows.transaction_rows import StoredRow
from kbroker_tools.timeline.transactions_of_partition import Marker, Outcome, PartitionTransaction

CLOCK_SKEW_MS = 1000
"""The largest expected difference between two clocks: the partition leader's, in markers, and the coordinator's."""

_COMPLETE = {TransactionState.COMPLETE_COMMIT: Outcome.COMMITTED, TransactionState.COMPLETE_ABORT: Outcome.ABORTED}
_PREPARE = {TransactionState.PREPARE_COMMIT: Outcome.COMMITTED, TransactionState.PREPARE_ABORT: Outcome.ABORTED}


@dataclass(frozen=True, slots=True)
class Evidence:
    """The batches and markers of the id's producer ids in one partition."""

    topic: str
    partition: int
    log_start_offset: int
    first_timestamp_ms: int | None
    """The time of the log's first batch; None if the log is empty."""
    has_gaps: bool
    """True if compaction removed offsets."""
    transactions: list[PartitionTransaction] = field(default_factory=list)
    lone_markers: list[Marker] = field(default_factory=list)

    @property
    def topic_partition(self) -> TopicPartition:
        return self.topic, self.partition


@dataclass(slots=True)
class Part:
    """The part of a transaction in one partition."""

    transaction: PartitionTransaction | None = None
    """None if the transaction wrote nothing here, or compaction removed all of it."""
    marker: Marker | None = None
    repeated: list[Marker] = field(default_factory=list)


@dataclass(slots=True)
class Life:
    """One transaction."""

    rows: list[StoredRow] = field(default_factory=list)
    """The remaining rows in order, from Ongoing to Complete. Empty if only partitions show the transaction."""
    parts: dict[TopicPartition, Part] = field(default_factory=dict)
    prepare: StoredRow | None = None
    complete: StoredRow | None = None
    partitions: frozenset[TopicPartition] | None = None
    """The partitions that the rows name; None if no such row is left. A Complete row names no partitions."""

    def add_row(self, stored: StoredRow) -> None:
        self.rows.append(stored)
        row = _row(stored)
        if row.state in _COMPLETE:
            self.complete = stored
            return
        if row.state in PREPARED:
            self.prepare = stored
        self.partitions = row.partitions.union(self.partitions or ())
        for topic_partition in row.partitions:
            self.parts.setdefault(topic_partition, Part())

    @property
    def decision(self) -> Outcome | None:
        """Return the outcome by the rows, or else by the markers; None while the transaction is undecided."""
        if self.complete is not None:
            return _COMPLETE[_row(self.complete).state]
        if self.prepare is not None:
            return _PREPARE[_row(self.prepare).state]
        return next((part.marker.outcome for part in self.parts.values() if part.marker is not None), None)

    @property
    def begin_ms(self) -> int:
        if self.rows:
            return _row(self.rows[0]).start_timestamp_ms
        return min([one.begin_timestamp_ms for one in self._written()]
                   + [part.marker.timestamp_ms for part in self.parts.values() if part.marker is not None])

    @property
    def earliest_marker_ms(self) -> int:
        """Return the earliest time that its markers can have, apart from clock differences."""
        return self.begin_ms if self.prepare is None else self.prepare.timestamp_ms

    @property
    def complete_ms(self) -> int | None:
        """Return the append time of the Complete row. The time in the row is earlier: Kafka sets it before the
        markers."""
        return None if self.complete is None else self.complete.timestamp_ms

    def distance_ms(self, marker: Marker) -> int:
        """Return how far the marker is from the time between Prepare and Complete. It is negative before Prepare,
        positive after Complete, and 0 between the two."""
        if marker.timestamp_ms < self.earliest_marker_ms:
            return marker.timestamp_ms - self.earliest_marker_ms
        complete_ms = self.complete_ms
        return 0 if complete_ms is None else max(0, marker.timestamp_ms - complete_ms)

    @property
    def marker_producer(self) -> tuple[int, int] | None:
        """Return the producer id and epoch of its markers; None while it is undecided.

        After a Complete row that rotated the producer id, the last epoch of the old one is unknown: -1.
        """
        for stored in (self.prepare, self.complete):
            if stored is not None:
                row = _row(stored)
                if row.state in _COMPLETE and row.bumps_epoch and row.producer_epoch == 0:
                    return row.previous_producer_id, -1
                return row.producer_id, row.producer_epoch
        return None

    @property
    def has_marker_epoch_of_its_own(self) -> bool:
        return any(_row(stored).bumps_epoch for stored in (self.prepare, self.complete) if stored is not None)

    def _written(self) -> list[PartitionTransaction]:
        return [part.transaction for part in self.parts.values() if part.transaction is not None]


def lives_in(rows: Iterable[StoredRow]) -> list[Life]:
    """Return the transactions in the rows of one id, in the order in which they began."""
    lives: list[Life] = []
    for stored in rows:
        row = stored.row
        if row is None or row.state is TransactionState.EMPTY:
            continue
        last = lives[-1] if lives else None
        is_going_on = (last is not None and last.complete is None
                       and _row(last.rows[-1]).start_timestamp_ms == row.start_timestamp_ms)
        if last is None or not is_going_on:
            last = Life()
            lives.append(last)
        last.add_row(stored)
    return lives


def add_evidence(lives: list[Life], evidence: Iterable[Evidence]) -> tuple[list[Life], list[Hanging]]:
    """Assign each marker and each partition's records to their transaction.

    Return two lists. The first has all lives sorted by time, including those without a remaining row. The second has
    the transactions that are open in a partition and belong to no life.
    """
    decided = _Decided(lives)
    unclaimed: dict[tuple[object, ...], Life] = {}
    hanging: list[Hanging] = []
    for found in evidence:
        endings = [(one.marker, one) for one in found.transactions if one.marker is not None]
        for marker, transaction in sorted([*endings, *((marker, None) for marker in found.lone_markers)],
                                          key=lambda ending: ending[0].offset):
            life = decided.owner(found.topic_partition, marker)
            if life is None:
                life = unclaimed.setdefault(_kinship(found, marker, transaction), Life())
            _claim(life, found.topic_partition, marker, transaction)
        for transaction in found.transactions:
            if transaction.marker is None:
                life = _owner_of_open(lives, found.topic_partition, transaction)
                if life is None:
                    hanging.append(Hanging(found.topic, found.partition, transaction))
                else:
                    life.parts.setdefault(found.topic_partition, Part()).transaction = transaction
    return sorted([*unclaimed.values(), *lives], key=lambda life: life.begin_ms), hanging


@dataclass(frozen=True, slots=True)
class Hanging:
    """A transaction that is open in a partition although no row has it open."""

    topic: str
    partition: int
    transaction: PartitionTransaction


class _Decided:
    """The transactions that may have markers, by the markers' producer ids and epochs."""

    def __init__(self, lives: list[Life]):
        self._lives: dict[tuple[int, int], list[Life]] = defaultdict(list)
        for life in lives:
            producer = life.marker_producer
            if producer is not None:
                self._lives[producer].append(life)
        self._starts = {producer: [life.earliest_marker_ms for life in found]
                        for producer, found in self._lives.items()}

    def owner(self, topic_partition: TopicPartition, marker: Marker) -> Life | None:
        """Return the marker's transaction, or None if no row of that transaction is left.

        If transactions share an epoch, it is the one that was ending at the marker's time. If no transaction was ending
        then, clocks may differ a little: it is the nearest one that lacks this marker. If none lacks it, it is the last
        one before the marker, which is then late or repeated.
        """
        near, before = [], None
        for life in self._candidates(marker):
            if life.partitions is not None and topic_partition not in life.partitions:
                continue
            distance_ms = life.distance_ms(marker)
            lacks_it = _lacks_marker(life, topic_partition)
            if life.has_marker_epoch_of_its_own or (distance_ms == 0 and lacks_it):
                return life
            if before is None and distance_ms >= 0:
                before = life
            if distance_ms > CLOCK_SKEW_MS:
                break
            if lacks_it and life.decision is marker.outcome:
                near.append(life)
        return min(near, key=lambda life: abs(life.distance_ms(marker))) if near else before

    def _candidates(self, marker: Marker) -> Iterator[Life]:
        """Yield candidates, latest first. Unless the epoch is unique, leave out those decided clearly after the
        marker."""
        for producer in ((marker.producer_id, marker.producer_epoch), (marker.producer_id, -1)):
            lives = self._lives.get(producer, [])
            if lives and lives[0].has_marker_epoch_of_its_own:
                yield from reversed(lives)
            elif lives:
                end = bisect_right(self._starts[producer], marker.timestamp_ms + CLOCK_SKEW_MS)
                yield from (lives[position] for position in range(end - 1, -1, -1))


def _lacks_marker(life: Life, topic_partition: TopicPartition) -> bool:
    part = life.parts.get(topic_partition)
    return part is None or part.marker is None


def _kinship(found: Evidence, marker: Marker, transaction: PartitionTransaction | None) -> tuple[object, ...]:
    """Return a key that groups markers of the same transaction when its rows are gone. An unrelated marker gets its own
    key."""
    if transaction is not None and marker.producer_epoch == transaction.producer_epoch + 1:
        return marker.producer_id, marker.producer_epoch
    return marker.producer_id, marker.producer_epoch, found.topic_partition, marker.offset


def _claim(life: Life, topic_partition: TopicPartition, marker: Marker,
           transaction: PartitionTransaction | None) -> None:
    part = life.parts.setdefault(topic_partition, Part())
    if part.marker is not None:
        part.repeated.append(marker)
        return
    part.marker, part.transaction = marker, transaction


def _owner_of_open(lives: list[Life], topic_partition: TopicPartition,
                   transaction: PartitionTransaction) -> Life | None:
    """Return the last transaction if it is not complete. Otherwise return a complete one that lacks its marker here."""
    for life in reversed(lives):
        part = life.parts.get(topic_partition)
        if part is None or part.marker is not None or part.transaction is not None:
            continue
        row = _row(life.rows[0])
        is_of_its_time = life.complete_ms is None or transaction.begin_timestamp_ms <= life.complete_ms + CLOCK_SKEW_MS
        if (row.producer_id == transaction.producer_id and is_of_its_time
                and transaction.producer_epoch <= row.producer_epoch):
            return life
    return None


def _row(stored: StoredRow) -> TransactionRow:
    """Return the row. In a life it is never a tombstone."""
    assert stored.row is not None
    return stored.row

"""The transactions of one transactional.id, combined from its rows in `__transaction_state` and from its records in
partitions.

All rows of a transaction carry its start time, which identifies the transaction. A marker belongs to the transaction
whose Prepare row has the producer id and epoch of the marker. From transaction.version 2, every ending bumps the epoch
(KIP-890). The producer id and epoch then occur in one transaction only. In version 0 and 1, all transactions of a
producer have the same epoch, so the times of markers and rows are compared.

Compaction keeps only the last row of an id. The records in partitions are then the only trace of earlier transactions.
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
"""The largest expected difference in milliseconds between two clocks: the partition leader's, which stamps markers, and
the coordinator's."""

_COMPLETE = {TransactionState.COMPLETE_COMMIT: Outcome.COMMITTED, TransactionState.COMPLETE_ABORT: Outcome.ABORTED}
_PREPARE = {TransactionState.PREPARE_COMMIT: Outcome.COMMITTED, TransactionState.PREPARE_ABORT: Outcome.ABORTED}


@dataclass(frozen=True, slots=True)
class Evidence:
    """The batches and markers that the producer ids of a transactional.id wrote to one partition."""

    topic: str
    partition: int
    log_start_offset: int
    first_timestamp_ms: int | None
    """The timestamp of the first batch in the log. None if the log is empty."""
    has_gaps: bool
    """True if offsets are missing because compaction removed their records."""
    transactions: list[PartitionTransaction] = field(default_factory=list)
    lone_markers: list[Marker] = field(default_factory=list)

    @property
    def topic_partition(self) -> TopicPartition:
        return self.topic, self.partition


@dataclass(slots=True)
class Part:
    """The records and markers of one transaction in one partition."""

    transaction: PartitionTransaction | None = None
    """The records in this partition. None if the transaction wrote none, or if compaction removed all of them."""
    marker: Marker | None = None
    repeated: list[Marker] = field(default_factory=list)


@dataclass(slots=True)
class Life:
    """One transaction."""

    rows: list[StoredRow] = field(default_factory=list)
    """The rows that compaction has kept, in log order, from Ongoing to Complete. Empty if only the partitions show the
    transaction."""
    parts: dict[TopicPartition, Part] = field(default_factory=dict)
    prepare: StoredRow | None = None
    complete: StoredRow | None = None
    partitions: frozenset[TopicPartition] | None = None
    """The partitions that the rows name. None if no row with partitions is left; a Complete row names no partitions."""

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
        """Return the outcome that the rows have, or else the outcome of the markers. None while the transaction is
        undecided."""
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
        """Return the earliest time that a marker of this transaction can have, if all clocks agree."""
        return self.begin_ms if self.prepare is None else self.prepare.timestamp_ms

    @property
    def complete_ms(self) -> int | None:
        """Return the time at which the Complete row was appended. The time inside the row is earlier, because Kafka
        sets it before the markers are written."""
        return None if self.complete is None else self.complete.timestamp_ms

    def distance_ms(self, marker: Marker) -> int:
        """Return the milliseconds from the nearer end of the time between Prepare and Complete to the marker. The
        result is negative for a marker before Prepare, positive for one after Complete, and otherwise 0."""
        if marker.timestamp_ms < self.earliest_marker_ms:
            return marker.timestamp_ms - self.earliest_marker_ms
        complete_ms = self.complete_ms
        return 0 if complete_ms is None else max(0, marker.timestamp_ms - complete_ms)

    @property
    def marker_producer(self) -> tuple[int, int] | None:
        """Return the producer id and epoch of the transaction's markers. None while the transaction is undecided.

        If the Complete row has a new producer id, the last epoch of the old producer id is unknown. The epoch returned
        is then -1.
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
    """Return the transactions in the rows of one transactional.id, in the order in which they began."""
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
    """Assign each marker, and the records of each partition, to their transaction.

    Return two lists. The first has all transactions sorted by time, including those of which no row is left. The second
    has the transactions that are open in a partition but belong to no transaction of the first list.
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
    """A transaction that is open in a partition, although no row shows an open transaction with this partition."""

    topic: str
    partition: int
    transaction: PartitionTransaction


class _Decided:
    """The transactions that may have markers, indexed by the producer id and epoch of the markers."""

    def __init__(self, lives: list[Life]):
        self._lives: dict[tuple[int, int], list[Life]] = defaultdict(list)
        for life in lives:
            producer = life.marker_producer
            if producer is not None:
                self._lives[producer].append(life)
        self._starts = {producer: [life.earliest_marker_ms for life in found]
                        for producer, found in self._lives.items()}

    def owner(self, topic_partition: TopicPartition, marker: Marker) -> Life | None:
        """Return the transaction that a marker ended. Return None if no row of this transaction is left.

        Several transactions may have the same producer id and epoch. The marker then belongs to the first of these that
        exists:

        1. the transaction that was ending at the marker's time,
        2. the nearest transaction that lacks this marker, because clocks may differ a little,
        3. the last transaction before the marker, which is then late or repeated.
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
        """Yield the candidates for a marker's transaction, the latest first. If several transactions share the epoch,
        omit those that were decided clearly after the marker's time."""
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
    """Return a key that groups markers whose rows are gone. Markers that bumped the epoch have the same key if they
    ended the same transaction. Any other marker gets a unique key."""
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
    """Return the last transaction if it is not complete. Otherwise return a complete transaction that lacks its marker
    in this partition, or None."""
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
    """Return the row that was stored. It is not None, because a life has no tombstones."""
    assert stored.row is not None
    return stored.row

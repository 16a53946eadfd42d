"""The layout of a partition's picture: the lanes of the producers, and the scale of offsets or times."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from kbroker_tools.base.view import PartitionOffsets
from kbroker_tools.timeline.transactions_of_partition import Marker, Outcome, PartitionTransaction

Axis = Literal['offset', 'time']


@dataclass(frozen=True, slots=True)
class Timeline:
    """The transactions of a partition, and further facts that its picture shows."""

    topic: str
    partition: int
    place: str
    """The address of the broker or the path of the directory from which the timeline was read."""
    read_at_ms: int
    offsets: PartitionOffsets
    start_offset: int
    end_offset: int
    """The offset after the last offset that is shown."""
    start_timestamp_ms: int
    end_timestamp_ms: int
    last_stable_timestamp_ms: int
    """The time at which the last stable offset is drawn on a time axis."""
    transactions: list[PartitionTransaction] = field(default_factory=list)
    lone_markers: list[Marker] = field(default_factory=list)
    plain_records: int = 0
    transactional_ids: dict[int, str] = field(default_factory=dict)

    def counts(self) -> dict[Outcome, int]:
        return count_outcomes(self.transactions)

    def open_transactions(self) -> list[PartitionTransaction]:
        return [transaction for transaction in self.transactions if transaction.outcome is Outcome.OPEN]


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane of the picture. It shows one transactional.id, one producer id without a known transactional.id, or all
    producers without a separate lane."""

    title: str
    detail: str
    """A short text with the producer ids and epochs of the lane."""
    transactions: list[PartitionTransaction]
    restarts: frozenset[int] = frozenset()
    """The first offsets of transactions with a jump before them: the epoch rose without a marker, or the producer id
    changed.

    The reason is that the producer was initialised again, or that it ended transactions in other partitions, each of
    which bumped the epoch.
    """


@dataclass(frozen=True, slots=True)
class Scale:
    """The axis of a picture. It maps offsets or times to places between 0 and 1."""

    axis: Axis
    start: int
    end: int

    def place(self, value: int) -> float:
        return (value - self.start) / max(1, self.end - self.start)

    def begin_of(self, transaction: PartitionTransaction) -> float:
        return self.place(transaction.first_offset if self.axis == 'offset' else transaction.begin_timestamp_ms)

    def end_of(self, transaction: PartitionTransaction) -> float:
        """Return the place where the bar of a transaction ends. It is after the marker. For an open transaction, it is
        the end of the log."""
        if transaction.outcome is Outcome.OPEN:
            return 1.0
        if self.axis == 'offset':
            return self.place(transaction.end_offset + 1)
        return self.place(max(transaction.end_timestamp_ms, transaction.begin_timestamp_ms))


def scale_of(timeline: Timeline, axis: Axis) -> Scale:
    if axis == 'offset':
        return Scale('offset', timeline.start_offset, timeline.end_offset)
    return Scale('time', timeline.start_timestamp_ms, timeline.end_timestamp_ms)


def count_outcomes(transactions: Iterable[PartitionTransaction]) -> dict[Outcome, int]:
    counted = Counter(transaction.outcome for transaction in transactions)
    return {outcome: counted[outcome] for outcome in Outcome}


def lanes_of(timeline: Timeline, limit: int) -> list[Lane]:
    """Return at most `limit` lanes, in the order in which their producers first appear.

    If there are more producers than lanes, the producers with an open transaction get lanes first. Next are producers
    with an aborted transaction, and then those with the most transactions. All remaining producers share the last lane.
    """
    owned: dict[str | int, list[PartitionTransaction]] = {}
    for transaction in timeline.transactions:
        producer_id = transaction.producer_id
        owned.setdefault(timeline.transactional_ids.get(producer_id, producer_id), []).append(transaction)
    if len(owned) <= limit:
        return [_lane(owner, transactions) for owner, transactions in owned.items()]
    by_interest = sorted(owned, key=lambda owner: _interest(owned[owner]), reverse=True)
    chosen = set(by_interest[:limit - 1])
    lanes = [_lane(owner, transactions) for owner, transactions in owned.items() if owner in chosen]
    rest = [transaction for transaction in timeline.transactions
            if timeline.transactional_ids.get(transaction.producer_id, transaction.producer_id) not in chosen]
    others = len(owned) - len(chosen)
    restarts = frozenset(transaction.first_offset for transaction in rest if transaction.epoch_before is not None)
    return [*lanes, Lane(f'{others:,} other producers', '', rest, restarts)]


def _interest(transactions: list[PartitionTransaction]) -> tuple[int, int, int]:
    counts = count_outcomes(transactions)
    return counts[Outcome.OPEN], min(1, counts[Outcome.ABORTED]), len(transactions)


def _lane(owner: str | int, transactions: list[PartitionTransaction]) -> Lane:
    producer_ids = list(dict.fromkeys(transaction.producer_id for transaction in transactions))
    restarts = {now.first_offset for before, now in zip([None, *transactions], transactions, strict=False)
                if now.epoch_before is not None or (before is not None and before.producer_id != now.producer_id)}
    detail = _epochs(transactions)
    if isinstance(owner, str):
        detail = f'{_producer_ids(producer_ids)}, {detail}'
    return Lane(owner if isinstance(owner, str) else f'producer {owner}', detail, transactions, frozenset(restarts))


def _producer_ids(producer_ids: list[int]) -> str:
    if len(producer_ids) == 1:
        return f'producer {producer_ids[0]}'
    return f'producers {producer_ids[0]} to {producer_ids[-1]}'


def _epochs(transactions: list[PartitionTransaction]) -> str:
    first, last = transactions[0], transactions[-1]
    if first.producer_epoch == last.producer_epoch and first.producer_id == last.producer_id:
        return f'epoch {first.producer_epoch}'
    return f'epoch {first.producer_epoch} to {last.producer_epoch}'

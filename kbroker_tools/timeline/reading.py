"""The reader of a timeline. It reads the log of one partition, and the transactional ids of its producers, through a
View."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kbroker.base.errors import KafkaError
from kbroker_tools.rows.transaction_rows import transactional_ids
from kbroker_tools.timeline.layout import Timeline
from kbroker_tools.timeline.transactions_of_partition import PartitionTransaction, Replay, replay

if TYPE_CHECKING:
    from kbroker.record.batch import BatchHeader
    from kbroker_tools.base.render import Output
    from kbroker_tools.base.view import PartitionOffsets, View


class Bounds(NamedTuple):
    """The bounds of the part of the log to show. A bound of None has no effect."""

    from_offset: int | None = None
    to_offset: int | None = None
    """Transactions that begin at or after this offset are omitted."""
    since_ms: int | None = None
    """Transactions that ended before this time are omitted."""


def read_timeline(view: View, topic: str, partition: int, bounds: Bounds, output: Output | None = None) -> Timeline:
    """Read the timeline of a partition. Raise KafkaError or OSError if it cannot be read.

    If a transaction was open at `from_offset` but is not open now, the part before `from_offset` is not shown.
    """
    offsets = view.partition_offsets(topic, partition)
    start_offset = max(offsets.log_start_offset, bounds.from_offset or 0)
    batches = view.batches(topic, partition, start_offset)
    if output is None:
        found = replay(batches, bounds.to_offset, bounds.since_ms)
    else:
        with output.progress(f'{topic}-{partition}', max(1, offsets.high_watermark - start_offset)) as progress:
            found = replay(_counted(batches, progress.advance), bounds.to_offset, bounds.since_ms)
    if start_offset > offsets.log_start_offset:
        _extend_to_the_left(found, view, topic, partition, start_offset)
    transactions = found.transactions
    if bounds.since_ms is not None:
        transactions = [one for one in transactions if one.marker is None or one.end_timestamp_ms >= bounds.since_ms]
        start_offset = min((one.first_offset for one in transactions), default=offsets.high_watermark)
    start_offset = min([start_offset, *(one.first_offset for one in transactions)])
    end_offset = bounds.to_offset or max([offsets.high_watermark, *(one.end_offset + 1 for one in transactions)])
    start_ms, end_ms = _times(found, transactions, bounds)
    return Timeline(
        topic, partition, view.place, view.now_ms(), offsets, start_offset, max(start_offset, end_offset), start_ms,
        end_ms, _last_stable_timestamp_ms(offsets, transactions, end_ms), transactions,
        [marker for marker in found.lone_markers if bounds.since_ms is None or marker.timestamp_ms >= bounds.since_ms],
        found.plain_records, _names(view, output) if transactions else {})


def _names(view: View, output: Output | None) -> dict[int, str]:
    """Return {producer id: transactional id}. If `__transaction_state` cannot be read, print a note with the reason and
    return an empty dictionary."""
    try:
        return transactional_ids(view)
    except KafkaError as error:
        if output is not None:
            output.note(f'without transactional ids: {error}')
        return {}


def _counted(batches: Iterator[tuple[BatchHeader, memoryview]],
          advance: Callable[[int], None]) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches. After every thousand batches, call `advance` with the number of offsets in these batches."""
    covered = 0
    for count, (header, batch) in enumerate(batches):
        yield header, batch
        covered += header.last_offset_delta + 1
        if count % 1000 == 999:
            advance(covered)
            covered = 0


def _extend_to_the_left(found: Replay, view: View, topic: str, partition: int, start_offset: int) -> None:
    """Set the first offset of open transactions that began before the first batch that was read."""
    opened = {one.producer_id: one for one in found.transactions if one.marker is None}
    for producer in view.producers(topic, partition):
        first_offset = producer.transaction_first_offset
        if first_offset is None or first_offset >= start_offset:
            continue
        if producer.producer_id in opened:
            opened[producer.producer_id].first_offset = first_offset
        else:
            found.transactions.append(PartitionTransaction(
                producer.producer_id, producer.producer_epoch, first_offset, first_offset, producer.last_timestamp_ms,
                producer.last_timestamp_ms))
    found.transactions.sort(key=lambda one: one.first_offset)


def _times(found: Replay, transactions: list[PartitionTransaction], bounds: Bounds) -> tuple[int, int]:
    """Return (first time, last time) of the part to show.

    Times of records without a timestamp (-1), and times before 1970, are ignored. Both results are -1 if no time is
    left.
    """
    times = [time for one in transactions for time in (one.begin_timestamp_ms, one.end_timestamp_ms) if time >= 0]
    if bounds.to_offset is None and found.last_timestamp_ms is not None and found.last_timestamp_ms >= 0:
        times.append(found.last_timestamp_ms)
    if bounds.since_ms is None and found.first_timestamp_ms is not None and found.first_timestamp_ms >= 0:
        times.append(found.first_timestamp_ms)
    start_ms = min(times, default=-1)
    return start_ms, max([start_ms, *times])


def _last_stable_timestamp_ms(offsets: PartitionOffsets, transactions: list[PartitionTransaction], end_ms: int) -> int:
    """Return the start time of the transaction that holds the last stable offset. Return `end_ms` if no transaction
    holds it."""
    if offsets.last_stable_offset >= offsets.high_watermark:
        return end_ms
    return next((one.begin_timestamp_ms for one in transactions if one.first_offset >= offsets.last_stable_offset),
                end_ms)

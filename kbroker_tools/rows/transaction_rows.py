"""Rows of `__transaction_state`, read through a View: all rows that compaction has left, in log order."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kbroker.base.errors import KafkaError
from kbroker.base.internal_topics import TRANSACTION_STATE
from kbroker.protocol.rows import RowError
from kbroker.record.records import decode_records
from kbroker.topics.partitioner import partition_for
from kbroker.transaction.state import NO_PRODUCER_ID, TransactionRow
from kbroker.transaction.state_log import decode_row

if TYPE_CHECKING:
    from kbroker_tools.base.view import View


class StoredRow(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int
    """The time at which the coordinator appended the row."""
    transactional_id: str
    row: TransactionRow | None
    """None for a tombstone, which deletes the id."""
    leader_epoch: int = -1
    """The partition's leader epoch, which was the coordinator's epoch at the append."""


def stored_rows(view: View, partitions: Iterable[int]) -> Iterator[StoredRow]:
    """Yield the rows of these partitions. Rows of unknown type or version are skipped. Raise KafkaError or OSError."""
    for partition in partitions:
        for header, batch in view.batches(TRANSACTION_STATE, partition):
            if header.is_control:
                continue
            for record in decode_records(batch):
                try:
                    transactional_id, row = decode_row(record.key, record.value)
                except RowError:
                    continue
                yield StoredRow(partition, record.offset, record.timestamp_ms, transactional_id, row,
                                header.partition_leader_epoch)


def has_all_partitions(view: View) -> bool:
    """Return whether every partition of `__transaction_state` can be read. A directory may lack some of them."""
    topic = view.topics().get(TRANSACTION_STATE)
    if view.is_live or topic is None:
        return view.is_live
    numbers = [partition.partition for partition in topic.partitions]
    try:
        for number in numbers:
            next(view.batches(TRANSACTION_STATE, number), None)
    except KafkaError:
        return False
    return numbers == list(range(len(numbers)))


def partition_of(view: View, transactional_id: str) -> int | None:
    """Return the id's partition of `__transaction_state`, or None if the topic does not exist."""
    topic = view.topics().get(TRANSACTION_STATE)
    return None if topic is None else partition_for(transactional_id, len(topic.partitions))


def transactional_ids(view: View) -> dict[int, str]:
    """Map each producer id in the remaining rows, current or past, to its transactional.id."""
    topic = view.topics().get(TRANSACTION_STATE)
    owners: dict[int, str] = {}
    if topic is None:
        return owners
    for stored in stored_rows(view, (partition.partition for partition in topic.partitions)):
        if stored.row is not None:
            for producer_id in producer_ids(stored.row):
                owners[producer_id] = stored.transactional_id
    return owners


def producer_ids(row: TransactionRow) -> set[int]:
    """Return the producer ids that a row names: current, previous and next."""
    return {row.producer_id, row.previous_producer_id, row.next_producer_id} - {NO_PRODUCER_ID}

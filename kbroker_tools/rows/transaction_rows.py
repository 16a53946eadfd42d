"""The rows of `__transaction_state` that compaction has kept, read through a View in log order."""
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
    """The content of the row. None for a tombstone, which deletes the transactional.id."""
    leader_epoch: int = -1
    """The leader epoch of the partition at the append. It was also the epoch of the coordinator."""


def stored_rows(view: View, partitions: Iterable[int]) -> Iterator[StoredRow]:
    """Yield the rows of these partitions. A row of an unknown type or version is skipped. Raise KafkaError or OSError
    if a partition cannot be read."""
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
    """Return whether every partition of `__transaction_state` can be read. A log directory may lack some partitions."""
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
    """Return the partition of `__transaction_state` to which a transactional.id belongs. Return None if the topic does
    not exist."""
    topic = view.topics().get(TRANSACTION_STATE)
    return None if topic is None else partition_for(transactional_id, len(topic.partitions))


def transactional_ids(view: View) -> dict[int, str]:
    """Return {producer id: transactional id} for all producer ids in the rows, including former producer ids of a
    transactional.id."""
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
    """Return the producer ids in a row: the current one, the previous one and the next one."""
    return {row.producer_id, row.previous_producer_id, row.next_producer_id} - {NO_PRODUCER_ID}

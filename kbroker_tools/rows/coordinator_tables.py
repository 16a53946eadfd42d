"""Tables with the current state of each transactional.id, committed offset or group. The newest state comes first."""
from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from kbroker.base.long_work import run_to_end
from kbroker.base.words import words_for_duration
from kbroker.group.offsets.table import OffsetTable
from kbroker.group.records import CommittedOffset, OffsetKey
from kbroker.record.control import ControlType, read_end_txn_marker
from kbroker.transaction.state import PREPARED, TransactionState
from kbroker_tools.base.render import Column, Output
from kbroker_tools.rows.coordinator_tail import Row, RowBatch

UNFINISHED = PREPARED | {TransactionState.ONGOING}
MILLISECONDS = '_timestamp_ms'
"""The suffix of column names whose cells are times in milliseconds. The table shows each of these times as an age."""


class Table(Protocol):
    @property
    def columns(self) -> tuple[Column, ...]: ...

    def add(self, batch: RowBatch) -> None: ...

    def rows(self) -> Iterable[tuple[Any, ...]]:
        """Return the rows of the table, newest first. A row has one cell per column, and times are in milliseconds."""


class TransactionTable:
    """The last row of each transactional.id. Deleted ids are omitted."""

    columns = (
        Column('transactional_id', 'TransactionalId'),
        Column('state', 'State'),
        Column('producer_id', 'ProducerId', 'right'),
        Column('producer_epoch', 'ProducerEpoch', 'right'),
        Column('last_update_timestamp_ms', 'Updated', 'right'),
        Column('open_since_timestamp_ms', 'Open', 'right'),
        Column('timeout_ms', 'Timeout', 'right'),
        Column('partitions', 'Partitions'),
    )

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def add(self, batch: RowBatch) -> None:
        for row in batch.rows:
            _keep(self._found, row, 'transactional_id')

    def rows(self) -> Iterable[tuple[Any, ...]]:
        newest_first = _newest_first(self._found, 'transaction_last_update_timestamp_ms')
        for transactional_id, value in newest_first:
            state: TransactionState | None
            try:
                state = TransactionState(value.transaction_status)
            except ValueError:
                state = None
            partitions = [f'{topic.topic}-{partition}' for topic in value.transaction_partitions or ()
                          for partition in topic.partition_ids]
            yield (transactional_id, str(value.transaction_status) if state is None else state.title,
                   value.producer_id, value.producer_epoch, value.transaction_last_update_timestamp_ms,
                   value.transaction_start_timestamp_ms if state in UNFINISHED else None,
                   value.transaction_timeout_ms, partitions)


class GroupTable:
    """The last row of each group of the classic protocol."""

    columns = (
        Column('group', 'Group'),
        Column('protocol_type', 'ProtocolType'),
        Column('protocol', 'Protocol'),
        Column('generation', 'Generation', 'right'),
        Column('members', 'Members', 'right'),
        Column('leader', 'Leader'),
        Column('state_timestamp_ms', 'Changed', 'right'),
    )

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def add(self, batch: RowBatch) -> None:
        for row in batch.rows:
            _keep(self._found, row, 'group')

    def rows(self) -> Iterable[tuple[Any, ...]]:
        for group, value in _newest_first(self._found, 'current_state_timestamp'):
            changed_ms = value.current_state_timestamp
            yield (group, value.protocol_type, value.protocol, value.generation, len(value.members), value.leader,
                   changed_ms if changed_ms >= 0 else None)


class OffsetsTable:
    """The committed offsets. An offset in a transaction appears when the transaction's commit marker is replayed."""

    columns = (
        Column('group', 'Group'),
        Column('topic', 'Topic'),
        Column('partition', 'Partition', 'right'),
        Column('offset', 'Offset', 'right'),
        Column('leader_epoch', 'LeaderEpoch', 'right'),
        Column('metadata', 'Metadata'),
        Column('commit_timestamp_ms', 'Committed', 'right'),
    )

    def __init__(self) -> None:
        self._by_partition: dict[int, OffsetTable] = {}

    def add(self, batch: RowBatch) -> None:
        offsets = self._by_partition.setdefault(batch.partition, OffsetTable())
        header = batch.header
        if header.is_control and header.is_transactional and header.records_count:
            commit = read_end_txn_marker(batch.data).control_type is ControlType.COMMIT
            applying = offsets.end_transaction(header.producer_id, commit)
            if applying is not None:
                run_to_end(applying)
        for row in batch.rows:
            key: Any = row.key
            at = OffsetKey(key.group, key.topic, key.partition)
            if row.value is None:
                offsets.forget(at)
            elif header.is_transactional:
                offsets.add_pending(header.producer_id, at, _committed(row))
            else:
                offsets.commit(at, _committed(row))

    def rows(self) -> Iterable[tuple[Any, ...]]:
        found = [(at, committed) for offsets in self._by_partition.values() for group_id in offsets.group_ids()
                 for at in offsets.committed_keys(group_id) if (committed := offsets.committed(at)) is not None]
        found.sort(key=lambda row: (-row[1].commit_timestamp_ms, row[0]))
        for at, committed in found:
            yield (at.group_id, at.topic, at.partition, committed.offset, committed.leader_epoch, committed.metadata,
                   committed.commit_timestamp_ms)


def _keep(found: dict[str, Any], row: Row, name: str) -> None:
    key = getattr(row.key, name)
    if row.value is None:
        found.pop(key, None)
    else:
        found[key] = row.value


def _newest_first(found: dict[str, Any], timestamp: str) -> list[tuple[str, Any]]:
    by_age = operator.attrgetter(timestamp)
    return sorted(found.items(), key=lambda row: (-by_age(row[1]), row[0]))


def _committed(row: Row) -> CommittedOffset:
    value: Any = row.value
    return CommittedOffset(value.offset, getattr(value, 'leader_epoch', -1), value.metadata, value.commit_timestamp,
                           log_offset=row.record.offset)


def show(table: Table, output: Output, now_ms: int) -> None:
    """Print the table. Times are shown as ages, and lists as texts with commas. JSON output has the values
    unchanged."""
    if output.as_json:
        output.table(table.columns, table.rows())
    else:
        output.table(table.columns, [tuple(_words(column, cell, now_ms) for column, cell in
                                           zip(table.columns, row, strict=True)) for row in table.rows()])


def _words(column: Column, cell: Any, now_ms: int) -> Any:
    if cell is None:
        return '-'
    if column.name.endswith(MILLISECONDS):
        return words_for_duration(now_ms - cell)
    if column.name.endswith('_ms'):
        return words_for_duration(cell)
    return ','.join(cell) if isinstance(cell, list) else cell


TABLES: dict[str, Callable[[], Table]] = {
    'transaction': TransactionTable,
    'offsets': OffsetsTable,
    'group-metadata': GroupTable,
}

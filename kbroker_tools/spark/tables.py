"""The tables about the log that `option("table", ...)` selects. A task reads many partitions. For the table `batches`,
it may read only a piece of a partition.

Compared to records, the rows of tables are few and small. They are therefore built in Python. Most of the time of a
task is spent on reading headers.
"""
from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kbroker.base.errors import KafkaError
from kbroker.base.internal_topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from kbroker.record.batch import BatchHeader
from kbroker.record.control import read_end_txn_marker
from kbroker_tools.rows.coordinator_replay import (
    replay_groups,
    replay_share_states,
    replay_transactions,
    transaction_rows,
)
from kbroker_tools.spark.messages import message_first
from kbroker_tools.spark.options import Options
from kbroker_tools.spark.partition_files import has_right_crc
from kbroker_tools.spark.planning import Place, chosen_partitions
from kbroker_tools.spark.schema import COMPRESSIONS, arrow_type, check_columns
from kbroker_tools.spark.task_partition import TaskPartition
from kbroker_tools.spark.tasks import freeze_imports, open_place
from kbroker_tools.spark.times import spark_times

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker.group.share.rows import ShareKey, ShareState

ROWS_OF_A_BATCH = 5_000
TASKS = 8
"""The default of minPartitions for a table. Cutting a partition into pieces adds one task for each cut.

More tasks would cost more time than they save, because most partitions are small.
"""
BYTES_OF_A_TASK = 1024 * 1024
"""The least number of bytes for which an additional task is worthwhile, if a table is read from a coordinator's topic.
The rows of these topics are replayed one by one."""
DELETE_HORIZON_BIT = 0x40

PARTITION = 'topic string, partition int'
TRANSACTION = ('transactional_id string, state string, producer_id bigint, producer_epoch int, timeout_ms int, '
               'start_timestamp timestamp, last_update_timestamp timestamp, '
               'partitions array<struct<topic:string,partition:int>>, client_producer_id bigint, '
               'client_producer_epoch int')

SCHEMAS = {
    'batches': f'{PARTITION}, segment bigint, position bigint, size_bytes int, base_offset bigint, last_offset bigint, '
               'records int, compression string, leader_epoch int, producer_id bigint, producer_epoch int, '
               'base_sequence int, last_sequence int, is_transactional boolean, is_control boolean, marker string, '
               'coordinator_epoch int, timestampType int, base_timestamp timestamp, max_timestamp timestamp, '
               'delete_horizon timestamp, crc bigint, crc_is_right boolean',
    'transactions': f'{TRANSACTION}, coordinator_partition int',
    'transaction_history': f'coordinator_partition int, offset bigint, timestamp timestamp, {TRANSACTION}',
    'aborted': f'{PARTITION}, producer_id bigint, first_offset bigint, last_offset bigint',
    'offsets': 'group_id string, group_type string, topic string, partition int, committed_offset bigint, '
               'leader_epoch int, metadata string, last_stable_offset bigint, lag bigint',
    'groups': 'group_id string, group_type string, state string, protocol_type string, protocol string, members int, '
              'assignment array<struct<member_id:string,client_id:string,client_host:string,topic:string,'
              'partition:int>>',
    'producers': f'{PARTITION}, producer_id bigint, producer_epoch int, last_sequence int, last_timestamp timestamp, '
                 'coordinator_epoch int, transaction_first_offset bigint',
    'segments': f'{PARTITION}, base_offset bigint, size_bytes bigint, modified timestamp, has_index boolean, '
                'has_transaction_index boolean, is_active boolean',
}
BY_COORDINATOR = {'transactions': (TRANSACTION_STATE,), 'transaction_history': (TRANSACTION_STATE,),
                  'offsets': (CONSUMER_OFFSETS, SHARE_GROUP_STATE), 'groups': (CONSUMER_OFFSETS,)}
"""Maps the name of a table to the coordinators' topics from which it is read."""

Row = tuple[Any, ...]


@dataclass(frozen=True)
class TablePiece:
    """A partition of a topic, or of a coordinator's topic. If `piece` is not None, it is only a part of the
    partition."""

    topic: str
    partition: int
    piece: Any = None


class TableReader(DataSourceReader):
    """The reader of any table except `records`. A query shows the log as it is when the tasks run."""

    def __init__(self, options: Options, schema: StructType):
        self.options = options
        self.table: str = options['table']
        self.types = dict(column.split(' ', 1) for column in split_columns(SCHEMAS[self.table]))
        check_columns(schema, self.types)
        self.columns = [field.name for field in schema.fields]

    @message_first()
    def partitions(self) -> list[InputPartition]:
        place, least = open_place(self.options), self.options['minPartitions']
        topics = BY_COORDINATOR.get(self.table)
        if topics is not None:
            return [TaskPartition(pieces) for pieces in self._packed(place, topics, least)]
        pieces = self._pieces(place)
        cuts = len(pieces) - len({(piece.topic, piece.partition) for piece in pieces})
        tasks = min(len(pieces), (least or TASKS) + cuts)
        return [TaskPartition(tuple(pieces[number::tasks])) for number in range(tasks)]

    def _packed(self, place: Place, topics: tuple[str, ...], least: int | None) -> list[tuple[TablePiece, ...]]:
        """Distribute the partitions of a coordinator's topic over tasks with about equal numbers of bytes. Most of
        these partitions are empty."""
        sized = [(sum(part.size_bytes for part in place.pieces(*each)), TablePiece(*each))
                 for each in place.partitions() if each[0] in topics]
        sized = sorted((each for each in sized if each[0]), key=lambda each: each[0], reverse=True)
        total = sum(size_bytes for size_bytes, _ in sized)
        tasks = min(len(sized), least or min(TASKS, -(-total // BYTES_OF_A_TASK)))
        packed: list[list[TablePiece]] = [[] for _ in range(tasks)]
        filled = [(0, number) for number in range(tasks)]
        for size_bytes, piece in sized:
            least_bytes, number = heapq.heappop(filled)
            packed[number].append(piece)
            heapq.heappush(filled, (least_bytes + size_bytes, number))
        return [tuple(pieces) for pieces in packed]

    def _pieces(self, place: Place) -> list[TablePiece]:
        chosen = chosen_partitions(place, self.options)
        if self.table == 'batches' or (self.table == 'aborted' and self.options.bootstrap_servers is not None):
            return [TablePiece(*each, piece) for each in chosen for piece in place.pieces(*each)]
        return [TablePiece(*each) for each in chosen]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return
        import pyarrow as pa
        freeze_imports()
        types = {name: arrow_type(text, pa) for name, text in self.types.items()}
        schema = pa.schema([(name, types[name]) for name in self.columns])
        place = open_place(self.options)
        rows = chain.from_iterable(ROWS[self.table](place, piece) for piece in partition.value)
        while chunk := list(islice(rows, ROWS_OF_A_BATCH)):
            columns = dict(zip(types, zip(*chunk, strict=True), strict=True))
            yield pa.RecordBatch.from_arrays([self._array(name, columns[name], types[name]) for name in self.columns],
                                             schema=schema)

    def _array(self, name: str, values: Row, kind: Any) -> pa.Array:
        import pyarrow as pa
        if self.types[name] != 'timestamp':
            return pa.array(values, kind)
        return spark_times(pa.array(values, pa.int64()), self.options['timestampOverflow'],
                           f'table {self.table}, column {name}')


def split_columns(ddl: str) -> list[str]:
    """Split DDL text such as `a int, b array<struct<c:int,d:int>>` at the commas outside of angle brackets."""
    columns, depth = [''], 0
    for character in ddl:
        depth += {'<': 1, '>': -1}.get(character, 0)
        if character == ',' and depth == 0:
            columns.append('')
        else:
            columns[-1] += character
    return [column.strip() for column in columns]


# ---- rows

def batches(place: Place, piece: TablePiece) -> Iterator[Row]:
    for segment, position, header, batch in place.batches(piece.topic, piece.partition, piece.piece):
        marker, coordinator_epoch = _marker(header, batch)
        horizon = _time(header.delete_horizon_ms) if header.attributes & DELETE_HORIZON_BIT else None
        yield (piece.topic, piece.partition, segment, position, header.size_bytes, header.base_offset,
               header.last_offset, header.records_count, COMPRESSIONS[header.compression],
               header.partition_leader_epoch, header.producer_id, header.producer_epoch, header.base_sequence,
               header.last_sequence, header.is_transactional, header.is_control, marker, coordinator_epoch,
               int(header.is_log_append_time), None if horizon else _time(header.base_timestamp_ms),
               _time(header.max_timestamp_ms), horizon, header.crc, has_right_crc(header, batch))


def _marker(header: BatchHeader, batch: memoryview) -> tuple[str | None, int | None]:
    if not header.is_control or not header.is_transactional or not header.records_count:
        return None, None
    try:
        found = read_end_txn_marker(batch)
    except KafkaError:
        return None, None
    return found.control_type.name.lower(), found.coordinator_epoch


def transactions(place: Place, piece: TablePiece) -> Iterator[Row]:
    found = replay_transactions(_plain(place, piece))
    for transactional_id, row in sorted(found.items()):
        yield (*_transaction(transactional_id, row), piece.partition)


def transaction_history(place: Place, piece: TablePiece) -> Iterator[Row]:
    for record, transactional_id, row in transaction_rows(_plain(place, piece)):
        yield piece.partition, record.offset, _time(record.timestamp_ms), *_transaction(transactional_id, row)


def _transaction(transactional_id: str, row: Any) -> Row:
    if row is None:  # a tombstone: the id has expired or an operator has removed it
        return transactional_id, *[None] * 9
    return (transactional_id, row.state.title, row.producer_id, row.producer_epoch, row.timeout_ms,
            _time(row.start_timestamp_ms), _time(row.last_update_timestamp_ms),
            [{'topic': topic, 'partition': partition} for topic, partition in sorted(row.partitions)],
            row.client_producer_id, row.client_producer_epoch)


def aborted(place: Place, piece: TablePiece) -> Iterator[Row]:
    for producer_id, first_offset, last_offset in place.aborted(piece.topic, piece.partition, piece.piece):
        yield piece.topic, piece.partition, producer_id, first_offset, last_offset


def offsets(place: Place, piece: TablePiece) -> Iterator[Row]:
    if piece.topic == SHARE_GROUP_STATE:
        yield from _share_offsets(place, piece)
        return
    state = replay_groups(_plain(place, piece))
    present = set(place.partitions())
    for group_id in sorted(state.group_ids()):
        group = state.group(group_id, -1, place.topic_name)
        for row in state.offsets(group_id):
            at = (row.topic, row.partition)
            end = place.bounds(*at).end_offset if at in present else None
            yield (group_id, None if group is None else group.group_type, *at, row.offset, row.leader_epoch,
                   row.metadata, end, None if end is None else max(0, end - row.offset))


def _share_offsets(place: Place, piece: TablePiece) -> Iterator[Row]:
    """Yield the offsets from which share groups read. The lag is counted to the high watermark, even if the query reads
    less."""
    states: dict[ShareKey, ShareState] = {}
    replay_share_states(_plain(place, piece), None, states)
    present = set(place.partitions())
    for key, state in sorted(states.items()):
        topic, start = place.topic_name(key.topic_id) or key.topic_id.hex(), state.start_offset
        end = lag = None
        if (topic, key.partition) in present:
            end = place.bounds(topic, key.partition).end_offset
            lag = state.lag(place.high_watermark(topic, key.partition))
        yield (key.group_id, 'share', topic, key.partition, None if start < 0 else start,
               None if start < 0 else state.leader_epoch, None, end, lag)


def groups(place: Place, piece: TablePiece) -> Iterator[Row]:
    state = replay_groups(_plain(place, piece))
    for group_id in sorted(state.group_ids()):
        group = state.group(group_id, -1, place.topic_name)
        if group is not None:
            assignment = [{'member_id': member.member_id, 'client_id': member.client_id,
                           'client_host': member.client_host, 'topic': topic, 'partition': partition}
                          for member in group.members for topic, partition in member.assignment]
            yield (group_id, group.group_type, group.state, group.protocol_type, group.protocol, len(group.members),
                   assignment)


def producers(place: Place, piece: TablePiece) -> Iterator[Row]:
    for each in place.producers(piece.topic, piece.partition):
        first = each.transaction_first_offset
        yield (piece.topic, piece.partition, each.producer_id, each.producer_epoch, each.last_sequence,
               _time(each.last_timestamp_ms), each.coordinator_epoch, None if first is None or first < 0 else first)


def segments(place: Place, piece: TablePiece) -> Iterator[Row]:
    from kbroker_tools.spark.file_place import FilePlace
    assert isinstance(place, FilePlace)  # the options were checked
    found = place.state(piece.topic, piece.partition).files.segments
    for segment in found:
        yield (piece.topic, piece.partition, segment.base_offset, segment.size_bytes,
               segment.modified_ns // 1_000_000, segment.has_index,
               segment.has_transaction_index, segment is found[-1])


def _plain(place: Place, piece: TablePiece) -> Iterator[tuple[BatchHeader, memoryview]]:
    for _, _, header, batch in place.batches(piece.topic, piece.partition, None):
        yield header, batch


def _time(timestamp_ms: int | None) -> int | None:
    """Return a time in milliseconds. Return None if the time is missing."""
    return None if timestamp_ms is None or timestamp_ms < 0 else timestamp_ms


ROWS: dict[str, Callable[[Place, TablePiece], Iterator[Row]]] = {
    'batches': batches, 'transactions': transactions, 'transaction_history': transaction_history, 'aborted': aborted,
    'offsets': offsets, 'groups': groups, 'producers': producers, 'segments': segments}


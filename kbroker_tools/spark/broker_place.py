"""The place for a Kafka cluster. It is read over Kafka's protocol, so the brokers need not be kbroker.

Each task has its own connection. It requests the next bytes before it decodes the bytes that it has received. The
offsets of markers, aborted records and compacted records have no row. A slice therefore ends at an offset, not at a
record.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import EARLIEST, LATEST, Admin, IsolationLevel
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.connection import Connection
from kbroker.client.descriptions import ProducerInfo
from kbroker.client.errors import check
from kbroker.log.producer_state import ProducerStateTable
from kbroker.protocol.messages import FetchRequest
from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import BatchHeader, CorruptBatchError, iter_batches, read_header
from kbroker.record.batch_filter import BatchFilter, TransactionRanges
from kbroker.record.columns import ColumnDecoder
from kbroker.record.control import ControlType, read_end_txn_marker
from kbroker_tools.spark.file_ranges import ABORTED_OF_A_TASK, DataLossError, ReadOptions, logger
from kbroker_tools.spark.options import Options
from kbroker_tools.spark.planning import Bounds, LocatedBatch, Slice, split_bytes
from kbroker_tools.spark.schema import Assembler, Field

if TYPE_CHECKING:
    import pyarrow as pa

FETCH_VERSION = 12
"""The last version of Fetch requests that identifies topics by name."""
FETCH_BYTES = 2 * 1024 * 1024
"""The default of kafka.fetch.max.bytes. It fits a CPU cache and a socket buffer.

One request is always in flight, so each round trip returns up to this many bytes. A distant broker needs a larger
value.
"""
FIRST_FETCH_BYTES = 128 * 1024
"""The size of the first response of a slice. Each later response may be twice as large, up to kafka.fetch.max.bytes.

A query such as `show()` ends its tasks after a few rows. Spark does not pass its LIMIT to a source in Python.
"""
SAMPLE_BYTES = 256 * 1024
SAMPLES = 32
"""The most partitions of a topic from which a plan requests samples: those with the most offsets. The records of the
other partitions are assumed to have the same mean size."""
MAX_WAIT_MS = 500
EMPTY_ANSWERS = 3
"""After this many consecutive responses without a batch, no record of the slice is left. This is only certain if the
broker's log still reaches to the end of the slice."""
IDLE_ANSWERS = 20
"""After this many consecutive responses without a batch, the broker is assumed to have lost records. Its log then ends
below the end of the slice."""


Interval = tuple[int, int, int]
"""An aborted transaction: producer id, first offset, offset of the marker."""

UNCOMMITTED = ReadOptions(is_read_committed=False)


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of the transactions in a slice that is read with read_uncommitted.

    Below the last stable offset, `is_in_responses` is True, because the fetch responses name the aborted transactions.
    Above it, the plan names them. `aborted` then has the aborted transactions, and `open` maps the producer id of each
    open transaction to its first offset.
    """

    is_in_responses: bool
    aborted: tuple[tuple[int, int, int], ...] = ()
    open: dict[int, int] = field(default_factory=dict)

    def of(self, each: Slice) -> Outcomes:
        """Return the outcomes for `each`, which is a part of the slice."""
        return replace(self, aborted=tuple(row for row in self.aborted
                                           if row[1] < each.end_offset and row[2] >= each.start_offset))


@dataclass(frozen=True)
class BrokerTask:
    """A task that fetches offsets of one partition."""

    kafka: tuple[tuple[str, str], ...] = field(repr=False)  # may hold passwords
    each: Slice
    outcomes: Outcomes | None = None
    """The outcomes of the transactions. None unless the query reads with read_uncommitted and wants the column
    `outcome`."""
    size_bytes: int = 0
    """The estimated size of these offsets in the log."""

    @property
    def name(self) -> str:
        return f'{self.each.topic}-{self.each.partition}-{self.each.start_offset:020d}'

    def read(self, fields: list[Field], options: ReadOptions) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raise DataLossError if records are lost, KafkaError if the broker returns an error, and
        ClientError if the network fails."""
        return self.read_all([self], fields, options)

    @staticmethod
    def read_all(tasks: Sequence[BrokerTask], fields: list[Field], options: ReadOptions) -> Iterator[pa.RecordBatch]:
        """Yield the rows of tasks, one after the other, over the same connections. Raise what `read` raises.

        Each new cluster requests the metadata of the topic, so the cost for a cluster of its own would grow with the
        square of the number of partitions.
        """
        cluster = Cluster(ClientConfig.from_settings(dict(tasks[0].kafka)))
        try:
            for each in tasks:
                yield from each._rows(cluster, fields, options)
        finally:
            cluster.close()

    def _rows(self, cluster: Cluster, fields: list[Field], options: ReadOptions) -> Iterator[pa.RecordBatch]:
        assembler = Assembler(fields, self.each.topic, self.each.partition, options.timestamp_overflow)
        decoder = ColumnDecoder(assembler.columns, check_crcs=options.check_crcs, batch_rows=options.batch_rows,
                                batch_bytes=options.batch_bytes)
        size = int(dict(self.kafka).get('fetch.max.bytes', FETCH_BYTES))
        fetches = Fetches(cluster, self.each, options, self.outcomes, size)
        for records, rule in fetches.answers():
            position = 0
            while True:
                try:
                    position = decoder.feed(records, rule, position=position, start_offset=self.each.start_offset,
                                            end_offset=self.each.end_offset)
                except CorruptBatchError as error:
                    position = self._skip(records, decoder.position, str(error), options)
                    continue
                if not decoder.is_full:
                    break
                yield assembler.batch(*decoder.take())
            if fetches.is_growing:
                yield from _rest(assembler, decoder)
        yield from _rest(assembler, decoder)
        if options.is_read_committed:
            options.skipped.aborted[self.each.topic, self.each.partition] += len(fetches.aborted)

    def _skip(self, records: memoryview, position: int, what: str, options: ReadOptions) -> int:
        """Return the position after a damaged batch. Raise DataLossError if the options do not allow the task to skip
        it."""
        header = read_header(records, position)
        low, high = (min(max(offset, self.each.start_offset), self.each.end_offset)
                     for offset in (header.base_offset, header.last_offset + 1))
        _report(self.each, low, high, f'{what}; lost are records among the {high - low} offsets {low} to {high - 1}, '
                f'{header.size_bytes} bytes. The broker sent them so: check its files with kbroker-check', options)
        return position + header.size_bytes


@dataclass(frozen=True)
class Piece:
    """A part of a partition, for a query of a table. It has the batches that begin between its offsets. The first piece
    also has the batch that contains its first offset but begins below it."""

    each: Slice
    is_first: bool
    is_stable: bool
    """True if the piece is below the last stable offset."""
    size_bytes: int
    """The size in bytes, estimated from a sample."""

    def holds(self, header: BatchHeader) -> bool:
        return header.base_offset < self.each.end_offset and (
            self.is_first or header.base_offset >= self.each.start_offset)


class Fetches:
    """The fetch responses of one slice. Before a response is decoded, the next response is requested."""

    def __init__(self, cluster: Cluster, each: Slice, options: ReadOptions, outcomes: Outcomes | None = None,
                 size_bytes: int = FETCH_BYTES):
        self._cluster = cluster
        self._each = each
        self._options = options
        self._outcomes = outcomes
        self._most_bytes = size_bytes
        self._size_bytes = min(FIRST_FETCH_BYTES, size_bytes)
        is_committed = options.is_read_committed or (outcomes is not None and outcomes.is_in_responses)
        self._level = IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        self.aborted: list[Interval] = []
        """The aborted transactions whose markers have been read. Only responses to read_committed requests name
        them."""
        self.begun: dict[int, set[int]] = {}
        """Maps a producer id to the first offsets of aborted transactions whose markers come after the last
        response."""

    @property
    def is_growing(self) -> bool:
        """Return whether the next response may be larger than the one before."""
        return self._size_bytes < self._most_bytes

    def answers(self) -> Iterator[tuple[memoryview, BatchFilter]]:
        """Yield (records, filter) for each response until the end of the slice. The filter removes aborted records.

        The records are valid until the next response is requested.
        """
        position, idle = self._each.start_offset, 0
        connection: Connection | None = None
        while position < self._each.end_offset:
            try:
                row, connection = self._receive(connection, position)
            except KafkaError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                position, connection = self._behind_loss(position, error), None
                continue
            records = memoryview(row.records or b'')
            reached = self._note_markers(row, records, position)
            idle = 0 if reached > position else idle + 1
            if self._is_over(row, position, idle):
                return
            self._size_bytes = min(2 * self._size_bytes, self._most_bytes)
            if reached < self._each.end_offset:
                self._send(connection, reached)
            else:
                connection = None
            position = reached
            yield records, self._rule(row)

    def _note_markers(self, row: Any, records: memoryview, position: int) -> int:
        """Return the offset after the last whole batch. Store each aborted transaction whose marker is in the records.

        A response names the first offset of each aborted transaction in it. The marker has the offset of its end. If
        the response does not name the transaction of a marker, that transaction may have no records in this partition.
        """
        begun = self.begun = {}
        for each in row.aborted_transactions or ():
            begun.setdefault(each.producer_id, set()).add(each.first_offset)
        for header, batch in iter_batches(records):
            if header.is_control and header.producer_id in begun and (
                    max(position, self._each.start_offset) <= header.base_offset < self._each.end_offset):
                firsts = begun[header.producer_id]
                first = max((offset for offset in firsts if offset < header.base_offset), default=None)
                if first is not None and is_abort(batch):
                    self.aborted.append((header.producer_id, first, header.base_offset))
                    firsts.remove(first)
            position = max(position, header.last_offset + 1)
        return position

    def sample(self) -> tuple[int, int]:
        """Return (bytes, number of offsets) of the first batches of the slice. Raise DataLossError, KafkaError or
        ClientError if they cannot be read.

        If the slice begins inside a batch, the offsets before the slice count, as the bytes of the whole batch do.
        """
        self._size_bytes = self._most_bytes
        row, _ = self._receive(None, self._each.start_offset)
        size_bytes, first = 0, self._each.start_offset
        reached = first
        for header, _ in iter_batches(memoryview(row.records or b'')):
            first = min(first, header.base_offset)
            size_bytes, reached = size_bytes + header.size_bytes, header.last_offset + 1
        return size_bytes, reached - first

    def _rule(self, row: Any) -> BatchFilter:
        if self._level == IsolationLevel.READ_COMMITTED:
            return AbortFilter([(aborted.producer_id, aborted.first_offset)
                                for aborted in row.aborted_transactions or ()],
                               is_committed_only=self._options.is_read_committed)
        if self._outcomes is not None:
            return TransactionRanges(self._outcomes.aborted, self._outcomes.open, is_committed_only=False)
        return BatchFilter()

    def _is_over(self, row: Any, position: int, idle: int) -> bool:
        """Return True if no record is left before the end of the slice, for example after compaction. Raise
        DataLossError if the log of the broker now ends below the end of the slice."""
        known = row.last_stable_offset if self._level == IsolationLevel.READ_COMMITTED else row.high_watermark
        if idle == IDLE_ANSWERS:
            raise DataLossError(f'{self._name}: the broker sends no whole batch from offset {position} on. Its log now '
                                f'ends at {known}, below {self._each.end_offset}, the end that it reported before')
        return idle >= EMPTY_ANSWERS and known >= self._each.end_offset

    @property
    def _name(self) -> str:
        return f'{self._each.topic}-{self._each.partition}'

    def _receive(self, connection: Connection | None, position: int) -> tuple[Any, Connection]:
        """Return the response to the request in flight. If no request is in flight, send a new one. Transient errors
        are retried."""
        waiting = [connection]

        def ask() -> tuple[Any, Connection]:
            found = waiting.pop() if waiting else None
            if found is None or not found.is_open or not found.in_flight:
                found = self._cluster.leader(self._each.topic, self._each.partition)
                self._send(found, position)
            return self._row(found.receive(reuses_buffer=True), found), found

        return self._cluster.retrying(ask, f'fetching {self._name}')

    def _behind_loss(self, position: int, error: KafkaError) -> int:
        """Return the offset at which reading continues if the broker no longer has `position`. Raise DataLossError if
        the options do not allow lost records, or if the log ends below `position`."""
        at = (self._each.topic, self._each.partition)
        start = Admin(self._cluster).list_offsets({at: EARLIEST})[at].offset
        if start <= position:
            raise DataLossError(f'{self._name}: the log ends below offset {position}, and its end was reported as '
                                f'{self._each.end_offset}; was the topic recreated?') from error
        lost = min(start, self._each.end_offset)
        _report(self._each, position, lost, f'the log begins at offset {start} now; lost are records among the '
                f'{lost - position} offsets {position} to {lost - 1}', self._options)
        return start

    def _send(self, connection: Connection, position: int) -> None:
        connection.send(FetchRequest(
            max_wait_ms=MAX_WAIT_MS, min_bytes=1, max_bytes=self._size_bytes, isolation_level=self._level,
            topics=[FetchRequest.FetchTopic(topic=self._each.topic, partitions=[FetchRequest.FetchPartition(
                partition=self._each.partition, fetch_offset=position, partition_max_bytes=self._size_bytes)])]),
            max_version=FETCH_VERSION)

    def _row(self, answer: Any, connection: Connection) -> Any:
        what = f'fetching {self._name} from {connection.address}'
        check(answer.error_code, what)
        rows = [row for topic in answer.responses for row in topic.partitions]
        if len(rows) != 1:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f'{what}: found {len(rows)} answers, expected 1')
        check(rows[0].error_code, what)
        return rows[0]


def _rest(assembler: Assembler, decoder: ColumnDecoder) -> Iterator[pa.RecordBatch]:
    """Yield the rows that were decoded since the last batch, if there are any."""
    rows, columns = decoder.take()
    if rows:
        yield assembler.batch(rows, columns)


def _span(each: Slice) -> int:
    return each.end_offset - each.start_offset


def cut(each: Slice, pieces: int) -> list[Slice]:
    """Cut a slice into `pieces` parts with almost equal numbers of offsets."""
    pieces = max(1, pieces)
    cuts = [each.start_offset + _span(each) * number // pieces for number in range(pieces + 1)]
    return [replace(each, start_offset=low, end_offset=high) for low, high in pairwise(cuts) if high > low]


def is_abort(batch: memoryview) -> bool:
    try:
        return read_end_txn_marker(batch).control_type == ControlType.ABORT
    except KafkaError:
        return False


class BrokerPlace:
    """The partitions of a cluster and their offsets, which its brokers report."""

    def __init__(self, options: Options):
        self._options = options
        self._kafka = tuple(sorted(options.kafka.items()))
        self._cluster = Cluster(ClientConfig.from_settings(options.kafka))
        self._admin = Admin(self._cluster)
        self.refresh()

    def refresh(self) -> None:
        """Request the partitions and their offsets again. Raise KafkaError or ClientError if a broker fails."""
        topics = self._cluster.topics()
        self._partitions = sorted((topic.name, partition) for topic in topics.values()
                                  for partition in topic.partitions)
        self._topic_names = {topic.topic_id: topic.name for topic in topics.values()}
        self._known: dict[TopicPartition, Bounds] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}

    def partitions(self) -> list[TopicPartition]:
        return self._partitions

    def bounds(self, topic: str, partition: int) -> Bounds:
        if (topic, partition) not in self._known:
            wanted = [each for each in self._partitions if self._options.wants(*each) and each not in self._known]
            if (topic, partition) not in wanted:  # tables also read coordinators' topics and the topics of groups
                wanted = [each for each in self._partitions if each[0] == topic] or [(topic, partition)]
            level = (IsolationLevel.READ_COMMITTED if self._options.is_read_committed
                     else IsolationLevel.READ_UNCOMMITTED)
            starts = self._admin.list_offsets(dict.fromkeys(wanted, EARLIEST))
            ends = self._admin.list_offsets(dict.fromkeys(wanted, LATEST), level)
            self._known |= {each: Bounds(starts[each].offset, ends[each].offset) for each in wanted}
        return self._known[topic, partition]

    def high_watermark(self, topic: str, partition: int) -> int:
        if (topic, partition) not in self._high_watermarks:
            wanted = {each: LATEST for each in self._partitions if each[0] == topic} or {(topic, partition): LATEST}
            self._high_watermarks |= {at: found.offset for at, found in self._admin.list_offsets(wanted).items()}
        return self._high_watermarks[topic, partition]

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        found = self._admin.list_offsets({(topic, partition): timestamp_ms})[topic, partition].offset
        return None if found < 0 else found

    def size_bytes(self, each: Slice) -> int:
        """Return the size of a slice in bytes, estimated from a sample. Kafka's protocol does not report the size of a
        range of offsets."""
        if _span(each) <= 0:
            return 0
        found, offsets = Fetches(self._cluster, each, UNCOMMITTED, size_bytes=SAMPLE_BYTES).sample()
        return found * _span(each) // max(1, offsets)

    def tasks(self, slices: Sequence[Slice], options: Options, *, with_outcomes: bool = False) -> list[BrokerTask]:
        parts: list[tuple[Slice, Outcomes | None]] = [(each, None) for each in slices]
        if with_outcomes and not options.is_read_committed:
            parts = [part for each in slices for part in self._with_outcomes(each)]
        sizes = self._sizes([each for each, _ in parts])
        limit, most = split_bytes(sum(sizes), options), options['maxRecordsPerPartition']
        tasks = []
        for (each, outcomes), size_bytes in zip(parts, sizes, strict=True):
            pieces = max(1, -(-size_bytes // limit), -(-_span(each) // (most or _span(each))))
            if outcomes is not None:
                pieces = max(pieces, len(outcomes.aborted) // ABORTED_OF_A_TASK + 1)
            tasks += [BrokerTask(self._kafka, part, outcomes and outcomes.of(part), size_bytes // pieces)
                      for part in cut(each, pieces)]
        return tasks

    def _sizes(self, slices: Sequence[Slice]) -> list[int]:
        """Return the estimated size of each slice in bytes."""
        found: dict[Slice, int] = {}
        for topic in dict.fromkeys(each.topic for each in slices):
            of_topic = sorted((each for each in slices if each.topic == topic), key=_span, reverse=True)
            sampled = {each: self.size_bytes(each) for each in of_topic[:SAMPLES]}
            size_bytes, offsets = sum(sampled.values()), sum(map(_span, sampled))
            found |= {each: size_bytes * _span(each) // max(1, offsets) for each in of_topic} | sampled
        return [found[each] for each in slices]

    def _with_outcomes(self, each: Slice) -> Iterator[tuple[Slice, Outcomes]]:
        """Cut a slice at the last stable offset. Yield each part with its outcomes. For the part above the last stable
        offset, the outcomes are read from batch headers."""
        at = (each.topic, each.partition)
        stable = self._admin.list_offsets({at: LATEST}, IsolationLevel.READ_COMMITTED)[at].offset
        if each.start_offset < stable:
            yield replace(each, end_offset=min(stable, each.end_offset)), Outcomes(is_in_responses=True)
        if stable < each.end_offset:
            table, aborted = ProducerStateTable(), []
            for _, _, _, batch in self.batches(*at, Piece(Slice(*at, stable, each.end_offset), True, False, 0)):
                row = table.replay_batch(batch)
                if row is not None:
                    aborted.append((row.producer_id, row.first_offset, row.last_offset))
            is_open = {producer_id: first for first, producer_id in table.unstable.ongoing.items()}
            yield replace(each, start_offset=max(stable, each.start_offset)), Outcomes(False, tuple(aborted), is_open)

    def pieces(self, topic: str, partition: int) -> list[Piece]:
        at = (topic, partition)
        start, end = (self._admin.list_offsets({at: where})[at].offset for where in (EARLIEST, LATEST))
        stable = self._admin.list_offsets({at: LATEST}, IsolationLevel.READ_COMMITTED)[at].offset
        stable = min(max(start, stable), end)
        below, above = Slice(topic, partition, start, stable), Slice(topic, partition, stable, end)
        size_bytes = self.size_bytes(below)
        parts = cut(below, -(-size_bytes // self._options['splitBytes']))
        found = [Piece(part, part.start_offset == start, True, size_bytes // len(parts)) for part in parts]
        return found if stable == end else [*found, Piece(above, stable == start, False, self.size_bytes(above))]

    def batches(self, topic: str, partition: int, piece: Piece | None) -> Iterator[LocatedBatch]:
        for each in [piece] if piece is not None else self.pieces(topic, partition):
            for records, _ in Fetches(self._cluster, each.each, UNCOMMITTED).answers():
                for header, batch in iter_batches(records):
                    if each.holds(header):
                        yield None, None, header, batch

    def topic_name(self, topic_id: bytes) -> str | None:
        return self._topic_names.get(topic_id)

    def producers(self, topic: str, partition: int) -> list[ProducerInfo]:
        return self._admin.describe_producers([(topic, partition)])[topic, partition]

    def aborted(self, topic: str, partition: int, piece: Piece | None) -> list[Interval]:
        """Return the aborted transactions whose markers are in the piece.

        They are read from the batches. A fetch response has only their first offsets, but not the offsets of their
        markers.
        """
        found = []
        for each in [piece] if piece is not None else self.pieces(topic, partition):
            if each.is_stable:
                fetches = Fetches(self._cluster, each.each, ReadOptions())
                for _ in fetches.answers():
                    pass
                found += fetches.aborted
            else:
                found += self._aborted_above(each)
        return found

    def _aborted_above(self, piece: Piece) -> Iterator[Interval]:
        """Yield the aborted transactions whose markers are above the last stable offset. No fetch response names these
        transactions."""
        begun: dict[int, set[int]] = {}
        if not piece.is_first:
            stable = piece.each.start_offset
            fetches = Fetches(self._cluster, replace(piece.each, start_offset=stable - 1, end_offset=stable),
                              ReadOptions())
            for _ in fetches.answers():
                pass
            begun = fetches.begun
        table = ProducerStateTable()
        for _, _, header, batch in self.batches(piece.each.topic, piece.each.partition, piece):
            row = table.replay_batch(batch)
            if header.is_control:
                firsts = begun.pop(header.producer_id, set())
                if row is not None:
                    firsts.add(row.first_offset)
                if firsts and is_abort(batch):
                    yield header.producer_id, min(firsts), header.base_offset


def _report(each: Slice, first_offset: int, end_offset: int, what: str, options: ReadOptions) -> None:
    text = f'{each.topic}-{each.partition}: {what}'
    if options.fail_on_data_loss:
        raise DataLossError(f'{text}; with failOnDataLoss=false they are skipped')
    options.skipped.lose(each.topic, each.partition, first_offset, end_offset, text)
    logger.warning('%s: skipped', text)

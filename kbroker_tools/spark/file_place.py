"""The place for log directories, which are read without a broker."""
from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from kbroker.base.errors import CorruptLogError
from kbroker.base.topic_partition import TopicPartition
from kbroker.log.producer_state import ActiveProducer
from kbroker_tools.spark.file_ranges import DataLossError, FileRange, ReadOptions, cut, pack, read_range
from kbroker_tools.spark.options import OptionError, Options
from kbroker_tools.spark.partition_files import (
    PartitionFiles,
    PartitionState,
    SegmentFiles,
    Tail,
    first_position_by_time,
    parse_directory_name,
    read_batches,
)
from kbroker_tools.spark.pins import SegmentChanged, pin
from kbroker_tools.spark.planning import Bounds, LocatedBatch, Slice, split_bytes
from kbroker_tools.spark.schema import Assembler, Field
from kbroker_tools.spark.storage import Storage

if TYPE_CHECKING:
    import pyarrow as pa

LOG_START = 'log-start-offset-checkpoint'
HIGH_WATERMARK = 'replication-offset-checkpoint'
RECOVERY_POINT = 'recovery-point-offset-checkpoint'
CLEAN_SHUTDOWN = '.kafka_cleanshutdown'
METADATA_DIRECTORY = '__cluster_metadata-0'
TRIES = 5


@dataclass(frozen=True)
class FileTask:
    """A task that reads ranges of files."""

    ranges: tuple[FileRange, ...]

    @property
    def name(self) -> str:
        return self.ranges[0].name

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.ranges)

    def read(self, fields: list[Field], options: ReadOptions) -> Iterator[pa.RecordBatch]:
        for each in self.ranges:
            assembler = Assembler(fields, each.topic, each.partition, options.timestamp_overflow)
            yield from read_range(each, assembler, options)
            if options.is_read_committed:
                options.skipped.aborted[each.topic, each.partition] += len(each.aborted_inside)

    @staticmethod
    def read_all(tasks: Sequence[FileTask], fields: list[Field], options: ReadOptions) -> Iterator[pa.RecordBatch]:
        """Yield the rows of tasks, one after the other."""
        for each in tasks:
            yield from each.read(fields, options)


class FilePlace:
    """The partitions in one or more directories. Each directory is a log directory or a partition directory."""

    def __init__(self, options: Options):
        self._options = options
        self._tails: dict[TopicPartition, Tail] = {}
        self.refresh()

    def refresh(self) -> None:
        """Find new partitions, and the new ends of known partitions. Raise OptionError if a location is not a
        directory, if there is no partition, or if a partition is found twice. Raise OSError if a directory cannot be
        read."""
        self._directories: dict[TopicPartition, Storage] = {}
        self._checkpoints: dict[Storage, dict[str, dict[TopicPartition, int]]] = {}
        self._unclean: set[Storage] = set()
        self._states: dict[TopicPartition, PartitionState] = {}
        for storage in self._locations():
            self._add(storage)
        if not self._directories:
            raise OptionError('path', f'found no partition in {", ".join(map(str, self._locations()))}, expected a log '
                                      'directory with partitions such as orders-0, or one such partition')

    def _locations(self) -> list[Storage]:
        return [Storage.at(location) for location in self._options['path']]

    def _add(self, storage: Storage) -> None:
        try:
            names = storage.list()
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise OptionError('path', f'{storage} is not a readable directory: {error}') from None
        itself = parse_directory_name(storage.name)
        if itself is not None and any(name.endswith('.log') for name in names):
            self._place(itself, storage)
            self._read_log_directory(storage.parent)
            return
        self._read_log_directory(storage, names)
        for name in sorted(names):
            found = parse_directory_name(name)
            if found is not None and names[name] is None and name != METADATA_DIRECTORY:
                self._place(found, storage.child(name))

    def _read_log_directory(self, storage: Storage, names: Mapping[str, object] | None = None) -> None:
        """Read the checkpoints of the broker, and whether it has stopped cleanly. The directory around a copied
        partition has no such files."""
        if storage in self._checkpoints:
            return
        try:
            names = storage.list() if names is None else names
        except OSError:  # the partition may be readable, but not the directory around it
            names = {}
        self._checkpoints[storage] = {name: _read_checkpoint(storage, name)
                                      for name in (LOG_START, HIGH_WATERMARK, RECOVERY_POINT) if name in names}
        if CLEAN_SHUTDOWN not in names:
            self._unclean.add(storage)

    def _place(self, partition: TopicPartition, storage: Storage) -> None:
        if partition in self._directories:
            raise OptionError('path', f'found {partition[0]}-{partition[1]} twice: in '
                                      f'{self._directories[partition]} and in {storage}')
        self._directories[partition] = storage

    def partitions(self) -> list[TopicPartition]:
        return sorted(self._directories)

    def state(self, topic: str, partition: int) -> PartitionState:
        """Return the state of a partition. Raise DataLossError if the partition was deleted after the listing,
        CorruptLogError if its files are damaged, and OSError if they cannot be read."""
        found = self._states.get((topic, partition))
        if found is None:
            found = self._states[topic, partition] = self._inspect(topic, partition)
        return found

    def _inspect_all(self) -> None:
        """Inspect all wanted partitions in parallel. The query waits for this, and the end of a partition to walk may
        be long."""
        wanted = [each for each in self._directories if each not in self._states and self._options.wants(*each)]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            self._states.update(zip(wanted, threads.map(lambda each: self._inspect(*each), wanted), strict=True))

    def _inspect(self, topic: str, partition: int) -> PartitionState:
        storage = self._directories[topic, partition]
        new = Tail(verify_transaction_index=self._options['verifyTxnIndex'])
        tail = self._tails.setdefault((topic, partition), new)
        error: Exception | None = None
        for _ in range(TRIES):  # a live broker adds and deletes segments
            try:
                files = PartitionFiles.list(storage, topic, partition)
                return tail.advance(files, self._checkpoint(LOG_START, topic, partition) or 0,
                                    self._recovery_point(topic, partition))
            except FileNotFoundError as gone:
                error = gone
        raise DataLossError(f'{storage}: files vanished {TRIES} times while the query was planned ({error}); '
                            'is the topic being deleted?')

    def _checkpoint(self, name: str, topic: str, partition: int) -> int | None:
        """Return the offset of the partition in a checkpoint. Return None if the file does not exist, and 0 if it does
        not list the partition."""
        rows = self._checkpoints[self._directories[topic, partition].parent].get(name)
        return None if rows is None else rows.get((topic, partition), 0)

    def _recovery_point(self, topic: str, partition: int) -> int | None:
        """Return the offset from which indexes are not trusted. Return None if the broker has stopped cleanly, or if
        the partition is a copy."""
        if self._directories[topic, partition].parent not in self._unclean:
            return None
        return self._checkpoint(RECOVERY_POINT, topic, partition)

    def bounds(self, topic: str, partition: int) -> Bounds:
        if (topic, partition) not in self._states:
            self._inspect_all()
        state = self.state(topic, partition)
        end = state.last_stable_offset if self._options.is_read_committed else state.log_end_offset
        return Bounds(state.log_start_offset, max(self._limited(topic, partition, end), state.log_start_offset))

    def high_watermark(self, topic: str, partition: int) -> int:
        """Return the end of the log. If `upTo` sets a lower limit, return the limit."""
        return self._limited(topic, partition, self.state(topic, partition).log_end_offset)

    def _limited(self, topic: str, partition: int, end_offset: int) -> int:
        """Return `end_offset`, or the limit that `upTo` sets if it is lower. Raise OptionError if the file with the
        limit does not exist."""
        name = {'lso': None, 'hw': HIGH_WATERMARK, 'recoveryPoint': RECOVERY_POINT}[self._options['upTo']]
        if name is None:
            return end_offset
        limit = self._checkpoint(name, topic, partition)
        if limit is None:
            raise OptionError('upTo', f'found {self._options["upTo"]}, and no file {name} in '
                                      f'{self._directories[topic, partition].parent}')
        return min(end_offset, limit)

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        files = self.state(topic, partition).files
        for segment, following in pairwise([*files.segments, None]):
            assert segment is not None
            position = first_position_by_time(files, segment, timestamp_ms, is_sealed=following is not None)
            if position is None:
                continue
            with files.storage.open(segment.name('log')) as file:
                for _, header, batch in read_batches(file, position, segment.size_bytes):
                    if header.max_timestamp_ms >= timestamp_ms and not header.is_control:
                        found = _first_at_or_after(batch, timestamp_ms)
                        if found is not None:
                            return found
        return None

    def size_bytes(self, each: Slice) -> int:
        files = self.state(each.topic, each.partition).files
        return sum(_share(segment, following, each) for segment, following in pairwise([*files.segments, None])
                   if segment is not None)

    def tasks(self, slices: Sequence[Slice], options: Options, *, with_outcomes: bool = False) -> list[FileTask]:
        for _ in range(TRIES):
            try:
                ranges = self._ranges(slices, options)
                if options['pin'] == 'hardlink':
                    ranges = pin(ranges)
                break
            except (FileNotFoundError, SegmentChanged):  # a live broker has changed the files; the slices stay the same
                self.refresh()
        else:
            raise DataLossError(f'files vanished {TRIES} times while the query was planned; is a topic being deleted?')
        if options['maxRecordsPerPartition']:
            return [FileTask((found,)) for found in ranges]
        return [FileTask(tuple(packed)) for packed in pack(ranges, self._size_of_task(slices, options))]

    def _ranges(self, slices: Sequence[Slice], options: Options) -> list[FileRange]:
        size = self._size_of_task(slices, options)
        return [found for each in slices
                for found in cut(self.state(each.topic, each.partition), each.start_offset, each.end_offset,
                                 split_bytes=size, max_records=options['maxRecordsPerPartition'])]

    def _size_of_task(self, slices: Sequence[Slice], options: Options) -> int:
        return split_bytes(sum(map(self.size_bytes, slices)), options)

    def pieces(self, topic: str, partition: int) -> list[FileRange]:
        state = self.state(topic, partition)
        return cut(state, state.log_start_offset, state.log_end_offset, split_bytes=self._options['splitBytes'])

    def batches(self, topic: str, partition: int, piece: FileRange | None) -> Iterator[LocatedBatch]:
        if piece is not None:
            parts = [(piece.segment, piece.start_position, piece.end_position)]
        else:
            parts = [(segment, 0, segment.size_bytes) for segment in self.state(topic, partition).files.segments]
        storage = self._directories[topic, partition]
        for segment, start, end in parts:
            with storage.open(segment.name('log')) as file:
                for position, header, batch in read_batches(file, start, end):
                    yield segment.base_offset, position, header, batch

    def topic_name(self, topic_id: bytes) -> str | None:
        return self._topic_names.get(topic_id)

    @cached_property
    def _topic_names(self) -> dict[bytes, str]:
        from kbroker.metadata.directory import parse_uuid
        from kbroker_tools.spark.identity import topic_id_in
        first_of_topic = {topic: storage for (topic, _), storage in sorted(self._directories.items(), reverse=True)}
        return {parse_uuid(text): topic for topic, storage in first_of_topic.items()
                for text in topic_id_in(topic, storage).values()}

    def producers(self, topic: str, partition: int) -> list[ActiveProducer]:
        return self.state(topic, partition).producers

    def aborted(self, topic: str, partition: int, piece: None) -> list[tuple[int, int, int]]:
        """Return the aborted transactions, which are read from the transaction indexes. This is fast, so a partition is
        never cut into pieces for it."""
        state = self.state(topic, partition)
        return state.aborted(state.log_start_offset, state.log_end_offset)


def _share(segment: SegmentFiles, following: SegmentFiles | None, each: Slice) -> int:
    """Return the approximate number of bytes that the slice has in a segment. The estimate assumes that all records
    have the same size."""
    low, high = segment.base_offset, following.base_offset if following else max(each.end_offset, segment.base_offset)
    inside = min(high, each.end_offset) - max(low, each.start_offset)
    return segment.size_bytes * inside // (high - low) if inside > 0 else 0


def _first_at_or_after(batch: memoryview, timestamp_ms: int) -> int | None:
    from kbroker.record.records import iter_records
    for record in iter_records(batch):
        if record.timestamp_ms >= timestamp_ms:
            return record.offset
    return None


def _read_checkpoint(storage: Storage, name: str) -> dict[TopicPartition, int]:
    """Return {partition: offset} from a checkpoint file of Kafka, version 0. The file has a line with the version, a
    line with the number of partitions, and a line `topic partition offset` for each partition.

    The file is empty from the first start of a broker until its first write.
    """
    lines = storage.read(name).decode('utf-8', 'replace').split('\n')
    if lines == ['']:
        return {}
    try:
        if lines[0] != '0':
            raise ValueError
        rows = [line.split(' ') for line in lines[2:2 + int(lines[1])]]
        return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    except (ValueError, IndexError):
        raise CorruptLogError(f'{storage.path(name)}: found {lines[:3]!r}, expected version 0, a count and lines of '
                              'topic, partition and offset') from None

"""Every invariant of a partition directory that no broker works on, stated as code.

A directory without findings is one that Kafka and this broker can open without mending anything. After an unclean
stop the files of the last segment may have a tail that the next opening mends; that tail is found here too.
"""
import enum
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from kbroker.errors import CorruptLogError, KafkaError
from kbroker.log.batch_walk import read_batches
from kbroker.log.checkpoints import LEADER_EPOCH_FILE
from kbroker.log.fs import FileSystem
from kbroker.log.index import OffsetIndex, TimeIndex
from kbroker.log.leader_epochs import LeaderEpochs
from kbroker.log.partition_metadata import FILE_NAME, read_topic_id
from kbroker.log.producer_state import ProducerEntry, ProducerStateTable
from kbroker.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from kbroker.log.swap import parse_file_name
from kbroker.log.transaction_index import AbortedTransaction, TransactionIndex
from kbroker.record.batch import BatchHeader, check_crc

FULL_INDEX_BYTES = 1 << 40
"""Above any index: a check appends nothing, so the limit does not matter."""


class Severity(enum.Enum):
    """An ERROR breaks an invariant; a WARNING is unusual and harmless."""

    ERROR = 'error'
    WARNING = 'warning'


@dataclass(frozen=True)
class Finding:
    severity: Severity
    file: str
    position: int
    """Byte, entry or line number in the file; -1 for the file as a whole."""
    message: str

    def __str__(self) -> str:
        place = f' at {self.position}' if self.position >= 0 else ''
        return f'{self.severity.value}: {self.file}{place}: {self.message}'


@dataclass
class _Batch:
    position: int
    header: BatchHeader
    max_timestamp_ms: int
    """The greatest of the segment up to and with this batch."""


@dataclass
class PartitionCheck:
    """One pass over a directory: batches first, and on the way the state that they imply at each offset."""

    fs: FileSystem
    directory: str
    findings: list[Finding] = field(default_factory=list)

    def run(self) -> list[Finding]:
        names = sorted(self.fs.listdir(self.directory))
        self._check_names(names)
        self._read_leader_epochs()
        parsed = [found for name in names if (found := parse_file_name(name)) and not found.state]
        bases = [found.offset for found in parsed if found.kind == LOG_SUFFIX]
        self.snapshots = {found.offset for found in parsed if found.kind == SNAPSHOT_SUFFIX}
        self.producers = ProducerStateTable()
        self.next_offset = bases[0] if bases else 0
        self.has_gaps = False
        self.state_is_whole = self._load_first_state(self.next_offset)
        for base_offset, next_base in zip(bases, [*bases[1:], None], strict=True):
            self._check_segment(base_offset, next_base)
        self._check_snapshot(self.next_offset)
        for offset in sorted(self.snapshots):
            self._error(file_name(offset, SNAPSHOT_SUFFIX), -1,
                        f'found a snapshot of offset {offset}, expected a batch boundary up to {self.next_offset}')
        return self.findings

    # ---- files ----

    def _check_names(self, names: list[str]) -> None:
        logs = {found.offset for name in names
                if (found := parse_file_name(name)) and (found.kind, found.state) == (LOG_SUFFIX, '')}
        for name in names:
            parsed = parse_file_name(name)
            if parsed is None:
                if name not in (FILE_NAME, LEADER_EPOCH_FILE) and not name.endswith('.cut'):
                    self._warn(name, -1, 'found a file that is no part of a partition')
            elif name != file_name(parsed.offset, parsed.kind) + parsed.state:
                self._error(name, -1, 'found an offset that is not written with 20 digits')
            elif parsed.state:
                self._warn(name, -1, f'found a {parsed.state} file: the next opening settles it')
            elif parsed.kind != SNAPSHOT_SUFFIX and parsed.offset not in logs:
                self._error(name, -1, 'found an index without its log')
        try:
            read_topic_id(self.fs, self.directory)
        except CorruptLogError as error:
            self._error(FILE_NAME, -1, str(error))

    def _read_leader_epochs(self) -> None:
        try:
            self.leader_epochs: LeaderEpochs | None = LeaderEpochs(self.fs, self.directory)
        except CorruptLogError as error:
            self.leader_epochs = None
            self._error(LEADER_EPOCH_FILE, -1, str(error))

    # ---- segments ----

    def _check_segment(self, base_offset: int, next_base: int | None) -> None:
        name = file_name(base_offset, LOG_SUFFIX)
        if base_offset < self.next_offset:
            self._error(name, -1, f'found base offset {base_offset}, expected {self.next_offset} or above')
        self._check_snapshot(base_offset)
        self.next_offset = max(self.next_offset, base_offset)
        batches: list[_Batch] = []
        aborted: list[AbortedTransaction] = []
        for position, header, batch in self._batches(name):
            self._check_batch(name, position, header, batch, next_base)
            self._check_snapshot(header.base_offset)
            row = self.producers.replay_batch(batch)
            if row is not None:
                aborted.append(row)
            greatest = max(header.max_timestamp_ms, batches[-1].max_timestamp_ms if batches else -1)
            batches.append(_Batch(position, header, greatest))
            is_whole = header.records_count == header.last_offset_delta + 1
            self.has_gaps |= header.base_offset != self.next_offset or not is_whole
            self.next_offset = header.last_offset + 1
        is_last = next_base is None
        self._check_offset_index(base_offset, batches, is_last=is_last)
        self._check_time_index(base_offset, batches, is_last=is_last)
        self._check_transaction_index(base_offset, aborted)

    def _batches(self, name: str) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        file = self.fs.open(os.path.join(self.directory, name))
        walk = read_batches(file, 0, file.size())
        try:
            for header, batch in walk:
                yield walk.position, header, batch
        except CorruptLogError as error:
            self._error(name, walk.position, f'{error}; {file.size() - walk.position} bytes follow')

    def _check_batch(self, name: str, position: int, header: BatchHeader, batch: memoryview,
                     next_base: int | None) -> None:
        try:
            check_crc(batch, header)
        except KafkaError as error:
            self._error(name, position, str(error))
        if header.base_offset < self.next_offset:
            self._error(name, position, f'found base offset {header.base_offset}, expected {self.next_offset} or above')
        if next_base is not None and header.last_offset >= next_base:
            self._error(name, position, f'found last offset {header.last_offset}, expected one below {next_base}, '
                                        'where the next segment begins')
        self._check_epoch(header)

    def _check_epoch(self, header: BatchHeader) -> None:
        """Epochs that ended below the log's start are not in the file; their batches may be in the first segment."""
        epoch = header.partition_leader_epoch
        if self.leader_epochs is None or epoch < 0:
            return
        found = self.leader_epochs.epoch_for(header.last_offset)
        if found != epoch and not (found < 0 and self.leader_epochs.rows):
            self._error(LEADER_EPOCH_FILE, -1,
                        f'found epoch {found} for offset {header.last_offset}, the batch says {epoch}')

    # ---- indexes ----

    def _check_offset_index(self, base_offset: int, batches: list[_Batch], *, is_last: bool) -> None:
        name = file_name(base_offset, OFFSET_INDEX_SUFFIX)
        path = os.path.join(self.directory, name)
        if not self.fs.exists(path):
            if batches:
                self._error(name, -1, 'found no such file')
            return
        index = OffsetIndex(self.fs, path, base_offset, FULL_INDEX_BYTES, file_bytes=self.fs.size(path))
        by_position = {batch.position: batch.header for batch in batches}
        previous = 0
        for number, (relative_offset, position) in enumerate(index):
            if relative_offset == 0:
                self._check_zeros(name, number, is_last)
                return
            header = by_position.get(position)
            if relative_offset <= previous:
                self._error(name, number, f'found relative offset {relative_offset} after {previous}')
            if header is None:
                self._error(name, number, f'found position {position}, where no batch begins')
            elif header.last_offset != base_offset + relative_offset:
                self._error(name, number, f'found offset {base_offset + relative_offset}, the batch at '
                                          f'{position} ends at {header.last_offset}')
            previous = relative_offset

    def _check_time_index(self, base_offset: int, batches: list[_Batch], *, is_last: bool) -> None:
        name = file_name(base_offset, TIME_INDEX_SUFFIX)
        path = os.path.join(self.directory, name)
        if not self.fs.exists(path):
            if batches:
                self._error(name, -1, 'found no such file')
            return
        index = TimeIndex(self.fs, path, base_offset, FULL_INDEX_BYTES, file_bytes=self.fs.size(path))
        by_last_offset = {batch.header.last_offset: batch for batch in batches}
        previous_ms = -1
        for number, (timestamp_ms, relative_offset) in enumerate(index):
            batch = by_last_offset.get(base_offset + relative_offset)
            if timestamp_ms == relative_offset == 0 and (batch is None or batch.header.max_timestamp_ms != 0):
                self._check_zeros(name, number, is_last)
                return
            if timestamp_ms <= previous_ms:
                self._error(name, number, f'found timestamp {timestamp_ms} after {previous_ms}')
            if batch is None:
                self._error(name, number, f'found offset {base_offset + relative_offset}, where no batch ends')
            elif batch.header.max_timestamp_ms != timestamp_ms or batch.max_timestamp_ms != timestamp_ms:
                self._error(name, number, f'found timestamp {timestamp_ms} for offset {batch.header.last_offset}, '
                                          f'the batch has {batch.header.max_timestamp_ms}, the segment up to it '
                                          f'{batch.max_timestamp_ms}')
            previous_ms = timestamp_ms

    def _check_zeros(self, name: str, number: int, is_last: bool) -> None:
        """Behind the entries of a segment that is appended to there are zeros; every other index is trimmed."""
        if not is_last:
            self._error(name, number, 'found zeros, expected the end of the file')

    def _check_transaction_index(self, base_offset: int, expected: list[AbortedTransaction]) -> None:
        """Compaction drops aborted data and then the rows that told of it: with gaps, the rows need not be all."""
        name = file_name(base_offset, TRANSACTION_INDEX_SUFFIX)
        path = os.path.join(self.directory, name)
        try:
            rows = TransactionIndex(self.fs, path, base_offset, exists=self.fs.exists(path)).rows
        except CorruptLogError as error:
            self._error(name, -1, str(error))
            return
        if self.state_is_whole and not self.has_gaps and rows != expected:
            self._error(name, -1, f'found {rows}, the markers say {expected}')
        markers = {row.last_offset for row in rows}
        for row in expected:
            if row.last_offset not in markers:
                self._error(name, -1, f'found no row for the transaction of producer {row.producer_id} that the marker '
                                      f'at {row.last_offset} aborts')

    # ---- snapshots ----

    def _load_first_state(self, log_start_offset: int) -> bool:
        """Whether the producer state at the start of the first segment is known: none, or in a snapshot."""
        if log_start_offset == 0:
            return True
        if log_start_offset not in self.snapshots:
            return False
        try:
            self.producers.load_snapshot(self._read_snapshot(log_start_offset), log_start_offset, 0)
        except CorruptLogError:
            return False
        return True

    def _read_snapshot(self, offset: int) -> bytes:
        return self.fs.read_file(os.path.join(self.directory, file_name(offset, SNAPSHOT_SUFFIX)))

    def _check_snapshot(self, offset: int) -> None:
        """A snapshot says what the batches below its offset say; producers that expired may be missing."""
        if offset not in self.snapshots:
            return
        self.snapshots.discard(offset)
        name = file_name(offset, SNAPSHOT_SUFFIX)
        found = ProducerStateTable()
        try:
            found.load_snapshot(self._read_snapshot(offset), offset, 0)
        except CorruptLogError as error:
            self._error(name, -1, str(error))
            return
        if not self.state_is_whole or self.has_gaps:
            return
        for producer_id, entry in found.entries.items():
            expected = self.producers.get(producer_id)
            if expected is None or _last_state(entry) != _last_state(expected):
                self._error(name, -1, f'found {_last_state(entry)} for producer {producer_id}, the log says '
                                      f'{_last_state(expected) if expected else "nothing"}')
        if found.ongoing != self.producers.ongoing:
            self._error(name, -1, f'found open transactions {found.ongoing}, the log says {self.producers.ongoing}')

    def _error(self, name: str, position: int, message: str) -> None:
        self.findings.append(Finding(Severity.ERROR, os.path.join(self.directory, name), position, message))

    def _warn(self, name: str, position: int, message: str) -> None:
        self.findings.append(Finding(Severity.WARNING, os.path.join(self.directory, name), position, message))


def _last_state(entry: ProducerEntry) -> tuple[int, int, int, int]:
    return entry.producer_epoch, entry.last_sequence, entry.last_offset, entry.transaction_first_offset


def check_partition(fs: FileSystem, directory: str) -> list[Finding]:
    """All findings in a partition directory, in the order of its files. Raises OSError."""
    return PartitionCheck(fs, directory).run()

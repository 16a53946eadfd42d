"""Checks every invariant of a partition directory that no broker has open.

If a check finds nothing, Kafka and this broker can open the directory without repairing it. After an unclean stop, the
files of the last segment may end in a tail that the next opening repairs. The check reports the tail as a warning if
the caller passes the recovery point, and as an error otherwise.
"""
import enum
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.base.errors import CorruptLogError, KafkaError
from kbroker.log.batch_walk import read_batches
from kbroker.log.checkpoints import LEADER_EPOCH_FILE
from kbroker.log.fs import FileSystem
from kbroker.log.header_walk import find_sound_batch
from kbroker.log.index_check import OffsetIndexCheck, TimeIndexCheck
from kbroker.log.leader_epochs import LeaderEpochs
from kbroker.log.partition_metadata import FILE_NAME, read_topic_id
from kbroker.log.producer_state import ProducerStateTable
from kbroker.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from kbroker.log.state_check import ProducerStateCheck
from kbroker.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX, parse_file_name
from kbroker.log.transaction_index import TransactionIndex
from kbroker.record.batch import BatchHeader, check_crc

LAST_OFFSET = (1 << 63) - 1
LARGEST_SEGMENT_BYTES = (1 << 31) - 1
LARGEST_RELATIVE_OFFSET = (1 << 31) - 1
HIGHEST_COMPRESSION = 4
MOST_FINDINGS = 20
"""The maximum number of findings for one file. A broken disk damages many places of a file."""


class Severity(enum.Enum):
    """An ERROR breaks an invariant. A WARNING is unusual, but harmless or repaired by the next start."""

    ERROR = 'error'
    WARNING = 'warning'


class Remedy(enum.Enum):
    """A way to resolve a finding. Only CUT_TORN_TAIL and KEEP_SOUND_BATCHES change a `.log` file. Only
    KEEP_SOUND_BATCHES loses records.
    """

    REBUILD_INDEXES = 'build the indexes of the segment again'
    WRITE_SNAPSHOT = 'write the producer snapshot again'
    REMOVE = 'remove the file'
    CUT_TORN_TAIL = 'cut the torn tail'
    KEEP_SOUND_BATCHES = 'keep the sound batches'
    """The next start keeps the sound batches, if an operator has accepted that all other records are lost."""


@dataclass(frozen=True)
class Finding:
    severity: Severity
    file: str
    position: int
    """The position of a byte, or the number of an entry or line in the file. It is -1 if the finding is about the whole
    file.
    """
    message: str
    remedy: Remedy | None = None
    do: str | None = None
    """The advice to the operator; None if the remedy and the severity imply the advice. `{accept}` is replaced by the
    command that accepts the finding.
    """

    @classmethod
    def of(cls, severity: Severity, file: str, position: int, message: str, remedy: Remedy | None = None,
           do: str | None = None) -> 'Finding':
        """Return a finding about `file`. If `file` is a directory and the message begins with the path of a file in it,
        return a finding about that file.
        """
        path, colon, rest = message.partition(': ')
        if colon and (path == file or path.startswith(os.path.join(file, ''))):
            file, message = path, rest
        return cls(severity, file, position, message, remedy, do)

    def __str__(self) -> str:
        place = f' at {self.position}' if self.position >= 0 else ''
        return f'{self.severity.value}: {self.file}{place}: {self.message}'


class OpenTransaction(NamedTuple):
    """A transaction that has no marker when the log ends."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp_ms: int


@dataclass(frozen=True)
class PartitionReport:
    """The findings of a check, and the facts with which other files of the log directory must agree."""

    findings: list[Finding]
    start_offset: int
    """The base offset of the first segment."""
    end_offset: int
    open_transactions: list[OpenTransaction]
    has_state: bool
    """True if all batches were read, so that `open_transactions` is complete."""


@dataclass
class PartitionCheck:
    """One pass over a partition directory. It reads the batches, and tracks the state that they imply at each offset.
    """

    fs: FileSystem
    directory: str
    recovered_from: int | None = None
    """The recovery point after an unclean stop, otherwise None. The next opening rebuilds everything above the recovery
    point.
    """
    is_metadata: bool = False
    """True for `__cluster_metadata-0`, where indexes may be missing, and other kinds of files may exist."""
    log_start_offset: int = 0
    """The first readable offset. It matters only if it is above the base offset of the first segment."""
    acknowledged_offset: int = 0
    """After an unclean stop, an offset from the checkpoints: everything below it was acknowledged."""
    findings: list[Finding] = field(default_factory=list)

    def run(self) -> PartitionReport:
        names = sorted(self.fs.listdir(self.directory))
        self.counts: Counter[str] = Counter()
        self.is_recovered = False
        """True while `run` checks a segment that the next opening recovers."""
        self._check_names(names)
        self._read_leader_epochs()
        parsed = [found for name in names if (found := parse_file_name(name)) and not found.state
                  and found.offset <= LAST_OFFSET and name == file_name(found.offset, found.kind)]
        bases = [found.offset for found in parsed if found.kind == LOG_SUFFIX]
        self.swapped = {found.offset for name in names
                        if (found := parse_file_name(name)) and found.state == SWAP_SUFFIX}
        """The segments that an interrupted compaction was swapping in. The next opening finishes the swap."""
        self.snapshots = sorted(found.offset for found in parsed if found.kind == SNAPSHOT_SUFFIX)
        """The snapshots whose offsets are above all batches read so far."""
        self.had_snapshots = bool(self.snapshots)
        self.next_offset = bases[0] if bases else 0
        self.latest_epoch = -1
        self.has_gaps = False
        self.is_damaged = False
        self.state, self.state_is_whole = self._first_state(self.next_offset)
        for base_offset, next_base in zip(bases, [*bases[1:], None], strict=False):
            self._check_segment(base_offset, next_base)
        self._check_last_snapshots(bases)
        return PartitionReport(self.findings, bases[0] if bases else 0, self.next_offset, [
            OpenTransaction(entry.producer_id, entry.producer_epoch, entry.transaction_first_offset,
                            entry.last_timestamp_ms)
            for entry in self.state.all.entries.values() if entry.transaction_first_offset >= 0], not self.is_damaged)

    # ---- files ----

    def _check_names(self, names: list[str]) -> None:
        logs = {found.offset for name in names
                if (found := parse_file_name(name)) and (found.kind, found.state) == (LOG_SUFFIX, '')}
        unfinished: dict[str, list[str]] = {}
        for name in names:
            parsed = parse_file_name(name)
            if parsed is None:
                if name not in (FILE_NAME, LEADER_EPOCH_FILE) and not name.endswith('.cut') and not self.is_metadata:
                    self._warn(name, -1, 'found a file that does not belong to a partition')
            elif name != file_name(parsed.offset, parsed.kind) + parsed.state:
                self._error(name, -1, 'found an offset that is not written with 20 digits')
            elif parsed.offset > LAST_OFFSET:
                self._error(name, -1, f'found an offset above {LAST_OFFSET}, the highest possible')
            elif parsed.state:
                unfinished.setdefault(parsed.state, []).append(name)
            elif parsed.kind != SNAPSHOT_SUFFIX and parsed.offset not in logs:
                self._warn(name, -1, 'found an index without its log: the next opening removes it', Remedy.REMOVE)
        for state, found_names in unfinished.items():
            self._warn(found_names[0], -1, f'found {len(found_names)} {state} file{"s" * (len(found_names) > 1)}: the '
                                           'next opening completes or removes them')
        self._check_topic_id()

    def _check_topic_id(self) -> None:
        try:
            read_topic_id(self.fs, self.directory)
        except CorruptLogError as error:
            self._error(FILE_NAME, -1, str(error))
        except OSError as error:
            self._unreadable(FILE_NAME, error)

    def _read_leader_epochs(self) -> None:
        self.leader_epochs: LeaderEpochs | None = None
        try:
            self.leader_epochs = LeaderEpochs(self.fs, self.directory)
        except CorruptLogError as error:
            self._error(LEADER_EPOCH_FILE, -1, str(error))
        except OSError as error:
            self._unreadable(LEADER_EPOCH_FILE, error)

    # ---- segments ----

    def _check_segment(self, base_offset: int, next_base: int | None) -> None:
        name = file_name(base_offset, LOG_SUFFIX)
        is_last = next_base is None
        self.is_recovered = base_offset in self.swapped or (
            self.recovered_from is not None and (next_base is None or next_base > self.recovered_from))
        if base_offset < self.next_offset:
            self._error(name, -1, f'found base offset {base_offset}, expected {self.next_offset} or above')
        self.has_gaps |= base_offset > self.next_offset
        self._check_snapshots(base_offset)
        self.next_offset = max(self.next_offset, base_offset)
        self.state.begin_segment()
        indexes = [
            kind(self.fs, os.path.join(self.directory, file_name(base_offset, suffix)), base_offset, is_last=is_last)
            for kind, suffix in ((OffsetIndexCheck, OFFSET_INDEX_SUFFIX), (TimeIndexCheck, TIME_INDEX_SUFFIX))]
        size_bytes = 0
        try:
            for position, header, batch in self._batches(name, is_last=is_last):
                self._check_batch(name, position, header, base_offset, next_base)
                self.has_gaps |= header.base_offset != self.next_offset
                self._check_snapshots(header.base_offset)
                self._replay(name, position, header, batch)
                for index in indexes:
                    index.see(position, header)
                self.has_gaps |= header.records_count != header.last_offset_delta + 1
                self.next_offset = header.last_offset + 1
                size_bytes = position + header.size_bytes
        except OSError as error:
            self._unreadable(name, error)
            return
        if size_bytes > LARGEST_SEGMENT_BYTES:
            self._error(name, -1, f'found {size_bytes} bytes, expected at most {LARGEST_SEGMENT_BYTES}')
        may_have_none = is_last and self.recovered_from is not None     # the first entry or a clean stop creates it
        self._end_indexes(indexes, is_needed=size_bytes > 0 and not may_have_none)
        self._check_transaction_index(base_offset)
        self.is_recovered = False

    def _batches(self, name: str, *, is_last: bool) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Yield the batches up to the first bytes that are not a batch. A batch with a bad checksum is reported and
        yielded.
        """
        file = self.fs.open(os.path.join(self.directory, name))
        size_bytes = file.size()
        walk = read_batches(file, 0, size_bytes)
        try:
            for header, batch in walk:
                try:
                    check_crc(batch, header)
                except KafkaError as error:
                    if self._report_damage(name, walk.position, size_bytes, str(error), is_last=is_last):
                        return
                yield walk.position, header, batch
        except CorruptLogError as error:
            self._report_damage(name, walk.position, size_bytes, str(error), is_last=is_last)

    def _report_damage(self, name: str, position: int, size_bytes: int, what: str, *, is_last: bool) -> bool:
        """Report the damage. Return whether the log ends at the damage.

        The log ends there if no sound batch follows in the last segment (a torn tail). It also ends there if a power
        cut during unsynced writes can have caused the damage.
        """
        file = self.fs.open(os.path.join(self.directory, name))
        follows = find_sound_batch(file, position + 1, size_bytes)
        what = f'{what}; {size_bytes - position} bytes follow'
        self.is_damaged |= follows >= 0 or not is_last
        if follows >= 0:
            what = f'{what}, among them a sound batch at {follows}'
            if self.is_recovered and self.next_offset >= self.acknowledged_offset:
                self._error(name, position, f'{what}: no checkpoint says that records from offset {self.next_offset} '
                                            'on were acknowledged')
                return True
            self._error(name, position, f'{what}: the disk lost data', Remedy.KEEP_SOUND_BATCHES, is_recovered=False)
            return False
        self._error(name, position, f'{what}, none of them a sound batch: a torn tail' if is_last else what,
                    Remedy.CUT_TORN_TAIL if is_last else Remedy.KEEP_SOUND_BATCHES)
        return is_last

    def _check_batch(self, name: str, position: int, header: BatchHeader, base_offset: int,
                     next_base: int | None) -> None:
        if header.base_offset < self.next_offset:
            self._error(name, position, f'found base offset {header.base_offset}, expected {self.next_offset} or above',
                        Remedy.KEEP_SOUND_BATCHES)
        if next_base is not None and header.last_offset >= next_base:
            self._error(name, position, f'found last offset {header.last_offset}, expected one below {next_base}, '
                                        'where the next segment begins', Remedy.KEEP_SOUND_BATCHES)
        if header.last_offset - base_offset > LARGEST_RELATIVE_OFFSET:
            self._error(name, position, f'found last offset {header.last_offset}, too far from {base_offset}, where '
                                        'the segment begins', Remedy.KEEP_SOUND_BATCHES)
        if not 0 <= header.records_count <= header.last_offset_delta + 1:
            self._error(name, position, f'found {header.records_count} records, expected 0 to '
                                        f'{header.last_offset_delta + 1}, the number of offsets')
        if header.compression > HIGHEST_COMPRESSION:
            self._error(name, position, f'found compression {header.compression}, expected 0 to {HIGHEST_COMPRESSION}')
        if header.is_transactional and header.producer_id < 0:
            self._error(name, position, 'found a transactional batch without a producer id')
        self._check_epoch(name, position, header)

    def _check_epoch(self, name: str, position: int, header: BatchHeader) -> None:
        """Compare the epoch of a batch with the leader epoch file. The file lacks epochs that ended below the log's
        start, although the first segment may still have batches of these epochs. If all records are deleted, the file
        may be empty.
        """
        epoch = header.partition_leader_epoch
        if epoch < 0:
            return
        if epoch < self.latest_epoch:
            self._error(name, position, f'found leader epoch {epoch} after {self.latest_epoch}')
        self.latest_epoch = max(epoch, self.latest_epoch)
        if self.leader_epochs is None:
            return
        found = self.leader_epochs.epoch_for(header.last_offset)
        if found != epoch and not (
                found < 0 and (self.leader_epochs.rows or header.last_offset < self.log_start_offset)):
            self._error(LEADER_EPOCH_FILE, -1,
                        f'found epoch {found} for offset {header.last_offset}, the batch says {epoch}')

    def _replay(self, name: str, position: int, header: BatchHeader, batch: memoryview) -> None:
        try:
            self.state.replay(header, batch)
        except KafkaError as error:
            self.is_damaged = True
            self._error(name, position, f'found a marker that cannot be read: {error}')

    # ---- indexes ----

    def _end_indexes(self, indexes: list[OffsetIndexCheck | TimeIndexCheck], *, is_needed: bool) -> None:
        """Report only the first wrong entry of each damaged index, because the whole index must be rebuilt."""
        for index in indexes:
            fault = index.end(is_needed=is_needed and not self.is_metadata, is_complete=not self.is_damaged)
            if fault is not None:
                report = self._warn if fault.is_harmless else self._error
                report(os.path.basename(index.path), fault.number, fault.message, Remedy.REBUILD_INDEXES)

    def _check_transaction_index(self, base_offset: int) -> None:
        """Compare the rows of a transaction index with the markers in the log. Compaction drops the data of an aborted
        transaction first and the index row later, so a row may exist without its transaction.
        """
        name = file_name(base_offset, TRANSACTION_INDEX_SUFFIX)
        path = os.path.join(self.directory, name)
        try:
            rows = TransactionIndex(self.fs, path, base_offset, exists=self.fs.exists(path)).rows
        except CorruptLogError as error:
            self._error(name, -1, str(error), Remedy.REBUILD_INDEXES)
            return
        except OSError as error:
            self._unreadable(name, error)
            return
        missing = self.state.find_missing_row(rows)
        if self._state_is_exact and (missing is not None or self.state.find_wrong_row(rows) is not None):
            self._error(name, -1, f'found {rows}, the markers say {self.state.rows}', Remedy.REBUILD_INDEXES)
        elif missing is not None:
            self._error(name, -1, f'found no row for the transaction of producer {missing.producer_id} that the marker '
                                  f'at {missing.last_offset} aborts', Remedy.REBUILD_INDEXES)

    # ---- snapshots ----

    def _first_state(self, first_offset: int) -> tuple[ProducerStateCheck, bool]:
        """Return the producer state at the start of the first segment, and whether it is known."""
        if first_offset == 0 or first_offset not in self.snapshots:
            return ProducerStateCheck(first_offset, self.log_start_offset, None), first_offset == 0
        try:
            snapshot = self._read_snapshot(first_offset)
            return ProducerStateCheck(first_offset, self.log_start_offset, snapshot), True
        except (CorruptLogError, OSError):
            return ProducerStateCheck(first_offset, self.log_start_offset, None), False

    @property
    def _state_is_exact(self) -> bool:
        """True if the state at the first segment is known, and no later batch is missing or damaged."""
        return self.state_is_whole and not self.has_gaps and not self.is_damaged

    def _read_snapshot(self, offset: int) -> bytes:
        return self.fs.read_file(os.path.join(self.directory, file_name(offset, SNAPSHOT_SUFFIX)))

    def _check_snapshots(self, offset: int) -> None:
        """Check the snapshots up to `offset`, where a batch begins or may begin.

        After a broker has cleaned or deleted a segment, it keeps the segment's snapshot until the next start. The
        offset of this snapshot is below the log or in a gap, and no broker uses the snapshot.
        """
        while self.snapshots and self.snapshots[0] <= offset:
            found = self.snapshots.pop(0)
            if found < self.next_offset and self._state_is_exact and found > self.state.first_offset:
                self._error(file_name(found, SNAPSHOT_SUFFIX), -1,
                            f'found a snapshot of offset {found}, expected a batch boundary', Remedy.REMOVE)
            else:
                self._check_snapshot(found)

    def _check_snapshot(self, offset: int) -> None:
        """Compare a snapshot with the state that follows from the batches below the snapshot's offset."""
        name = file_name(offset, SNAPSHOT_SUFFIX)
        found = ProducerStateTable()
        try:
            found.load_snapshot(self._read_snapshot(offset), offset, 0)
        except CorruptLogError as error:
            # Snapshots are not synced. If a snapshot is torn, a broker that opens the log uses an older one.
            self._warn(name, -1, f'{error}; it is not used', Remedy.WRITE_SNAPSHOT)
            return
        except OSError as error:
            self._unreadable(name, error)
            return
        fault = self.state.find_fault(found) if self._state_is_exact and offset >= self.state.first_offset else None
        if fault is not None:
            self._error(name, -1, fault, Remedy.WRITE_SNAPSHOT)

    def _check_last_snapshots(self, bases: list[int]) -> None:
        self.is_recovered = self.recovered_from is not None
        self._check_snapshots(self.next_offset)
        for offset in () if self.is_damaged else self.snapshots:
            self._error(file_name(offset, SNAPSHOT_SUFFIX), -1, f'found a snapshot of offset {offset}, expected a '
                        f'batch boundary up to {self.next_offset}', Remedy.REMOVE)
        if (self.recovered_from is None and not self.had_snapshots and self.state.all.entries and bases[0] == 0
                and self.next_offset > self.log_start_offset):
            # Without a snapshot, Apache Kafka assumes a log without producers. After a clean stop it does not read the
            # batches. If all records are deleted, each broker forgets the producers.
            self._warn(file_name(self.next_offset, SNAPSHOT_SUFFIX), -1, 'found no snapshot, expected one that holds '
                       f'the {len(self.state.all.entries)} producers of the log', Remedy.WRITE_SNAPSHOT)

    # ---- findings ----

    def _unreadable(self, name: str, error: OSError) -> None:
        self.is_damaged = True
        self.findings.append(Finding(Severity.ERROR, os.path.join(self.directory, name), -1,
                                     f'cannot be read: {error.strerror or error}'))

    def _error(self, name: str, position: int, message: str, remedy: Remedy | None = None, *,
               is_recovered: bool | None = None) -> None:
        severity = Severity.ERROR
        if self.is_recovered if is_recovered is None else is_recovered:
            severity, message = Severity.WARNING, f'{message}; the next start repairs it'
        self.counts[name] += 1
        if self.counts[name] == MOST_FINDINGS:
            message = f'{message}; further problems in this file are not listed'
        elif self.counts[name] > MOST_FINDINGS:
            return
        self.findings.append(Finding.of(severity, os.path.join(self.directory, name), position, message, remedy))

    def _warn(self, name: str, position: int, message: str, remedy: Remedy | None = None) -> None:
        self.findings.append(
            Finding.of(Severity.WARNING, os.path.join(self.directory, name), position, message, remedy))


def has_unfinished_swap(names: list[str]) -> bool:
    """Return whether a compaction was interrupted. If so, two versions of a segment exist until the next opening."""
    return any(parsed.state in (CLEANED_SUFFIX, SWAP_SUFFIX) for name in names if (parsed := parse_file_name(name)))


def check_partition(fs: FileSystem, directory: str) -> list[Finding]:
    """Return all findings about a partition directory, in the order in which its files are checked. Raise OSError if it
    cannot be listed.
    """
    return PartitionCheck(fs, directory).run().findings

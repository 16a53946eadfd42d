"""Rebuilds the files derived from a log: its indexes and producer snapshots. The batches themselves are not changed.

`plan` returns the steps; `carry_out` executes them, with the code that recovers a log after a crash. A new file is
completed and synced under a temporary name before it replaces the old file. So after a crash, each file is the old one
or the new one. A useless snapshot is removed only after its replacement exists: after a clean stop, Apache Kafka
assumes that a log without snapshots has no producers.
"""
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass

from kbroker.base.errors import CorruptLogError
from kbroker.log.check import PartitionReport, Remedy, has_unfinished_swap
from kbroker.log.fs import FileSystem
from kbroker.log.header_walk import replay_headers, seek_batch
from kbroker.log.leader_epochs import LeaderEpochs
from kbroker.log.producer_state import ProducerStateTable
from kbroker.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    file_name,
)
from kbroker.log.swap import parse_file_name
from kbroker.settings.topic_config import LogConfig

TEMPORARY_SUFFIX = '.tmp'
INDEX_SUFFIXES = (TRANSACTION_INDEX_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)


@dataclass(frozen=True)
class Step:
    """One step of a repair. `file` is the file that changes. For a rebuild of indexes, `file` is the `.log` file of
    their segment.
    """

    file: str
    remedy: Remedy
    position: int = -1
    """The position in bytes at which a torn log is cut."""

    def __str__(self) -> str:
        place = f' at {self.position}' if self.position >= 0 else ''
        return f'{self.remedy.value}: {self.file}{place}'

    @property
    def offset(self) -> int:
        """The offset in the name of `file`."""
        return _offset_of(self.file)

    def __lt__(self, other: 'Step') -> bool:
        return (self.file, self.remedy.value) < (other.file, other.remedy.value)


def plan(fs: FileSystem, directory: str, report: PartitionReport, *, cut_torn_tail: bool) -> list[Step]:
    """Return the steps that resolve findings without losing records. Raise OSError.

    If a compaction was interrupted, return no steps, because the next opening finishes it. If batches are damaged,
    return only steps that remove unrelated files, because the producer state after the damage is unknown.
    """
    names = fs.listdir(directory)
    if has_unfinished_swap(names):
        return []
    bases = _bases(names)
    steps: set[Step] = set()
    for finding in report.findings:
        offset = _offset_of(finding.file)
        if finding.remedy is Remedy.REBUILD_INDEXES and report.has_state:
            steps.add(Step(os.path.join(directory, file_name(offset, LOG_SUFFIX)), Remedy.REBUILD_INDEXES))
        elif finding.remedy is Remedy.WRITE_SNAPSHOT and report.has_state:
            is_known = offset == report.end_offset or (
                offset > report.start_offset and (offset in bases or bases[-1] < offset < report.end_offset))
            steps.add(Step(finding.file, Remedy.WRITE_SNAPSHOT if is_known else Remedy.REMOVE))
        elif finding.remedy is Remedy.REMOVE and not (finding.file.endswith(SNAPSHOT_SUFFIX) and not report.has_state):
            steps.add(Step(finding.file, Remedy.REMOVE))
        elif finding.remedy is Remedy.CUT_TORN_TAIL and cut_torn_tail:
            steps.add(Step(finding.file, Remedy.CUT_TORN_TAIL, finding.position))
    if bases and any(step.file.endswith(SNAPSHOT_SUFFIX) and step.remedy is Remedy.REMOVE for step in steps):
        steps.add(Step(os.path.join(directory, file_name(report.end_offset, SNAPSHOT_SUFFIX)), Remedy.WRITE_SNAPSHOT))
    return sorted(steps)


def carry_out(fs: FileSystem, directory: str, config: LogConfig, steps: list[Step],
              done: Callable[[Step], object] = lambda step: None) -> None:
    """Execute the steps of `plan`. Call `done` with each step once it is durable.

    No other process may use the directory. Raise OSError. Raise CorruptLogError if the log has changed since the plan.
    """
    names = fs.listdir(directory)
    bases = _bases(names)
    rebuilt = {step.offset: step for step in steps if step.remedy is Remedy.REBUILD_INDEXES}
    written = {step.offset: step for step in steps if step.remedy is Remedy.WRITE_SNAPSHOT}
    snapshots: dict[int, bytes] = {}
    producers = ProducerStateTable()
    producers.clear(bases[0] if bases else 0)
    for base_offset in bases:
        _take_snapshot(fs, directory, producers, base_offset, written)
        if base_offset in written:
            snapshots[base_offset] = producers.encode_snapshot()
        if base_offset == bases[-1]:
            snapshots |= _snapshots_inside(fs, directory, base_offset, producers, written)
        if base_offset in rebuilt:
            _rebuild_indexes(fs, directory, base_offset, config, producers, is_last=base_offset == bases[-1])
            done(rebuilt[base_offset])
        else:
            file = fs.open(os.path.join(directory, file_name(base_offset, LOG_SUFFIX)))
            replay_headers(producers, file, 0, file.size())
    for step in steps:
        if step.remedy is Remedy.CUT_TORN_TAIL:
            file = fs.open(step.file)
            file.resize(step.position)
            file.sync()
            done(step)
    snapshots[producers.end_offset] = producers.encode_snapshot()
    for offset, step in sorted(written.items()):
        if offset not in snapshots:
            raise CorruptLogError(f'{step.file}: found the end of the log at {producers.end_offset}, expected {offset}')
        _replace(fs, step.file, snapshots[offset], model=os.path.join(directory, file_name(bases[-1], LOG_SUFFIX)))
        done(step)
    for step in steps:
        if step.remedy is Remedy.REMOVE:
            fs.unlink(step.file)
            done(step)
    fs.sync_directory(directory)


def _snapshots_inside(fs: FileSystem, directory: str, base_offset: int, producers: ProducerStateTable,
                      wanted: Collection[int]) -> dict[int, bytes]:
    """Return the snapshots at offsets inside the last segment, into which a clean stop writes one. `producers` is the
    state at the start of that segment.
    """
    found = {}
    file = fs.open(os.path.join(directory, file_name(base_offset, LOG_SUFFIX)))
    for offset in wanted:
        if offset > base_offset:
            state = ProducerStateTable()
            state.load_snapshot(producers.encode_snapshot(), base_offset, 0)
            replay_headers(state, file, 0, seek_batch(file, 0, file.size(), offset))
            if state.end_offset == offset:
                found[offset] = state.encode_snapshot()
    return found


def _take_snapshot(fs: FileSystem, directory: str, producers: ProducerStateTable, base_offset: int,
                   wrong: dict[int, Step]) -> None:
    """Load the snapshot at `base_offset` into `producers` if it is sound. The snapshot may contain producers whose
    batches were deleted.
    """
    path = os.path.join(directory, file_name(base_offset, SNAPSHOT_SUFFIX))
    if base_offset not in wrong and fs.exists(path):
        found = ProducerStateTable()
        try:
            found.load_snapshot(fs.read_file(path), base_offset, 0)
        except CorruptLogError:
            return
        producers.load_snapshot(fs.read_file(path), base_offset, 0)


def _rebuild_indexes(fs: FileSystem, directory: str, base_offset: int, config: LogConfig,
                     producers: ProducerStateTable, *, is_last: bool) -> None:
    log_path = os.path.join(directory, file_name(base_offset, LOG_SUFFIX))
    for suffix in INDEX_SUFFIXES:
        left_over = os.path.join(directory, file_name(base_offset, suffix + TEMPORARY_SUFFIX))
        if fs.exists(left_over):
            fs.unlink(left_over)
    segment = Segment(fs, directory, base_offset, config, 0, file_sizes={LOG_SUFFIX: fs.size(log_path)},
                      index_suffix=TEMPORARY_SUFFIX)
    result = segment.recover(producers, LeaderEpochs(fs, directory, read=False))
    if result.damage is not None and (not is_last or result.next_valid_position >= 0):
        raise CorruptLogError(f'{log_path}: found {result.damage} at {result.valid_bytes}, expected a batch')
    segment.seal_indexes()
    indexes = [segment.offset_index.sync_file(), segment.time_index.sync_file()]
    if segment.transactions.exists:
        indexes.append(segment.transactions.file())
    for file in indexes:
        fs.take_after(file.path, log_path)
        file.sync()
    for suffix in INDEX_SUFFIXES:
        path = os.path.join(directory, file_name(base_offset, suffix))
        if fs.exists(path + TEMPORARY_SUFFIX):
            fs.rename(path + TEMPORARY_SUFFIX, path)
        elif fs.exists(path):
            fs.unlink(path)
    fs.sync_directory(directory)


def _replace(fs: FileSystem, path: str, data: bytes, model: str) -> None:
    file = fs.write_file(path + TEMPORARY_SUFFIX, data)
    fs.take_after(path + TEMPORARY_SUFFIX, model)
    file.sync()
    fs.rename(path + TEMPORARY_SUFFIX, path)
    fs.sync_directory(os.path.dirname(path))


def _bases(names: list[str]) -> list[int]:
    return sorted(_offset_of(name) for name in names
                  if (parsed := parse_file_name(name)) and name == file_name(parsed.offset, LOG_SUFFIX))


def _offset_of(path: str) -> int:
    parsed = parse_file_name(os.path.basename(path))
    return -1 if parsed is None else parsed.offset

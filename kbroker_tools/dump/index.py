"""Index files and producer snapshots as kafka-dump-log shows them, with their differences from the log.

The entries of `.index` and `.timeindex` are compared with the log. `index_files` reads the files.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, TypeVar

from kbroker.base.errors import CorruptLogError
from kbroker_tools.dump.error_report import ErrorReport
from kbroker_tools.dump.index_files import (
    IndexFile,
    OffsetEntry,
    OffsetIndexFile,
    TimeEntry,
    TimeIndexFile,
    snapshot_producers,
    transaction_rows,
)
from kbroker_tools.dump.log_file import NO_TIMESTAMP_MS, LogFile
from kbroker_tools.dump.options import DEFAULT_MAX_MESSAGE_BYTES

NO_OFFSET = -1
LINES_AT_ONCE = 1024

T = TypeVar('T')


@dataclass(frozen=True)
class IndexOptions:
    """The options of kafka-dump-log for indexes."""

    verify_index_only: bool = False
    """Compare the entries with the log and print no entries."""
    index_sanity_check: bool = False
    """Only check whether the broker would rebuild the index at its start."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    """The most bytes of the log to read for the batch of an entry."""
    compat: str = '4.3'
    """The release of Kafka whose texts are printed: 4.2, 4.3 or 4.4."""


# ---- files

def dump_index(path: str, options: IndexOptions, out: IO[str], report: ErrorReport) -> None:
    """Print an `.index`, and compare each entry with the `.log`.

    Raise CorruptLogError if the sanity check fails or an entry points to an impossible position, and OSError, also for
    a missing `.log`.
    """
    index = OffsetIndexFile(path)
    with LogFile(sibling(path, '.log')) as log:
        if not index.entries:
            out.write(f'{path} is empty.\n')
        else:
            _check_or_write(index, options, out, verified_offsets(index, log, options, report),
                            lambda entry: f'offset: {entry.offset} position: {entry.position}\n')


def dump_time_index(path: str, options: IndexOptions, out: IO[str], report: ErrorReport) -> None:
    """Print a `.timeindex`, and compare each entry with the `.log`, which is searched through the `.index`.

    Raise CorruptLogError if the sanity check fails or the log is unreadable at an entry's position, and OSError.
    """
    index = TimeIndexFile(path)
    with LogFile(sibling(path, '.log')) as log:
        offsets = OffsetIndexFile(sibling(path, '.index'))
        _check_or_write(index, options, out, verified_timestamps(index, offsets, log, report),
                        lambda entry: f'timestamp: {entry.timestamp_ms} offset: {entry.offset}\n')


def dump_transaction_index(path: str, options: IndexOptions, out: IO[str], report: ErrorReport) -> None:
    """Print a `.txnindex`. Raise CorruptLogError for an entry of another version, and OSError."""
    for row in transaction_rows(path):
        out.write(f'version: {row.version} producerId: {row.producer_id} firstOffset: {row.first_offset} '
                  f'lastOffset: {row.last_offset} lastStableOffset: {row.last_stable_offset}\n')


def dump_snapshot(path: str, options: IndexOptions, out: IO[str], report: ErrorReport) -> None:
    """Print the producers of a `.snapshot`. Raise OSError, and CorruptLogError if it is damaged."""
    for producer in snapshot_producers(path):
        first_offset = producer.transaction_first_offset
        out.write(f'producerId: {producer.producer_id} producerEpoch: {producer.producer_epoch} '
                  f'coordinatorEpoch: {producer.coordinator_epoch} currentTxnFirstOffset: '
                  f'{"OptionalLong.empty" if first_offset is None else f"OptionalLong[{first_offset}]"} '
                  f'lastTimestamp: {producer.last_timestamp_ms}')
        if producer.last_batch is not None:
            batch = producer.last_batch
            out.write(f' firstSequence: {batch.first_sequence} lastSequence: {batch.last_sequence} '
                      f'lastOffset: {batch.last_offset} offsetDelta: {batch.offset_delta} '
                      f'timestamp: {producer.last_timestamp_ms}')
        elif options.compat == '4.2':
            out.write(' ')
        out.write('\n')


def _check_or_write(index: IndexFile, options: IndexOptions, out: IO[str], entries: Iterable[T],
                    text: Callable[[T], str]) -> None:
    """With --index-sanity-check, check the index. Otherwise write a line for each entry, many at a time.

    Entries before a damaged one are written before its error is raised.
    """
    if options.index_sanity_check:
        index.check()
        out.write(f'{index.path} passed sanity check.\n')
        return
    lines: list[str] = []
    try:
        for entry in entries:
            if not options.verify_index_only:
                lines.append(text(entry))
                if len(lines) >= LINES_AT_ONCE:
                    out.write(''.join(lines))
                    lines.clear()
    finally:
        out.write(''.join(lines))


def sibling(path: str, suffix: str) -> str:
    """Return the file of the same segment with another suffix."""
    directory, name = os.path.split(path)
    return os.path.join(directory, name.partition('.')[0] + suffix)


# ---- comparison with the log

def verified_offsets(index: OffsetIndexFile, log: LogFile, options: IndexOptions,
                     report: ErrorReport) -> Iterator[OffsetEntry]:
    """Yield the entries of an `.index`, and report those whose batch ends at another offset. Raise CorruptLogError."""
    for entry in index:
        batch = log.batch_at(entry.position, entry.position + options.max_message_bytes)
        if batch is None:
            raise CorruptLogError(f'{index.path}: found position {entry.position} for offset {entry.offset}, where '
                                  f'{log.path} of {log.size_bytes} bytes has no whole batch of at most '
                                  f'{options.max_message_bytes} bytes')
        if batch.last_offset != entry.offset:
            report.mismatch(index.path, entry.offset, batch.last_offset)
        yield entry


def verified_timestamps(index: TimeIndexFile, offsets: OffsetIndexFile, log: LogFile,
                        report: ErrorReport) -> Iterator[TimeEntry]:
    """Yield the entries of a `.timeindex`, and report those that contradict the log or the previous entry."""
    previous_ms = NO_TIMESTAMP_MS
    for entry in index:
        batch = log.first_reaching(entry.offset, offsets.position_for(entry.offset))
        if batch is None:
            report.not_found(index.path, entry.offset, NO_OFFSET)
        elif batch.last_offset != entry.offset:
            report.not_found(index.path, entry.offset, batch.last_offset)
        else:
            found_ms = log.max_timestamp_ms(batch)
            if found_ms != entry.timestamp_ms:
                report.timestamp_mismatch(index.path, entry.timestamp_ms, found_ms)
            if previous_ms >= entry.timestamp_ms:
                report.out_of_order(index.path, entry.timestamp_ms, previous_ms)
        yield entry
        previous_ms = entry.timestamp_ms

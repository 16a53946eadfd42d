"""The output of kafka-dump-log for index files and producer snapshots, and for the differences between indexes and the
log.

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
from kbroker_tools.rows.releases import NEWEST

NO_OFFSET = -1
LINES_AT_ONCE = 1024

T = TypeVar('T')


@dataclass(frozen=True)
class IndexOptions:
    """The options of kafka-dump-log that concern indexes."""

    verify_index_only: bool = False
    """True if entries are only compared with the log, and not printed."""
    index_sanity_check: bool = False
    """True if the only check is whether a broker would rebuild the index at its start."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    """The most bytes that are read from the log to find the batch of one entry."""
    compat: str = NEWEST
    """The release of Kafka's tool whose text is printed, one of RELEASES."""


# ---- files

def dump_index(path: str, options: IndexOptions, out: IO[str], report: ErrorReport) -> None:
    """Print an `.index`, and compare each entry with the `.log`.

    Raise CorruptLogError if the sanity check fails or if an entry points to an impossible position. Raise OSError if
    the `.index` or the `.log` cannot be read.
    """
    index = OffsetIndexFile(path)
    with LogFile(sibling(path, '.log')) as log:
        if not index.entries:
            out.write(f'{path} is empty.\n')
        else:
            _check_or_write(index, options, out, verified_offsets(index, log, options, report),
                            lambda entry: f'offset: {entry.offset} position: {entry.position}\n')


def dump_time_index(path: str, options: IndexOptions, out: IO[str], report: ErrorReport) -> None:
    """Print a `.timeindex`, and compare each entry with the `.log`. The `.index` shows where the batch of an entry is.

    Raise CorruptLogError if the sanity check fails or if the log cannot be read at the position of an entry. Raise
    OSError if a file cannot be read.
    """
    index = TimeIndexFile(path)
    with LogFile(sibling(path, '.log')) as log:
        offsets = OffsetIndexFile(sibling(path, '.index'))
        _check_or_write(index, options, out, verified_timestamps(index, offsets, log, report),
                        lambda entry: f'timestamp: {entry.timestamp_ms} offset: {entry.offset}\n')


def dump_transaction_index(path: str, options: IndexOptions, out: IO[str], report: ErrorReport) -> None:
    """Print a `.txnindex`. Raise CorruptLogError if an entry has an unknown version, and OSError if the file cannot be
    read."""
    for row in transaction_rows(path):
        out.write(f'version: {row.version} producerId: {row.producer_id} firstOffset: {row.first_offset} '
                  f'lastOffset: {row.last_offset} lastStableOffset: {row.last_stable_offset}\n')


def dump_snapshot(path: str, options: IndexOptions, out: IO[str], report: ErrorReport) -> None:
    """Print the producers of a `.snapshot`. Raise CorruptLogError if the file is damaged, and OSError if it cannot be
    read."""
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
    """With --index-sanity-check, check the index. Without it, print a line for each entry.

    Many lines are written at a time. Lines of entries before a damaged entry are written before the error is raised.
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
    """Return the path of the file of the same segment that has the suffix `suffix`."""
    directory, name = os.path.split(path)
    return os.path.join(directory, name.partition('.')[0] + suffix)


# ---- comparison with the log

def verified_offsets(index: OffsetIndexFile, log: LogFile, options: IndexOptions,
                     report: ErrorReport) -> Iterator[OffsetEntry]:
    """Yield the entries of an `.index`. Report each entry whose offset is not the last offset of its batch. Raise
    CorruptLogError if an entry points to no batch."""
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
    """Yield the entries of a `.timeindex`. Report each entry that contradicts the log or is not later than the previous
    entry."""
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

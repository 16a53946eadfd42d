"""Snapshots of the metadata: the files `<end offset>-<epoch>.checkpoint`.

A snapshot consists of a control batch that begins with SnapshotHeader, data batches, and a control batch with
SnapshotFooter. The offsets inside a snapshot begin at 0. The end offset in the name is the first offset of the log that
the snapshot does not cover.

`00000000000000000000-0000000000.checkpoint` covers no records. It is the initial state of a formatted directory. It
contains the voters in control records and, since Apache Kafka 4.4, the features. Before Apache Kafka 4.4, the features
are in another snapshot, `bootstrap.checkpoint`, in the log directory.
"""
from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from kbroker.base.errors import CorruptLogError
from kbroker.log.fs import FileSystem
from kbroker.metadata.batches import decode_batch, encode_control, encode_data, sound_batches
from kbroker.protocol.messages import SnapshotFooterRecord, SnapshotHeaderRecord

FORMAT_SNAPSHOT_FILE = f'{0:020}-{0:010}.checkpoint'
BOOTSTRAP_FILE = 'bootstrap.checkpoint'
_NAME = re.compile(r'(\d{20})-(\d{10})\.checkpoint')


class SnapshotName(NamedTuple):
    """The name of a snapshot.

    `end_offset` is the first offset that the snapshot does not cover. `epoch` is the epoch of the last record that it
    covers.
    """

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f'{self.end_offset:020}-{self.epoch:010}.checkpoint'


def snapshot_files(names: Iterable[str]) -> list[SnapshotName]:
    """Return the finished snapshots among file names, the oldest first. Ignore unfinished and deleted snapshots."""
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(SnapshotName(int(match[1]), int(match[2])) for match in matches if match)


def newest_snapshot(fs: FileSystem, directory: str) -> SnapshotName | None:
    """Return the newest finished snapshot in a directory, or None if there is none."""
    return max(snapshot_files(fs.listdir(directory)), default=None)


def read_snapshot(fs: FileSystem, path: str) -> Iterator[tuple[bool, list[Any]]]:
    """Yield (is control batch, records) for each batch. Raise CorruptLogError if the file is not a whole snapshot."""
    file = fs.open_to_read(path)     # Apache Kafka makes snapshots read-only
    size_bytes = file.size()
    end = next_offset = 0
    last: Any = None
    for position, header, batch in sound_batches(file, size_bytes):
        records = decode_batch(header, batch)
        if header.base_offset != next_offset or not records:
            raise CorruptLogError(f'{path}: found a batch of {len(records)} records at offset {header.base_offset}, '
                                  f'expected offset {next_offset}')
        if position == 0 and not isinstance(records[0], SnapshotHeaderRecord):
            raise CorruptLogError(f'{path}: found {type(records[0]).__name__} first, expected SnapshotHeaderRecord')
        yield header.is_control, records
        end, next_offset, last = position + header.size_bytes, header.last_offset + 1, records[-1]
    if end != size_bytes or not isinstance(last, SnapshotFooterRecord):
        raise CorruptLogError(f'{path}: found a snapshot that is sound for {end} of {size_bytes} bytes, expected a '
                              'footer at its end')


def encode_format_snapshot(control_records: list[Any], data_records: list[Any], *, metadata_version: int,
                           timestamp_ms: int) -> bytes:
    """Return the encoded snapshot that formatting writes.

    It contains a header, `control_records` and `data_records`.
    """
    head = [SnapshotHeaderRecord(last_contained_log_timestamp=timestamp_ms), *control_records]
    footer_offset = len(head) + len(data_records)
    return b''.join((
        encode_control(head, base_offset=0, epoch=0, timestamp_ms=timestamp_ms),
        encode_data(data_records, base_offset=len(head), epoch=0, timestamp_ms=timestamp_ms,
                    metadata_version=metadata_version),
        encode_control([SnapshotFooterRecord()], base_offset=footer_offset, epoch=0, timestamp_ms=timestamp_ms)))


def bootstrap_records(fs: FileSystem, log_dir: str, metadata_directory: str) -> list[Any]:
    """Return the first records for the log of a formatted directory: features, and SCRAM credentials if formatting has
    added some.

    If the directory has no such records, return an empty list.
    """
    for path in (os.path.join(log_dir, BOOTSTRAP_FILE), os.path.join(metadata_directory, FORMAT_SNAPSHOT_FILE)):
        if fs.exists(path):
            found = [record for is_control, records in read_snapshot(fs, path) if not is_control for record in records]
            if found:
                return found
    return []

"""Kafka's small text files: a version line, a count line, then one row a line.

`recovery-point-offset-checkpoint`, `log-start-offset-checkpoint`, `replication-offset-checkpoint` and
`cleaner-offset-checkpoint` hold rows `topic partition offset` for a log directory; `leader-epoch-checkpoint` holds
rows `epoch start_offset` for a partition.
"""
import os

from kbroker.errors import CorruptLogError
from kbroker.log.fs import FileSystem

VERSION = '0'

RECOVERY_POINT_FILE = 'recovery-point-offset-checkpoint'
LOG_START_OFFSET_FILE = 'log-start-offset-checkpoint'
HIGH_WATERMARK_FILE = 'replication-offset-checkpoint'
CLEANER_FILE = 'cleaner-offset-checkpoint'
LEADER_EPOCH_FILE = 'leader-epoch-checkpoint'

PartitionOffsets = dict[tuple[str, int], int]


def read_rows(fs: FileSystem, path: str, columns: int) -> list[list[str]]:
    """The rows, split at spaces. A missing or empty file has none. Raises CorruptLogError for any other shape."""
    if not fs.exists(path):
        return []
    lines = fs.read_file(path).decode('utf-8', 'replace').splitlines()
    if len(lines) < 2:
        return []
    if lines[0].strip() != VERSION:
        raise CorruptLogError(f'{path}: found version {lines[0]!r}, expected {VERSION!r}')
    rows = [line.split() for line in lines[2:]]
    if not lines[1].strip().isdecimal() or int(lines[1]) != len(rows):
        raise CorruptLogError(f'{path}: found {len(rows)} rows, expected {lines[1]!r}')
    for number, row in enumerate(rows, 3):
        if len(row) != columns:
            raise CorruptLogError(f'{path}: found {" ".join(row)!r} in line {number}, expected {columns} fields')
    return rows


def encode_rows(rows: list[str]) -> bytes:
    return ''.join(f'{line}\n' for line in (VERSION, len(rows), *rows)).encode()


def parse_number(path: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CorruptLogError(f'{path}: found {text!r}, expected a number') from None


def read_partition_offsets(fs: FileSystem, directory: str, name: str) -> PartitionOffsets:
    """Offsets by (topic, partition). Raises CorruptLogError."""
    path = os.path.join(directory, name)
    return {(topic, parse_number(path, partition)): parse_number(path, offset)
            for topic, partition, offset in read_rows(fs, path, 3)}


def write_partition_offsets(fs: FileSystem, directory: str, name: str, offsets: PartitionOffsets) -> None:
    """Replace the file atomically and durably."""
    rows = [f'{topic} {partition} {offset}' for (topic, partition), offset in sorted(offsets.items())]
    fs.write_file_atomically(os.path.join(directory, name), encode_rows(rows))

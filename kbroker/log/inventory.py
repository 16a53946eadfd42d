"""Reads and writes `.kbroker_inventory`, which lists the files that a clean stop left in a log directory, with sizes
and checksums.

The next start compares the directory with the inventory before it writes anything. The inventory is trusted only if
`.kafka_cleanshutdown` has the same broker epoch. Each start of kbroker or Apache Kafka removes `.kafka_cleanshutdown`
and registers with a higher epoch. Therefore no start trusts an inventory that a later run of a broker has outdated.

The file begins with one line of JSON about the directory. A line `topic partition JSON` follows for each partition. The
last line has the number of partitions and the CRC-32C of all lines above. Apache Kafka ignores the file. A partition
that never held a record has no line: it has nothing to lose, and a clean stop does not sync it.
"""
from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

from kbroker import __version__
from kbroker.base.errors import CorruptLogError, NewerFormatError
from kbroker.base.lean_dataclasses import dataclass, field
from kbroker.base.topic_partition import TopicPartition
from kbroker.log.checkpoints import HIGH_WATERMARK_FILE, LEADER_EPOCH_FILE, LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE
from kbroker.log.directory_names import CLEAN_SHUTDOWN_FILE
from kbroker.log.fs import NO_FILE, SMALL_FILE_BYTES, FileSystem
from kbroker.log.partition_metadata import FILE_NAME as PARTITION_METADATA_FILE
from kbroker.log.producer_state import ProducerStateTable
from kbroker.log.segment import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX
from kbroker.log.swap import parse_file_name
from kbroker.wire.crc32c import crc32c

INVENTORY_FILE = '.kbroker_inventory'
META_PROPERTIES_FILE = 'meta.properties'
NOTED_BESIDE = (META_PROPERTIES_FILE, RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE, HIGH_WATERMARK_FILE)
"""The files outside partition directories that have a checksum in the inventory."""
VERSION = 1
"""The version of the formats that only kbroker reads. A release raises it if earlier releases must not open its
directories, and writes the file before the first use of the new format. Earlier releases refuse a higher version.
"""
SAMPLE_BYTES = 4096
"""The number of bytes at the start and at the end of a `.log`, `.index` or `.timeindex` that the checksum covers.
Checksums of other files cover the whole file.
"""
SAMPLED = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)



class FileNote(NamedTuple):
    """The size, checksum and time of change of one file. `modified_ms` proves nothing about damage. It only shows a
    later stop that the checksum is still valid.
    """

    size_bytes: int
    modified_ms: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Damage:
    """One difference between a directory and the files that a clean stop left in it."""

    file: str
    expected: str
    found: str
    is_loss: bool
    """True if records or their offsets are lost or changed, or if a directory or pipe has the name of a noted file.
    False if the file can be rebuilt from the log.
    """

    def __str__(self) -> str:
        return f'{self.file}: found {self.found}, expected {self.expected}'


@dataclass(frozen=True, slots=True)
class PartitionNote:
    """The state and the files of a partition at a clean stop."""

    topic_id: str
    """As hexadecimal digits."""
    start_offset: int
    end_offset: int
    files: dict[str, FileNote]

    def encode(self) -> str:
        return json.dumps([self.topic_id, self.start_offset, self.end_offset, self.files], separators=(',', ':'))

    @classmethod
    def decode(cls, text: str | bytes) -> PartitionNote:
        """Raises ValueError, TypeError."""
        topic_id, start_offset, end_offset, files = json.loads(text)
        return cls(topic_id, start_offset, end_offset, {name: FileNote(*note) for name, note in files.items()})


@dataclass
class Inventory:
    """The content of an inventory file."""

    broker_epoch: int
    metadata_end_offset: int
    beside: dict[str, FileNote]
    rows: dict[TopicPartition, str] = field(default_factory=dict)
    """Maps each partition to its encoded `PartitionNote`. A note is decoded only when it is needed, which is rarely
    more than once.
    """
    release: str = __version__
    """The release of kbroker that wrote the file, '' if it is older than this field."""

    def write(self, fs: FileSystem, directory: str) -> None:
        """Replace the inventory file durably. Raise OSError."""
        head = {'version': VERSION, 'release': self.release, 'brokerEpoch': self.broker_epoch,
                'metadataEndOffset': self.metadata_end_offset, 'files': self.beside}
        lines = [json.dumps(head, separators=(',', ':')),
                 *(f'{topic} {partition} {row}' for (topic, partition), row in self.rows.items()), '']
        content = '\n'.join(lines).encode()
        end = f'{len(self.rows)} {crc32c(content)}\n'.encode()
        fs.write_file_atomically(os.path.join(directory, INVENTORY_FILE), content + end)


def read_inventory(fs: FileSystem, directory: str) -> Inventory | None:
    """Return the inventory, or None if the file is missing. Raise CorruptLogError if the file is damaged,
    NewerFormatError if a later release wrote it. Raise OSError.
    """
    path = os.path.join(directory, INVENTORY_FILE)
    if not fs.exists(path):
        return None
    content = fs.read_file(path)
    *lines, last = content.decode('utf-8', 'replace').splitlines() or ['']
    covered = content[:len(content) - len(last.encode()) - 1]
    if last.split() != [str(len(lines) - 1), str(crc32c(covered))]:
        raise CorruptLogError(f'{path}: found {last[:80]!r} at the end of {len(content)} bytes, expected '
                              f"'{len(lines) - 1} {crc32c(covered)}', the number of partitions and the checksum")
    head: dict[str, Any] = json.loads(lines[0])
    if head['version'] > VERSION:
        raise NewerFormatError(f'{path}: found version {head["version"]}, expected at most {VERSION}: only kbroker '
                               f'{head.get("release", "of a later release")} or later can open the directory, and this '
                               f'is kbroker {__version__}')
    rows = {}
    for line in lines[1:]:
        topic, partition, row = line.split(' ', 2)
        rows[topic, int(partition)] = row
    return Inventory(head['brokerEpoch'], head['metadataEndOffset'],
                     {name: FileNote(*note) for name, note in head['files'].items()}, rows, head.get('release', ''))


def read_clean_shutdown(fs: FileSystem, directory: str) -> tuple[bool, int]:
    """Return whether the last stop was clean, and the epoch of the broker that stopped. The epoch is -1 if unknown.
    Raise OSError.
    """
    path = os.path.join(directory, CLEAN_SHUTDOWN_FILE)
    if not fs.exists(path):
        return False, -1
    try:
        return True, int(json.loads(fs.read_file(path, SMALL_FILE_BYTES))['brokerEpoch'])
    except (CorruptLogError, ValueError, KeyError, TypeError):
        return True, -1


# ---- noting ----

def note_beside(fs: FileSystem, directory: str) -> dict[str, FileNote]:
    """Return {name: note} of the files outside partition directories. Raise OSError."""
    stats = fs.stats(directory)
    return {name: FileNote(*stats[name], _checksum(fs, os.path.join(directory, name), stats[name][0]))
            for name in NOTED_BESIDE if name in stats}


def note_partition(fs: FileSystem, directory: str, topic_id: str, offsets: tuple[int, int],
                   previous: PartitionNote | None) -> PartitionNote:
    """Return the note of a closed partition. `offsets` are the start and the end of its log. Raise OSError.

    If a file has not changed since the `previous` note, its checksum is copied from there.
    """
    known = {} if previous is None else previous.files
    files = {}
    for name, (size_bytes, modified_ms) in fs.stats(directory).items():
        if not _is_noted(name):
            continue
        note = known.get(name)
        if note is None or (size_bytes, modified_ms) != note[:2]:
            note = FileNote(size_bytes, modified_ms, _checksum(fs, os.path.join(directory, name), size_bytes))
        files[name] = note
    return PartitionNote(topic_id, *offsets, files)


def _is_noted(name: str) -> bool:
    if name in (LEADER_EPOCH_FILE, PARTITION_METADATA_FILE):
        return True
    parsed = parse_file_name(name)
    return parsed is not None and not parsed.state


def _checksum(fs: FileSystem, path: str, size_bytes: int) -> int:
    if size_bytes == 0:
        return 0
    file = fs.open(path)
    if size_bytes <= 2 * SAMPLE_BYTES or not path.endswith(SAMPLED):
        return crc32c(file.read_at(size_bytes, 0))
    return crc32c(file.read_at(SAMPLE_BYTES, size_bytes - SAMPLE_BYTES), crc32c(file.read_at(SAMPLE_BYTES, 0)))


# ---- comparing ----

def compare_beside(fs: FileSystem, directory: str, notes: dict[str, FileNote]) -> list[Damage]:
    """Return the differences between the files outside partition directories and their notes. Raise OSError."""
    sizes = {name: fs.size(path) for name in notes if fs.exists(path := os.path.join(directory, name))}
    return _compare(fs, directory, notes, sizes)


def compare_partition(fs: FileSystem, directory: str, note: PartitionNote) -> list[Damage]:
    """Return the differences between a partition directory and its note. Raise OSError.

    Missing or torn snapshots are not reported, because a clean stop does not sync snapshots. Segments below the noted
    ones are not reported either, because a power cut can undo their deletion. The opening of the partition handles both
    cases.
    """
    if not fs.exists(directory):
        return [Damage(directory, f'a partition with the offsets {note.start_offset} to {note.end_offset - 1}',
                       'no such directory', True)]
    sizes = fs.sizes(directory)
    damages = _compare(fs, directory, note.files, sizes)
    unknown = sizes.keys() - note.files.keys()
    if not unknown:
        return damages
    first = min((parsed.offset for name in note.files
                 if (parsed := parse_file_name(name)) and parsed.kind == LOG_SUFFIX), default=0)
    for name in sorted(unknown):
        parsed = parse_file_name(name)
        if sizes[name] == NO_FILE:
            if parsed:
                path = os.path.join(directory, name)
                damages.append(Damage(path, 'no such file', fs.kind(path), True))
        elif parsed and not parsed.state and parsed.offset >= first and _counts(fs, directory, name, sizes):
            damages.append(Damage(os.path.join(directory, name), 'no such file', f'{sizes[name]} bytes',
                                  parsed.kind == LOG_SUFFIX))
    return damages


def _compare(fs: FileSystem, directory: str, notes: dict[str, FileNote], sizes: dict[str, int]) -> list[Damage]:
    damages = []
    for name, note in notes.items():
        path = os.path.join(directory, name)
        found = sizes.get(name, -1)
        if found == NO_FILE:
            damages.append(Damage(path, 'a file', fs.kind(path), True))
            continue
        if found != note.size_bytes:
            words = 'no such file' if found < 0 else f'{found} bytes', f'{note.size_bytes} bytes'
        elif (checksum := _checksum(fs, path, found)) != note.checksum:
            words = f'the checksum {checksum:08x}', f'{note.checksum:08x} as after the last clean stop'
        else:
            continue
        if _counts(fs, directory, name, sizes):
            damages.append(Damage(path, words[1], words[0], name.endswith(LOG_SUFFIX)))
    return damages


def _counts(fs: FileSystem, directory: str, name: str, sizes: dict[str, int]) -> bool:
    """Return whether a difference in the file `name` is damage. A difference in a snapshot that no opening would use is
    not damage.
    """
    if not name.endswith(SNAPSHOT_SUFFIX):
        return True
    if name not in sizes:
        return False
    try:
        ProducerStateTable().load_snapshot(fs.read_file(os.path.join(directory, name)), 0, 0)
    except CorruptLogError:
        return False
    return True

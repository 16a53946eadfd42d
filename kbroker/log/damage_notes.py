"""Reads and writes `.kbroker_damage`: notes of the damage that starts have found in a log directory.

A note stays until an operator accepts the damage. A start rewrites checkpoints and derived files, which removes the
traces of damage. The notes preserve these traces for `kbroker-check`. A note also keeps a partition out of service
until the partition's files match the note.

Each line of the file is a JSON object for one partition. Files that belong to no partition have the topic '' and the
partition -1. Apache Kafka ignores the file.
"""
from __future__ import annotations

import enum
import json
import os

from kbroker.base.errors import CorruptLogError, LogDirectoryError
from kbroker.base.lean_dataclasses import astuple, dataclass, field
from kbroker.base.topic_partition import TopicPartition
from kbroker.log.fs import FileSystem
from kbroker.log.inventory import Damage

DAMAGE_FILE = '.kbroker_damage'
BESIDE: TopicPartition = ('', -1)
"""The key for damage to files that belong to no partition."""
METADATA: TopicPartition = ('__cluster_metadata', 0)


class State(enum.Enum):
    """The way in which a start treats a partition that has a note."""

    OFFLINE = 'offline'
    """The partition is not served until its files match the note, or an operator accepts the loss."""
    SERVED = 'served'
    """The partition is served. The note is only for `kbroker-check`."""
    ACCEPTED = 'accepted'
    """The next start accepts the partition's files, and removes the note."""


@dataclass
class DamageNote:
    """The damage to one partition, or to files that belong to no partition."""

    key: TopicPartition
    state: State
    damages: list[Damage] = field(default_factory=list)
    row: str = ''
    """The partition's row in the inventory, '' if it had no row."""
    expected_end_offset: int = 0
    """The lowest end offset that the log may have. It is used only if `row` is ''."""

    def encode(self) -> str:
        return json.dumps({'topic': self.key[0], 'partition': self.key[1], 'state': self.state.value,
                           'damages': [astuple(damage) for damage in self.damages], 'row': self.row,
                           'expectedEndOffset': self.expected_end_offset}, separators=(',', ':'))

    @classmethod
    def decode(cls, line: str) -> DamageNote:
        """Parse a line of the file. Raise ValueError, KeyError or TypeError if the line is not a note."""
        found = json.loads(line)
        return cls((found['topic'], found['partition']), State(found['state']),
                   [Damage(*damage) for damage in found['damages']], found['row'], found['expectedEndOffset'])


def read_notes(fs: FileSystem, log_directory: str) -> dict[TopicPartition, DamageNote]:
    """Return the notes of a log directory. Raise LogDirectoryError if the file is malformed. Raise OSError."""
    path = os.path.join(log_directory, DAMAGE_FILE)
    if not fs.exists(path):
        return {}
    try:
        notes = [DamageNote.decode(line) for line in fs.read_file(path).decode().splitlines()]
    except CorruptLogError as error:
        raise LogDirectoryError(f'{error}. The file names partitions that lost records: restore it, or move it away to '
                                'serve what is there') from error
    except (ValueError, KeyError, TypeError) as error:
        raise LogDirectoryError(f'{path}: found a line that is no damage note ({error!r}). The file names partitions '
                                'that lost records: restore it, or move it away to serve what is there') from error
    return {note.key: note for note in notes}


def write_notes(fs: FileSystem, log_directory: str, notes: dict[TopicPartition, DamageNote]) -> None:
    """Replace the notes of a log directory durably. If `notes` is empty, remove the file. Raise OSError."""
    path = os.path.join(log_directory, DAMAGE_FILE)
    if notes:
        content = ''.join(f'{note.encode()}\n' for note in notes.values())
        fs.write_file_atomically(path, content.encode())
    elif fs.exists(path):
        fs.unlink(path)
        fs.sync_directory(log_directory)

"""`.kbroker_damage`: the damage that starts have found in a log directory, until an operator accepts it.

A start rewrites checkpoints and derived files, and with them the traces of damage. The notes preserve the traces for
`kbroker-check`. They keep a partition out of service until its files are as its note says. Each line is the JSON of one
partition, with '' and -1 for files that belong to no partition. Apache Kafka ignores the file.
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
    """The treatment of a noted partition at each start."""

    OFFLINE = 'offline'
    """The partition is not served until its files are as noted, or an operator accepts the loss."""
    SERVED = 'served'
    """The partition is served. The note is for `kbroker-check`."""
    ACCEPTED = 'accepted'
    """The next start accepts the partition's files, and removes the note."""


@dataclass
class DamageNote:
    """The damage to one partition, or to files that belong to no partition."""

    key: TopicPartition
    state: State
    damages: list[Damage] = field(default_factory=list)
    row: str = ''
    """The partition's row in the inventory, '' if there was none."""
    expected_end_offset: int = 0
    """The offset that the log must reach, if there is no row."""

    def encode(self) -> str:
        return json.dumps({'topic': self.key[0], 'partition': self.key[1], 'state': self.state.value,
                           'damages': [astuple(damage) for damage in self.damages], 'row': self.row,
                           'expectedEndOffset': self.expected_end_offset}, separators=(',', ':'))

    @classmethod
    def decode(cls, line: str) -> DamageNote:
        """Parse a line of the file. Raise ValueError, KeyError or TypeError if it is no note."""
        found = json.loads(line)
        return cls((found['topic'], found['partition']), State(found['state']),
                   [Damage(*damage) for damage in found['damages']], found['row'], found['expectedEndOffset'])


def read_notes(fs: FileSystem, log_directory: str) -> dict[TopicPartition, DamageNote]:
    """Return the notes of a log directory. Raise LogDirectoryError if the file cannot be understood, OSError."""
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
    """Replace the notes of a log directory durably; without notes, remove the file. Raise OSError."""
    path = os.path.join(log_directory, DAMAGE_FILE)
    if notes:
        content = ''.join(f'{note.encode()}\n' for note in notes.values())
        fs.write_file_atomically(path, content.encode())
    elif fs.exists(path):
        fs.unlink(path)
        fs.sync_directory(log_directory)

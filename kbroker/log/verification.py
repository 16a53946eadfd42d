"""Compares a log directory with its inventory at a start, and decides what to do for each difference.

| damaged | decision |
|---|---|
| a `.log`, or a whole partition | the partition stays offline; a start without an internal topic is refused |
| a file that the log can rebuild | rebuilt |
| a checkpoint | the offsets of the inventory are used |

Each difference is logged as an ERROR and written as a damage note. `kbroker-check` reports the note until an operator
accepts the damage.
"""
from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError, LogDirectoryError, NewerFormatError
from kbroker.base.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.base.lean_dataclasses import dataclass
from kbroker.base.topic_partition import TopicPartition
from kbroker.log.checkpoints import HIGH_WATERMARK_FILE, LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE, PartitionOffsets
from kbroker.log.damage_notes import BESIDE, METADATA, DamageNote, State, read_notes, write_notes
from kbroker.log.directory_names import CLEAN_SHUTDOWN_FILE
from kbroker.log.fs import FileSystem
from kbroker.log.inventory import (
    INVENTORY_FILE,
    META_PROPERTIES_FILE,
    Damage,
    Inventory,
    PartitionNote,
    compare_beside,
    compare_partition,
    read_inventory,
)
from kbroker.log.partition_metadata import FILE_NAME as PARTITION_METADATA_FILE
from kbroker.log.partition_metadata import write_topic_id

TRACES = (CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_FILE, INVENTORY_FILE)
"""The files that a broker writes only after it has registered in the metadata log."""
COORDINATED = (CONSUMER_OFFSETS, TRANSACTION_STATE)
"""The topics that coordinators read. Lost records of these topics would change the responses of a coordinator."""
MOST_DAMAGES = 20
"""The maximum number of damages in the note of one partition. A broken disk damages many places."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Past:
    """The evidence in a log directory about its metadata log. A topic id in a partition directory is evidence, because
    the metadata log has the row of a topic before the topic's first directory exists.
    """

    topic_ids: dict[TopicPartition, bytes]
    """Maps each partition to the topic id in its directory."""
    metadata_end_offset: int
    """The end of the metadata log at an earlier clean stop, 0 if unknown."""
    trace: str | None
    """The name of an existing file that only a registered broker can have written, None if there is no such file."""
    is_accepted: bool
    """True if an operator accepted the loss of metadata."""


def compare(fs: FileSystem, directory: str, inventory: Inventory, except_for: Collection[TopicPartition] = (),
            ) -> Iterator[tuple[TopicPartition, PartitionNote | None, list[Damage]]]:
    """Yield (key, note, damages) of each partition in the inventory. Also yield the key `BESIDE` for the files that
    belong to no partition. Raise OSError.
    """
    yield BESIDE, None, compare_beside(fs, directory, inventory.beside)
    for (topic, partition), row in inventory.rows.items():
        if (topic, partition) not in except_for:
            note = PartitionNote.decode(row)
            damages = compare_partition(fs, os.path.join(directory, f'{topic}-{partition}'), note)
            yield (topic, partition), note, damages[:MOST_DAMAGES]


class Verification:
    """The comparison of a log directory with its inventory at a start.

    `run` only reads. `conclude` writes the damage notes, and may refuse the start. The constructor raises OSError, and
    LogDirectoryError if the damage notes are malformed, or if a later release of kbroker wrote the directory.
    """

    def __init__(self, fs: FileSystem, directory: str, *, clean_shutdown: bool, broker_epoch: int):
        """Create; `broker_epoch` is the epoch of the broker that stopped cleanly, -1 if unknown."""
        self._fs = fs
        self._directory = directory
        self.notes = read_notes(fs, directory)
        self._are_notes_stale = False
        self._is_clean = clean_shutdown
        self._inventory = self._read_inventory()
        self.is_trusted = (self._inventory is not None and clean_shutdown
                           and self._inventory.broker_epoch == broker_epoch >= 0)
        """True if no broker has started between the stop that wrote the inventory and this start."""
        if self._inventory is not None and clean_shutdown and broker_epoch < 0:
            self._note_mark()
        self.rows: dict[TopicPartition, str] = {}
        """Maps each partition whose files match the inventory or the damage note to its inventory row."""
        self.start_offsets: PartitionOffsets = {}
        self.end_offsets: PartitionOffsets = {}
        self.topic_ids: dict[TopicPartition, bytes] = {}
        self._distrusted: dict[TopicPartition, frozenset[str]] = {}

    @property
    def metadata_end_offset(self) -> int:
        """The end of the metadata log at an earlier clean stop, 0 if unknown. The metadata log never gets shorter."""
        return 0 if self._inventory is None else self._inventory.metadata_end_offset

    @property
    def accepts_metadata(self) -> bool:
        """True if an operator accepted the loss of metadata."""
        return self.is_accepted(METADATA)

    def _read_inventory(self) -> Inventory | None:
        try:
            return read_inventory(self._fs, self._directory)
        except NewerFormatError as error:
            raise LogDirectoryError(str(error)) from error
        except (CorruptLogError, ValueError, KeyError, TypeError) as error:
            logger.error('%s: %s: what the last clean stop left cannot be verified',
                         os.path.join(self._directory, INVENTORY_FILE), error)
            return None

    def _note_mark(self) -> None:
        """Write a damage note if the clean shutdown mark cannot be read. An empty mark is not damage, because old
        versions of Apache Kafka write it.
        """
        path = os.path.join(self._directory, CLEAN_SHUTDOWN_FILE)
        size_bytes = self._fs.size(path)
        if size_bytes:
            content = self._fs.open(path).read_at(min(size_bytes, 80), 0)
            damage = Damage(path, 'JSON with the broker epoch', repr(content), True)
            logger.error('%s: what the last clean stop left cannot be verified', damage)
            earlier = self.notes[BESIDE].damages if BESIDE in self.notes else []
            self.notes[BESIDE] = DamageNote(BESIDE, State.SERVED, [*earlier, damage][-MOST_DAMAGES:])
            self._are_notes_stale = True

    # ---- comparing ----

    def run(self) -> None:
        """Compare the directory with the inventory and the damage notes, and log each difference. Change nothing on the
        disk.
        """
        for note in list(self.notes.values()):
            if note.state is State.OFFLINE and note.row:
                self._compare_again(note)
        if self.is_trusted and self._inventory is not None:
            undecided = self._keys_in(State.OFFLINE, State.ACCEPTED)
            for key, expected, damages in compare(self._fs, self._directory, self._inventory, undecided):
                row = self._inventory.rows.get(key, '')
                if expected is not None:
                    self._adopt(key, expected, row)
                if damages:
                    self._note(key, row, damages)
        elif self._is_clean:
            self._find_empty_checkpoints()

    def _find_empty_checkpoints(self) -> None:
        """If there is no inventory, note empty checkpoint files as damage, because every broker writes at least the
        count line.
        """
        damages = []
        for name in (RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE, HIGH_WATERMARK_FILE):
            path = os.path.join(self._directory, name)
            if self._fs.exists(path) and self._fs.size(path) == 0:
                damages.append(Damage(path, 'at least a version and a number of rows', '0 bytes', False))
        if damages:
            self._note(BESIDE, '', damages)

    def _keys_in(self, *states: State) -> set[TopicPartition]:
        return {key for key, note in self.notes.items() if note.state in states}

    def _adopt(self, key: TopicPartition, note: PartitionNote, row: str) -> None:
        self.topic_ids[key] = bytes.fromhex(note.topic_id)
        self.start_offsets[key] = note.start_offset
        self.end_offsets[key] = note.end_offset
        self.rows[key] = row

    def is_released(self, key: TopicPartition) -> bool:
        """Return whether the files of a partition are as a clean stop left them, even if the last stop of the broker
        was unclean.

        This holds if the files match the inventory or the damage note. It also holds if the partition is out of
        service, because no start has written to its files since the note was made.
        """
        return key in self.rows or (key in self.notes and self.notes[key].state is State.OFFLINE)

    def _compare_again(self, note: DamageNote) -> None:
        """Compare the files of a partition that is out of service with its note. If an operator has restored the files,
        put the partition into service.
        """
        expected = PartitionNote.decode(note.row)
        self.topic_ids[note.key] = bytes.fromhex(expected.topic_id)
        damages = compare_partition(self._fs, self._path(note.key), expected)
        if not any(damage.is_loss for damage in damages):
            logger.warning('%s: the files are as before the damage: it is served again', self._path(note.key))
            self._drop(note.key)
            self._adopt(note.key, expected, note.row)
            if damages:
                self._note(note.key, note.row, damages)
        else:
            note.damages = damages[:MOST_DAMAGES]
            self._report(note)

    def _note(self, key: TopicPartition, row: str, damages: list[Damage]) -> None:
        is_loss = any(damage.is_loss for damage in damages)
        earlier = self.notes[key].damages if key in self.notes else []
        note = DamageNote(key, State.OFFLINE if is_loss else State.SERVED,
                          [*(damage for damage in earlier if damage not in damages), *damages][-MOST_DAMAGES:], row)
        self.rows.pop(key, None)
        self.notes[key] = note
        self._are_notes_stale = True
        if not is_loss:
            self._distrusted[key] = frozenset(os.path.basename(damage.file) for damage in damages)
        self._report(note, damages)

    def _report(self, note: DamageNote, damages: Collection[Damage] | None = None) -> None:
        for damage in note.damages if damages is None else damages:
            logger.error('%s: %s', damage, self._consequence(note, damage))

    def _consequence(self, note: DamageNote, damage: Damage) -> str:
        if damage.file.endswith(META_PROPERTIES_FILE):
            return 'it has the identity of this broker'
        if note.key == BESIDE:
            return ('the offsets of the last clean stop are used' if self.is_trusted else
                    'its offsets are unknown, so records that were deleted can appear again')
        if note.state is State.OFFLINE:
            return (f'{note.key[0]}-{note.key[1]} stays offline until its files are restored from a backup, or the '
                    f'loss is accepted with kbroker-check --accept {self._existing(note.key)}')
        return 'records are gone' if damage.is_loss else 'it is rebuilt from the log'

    # ---- deciding ----

    def conclude(self) -> None:
        """Write the notes, and restore each damaged `partition.metadata` from the inventory.

        Raise LogDirectoryError if an internal topic has lost records, because its coordinator would respond without
        these records.
        """
        for key, names in self._distrusted.items():
            if PARTITION_METADATA_FILE in names and key in self.topic_ids:
                path = os.path.join(self._path(key), PARTITION_METADATA_FILE)
                if self._fs.exists(path):
                    self._fs.unlink(path)
                write_topic_id(self._fs, self._path(key), self.topic_ids[key]).sync()
                self._fs.sync_directory(self._path(key))
        self._write()
        for key in sorted(self._keys_in(State.OFFLINE)):
            if key[0] in COORDINATED and self.notes[key].row:
                raise self._refusal(self.notes[key])

    def _refusal(self, note: DamageNote) -> LogDirectoryError:
        return LogDirectoryError(
            f'{note.damages[0]}. The broker does not start without all of {note.key[0]}: restore the files from a '
            f'backup, or accept the loss with kbroker-check --accept {self._existing(note.key)}')

    def distrusted(self, key: TopicPartition) -> frozenset[str]:
        """Return the names of a partition's damaged files that an opening must recover or rebuild."""
        if self.is_accepted(key):
            return frozenset(os.path.basename(damage.file) for damage in self.notes[key].damages)
        return self._distrusted.get(key, frozenset())

    def is_accepted(self, key: TopicPartition) -> bool:
        """Return whether an operator accepted the damage of a partition."""
        return key in self.notes and self.notes[key].state is State.ACCEPTED

    def failure(self, key: TopicPartition) -> KafkaError | None:
        """Return an error if the partition must not be opened, None if it may be opened."""
        note = self.notes.get(key)
        if note is None or note.state is not State.OFFLINE or not note.row:
            return None
        return self._error(note)

    def _error(self, note: DamageNote) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f'{note.key[0]}-{note.key[1]} is offline: {note.damages[0]}')

    def offline(self) -> list[DamageNote]:
        """Return the notes of the partitions that stay out of service."""
        return [self.notes[key] for key in sorted(self._keys_in(State.OFFLINE))]

    def expected_end_offset(self, key: TopicPartition, in_checkpoints: int) -> int:
        """Return the lowest end offset that the log of a partition may have.

        `in_checkpoints` is the offset according to the checkpoints. It is used only if the partition's files were not
        compared with a note.
        """
        note = self.notes.get(key)
        if note is not None and note.state is State.OFFLINE:
            return note.expected_end_offset
        is_known = self.is_trusted or key in self.rows or self.is_accepted(key)
        return 0 if is_known else in_checkpoints

    def take_offline(self, key: TopicPartition, error: CorruptLogError, expected_end_offset: int) -> KafkaError:
        """Write a damage note for a partition that could not be opened after a clean stop, and return the error for
        clients. Raise LogDirectoryError if the partition belongs to an internal topic. Raise OSError.
        """
        file, _, what = str(error).partition(': ')
        found, _, expected = what.removeprefix('found ').partition(', expected ')
        damage = Damage(file, expected or 'a sound log', found, True)
        note = DamageNote(key, State.OFFLINE, [damage], '', expected_end_offset)
        self.notes[key] = note
        self._report(note)
        self._are_notes_stale = True
        self._write()
        if key[0] in COORDINATED:
            raise self._refusal(note)
        return self._error(note)

    def opened(self, key: TopicPartition, log_end_offset: int, expected_end_offset: int) -> None:
        """Register that a partition was opened. If its log ends below `expected_end_offset`, add a damage note.
        Recovery has already logged the loss.
        """
        note = self.notes.get(key)
        if note is not None and note.state is State.OFFLINE:
            logger.warning('%s: reaches offset %d again: it is served again', self._path(key), log_end_offset)
            self._drop(key)
        if log_end_offset < expected_end_offset:
            path = self._path(key)
            damage = Damage(path, f'{expected_end_offset} as in the checkpoints', f'the end of the log at offset '
                                                                                  f'{log_end_offset}', True)
            self.notes[key] = DamageNote(key, State.SERVED, [damage])
            self._are_notes_stale = True

    def forget_files(self, key: TopicPartition) -> None:
        """Forget what the inventory says about a partition whose directory is now out of use. A new topic of the same
        name may reach the same offsets, but has different files.
        """
        for known in (self.rows, self.start_offsets, self.end_offsets, self.topic_ids, self._distrusted):
            known.pop(key, None)

    def forget(self, keys: Collection[TopicPartition]) -> None:
        """Remove the damage notes of deleted partitions. Raise OSError."""
        for key in keys:
            if key in self.notes:
                self._drop(key)
        self._write()

    def finish(self) -> None:
        """End the start: remove the notes of accepted damage. Raise OSError."""
        for key in self._keys_in(State.ACCEPTED):
            logger.warning('%s: served as it is: its damage was accepted', self._path(key))
            self._drop(key)
        self._write()

    def _drop(self, key: TopicPartition) -> None:
        del self.notes[key]
        self._are_notes_stale = True

    def _write(self) -> None:
        if self._are_notes_stale:
            write_notes(self._fs, self._directory, self.notes)
            self._are_notes_stale = False

    def _path(self, key: TopicPartition) -> str:
        return self._directory if key == BESIDE else os.path.join(self._directory, f'{key[0]}-{key[1]}')

    def _existing(self, key: TopicPartition) -> str:
        """Return the path of a partition, to be shown in a command line. Return the path of the log directory if the
        partition has no directory.
        """
        path = self._path(key)
        return path if self._fs.exists(path) else self._directory

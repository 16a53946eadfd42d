"""Reports and accepts the damage of a log directory, for `kbroker-check`.

Damage is known from the notes of earlier starts, or from a comparison with the inventory.
"""
from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping

from kbroker.base.errors import CorruptLogError, LogDirectoryError
from kbroker.base.topic_partition import TopicPartition
from kbroker.log.check import Finding, Remedy, Severity
from kbroker.log.damage_notes import BESIDE, DAMAGE_FILE, METADATA, DamageNote, State, read_notes, write_notes
from kbroker.log.fs import FileSystem
from kbroker.log.inventory import (
    INVENTORY_FILE,
    Damage,
    Inventory,
    PartitionNote,
    compare_beside,
    compare_partition,
    read_clean_shutdown,
    read_inventory,
)
from kbroker.log.verification import TRACES, Past

HINTS = {
    State.OFFLINE: ('a start keeps the partition offline until its files are restored or the loss is accepted',
                    'stop the broker and restore the files of the last clean stop from a backup. Without one, {accept} '
                    'lets the next start serve what is there'),
    State.SERVED: ('a start found this', 'nothing, if the records are not missed: {accept} removes this note'),
    State.ACCEPTED: ('accepted: the next start takes it as it is', 'start the broker'),
}
"""Maps each state of a note to its description and the advice to the operator."""
CHANGED = ('changed since the last clean stop',
           'restore the files of the last clean stop from a backup. Without one, {accept} lets the next start serve '
           'what is there')
REBUILT = ('changed since the last clean stop', 'nothing: the next start rebuilds what the logs and the inventory have')


def noted_damage(fs: FileSystem, log_directory: str) -> list[Finding]:
    """Return the damage in the notes of earlier starts. Raise OSError."""
    try:
        notes = read_notes(fs, log_directory)
    except LogDirectoryError as error:
        return [Finding.of(Severity.ERROR, os.path.join(log_directory, DAMAGE_FILE), -1, str(error))]
    return [_finding(damage, HINTS[note.state], is_error=damage.is_loss and note.state is not State.ACCEPTED)
            for note in notes.values() for damage in note.damages]


def new_damage(fs: FileSystem, log_directory: str) -> list[Finding]:
    """Return the differences from the inventory that the next start will find. Raise OSError.

    Files that cannot be read are omitted: the checks of their contents report them.
    """
    try:
        notes = read_notes(fs, log_directory)
        undecided = {key for key, note in notes.items() if note.state is not State.SERVED}
        return [_finding(damage, CHANGED if damage.is_loss else REBUILT, is_error=True)
                for _, damage in _differences(fs, log_directory, undecided)]
    except LogDirectoryError:
        return []       # `noted_damage` reports the notes
    except CorruptLogError as error:
        return [Finding.of(Severity.ERROR, os.path.join(log_directory, INVENTORY_FILE), -1, str(error), None,
                           'nothing: the next start compares less, and writes another one when it stops')]


def _finding(damage: Damage, hint: tuple[str, str], *, is_error: bool) -> Finding:
    return Finding.of(Severity.ERROR if is_error else Severity.WARNING, damage.file, -1,
                      f'found {damage.found}, expected {damage.expected}; {hint[0]}', None, hint[1])


def _differences(fs: FileSystem, log_directory: str,
                 except_for: Collection[TopicPartition]) -> Iterator[tuple[TopicPartition, Damage]]:
    """Yield the differences from the inventory. Yield nothing if a broker has started since the inventory was written.
    Raise CorruptLogError, OSError.
    """
    inventory = trusted_inventory(fs, log_directory)
    if inventory is None:
        return
    with contextlib.suppress(OSError):
        for damage in compare_beside(fs, log_directory, inventory.beside):
            yield BESIDE, damage
    for (topic, partition), row in inventory.rows.items():
        if (topic, partition) not in except_for:
            path = os.path.join(log_directory, f'{topic}-{partition}')
            with contextlib.suppress(OSError):
                for damage in compare_partition(fs, path, PartitionNote.decode(row)):
                    yield (topic, partition), damage


def past_of(fs: FileSystem, log_directory: str, topic_ids: dict[TopicPartition, bytes]) -> Past:
    """Return the evidence that the other files of a stopped log directory contain about its metadata log. Raise
    OSError.
    """
    try:
        noted, trusted = read_inventory(fs, log_directory), trusted_inventory(fs, log_directory)
    except CorruptLogError:
        noted = trusted = None
    if trusted is not None:
        topic_ids = {key: topic_id for key, topic_id in topic_ids.items() if key in trusted.rows}
    trace = next((name for name in TRACES if fs.exists(os.path.join(log_directory, name))), None)
    return Past(topic_ids, 0 if noted is None else noted.metadata_end_offset, trace, is_accepted=False)


def trusted_inventory(fs: FileSystem, log_directory: str) -> Inventory | None:
    """Return the inventory if it describes the last stop. Raise CorruptLogError, OSError."""
    inventory = read_inventory(fs, log_directory)
    is_clean, broker_epoch = read_clean_shutdown(fs, log_directory)
    return inventory if inventory is not None and is_clean and inventory.broker_epoch == broker_epoch >= 0 else None


def lost_batches(findings: Iterable[Finding]) -> list[Damage]:
    """Return the errors from `findings` that mean damage to a log. A start mends this damage after an operator has
    accepted the loss.
    """
    return [Damage(finding.file, 'a sound batch', finding.message.removeprefix('found '), True) for finding in findings
            if finding.severity is Severity.ERROR
            and finding.remedy in (Remedy.KEEP_SOUND_BATCHES, Remedy.CUT_TORN_TAIL)]


def accept_damage(fs: FileSystem, log_directory: str, only: TopicPartition | None,
                  found: Mapping[TopicPartition, list[Damage]], *, metadata: bool) -> list[TopicPartition]:
    """Let the next start accept that records are lost, and remove notes of damage. Return the accepted damage.

    `found` is the damage that no start has noted. `only` restricts the call to one partition. With `metadata`, damage
    of the metadata log is accepted too. The caller must hold the lock of the log directory. Raise OSError,
    CorruptLogError, LogDirectoryError.
    """
    notes = read_notes(fs, log_directory)
    accepted: dict[TopicPartition, None] = {}
    for key, note in list(notes.items()):
        if only in (None, key):
            accepted[key] = None
            if note.state is State.SERVED:
                del notes[key]
            else:
                note.state = State.ACCEPTED
    for key, damage in _differences(fs, log_directory, set(notes)):
        if damage.is_loss and only in (None, key):
            accepted[key] = None
            notes.setdefault(key, DamageNote(key, State.ACCEPTED)).damages.append(damage)
    for key, damages in found.items():
        if damages and only in (None, key):
            accepted[key] = None
            notes.setdefault(key, DamageNote(key, State.ACCEPTED)).damages.extend(damages)
    if metadata and only in (None, METADATA):
        accepted[METADATA] = None
        notes[METADATA] = DamageNote(METADATA, State.ACCEPTED)
    if accepted:
        write_notes(fs, log_directory, notes)
        path = os.path.join(log_directory, DAMAGE_FILE)
        if fs.exists(path):
            fs.take_after(path, log_directory)
    return list(accepted)


def forget_partitions(fs: FileSystem, log_directory: str, keys: Collection[TopicPartition]) -> None:
    """Remove partitions from the inventory, because a repair has changed their files. Raise OSError."""
    try:
        inventory = read_inventory(fs, log_directory)
    except CorruptLogError:
        return
    if inventory is not None and not inventory.rows.keys().isdisjoint(keys):
        inventory.rows = {key: row for key, row in inventory.rows.items() if key not in keys}
        inventory.write(fs, log_directory)
        fs.take_after(os.path.join(log_directory, INVENTORY_FILE), log_directory)

"""The files that attempts leave behind: those of task attempts that failed, and of attempts whose commit failed.

Before its first file, an attempt writes a marker, a small file with its name. So each later run finds the directory of
the attempt, whatever happened to its driver. A run that is in the table cannot be committed again. All files of its
attempts that the table does not name can therefore be deleted at once. Attempts at a newer run may have a live driver,
so their files stay until that run is in the table.

A task that outlives its driver may write files after its marker is gone. VACUUM and `remove_orphan_files` delete those.
"""
from __future__ import annotations

from collections.abc import Callable

from kbroker_tools.spark.lake.probe import probe
from kbroker_tools.spark.lake.table_format import Attempt, State, TableFormat, TableUnavailable
from kbroker_tools.spark.ledger import IngestError


def begin(table: TableFormat, attempt: Attempt) -> None:
    """Write the marker of an attempt, then probe the store if this process has not done so.

    Raise OSError or TableUnavailable if the store fails, and IngestError if it cannot keep two commits apart.
    """
    table.store.put(_marker(table, attempt), b'{}\n')
    try:
        probe(table, attempt)
    except IngestError:
        discard(table, attempt)
        raise


def finish(table: TableFormat, state: State, attempt: Attempt) -> list[str]:
    """Delete what the run of this attempt has left behind. The attempt is committed, and the state is newer.

    Return notes for the user about leftovers that stay, because the store did not list or delete them. The rows are in
    the table, so this is no failure. The next run tries again.
    """
    return [*_settle(table, state, attempt), *_clean(table, state, other_than=attempt)]


def discard(table: TableFormat, attempt: Attempt) -> list[str]:
    """Delete the files of an attempt that is in no version of the table, and its marker. Return notes as `finish`
    does."""
    return _noted(table, attempt, lambda: _delete_all(table, attempt))


def clean(table: TableFormat, state: State) -> list[str]:
    """Delete what attempts of this job at committed runs have left behind. Return notes as `finish` does."""
    return _clean(table, state)


def _clean(table: TableFormat, state: State, other_than: Attempt | None = None) -> list[str]:
    if state.record is None:
        return []
    try:
        names = [path.rpartition('/')[2] for path in table.store.list(table.markers)]
    except OSError as error:
        return [f'{table.store.root}/{table.markers}: files of failed attempts cannot be looked for: {_text(error)}']
    found = (Attempt.named(name) for name in names)
    return [note for each in found if each and each != other_than
            and each.job == state.record.job and each.run <= state.record.run
            for note in _settle(table, state, each)]


def _settle(table: TableFormat, state: State, attempt: Attempt) -> list[str]:
    def delete() -> None:
        committed = table.committed_files(state, attempt)
        if committed is None:           # The files may be in use. VACUUM deletes them if they are not.
            table.store.delete(_marker(table, attempt))
        elif committed:
            for path in table.store.list(table.directory(attempt)):
                if path not in committed:
                    table.store.delete(path)
            table.store.prune(table.directory(attempt))
            table.store.delete(_marker(table, attempt))
        else:
            _delete_all(table, attempt)
    return _noted(table, attempt, delete)


def _delete_all(table: TableFormat, attempt: Attempt) -> None:
    table.store.delete_directory(table.directory(attempt))
    table.store.delete(_marker(table, attempt))


def _noted(table: TableFormat, attempt: Attempt, delete: Callable[[], None]) -> list[str]:
    try:
        delete()
    except (OSError, TableUnavailable, IngestError) as error:
        return [f'{table.store.root}/{table.directory(attempt)}: files of run {attempt.run} that the table does not '
                f'have cannot be deleted: {_text(error)}; the next run tries again']
    return []


def _marker(table: TableFormat, attempt: Attempt) -> str:
    return f'{table.markers}/{attempt.name}'


def _text(error: Exception) -> str:
    return ' '.join(str(error).split())

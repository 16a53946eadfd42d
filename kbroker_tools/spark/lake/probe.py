"""The probe of a store: does it let only one of two writers create an object?

A Delta table in an object store relies on this. A commit puts the file of the next version with `If-None-Match: *`, so
of two commits at one version the store refuses one. A store that ignores the header accepts both. The second commit
replaces the first, whose rows are lost.

The other tables need no probe. A catalog decides which of two commits to an Iceberg table wins, and the store only has
files with unique names. On a local disk, a Delta commit renames its file to a name that must not exist.

delta-rs looks for a newer version before it puts its own, so two commits one after the other never meet in the store.
The probe therefore lets several writers commit the same version of a scratch table at the same time. They are those of
the real commits, with the same settings and credentials. Two that succeed show that the store ignores the header.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kbroker_tools.spark.lake.table_format import Attempt, TableFormat, TableUnavailable
from kbroker_tools.spark.ledger import IngestError

if TYPE_CHECKING:
    from deltalake import DeltaTable

WRITERS = 4
ROUNDS = 2
"""The races. In a store that ignored the header, 40 of 40 races had three or four winners, on two busy cores. A race
takes about 50 requests."""
LIMIT_S = 120

_probed: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
"""The tables that passed the probe in this process, with the settings of their stores."""


@runtime_checkable
class DecidedByPut(Protocol):
    """A table format whose store may decide between commits."""

    put_decides: tuple[str, Mapping[str, str]] | None
    """The URI of the table and the settings of its store, if a conditional put decides which of two commits wins."""


def probe(table: TableFormat, attempt: Attempt) -> None:
    """Probe the store of a table, once in a process. Do nothing if the store does not decide between commits. The
    scratch table is among the files of the attempt, so later runs delete what a crash leaves of it.

    Raise IngestError if the store accepts two commits of one version, and TableUnavailable if it fails.
    """
    if not isinstance(table, DecidedByPut) or table.put_decides is None:
        return
    uri, settings = table.put_decides
    key = (uri, tuple(sorted(settings.items())))
    if key in _probed:
        return
    scratch = f'{table.directory(attempt)}/probe'
    winners = max(_race(f'{uri}/{scratch}', settings) for _ in range(ROUNDS))
    with suppress(OSError):
        table.store.delete_directory(scratch)
    if winners > 1:
        raise IngestError(
            f'{uri}: the store accepted {winners} writers of one object, expected 1; it ignores the header '
            'If-None-Match, so commits would replace each other; use a store with conditional writes')
    _probed.add(key)


def _race(uri: str, settings: Mapping[str, str]) -> int:
    """Let several writers commit one version. Return how many succeeded."""
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError, DeltaError
    options = dict(settings)
    try:
        with suppress(CommitFailedError):   # it exists, also if the reply to its creation was lost
            DeltaTable.create(uri, pa.schema([('probe', pa.int64())]), mode='ignore', storage_options=options)
        tables = [DeltaTable(uri, storage_options=options) for _ in range(WRITERS)]
        barrier = Barrier(WRITERS, timeout=LIMIT_S)
        with ThreadPoolExecutor(WRITERS) as threads:
            return sum(threads.map(lambda each: _commits(each, barrier), tables))
    except (DeltaError, OSError) as error:
        raise TableUnavailable(f'{uri}: {_plain(error)}') from error


def _plain(error: Exception) -> str:
    """Return the text of an error in one line, without the colors that delta-rs puts into it."""
    return ' '.join(re.sub(r'\x1b\[[\d;]*m', '', str(error)).split())


def _commits(table: DeltaTable, barrier: Barrier) -> bool:
    """Commit nothing as the next version. Return False if the version exists."""
    from deltalake import CommitProperties
    from deltalake.exceptions import CommitFailedError
    barrier.wait()
    try:
        table.create_write_transaction([], 'append', table.schema(),
                                       commit_properties=CommitProperties(max_commit_retries=0))
    except CommitFailedError:
        return False
    return True

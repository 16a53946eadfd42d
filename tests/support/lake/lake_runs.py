"""Runs of ingests into tables, in processes that are killed, held or fail at a step.

The production code has no hooks. The process of a run wraps the table and the runner, and acts between their calls.
"""
from __future__ import annotations

import os
import pathlib
import signal
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from kbroker_tools.spark.ingest_source import IngestSource
from kbroker_tools.spark.lake.runners import ProcessRunner
from kbroker_tools.spark.lake.table_format import FileWriter, ReplyLost, TableFormat

LIMIT_S = 120
JOB = 'default'
KILL, HOLD, LOSE, FAIL = 'kill', 'hold', 'lose', 'fail'
BEFORE_WRITE, FILES_WRITTEN, BEFORE_COMMIT, COMMITTED = 'before_write', 'files_written', 'before_commit', 'committed'
STEPS = (BEFORE_WRITE, FILES_WRITTEN, BEFORE_COMMIT, COMMITTED)
CONTEXT = get_context('forkserver')
"""Its server imports the libraries once, and forks a process for each run."""
CONTEXT.set_forkserver_preload(['kbroker_tools.spark.lake.job', 'kbroker_tools.spark.lake.iceberg_private', 'deltalake',
                                'kbroker_tools.spark.broker_place', 'pyarrow.parquet', 'pyarrow.compute',
                                'pyiceberg.catalog.sql', 'pyiceberg.io.pyarrow', 'support.lake.lake_runs'])


@dataclass(frozen=True)
class Place:
    """A table: its format, where it is, and the settings by which a process opens it. It can be pickled."""

    kind: str
    name: str
    store: Mapping[str, str]
    catalog: Mapping[str, str] = field(default_factory=dict)

    def open(self) -> TableFormat:
        return self.type()(*self.arguments)

    def type(self) -> type[Any]:
        if self.kind == 'iceberg':
            from kbroker_tools.spark.lake.iceberg import IcebergTable
            return IcebergTable
        from kbroker_tools.spark.lake.delta import DeltaLakeTable
        return DeltaLakeTable

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (self.name, self.catalog, self.store) if self.kind == 'iceberg' else (self.name, self.store)


@dataclass(frozen=True)
class Act:
    """An act of a run: at a step, it is killed, waits, or fails. `lose` loses the reply to a commit that succeeded."""

    at: str = ''
    what: str = KILL
    task: str = ''
    """`fail` or `kill`: the first attempt at a task does so after it has written a file."""
    workers: int = 1
    job: str = JOB


@dataclass(frozen=True)
class FaultyWriter:
    """A writer that fails once among all processes, after it has written a file."""

    inner: FileWriter
    how: str
    flag: pathlib.Path

    def write(self, rows: Any, name: str) -> list[bytes]:
        files = self.inner.write(rows, name)
        try:
            os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return files
        if self.how == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError('the task fails after it has written a file')


class ActingTable:
    """A part of a table class that acts at steps. The other part is the class of the format."""

    act: Act
    flag: pathlib.Path
    events: tuple[Any, Any]
    has_acted = False

    def step(self, name: str) -> None:
        if name != self.act.at or self.has_acted:
            return
        self.has_acted = True
        if self.act.what == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.act.what == HOLD:
            arrived, go = self.events
            arrived.set()
            assert go.wait(LIMIT_S)
        if self.act.what == LOSE:
            raise ReplyLost('the reply is lost')
        if self.act.what == FAIL:
            raise OSError('the run fails')

    def writer(self, *arguments: Any) -> Any:
        self.step(BEFORE_WRITE)
        writer = super().writer(*arguments)     # type: ignore[misc]
        return FaultyWriter(writer, self.act.task, self.flag) if self.act.task else writer

    def commit(self, *arguments: Any) -> Any:
        self.step(BEFORE_COMMIT)
        version = super().commit(*arguments)    # type: ignore[misc]
        self.step(COMMITTED)
        return version


class ActingRunner(ProcessRunner):
    def __init__(self, workers: int, table: ActingTable):
        super().__init__(workers)
        self._table = table

    def run(self, *arguments: Any) -> Any:
        written = super().run(*arguments)
        self._table.step(FILES_WRITTEN)
        return written


@dataclass(frozen=True)
class Outcome:
    """The result of a process. `error` is None if its run succeeded."""

    exit_code: int | None
    run: int | None = None
    rows: int = 0
    notes: Sequence[str] = ()
    error: str | None = None


class Driver:
    """A process that runs the job once."""

    def __init__(self, place: Place, address: str, topics: Sequence[str], flag: pathlib.Path, act: Act):
        self.arrived, self.go = CONTEXT.Event(), CONTEXT.Event()
        self._result, sender = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=_drive, args=(place, address, list(topics), flag, act,
                                                             (self.arrived, self.go), sender))
        self._process.start()
        sender.close()
        self._outcome: Outcome | None = None

    def await_step(self) -> None:
        """Wait until the run waits at its step."""
        assert self.arrived.wait(LIMIT_S), self.outcome()

    def kill(self) -> None:
        self._process.kill()

    def release(self) -> None:
        self.go.set()

    def outcome(self) -> Outcome:
        """Wait for the end of the process."""
        if self._outcome is None:
            try:
                found = self._result.recv() if self._result.poll(LIMIT_S) else {}
            except EOFError:
                found = {}
            self._process.join(LIMIT_S)
            self._result.close()
            self._outcome = Outcome(self._process.exitcode, **found)
        return self._outcome


def _drive(place: Place, address: str, topics: list[str], flag: pathlib.Path, act: Act, events: tuple[Any, Any],
           sender: Connection) -> None:
    from kbroker_tools.spark.lake import rows
    from kbroker_tools.spark.lake.job import TableJob
    acting: Any = type('Acting', (ActingTable, place.type()), {})(*place.arguments)
    acting.act, acting.flag, acting.events = act, flag, events
    if act.workers > 1:
        rows.LEAST_BYTES = 1        # a few rows are enough for several tasks
    runner = ActingRunner(act.workers, acting)
    try:
        result = TableJob(IngestSource(address, topics), acting, act.job).run(runner, lambda ended, total: None)
        sender.send({'run': result.run, 'rows': result.rows, 'notes': list(result.notes)})
    except Exception as error:      # the test decides which one is right
        sender.send({'error': f'{type(error).__name__}: {error}\n{traceback.format_exc()}'})
    finally:
        runner.stop()


# ---- what is in the table and its store

def rows_in(place: Place) -> list[tuple[Any, ...]]:
    """Return (topic, partition, offset, key, value) of all rows, read by the library of the format."""
    columns = ('topic', 'partition', 'offset', 'key', 'value')
    if place.kind == 'iceberg':
        state = place.open().load(JOB)
        if state is None:
            return []
        table = state.handle.scan(selected_fields=columns).to_arrow()
    else:
        from deltalake import DeltaTable
        if not DeltaTable.is_deltatable(place.name, dict(place.store)):
            return []
        table = DeltaTable(place.name, storage_options=dict(place.store)).to_pyarrow_table(columns=list(columns))
    return sorted(zip(*(table.column(name).to_pylist() for name in columns), strict=True))


def files_of(place: Place) -> tuple[set[str], set[str], list[str]]:
    """Return the data files that any version of the table names, the data files in the store, and the markers of
    attempts. Paths are relative to the location of the table."""
    table = place.open()
    state = table.load(JOB)
    assert state is not None
    store = table.store
    paths = list(store.list(''))
    stored = {path for path in paths if path.endswith('.parquet') and not path.startswith('_delta_log/')}
    markers = [path for path in paths if path.startswith(f'{table.markers}/')]
    if place.kind == 'iceberg':
        handle = state.handle
        names = handle.inspect.all_data_files().column('file_path').to_pylist() if handle.snapshots() else []
        location = handle.metadata.location.rstrip('/')
        return {name.removeprefix(f'{location}/') for name in names}, stored, markers
    named = set()
    for path in paths:
        if path.startswith('_delta_log/') and path.endswith('.json'):
            named |= _added(store.filesystem, f'{store.root}/{path}')
    return named, stored, markers


def _added(filesystem: Any, path: str) -> set[str]:
    import json
    from urllib.parse import unquote
    with filesystem.open_input_stream(path) as stream:
        actions = [json.loads(line) for line in stream.read().splitlines()]
    return {unquote(action['add']['path']) for action in actions if 'add' in action}

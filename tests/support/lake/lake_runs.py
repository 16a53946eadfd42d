"""Runs of ingests into tables, in processes that are killed, held or fail at a step.

The production code has no hooks. The process of a run wraps the table and the runner, and acts between their calls.
"""
from __future__ import annotations

import os
import pathlib
import signal
import socket
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from support.runner.process_sessions import kill_session, virtual_machine_above

from kbroker_tools.spark.ingest_source import IngestSource
from kbroker_tools.spark.lake.runners import ProcessRunner
from kbroker_tools.spark.lake.table_format import FileWriter, ReplyLost, TableFormat

LIMIT_S = 240
JOB = 'default'
KILL, HOLD, LOSE, FAIL = 'kill', 'hold', 'lose', 'fail'
KILL_EXECUTOR, WAIT, WAIT_FIRST = 'kill executor', 'wait', 'wait first'
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
    """The act of the first attempt at a task after it has written a file: `fail`, `kill`, `kill executor`, or `wait`
    until the connection to `listener` is closed. `wait first` waits before it writes."""
    listener: tuple[str, int] | None = None
    master: str = ''
    """The master of a Spark cluster on which tasks run, with more settings. Without it, processes run them."""
    settings: Mapping[str, str] = field(default_factory=dict)
    workers: int = 1
    job: str = JOB


@dataclass(frozen=True)
class FaultyWriter:
    """A writer that acts once among all processes."""

    inner: FileWriter
    act: Act
    flag: pathlib.Path

    def write(self, rows: Any, name: str) -> list[bytes]:
        if self.act.task == WAIT_FIRST and self._is_first():
            self._wait()
        files = self.inner.write(rows, name)
        if self.act.task != WAIT_FIRST and self._is_first():
            self._do()
        return files

    def _is_first(self) -> bool:
        try:
            os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _do(self) -> None:
        if self.act.task == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.act.task == FAIL:
            raise RuntimeError('the task fails after it has written a file')
        if self.act.task == KILL_EXECUTOR:
            os.kill(virtual_machine_above(os.getpid()), signal.SIGKILL)
        if self.act.task == WAIT:
            self._wait()

    def _wait(self) -> None:
        """Send the id of this process to the test, and wait until the test ends the connection."""
        assert self.act.listener is not None
        with socket.create_connection(self.act.listener) as connection:
            connection.sendall(f'{os.getpid()}\n'.encode())
            connection.recv(1)


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
        return FaultyWriter(writer, self.act, self.flag) if self.act.task else writer

    def commit(self, *arguments: Any) -> Any:
        self.step(BEFORE_COMMIT)
        version = super().commit(*arguments)    # type: ignore[misc]
        self.step(COMMITTED)
        return version


class ActingRunner:
    """A part of a runner class that acts after all tasks have written. The other part is the class of the runner."""

    table: ActingTable

    def run(self, *arguments: Any) -> Any:
        written = super().run(*arguments)       # type: ignore[misc]
        self.table.step(FILES_WRITTEN)
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
        self.act, self.flag = act, flag
        """A file that exists after a task has acted."""
        self.arrived, self.go = CONTEXT.Event(), CONTEXT.Event()
        self._result, sender = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(target=_drive, args=(place, address, list(topics), flag, act,
                                                             (self.arrived, self.go), sender))
        self._process.start()
        sender.close()
        self._outcome: Outcome | None = None
        self._has_session = bool(act.master)

    def await_step(self) -> None:
        """Wait until the run waits at its step."""
        assert self.arrived.wait(LIMIT_S), self.outcome()

    def kill(self) -> None:
        """Kill the process, and the virtual machine and the workers of its Spark session."""
        if self._has_session and self._process.is_alive():
            kill_session(self._process.pid)
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
    # A run in this process writes small files. Threads write all but the last.
    is_threaded = not act.master and act.workers == 1
    kind, *arguments = _spark(act, flag) if act.master else (ProcessRunner, act.workers, 2 if is_threaded else 0)
    runner: Any = type('Runner', (ActingRunner, kind), {'table': acting})(*arguments)
    source = IngestSource(address, topics, {'batchRows': '7'} if is_threaded else {})
    small: Any = {'target_bytes': 1} if is_threaded else {}
    try:
        result = TableJob(source, acting, act.job, **small).run(runner, lambda ended, total: None)
        sender.send({'run': result.run, 'rows': result.rows, 'notes': list(result.notes)})
    except Exception as error:      # the test decides which one is right
        sender.send({'error': f'{type(error).__name__}: {error}\n{traceback.format_exc()}'})
    finally:
        runner.stop()


def _spark(act: Act, flag: pathlib.Path) -> tuple[Any, Any]:
    """Return the class of the runner for a Spark session, and its argument. The processes of the session have a session
    of their own, in the sense of the kernel, by which they are killed."""
    from support.spark.spark_cluster import VARIABLES
    from support.spark.spark_driver import make_session
    from support.spark.spark_machine import quick_start

    from kbroker_tools.spark.lake.runners import SparkRunner
    os.setsid()
    os.environ.update(quick_start() | VARIABLES)
    directory = flag.with_suffix('.spark')
    directory.mkdir()
    return SparkRunner, make_session(act.master, directory, dict(act.settings)).sparkContext


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

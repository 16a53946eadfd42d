"""Delta tables, through delta-rs.

Each commit names one version and is sent once: delta-rs must not repeat it on a newer state. So of two drivers, one
gets the version, and the other loads the table again. No commit of another driver fits between property and files.

RESTORE removes rows and keeps `txn` actions. `load` looks for it in the log, from the newest version back to the newest
run of the job. A RESTORE that the cleanup of the log has deleted remains unnoticed, unless it removed the property.
"""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from kbroker_tools.spark.ingest_source import DATE
from kbroker_tools.spark.lake.columns import is_extended
from kbroker_tools.spark.lake.delta_files import DeltaFileWriter
from kbroker_tools.spark.lake.delta_log import DeltaLog, Txns
from kbroker_tools.spark.lake.delta_record import (
    changed_facts,
    is_of,
    marks,
    read_facts,
    record_of,
    run_mark,
    valid_facts,
    versions,
)
from kbroker_tools.spark.lake.delta_store import check_settings, failure, location, one_line, open_store
from kbroker_tools.spark.lake.store import Store
from kbroker_tools.spark.lake.table_format import (
    PROPERTY,
    Attempt,
    FileWriter,
    JobRecord,
    Refused,
    ReplyLost,
    State,
    record_text,
)
from kbroker_tools.spark.ledger import IngestError

FEATURES = {'appendOnly', 'changeDataFeed', 'checkConstraints', 'deletionVectors', 'domainMetadata', 'generatedColumns',
            'invariants', 'timestampNtz', 'v2Checkpoint', 'vacuumProtocolCheck', 'variantType', 'variantType-preview'}
"""The writer features of a table to which an append of files needs no further work."""
ROWS_CHECKED = ('delta.generationExpression', 'delta.identity.start', 'delta.invariants')
"""The metadata of columns whose values a writer has to compute or check."""
PARTITION_TYPES = (pa.string(), pa.int32(), pa.int64(), pa.bool_(), pa.date32())


@dataclass(frozen=True)
class Loaded:
    """A version of the table, as `State.handle`."""

    table: DeltaTable
    txns: Txns


class DeltaLakeTable:
    """A Delta table at a path or URI. `store` has the settings of delta-rs, such as AWS_ENDPOINT_URL."""

    markers = '_kbroker'
    """The directory of the markers, which readers and VACUUM ignore because of its underscore."""

    def __init__(self, uri: str, store: Mapping[str, str]):
        self.name = uri
        self._where = location(uri)
        self._settings = dict(store)
        self._log: DeltaLog | None = None
        self._unrestored: dict[str, tuple[str, int, int]] = {}
        """The id of the table, the newest run of a job, and a version up to which the log has no RESTORE after it."""

    @property
    def store(self) -> Store:
        return open_store(self._where, self._settings)

    @property
    def put_decides(self) -> tuple[str, Mapping[str, str]] | None:
        """The URI and the settings of an object store, whose conditional put decides between two commits."""
        return (self._where, self._settings) if '://' in self._where else None

    # ---- the table

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Create the table. Do nothing if it exists by now. Raise IngestError if Delta has no such columns."""
        wanted = self.columns(schema, partition_by)
        for name in partition_by:
            if wanted.field(name).type not in PARTITION_TYPES:
                raise IngestError(f'--partition-by: found {name} of type {wanted.field(name).type}, expected a string, '
                                  'an integer, a boolean or the date for a Delta table')
        try:
            made = DeltaTable.create(self._where, self._delta_schema(wanted), mode='ignore',
                                     partition_by=list(partition_by), storage_options=self._settings)
            self._opened_log().sync(made.version())
        except (DeltaError, OSError, ValueError) as error:
            if not (isinstance(error, CommitFailedError) or 'already exists' in str(error)) or not self._open():
                raise failure(f'{self.name}: cannot create the table', error) from None

    @staticmethod
    def columns(schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        """Return the columns of a table for these rows, with `date` if it is partitioned by it."""
        if DATE in partition_by and DATE not in schema.names:
            return schema.append(pa.field(DATE, pa.date32()))
        return schema

    def _delta_schema(self, schema: pa.Schema) -> Schema:
        for field in schema:
            try:
                Schema.from_arrow(pa.schema([field]))
            except Exception:  # delta-rs raises no narrower class here
                raise IngestError(f'{self.name}: found column {field.name} of type {field.type}, expected a type that '
                                  'Delta tables have') from None
        return Schema.from_arrow(schema)

    def _open(self) -> DeltaTable | None:
        check_settings(self.name, self._settings)
        try:
            return DeltaTable(self._where, storage_options=self._settings)
        except TableNotFoundError as error:
            if 'Unknown scheme' in str(error):
                raise failure(self.name, error) from None
            return None
        except (DeltaError, OSError, ValueError) as error:
            raise failure(self.name, error) from None

    def _opened_log(self) -> DeltaLog:
        if self._log is None:
            self._log = DeltaLog(self.store)
        return self._log

    def load(self, job: str) -> State | None:
        """Return the newest state of the table, and None if it does not exist.

        `record` is None if the job has committed nothing, also if the table has rows of other programs. A table that
        has the property of the job without its `txn` actions is refused: a clone or a conversion has lost them, so the
        next offsets are unknown.
        """
        table = self._open()
        if table is None:
            return None
        self._refuse_unfit(table)
        try:
            txns = self._opened_log().txns(str(table.metadata().id), table.version())
            record, rolled_back = self._record(table, txns, job)
        except (OSError, DeltaError, ValueError, LookupError, TypeError) as error:
            raise failure(f'{self.name}: cannot read the log', error) from None
        return State(Loaded(table, txns), pa.schema(table.schema().to_arrow()),
                     list(table.metadata().partition_columns), record, rolled_back, str(table.version()))

    def _refuse_unfit(self, table: DeltaTable) -> None:
        """Raise IngestError if an append of files would break the table."""
        settings, protocol = table.metadata().configuration, table.protocol()
        found = [f'{name}={settings[name]}' for name in sorted(settings)
                 if name.startswith('delta.constraints.') or name == 'delta.setTransactionRetentionDuration'
                 or (name == 'delta.columnMapping.mode' and settings[name] != 'none')]
        found += [f'writer feature {name}' for name in sorted(set(protocol.writer_features or []) - FEATURES)]
        if protocol.min_writer_version > 7:
            found.append(f'writer version {protocol.min_writer_version}')
        schema = table.schema().to_json()
        found += [f'a column with {name}' for name in ROWS_CHECKED if f'"{name}"' in schema]
        if found:
            raise IngestError(f'{self.name}: found {", ".join(found)}, expected a table without column mapping, '
                              'constraints, generated columns, expiry of txn actions and newer features; ingest into '
                              'another table, and copy from there')

    # ---- the record

    def _record(self, table: DeltaTable, txns: Txns, job: str) -> tuple[JobRecord | None, str | None]:
        """Return the record of the job, and how rows of it disappeared."""
        where = record_text(self.name, job)
        facts, runs = read_facts(where, table.metadata().configuration, job), versions(txns, job, 'run')
        if facts is None and not any(runs):
            return None, None
        if not runs:
            raise IngestError(f'{where}: found no txn actions of the job: a clone or a copy through another program '
                              'loses them, so the next offsets are unknown; give another --job')
        run = max(runs)
        rolled_back = None
        if run and (restored := self._restored(table, job, run)):
            before, at = restored
            rolled_back = (f'version {at} is a RESTORE after run {run} of job {job}: rows of it may be gone, but their '
                           'offsets are still recorded')
            if before is not None:  # RESTORE takes the property back, too
                old = DeltaTable(self._where, before, self._settings)
                facts = read_facts(where, old.metadata().configuration, job)
        valid = valid_facts(facts, run)
        if valid is None and run:
            raise IngestError(f'{where}: found no property, but run {run} of the job is in the txn actions: the table '
                              'was replaced or restored, or the property was removed; give another --job')
        return record_of(where, valid, txns, job, run) if valid else None, rolled_back

    def _restored(self, table: DeltaTable, job: str, run: int) -> tuple[int | None, int] | None:
        """Return the version of the newest run and the version of a RESTORE after it. The first is None if the log does
        not reach back to the run. Return None if the log has no such RESTORE."""
        restored = at = None
        known = str(table.metadata().id), run
        for commit in self._opened_log().backwards(table.version()):
            if restored is None and self._unrestored.get(job) == (*known, commit.version):
                break
            if run in versions(commit.txns, job, 'run'):
                at = commit.version
                break
            if commit.operation == 'RESTORE':
                restored = commit.version
        if restored is not None:
            return at, restored
        self._unrestored[job] = *known, table.version()
        return None

    # ---- the columns

    def add_columns(self, state: State, schema: pa.Schema) -> None:
        """Add the columns, and fields of structs, that the schema has and the table lacks. Raise Refused if the table
        has changed."""
        new = pa.schema([field for field in schema if is_extended(state.schema, pa.schema([field]))])
        if not new.names:
            return
        fields: list[Field] = self._delta_schema(new).fields
        try:
            state.handle.table.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=0))
        except CommitFailedError as error:
            raise Refused(one_line(error)) from None
        except (DeltaError, OSError, ValueError) as error:
            raise failure(f'{self.name}: cannot add columns {", ".join(new.names)}', error) from None
        self._opened_log().sync(state.handle.table.version())

    # ---- a run

    def writer(self, state: State, attempt: Attempt) -> FileWriter:
        return DeltaFileWriter(self._where, self._settings, self.directory(attempt), state.schema, state.partition_by)

    def commit(self, state: State, record: JobRecord, files: Sequence[bytes]) -> str:
        """Commit the files and the record, once, on the state. Return the version.

        The commit of the property, if the facts of the job have changed, is on the state, and the commit of the files
        is on the property's. Raise Refused if the table has changed, and ReplyLost if the outcome is unknown. A commit
        that delta-rs sent again after it lost the reply is Refused, too: only the next load shows that it succeeded.
        """
        loaded: Loaded = state.handle
        log = self._opened_log()
        log.sync(loaded.table.version())
        try:
            self._set_property(loaded, record)
            version = loaded.table.version() + 1
            loaded.table.create_write_transaction(
                [AddAction(**json.loads(each)) for each in files], 'append', loaded.table.schema(), state.partition_by,
                commit_properties=CommitProperties(
                    {'kbroker.job': record.job, 'kbroker.run': record.run, 'kbroker.attempt': record.attempt}, 0,
                    [Transaction(*each) for each in marks(record).items() if loaded.txns.get(each[0]) != each[1]]))
        except CommitFailedError as error:
            raise Refused(one_line(error)) from None
        except (DeltaError, OSError, ValueError) as error:
            raise self._commit_failure(error, loaded) from None
        log.sync(version)
        return str(version)

    def _commit_failure(self, error: Exception, loaded: Loaded) -> Exception:
        """Return the exception for a commit that failed: IngestError if the error is lasting, and the table shows that
        nothing was committed."""
        found = failure(f'{self.name}: cannot commit', error)
        table = self._open() if isinstance(found, IngestError) else None
        if table is not None and table.version() == loaded.table.version():
            return found
        return ReplyLost(str(found))

    def _set_property(self, loaded: Loaded, record: JobRecord) -> None:
        """Replace the property if the facts of the job have changed. Then the state is the version with it."""
        where, runs = record_text(self.name, record.job), versions(loaded.txns, record.job, 'run')
        found = read_facts(where, loaded.table.metadata().configuration, record.job)
        text = changed_facts(record, found, max(runs, default=0))
        if text is None:
            return
        # The first property brings this txn action. So a table with the property and without the action is a clone.
        marks = [] if runs else [Transaction(run_mark(record), 0)]
        loaded.table.alter.set_table_properties({f'{PROPERTY}{record.job}': text}, raise_if_not_exists=False,
                                                commit_properties=CommitProperties(None, 0, marks))

    @staticmethod
    def directory(attempt: Attempt) -> str:
        """Return the path of the attempt's data files. It has no underscore, so VACUUM deletes files that no commit
        names."""
        return f'kbroker/{attempt.name}'

    def committed_files(self, state: State, attempt: Attempt) -> set[str] | None:
        """Return the paths of the attempt's files that the table, or a version of it that can be read, has. Return None
        if the log no longer reaches back to the run."""
        record = state.record
        if record is None or attempt.run > record.run:
            return set()
        if attempt.run == record.run and attempt.id != record.attempt:
            return set()
        for commit in self._opened_log().backwards(state.handle.table.version()):
            if attempt.run in versions(commit.txns, attempt.job, 'run'):
                return {unquote(path) for path in commit.added} if is_of(commit.txns, attempt) else set()
        return None

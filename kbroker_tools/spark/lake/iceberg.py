"""Iceberg tables. Tasks write data files through pyiceberg, and the driver commits them; no JVM takes part.

The record of a job is the table property `kbroker.ingest.<job>`, which the commit of the files sets. Compaction and the
expiry of snapshots keep it. The summary of the snapshot has the same text, by which a rollback is noticed; a long one
lacks the offsets, because each commit writes the summaries of all snapshots again.
"""
from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbroker_tools.spark.ingest_source import DATE
from kbroker_tools.spark.lake.catalogs import (
    CatalogSettings,
    FileAccess,
    explained,
    explaining,
    file_access,
    text_of,
)
from kbroker_tools.spark.lake.store import Store
from kbroker_tools.spark.lake.table_format import (
    PROPERTY,
    Attempt,
    JobRecord,
    Refused,
    ReplyLost,
    State,
    record_text,
)
from kbroker_tools.spark.ledger import IngestError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from kbroker_tools.spark.lake.iceberg_private import Staged

FORMAT_VERSION = 2
SEQUENCE_NUMBER = 'sequence_number'
"""A field of the record in the table: the sequence number of the snapshot that has the files of the run."""
SUMMARY_LIMIT = 4096
DATA = 'data/kbroker'
TIMESTAMP = 'timestamp'


class IcebergTable:
    """A table of a catalog."""

    markers = 'kbroker-attempts'

    def __init__(self, name: str, catalog: Mapping[str, str], store: Mapping[str, str]):
        self.name = name
        self._settings = CatalogSettings(catalog, store)
        self._opened: Catalog | None = None
        self._access: FileAccess | None = None
        self._location = ''

    @property
    def store(self) -> Store:
        from pyiceberg.io.pyarrow import PyArrowFileIO
        assert self._access is not None, 'load comes first'
        io = self._access.io()
        assert isinstance(io, PyArrowFileIO)
        scheme, host, path = io.parse_location(self._location, io.properties)
        return Store(io.fs_by_scheme(scheme, host), path.rstrip('/'))

    @property
    def _where(self) -> str:
        return f'{self._settings.where}, table {self.name}'

    def _catalog(self) -> Catalog:
        if self._opened is None:
            self._opened = self._settings.open()
        return self._opened

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        from pyiceberg.exceptions import NoSuchNamespaceError, TableAlreadyExistsError
        catalog, (namespace, _) = self._catalog(), self._identifier()
        columns = self._with_ids(schema)

        def create_table() -> None:
            try:
                catalog.create_table(self.name, columns, partition_spec=_partition_spec(columns, partition_by),
                                     properties=_properties(schema))
            except ValueError:
                if 'warehouse' in catalog.properties:
                    raise
                raise IngestError(f'{self._settings.where}: found no property warehouse, expected the directory or URI '
                                  'of new tables') from None
        with explaining(self._where), suppress(TableAlreadyExistsError):    # another driver was faster
            try:
                create_table()
            except NoSuchNamespaceError:
                _create_namespace(catalog, namespace)
                create_table()

    def _identifier(self) -> tuple[tuple[str, ...], str]:
        *namespace, table = self.name.split('.')
        if not namespace or not all([*namespace, table]):
            raise IngestError(f'--to-table: found {self.name!r}, expected NAMESPACE.TABLE')
        return tuple(namespace), table

    def load(self, job: str) -> State | None:
        from pyiceberg.exceptions import NoSuchTableError
        self._identifier()
        catalog = self._catalog()
        with explaining(self._where):
            try:
                table = catalog.load_table(self.name)
            except NoSuchTableError:
                return None
        if table.metadata.format_version != FORMAT_VERSION:
            raise IngestError(f'{self.name}: found a table of format version {table.metadata.format_version}, expected '
                              f'version {FORMAT_VERSION}, the one that kbroker writes')
        self._access = file_access(self._settings, catalog, table)
        self._location = table.metadata.location.rstrip('/')
        return self._state(table, job)

    def _state(self, table: Table, job: str) -> State:
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        text = table.metadata.properties.get(PROPERTY + job)
        current = table.metadata.current_snapshot_id
        version = str(current) if current is not None else None
        if text is None:
            self._check_no_run(table, job)
            return State(table, schema, _partition_by(table), None, version=version)
        record, sequence_number = self._record(job, text)
        return State(table, schema, _partition_by(table), record,
                     _rolled_back(table, record, sequence_number), version)

    def _check_no_run(self, table: Table, job: str) -> None:
        """Raise IngestError if the record of the job is gone. Without it, all rows would be ingested again."""
        current = table.current_snapshot()
        for each in _ancestors(table, current) if current else ():
            if each.summary is not None and PROPERTY + job in each.summary.additional_properties:
                raise IngestError(f'{record_text(self.name, job)}: found no such property, but snapshot '
                                  f'{each.snapshot_id} has rows of the job: another program removed the property; set '
                                  'it to the text in the summary of the snapshot, or give another --job to ingest all '
                                  'rows again')

    def _record(self, job: str, text: str) -> tuple[JobRecord, int]:
        where = record_text(self.name, job)
        try:
            found = json.loads(text)
            sequence_number = int(found[SEQUENCE_NUMBER])
        except (ValueError, KeyError, TypeError):
            found, sequence_number = None, 0
        return JobRecord.from_json(job, where, found), sequence_number

    def columns(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        return schema_to_pyarrow(self._with_ids(schema), include_field_ids=False)

    def _with_ids(self, schema: pa.Schema) -> Any:
        from kbroker_tools.spark.lake.iceberg_private import with_ids
        try:
            return with_ids(schema)
        except Exception as error:
            raise IngestError(f'{self.name}: a column has no type in Iceberg: {text_of(error)}') from error

    def add_columns(self, state: State, schema: pa.Schema) -> None:
        from kbroker_tools.spark.lake.iceberg_private import stage_columns
        with explaining(f'{self.name}: the columns cannot be added'):
            staged = stage_columns(state.handle, schema)
        if staged.updates:
            self._send(state.handle, staged)

    def writer(self, state: State, attempt: Attempt) -> IcebergWriter:
        from kbroker_tools.spark.lake.iceberg_private import without_core
        assert self._access is not None, 'load comes first'
        metadata: TableMetadata = state.handle.metadata
        # A writer needs no history. Each task receives a copy, and a history can have megabytes.
        return IcebergWriter(self._access, metadata.model_copy(update={
            'snapshots': [], 'snapshot_log': [], 'metadata_log': [], 'refs': {}, 'statistics': [],
            'partition_statistics': [], 'partition_specs': [without_core(metadata.spec())],
            'properties': {name: value for name, value in metadata.properties.items() if not name.startswith(PROPERTY)}
            | {'write.format.default': 'parquet', 'write.data.path': f'{self._location}/{self.directory(attempt)}',
               'write.py-location-provider.impl': 'kbroker_tools.spark.lake.iceberg_private.NamedLocations'}}))

    def commit(self, state: State, record: JobRecord, files: Sequence[bytes]) -> str:
        from kbroker_tools.spark.lake.iceberg_private import stage_append
        assert self._access is not None, 'load comes first'
        table: Table = state.handle
        entries: list[tuple[int, DataFile]] = [pickle.loads(each) for each in files]
        if any(spec_id != table.metadata.default_spec_id for spec_id, _ in entries):
            raise IngestError(f'{self.name}: another program changed the partitioning while this run wrote its files; '
                              'run the job again')
        name = PROPERTY + record.job
        found = record.to_json() | {SEQUENCE_NUMBER: table.metadata.next_sequence_number()}
        text = json.dumps(found, separators=(',', ':'))
        summary = text if len(text) <= SUMMARY_LIMIT else json.dumps(
            {key: value for key, value in found.items() if key not in ('offsets', 'topic_ids')}, separators=(',', ':'))

        def stage(io: Any) -> Staged:
            table.io = io
            return stage_append(table, [each for _, each in entries], {name: text}, {name: summary})
        staged = self._access.use(stage)
        self._send(table, staged)
        return str(staged.snapshot_id)

    def _send(self, table: Table, staged: Staged) -> None:
        """Send a commit once. Raise Refused, ReplyLost, TableUnavailable or IngestError."""
        from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
        try:
            self._catalog().commit_table(table, staged.requirements, staged.updates)
        except (CommitFailedException, NoSuchTableError) as error:
            raise Refused(text_of(error)) from error
        except Exception as error:
            raise self._outcome(table, error) from error

    def _outcome(self, table: Table, error: Exception) -> Exception:
        """Return the meaning of an error of a commit: whether the commit can have succeeded."""
        from pyiceberg.exceptions import BadRequestError, RESTError, TooManyRequestsError
        status = getattr(getattr(error.__cause__, 'response', None), 'status_code', None)
        if status == 404:
            return Refused(text_of(error))
        if (isinstance(error, BadRequestError) or type(error) is ValueError) and self._has_changed(table):
            # A commit to another branch took the sequence number. Catalogs report that as a wrong request.
            return Refused(text_of(error))
        if _was_not_sent(error) or isinstance(error, TooManyRequestsError):
            return explained(error, self._where)
        if isinstance(error, RESTError) and status is not None and 400 <= status < 500 and status != 408:
            return explained(error, self._where)
        return ReplyLost(f'{self._where}: {text_of(error)}')

    def _has_changed(self, table: Table) -> bool:
        try:
            return self._catalog().load_table(self.name).metadata != table.metadata
        except Exception as error:
            raise ReplyLost(text_of(error)) from error

    def directory(self, attempt: Attempt) -> str:
        return f'{DATA}/{attempt.name}'

    def committed_files(self, state: State, attempt: Attempt) -> set[str] | None:
        record = state.record
        if record is None or record.run < attempt.run or (record.run == attempt.run and record.attempt != attempt.id):
            return set()                # one attempt at each run is in the table, and it is another one
        beginning = f'{self._location}/{self.directory(attempt)}/'
        assert self._access is not None, 'load comes first'
        paths = self._access.use(lambda io: {
            entry.data_file.file_path for manifest in _manifests(state, attempt, io)
            for entry in manifest.fetch_manifest_entry(io)
            if entry.data_file.file_path.startswith(beginning)})
        return {each.removeprefix(f'{self._location}/') for each in paths}


@dataclass(frozen=True)
class IcebergWriter:
    """Writes data files with the field ids and the statistics of the table. Local files are synced."""

    access: FileAccess
    metadata: TableMetadata

    def write(self, rows: pa.Table, name: str) -> list[bytes]:
        from kbroker_tools.spark.lake.iceberg_private import FILE_NAME, write_files
        if not rows.num_rows:
            return []
        metadata = self.metadata.model_copy(update={'properties': self.metadata.properties | {FILE_NAME: name}})
        found = self.access.use(lambda io: write_files(metadata, rows, io))
        return [pickle.dumps((metadata.default_spec_id, each)) for each in found]


def _create_namespace(catalog: Catalog, namespace: tuple[str, ...]) -> None:
    try:
        catalog.create_namespace(namespace)
    except Exception:                   # catalogs report in several ways that another driver was faster
        if not catalog.namespace_exists(namespace):
            raise


def _was_not_sent(error: Exception) -> bool:
    """Return True if no connection to the catalog was made."""
    from requests.exceptions import ConnectTimeout
    from urllib3.exceptions import MaxRetryError, NewConnectionError
    cause = error.args[0] if error.args else None
    return isinstance(error, ConnectTimeout) or (isinstance(cause, MaxRetryError)
                                                 and isinstance(cause.reason, NewConnectionError))


def _partition_spec(columns: Any, partition_by: Sequence[str]) -> Any:
    """Return the hidden partitioning. `date` is the day of the timestamp, and other names are columns."""
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform, IdentityTransform
    fields = []
    for field_id, name in enumerate(partition_by, PARTITION_FIELD_ID_START):
        source = columns.find_field(TIMESTAMP if name == DATE else name).field_id
        fields.append(PartitionField(source, field_id, DayTransform(), f'{TIMESTAMP}_day') if name == DATE else
                      PartitionField(source, field_id, IdentityTransform(), name))
    return PartitionSpec(*fields)


def _partition_by(table: Table) -> list[str]:
    from pyiceberg.transforms import DayTransform, IdentityTransform, VoidTransform
    found = []
    for each in table.spec().fields:
        name = table.schema().find_column_name(each.source_id)
        if isinstance(each.transform, VoidTransform):
            continue
        if isinstance(each.transform, IdentityTransform):
            found.append(str(name))
        else:
            is_date = isinstance(each.transform, DayTransform) and name == TIMESTAMP
            found.append(DATE if is_date else f'{each.transform}({name})')
    return found


def _properties(schema: pa.Schema) -> dict[str, str]:
    """Return the properties of a new table. Each commit writes a metadata file, and the catalog deletes old ones."""
    import pyarrow as pa
    found = {'format-version': str(FORMAT_VERSION), 'write.parquet.compression-codec': 'zstd',
             'write.metadata.delete-after-commit.enabled': 'true'}
    if 'value' in schema.names and not isinstance(schema.field('value').type, pa.StructType):
        # The smallest and the greatest value say nothing about a file.
        found['write.metadata.metrics.column.value'] = 'counts'
    return found


def _rolled_back(table: Table, record: JobRecord, sequence_number: int) -> str | None:
    """Return a sentence if rows of the job are gone. A rollback removes rows, and keeps the properties."""
    current = table.current_snapshot()
    run = f'run {record.run} of job {record.job}'
    if current is None:
        return f'the table has no snapshot, but {run} has committed one'
    if (current.sequence_number or 0) < sequence_number:
        return (f'the current snapshot {current.snapshot_id} has sequence number {current.sequence_number}, and is '
                f'older than {run}, which has {sequence_number}')
    for each in _ancestors(table, current):
        if _committed(each, record.job, record.attempt):
            return None
        if (each.sequence_number or 0) < sequence_number:
            return (f'snapshot {each.snapshot_id} is an ancestor of the current snapshot, and {run} with sequence '
                    f'number {sequence_number} is not: the table was rolled back, and then changed')
    return None                         # the snapshot of the run has expired


def _committed(snapshot: Snapshot, job: str, attempt: str) -> bool:
    """Return whether the snapshot is the commit of an attempt, by its summary."""
    return snapshot.summary is not None and attempt in snapshot.summary.additional_properties.get(PROPERTY + job, '')


def _ancestors(table: Table, snapshot: Snapshot) -> Iterator[Snapshot]:
    """Yield the snapshot and its ancestors, as far as they are retained."""
    found: Snapshot | None = snapshot
    while found is not None:
        yield found
        parent = found.parent_snapshot_id
        found = table.snapshot_by_id(parent) if parent is not None else None


def _manifests(state: State, attempt: Attempt, io: Any) -> list[ManifestFile]:
    """Return the manifests that can name files of an attempt. `attempt` may have committed its run.

    The snapshot of its commit names all of them in its own manifests. If this snapshot has expired, manifests of later
    snapshots may name some. Their sequence numbers tell which.
    """
    from pyiceberg.manifest import ManifestContent
    table: Table = state.handle
    name = PROPERTY + attempt.job
    for each in table.snapshots():
        if _committed(each, attempt.job, attempt.id):
            return [manifest for manifest in each.manifests(io) if manifest.added_snapshot_id == each.snapshot_id]
    newest = int(json.loads(table.metadata.properties[name])[SEQUENCE_NUMBER])
    is_newest = state.record is not None and state.record.attempt == attempt.id
    first, last = (newest, newest) if is_newest else (1, newest - 1)
    found = {manifest.manifest_path: manifest for each in table.snapshots() if (each.sequence_number or 0) > first
             for manifest in each.manifests(io)
             if manifest.content == ManifestContent.DATA and manifest.min_sequence_number <= last
             and manifest.sequence_number >= first}
    return list(found.values())

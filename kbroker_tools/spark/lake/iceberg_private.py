"""The parts of pyiceberg that have private names. No other file uses such names, and pyproject.toml fixes the minor
version of pyiceberg. Test a new version against the tests of the tables before it is allowed."""
from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO, PyArrowLocalFileSystem, _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionKey, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.locations import LocationProvider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertTableUUID,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import EMPTY_DICT, Properties
from pyiceberg.types import IcebergType

CONNECT_TIMEOUT_S = 10
REPLY_TIMEOUT_S = 120
AZURE = ('abfs', 'abfss', 'wasb', 'wasbs')
SAS_TOKEN = 'adls.sas-token'
FILE_NAME = 'kbroker.file-name'
"""A property that only the copy of the metadata in a writer has: the beginning of the names of its files."""


class TimedRestCatalog(RestCatalog):
    """A REST catalog whose requests end after a time. A request of pyiceberg waits without an end for a catalog that
    does not reply."""

    def _create_session(self) -> Any:
        return _timed(super()._create_session())

    def _create_legacy_oauth2_auth_manager(self, session: Any) -> Any:
        return super()._create_legacy_oauth2_auth_manager(_timed(session))      # it requests a token at once


def _timed(session: Any) -> Any:
    if not isinstance(session.request, functools.partial):
        session.request = functools.partial(session.request, timeout=(CONNECT_TIMEOUT_S, REPLY_TIMEOUT_S))
    return session


class SyncedFileIO(PyArrowFileIO):
    """The file access of pyiceberg through pyarrow. It also syncs local files when they are closed: data files,
    manifests and the metadata of the table. So a catalog never names a file that a power cut can take away.

    It accepts the usual URIs of Azure, abfss://CONTAINER@ACCOUNT.HOST/PATH, and tokens for single accounts. pyiceberg
    accepts them only with another library than pyarrow.
    """

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        scheme, place, path = PyArrowFileIO.parse_location(location, properties)
        if scheme == 'file' and not path.startswith('/'):
            raise ValueError(f'found {location}, expected file:///PATH')
        if scheme in AZURE:
            path = place.partition('@')[0] + path.removeprefix(place)
        return scheme, place, path

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        host = (netloc or '').partition('@')[2]
        if scheme not in AZURE or not host:
            return super()._initialize_fs(scheme, netloc)
        found = self.properties | {'adls.account-name': host.partition('.')[0]}
        token = found.get(f'{SAS_TOKEN}.{host}')
        return PyArrowFileIO({SAS_TOKEN: token} | found if token else found)._initialize_azure_fs()

    def _initialize_local_fs(self) -> SyncedFileSystem:
        return SyncedFileSystem()


class SyncedFileSystem(PyArrowLocalFileSystem):
    """The local file system. It syncs each file, and the directories above it, when the file is closed."""

    def open_output_stream(self, path: str, *args: Any, **kwargs: Any) -> pa.NativeFile:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return _SyncedFile(path, 'wb')


class _SyncedFile(pa.OSFile):           # type: ignore[misc]
    def __init__(self, path: str, mode: str):
        self._path: str | None = path       # `__new__` has opened it

    def close(self) -> None:
        super().close()
        path, self._path = self._path, None
        if path is not None:
            _sync(path)
            _sync_directories(os.path.dirname(path))


_synced: set[tuple[str, int]] = set()
"""The directories whose own names are on the disk, with their inodes."""


def _sync_directories(directory: str) -> None:
    _sync(directory)
    while (each := (directory, os.stat(directory).st_ino)) not in _synced and directory != '/':
        directory = os.path.dirname(directory)
        with suppress(PermissionError):     # this user can create nothing in a directory that it cannot open
            _sync(directory)
        _synced.add(each)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class NamedLocations(LocationProvider):
    """The locations of a writer's data files: all in one directory, with names that begin with the property FILE_NAME.
    """

    def new_data_location(self, data_file_name: str, partition_key: PartitionKey | None = None) -> str:
        number, suffix = data_file_name.split('-')[1], data_file_name.rpartition('.')[2]
        directory = f'{self.data_path}/{partition_key.to_path()}' if partition_key else self.data_path
        return f'{directory}/{self.table_properties[FILE_NAME]}-{number}.{suffix}'


def with_ids(schema: pa.Schema) -> Schema:
    """Return the columns of Iceberg for columns of Arrow. Raise an exception of pyiceberg if a type has no equal."""
    return assign_fresh_schema_ids(Catalog._convert_schema_if_needed(schema))


class ArrowDays(DayTransform[Any]):
    """The partitioning by day, computed by pyarrow. pyiceberg needs its package pyiceberg-core for that."""

    def pyarrow_transform(self, source: IcebergType) -> Callable[[pa.Array], pa.Array]:
        return lambda column: column.cast(pa.date32()).cast(pa.int32())


def without_core(spec: PartitionSpec) -> PartitionSpec:
    """Return the same partitioning for a writer."""
    return PartitionSpec(*(PartitionField(each.source_id, each.field_id, ArrowDays(), each.name)
                           if isinstance(each.transform, DayTransform) else each for each in spec.fields),
                         spec_id=spec.spec_id)


def write_files(metadata: TableMetadata, rows: pa.Table, io: FileIO) -> list[DataFile]:
    """Write rows to new files, with the field ids and the statistics of Iceberg."""
    return list(_dataframe_to_data_files(metadata, rows, io, uuid.uuid4()))


@dataclass(frozen=True)
class Staged:
    """A commit that was prepared, and not sent."""

    snapshot_id: int | None
    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]


def stage_append(table: Table, files: Sequence[DataFile], properties: Mapping[str, str],
                 summary: Mapping[str, str]) -> Staged:
    """Write the manifests of a commit that appends files and sets properties of the table.

    pyiceberg itself would repeat a refused append on the new state of the table, without a look at the offsets there.
    Two drivers would both succeed. So the caller sends the commit, once.
    """
    change = table.transaction()
    with change.update_snapshot(dict(summary)).fast_append() as append:
        for each in files:
            append.append_data_file(each)
    change.set_properties(dict(properties))
    return Staged(append.snapshot_id, change._updates, (*change._requirements, *_same_shape(table)))


def stage_columns(table: Table, schema: pa.Schema) -> Staged:
    """Prepare a commit that adds the columns, and fields of structs, that the table lacks."""
    change = table.transaction()
    with change.update_schema() as update:
        update.union_by_name(schema)
    return Staged(None, change._updates, (*change._requirements, *_same_shape(table)))


def _same_shape(table: Table) -> tuple[TableRequirement, ...]:
    """Return the requirements that the table, its columns and its partitioning are those that were loaded. The branch
    alone does not change when another program drops a column."""
    metadata = table.metadata
    return (AssertTableUUID(uuid=metadata.table_uuid),
            AssertCurrentSchemaId.model_validate({
                'type': 'assert-current-schema-id', 'current-schema-id': metadata.current_schema_id}),
            AssertDefaultSpecId.model_validate({
                'type': 'assert-default-spec-id', 'default-spec-id': metadata.default_spec_id}))

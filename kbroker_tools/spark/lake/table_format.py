"""The interface of a table format, and what a table records about the job that fills it."""
from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kbroker_tools.spark.ledger import IngestError, Progress
from kbroker_tools.spark.offsets import Offsets, from_json, to_json

if TYPE_CHECKING:
    import pyarrow as pa

    from kbroker_tools.spark.lake.store import Store

VERSION = 1
PROPERTY = 'kbroker.ingest.'
"""The beginning of the name of the table property with the record of a job. The name of the job follows."""


class Refused(Exception):
    """The table has changed since it was loaded, so it refused a commit. Nothing was committed."""


class ReplyLost(Exception):
    """The outcome of a commit is unknown. Only the table can tell it."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at one run of a job. An attempt whose commit failed is followed by another attempt at the same run,
    perhaps by another driver."""

    job: str
    run: int
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def name(self) -> str:
        """The name that its marker and the directory of its data files have."""
        return f'{self.job}-{self.run:06d}-{self.id}'

    @classmethod
    def named(cls, name: str) -> Attempt | None:
        """Return the attempt with this name. Return None if it is not the name of an attempt."""
        job, _, rest = name.rpartition('-')
        job, _, run = job.rpartition('-')
        if not job or not run.isdecimal() or len(rest) != 32:
            return None
        return cls(job, int(run), rest)


@dataclass(frozen=True)
class JobRecord:
    """The record of a job in a table. A commit of the job replaces it, together with the files of the run."""

    job: str
    cluster_id: str | None
    topic_ids: dict[str, str]
    shape: dict[str, Any]
    """The options that decide which columns and rows the job writes."""
    offsets: Offsets
    """The next offset to ingest in each partition."""
    run: int
    attempt: str
    """The id of the attempt that committed the run."""

    @property
    def progress(self) -> Progress:
        return Progress(self.job, self.run, self.offsets, self.topic_ids)

    def to_json(self) -> dict[str, Any]:
        return {'version': VERSION, 'cluster_id': self.cluster_id, 'topic_ids': self.topic_ids, 'shape': self.shape,
                'offsets': to_json(self.offsets), 'run': self.run, 'attempt': self.attempt}

    @classmethod
    def from_json(cls, job: str, where: str, found: Any) -> JobRecord:
        """Return the record in a JSON object. Raise IngestError if it is not a record of this version. `where` names
        the table and the property."""
        try:
            if found['version'] != VERSION:
                raise ValueError(f'version {found["version"]}')
            return cls(job, found['cluster_id'], dict(found['topic_ids']), dict(found['shape']),
                       from_json(found['offsets']), int(found['run']), str(found['attempt']))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            what = f'no {error}' if isinstance(error, KeyError) else str(error)
            raise IngestError(f'{where}: found {what}, expected the record of an ingest in version {VERSION}; another '
                              'program, or a newer kbroker, has written it') from None


@dataclass(frozen=True)
class State:
    """A table as it was loaded. A commit is based on it."""

    handle: Any
    """The table as the format's library has it."""
    schema: pa.Schema
    """The columns of the table."""
    partition_by: list[str]
    """The columns that partition the table, as `--partition-by` names them. A partitioning that the option cannot
    express is the text of the format."""
    record: JobRecord | None
    """None if the job has committed nothing."""
    rolled_back: str | None = None
    """A sentence that says how rows of the job disappeared, if a rollback or RESTORE came after its newest run."""
    version: str | None = None
    """The snapshot or version, as `commit` returns it. None if the table has none."""


class FileWriter(Protocol):
    """The writer of data files. It can be pickled, and each task uses a copy."""

    def write(self, rows: pa.Table, name: str) -> list[bytes]:
        """Write rows to new files, and return an entry for each file. `name` is unique among all tasks, attempts and
        calls; it begins the name of each file. Raise OSError if that fails."""


class TableFormat(Protocol):
    """One table. Methods raise IngestError with a message for the user if the table, the catalog or the rights are
    wrong, and OSError or TableUnavailable if the catalog or the store fails for a while."""

    name: str
    """The table, as messages name it."""
    markers: str
    """The directory of the markers of attempts, below the location of the table."""

    @property
    def store(self) -> Store:
        """The location of the table. It is known after the first `load`."""

    def create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Create the table. Do nothing if it exists by now."""

    def load(self, job: str) -> State | None:
        """Return the newest state of the table, and None if it does not exist."""

    def columns(self, schema: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
        """Return the columns that a table for these rows has. Delta, which has no hidden partitioning, adds `date`."""

    def add_columns(self, state: State, schema: pa.Schema) -> None:
        """Add the columns, and fields of structs, that the schema has and the table lacks. Raise Refused if the table
        has changed."""

    def writer(self, state: State, attempt: Attempt) -> FileWriter: ...

    def commit(self, state: State, record: JobRecord, files: Sequence[bytes]) -> str:
        """Commit the files and the record, once, on the state. Return the snapshot or the version, as users name it.

        Raise Refused if the table has changed, and ReplyLost if the outcome is unknown.
        """

    def directory(self, attempt: Attempt) -> str:
        """Return the path of the attempt's data files, below the location of the table."""

    def committed_files(self, state: State, attempt: Attempt) -> set[str] | None:
        """Return the paths of the attempt's files that the table, or a version of it that can be read, has; below the
        location of the table. Return None if its history does not tell."""


class TableUnavailable(Exception):
    """The catalog or the store fails for a while. Another try may succeed."""


def record_text(table: str, job: str) -> str:
    """Return the text by which messages name the record of a job."""
    return f'{table}, property {PROPERTY}{job}'


def same_progress(one: JobRecord | None, other: JobRecord | None) -> bool:
    """Return whether no run of the job was committed between two loads."""
    return (one and (one.run, one.attempt)) == (other and (other.run, other.attempt))


"""The progress of an ingest on disk. Rows are visible if and only if their offsets are recorded.

    TO/_ingest.json             the owner of the directory: the job, its source, the shape of its files
    TO/_staging-000007-9f3c.../ rows of an unfinished run; readers ignore it
    TO/run=000007/              the same directory after the one rename that makes it visible, with an _ingest.json
                                of the recorded offsets
    STATE/progress.json         the recorded offsets; after a crash, the newest run in TO corrects it
    STATE/lock, TO/_lock        held by the running job

Each attempt has its own staging directory: executors of a killed driver may keep writing for a while, and must not
write into a directory that a later run makes visible.
"""
from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbroker.base.errors import ConfigError
from kbroker_tools.spark.offsets import Offsets, from_json, to_json

RUN = re.compile(r'run=(\d{6,})')
STAGING = '_staging-'
INGEST_FILE = '_ingest.json'
PROGRESS_FILE = 'progress.json'
VERSION = 1


class IngestError(ConfigError):
    """The job cannot run. The message says what the user can do."""

    def __init__(self, message: str):
        super().__init__('ingest', message)


@dataclass(frozen=True)
class Progress:
    """The newest visible run, the next offset to read in each partition, and the topic ids."""

    job: str
    run: int = 0
    offsets: Offsets = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {'version': VERSION, 'job': self.job, 'run': self.run, 'offsets': to_json(self.offsets),
                'topic_ids': self.topic_ids}

    @classmethod
    def read(cls, path: Path) -> Progress:
        """Return the content of a progress file. Raise IngestError if the file has other content, and OSError if it
        cannot be read."""
        found = read_json(path)
        try:
            return cls(str(found['job']), int(found['run']), from_json(found['offsets']), dict(found['topic_ids']))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _not_ours(path, error) from None


@dataclass(frozen=True)
class JobFacts:
    """The facts about a job that must not change between runs: the source of its rows and the format of its files."""

    source: str
    cluster_id: str | None
    """The cluster id. None if the source does not name it."""
    shape: Mapping[str, Any]

    def check(self, kept: Mapping[str, Any], path: Path) -> None:
        """Raise IngestError unless `kept` was written by a job with the same facts."""
        try:
            cluster_id, source, shape = kept['cluster_id'], kept['source'], dict(kept['shape'])
        except (KeyError, TypeError, ValueError) as error:
            raise _not_ours(path, error) from None
        if self.cluster_id is not None and cluster_id is not None:
            if self.cluster_id != cluster_id:
                raise IngestError(f'{path}: found rows of cluster {cluster_id}, but {self.source} is cluster '
                                  f'{self.cluster_id}; give another --state and --to')
        elif self.source != source:
            raise IngestError(f'{path}: found rows from {source}, and {self.source} has no cluster.id that shows it is '
                              'the same log; give another --state and --to')
        for name in sorted(shape.keys() | self.shape.keys()):
            if shape.get(name) != self.shape.get(name):
                raise IngestError(f'{path}: found {name} {_shown(shape.get(name))}, but this run has '
                                  f'{_shown(self.shape.get(name))}; files of two shapes do not belong in one '
                                  'directory: give another --state and --to')


def _shown(value: object) -> str:
    return json.dumps(value) if value is not None else 'none'


class Ledger:
    """The two directories of a job: TO and STATE. `locked` reserves them for one job at a time. Methods raise
    IngestError and OSError."""

    def __init__(self, to: Path, state: Path):
        self.to = to.absolute()
        self.state = state.absolute()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock both directories during a run. Raise IngestError if another job has locked one of them."""
        self.to.mkdir(parents=True, exist_ok=True)
        self.state.mkdir(parents=True, exist_ok=True)
        with _lock(self.state / 'lock', self.state), _lock(self.to / '_lock', self.to):
            yield

    def shape(self) -> dict[str, Any]:
        """Return the shape that the first run recorded. Return {} before the first run."""
        path = self.to / INGEST_FILE
        found = read_json(path).get('shape') if path.exists() else {}
        return found if isinstance(found, dict) else {}

    def open(self, facts: JobFacts) -> Progress:
        """Return the progress of the job, which the visible runs determine. Delete the remains of failed runs, and
        update `progress.json`."""
        path = self.state / PROGRESS_FILE
        known = Progress.read(path) if path.exists() else self._begin(facts)
        self._check_target(known, facts)
        for leftover in self.to.glob(f'{STAGING}*'):
            shutil.rmtree(leftover)
        runs = self.runs()
        if runs and runs[-1] > known.run:
            newest = Progress.read(self._run(runs[-1]) / INGEST_FILE)
            if (newest.job, newest.run) != (known.job, runs[-1]):
                raise IngestError(f'{self._run(runs[-1])}: found run {newest.run} of job {newest.job} in it, expected '
                                  f'run {runs[-1]} of job {known.job}; was the directory renamed or copied here?')
            known = newest
            replace_file(path, known.to_json())
        return known

    def _begin(self, facts: JobFacts) -> Progress:
        """Begin a new job. Its directory must be empty, or have only the remains of a failed first run."""
        runs = self.runs()
        if runs:
            raise IngestError(f'{self.to}: found run {runs[-1]} of an ingest that is not in {self.state}; give its '
                              f'--state, or copy {self._run(runs[-1]) / INGEST_FILE} to '
                              f'{self.state / PROGRESS_FILE} to continue from there')
        others = sorted(found.name for found in self.to.iterdir() if not found.name.startswith('_'))
        if others:
            raise IngestError(f'{self.to}: found {others[0]!r}, expected an empty directory for a new ingest')
        known = Progress(str(uuid.uuid4()))
        replace_file(self.to / INGEST_FILE, {'version': VERSION, 'job': known.job, 'source': facts.source,
                                             'cluster_id': facts.cluster_id, 'shape': facts.shape})
        replace_file(self.state / PROGRESS_FILE, known.to_json())
        return known

    def _check_target(self, known: Progress, facts: JobFacts) -> None:
        path = self.to / INGEST_FILE
        if not path.exists():
            raise IngestError(f'{self.to}: found no {INGEST_FILE}, but {self.state} belongs to the directory of job '
                              f'{known.job}; give that directory as --to, or a new --state')
        kept = read_json(path)
        if kept.get('job') != known.job:
            raise IngestError(f'{self.to}: found the directory of job {kept.get("job")}, but {self.state} belongs to '
                              f'job {known.job}; give the --to and --state that belong together')
        facts.check(kept, path)

    def runs(self) -> list[int]:
        """Return the numbers of the visible runs, ascending."""
        return sorted(int(match[1]) for found in self.to.iterdir() if (match := RUN.fullmatch(found.name)))

    def _run(self, number: int) -> Path:
        return self.to / f'run={number:06d}'

    def new_staging(self, number: int) -> Path:
        """Return a path for the rows of a run. No other attempt uses the same path."""
        return self.to / f'{STAGING}{number:06d}-{uuid.uuid4().hex}'

    def discard(self, staging: Path) -> None:
        """Delete a staging directory after a failure. Files that cannot be deleted are left for the next run."""
        shutil.rmtree(staging, ignore_errors=True)

    def publish(self, staging: Path, done: Progress, facts: Mapping[str, Any]) -> None:
        """Make the rows of a run visible by one rename. No row is visible before the rename, and all rows are visible
        after it."""
        replace_file(staging / INGEST_FILE, done.to_json() | dict(facts))
        sync_tree(staging)
        os.rename(staging, self._run(done.run))
        sync_directory(self.to)
        replace_file(self.state / PROGRESS_FILE, done.to_json())


@contextmanager
def _lock(path: Path, what: Path) -> Iterator[None]:
    with open(path, 'a', encoding='utf-8') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise IngestError(f'{what}: another ingest is using it; wait for it, or give another --state '
                              'and --to') from None
        yield


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of this version. Raise IngestError if the file has other content, and OSError if
    it cannot be read."""
    try:
        found = json.loads(path.read_text('utf-8'))
        if found['version'] != VERSION:
            raise ValueError(f'version {found["version"]}')
    except (ValueError, KeyError, TypeError) as error:
        raise _not_ours(path, error) from None
    return dict(found)


def _not_ours(path: Path, error: Exception) -> IngestError:
    what = f'no {error}' if isinstance(error, KeyError) else str(error)
    return IngestError(f'{path}: found {what}, expected an ingest\'s file of version {VERSION}. An ingest replaces it '
                       'by a rename, so another program changed it')


def replace_file(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file atomically and durably. Raise OSError if that fails."""
    new = path.with_name(f'_{path.name}.tmp')
    with open(new, 'w', encoding='utf-8') as file:
        file.write(json.dumps(content, indent=1) + '\n')
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)
    sync_directory(path.parent)


def sync_tree(root: Path) -> None:
    """Sync all files and directories below `root`. Spark does not sync them, and a visible run must survive a power
    cut."""
    for directory, _, names in os.walk(root):
        for name in names:
            descriptor = os.open(os.path.join(directory, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(Path(directory))


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

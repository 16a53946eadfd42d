"""A reader of the log of a Delta table: `txn` actions, operations and added files.

delta-rs returns one `txn` action for each call, and every call reads the log again: 10,000 partitions on an object
store would take 20,000 requests or more. This reader takes all of them in one pass. Bytes in `_delta_log`, of which the
protocol of Delta is the authority:

    00000000000000000007.json                    the commit of version 7: one action, a JSON object, in each line
    00000000000000000007.checkpoint.parquet      the table at version 7: one action in each row, a column for each kind
    00000000000000000007.checkpoint.0000000001.0000000002.parquet    a part of such a checkpoint, here 1 of 2
    00000000000000000007.checkpoint.UUID.parquet (or .json)          a checkpoint whose files are elsewhere
    _last_checkpoint                             JSON with the version of a recent checkpoint, a hint
"""
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kbroker_tools.spark.lake.store import Store
from kbroker_tools.spark.ledger import sync_directory

LOG = '_delta_log'
HINT = f'{LOG}/_last_checkpoint'
CHECKPOINT = re.compile(r'(\d{20})\.checkpoint\.(?:\d{10}\.(\d{10})\.)?(?:[\w-]+\.)?(parquet|json)')
KINDS = ('"commitInfo"', '"txn"', '"add"')

Txns = dict[str, int]
"""The version of each appId."""


@dataclass(frozen=True)
class Commit:
    """One version of the table."""

    version: int
    operation: str
    txns: Txns
    added: list[str]
    """The paths of the files that it adds, as the log has them."""


class DeltaLog:
    """The log of one table. It keeps the `txn` actions of the version that it read last, so the next load of a
    following version reads only new commits. A commit never changes."""

    def __init__(self, store: Store):
        self._store = store
        self._table_id = ''
        self._version = -1
        self._txns: Txns = {}
        self._synced_version = 0
        self._newest: Commit | None = None

    def txns(self, table_id: str, version: int) -> Txns:
        """Return all `txn` actions of a version. Raise OSError if files of the log cannot be read."""
        if table_id != self._table_id:
            self._newest = None
        if table_id != self._table_id or version < self._version or not self._follow(version):
            self._txns = {}
            self._version = self._read_checkpoint(version)
            self._table_id = table_id
            if not self._follow(version):
                raise OSError(f'{self._store.root}/{LOG}: found no commit of version {self._version + 1}, expected all '
                              f'commits up to version {version}; another program has deleted it')
        return dict(self._txns)

    def _follow(self, version: int) -> bool:
        """Read the commits up to a version. Return False if one of them is gone."""
        while self._version < version:
            commit = self.commit(self._version + 1)
            if commit is None:
                return False
            self._txns |= commit.txns
            self._version = commit.version
        return True

    def commit(self, version: int) -> Commit | None:
        """Return the commit of a version. Return None if the cleanup of the log has deleted it."""
        if self._newest is not None and self._newest.version == version:
            return self._newest
        try:
            text = self._read(f'{LOG}/{version:020d}.json').decode('utf-8', 'replace')
        except FileNotFoundError:
            return None
        operation, txns, added = '', {}, []
        for line in text.split('\n'):  # a string may have other line ends
            if not any(kind in line for kind in KINDS):
                continue
            action = json.loads(line)
            if 'txn' in action:
                txns[action['txn']['appId']] = int(action['txn']['version'])
            elif 'add' in action:
                added.append(action['add']['path'])
            elif 'commitInfo' in action:
                operation = str(action['commitInfo'].get('operation', ''))
        found = Commit(version, operation, txns, added)
        if self._newest is None or version > self._newest.version:
            self._newest = found
        return found

    def backwards(self, version: int) -> Iterator[Commit]:
        """Yield the commits from a version on backwards, as far as the log reaches."""
        while version >= 0 and (commit := self.commit(version)) is not None:
            yield commit
            version -= 1

    def _read_checkpoint(self, version: int) -> int:
        """Read the `txn` actions of the newest checkpoint that is not after a version. Return its version, and -1 if
        there is none."""
        for at, names in self._checkpoints(version):
            for name in names:
                self._txns |= self._txns_in(f'{LOG}/{name}')
            return at
        return -1

    def _checkpoints(self, version: int) -> Iterator[tuple[int, list[str]]]:
        """Yield the version and the file names of complete checkpoints, the newest first."""
        found: dict[int, dict[str, list[str]]] = {}
        for path in self._names(version):
            match = CHECKPOINT.fullmatch(path)
            if match and int(match[1]) <= version:
                found.setdefault(int(match[1]), {}).setdefault(match[2] or '', []).append(path)
        for at in sorted(found, reverse=True):
            for parts, names in sorted(found[at].items()):
                if not parts:
                    yield at, names[:1]  # two checkpoints of one version have the same content
                elif len(names) == int(parts):
                    yield at, names

    def _names(self, version: int) -> list[str]:
        """Return the names of files of checkpoints: of the one that the hint names, if it is not after the version,
        and otherwise all."""
        try:
            hint = json.loads(self._read(HINT))
            at = int(hint['version'])
            parts = int(hint.get('parts') or 0)
            names = [f'{at:020d}.checkpoint.{number:010d}.{parts:010d}.parquet' for number in range(1, parts + 1)]
            names = names or [f'{at:020d}.checkpoint.parquet']
            infos = self._store.filesystem.get_file_info([f'{self._store.root}/{LOG}/{each}' for each in names])
            if at <= version and all(each.is_file for each in infos):
                return names
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            pass  # no checkpoint, or a hint in another form: list the log
        return [path.removeprefix(f'{LOG}/') for path in self._store.list(LOG)]

    def _txns_in(self, path: str) -> Txns:
        """Return the `txn` actions in a file of a checkpoint."""
        if path.endswith('.json'):
            actions = [json.loads(line).get('txn') for line in self._read(path).split(b'\n') if line]
        else:
            import pyarrow.parquet as pq
            with self._store.filesystem.open_input_file(f'{self._store.root}/{path}') as file:
                found = pq.ParquetFile(file).read(columns=['txn'])
            actions = found.column('txn').to_pylist() if 'txn' in found.column_names else []
        return {each['appId']: int(each['version']) for each in actions if each and each['appId'] is not None}

    def _read(self, path: str) -> bytes:
        with self._store.filesystem.open_input_stream(f'{self._store.root}/{path}') as stream:
            return bytes(stream.read())

    def sync(self, version: int) -> None:
        """Sync the files of the log of a local table that are not known to be on the disk. delta-rs syncs none.

        The first call syncs all files since the newest checkpoint, because another program, or a driver that was
        killed, may have written them. Later calls sync those of versions after the last call. Raise OSError if that
        fails.
        """
        if not self._store.is_local:
            return
        directory = Path(self._store.root, LOG)
        first = self._synced_version
        if not first:
            first = next((at for at, _ in self._checkpoints(version)), 0)
        for each in sorted(directory.iterdir()):
            if each.name == '_last_checkpoint' or (each.name[:20].isdecimal() and int(each.name[:20]) >= first):
                with suppress(FileNotFoundError):  # a cleanup of the log has deleted it
                    sync_directory(each)  # the system call is the same for a file
        sync_directory(directory)
        sync_directory(directory.parent)
        self._synced_version = version

"""Records that a query has skipped, stored as lines of JSON in a directory that the driver and the executors share.

Spark accepts only rows from a data source in Python, but no counters. With the option `skippedTo`, the plan therefore
writes a file. Each task that has skipped records also writes a file when it ends. The name of a file depends only on
the work that wrote it, so work that runs twice is counted once. In a stream, the name begins with the micro-batch,
because two micro-batches may read from the same batch of the log. Every row has all columns, so that a query always
finds them.
"""
from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kbroker.base.topic_partition import TopicPartition

PLAN = 'plan'


@dataclass(frozen=True)
class Loss:
    """A run of offsets in which some or all records are lost or damaged."""

    topic: str | None
    partition: int | None
    first_offset: int | None
    lost_offsets: int
    what: str | None
    """A description of the loss. A row without a loss has None here and in `first_offset`."""


@dataclass
class Skipped:
    """The records that one task or plan has skipped, or the sum of several of these."""

    losses: list[Loss] = field(default_factory=list)
    aborted: Counter[TopicPartition] = field(default_factory=Counter)
    """The number of aborted transactions that were skipped, by the partition of their markers."""

    def lose(self, topic: str, partition: int, first_offset: int, end_offset: int, what: str) -> None:
        self.losses.append(Loss(topic, partition, first_offset, max(0, end_offset - first_offset), what))

    @property
    def lost_offsets(self) -> int:
        return sum(loss.lost_offsets for loss in self.losses)

    @property
    def words(self) -> list[str]:
        return [loss.what or '' for loss in self.losses]

    @property
    def aborted_transactions(self) -> int:
        return self.aborted.total()

    def add(self, other: Skipped) -> None:
        self.losses += other.losses
        self.aborted += other.aborted

    def write(self, directory: Path, name: str) -> None:
        """Write the file `name`. It replaces the file of an earlier attempt. Delete the file if nothing was skipped.
        Raise OSError if that fails."""
        rows = [{**asdict(loss), 'aborted_transactions': 0} for loss in self.losses]
        rows += [{**asdict(Loss(topic, partition, None, 0, None)), 'aborted_transactions': count}
                 for (topic, partition), count in sorted(self.aborted.items()) if count]
        if not rows and name == PLAN:
            rows = [{**asdict(Loss(None, None, None, 0, None)), 'aborted_transactions': 0}]
        if not rows:
            (directory / f'{name}.json').unlink(missing_ok=True)
            return
        directory.mkdir(parents=True, exist_ok=True)
        new = directory / f'_{uuid.uuid4().hex}'  # another attempt may be writing now
        new.write_text(''.join(json.dumps(row) + '\n' for row in rows), 'utf-8')
        os.rename(new, directory / f'{name}.json')

    @classmethod
    def read(cls, directory: Path) -> Skipped:
        """Return the sum of all files in the directory. Raise OSError if a file cannot be read."""
        return cls.sum(json.loads(line) for path in sorted(directory.glob('*.json'))
                       for line in path.read_text('utf-8').splitlines())

    @classmethod
    def sum(cls, rows: Iterable[dict[str, Any]]) -> Skipped:
        found = cls()
        for row in rows:
            aborted = row.pop('aborted_transactions')
            if row['what'] is not None:
                found.losses.append(Loss(**row))
            if aborted:
                found.aborted[row['topic'], row['partition']] += aborted
        return found


def keep_only(directory: Path, prefix: str, names: Iterable[str]) -> None:
    """Delete the files whose names begin with the prefix. Keep the files in `names`, because the new tasks will replace
    them. Raise OSError if that fails."""
    kept = {f'{name}.json' for name in names}
    for path in directory.glob(f'{prefix}*.json'):
        if path.name not in kept:
            path.unlink()

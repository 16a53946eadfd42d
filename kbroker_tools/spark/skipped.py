"""What a query passed over, told beside its rows: lines of JSON in a directory that driver and executors share.

Spark takes nothing but rows from a source in Python, no counter. So where it is asked for (`skippedTo`) the plan leaves
a file, and each task that has something to tell when it is at its end. A file is named for the work: what runs twice
tells it once. So is one of a stream, after its micro-batch and then the work: another micro-batch may begin within the
same batch of the log. All rows have all columns, so that a query over them finds those whatever happened.
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

Partition = tuple[str, int]
PLAN = 'plan'


@dataclass(frozen=True)
class Loss:
    """Records that are gone or damaged: some or all of those of a run of offsets."""

    topic: str | None
    partition: int | None
    first_offset: int | None
    lost_offsets: int
    what: str | None
    """None, as others are then, in a row that tells of no loss."""


@dataclass
class Skipped:
    """Of one task or plan, or the sum of many."""

    losses: list[Loss] = field(default_factory=list)
    aborted: Counter[Partition] = field(default_factory=Counter)
    """Aborted transactions that were left out, each where its marker lies."""

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
        """A file with all of it, in place of what an earlier attempt has told; none with nothing to tell. OSError."""
        rows = [{**asdict(loss), 'aborted_transactions': 0} for loss in self.losses]
        rows += [{**asdict(Loss(topic, partition, None, 0, None)), 'aborted_transactions': count}
                 for (topic, partition), count in sorted(self.aborted.items()) if count]
        if not rows and name == PLAN:
            rows = [{**asdict(Loss(None, None, None, 0, None)), 'aborted_transactions': 0}]
        if not rows:
            (directory / f'{name}.json').unlink(missing_ok=True)
            return
        directory.mkdir(parents=True, exist_ok=True)
        new = directory / f'_{uuid.uuid4().hex}'  # another attempt may be at it at this moment
        new.write_text(''.join(json.dumps(row) + '\n' for row in rows), 'utf-8')
        os.rename(new, directory / f'{name}.json')

    @classmethod
    def read(cls, directory: Path) -> Skipped:
        """The sum of what lies there. OSError."""
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
    """Of the files whose names begin so, those that work of these names will write anew. OSError."""
    kept = {f'{name}.json' for name in names}
    for path in directory.glob(f'{prefix}*.json'):
        if path.name not in kept:
            path.unlink()

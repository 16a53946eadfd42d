"""The measurements of the attacks, and the program that prints them as a table.

    make test WORKERS=0 PYTEST_ARGS='tests/hostile --measure-attacks build/attacks.jsonl'
    python tests/hostile/attack_measurements.py build/attacks.jsonl

Each run appends to the file. The table has the median of the runs.
"""
from __future__ import annotations

import json
import pathlib
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class Measurement(NamedTuple):
    """The broker's resident memory in MB, and the p99 of the good client's operations in ms of wall time, during an
    attack."""

    before_mb: float
    peak_mb: float
    quiet_p99_ms: float
    p99_ms: float

    def line(self, attack: str) -> str:
        return json.dumps({'attack': attack, **self._asdict()})


def rows_of(lines: Iterable[str]) -> list[str]:
    """Return a line for each attack: the growth of the memory, the p99, and its ratio to the p99 before the attack."""
    found: dict[str, list[Measurement]] = defaultdict(list)
    for line in lines:
        fields = json.loads(line)
        found[fields.pop('attack')].append(Measurement(**fields))
    return [f'| {attack} | {median(one.peak_mb - one.before_mb for one in runs):.0f} MB '
            f'| {median(one.p99_ms / one.quiet_p99_ms for one in runs):.1f} '
            f'| {median(one.p99_ms for one in runs):.1f} ms | {len(runs)} |' for attack, runs in sorted(found.items())]


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


if __name__ == '__main__':
    print('| attack | growth | p99 ratio | p99 | runs |\n|---|--:|--:|--:|--:|')
    print('\n'.join(rows_of(pathlib.Path(sys.argv[1]).read_text().splitlines())))

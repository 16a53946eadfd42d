"""The running totals of all soaks: a table in `docs/proof.md`, to which each soak adds what its tests did.

A test reports its counts with the fixture `tally` at its end, so a failed test adds none.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

PROPERTY = 'soak tally'
KINDS = ('simulated histories', 'power cuts', 'failed writes and syncs',
         'kills of a broker, a client or an application', 'damaged directories', 'damaged requests',
         'mutated tokens of logins', 'fuzz runs', 'minutes of processor time of fuzzing',
         'histories beside Apache Kafka', 'hand-overs in chains of programs', 'minutes of random cuts',
         'minutes of kbroker-verify', 'minutes of mixed load', 'failures of an ingest into a table')
"""The kinds of counts, which are the rows of the table."""
_ROW = re.compile(r'^\| ([^|]+?) \| ([\d,]+) \|$', re.MULTILINE)


def counts_of(properties: Iterable[tuple[str, object]]) -> Counter[str]:
    """Return {kind: sum of the counts} of the properties of test reports."""
    found: Counter[str] = Counter()
    for name, value in properties:
        if name == PROPERTY:
            assert isinstance(value, list | tuple)
            found[value[0]] += value[1]
    return found


def added(page: str, counts: Mapping[str, int]) -> str:
    """Return the page with the counts added to its table of totals. Raise ValueError if a kind has no row in the table.
    """
    left = dict(counts)

    def grown(row: re.Match[str]) -> str:
        kind, total = row[1], int(row[2].replace(',', ''))
        return f'| {kind} | {total + left.pop(kind, 0):,} |'

    page = _ROW.sub(grown, page)
    if left:
        raise ValueError(f'found no row for {", ".join(left)}, expected one in the table of totals')
    return page


def add_to(path: Path, counts: Mapping[str, int]) -> None:
    """Add counts to the table of a page."""
    path.write_text(added(path.read_text('utf-8'), counts), 'utf-8')

"""The APIs and the versions of APIs that SKIPPED.md lists as not served."""
from __future__ import annotations

import re
from collections.abc import Iterator

from support.runner.pages import rows_of_table


def skipped_keys() -> set[int]:
    """Return the API keys of the table of APIs that are not served.

    A row names its keys in parentheses: `(17)`, `(38-41)` or `(71, 72)`.
    """
    return {key for name, *_ in rows_of_table('SKIPPED.md', 'API (key)')
            for listed in re.findall(r'\(([\d, -]+)\)', name) for key in _numbers(listed)}


def skipped_versions() -> dict[str, set[int]]:
    """Return {name: numbers} of the versions of APIs, and of the levels of features, that are not served.

    They are the rows of the table of parts that consist of a name and of numbers: `InitProducerId 6`.
    """
    rows = (re.fullmatch(r'`?([A-Za-z][\w.]*)`? ([\d, -]+)', name)
            for name, *_ in rows_of_table('SKIPPED.md', 'API or setting'))
    return {row[1]: set(_numbers(row[2])) for row in rows if row}


def _numbers(listed: str) -> Iterator[int]:
    for part in listed.split(','):
        first, _, last = part.strip().partition('-')
        yield from range(int(first), int(last or first) + 1)

"""The lines that a broker may log at WARNING and above under the mixed load, each with its reason."""
from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable

CALM = ('info', 'debug')
EXPLAINED: tuple[tuple[str, str], ...] = (
    (r'the loop was held for \d+ ms: .*', 'another process had the processor'),
)
"""Maps patterns of whole messages to the reasons for the messages."""
_PATTERNS = [re.compile(pattern) for pattern, _ in EXPLAINED]


def unexplained(lines: Iterable[str]) -> list[str]:
    """Return the lines that no pattern explains. The broker logs only JSON objects, so any other line is unexplained.
    """
    return [line for line in lines if _reason(line) is None]


def explained(lines: Iterable[str]) -> Counter[str]:
    """Count the lines that each reason explains."""
    return Counter(reason for reason in map(_reason, lines) if reason)


def _reason(line: str) -> str | None:
    """Return the reason for a line, '' if its level is below WARNING, or None if no pattern explains it."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or 'traceback' in entry:
        return None
    if entry.get('level') in CALM:
        return ''
    for pattern, (_, reason) in zip(_PATTERNS, EXPLAINED, strict=True):
        if pattern.fullmatch(entry.get('message', '')):
            return reason
    return None

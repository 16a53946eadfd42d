"""Tests dealt out to the processes of a run: what shares something dear stays together, what takes long comes first."""
from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

SESSION = tuple(f'tests/spark/test_spark_{name}.py' for name in ('session', 'ingest', 'judged', 'secured', 'protobuf'))
"""What one process runs: these share a Spark session."""
LONGEST = (*SESSION, 'tests/spark/', 'tests/jvm/', 'tests/crash/', 'tests/test_benches.py', 'tests/gates/')
"""What would keep one process at work after the other has ended, if it came late."""


class Scheduler(LoadScopeScheduling):
    """A file at a time, so that what its tests share is made once; the next one goes to whoever is free."""

    def __init__(self, config: Any, log: Any = None):
        config.option.loadscopereorder = False  # by numbers of tests, which say nothing
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition('::')[0]
        return 'the Spark session' if file in SESSION else file


def priority(nodeid: str) -> int:
    """The place of a test among the others, of which those with the same keep their order."""
    return next((number for number, place in enumerate(LONGEST) if nodeid.startswith(place)), len(LONGEST))

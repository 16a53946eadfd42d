"""Distributes tests over processes: files with costly shared state stay together, and slow files run first."""
from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

SESSION = tuple(f'tests/spark/test_spark_{name}.py' for name in ('session', 'ingest', 'judged', 'secured', 'protobuf'))
"""The files that share a Spark session. One process runs them all."""
LONGEST = (*SESSION, 'tests/spark/', 'tests/jvm/', 'tests/crash/', 'tests/test_examples.py', 'tests/test_benches.py',
           'tests/gates/', 'tests/node/', 'tests/hostile/', 'tests/clients/')
"""The slowest places, which run first: started late, they would keep one process busy after the other has ended."""


class Scheduler(LoadScopeScheduling):
    """Gives the next file to a free process. All tests of a file share one process, which makes their fixtures once."""

    def __init__(self, config: Any, log: Any = None):
        config.option.loadscopereorder = False  # it orders by the number of tests, which does not predict the time
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition('::')[0]
        return 'the Spark session' if file in SESSION else file


def priority(nodeid: str) -> int:
    """Return the sort key of a test. Tests with equal keys keep their order."""
    return next((number for number, place in enumerate(LONGEST) if nodeid.startswith(place)), len(LONGEST))

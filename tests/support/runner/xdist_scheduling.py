"""Distributes tests over processes: files with costly shared state stay together, and slow files run first."""
from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

SESSION = tuple(f'tests/spark/test_spark_{name}.py'
                for name in ('session', 'ingest', 'judged', 'secured', 'protobuf', 'sink', 'sink_faults', 'pipeline',
                             'pipeline_kills', 'beside_json_values', 'registry'))
"""The test files that share a Spark session. One process runs all of them."""
WAITING = (*SESSION, 'tests/jvm/', 'tests/spark/', 'tests/test_examples.py', 'tests/node/', 'tests/clients/',
           'tests/applications/', 'tests/testing/', 'tests/client/test_client_exactly_once.py')
"""The slow directories and files whose tests mostly wait for other programs, in the order in which they start. The
tests of `tests/jvm` wait most. They come second, so that they run at the same time as the tests of the Spark session,
which wait least.
"""
BUSY = ('tests/fuzz/', 'tests/verifying/', 'tests/crash/', 'tests/test_benches.py', 'tests/gates/', 'tests/hostile/')
"""The slow directories and files whose tests use a processor all the time, the slowest last."""
APART = ('tests/jvm/test_chains.py',)
"""The files whose tests are long and share nothing. Each of their tests may run in another process."""
LONGEST = (*WAITING, *BUSY)
LONG_RUN = 'tests/endurance/'
"""The file of the test that takes two hours in a soak. The second process begins with it."""


class Scheduler(LoadScopeScheduling):
    """A scheduler that gives the next file to a free process. All tests of a file run in one process, so their fixtures
    are created once; the files in APART are the exception. Processes 0, 2, 4 and so on get files from the front of the
    queue, whose tests mostly wait. Processes 1, 3, 5 and so on get files from its end, whose tests use a processor all
    the time. Both kinds of tests therefore run at the same time. The short files are in the middle and run last,
    because a slow file that started late would run after the other processes have ended.

    Three processes suit two cores, because two of them mostly wait.
    """

    def __init__(self, config: Any, log: Any = None):
        config.option.loadscopereorder = False  # it orders by the number of tests, which does not predict the time
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition('::')[0]
        if file in APART:
            return nodeid
        return 'the Spark session' if file in SESSION else file

    def _assign_work_unit(self, node: Any) -> None:
        if self.nodes.index(node) % 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def priority(nodeid: str) -> int:
    """Return the sort key of a test, which gives its place in the queue. Tests with equal keys keep their order."""
    for number, place in enumerate(WAITING):
        if nodeid.startswith(place):
            return number - len(WAITING)
    return next((number + 1 for number, place in enumerate((*BUSY, LONG_RUN)) if nodeid.startswith(place)), 0)

"""Distributes tests over processes: files with costly shared state stay together, and slow files run first."""
from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

SESSION = tuple(f'tests/spark/test_spark_{name}.py'
                for name in ('session', 'ingest', 'judged', 'secured', 'protobuf', 'sink', 'sink_faults', 'pipeline',
                             'pipeline_kills'))
"""The files that share a Spark session. One process runs them all."""
WAITING = (*SESSION, 'tests/jvm/', 'tests/spark/', 'tests/test_examples.py', 'tests/node/', 'tests/clients/',
           'tests/applications/', 'tests/client/test_client_exactly_once.py')
"""The slow places whose tests wait for other programs much of the time, in the order in which they are begun.

Those of `tests/jvm` wait most. They come second, so that they run beside the Spark session, which waits least.
"""
BUSY = ('tests/fuzz/', 'tests/verifying/', 'tests/crash/', 'tests/test_benches.py', 'tests/gates/', 'tests/hostile/')
"""The slow places whose tests use a processor all the time, the slowest last."""
LONGEST = (*WAITING, *BUSY)
LONG_RUN = 'tests/endurance/'
"""The place of the test that takes two hours in a soak, so the second process begins with it."""


class Scheduler(LoadScopeScheduling):
    """Gives the next file to a free process. All tests of a file share one process, which makes their fixtures once.

    The first process, and every second one after it, takes files from the front of the queue, where tests wait. The
    others take files from its end, where tests are busy. So neither kind runs alone, and the short files, in the
    middle, come last: a slow one that started late would keep one process busy after the others have ended.

    Three processes suit two cores: two of them mostly wait.
    """

    def __init__(self, config: Any, log: Any = None):
        config.option.loadscopereorder = False  # it orders by the number of tests, which does not predict the time
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition('::')[0]
        return 'the Spark session' if file in SESSION else file

    def _assign_work_unit(self, node: Any) -> None:
        if self.nodes.index(node) % 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def priority(nodeid: str) -> int:
    """Return the sort key of a test: its place in the queue. Tests with equal keys keep their order."""
    for number, place in enumerate(WAITING):
        if nodeid.startswith(place):
            return number - len(WAITING)
    return next((number + 1 for number, place in enumerate((*BUSY, LONG_RUN)) if nodeid.startswith(place)), 0)

"""The collection of cyclic garbage, in parts that do not hold the loop for long.

By default, Python repeatedly scans all living objects for cycles. A scan of 250,000 objects, for example those of 100
large fetch sessions, takes 46 ms. While the broker serves, each object is scanned three times while it is young, and
then never again. The oldest generation is scanned when about 15,000 objects have reached it, which takes 2 to 3 ms.
After that scan, these objects are exempt from scans.

Python starts a scan by a counter: the number of new objects minus the number of freed objects. The counter stays low
while each request creates as many objects as it frees from earlier requests. New members of a group do this when the
group has as many pending members as it may have. Without YoungSearch, the scan started late and took 44 ms for 90,000
young objects. So YoungSearch also starts a scan after a number of requests.

A single long request may also free as many objects as it creates. In a request with 50,000 topics, the scan started
only after the last topic, and took 25 ms. So YoungSearch also starts a scan after each slice of long work that used up
its time. An object that survives four of these scans is old.

An exempt object is freed when its last reference is removed. Cycles of exempt objects are never freed, so each
long-lived object must break its cycles when its use ends. The attacks in `tests/hostile` check that no cycle remains.
"""
from __future__ import annotations

import contextlib
import gc
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

logger = logging.getLogger('kbroker.garbage')

THRESHOLDS = 700, 10, 1
"""The thresholds of Python's collector.

The first is the number of new objects after which it scans the youngest generation. The others are the number of scans
of a generation after which it scans the next older generation.
"""

REQUESTS_BETWEEN = 50
"""The number of requests after which YoungSearch scans the youngest generation.

A request of a group leaves about ten objects.
"""

GENERATIONS_AFTER_SLICES = 0, 1, 0, 2
"""The generations that YoungSearch scans after full slices of long work, one after each full slice, in turn.

A full slice leaves about 4,000 objects.
"""


class Traffic(Protocol):
    """An object that counts requests."""

    requests: int


class Slices(Protocol):
    """An object that counts the slices of long work that used up their time."""

    full_slices: int


class YoungSearch:
    """Scans the youngest generation after REQUESTS_BETWEEN requests, and the older generations as often as THRESHOLDS
    says.

    After each full slice of long work, it scans the next generation of GENERATIONS_AFTER_SLICES.
    """

    def __init__(self, traffic: Traffic, long_work: Slices):
        self._traffic = traffic
        self._long_work = long_work
        self._next = traffic.requests + REQUESTS_BETWEEN
        self._slices = long_work.full_slices
        self._searches = 0

    def end_tick(self) -> None:
        """Start a scan if enough requests or slices have passed. The loop calls this at the end of each tick."""
        if self._long_work.full_slices != self._slices:
            self._slices = self._long_work.full_slices
            gc.collect(GENERATIONS_AFTER_SLICES[self._slices % len(GENERATIONS_AFTER_SLICES)])
        elif self._traffic.requests >= self._next:
            self._next = self._traffic.requests + REQUESTS_BETWEEN
            self._searches += 1
            gc.collect(self._generation())

    def _generation(self) -> int:
        _, of_first, of_second = THRESHOLDS
        if self._searches % of_first:
            return 0
        return 1 if self._searches % (of_first * (of_second + 1)) else 2


@contextlib.contextmanager
def exempting_the_old() -> Iterator[None]:
    """Within this context, exempt each object from scans once it has survived a scan of the oldest generation.

    The objects that exist when the context begins are exempt, too.
    """
    before = gc.get_threshold()
    gc.freeze()
    # Python scans the oldest generation again only when it has grown by a quarter since its last scan. Scan it now,
    # while it is empty, so that this condition soon holds.
    gc.collect()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(_exempt)
    try:
        yield
    finally:
        gc.callbacks.remove(_exempt)
        gc.set_threshold(*before)


def _exempt(phase: str, info: dict[str, Any]) -> None:
    if phase == 'stop' and info['generation'] == 2:
        gc.freeze()


def log_garbage() -> None:
    """Scan all objects, and log the types of the objects that only cycles keep alive. Tests use this."""
    gc.unfreeze()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    types = Counter(f'{type(each).__module__}.{type(each).__name__}' for each in gc.garbage)
    gc.garbage.clear()
    gc.collect()
    gc.freeze()
    gc.collect()        # for the reason in `exempting_the_old`
    logger.info('%d objects were garbage', types.total(), extra={'event': 'garbage', 'types': dict(types)})

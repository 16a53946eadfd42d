"""The collector of cyclic garbage, in parts that do not hold the loop.

By default Python searches all living objects for cycles repeatedly. A search of 250,000 objects, for example those of
100 large fetch sessions, takes 46 ms. While the broker serves, each object is searched three times while it is young,
and never again. The oldest generation is searched when some 15,000 objects have reached it, which takes 2 to 3 ms, and
is exempt from then on.

Python starts a search by the number of new objects minus freed ones. That number stays low while each request leaves as
many objects behind as it frees of earlier requests. New members of a group at the bound of pending members do so: the
search came too late, and took 44 ms for 90,000 young objects. So YoungSearch also searches after a number of requests.
A single long request may also leave as many objects as it frees. In a request of 50,000 topics, the search came after
the last topic, and took 25 ms. So YoungSearch also searches after each slice of long work that used up its time. An
object that survives four of these searches is old.

An exempt object is freed when its last reference goes. Cycles among exempt objects are not freed, so each long-lived
object must break its cycles at its end. The attacks of `tests/hostile` check that no cycle is left.
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
"""The thresholds of Python's collector: the new objects after which it searches the youngest generation, and the
searches of a generation after which it searches the next older one.
"""

REQUESTS_BETWEEN = 50
"""The number of requests after which the youngest generation is searched. A request of a group leaves some ten objects.
"""

GENERATIONS_AFTER_SLICES = 0, 1, 0, 2
"""The generations to search after full slices of long work, in turn. Each full slice leaves some 4,000 objects."""


class Traffic(Protocol):
    """An object that counts requests."""

    requests: int


class Slices(Protocol):
    """An object that counts the slices of long work that used up their time."""

    full_slices: int


class YoungSearch:
    """Searches young objects after REQUESTS_BETWEEN requests, and the older generations as often as THRESHOLDS says.

    After each full slice of long work it searches the next of GENERATIONS_AFTER_SLICES.
    """

    def __init__(self, traffic: Traffic, long_work: Slices):
        self._traffic = traffic
        self._long_work = long_work
        self._next = traffic.requests + REQUESTS_BETWEEN
        self._slices = long_work.full_slices
        self._searches = 0

    def end_tick(self) -> None:
        """Search if enough requests or slices have passed. The loop calls this at the end of each tick."""
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
    """Within this context, exempt an object from further searches once it has survived a search of the oldest
    generation.

    The objects that exist at its beginning are exempt, too.
    """
    before = gc.get_threshold()
    gc.freeze()
    # Python searches the oldest generation again only when it has grown by a quarter since its last search. Search it
    # now, while it is empty.
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
    """Search all objects, and log the types of those that only cycles keep alive. Tests use this."""
    gc.unfreeze()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    types = Counter(f'{type(each).__module__}.{type(each).__name__}' for each in gc.garbage)
    gc.garbage.clear()
    gc.collect()
    gc.freeze()
    gc.collect()        # as `exempting_the_old`
    logger.info('%d objects were garbage', types.total(), extra={'event': 'garbage', 'types': dict(types)})

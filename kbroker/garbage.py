"""The collector of cyclic garbage, in parts that do not hold the loop.

Python searches all living objects for cycles again and again: 250,000 objects, as of 100 large fetch sessions, take
46 ms. While the broker serves, an object is searched three times while it is young, then never again. The oldest
generation is searched when some 15,000 objects have reached it, which takes 2 to 3 ms, and is exempt from then on.

An exempt object is freed when its last reference goes. Cycles among exempt objects are not freed, so whatever lives
long has to break its cycles when it ends. The attacks of `tests/hostile` check that none is left.
"""
from __future__ import annotations

import contextlib
import gc
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger('kbroker.garbage')

THRESHOLDS = 700, 10, 1
"""The new objects, and the searches of the younger generation, after which a generation is searched."""


@contextlib.contextmanager
def exempting_the_old() -> Iterator[None]:
    """Inside, exempt the objects that have passed a search of the oldest generation from all further ones.

    The objects that exist before are exempt, too.
    """
    before = gc.get_threshold()
    gc.freeze()
    # Python searches the oldest generation once it has grown by a quarter since the last search: now from nothing.
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
    """Search all objects, and log the types of those that only cycles hold: tests use this."""
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

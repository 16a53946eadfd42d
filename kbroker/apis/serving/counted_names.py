"""Names in a request, counted in small parts: a client may send a million of them."""
from __future__ import annotations

from collections.abc import Hashable, Iterable

from kbroker.apis.serving.long_answers import Pace, Steps


def counted(names: Iterable[Hashable], pace: Pace) -> Steps:
    """Return how many times each name occurs, in the order of the first occurrences."""
    times: dict[Hashable, int] = {}
    for name in names:
        times[name] = times.get(name, 0) + 1
        if pace.spend():
            yield
    return times

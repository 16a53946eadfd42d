"""CPU time of two functions as a ratio that holds on a noisy machine: both in turns, the median of pairwise ratios."""
from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

PAIRS = 15
SPAN_NS = 2_000_000
"""How long a side of a pair runs at least: far above what a look at the clock costs, far below a slice of the scheduler
that would let the machine change between the sides."""

Work = Callable[[], object]


def cpu_ratio(reference: Work, ours: Work) -> float:
    """How many times the CPU time of `ours` the reference takes.

    What else runs slows both sides of a pair alike, and a pair that it does not is outvoted.
    """
    counts = [_calls_per_span(work) for work in (reference, ours)]
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return statistics.median(_pair(reference, ours, *counts, ours_first=number % 2 == 1) for number in range(PAIRS))
    finally:
        if was_enabled:
            gc.enable()


def _pair(reference: Work, ours: Work, reference_count: int, our_count: int, *, ours_first: bool) -> float:
    if ours_first:
        our_ns = _cpu_ns(ours, our_count)
        return _cpu_ns(reference, reference_count) / reference_count / (our_ns / our_count)
    reference_ns = _cpu_ns(reference, reference_count)
    return reference_ns / reference_count / (_cpu_ns(ours, our_count) / our_count)


def _calls_per_span(work: Work) -> int:
    """How many calls fill a span. Warms up what is called, too."""
    count = 1
    while _cpu_ns(work, count) < SPAN_NS:
        count *= 2
    return count


def _cpu_ns(work: Work, count: int) -> int:
    calls = range(count)
    began = time.thread_time_ns()
    for _ in calls:
        work()
    return time.thread_time_ns() - began

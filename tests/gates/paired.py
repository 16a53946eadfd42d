"""Measures the ratio of the CPU times of two functions. The functions run in alternating pairs, and the median of the
pairs is stable on a noisy machine.
"""
from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

PAIRS = 15
SPAN_NS = 2_000_000
"""The least duration of one side of a pair in nanoseconds. It is far longer than a reading of the clock, and far
shorter than a time slice of the scheduler, so that both sides run under the same load.
"""

Work = Callable[[], object]


def cpu_ratio(reference: Work, ours: Work) -> float:
    """Return the CPU time of the reference divided by that of `ours`.

    Other processes slow down both sides of most pairs equally. The median discards the other pairs.
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
    """Return how many calls of `work` take the least duration of a side. The calls also warm up the function."""
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

"""Bounds on processor time, and repeated attempts for the tests that have one.

Slow code exceeds its bound in every run. On a busy machine, short work sometimes takes many times as long: processor
time includes page faults that the hypervisor serves, interrupts for other processes, and misses in shared caches. Two
rules keep this noise out of the verdict:

- a test that raises TooSlow is run again with new fixtures, ATTEMPTS times in all, and judged by its best run. The
  summary of warnings shows each run that exceeded a bound
- a bound holds for a processor that does the reference work in REFERENCE_S. A slower processor has proportionally more
  time

`second_runs` does something else: when all tests have ended, it repeats those that failed for any reason.
"""
from __future__ import annotations

import statistics
import time
from collections.abc import Iterable

import pytest
from _pytest.runner import runtestprotocol

ATTEMPTS = 3
REFERENCE_S = 0.0004
"""The processor time of the reference work in seconds, on an idle core of an AMD EPYC of 2024, under Python 3.11."""
EXCEEDED = pytest.StashKey[BaseException | None]()


class TooSlow(AssertionError):
    """Raised if a measured time is above its bound."""


class SlowAttempt(UserWarning):
    """A test exceeded a bound on time, and is run again."""


def reference_s() -> float:
    """Do the reference work. Return the processor time that it took."""
    began_s, total = time.thread_time(), 0
    for number in range(20_000):
        total += number
    return time.thread_time() - began_s


def slowness(references_s: Iterable[float]) -> float:
    """Return how many times slower this processor is than the processor of REFERENCE_S, at least 1. `references_s` are
    the times of the reference work here.
    """
    return max(1.0, statistics.median(references_s) / REFERENCE_S)


def assert_within(taken_s: float, limit_s: float) -> None:
    """Raise TooSlow if a processor time is above its bound. The caller has just measured it."""
    if taken_s > limit_s and taken_s > limit_s * (factor := slowness(reference_s() for _ in range(9))):
        raise TooSlow(f'{taken_s * 1000:.2f} ms of processor time, expected at most {limit_s * 1000:g} ms, times '
                      f'{factor:.2f} for this processor')


def run_in_attempts(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Run a test. Repeat it while it raises TooSlow and has attempts left. Report only the last run."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for attempt in range(1, ATTEMPTS + 1):
        item.stash[EXCEEDED] = None
        if attempt > 1:
            item._initrequest()     # forgets the values of fixtures, as the plug-ins that repeat tests do
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        exceeded = item.stash[EXCEEDED]
        if exceeded is None or attempt == ATTEMPTS:
            break
        item.warn(SlowAttempt(f'attempt {attempt} of {ATTEMPTS}: {exceeded}'))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def note_exceeded(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Remember that the test raised TooSlow."""
    if call.excinfo is not None and call.excinfo.errisinstance(TooSlow):
        item.stash[EXCEEDED] = call.excinfo.value

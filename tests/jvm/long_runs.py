"""Long runs of random histories on two brokers. Several histories run at the same time, each in a separate lane. A
history mostly waits for its brokers, so several histories together take little longer than one.
"""
from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from histories import TooSlow
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

SHORTENED = 5
"""The largest number of failing histories that a run shortens."""
SHORTENING_LIMIT_S = 900
DRAWN_AT_ONCE = 50

History = Sequence[Any]
Judge = Callable[[History, int], list[str]]
"""The type of a function that runs a history in a lane. It returns the differences between the brokers, or raises
TooSlow.
"""


def random_histories(strategy: SearchStrategy[Any], count: int) -> list[History]:
    """Draw histories without running them."""
    found: list[History] = []

    @settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(strategy)
    def collect(history: History) -> None:
        found.append(history)

    while len(found) < count:
        collect()
    return found[:count]


def kind_of(differences: list[str]) -> str:
    """Return the operation or the exception with which a history failed."""
    return differences[0].partition('(')[0].partition(':')[0]


class LongRun:
    """A run of many histories. `judged`, `rejected` and `failed` are its current results."""

    def __init__(self, judge: Judge, lanes: int):
        self.judged = 0
        self.rejected = 0
        self.failed: list[History] = []
        self._judge = judge
        self._count_of_lanes = lanes
        self._lock = threading.Lock()
        self._lanes: queue.SimpleQueue[int] = queue.SimpleQueue()
        for lane in range(lanes):
            self._lanes.put(lane)
        self._begin_s = time.monotonic()

    def run(self, strategy: SearchStrategy[Any], count: int) -> list[str]:
        """Run `count` histories. Run each failing history a second time, alone. Return a text for each history that
        fails again.
        """
        with ThreadPoolExecutor(self._count_of_lanes) as pool:
            while (left := count - self.judged - self.rejected) > 0:
                list(pool.map(self._run_one, random_histories(strategy, min(left, DRAWN_AT_ONCE))))
                print(self, file=sys.stderr, flush=True)
        texts: list[str] = []
        for history in self.failed:
            if text := self._again(history, is_shortened=len(texts) < SHORTENED):
                texts.append(text)
        return texts

    def __str__(self) -> str:
        return (f'{self.judged} histories in {time.monotonic() - self._begin_s:.0f} s, {len(self.failed)} with a '
                f'difference; {self.rejected} took too long to be judged')

    def _run_one(self, history: History) -> None:
        lane = self._lanes.get()
        try:
            found = self._differences(history, lane)
        finally:
            self._lanes.put(lane)
        with self._lock:
            if found is None:
                self.rejected += 1
                return
            self.judged += 1
            if found:
                self.failed.append(history)
                print(f'history = {list(history)}', *found, sep='\n', file=sys.stderr, flush=True)

    def _differences(self, history: History, lane: int = 0) -> list[str] | None:
        """Run a history. Return the differences, or the exception that ended the history, or None if the history cannot
        be judged.
        """
        try:
            return self._judge(history, lane)
        except TooSlow:
            return None
        except Exception as error:
            return [f'{type(error).__name__}: {error}']

    def _again(self, history: History, *, is_shortened: bool) -> str:
        """Run a failing history alone. If it fails again, return the history and its differences as text. With
        `is_shortened`, return the shortest history that still fails instead.
        """
        found = self._differences(history)
        if not found:
            print(f'alone, this history has no difference: {list(history)}', file=sys.stderr, flush=True)
            return ''
        end_s = time.monotonic() + SHORTENING_LIMIT_S
        for number in reversed(range(len(history))) if is_shortened else ():
            shorter = [*history[:number], *history[number + 1:]]
            shorter_found = self._differences(shorter) if time.monotonic() < end_s else None
            if shorter_found and kind_of(shorter_found) == kind_of(found):
                history, found = shorter, shorter_found
        text = '\n'.join([f'history = {list(history)}', *found])
        print(f'alone and shorter: {text}', file=sys.stderr, flush=True)
        return text

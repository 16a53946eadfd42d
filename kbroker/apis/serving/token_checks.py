"""Verifies the signatures of bearer tokens on a worker, one at a time.

A check computes for up to a few milliseconds, and holds the GIL most of this time. The loop submits a check only after
it got the result of the previous one. So the loop can serve all connections between two checks, however many clients
log in.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kbroker.base.ledger import Line
from kbroker.security.mechanism import Check
from kbroker.security.surroundings import Submit

MOST_WAITING = 1_000
"""The most checks that may wait for the worker. Each waiting check holds a token of up to 16 KiB."""

Waiting = tuple[Check, Callable[[Any], None], Callable[[], bool]]


class TokenChecks:
    """The queue of checks for the worker, in the order in which the tokens arrived."""

    def __init__(self, submit: Submit):
        self._submit = submit
        self._waiting: deque[Waiting] = deque()
        self._is_busy = False

    def __len__(self) -> int:
        return len(self._waiting)

    def ledger(self) -> list[Line]:
        return [Line('tokens that wait for a check', '', lambda: len(self), lambda: MOST_WAITING, 'more are refused')]

    def add(self, check: Check, done: Callable[[Any], None], is_wanted: Callable[[], bool]) -> bool:
        """Queue a check. The worker runs `check()`, then the loop calls `done` with the result or the exception. Each
        of the two calls is omitted if `is_wanted()` is false by then. Return False, and do not queue the check, if too
        many checks wait.
        """
        if len(self._waiting) >= MOST_WAITING:
            return False
        self._waiting.append((check, done, is_wanted))
        self._run_next()
        return True

    def _run_next(self) -> None:
        while self._waiting and not self._is_busy:
            check, done, is_wanted = self._waiting.popleft()
            if is_wanted():
                self._is_busy = True
                self._submit(check, partial(self._end, done, is_wanted))

    def _end(self, done: Callable[[Any], None], is_wanted: Callable[[], bool], result: Any) -> None:
        self._is_busy = False
        if is_wanted():
            done(result)
        self._run_next()

"""Time limits for the connections of a cluster: for the call in progress, and for all calls until the client closes.

When the time of a call is over, `OutOfTime` ends the steps of the call. The request of the last step remains in flight,
and the next call with an equal request waits for its answer (`Connection.call`). So even calls with a short time-out
make progress.

Opening a connection may exceed the time of a call, because the next call cannot continue the opening. The first attempt
may take OPENING_MS. Each attempt after one that was cut short may take twice as long, up to
socket.connection.setup.timeout.ms.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.base.clock import Clock
from kbroker.client.errors import AnswerTimeout

OPENING_MS = 1000
"""The time that a call may always take to open a connection, even if its own time is over."""


class OutOfTime(Exception):
    """The time of a call is over. The network has not failed, and the request of the call remains in flight.

    A program never sees OutOfTime: it gets a ClientError, a KafkaError, or an empty result.
    """


class TimeLimit:
    """The time limits of all connections of a cluster."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._call_end_ms: int | None = None
        self._final_end_ms: int | None = None

    def end_within(self, limit_ms: int) -> None:
        """Limit the total time of all later calls. After `limit_ms` they raise ClientError."""
        self._final_end_ms = self._clock.monotonic_ms() + limit_ms

    @contextmanager
    def ending_within(self, limit_ms: int) -> Iterator[None]:
        """Limit a block as `end_within` does: after `limit_ms`, even the opening of a connection fails."""
        outer_ms = self._final_end_ms
        self.end_within(int(self.finally_left_ms(limit_ms)))
        try:
            yield
        finally:
            self._final_end_ms = outer_ms

    @contextmanager
    def within(self, limit_ms: float) -> Iterator[None]:
        """Limit a block. After `limit_ms`, or at the end of an enclosing limited block, calls raise OutOfTime."""
        outer_ms, end_ms = self._call_end_ms, self._clock.monotonic_ms() + int(limit_ms)
        self._call_end_ms = end_ms if outer_ms is None else min(outer_ms, end_ms)
        try:
            yield
        finally:
            self._call_end_ms = outer_ms

    @contextmanager
    def call(self, limit_ms: float) -> Iterator[None]:
        """Limit a block as `within` does.

        At the end of the time, raise AnswerTimeout, or OutOfTime if an enclosing block is limited, too.
        """
        try:
            with self.within(limit_ms):
                yield
        except OutOfTime as cut:
            if self.is_bounded:
                raise
            raise AnswerTimeout(f'{cut} ({limit_ms:.0f} ms)') from None

    @contextmanager
    def at_least(self, ms: int) -> Iterator[None]:
        """Give a block at least `ms`, even if the call in progress ends earlier. The limit of `end_within` still
        holds.
        """
        outer_ms = self._call_end_ms
        if outer_ms is not None:
            self._call_end_ms = max(outer_ms, self._clock.monotonic_ms() + ms)
        try:
            yield
        finally:
            self._call_end_ms = outer_ms

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the limit of the call during a block in which code of the program runs."""
        outer_ms, self._call_end_ms = self._call_end_ms, None
        try:
            yield
        finally:
            self._call_end_ms = outer_ms

    @property
    def is_bounded(self) -> bool:
        """Return whether a call with a time-out is in progress."""
        return self._call_end_ms is not None

    @property
    def is_finally_over(self) -> bool:
        return self._final_end_ms is not None and self._clock.monotonic_ms() >= self._final_end_ms

    def left_ms(self, limit_ms: float) -> float:
        """Return `limit_ms`, or the remaining time of the call in progress if that is less."""
        return self._left_ms(self.finally_left_ms(limit_ms), self._call_end_ms)

    def finally_left_ms(self, limit_ms: float) -> float:
        """Return `limit_ms`, or the remaining time of the limit set by `end_within` if that is less."""
        return self._left_ms(limit_ms, self._final_end_ms)

    def check(self, words: str) -> None:
        """Raise OutOfTime if the time of the call in progress is over."""
        if self.left_ms(1) <= 0:
            raise OutOfTime(words)

    def cuts(self, end_ms: float) -> bool:
        """Return whether the call in progress ends before `end_ms`, and before the limit set by `end_within`."""
        if self._call_end_ms is None or self._call_end_ms >= end_ms:
            return False
        return self._final_end_ms is None or self._call_end_ms < self._final_end_ms

    def _left_ms(self, limit_ms: float, end_ms: int | None) -> float:
        return limit_ms if end_ms is None else max(min(limit_ms, end_ms - self._clock.monotonic_ms()), 0)

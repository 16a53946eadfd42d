"""The times at which calls on the connections of a cluster end: the call in progress, and finally all calls.

When the time of a call is over, `OutOfTime` ends the steps within the call. Their request remains in flight, and the
next call with the same request waits for its answer (`Connection.call`). So an operation makes progress even by calls
with a short time-out.

The opening of a new connection may exceed the time of a call, because the next call cannot continue it. It may take
OPENING_MS. After each opening that was cut short it may take twice as long, up to socket.connection.setup.timeout.ms.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.base.clock import Clock
from kbroker.client.errors import AnswerTimeout

OPENING_MS = 1000
"""The time that the opening of a connection may take, even if the time of the call is over."""


class OutOfTime(Exception):
    """The time of the call is over. This is no network failure, and the request remains in flight.

    A program never gets OutOfTime, but a ClientError, a KafkaError, or an empty result.
    """


class TimeLimit:
    """The time until which all connections of a cluster wait, on the monotonic clock."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._call_end_ms: int | None = None
        self._final_end_ms: int | None = None

    def end_within(self, limit_ms: int) -> None:
        """Bound all further calls together. After `limit_ms` they raise ClientError."""
        self._final_end_ms = self._clock.monotonic_ms() + limit_ms

    @contextmanager
    def within(self, limit_ms: float) -> Iterator[None]:
        """Bound the block. After `limit_ms` it raises OutOfTime. An outer block with less time bounds it, too."""
        outer_ms, end_ms = self._call_end_ms, self._clock.monotonic_ms() + int(limit_ms)
        self._call_end_ms = end_ms if outer_ms is None else min(outer_ms, end_ms)
        try:
            yield
        finally:
            self._call_end_ms = outer_ms

    @contextmanager
    def call(self, limit_ms: float) -> Iterator[None]:
        """Bound the block as `within` does.

        When the time is over, raise AnswerTimeout unless another call contains this one.
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
        """Give the block at least this time, unless the end of all calls is earlier."""
        outer_ms = self._call_end_ms
        if outer_ms is not None:
            self._call_end_ms = max(outer_ms, self._clock.monotonic_ms() + ms)
        try:
            yield
        finally:
            self._call_end_ms = outer_ms

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Do not bound the block, which is code of the program."""
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
        """Return the part of a limit, in ms, that is left to the call in progress."""
        return self._left_ms(self.finally_left_ms(limit_ms), self._call_end_ms)

    def finally_left_ms(self, limit_ms: float) -> float:
        """Return the part of a limit, in ms, that `end_within` leaves."""
        return self._left_ms(limit_ms, self._final_end_ms)

    def check(self, words: str) -> None:
        """Raise OutOfTime if the time of the call in progress is over."""
        if self.left_ms(1) <= 0:
            raise OutOfTime(words)

    def cuts(self, end_ms: float) -> bool:
        """Return whether the call in progress ends before this time, and before the end of all calls."""
        if self._call_end_ms is None or self._call_end_ms >= end_ms:
            return False
        return self._final_end_ms is None or self._call_end_ms < self._final_end_ms

    def _left_ms(self, limit_ms: float, end_ms: int | None) -> float:
        return limit_ms if end_ms is None else max(min(limit_ms, end_ms - self._clock.monotonic_ms()), 0)

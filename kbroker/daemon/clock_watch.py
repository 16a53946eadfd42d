"""A watch on the wall clock, which an operator, NTP or a suspended machine may change suddenly."""
from __future__ import annotations

import logging

from kbroker.base.clock import Clock

LOOK_INTERVAL_MS = 10_000
LEAST_JUMP_MS = 10_000
"""The least jump, in milliseconds, that is logged. NTP corrects a running clock by less, which affects no timeout."""

logger = logging.getLogger(__name__)


class ClockWatch:
    """Compares the wall clock with the monotonic clock. `look` is called at intervals, and logs each jump."""

    def __init__(self, clock: Clock):
        self._clock = clock
        self._lead_ms = self._measure()

    def _measure(self) -> int:
        return self._clock.wall_ms() - self._clock.monotonic_ms()

    def look(self) -> None:
        """Log a warning if the wall clock was set since the last call."""
        lead_ms = self._measure()
        jump_ms, self._lead_ms = lead_ms - self._lead_ms, lead_ms
        if jump_ms >= LEAST_JUMP_MS:
            logger.warning('the wall clock was set forward by %.1f s: open transactions, records and tokens are that '
                           'much older now, and may have reached their timeout or retention', jump_ms / 1000)
        elif jump_ms <= -LEAST_JUMP_MS:
            logger.warning('the wall clock was set back by %.1f s: open transactions, records and tokens reach their '
                           'timeout or retention that much later', -jump_ms / 1000)

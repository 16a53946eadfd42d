"""The wait for committed offsets while a transaction is open that commits newer ones (UNSTABLE_OFFSET_COMMIT).

A transaction may stay open for longer than a session of the group, so nothing may block meanwhile: the consumer
repeats its request, and sends heartbeats and returns records of other partitions in between.
"""
from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.config import ClientConfig

T = TypeVar('T')


class StableOffsets:
    """The schedule of requests for committed offsets, from the first one until an answer."""

    def __init__(self, config: ClientConfig, clock: Clock):
        self._config = config
        self._clock = clock
        self._wanted: frozenset[TopicPartition] = frozenset()
        """The partitions of the last request. Others begin another wait."""
        self._limit_ms: int | None = None
        """When the wait ends with an error; None while nothing waits."""
        self._backoff_ms = config.retry_backoff_ms
        self.due_ms = 0
        """The time of the next request, on the monotonic clock."""

    def find(self, wanted: Collection[TopicPartition], ask: Callable[[], T]) -> T | None:
        """Return the answer of `ask`, or None while it is not due again or a transaction is open.

        Raises the errors of `ask`; UNSTABLE_OFFSET_COMMIT only after default.api.timeout.ms.
        """
        if self._wanted != (asked := frozenset(wanted)):
            self._wanted = asked
            self.end_wait()
        if self._clock.monotonic_ms() < self.due_ms:
            return None
        try:
            found = ask()
        except KafkaError as error:
            if error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT or not self._may_wait():
                self.end_wait()
                raise
            return None
        self.end_wait()
        return found

    def end_wait(self) -> None:
        """Forget how long the offsets have been awaited. The next wait has its own time."""
        self._limit_ms, self._backoff_ms, self.due_ms = None, self._config.retry_backoff_ms, 0

    def _may_wait(self) -> bool:
        """Set the time of the next request, unless the wait has taken too long."""
        now_ms = self._clock.monotonic_ms()
        if self._limit_ms is None:
            self._limit_ms = now_ms + self._config.default_api_timeout_ms
        self.due_ms = now_ms + self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, self._config.retry_backoff_max_ms)
        return self.due_ms < self._limit_ms

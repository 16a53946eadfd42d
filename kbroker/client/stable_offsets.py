"""The wait for committed offsets while an open transaction commits newer offsets (UNSTABLE_OFFSET_COMMIT).

A transaction may be open for longer than a session of the group, so the wait must not block. The consumer repeats its
request. Between the requests it sends heartbeats and returns records of other partitions.
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
    """The schedule of requests for committed offsets, from the first request until an answer."""

    def __init__(self, config: ClientConfig, clock: Clock):
        self._config = config
        self._clock = clock
        self._wanted: frozenset[TopicPartition] = frozenset()
        """The partitions of the last request. A request for other partitions begins another wait."""
        self._limit_ms: int | None = None
        """The time at which the wait ends with an error, on the monotonic clock; None without a wait."""
        self._backoff_ms = config.retry_backoff_ms
        self.due_ms = 0
        """The time of the next request, on the monotonic clock."""

    def find(self, wanted: Collection[TopicPartition], ask: Callable[[], T]) -> T | None:
        """Return the result of `ask`, or None while the next request is not due or a transaction is open.

        Raise the errors of `ask`, but UNSTABLE_OFFSET_COMMIT only after default.api.timeout.ms.
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
        """End the wait for the offsets, so that the next wait has its full time."""
        self._limit_ms, self._backoff_ms, self.due_ms = None, self._config.retry_backoff_ms, 0

    def _may_wait(self) -> bool:
        """Set the time of the next request, unless the wait has taken too long."""
        now_ms = self._clock.monotonic_ms()
        if self._limit_ms is None:
            self._limit_ms = now_ms + self._config.default_api_timeout_ms
        self.due_ms = now_ms + self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, self._config.retry_backoff_max_ms)
        return self.due_ms < self._limit_ms

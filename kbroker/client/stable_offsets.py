"""Waits for the committed offsets while a transaction with newer offsets is open (UNSTABLE_OFFSET_COMMIT).

A transaction may be open for longer than the group's session timeout, so the wait must not block. The consumer repeats
its OffsetFetch request. Between these requests it sends heartbeats, and returns records of the partitions that have a
position.
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
    """The schedule of the requests for committed offsets, from the first request until one returns the offsets."""

    def __init__(self, config: ClientConfig, clock: Clock):
        self._config = config
        self._clock = clock
        self._wanted: frozenset[TopicPartition] = frozenset()
        """The partitions of the last request. A request for different partitions begins a new wait."""
        self._limit_ms: int | None = None
        """The time at which the wait ends with an error, in ms of the monotonic clock; None if no wait is in
        progress.
        """
        self._backoff_ms = config.retry_backoff_ms
        self.due_ms = 0
        """The time of the next request, in ms of the monotonic clock."""

    def find(self, wanted: Collection[TopicPartition], ask: Callable[[], T]) -> T | None:
        """Return the result of `ask`. Return None if the next request is not due, or if a transaction is still open.

        Raise the errors of `ask`. UNSTABLE_OFFSET_COMMIT is raised only after default.api.timeout.ms.
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
        """End the wait in progress, so that the next wait may take the whole default.api.timeout.ms."""
        self._limit_ms, self._backoff_ms, self.due_ms = None, self._config.retry_backoff_ms, 0

    def _may_wait(self) -> bool:
        """Set the time of the next request, and return True. Return False if the wait has taken too long."""
        now_ms = self._clock.monotonic_ms()
        if self._limit_ms is None:
            self._limit_ms = now_ms + self._config.default_api_timeout_ms
        self.due_ms = now_ms + self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, self._config.retry_backoff_max_ms)
        return self.due_ms < self._limit_ms

"""The calls by which a consumer reports that its group assigns partitions or takes them away."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from kbroker.base.topic_partition import TopicPartition
from kbroker.client.time_limit import OutOfTime, TimeLimit


class RebalanceListener:
    """A listener for changes of the assigned partitions. A subclass overrides the methods that it needs.

    The consumer calls it within `poll`, an iteration, `close`, `unsubscribe` and `assign`, in the program's thread. The
    listener may commit, seek and pause, but not poll. During a call, heartbeats continue for max.poll.interval.ms. If a
    call raises an error, the consumer raises it when the change is complete, and does not repeat the call.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Handle added partitions. Called once after each rebalance, even if no partition was added."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Handle partitions that the consumer is about to give up. This is the last time to commit their positions."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Handle partitions that other members may have already. Their positions cannot be committed any more.

        By default, call `on_partitions_revoked`, as in Kafka's Java client.
        """
        self.on_partitions_revoked(partitions)


class Report(Protocol):
    """Calls a method of a listener. With an empty list of partitions, it does so only if `is_always_called`."""

    def __call__(self, listen: Callable[[list[TopicPartition]], None], partitions: Collection[TopicPartition],
                 is_always_called: bool = False) -> None: ...


class ListenerCalls:
    """Calls the listeners of one consumer. `is_running` is true during a call.

    The time-out of a poll does not bound the listener's own calls of the consumer.
    """

    def __init__(self, limit: TimeLimit) -> None:
        self._limit = limit
        self.is_running = False

    @contextmanager
    def reporting(self) -> Iterator[Report]:
        """Yield the function that calls the listener. At the end of the block, raise the first error of its calls.

        This holds even if the time of a poll ends in the block. The next poll then continues the change, without that
        call.
        """
        errors: list[Exception] = []

        def report(listen: Callable[[list[TopicPartition]], None], partitions: Collection[TopicPartition],
                   is_always_called: bool = False) -> None:
            if not partitions and not is_always_called:
                return
            self.is_running = True
            try:
                with self._limit.suspended():
                    listen(sorted(partitions))
            except Exception as error:
                errors.append(error)
            finally:
                self.is_running = False

        try:
            yield report
        except OutOfTime:
            if not errors:
                raise
        if errors:
            raise errors[0]

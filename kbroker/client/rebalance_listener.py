"""The calls by which a consumer reports that its group assigns or revokes partitions."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from kbroker.base.topic_partition import TopicPartition
from kbroker.client.time_limit import OutOfTime, TimeLimit


class RebalanceListener:
    """A listener for changes of the assigned partitions. A subclass overrides the methods that it needs.

    The consumer calls these methods within `poll`, an iteration, `close`, `unsubscribe` and `assign`, in the program's
    thread. A method may commit, seek and pause, but not poll. While it runs, heartbeats continue for
    max.poll.interval.ms. If it raises an error, the consumer completes the change, raises the error, and does not call
    the method again.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Handle added partitions. The consumer calls this once after each rebalance, even if no partition was
        added.
        """

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Handle partitions that the consumer is about to give up. This is the last time to commit their positions."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Handle partitions that other members may already have. Their positions can no longer be committed.

        By default, call `on_partitions_revoked`, as in Kafka's Java client.
        """
        self.on_partitions_revoked(partitions)


class Report(Protocol):
    """A function that calls a method of a listener. For an empty list of partitions, only if `is_always_called`."""

    def __call__(self, listen: Callable[[list[TopicPartition]], None], partitions: Collection[TopicPartition],
                 is_always_called: bool = False) -> None: ...


class ListenerCalls:
    """Calls the listener of one consumer. `is_running` is true during a call.

    The time-out of a poll does not limit the calls that the listener makes on the consumer.
    """

    def __init__(self, limit: TimeLimit) -> None:
        self._limit = limit
        self.is_running = False

    @contextmanager
    def reporting(self) -> Iterator[Report]:
        """Yield a function that calls the listener. At the end of the block, raise the first error that a listener
        raised.

        The error is raised even if the time of a poll ends in the block. The next poll then continues the rebalance,
        and does not repeat the call.
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

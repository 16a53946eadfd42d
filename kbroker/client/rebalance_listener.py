"""The calls by which a consumer reports that its group gives it partitions, or takes them away."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from kbroker.base.topic_partition import TopicPartition
from kbroker.client.time_limit import OutOfTime, TimeLimit


class RebalanceListener:
    """A listener of the changes of a subscription. A subclass overrides what it needs.

    The consumer calls it within `poll`, an iteration, `close`, `unsubscribe` and `assign`, in the program's thread.
    The listener may commit, seek and pause, but not poll. Heartbeats go on meanwhile, for max.poll.interval.ms. The
    consumer raises the error of a call when the change is complete, and does not repeat the call.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Handle partitions that are new. Called once after each rebalance, also without any."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Handle partitions that the consumer is about to give up. It may commit their positions for the last time."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Handle partitions that other members may have already, so that nothing can be committed any more.

        Calls `on_partitions_revoked`, as in Kafka's Java client.
        """
        self.on_partitions_revoked(partitions)


class Report(Protocol):
    """Calls a method of a listener, without partitions only if `is_always_called`."""

    def __call__(self, listen: Callable[[list[TopicPartition]], None], partitions: Collection[TopicPartition],
                 is_always_called: bool = False) -> None: ...


class ListenerCalls:
    """The calls of the listeners of one consumer. `is_running` is true within one of them.

    The time of a poll does not bound the calls of the consumer by its listener.
    """

    def __init__(self, limit: TimeLimit) -> None:
        self._limit = limit
        self.is_running = False

    @contextmanager
    def reporting(self) -> Iterator[Report]:
        """Yield the function that calls the listener. The first error of its calls is raised at the end.

        So it is if the time of a poll ends in the block: the change goes on in the next poll, without that call.
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

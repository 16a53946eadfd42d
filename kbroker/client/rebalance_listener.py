"""The calls by which a consumer reports that its group gives it partitions, or takes them away."""
from __future__ import annotations

from kbroker.client.assignor import TopicPartition


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

"""Telling every partition of a decided transaction how it ended, for as long as it takes.

Markers are what WriteTxnMarkers carries between Kafka's brokers; with one broker they are appended directly, under the
same rules. A marker that is sent twice does no harm (a restart sends all of them again); one that is never sent leaves
the partition's last stable offset stuck, so whatever is not known to be final is tried again.
"""
from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.clock import Clock, Timers
from kbroker.errors import ErrorCode, KafkaError
from kbroker.record.control import encode_end_txn_marker
from kbroker.transaction.state import TopicPartition, TransactionRow, TransactionState

if TYPE_CHECKING:
    from kbroker.topics.registry import TopicRegistry

logger = logging.getLogger(__name__)

RETRY_BACKOFF_MS = 100


class Reaction(enum.Enum):
    """What the failure of one partition's marker leads to."""

    RETRY = 'retry'
    GIVE_UP = 'give up'
    """Someone else decided about this producer: the transaction stays prepared until the next load."""
    DONE = 'done'


REACTIONS: dict[ErrorCode, Reaction] = {
    ErrorCode.INVALID_PRODUCER_EPOCH: Reaction.GIVE_UP,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: Reaction.GIVE_UP,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Reaction.DONE,
    ErrorCode.UNSUPPORTED_VERSION: Reaction.DONE,
}
"""Every other error is retried. Kafka drops the marker on an error that it does not list, until the next restart."""


class MarkerSender:
    """Sends the markers of prepared transactions and keeps track of those under way."""

    def __init__(self, topics: TopicRegistry, clock: Clock, timers: Timers):
        self.topics = topics
        self.clock = clock
        self.timers = timers
        self._sendings: set[_Sending] = set()
        topics.on_topic_deleted.append(self._on_topic_deleted)

    def send(self, transactional_id: str, prepared: TransactionRow, coordinator_epoch: int,
             done: Callable[[], None]) -> None:
        """Append the marker of `prepared`, which is durable, to each of its partitions; `done` once all are durable.

        A partition that does not exist any more needs none.
        """
        sending = _Sending(self, transactional_id, prepared, coordinator_epoch, done)
        self._sendings.add(sending)
        sending.attempt(sorted(prepared.partitions))

    def stop(self) -> None:
        """Leave everything as it is; no `done` is called any more."""
        self._sendings.clear()

    def finish(self, sending: _Sending) -> None:
        self._sendings.discard(sending)

    def is_under_way(self, sending: _Sending) -> bool:
        return sending in self._sendings

    def _on_topic_deleted(self, topic: Any) -> None:
        for sending in list(self._sendings):
            sending.drop_topic(topic.name)


class _Sending:
    """The markers of one transaction."""

    def __init__(self, sender: MarkerSender, transactional_id: str, prepared: TransactionRow, coordinator_epoch: int,
                 done: Callable[[], None]):
        self._sender = sender
        self._transactional_id = transactional_id
        self._prepared = prepared
        self._coordinator_epoch = coordinator_epoch
        self._done = done
        self._remaining = set(prepared.partitions)
        self._to_retry: list[TopicPartition] = []

    def attempt(self, partitions: Iterable[TopicPartition]) -> None:
        """Append to all first and wait afterwards, so that the markers share a flush."""
        waits = []
        version = self._prepared.client_transaction_version
        for topic_partition in partitions:
            partition = self._sender.topics.find(*topic_partition)
            if partition is None:
                self._remaining.discard(topic_partition)
                continue
            try:
                appended = partition.append(self._marker(), transaction_version=version)
            except KafkaError as error:
                waits.append(partial(self._settle, topic_partition, error))
            else:
                waits.append(partial(partition.when_durable, appended.last_offset + 1,
                                     partial(self._settle, topic_partition)))
        for wait in waits:
            wait()
        self._finish_if_settled()

    def drop_topic(self, topic: str) -> None:
        """A partition that is gone has no transaction to end."""
        self._remaining = {(name, partition) for name, partition in self._remaining if name != topic}
        self._finish_if_settled()

    def _marker(self) -> bytearray:
        prepared = self._prepared
        return encode_end_txn_marker(
            commit=prepared.state is TransactionState.PREPARE_COMMIT, producer_id=prepared.producer_id,
            producer_epoch=prepared.producer_epoch, coordinator_epoch=self._coordinator_epoch,
            timestamp_ms=self._sender.clock.wall_ms())

    def _settle(self, topic_partition: TopicPartition, error: KafkaError | None) -> None:
        if topic_partition not in self._remaining or not self._sender.is_under_way(self):
            return
        reaction = Reaction.DONE if error is None else REACTIONS.get(error.code, Reaction.RETRY)
        if reaction is Reaction.DONE:
            self._remaining.discard(topic_partition)
            self._finish_if_settled()
            return
        topic, partition = topic_partition
        logger.warning('%s: the %s marker of producer %d epoch %d failed on %s-%d: %s; will %s', self._transactional_id,
                       self._prepared.state.title, self._prepared.producer_id, self._prepared.producer_epoch, topic,
                       partition, error, reaction.value)
        if reaction is Reaction.RETRY:
            if not self._to_retry:
                self._sender.timers.after(RETRY_BACKOFF_MS, self._retry)
            self._to_retry.append(topic_partition)

    def _retry(self) -> None:
        if self._sender.is_under_way(self):
            partitions, self._to_retry = self._to_retry, []
            self.attempt(partition for partition in partitions if partition in self._remaining)

    def _finish_if_settled(self) -> None:
        if not self._remaining and self._sender.is_under_way(self):
            self._sender.finish(self)
            self._done()

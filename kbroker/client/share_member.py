"""A member of a share group (KIP-932): heartbeats that join, bring the assignment, and leave.

Members of a share group may have the same partitions, and none has to be given up before another member gets it.
"""
from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.consumer_member import FENCED, JOINING, LEAVING, new_member_id
from kbroker.client.errors import ClientError, check
from kbroker.clock import Clock
from kbroker.errors import KafkaError
from kbroker.protocol import messages

RETRY_MS = 1000
"""The time until the next heartbeat after one that failed: the interval is the broker's, and not known then."""


class SharedPartition(NamedTuple):
    """A partition under both names: requests have the id, users the topic."""

    topic_id: bytes
    topic: str
    partition: int


class ShareMember:
    """A member of a share group. `assignment` changes in `heartbeat_if_due`. Raises KafkaError and ClientError."""

    def __init__(self, cluster: Cluster, group_id: str, rack_id: str | None = None, clock: Clock | None = None):
        self.group_id = group_id
        self.member_id = new_member_id()
        self.assignment: frozenset[SharedPartition] = frozenset()
        self._cluster = cluster
        self._rack_id = rack_id
        self._clock = clock or Clock()
        self._topics: list[str] = []
        self._epoch = LEAVING
        """The member epoch; LEAVING for a consumer that is no member."""
        self._is_introduced = False
        """True if the group knows the subscription."""
        self._assigned: dict[bytes, list[int]] = {}
        self._next_heartbeat_ms = 0

    def subscribe(self, topics: Collection[str]) -> None:
        """Change the subscription, by the next heartbeat."""
        self._topics = sorted(topics)
        self._is_introduced, self._next_heartbeat_ms = False, 0

    def next_heartbeat_ms(self) -> int:
        """Return the time of the next heartbeat on the monotonic clock."""
        return self._next_heartbeat_ms

    def heartbeat_if_due(self) -> None:
        """Join the group, or send a heartbeat if it is time, and take the assignment over."""
        if not self._topics or self._clock.monotonic_ms() < self._next_heartbeat_ms:
            return
        if self._epoch < JOINING:
            self._epoch = JOINING
            self._retrying(self._heartbeat, 'ShareGroupHeartbeat')
        else:
            self._keep_place()
        if self._has_changed():
            self._name_partitions()

    def _keep_place(self) -> None:
        try:
            self._heartbeat()
        except ClientError as error:
            if error.is_lasting:
                raise
            self._retry_later()
        except KafkaError as error:
            if error.code in FENCED:
                self._epoch, self._is_introduced, self._assigned = LEAVING, False, {}
                self._next_heartbeat_ms = 0
            elif error.code.retriable:
                self._retry_later()
            else:
                raise

    def _retry_later(self) -> None:
        self._cluster.forget()
        self._is_introduced = False
        self._next_heartbeat_ms = self._clock.monotonic_ms() + RETRY_MS

    def _heartbeat(self) -> None:
        is_full = not self._is_introduced
        answer = self._send(self._epoch, self._topics if is_full else None, self._rack_id if is_full else None)
        self._epoch = answer.member_epoch
        self._is_introduced = True
        self._next_heartbeat_ms = self._clock.monotonic_ms() + answer.heartbeat_interval_ms
        if answer.assignment is not None:
            self._assigned = {row.topic_id: row.partitions for row in answer.assignment.topic_partitions}

    def _send(self, epoch: int, topics: list[str] | None = None, rack_id: str | None = None) -> Any:
        answer = self._cluster.coordinator(KeyType.GROUP, self.group_id).call(messages.ShareGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=epoch, rack_id=rack_id,
            subscribed_topic_names=topics))
        check(answer.error_code, self._words('ShareGroupHeartbeat'), answer.error_message)
        return answer

    def _has_changed(self) -> bool:
        found = {(at.topic_id, at.partition) for at in self.assignment}
        return found != {(topic_id, index) for topic_id, indexes in self._assigned.items() for index in indexes}

    def _name_partitions(self) -> None:
        """Take the last assignment over. Partitions of topics that no metadata names yet come later."""
        names = {}
        if self._assigned:
            answer = self._retrying(self._cluster.refresh, 'Metadata')
            names = {topic.topic_id: topic.name for topic in answer.topics if not topic.error_code}
        self.assignment = frozenset(SharedPartition(topic_id, names[topic_id], index)
                                    for topic_id, indexes in self._assigned.items() if topic_id in names
                                    for index in indexes)

    def leave(self) -> None:
        """Leave the group. The partitions' leaders learn nothing of it: close the sessions first."""
        if self._epoch < JOINING:
            return
        self._epoch, self._is_introduced = LEAVING, False
        self.assignment, self._assigned = frozenset(), {}
        try:
            self._send(LEAVING)
        except KafkaError as error:
            if error.code not in FENCED:
                raise

    def _retrying(self, operation: Callable[[], Any], name: str) -> Any:
        return self._cluster.retrying(operation, self._words(name))

    def _words(self, name: str) -> str:
        return f'{name} of share group {self.group_id!r}'

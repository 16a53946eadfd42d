"""A member of a share group (KIP-932). Its heartbeats join, get the assignment, and leave. Several members of a share
group may have the same partition at once, so a member can get a partition before a different member gives it up.
"""
from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode
from kbroker.client.cluster import Cluster
from kbroker.client.membership import FENCED, JOINING, LEAVING, EpochMember
from kbroker.protocol import messages


class SharedPartition(NamedTuple):
    """A partition with both the id of its topic, which requests use, and the name of the topic, which users see."""

    topic_id: bytes
    topic: str
    partition: int


class ShareMember(EpochMember):
    """A member of a share group. `assignment` changes only in `heartbeat_if_due`. Methods raise KafkaError and
    ClientError.
    """

    group_words = 'share group'
    heartbeat_name = 'ShareGroupHeartbeat'

    def __init__(self, cluster: Cluster, group_id: str, rack_id: str | None = None, clock: Clock | None = None):
        super().__init__(cluster, group_id, clock)
        self.assignment: frozenset[SharedPartition] = frozenset()
        self._rack_id = rack_id
        self._topics: list[str] = []

    def subscribe(self, topics: Collection[str]) -> None:
        """Change the subscription. The next `heartbeat_if_due` reports the change."""
        self._topics = sorted(topics)
        self._must_report, self._next_heartbeat_ms = True, 0

    def heartbeat_if_due(self) -> None:
        """Join the group, or send a heartbeat if it is due, and adopt the assignment."""
        if not self._topics or self._clock.monotonic_ms() < self._next_heartbeat_ms:
            return
        if self.generation_id < JOINING:
            self.generation_id, self._must_report = JOINING, True
            self._adopt(self._retrying(self._heartbeat, self.heartbeat_name))
        else:
            self._keep_place()
        assigned = {(topic_id, index) for topic_id, indexes in self._assigned.items() for index in indexes}
        if assigned != {(at.topic_id, at.partition) for at in self.assignment}:
            self._name_partitions()

    def _heartbeat(self) -> Any:
        is_full = self._is_in_doubt or self._must_report
        return self._ask(messages.ShareGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=self.generation_id,
            rack_id=self._rack_id if is_full else None, subscribed_topic_names=self._topics if is_full else None))

    def _name_partitions(self) -> None:
        """Adopt the last assignment. A partition whose topic id is not yet in the metadata is added by a later call."""
        names = self._names_of(self._assigned)
        self.assignment = frozenset(SharedPartition(topic_id, names[topic_id], index)
                                    for topic_id, indexes in self._assigned.items() if topic_id in names
                                    for index in indexes)

    def leave(self) -> None:
        """Leave the group. The caller has closed the share sessions, because leaving does not notify the leaders."""
        if self.generation_id < JOINING:
            return
        self.generation_id = LEAVING
        self.assignment, self._assigned = frozenset(), {}
        self._send_farewell(messages.ShareGroupHeartbeatRequest(
            group_id=self.group_id, member_id=self.member_id, member_epoch=LEAVING))

    def _note_lost_place(self, code: ErrorCode) -> bool:
        if code not in FENCED:
            return False
        self.generation_id, self._assigned, self._next_heartbeat_ms = LEAVING, {}, 0
        return True

"""A member of a consumer group by the protocol of KIP-848: the broker assigns, and heartbeats carry everything.

    join():        the first heartbeat has epoch 0, the subscription, and no partitions
    heartbeats:    name what has changed since the last one; an answer with an assignment sets `must_join`
    join() again:  takes the assignment over; the heartbeat that follows at once reports the partitions
"""
from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Collection, Iterable
from typing import Any

from kbroker.client.assignor import TopicPartition
from kbroker.client.errors import ClientError, check
from kbroker.client.group_member import GroupMember
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol import messages

JOINING, LEAVING, AWAY = 0, -1, -2
"""Member epochs of heartbeats that say more than the epoch."""

_E = ErrorCode
FENCED = frozenset({_E.FENCED_MEMBER_EPOCH, _E.UNKNOWN_MEMBER_ID})
_STALE = frozenset({_E.STALE_MEMBER_EPOCH, _E.ILLEGAL_GENERATION})
"""A commit with these errors was late: a heartbeat brings the epoch that the group expects."""


def new_member_id() -> str:
    """Return a random id as Kafka's clients make it: 22 characters."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip('=')


class ConsumerMember(GroupMember):
    """A member by KIP-848. `regex` is evaluated by the broker, beside the topics that `join` names."""

    lost_place = FENCED | _STALE

    def __init__(self, *arguments: Any, regex: Callable[[], str | None] = lambda: None, **options: Any):
        super().__init__(*arguments, **options)
        self.member_id = new_member_id()
        self._regex = regex
        self._subscription: Any = None
        """The topics and the expression that the group knows of."""
        self._assigned: dict[bytes, list[int]] = {}
        """The last assignment, by topic id."""
        self._owned: dict[bytes, list[int]] = {}
        """The partitions in use. The group learns of a change at the next heartbeat."""
        self._must_report = False

    def join(self, topics: Collection[str], owned: Iterable[TopicPartition] = ()) -> list[TopicPartition]:
        """Join, or take the last assignment over. Partitions of topics that no metadata names yet come later."""
        subscription = sorted(topics), self._regex()
        if self.generation_id < JOINING or self._subscription != subscription:
            self._subscription = subscription
            self._cluster.retrying(self._introduce, self._words('ConsumerGroupHeartbeat'))
        names = self._names_of(self._assigned)
        known = {topic_id: indexes for topic_id, indexes in self._assigned.items() if topic_id in names}
        if known != self._owned:
            self._owned = known
            self._must_report = True
            self._next_heartbeat_ms = self._clock.monotonic_ms()
        self.keeps_positions = True
        self.must_join = False
        return sorted((names[topic_id], index) for topic_id, indexes in self._owned.items() for index in indexes)

    def _introduce(self) -> None:
        """Send the whole subscription: of a member that joins, or that has changed it."""
        while True:
            is_new = self.generation_id < JOINING
            try:
                self._adopt(self._send(JOINING if is_new else self.generation_id, is_full=True,
                                       owned={} if is_new else self._owned))
            except KafkaError as error:
                if is_new or not self._note_lost_place(error.code):
                    raise
                continue
            return

    def _names_of(self, topic_ids: Collection[bytes]) -> dict[bytes, str]:
        if not topic_ids:
            return {}
        answer = self._cluster.retrying(self._cluster.refresh, self._words('Metadata'))
        return {topic.topic_id: topic.name for topic in answer.topics
                if topic.topic_id in topic_ids and not topic.error_code}

    def heartbeat_if_due(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if self.generation_id < JOINING or now_ms < self._next_heartbeat_ms:
            return
        try:
            self._adopt(self._send(self.generation_id, owned=self._owned if self._must_report else None))
        except ClientError as error:
            if error.is_lasting:
                raise
            self._retry_in_full(now_ms)
        except KafkaError as error:
            if error.code.retriable:
                self._retry_in_full(now_ms)
            elif not self._note_lost_place(error.code):
                raise

    def _retry_in_full(self, now_ms: int) -> None:
        """Prepare for a coordinator that may have missed the last heartbeat."""
        self._cluster.forget()
        self._must_report = True
        self._next_heartbeat_ms = now_ms + self._settings.heartbeat_interval_ms

    def _send(self, epoch: int, *, is_full: bool = False, owned: dict[bytes, list[int]] | None = None) -> Any:
        """Send a heartbeat and return its answer. Raises ClientError, KafkaError."""
        request = messages.ConsumerGroupHeartbeatRequest
        topics, regex = self._subscription if is_full else (None, None)
        answer = self._coordinator().call(request(
            group_id=self.group_id, member_id=self.member_id, member_epoch=epoch,
            instance_id=self._settings.group_instance_id,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms if is_full else -1,
            subscribed_topic_names=topics, subscribed_topic_regex=regex,
            server_assignor=self._settings.group_remote_assignor if is_full else None,
            topic_partitions=None if owned is None else [
                request.TopicPartitions(topic_id=topic_id, partitions=indexes) for topic_id, indexes in owned.items()]),
            self._settings.session_timeout_ms)
        check(answer.error_code, self._words('ConsumerGroupHeartbeat'))
        return answer

    def _adopt(self, answer: Any) -> None:
        """Take over the epoch, the interval and the assignment of an answer."""
        self.generation_id = answer.member_epoch
        self._next_heartbeat_ms = self._clock.monotonic_ms() + answer.heartbeat_interval_ms
        self._must_report = False
        if answer.assignment is not None:
            self._assigned = {row.topic_id: sorted(row.partitions) for row in answer.assignment.topic_partitions}
        if self._assigned != self._owned:
            self.must_join = True

    def leave(self) -> None:
        """Release the partitions at once. A static member keeps them until its session ends or it comes back."""
        if self.generation_id < JOINING:
            return
        epoch = LEAVING if self._settings.group_instance_id is None else AWAY
        self.generation_id, self.must_join = -1, True
        try:
            self._send(epoch)
        except KafkaError as error:
            if not self._note_lost_place(error.code):
                raise

    def _note_lost_place(self, code: ErrorCode) -> bool:
        if code in _STALE:
            self._next_heartbeat_ms = self._clock.monotonic_ms()
            return True
        if code in FENCED:
            self.generation_id, self.must_join, self.keeps_positions = -1, True, False
            self._assigned, self._owned = {}, {}
            return True
        return False

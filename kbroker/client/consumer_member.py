"""A member of a consumer group in the protocol of KIP-848: the broker assigns, and all data is in heartbeats.

    join():        the first heartbeat has epoch 0, the subscription, and no partitions
    heartbeats:    contain the changes since the last heartbeat, or all data if that had no answer; an answer with an
                   assignment sets `must_join`
    surrendered(): returns the partitions that the assignment takes away, with which the consumer finishes
    join() again:  adopts the same assignment; a heartbeat that follows at once reports its partitions

An assignment that arrives between `surrendered` and `join` is adopted by the join after this one. Otherwise a heartbeat
could report that partitions are given up while the consumer still uses them.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.group_member import GroupMember
from kbroker.client.membership import AWAY, FENCED, JOINING, LEAVING, EpochMember
from kbroker.protocol import messages

_STALE = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION})
"""The errors of a commit with an old member epoch. The next heartbeat returns the epoch that the group expects."""


class ConsumerMember(EpochMember, GroupMember):
    """A member of a consumer group in the protocol of KIP-848.

    `regex` returns the subscribed expression, or None. The broker adds the topics that match it to the topics given to
    `join`.
    """

    lost_place = FENCED | _STALE
    heartbeat_name = 'ConsumerGroupHeartbeat'

    def __init__(self, *arguments: Any, regex: Callable[[], str | None] = lambda: None, **options: Any):
        super().__init__(*arguments, **options)
        self._regex = regex
        self._subscription: Any = None
        """The topics and the expression of the subscription that the group knows."""
        self._owned: dict[bytes, list[int]] = {}
        """The partitions in use. After a change, the next heartbeat reports them."""
        self._considered: dict[bytes, list[int]] | None = None
        """The assignment for which `surrendered` was last called; None after the next `join`."""
        self._has_lost_place = False
        """True if other members may have read this member's partitions since the last `join`."""

    def join(self, topics: Collection[str], owned: Iterable[TopicPartition] = ()) -> list[TopicPartition]:
        """Join the group, or adopt the last assignment. Return the assigned partitions.

        A partition whose topic id is not yet in the metadata is added by a later call.
        """
        self._subscribe(topics)
        assigned, self._considered = self._assigned if self._considered is None else self._considered, None
        names = self._names_of(assigned)
        known = {topic_id: indexes for topic_id, indexes in assigned.items() if topic_id in names}
        if known != self._owned:
            self._owned = known
            self._must_report = True
            self._next_heartbeat_ms = self._clock.monotonic_ms()
        self.keeps_positions, self._has_lost_place = not self._has_lost_place, False
        self.must_join = assigned != self._assigned
        return sorted((names[topic_id], index) for topic_id, indexes in self._owned.items() for index in indexes)

    @property
    def has_lost_place(self) -> bool:
        return self._has_lost_place

    def surrendered(self, topics: Collection[str], owned: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the owned partitions that are not in the last assignment. The next `join` reports that they are given
        up.
        """
        self._subscribe(topics)
        self._considered = considered = self._assigned
        names = self._names_of(considered)
        return set(owned) - {(names[topic_id], index) for topic_id, indexes in considered.items()
                             if topic_id in names for index in indexes}

    def _subscribe(self, topics: Collection[str]) -> None:
        """Send this subscription to the group, unless the group knows it. This joins a group that was left."""
        subscription = sorted(topics), self._regex()
        if self.generation_id < JOINING or self._subscription != subscription:
            self._subscription = subscription
            try:
                self._retrying(self._introduce, self.heartbeat_name)
            except BaseException:
                self._subscription = None       # the group may not know it
                raise

    def _introduce(self) -> None:
        """Send a heartbeat with the whole subscription, because the member joins or the subscription has changed."""
        while True:
            is_new = self.generation_id < JOINING
            try:
                self._adopt(self._ask(self._request(JOINING if is_new else self.generation_id, is_full=True,
                                                    owned={} if is_new else self._owned)))
            except KafkaError as error:
                if is_new or not self._note_lost_place(error.code):
                    raise
                continue
            return

    @property
    def sends_heartbeats(self) -> bool:
        return self.generation_id >= JOINING

    def heartbeat_if_due(self) -> None:
        if self.sends_heartbeats and self._clock.monotonic_ms() >= self._next_heartbeat_ms:
            self._keep_place()

    def _heartbeat(self) -> Any:
        is_full = self._is_in_doubt and self._subscription is not None      # else `join` sends a full one
        return self._ask(self._request(self.generation_id, is_full=is_full,
                                       owned=self._owned if is_full or self._must_report else None))

    def _request(self, epoch: int, *, is_full: bool = False, owned: dict[bytes, list[int]] | None = None) -> Any:
        request = messages.ConsumerGroupHeartbeatRequest
        topics, regex = self._subscription if is_full else (None, None)
        return request(
            group_id=self.group_id, member_id=self.member_id, member_epoch=epoch,
            instance_id=self._settings.group_instance_id,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms if is_full else -1,
            subscribed_topic_names=topics, subscribed_topic_regex=regex,
            server_assignor=self._settings.group_remote_assignor if is_full else None,
            topic_partitions=None if owned is None else [
                request.TopicPartitions(topic_id=topic_id, partitions=indexes) for topic_id, indexes in owned.items()]
        )

    def _adopt(self, answer: Any) -> None:
        super()._adopt(answer)
        if self._assigned != self._owned:
            self.must_join = True

    def leave(self) -> None:
        """Leave the group, which releases the partitions immediately.

        A static member keeps its partitions until its session ends or it rejoins.
        """
        if self.generation_id < JOINING:
            return
        epoch = LEAVING if self._settings.group_instance_id is None else AWAY
        self._lose_partitions()
        self._send_farewell(self._request(epoch))

    def _note_lost_place(self, code: ErrorCode) -> bool:
        if code in _STALE:
            self._next_heartbeat_ms = self._clock.monotonic_ms()
            return True
        if code in FENCED:
            self._lose_partitions()
            return True
        return False

    def _lose_partitions(self) -> None:
        self._former_place = self.metadata
        self._has_lost_place = True
        self.generation_id, self.must_join, self.keeps_positions = -1, True, False
        self._assigned, self._owned, self._considered = {}, {}, None

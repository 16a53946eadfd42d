"""The membership of a consumer in its group: heartbeats, rebalances, commits, and the calls of the listener."""
from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import OffsetAndMetadata
from kbroker.client.background_heartbeats import BackgroundHeartbeats
from kbroker.client.classic_member import ClassicMember
from kbroker.client.cluster import Cluster
from kbroker.client.consumer_member import ConsumerMember
from kbroker.client.errors import ClientError, PartitionOffline
from kbroker.client.group_member import GroupMember
from kbroker.client.positions import Positions
from kbroker.client.reach import NEVER_MS, Reach
from kbroker.client.rebalance_listener import ListenerCalls, RebalanceListener, Report
from kbroker.client.statistics import Counts
from kbroker.client.stream_settings import ConsumerSettings
from kbroker.client.subscription import Subscription
from kbroker.client.time_limit import OutOfTime

JOIN_WAIT_MS = HEARTBEAT_WAIT_MS = 100
"""The interval at which a waiting poll checks whether all members have joined, or a heartbeat has been answered."""
INTERRUPTED_CLOSE_MS = 1000
"""The time for which `leave` waits for the coordinator after a Ctrl-C during the commit or the call of the listener."""


class Shared(NamedTuple):
    """The objects of a consumer that its group session uses."""

    cluster: Cluster
    positions: Positions
    subscription: Subscription
    reach: Reach
    counts: Counts


class GroupSession:
    """The membership of one consumer, used by the consumer's thread: the member, its heartbeat thread, its listener.

    The member has separate connections, because the heartbeat thread also uses them.
    """

    def __init__(self, shared: Shared, group_id: str, settings: ConsumerSettings, listener: RebalanceListener,
                 clock: Clock, sleep: Callable[[float], None] = time.sleep):
        self._shared = shared
        self._cluster, self._positions, self._subscription = shared.cluster, shared.positions, shared.subscription
        self._settings = settings
        self._clock = clock
        self.listener = listener
        self.calls = ListenerCalls(shared.cluster.limit)
        self.member_cluster = Cluster(shared.cluster.config, clock, sleep)
        self.member: GroupMember
        if settings.group_protocol == 'consumer':
            self.member = ConsumerMember(self.member_cluster, group_id, settings, clock,
                                         regex=lambda: shared.subscription.regex)
        else:
            self.member = ClassicMember(self.member_cluster, group_id, settings, clock)
        self.heartbeats = BackgroundHeartbeats(self.member, settings.max_poll_interval_ms, clock)
        self._metadata_due_ms = 0
        self._commit_due_ms = 0

    def using_member(self) -> AbstractContextManager[GroupMember]:
        """Reserve the member for the calling thread within a block, for at most default.api.timeout.ms."""
        return self.heartbeats.using_member(self._cluster.limit, self._cluster.config.default_api_timeout_ms)

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets. Raise KafkaError(UNSTABLE_OFFSET_COMMIT) while a transaction commits newer
        offsets.
        """
        with self.using_member() as member:
            return member.committed(partitions)

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        with self.using_member() as member:
            member.commit(offsets)
        self._shared.counts.add('commit_total')

    def passes(self, error: KafkaError) -> bool:
        """Return whether an error is temporary.

        A deleted topic is removed from the subscription by the next rebalance. A partition that has just lost its
        leader is skipped by the next call.
        """
        if isinstance(error, PartitionOffline):
            return True
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not self._subscription:
            return False
        self._metadata_due_ms = 0
        return True

    # ---- the subscription

    def join_later(self) -> None:
        """Make the next poll join the group with the present subscription."""
        self._metadata_due_ms = 0
        with self.using_member() as member:
            member.must_join = True

    def end_subscription(self) -> None:
        """Leave the group. Before, commit if enable.auto.commit is true, and let the listener handle the partitions."""
        try:
            self._give_partitions_back(self._settings.enable_auto_commit)
        finally:
            with self.using_member() as member:
                member.leave_for_good()

    def leave(self, commits: bool, limit_ms: int) -> None:
        """End the heartbeats, commit the positions if `commits` is true, and leave the group.

        Raise the same errors as `Consumer.close`.
        """
        self.member_cluster.end_within(limit_ms)
        if not self.heartbeats.stop(limit_ms):      # the session times out by itself
            if commits and self._positions.to_commit():
                raise ClientError(f'the positions of group {self.member.group_id!r} were not committed: its '
                                  f'coordinator has not answered a heartbeat within {limit_ms} ms')
            return
        if self._subscription:
            try:
                self._give_partitions_back(commits)
            except KeyboardInterrupt:
                self.member_cluster.end_within(INTERRUPTED_CLOSE_MS)
                raise
            finally:
                self.member.leave_quietly()
        elif commits:
            self.commit_if_still_member()

    def close(self) -> None:
        """Close the connections, unless the heartbeat thread still uses them."""
        if not self.heartbeats.uses_member:
            self.member_cluster.close()

    def _give_partitions_back(self, commits: bool) -> None:
        """Commit the positions if `commits` is true, and let the listener handle the partitions that are given up."""
        with self.using_member() as member:
            if commits:
                self.commit_if_still_member()
            has_lost_place = member.has_lost_place
        with self.calls.reporting() as report:
            report(self.listener.on_partitions_lost if has_lost_place else self.listener.on_partitions_revoked,
                   self._positions.offsets)

    # ---- the membership

    def keep_membership(self) -> int:
        """Send heartbeats, commit and rebalance if due. Return the time of the next work, in ms of the monotonic
        clock.
        """
        if not self._subscription:
            self._commit_if_due()
            return self._commit_due_ms if self._settings.enable_auto_commit else NEVER_MS
        self.heartbeats.note_poll()
        self.heartbeats.start()
        if self.member.must_join:
            with self.using_member():
                self._catch_up()
        # While the heartbeat thread waits for an answer, the poll must return records, unless the partitions change.
        elif self.heartbeats.lock.acquire(blocking=False):
            try:
                with self.using_member():
                    self._catch_up()
            finally:
                self.heartbeats.lock.release()
        else:
            return self._clock.monotonic_ms() + HEARTBEAT_WAIT_MS
        return self._rebalance_if_due()

    def _rebalance_if_due(self) -> int:
        """Rebalance if the member must join. Return the time of the next work, in ms of the monotonic clock.

        If the consumer keeps partitions, its poll returns their records instead of waiting for other members.
        """
        if self.member.must_join:
            reads = not self._shared.reach.errors.keys() >= self._positions.to_fetch().keys()
            try:
                self._rebalance(0 if reads else NEVER_MS)
            except OutOfTime:
                if not reads:
                    raise
                return self._clock.monotonic_ms() + JOIN_WAIT_MS
            finally:
                self.heartbeats.note_poll()     # the listener may have taken a long time
        return self.member.next_heartbeat_ms()

    def _catch_up(self) -> None:
        """Refresh the metadata, send a heartbeat, and commit: each only if it is due."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._metadata_due_ms:
            try:
                self._metadata_due_ms = now_ms + self._settings.metadata_max_age_ms
                self._cluster.retrying(self._watch_topics, 'Metadata')
            except OutOfTime:
                self._metadata_due_ms = 0
                raise
        self.member.heartbeat_if_due()
        self._commit_if_due(self.member.must_join)

    def _watch_topics(self) -> None:
        """Set `must_join` if the set of subscribed topics, or the number of partitions of one, has changed."""
        if self._subscription.look_up(self._cluster):
            self.member.must_join = True

    def _rebalance(self, wait_ms: int) -> None:
        """Join, and let the listener handle the removed and the added partitions. The listener is called without the
        lock.

        Raise OutOfTime if other members have not joined within `wait_ms`. A repeated call revokes each partition only
        once.
        """
        member, positions, listener = self.member, self._positions, self.listener
        with self.calls.reporting() as report:
            if member.has_lost_place:
                self._drop(list(positions), listener.on_partitions_lost, report)
            else:
                with self.using_member():
                    going = member.surrendered(self._subscription.topics, positions.offsets)
                self._drop(going, listener.on_partitions_revoked, report)
            with self.using_member(), self.member_cluster.within(wait_ms):
                assigned = member.join(self._subscription.topics, list(positions))
                self.heartbeats.note_join()     # before the thread can acquire the lock
                keeps_positions = member.keeps_positions
            self._shared.counts.add('rebalance_total')
            if not keeps_positions:
                self._drop(list(positions), listener.on_partitions_lost, report)
            self._drop(positions.offsets.keys() - set(assigned), listener.on_partitions_revoked, report)
            coming = [partition for partition in assigned if partition not in positions]
            positions.add(coming)
            report(listener.on_partitions_assigned, coming, is_always_called=True)

    def _drop(self, partitions: Collection[TopicPartition], listen: Callable[[list[TopicPartition]], None],
              report: Report) -> None:
        """Let the listener handle removed partitions, and stop reading them."""
        report(listen, partitions)
        self._positions.drop(partitions)

    # ---- automatic commits

    def _commit_if_due(self, is_last: bool = False) -> None:
        """If enable.auto.commit is true, commit if a commit is due, or if `is_last`: a rebalance follows."""
        now_ms = self._clock.monotonic_ms()
        if self._settings.enable_auto_commit and (is_last or now_ms >= self._commit_due_ms):
            self._commit_due_ms = now_ms + self._settings.auto_commit_interval_ms
            self.commit_if_still_member()

    def commit_if_still_member(self) -> None:
        """Commit the positions. Do nothing if the group has rebalanced, because the partitions may have new owners.

        Raise the error of the commit unless it is temporary.
        """
        if self._subscription and self.member.generation_id < 0:
            return
        try:
            self.commit(self._positions.to_commit())
        except KafkaError as error:
            has_moved_on = error.code in self.member.lost_place and bool(self._subscription)
            if not has_moved_on and not self.passes(error):
                raise error from None

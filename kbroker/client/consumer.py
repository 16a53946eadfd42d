"""A consumer that reads partitions of its own choice, or those that its group assigns.

Blocking. Fetches, rebalances and automatic commits all happen in `poll`. A thread sends the heartbeats of a member
whose program is busy (`client/background_heartbeats`). A program that does not poll for max.poll.interval.ms loses its
place in the group.
"""
from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Self

from kbroker.base.clock import Clock
from kbroker.base.errors import ConfigError, ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import EARLIEST, LATEST, Admin, IsolationLevel, ListedOffset, OffsetAndMetadata, as_offsets
from kbroker.client.arguments import check_subscription, milliseconds_of, number_of, partitions_of, topics_of
from kbroker.client.background_heartbeats import BackgroundHeartbeats
from kbroker.client.classic_member import ClassicMember
from kbroker.client.cluster import RETRIED, Cluster
from kbroker.client.consumed import ConsumedBatch, FetchedPartition, FetchedRecords, next_offset
from kbroker.client.consumer_member import ConsumerMember
from kbroker.client.errors import ClientError, PartitionOffline, error_of, known_code
from kbroker.client.exclusive_use import ExclusiveUse
from kbroker.client.fetcher import Fetcher
from kbroker.client.group_member import GroupMember
from kbroker.client.membership import CLOSE_TIMEOUT_MS
from kbroker.client.opening import Servers, open_cluster
from kbroker.client.reach import NEVER_MS, Reach
from kbroker.client.rebalance_listener import ListenerCalls, RebalanceListener, Report
from kbroker.client.stable_offsets import StableOffsets
from kbroker.client.statistics import CONSUMER_COUNTS, Counts, Lags
from kbroker.client.stream_settings import ConsumerSettings
from kbroker.client.time_limit import OutOfTime
from kbroker.client.transaction_manager import GroupMetadata

if TYPE_CHECKING:
    from typing import Unpack

    from kbroker.client.options import ConsumerOptions

_RESET_TIMESTAMPS = {'earliest': EARLIEST, 'latest': LATEST}
ITERATION_POLL_MS = 60_000
JOIN_WAIT_MS = HEARTBEAT_WAIT_MS = 100
"""How long a poll waits for records before it asks again whether all have joined, or a heartbeat has its answer."""
INTERRUPTED_CLOSE_MS = 1000
"""How long `close` waits for the coordinator after a Ctrl-C in its commit or its listener."""


class Consumer:
    """A consumer. Call `assign` or `subscribe`, then `poll`, or iterate. Raises KafkaError and ClientError.

    `servers` is the value of bootstrap.servers, or a cluster that clients share. `options` are settings under Kafka's
    names, written with underscores (`group_id='g'`); `settings` takes them as they are (`{'group.id': 'g'}`). An
    unknown name raises ValueError. A consumer of `topics` subscribes to them. It belongs to one thread and one
    process, and is closed as a context manager or by `close`.
    """

    def __init__(self, servers: Servers = None, settings: ConsumerSettings | Mapping[str, object] | None = None,
                 clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep,
                 topics: Iterable[str] = (), listener: RebalanceListener | None = None,
                 **options: Unpack[ConsumerOptions]):
        self._topics = topics_of(topics)
        opening = open_cluster(servers, settings, options, ConsumerSettings, clock, sleep)
        cluster, self.settings, self._owns_cluster = opening
        self._use = ExclusiveUse('a consumer')
        self._cluster = cluster
        self._clock = clock or Clock()
        self._sleep = sleep
        self._fetcher = Fetcher(cluster, self.settings, self._clock, sleep)
        self._stable = StableOffsets(cluster.config, self._clock)
        self._reach = Reach(cluster, self._clock)
        self._member: GroupMember | None = None
        self._heartbeats: BackgroundHeartbeats | None = None
        if self.settings.group_id is not None:
            self._make_member(self.settings.group_id, sleep)
        self._listener = listener or RebalanceListener()
        self._calls = ListenerCalls(cluster.limit)
        self._pattern: re.Pattern[str] | None = None
        self._regex: str | None = None
        self._partition_counts: dict[str, int] = {}
        self._metadata_due_ms = 0
        self._commit_due_ms = 0
        self._positions: dict[TopicPartition, int | None] = {}
        """None: not yet known, from the group or from auto.offset.reset."""
        self._counts = Counts(CONSUMER_COUNTS)
        self._lags = Lags()
        self._paused: set[TopicPartition] = set()
        self._waiting: deque[FetchedRecords] = deque()
        """The records that were fetched and that an iteration has not reached. Their offsets are not yet consumed."""
        if self._topics:
            self._group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Close the consumer. After an error of the block, no position is committed and no listener called."""
        if error is not None:
            self._listener = RebalanceListener()
        try:
            self.close(commits=None if error is None else False)
        except Exception as second:
            if error is None:
                raise
            error.add_note(f'The consumer could not be closed: {second}')

    def _make_member(self, group_id: str, sleep: Callable[[float], None]) -> None:
        """Make the member, with connections of its own: the thread of its heartbeats uses them, too."""
        self._member_cluster = Cluster(self._cluster.config, self._clock, sleep)
        if self.settings.group_protocol == 'consumer':
            self._member = ConsumerMember(self._member_cluster, group_id, self.settings, self._clock,
                                          regex=lambda: self._regex)
        else:
            self._member = ClassicMember(self._member_cluster, group_id, self.settings, self._clock)
        self._heartbeats = BackgroundHeartbeats(self._member, self.settings.max_poll_interval_ms, self._clock)

    # ---- assignment

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    @property
    def offline(self) -> dict[TopicPartition, KafkaError]:
        """The assigned partitions without a leader, each with its error. `poll` reads the others meanwhile."""
        return {at: error for at, error in self._reach.errors.items() if at in self._positions}

    @property
    def group_metadata(self) -> GroupMetadata:
        with self._using_member() as member:
            return member.metadata

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, independent of any group."""
        self._check_use()
        chosen = partitions_of(partitions)
        self._forget_waiting()
        kept = {} if self._is_subscribed() else self._positions
        wanted = {partition: kept.get(partition) for partition in chosen}
        try:
            self.unsubscribe()
        finally:
            self._positions = wanted

    def unsubscribe(self) -> None:
        """Read nothing more. A member commits its positions if enable.auto.commit is true, and leaves its group."""
        self._check_use()
        self._forget_waiting()
        try:
            if self._member is not None and self._is_subscribed():
                self._end_subscription(self._member)
        finally:
            self._positions = {}
            self._paused.clear()
            self._topics, self._pattern, self._regex, self._partition_counts = frozenset(), None, None, {}

    def _end_subscription(self, member: GroupMember) -> None:
        try:
            self._give_partitions_back(member, self.settings.enable_auto_commit)
        finally:
            with self._using_member():
                member.leave_for_good()

    def subscribe(self, topics: Iterable[str] = (), pattern: re.Pattern[str] | str | None = None,
                  regex: str | None = None, listener: RebalanceListener | None = None) -> None:
        """Share these topics, or all whose full name matches, with the other members of the group.

        The consumer evaluates `pattern`, without internal topics. The broker evaluates `regex`, with the syntax of RE2,
        and finds internal topics, too; this needs group.protocol=consumer. The subscription replaces the one before;
        so does `listener`, unless it is None.
        """
        self._check_use()
        member = self._group()
        topics = topics_of(topics)
        check_subscription(topics, pattern, regex)
        if regex is not None and self.settings.group_protocol != 'consumer':
            raise ConfigError('group.protocol', 'found an expression for the broker, which needs '
                              'group.protocol=consumer')
        compiled = re.compile(pattern) if isinstance(pattern, str) else pattern
        if not self._is_subscribed():       # partitions of `assign` have no place in a subscription
            self._forget_waiting()
            self._positions.clear()
        self._topics, self._pattern, self._regex = topics, compiled, regex
        self._listener = listener or self._listener
        self._metadata_due_ms = 0
        with self._using_member():
            member.must_join = True

    def position(self, topic: str, partition: int) -> int | None:
        """Return the offset of the next record; None before the first poll."""
        partitions_of([(topic, partition)])
        for waiting in self._waiting:
            if (waiting.topic, waiting.partition) == (topic, partition):
                return waiting.offset
        return self._positions[topic, partition]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Set the next offset to read. Raises KeyError for a partition that is not assigned, ValueError below 0."""
        self._use.check()
        as_offsets({(topic, partition): offset})
        if (topic, partition) not in self._positions:
            raise KeyError((topic, partition))
        self._forget_waiting()
        self._positions[topic, partition] = offset

    def seek_to_beginning(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Read these partitions, or all that are assigned, from their first records."""
        self._seek_all(self.beginning_offsets(self._chosen(partitions)))

    def seek_to_end(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Read only what is written from now on."""
        self._seek_all(self.end_offsets(self._chosen(partitions)))

    def seek_to_time(self, timestamp_ms: int, partitions: Collection[TopicPartition] | None = None) -> None:
        """Read from the first record at or after this time; from the end where there is none."""
        chosen = self._chosen(partitions)
        found = self.offsets_for_times(dict.fromkeys(chosen, number_of(timestamp_ms, 'a timestamp in ms')))
        ends = self.end_offsets([partition for partition in chosen if found[partition] is None])
        self._seek_all({partition: ends[partition] if listed is None else listed.offset
                        for partition, listed in found.items()})

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition,
                                                                                     ListedOffset | None]:
        """Return the first offset at or after a time for each partition, or None if no record is that late."""
        self._use.check()
        found = Admin(self._cluster).list_offsets(timestamps_ms, self._isolation_level) if timestamps_ms else {}
        return {partition: listed if listed.offset >= 0 else None for partition, listed in found.items()}

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the first record of each partition."""
        return self._offsets_at(EARLIEST, partitions)

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition that this consumer may read."""
        return self._offsets_at(LATEST, partitions)

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of the group; partitions without one are missing.

        Waits while a transaction is open that commits newer ones, for at most default.api.timeout.ms.
        """
        self._use.check()
        partitions = partitions_of(partitions)
        stable = StableOffsets(self._cluster.config, self._clock)
        with self._cluster.limit.call(self._cluster.config.default_api_timeout_ms):
            while (found := stable.find(partitions, lambda: self._committed_now(partitions))) is None:
                self._sleep(max(stable.due_ms - self._clock.monotonic_ms(), 0) / 1000)
            return found

    def _committed_now(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        with self._using_member() as member:
            return member.committed(partitions)

    def _using_member(self) -> AbstractContextManager[GroupMember]:
        self._group()
        assert self._heartbeats is not None
        return self._heartbeats.using_member(self._cluster.limit, self._cluster.config.default_api_timeout_ms)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch nothing from these partitions until `resume`. They stay assigned. Raises KeyError for others."""
        self._paused |= set(self._chosen(partitions))
        self._forget_waiting()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._use.check()
        self._paused.difference_update(partitions_of(partitions))

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._paused)

    def _chosen(self, partitions: Collection[TopicPartition] | None) -> Collection[TopicPartition]:
        self._use.check()
        chosen = list(self._positions) if partitions is None else partitions_of(partitions)
        for partition in chosen:
            if partition not in self._positions:
                raise KeyError(partition)
        return chosen

    def _seek_all(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._forget_waiting()
        self._positions |= offsets

    # ---- reading

    def poll(self, timeout_ms: int) -> list[ConsumedBatch]:
        """Return records as soon as there are any, [] after `timeout_ms`; the next fetch is then in flight.

        What has not ended then, such as a rebalance that waits for another member, goes on in the next call. Beside
        the time-out, a call takes the time of the listener, of the resolution of host names, and at first a second to
        open a connection.

        Raises KafkaError for a damaged batch, once the records before it were returned. The position is then that of
        the damaged batch.
        """
        self._check_use()
        deadline_ms = self._clock.monotonic_ms() + milliseconds_of(timeout_ms, 'timeout_ms')
        while True:
            self._forget_waiting_before_join()
            now_ms = self._clock.monotonic_ms()
            if not self._waiting:
                self._fetch(max(deadline_ms - now_ms, 0))
            batches = self._take_all_waiting()
            if batches or now_ms >= deadline_ms:
                return batches

    def __iter__(self) -> Iterator[ConsumedBatch]:
        """Yield batches without end, until the consumer is closed. The position follows the yielded batches.

        A batch has the records of max.poll.records, and the rest of the last batch of the partition among them.
        Raises as `poll`.
        """
        while not self._use.is_refused:
            self._check_use()
            self._forget_waiting_before_join()
            if not self._waiting:
                self._fetch(ITERATION_POLL_MS)
            elif self._heartbeats is not None:
                self._heartbeats.note_poll()
            batch = self._take_waiting() if self._waiting else None
            if batch is not None:
                yield batch

    def _take_waiting(self) -> ConsumedBatch | None:
        """Return the next of the fetched records, or None if they are hidden. The position follows them."""
        waiting = self._waiting[0]
        try:
            batch = waiting.take()
        except KafkaError:
            self._forget_waiting()
            raise
        if waiting.is_finished:
            self._waiting.popleft()
        if batch is not None:
            self._counts.add('records_consumed_total', len(batch))
        return batch

    def _take_all_waiting(self) -> list[ConsumedBatch]:
        """Return all of the fetched records. After Ctrl-C the positions are those before, since none was returned."""
        batches: list[ConsumedBatch] = []
        try:
            while self._waiting:
                batch = self._take_waiting()
                if batch is not None:
                    batches.append(batch)
        except BaseException as error:
            if batches and isinstance(error, KafkaError):
                return batches      # the next poll raises it
            self._forget_waiting()
            for batch in reversed(batches):
                self._positions[batch.topic, batch.partition] = batch.offsets[0]
            raise
        return batches

    def _fetch(self, timeout_ms: int) -> None:
        """Wait for records, and add them to those that wait."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        with self._cluster.within(timeout_ms):
            while True:
                wait_ms = max(min(self._prepare_fetches(), deadline_ms) - self._clock.monotonic_ms(), 0)
                for fetched in self._fetcher.receive(wait_ms):
                    self._accept(fetched)
                if self._waiting:
                    self._send_fetches_ahead()
                    return
                if self._clock.monotonic_ms() >= deadline_ms:
                    return

    def _prepare_fetches(self) -> int:
        """Do all that precedes a fetch. Return when it is due again: a time on the monotonic clock, in ms."""
        try:
            due_ms = self._keep_membership()
            try:
                due_ms = min(due_ms, self._find_positions())
                self._send_fetches()
            except KafkaError as error:
                if not self._passes(error):
                    raise
        except OutOfTime:       # the next poll goes on with it; answers that have arrived must not wait for that
            return self._clock.monotonic_ms()
        return min(due_ms, self._reach.due_ms)

    def _forget_waiting_before_join(self) -> None:
        """Return to the last position that was reached if the group waits for this member, or has removed it."""
        if self._member is not None and self._member.must_join:
            self._forget_waiting()

    def _forget_waiting(self) -> None:
        """Return to the position before the batches that no iteration has reached."""
        for waiting in reversed(self._waiting):
            self._positions[waiting.topic, waiting.partition] = waiting.offset
        self._waiting.clear()

    def _send_fetches(self) -> None:
        self._cluster.retrying(lambda: self._fetcher.send(self._positions_to_fetch()), 'Fetch')

    def _send_fetches_ahead(self) -> None:
        """Ask for what follows the records that wait. An error must not hold them up: the next fetch meets it, too."""
        with suppress(KafkaError, ClientError, OutOfTime):
            self._fetcher.send(self._positions_to_fetch())

    def _wanted_positions(self) -> dict[TopicPartition, int]:
        return {partition: offset for partition, offset in self._positions.items()
                if offset is not None and partition not in self._paused}

    def _positions_to_fetch(self) -> dict[TopicPartition, int]:
        wanted = self._wanted_positions()
        return {partition: wanted[partition] for partition in self._reach.within(wanted)}

    def _passes(self, error: KafkaError) -> bool:
        """Return whether an error ends by itself: a topic of the subscription was deleted, which the next rebalance
        mends, or a partition has just lost its leader, so that the next call leaves it out."""
        if isinstance(error, PartitionOffline):
            return True
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not self._is_subscribed():
            return False
        self._metadata_due_ms = 0
        return True

    def _accept(self, fetched: FetchedPartition) -> None:
        """Queue the records of an answer, and move the position behind them. Drop the answer for another position."""
        partition = (fetched.topic, fetched.partition)
        if self._positions.get(partition) != fetched.fetch_offset or partition in self._paused:
            return
        code = known_code(fetched.row.error_code)
        if code is ErrorCode.NONE:
            size_bytes = len(fetched.row.records or b'')
            self._positions[partition] = offset = next_offset(fetched)
            if size_bytes:
                self._waiting.append(FetchedRecords(fetched, self.settings.check_crcs, self.settings.max_poll_records))
            self._counts.add('fetch_total')
            self._counts.add('bytes_consumed_total', size_bytes)
            end_offset = (fetched.row.last_stable_offset if self._isolation_level is IsolationLevel.READ_COMMITTED
                          else fetched.row.high_watermark)
            self._lags.note(partition, max(end_offset - offset, 0), self._positions)
            return
        what = f'{fetched.topic}-{fetched.partition}, offset {fetched.fetch_offset}'
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self.settings.auto_offset_reset != 'none':
            with suppress(OutOfTime):       # the next fetch gets the same error
                self._positions[partition] = self._list_offsets([partition])[partition]
        elif code in RETRIED or code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._cluster.forget()      # the next fetch gets the error of a deleted topic from its metadata
        else:
            raise error_of(fetched.row.error_code, what)

    # ---- positions

    def _find_positions(self) -> int:
        """Find the positions that are unknown. Return when to try again: a time on the monotonic clock, in ms."""
        unknown = [partition for partition, offset in self._positions.items() if offset is None]
        if not unknown:
            self._stable.end_wait()     # a seek or a rebalance may have ended it
            return NEVER_MS
        if self._member is not None:
            found = self._stable.find(unknown, lambda: self._committed_now(unknown))
            if found is None:
                return self._stable.due_ms
            self._positions |= {partition: committed.offset for partition, committed in found.items()}
        unknown = [partition for partition in unknown if self._positions[partition] is None]
        unknown = self._cluster.retrying(lambda: self._reach.within(unknown), 'Metadata')
        if unknown:
            self._positions |= self._list_offsets(unknown)
        return NEVER_MS

    def _list_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets for auto.offset.reset. Raises KafkaError(OFFSET_OUT_OF_RANGE) if it is `none`."""
        reset = self.settings.auto_offset_reset
        if reset == 'none':
            missing = ', '.join(f'{topic}-{partition}' for topic, partition in sorted(partitions))
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f'{missing}: there is no offset to begin at, and '
                             'auto.offset.reset is none')
        return self._offsets_at(_RESET_TIMESTAMPS[reset], partitions)

    @property
    def _isolation_level(self) -> IsolationLevel:
        return IsolationLevel[self.settings.isolation_level.upper()]

    def _offsets_at(self, timestamp: int, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        self._use.check()
        if not (partitions := partitions_of(partitions)):
            return {}
        found = Admin(self._cluster).list_offsets(dict.fromkeys(partitions, timestamp), self._isolation_level)
        return {partition: listed.offset for partition, listed in found.items()}

    def stats(self) -> dict[str, int]:
        """Return counts by name: totals since the construction, and what the consumer has now.

        `records_lag` counts the records between the fetched ones and the end of the assigned partitions.
        """
        self._use.check()
        return {**self._counts, 'assigned_partitions': len(self._positions),
                'records_lag': self._lags.total(self._positions)}

    # ---- the group

    def offsets_to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions after the records that the consumer has returned."""
        found = {partition: OffsetAndMetadata(offset) for partition, offset in self._positions.items()
                 if offset is not None}
        for waiting in reversed(self._waiting):
            found[waiting.topic, waiting.partition] = OffsetAndMetadata(waiting.offset)
        return found

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commit the positions, or these offsets. Raises KafkaError(ILLEGAL_GENERATION ...) after a rebalance."""
        self._use.check()
        wanted = self.offsets_to_commit() if offsets is None else as_offsets(offsets)
        with self._using_member() as member:
            member.commit(wanted)
        self._counts.add('commit_total')

    def close(self, commits: bool | None = None, timeout_ms: int | None = None) -> None:
        """Commit the positions if `commits` (default: enable.auto.commit) is true, and leave the group.

        Both together take at most `timeout_ms` (default: 30 s), the logins of new connections included. Raises
        KafkaError or ClientError if the commit has no answer in that time, or cannot be sent because a heartbeat has
        none. If the coordinator does not answer, the session times out. With a timeout of 0, nothing is committed and
        the session times out. In a process that was forked, the connections are closed without sending anything.
        """
        limit_ms = CLOSE_TIMEOUT_MS if timeout_ms is None else milliseconds_of(timeout_ms, 'timeout_ms')
        if self._use.is_refused:
            self._close_connections()
            return
        self._check_use()
        if commits is None:
            commits = self.settings.enable_auto_commit
        try:
            self._leave(commits and limit_ms > 0, limit_ms)
        finally:
            self._use.end()
            self._close_connections()

    def _close_connections(self) -> None:
        self._fetcher.close()
        if self._heartbeats is not None and not self._heartbeats.uses_member:
            self._member_cluster.close()
        if self._owns_cluster:
            self._cluster.close()

    def _check_use(self) -> None:
        """Raise RuntimeError for a use that `ExclusiveUse` refuses, and for one by a listener."""
        self._use.check()
        if self._calls.is_running:
            raise RuntimeError('found a poll, a close or another subscription in a call of a RebalanceListener, '
                               'expected it after the call')

    def _leave(self, commits: bool, limit_ms: int) -> None:
        self._fetcher.close()
        if self._member is None or self._heartbeats is None:
            return
        self._member_cluster.end_within(limit_ms)
        if not self._heartbeats.stop(limit_ms):     # the session times out by itself
            if commits and self.offsets_to_commit():
                raise ClientError(f'the positions of group {self._member.group_id!r} were not committed: its '
                                  f'coordinator has not answered a heartbeat within {limit_ms} ms')
            return
        if self._is_subscribed():
            try:
                self._give_partitions_back(self._member, commits)
            except KeyboardInterrupt:
                self._member_cluster.end_within(INTERRUPTED_CLOSE_MS)
                raise
            finally:
                self._member.leave_quietly()
        elif commits:
            self._commit_if_still_member()

    def _give_partitions_back(self, member: GroupMember, commits: bool) -> None:
        """Commit if the program wants it, and let the listener handle the end of a subscription."""
        with self._using_member():
            if commits:
                self._commit_if_still_member()
            has_lost_place = member.has_lost_place
        with self._calls.reporting() as report:
            report(self._listener.on_partitions_lost if has_lost_place else self._listener.on_partitions_revoked,
                   self._positions)

    def _keep_membership(self) -> int:
        """Do what the group needs, and return when that is due again: a time on the monotonic clock, in ms."""
        if self._member is None or self._heartbeats is None:
            return NEVER_MS
        if not self._is_subscribed():
            self._commit_if_due()
            return self._commit_due_ms if self.settings.enable_auto_commit else NEVER_MS
        self._heartbeats.note_poll()
        self._heartbeats.start()
        if self._member.must_join:
            with self._using_member():
                self._catch_up(self._member)
        # A thread that awaits the answer to a heartbeat must not hold up the records, unless the partitions change.
        elif self._heartbeats.lock.acquire(blocking=False):
            try:
                with self._using_member():
                    self._catch_up(self._member)
            finally:
                self._heartbeats.lock.release()
        else:
            return self._clock.monotonic_ms() + HEARTBEAT_WAIT_MS
        return self._rebalance_if_due(self._member, self._heartbeats)

    def _rebalance_if_due(self, member: GroupMember, heartbeats: BackgroundHeartbeats) -> int:
        """Return when the group needs something again. Records of kept partitions do not wait for other members."""
        if member.must_join:
            reads = not self._reach.errors.keys() >= self._wanted_positions().keys()
            try:
                self._rebalance(member, heartbeats, 0 if reads else NEVER_MS)
            except OutOfTime:
                if not reads:
                    raise
                return self._clock.monotonic_ms() + JOIN_WAIT_MS
            finally:
                heartbeats.note_poll()      # the listener may have taken long
        return member.next_heartbeat_ms()

    def _catch_up(self, member: GroupMember) -> None:
        """Send a heartbeat if it is due, and commit if it is time."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._metadata_due_ms:
            try:
                self._metadata_due_ms = now_ms + self.settings.metadata_max_age_ms
                self._cluster.retrying(self._watch_topics, 'Metadata')
            except OutOfTime:
                self._metadata_due_ms = 0
                raise
        member.heartbeat_if_due()
        self._commit_if_due(member.must_join)

    def _commit_if_due(self, is_last: bool = False) -> None:
        """Commit if enable.auto.commit is true and it is time, or the last chance before a rebalance."""
        now_ms = self._clock.monotonic_ms()
        if self.settings.enable_auto_commit and (is_last or now_ms >= self._commit_due_ms):
            self._commit_due_ms = now_ms + self.settings.auto_commit_interval_ms
            self._commit_if_still_member()

    def _rebalance(self, member: GroupMember, heartbeats: BackgroundHeartbeats, wait_ms: int) -> None:
        """Join, and let the listener handle each partition that goes or comes. It is called without the lock.

        Raises OutOfTime if the group is not complete in `wait_ms`. A repeated call finds no partition to revoke again.
        """
        with self._calls.reporting() as report:
            if member.has_lost_place:
                self._drop(list(self._positions), self._listener.on_partitions_lost, report)
            else:
                with self._using_member():
                    going = member.surrendered(self._topics, self._positions)
                self._drop(going, self._listener.on_partitions_revoked, report)
            with self._using_member(), self._member_cluster.within(wait_ms):
                assigned = member.join(self._topics, list(self._positions))
                heartbeats.note_join()      # before the thread can have the lock
                keeps_positions = member.keeps_positions
            self._counts.add('rebalance_total')
            if not keeps_positions:
                self._drop(list(self._positions), self._listener.on_partitions_lost, report)
            self._drop(self._positions.keys() - set(assigned), self._listener.on_partitions_revoked, report)
            coming = [partition for partition in assigned if partition not in self._positions]
            self._positions |= dict.fromkeys(coming)
            report(self._listener.on_partitions_assigned, coming, is_always_called=True)

    def _drop(self, partitions: Collection[TopicPartition], listen: Callable[[list[TopicPartition]], None],
              report: Report) -> None:
        """Let the listener handle partitions that go, and read them no more."""
        report(listen, partitions)
        for partition in partitions:
            self._positions.pop(partition, None)
        self._paused &= self._positions.keys()

    def _is_subscribed(self) -> bool:
        return bool(self._topics) or self._pattern is not None or self._regex is not None

    def _watch_topics(self) -> None:
        """Rejoin the group when another topic matches, or a topic has more partitions."""
        if self._pattern is not None:
            pattern = self._pattern
            self._topics = frozenset(name for name, topic in self._cluster.topics().items()
                                     if pattern.fullmatch(name) and not topic.is_internal)
        answer = self._cluster.refresh(self._topics)
        counts = {topic.name: len(topic.partitions) for topic in answer.topics if not topic.error_code}
        if counts != self._partition_counts:
            self._partition_counts = counts
            self._group().must_join = True

    def _commit_if_still_member(self) -> None:
        """Commit, unless the group has rebalanced: offsets of reassigned partitions belong to the new member."""
        if self._member is None or (self._is_subscribed() and self._member.generation_id < 0):
            return
        try:
            self.commit()
        except KafkaError as error:
            has_moved_on = error.code in self._member.lost_place and self._is_subscribed()
            if not has_moved_on and not self._passes(error):
                raise error from None

    def _group(self) -> GroupMember:
        if self._member is None:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, 'found a consumer without group.id, expected one')
        return self._member

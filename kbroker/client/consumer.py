"""A blocking consumer that reads the partitions that its program assigns, or the partitions that its group assigns.

Fetches, rebalances and automatic commits all happen in `poll`. While the program is busy, a thread sends the heartbeats
(`client/background_heartbeats`). If the program does not call `poll` for max.poll.interval.ms, the consumer leaves the
group.
"""
from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from kbroker.base.clock import Clock
from kbroker.base.errors import ConfigError, ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import EARLIEST, LATEST, Admin, IsolationLevel, ListedOffset, OffsetAndMetadata, as_offsets
from kbroker.client.arguments import check_subscription, milliseconds_of, number_of, partitions_of, topics_of
from kbroker.client.cluster import RETRIED
from kbroker.client.consumed import ConsumedBatch, FetchedPartition, FetchedRecords, next_offset
from kbroker.client.errors import ClientError, PartitionOffline, error_of, known_code
from kbroker.client.exclusive_use import ExclusiveUse
from kbroker.client.fetcher import Fetcher
from kbroker.client.group_session import GroupSession, Shared
from kbroker.client.membership import CLOSE_TIMEOUT_MS
from kbroker.client.opening import Servers, open_cluster
from kbroker.client.positions import Positions
from kbroker.client.reach import NEVER_MS, Reach
from kbroker.client.rebalance_listener import RebalanceListener
from kbroker.client.stable_offsets import StableOffsets
from kbroker.client.statistics import CONSUMER_COUNTS, Counts, Lags
from kbroker.client.stream_settings import ConsumerSettings
from kbroker.client.subscription import Subscription
from kbroker.client.time_limit import OutOfTime
from kbroker.client.transaction_manager import GroupMetadata

if TYPE_CHECKING:
    from typing import Unpack

    from kbroker.client.options import ConsumerOptions

_RESET_TIMESTAMPS = {'earliest': EARLIEST, 'latest': LATEST}
ITERATION_POLL_MS = 60_000


class Consumer:
    """A consumer. Call `assign` or `subscribe`, then `poll`, or iterate. Raises KafkaError and ClientError.

    `servers` is the value of bootstrap.servers, or a cluster that several clients share. `options` are settings under
    Kafka's names, written with underscores (`group_id='g'`). `settings` has them under Kafka's own names (`{'group.id':
    'g'}`). An unknown name raises ValueError. With `topics`, the constructor subscribes to them. Only one thread of one
    process may use the consumer. It is closed by `close`, or at the end of a `with` block.
    """

    def __init__(self, servers: Servers = None, settings: ConsumerSettings | Mapping[str, object] | None = None,
                 clock: Clock | None = None, sleep: Callable[[float], None] = time.sleep,
                 topics: Iterable[str] = (), listener: RebalanceListener | None = None,
                 **options: Unpack[ConsumerOptions]):
        self._subscription = Subscription(topics_of(topics))
        opening = open_cluster(servers, settings, options, ConsumerSettings, clock, sleep)
        cluster, self.settings, self._owns_cluster = opening
        self._use = ExclusiveUse('a consumer')
        self._cluster = cluster
        self._clock = clock or Clock()
        self._sleep = sleep
        self._fetcher = Fetcher(cluster, self.settings, self._clock, sleep)
        self._stable = StableOffsets(cluster.config, self._clock)
        self._reach = Reach(cluster, self._clock)
        self._counts = Counts(CONSUMER_COUNTS)
        self._lags = Lags()
        self._positions = Positions(self._counts)
        self._session: GroupSession | None = None
        if self.settings.group_id is not None:
            shared = Shared(cluster, self._positions, self._subscription, self._reach, self._counts)
            self._session = GroupSession(shared, self.settings.group_id, self.settings,
                                         listener or RebalanceListener(), self._clock, sleep)
        if self._subscription:
            self._group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Close the consumer. After an exception in the `with` block, commit no position, and do not call the
        listener.
        """
        if error is not None and self._session is not None:
            self._session.listener = RebalanceListener()
        try:
            self.close(commits=None if error is None else False)
        except Exception as second:
            if error is None:
                raise
            error.add_note(f'The consumer could not be closed: {second}')

    # ---- assignment

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    @property
    def offline(self) -> dict[TopicPartition, KafkaError]:
        """The assigned partitions without a leader, each with its error. `poll` reads the remaining partitions."""
        return {at: error for at, error in self._reach.errors.items() if at in self._positions}

    @property
    def group_metadata(self) -> GroupMetadata:
        with self._group().using_member() as member:
            return member.metadata

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, which the program has chosen instead of a group."""
        self._check_use()
        chosen = partitions_of(partitions)
        self._positions.forget_waiting()
        kept = {} if self._subscription else self._positions.offsets
        wanted = {partition: kept.get(partition) for partition in chosen}
        try:
            self.unsubscribe()
        finally:
            self._positions.offsets = wanted

    def unsubscribe(self) -> None:
        """Stop reading all partitions. A member of a group commits its positions if enable.auto.commit is true, and
        leaves.
        """
        self._check_use()
        self._positions.forget_waiting()
        try:
            if self._session is not None and self._subscription:
                self._session.end_subscription()
        finally:
            self._positions.clear()
            self._subscription.clear()

    def subscribe(self, topics: Iterable[str] = (), pattern: re.Pattern[str] | str | None = None,
                  regex: str | None = None, listener: RebalanceListener | None = None) -> None:
        """Share topics with the other members of the group: `topics`, or all topics whose full names match an
        expression.

        The consumer evaluates `pattern`, which matches no internal topics. The broker evaluates `regex`, in the syntax
        of RE2, which also matches internal topics and needs group.protocol=consumer. The call replaces the previous
        subscription, and the previous listener unless `listener` is None. Raise ConfigError if `regex` is given with a
        different group.protocol. Raise ValueError for a combination of topics and expressions that is not allowed, and
        TypeError for an argument of a wrong type.
        """
        self._check_use()
        session = self._group()
        topics = topics_of(topics)
        check_subscription(topics, pattern, regex)
        if regex is not None and self.settings.group_protocol != 'consumer':
            raise ConfigError('group.protocol', 'found an expression for the broker, which needs '
                              'group.protocol=consumer')
        compiled = re.compile(pattern) if isinstance(pattern, str) else pattern
        if not self._subscription:      # partitions of `assign` are no part of a subscription
            self._positions.forget_waiting()
            self._positions.offsets.clear()
        self._subscription.replace(topics, compiled, regex)
        session.listener = listener or session.listener
        session.join_later()

    def position(self, topic: str, partition: int) -> int | None:
        """Return the offset of the next record that `poll` returns, or None before the first poll."""
        partitions_of([(topic, partition)])
        return self._positions.next_of((topic, partition))

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Set the offset at which the next poll reads.

        Raise KeyError for a partition that is not assigned, ValueError for an offset below 0.
        """
        self._use.check()
        as_offsets({(topic, partition): offset})
        if (topic, partition) not in self._positions:
            raise KeyError((topic, partition))
        self._positions.seek({(topic, partition): offset})

    def seek_to_beginning(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Let the next poll read these partitions, or all assigned partitions, from their first records."""
        self._positions.seek(self.beginning_offsets(self._chosen(partitions)))

    def seek_to_end(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Move these partitions, or all assigned partitions, to their ends: only later records are read."""
        self._positions.seek(self.end_offsets(self._chosen(partitions)))

    def seek_to_time(self, timestamp_ms: int, partitions: Collection[TopicPartition] | None = None) -> None:
        """Read from the first record at or after this time. If a partition has no record so late, read from its end."""
        chosen = self._chosen(partitions)
        found = self.offsets_for_times(dict.fromkeys(chosen, number_of(timestamp_ms, 'a timestamp in ms')))
        ends = self.end_offsets([partition for partition in chosen if found[partition] is None])
        self._positions.seek({partition: ends[partition] if listed is None else listed.offset
                        for partition, listed in found.items()})

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition,
                                                                                     ListedOffset | None]:
        """Return the first offset of each partition at or after its time in ms, or None if it has no record so late."""
        self._use.check()
        found = Admin(self._cluster).list_offsets(timestamps_ms, self._isolation_level) if timestamps_ms else {}
        return {partition: listed if listed.offset >= 0 else None for partition, listed in found.items()}

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the first record of each partition."""
        return self._offsets_at(EARLIEST, partitions)

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last readable record of each partition, according to isolation.level."""
        return self._offsets_at(LATEST, partitions)

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of the group. A partition without a committed offset is missing in the result.
        While an open transaction commits newer offsets, wait for its end, at most default.api.timeout.ms.
        """
        self._use.check()
        partitions = partitions_of(partitions)
        session = self._group()
        stable = StableOffsets(self._cluster.config, self._clock)
        with self._cluster.limit.call(self._cluster.config.default_api_timeout_ms):
            while (found := stable.find(partitions, lambda: session.committed(partitions))) is None:
                self._sleep(max(stable.due_ms - self._clock.monotonic_ms(), 0) / 1000)
            return found

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Do not fetch from these partitions until `resume`. They remain assigned.

        Raise KeyError for a partition that is not assigned.
        """
        self._positions.pause(self._chosen(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._use.check()
        self._positions.paused.difference_update(partitions_of(partitions))

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions.paused)

    def _chosen(self, partitions: Collection[TopicPartition] | None) -> list[TopicPartition]:
        self._use.check()
        return self._positions.chosen(partitions)

    # ---- reading

    def poll(self, timeout_ms: int) -> list[ConsumedBatch]:
        """Return records as soon as any have arrived, or [] after `timeout_ms`. When records are returned, the next
        fetch is already in flight.

        A call continues work that the previous call did not finish, such as a rebalance that waits for a different
        member. A call may take longer than `timeout_ms`: by the time of the listener, by the time to resolve host
        names, and by about a second when a connection is first opened.

        Raise KafkaError for a damaged batch, after the records before the batch were returned. The position remains at
        the damaged batch.
        """
        self._check_use()
        deadline_ms = self._clock.monotonic_ms() + milliseconds_of(timeout_ms, 'timeout_ms')
        while True:
            self._forget_waiting_before_join()
            now_ms = self._clock.monotonic_ms()
            if not self._positions.waiting:
                self._fetch(max(deadline_ms - now_ms, 0))
            batches = self._positions.take_all()
            if batches or now_ms >= deadline_ms:
                return batches

    def __iter__(self) -> Iterator[ConsumedBatch]:
        """Yield batches until the consumer is closed. The position is always after the last yielded batch.

        A yielded batch has max.poll.records records, or more if a batch of the partition would otherwise be split.
        Raise the same errors as `poll`.
        """
        while not self._use.is_refused:
            self._check_use()
            self._forget_waiting_before_join()
            if not self._positions.waiting:
                self._fetch(ITERATION_POLL_MS)
            elif self._session is not None:
                self._session.heartbeats.note_poll()
            batch = self._positions.take() if self._positions.waiting else None
            if batch is not None:
                yield batch

    def _fetch(self, timeout_ms: int) -> None:
        """Wait at most `timeout_ms` for records, and queue them in `_positions`."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        with self._cluster.within(timeout_ms):
            while True:
                wait_ms = max(min(self._prepare_fetches(), deadline_ms) - self._clock.monotonic_ms(), 0)
                for fetched in self._fetcher.receive(wait_ms):
                    self._accept(fetched)
                if self._positions.waiting:
                    self._send_fetches_ahead()
                    return
                if self._clock.monotonic_ms() >= deadline_ms:
                    return

    def _prepare_fetches(self) -> int:
        """Keep the membership, find positions, and send fetches. Return the time at which to do this again, in ms of
        the monotonic clock.
        """
        try:
            due_ms = NEVER_MS if self._session is None else self._session.keep_membership()
            try:
                due_ms = min(due_ms, self._find_positions())
                self._send_fetches()
            except KafkaError as error:
                if not self._passes(error):
                    raise
        except OutOfTime:       # the next poll continues; arrived answers must not wait
            return self._clock.monotonic_ms()
        return min(due_ms, self._reach.due_ms)

    def _forget_waiting_before_join(self) -> None:
        """Drop the queued records if the member must join its group. Move the positions back to the dropped records."""
        if self._session is not None and self._session.member.must_join:
            self._positions.forget_waiting()

    def _send_fetches(self) -> None:
        self._cluster.retrying(lambda: self._fetcher.send(self._positions_to_fetch()), 'Fetch')

    def _send_fetches_ahead(self) -> None:
        """Fetch the records after the queued ones.

        Ignore errors, which must not delay the queued records. A lasting error occurs again in the next fetch.
        """
        with suppress(KafkaError, ClientError, OutOfTime):
            self._fetcher.send(self._positions_to_fetch())

    def _positions_to_fetch(self) -> dict[TopicPartition, int]:
        wanted = self._positions.to_fetch()
        return {partition: wanted[partition] for partition in self._reach.within(wanted)}

    def _passes(self, error: KafkaError) -> bool:
        """Return whether an error is temporary, such as the error of a partition that has just lost its leader."""
        return isinstance(error, PartitionOffline) or (self._session is not None and self._session.passes(error))

    def _accept(self, fetched: FetchedPartition) -> None:
        """Queue the records of an answer, and move the position after them. Drop the answer if the position has
        changed.
        """
        partition = (fetched.topic, fetched.partition)
        if self._positions.offsets.get(partition) != fetched.fetch_offset or partition in self._positions.paused:
            return
        code = known_code(fetched.row.error_code)
        if code is ErrorCode.NONE:
            size_bytes = len(fetched.row.records or b'')
            self._positions.offsets[partition] = offset = next_offset(fetched)
            if size_bytes:
                self._positions.waiting.append(
                    FetchedRecords(fetched, self.settings.check_crcs, self.settings.max_poll_records))
            self._counts.add('fetch_total')
            self._counts.add('bytes_consumed_total', size_bytes)
            end_offset = (fetched.row.last_stable_offset if self._isolation_level is IsolationLevel.READ_COMMITTED
                          else fetched.row.high_watermark)
            self._lags.note(partition, max(end_offset - offset, 0), self._positions)
            return
        what = f'{fetched.topic}-{fetched.partition}, offset {fetched.fetch_offset}'
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and self.settings.auto_offset_reset != 'none':
            with suppress(OutOfTime):       # the next fetch gets the same error
                self._positions.offsets[partition] = self._list_offsets([partition])[partition]
        elif code in RETRIED or code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._cluster.forget()      # the next fetch gets the error of a deleted topic from its metadata
        else:
            raise error_of(fetched.row.error_code, what, api='Fetch')

    # ---- positions

    def _find_positions(self) -> int:
        """Find the positions of partitions that have none. Return the time of the next try, in ms of the monotonic
        clock.
        """
        unknown = self._positions.unknown()
        if not unknown:
            self._stable.end_wait()     # a seek or a rebalance may have ended it
            return NEVER_MS
        if (session := self._session) is not None:
            found = self._stable.find(unknown, lambda: session.committed(unknown))
            if found is None:
                return self._stable.due_ms
            self._positions.offsets |= {partition: committed.offset for partition, committed in found.items()}
        unknown = self._positions.unknown()
        unknown = self._cluster.retrying(lambda: self._reach.within(unknown), 'Metadata')
        if unknown:
            self._positions.offsets |= self._list_offsets(unknown)
        return NEVER_MS

    def _list_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets that auto.offset.reset selects. Raise KafkaError(OFFSET_OUT_OF_RANGE) if it is `none`."""
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
        """Return {name: count}: totals since the consumer was constructed, and present values.

        `records_lag` is the number of records of the assigned partitions that are not fetched yet.
        """
        self._use.check()
        return {**self._counts, 'assigned_partitions': len(self._positions),
                'records_lag': self._lags.total(self._positions)}

    # ---- the group

    def offsets_to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that a commit would store: the position of each partition after the returned records."""
        return self._positions.to_commit()

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commit `offsets`, or the positions by default. Raise KafkaError (such as ILLEGAL_GENERATION) after a
        rebalance.
        """
        self._use.check()
        wanted = self.offsets_to_commit() if offsets is None else as_offsets(offsets)
        self._group().commit(wanted)

    def close(self, commits: bool | None = None, timeout_ms: int | None = None) -> None:
        """Commit the positions if `commits` is true, and leave the group. `commits` defaults to enable.auto.commit.

        The call takes at most `timeout_ms` (default: 30 s), including the logins of new connections. Raise KafkaError
        or ClientError if the commit gets no answer in that time, or cannot be sent because a heartbeat is unanswered.
        If the coordinator does not answer, the group removes the member when its session times out. With a timeout of
        0, nothing is committed and the session times out, too. In a forked process, the connections are closed without
        sending anything.
        """
        limit_ms = CLOSE_TIMEOUT_MS if timeout_ms is None else milliseconds_of(timeout_ms, 'timeout_ms')
        if self._use.is_refused:
            self._close_connections()
            return
        self._check_use()
        if commits is None:
            commits = self.settings.enable_auto_commit
        try:
            self._fetcher.close()
            if self._session is not None:
                self._session.leave(commits and limit_ms > 0, limit_ms)
        finally:
            self._use.end()
            self._close_connections()

    def _close_connections(self) -> None:
        self._fetcher.close()
        if self._session is not None:
            self._session.close()
        if self._owns_cluster:
            self._cluster.close()

    def _check_use(self) -> None:
        """Raise RuntimeError if `ExclusiveUse` refuses the calling thread, or if a listener is the caller."""
        self._use.check()
        if self._session is not None and self._session.calls.is_running:
            raise RuntimeError('found a poll, a close or another subscription in a call of a RebalanceListener, '
                               'expected it after the call')

    def _group(self) -> GroupSession:
        if self._session is None:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, 'found a consumer without group.id, expected one')
        return self._session

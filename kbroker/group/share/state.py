"""The share coordinator. It stores the share states, which have the acknowledgements of share groups, in
`__share_group_state`.

The leader of a share partition (`share/partitions`) reads the state when it loads the share partition. The leader
writes each change to the state before it answers the client. The states in memory are a replay of the log: a row
changes them when it is durable. A new row may build on rows in flight, although readers do not see the effect of these
rows yet.

If nothing was written to a share partition for five minutes, a snapshot replaces its updates. Then the log is deleted
up to the oldest snapshot that is still needed.
"""
from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kbroker.base.clock import Clock, Timers, is_over
from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
from kbroker.base.internal_topics import SHARE_GROUP_STATE
from kbroker.base.lean_dataclasses import replace
from kbroker.base.long_work import LongWork, Pace
from kbroker.base.object_memory import memory_of
from kbroker.group.memory import GroupMemory
from kbroker.group.share.rows import (
    STATE_BYTES,
    UNKNOWN_COUNT,
    UNKNOWN_OFFSET,
    Changes,
    Row,
    ShareKey,
    ShareState,
    read_row,
    snapshot_row,
    tombstone,
    update_row,
    with_changes,
)
from kbroker.metadata.changes import Steps
from kbroker.protocol.rows import NewerRowError, RowError
from kbroker.record.batch import BatchHeader, encode_batch
from kbroker.record.records import decode_records
from kbroker.topics.partition import APPEND_ERRORS, Partition
from kbroker.topics.partitioner import partition_for
from kbroker.topics.registry import TopicRegistry
from kbroker.topics.topic import Topic

logger = logging.getLogger(__name__)

SNAPSHOT_INTERVAL_MS = 300_000
"""The time without a write after which a snapshot replaces the updates of a share partition. The sweep that finds share
partitions without a write runs at the same interval."""
ROWS_TOGETHER = 32
"""The largest number of rows that one part of long work appends, as one batch."""

BATCHES_TOGETHER = 2_000
"""When the snapshots in one part of long work have this number of batches of records together, no further snapshot is
added to the part."""

Done = Callable[[KafkaError | None], object]


class PendingRow(NamedTuple):
    """A row to append, with the state of its share partition after this row. The state is None after a tombstone."""

    key: ShareKey
    state: ShareState | None
    row: Row


class RowTimes:
    """The times of rows and of dead letters.

    After a crash, the broker searches the dead-letter queues for the dead letters of the records that wait for one. A
    time tells those of a share state from older ones, for example of a deleted group with the same name. So these times
    must not go back when the wall clock does.
    """

    def __init__(self, clock: Clock):
        self._clock = clock
        self.latest_ms = 0
        """A time that is not before any row of an earlier start, and not before any dead letter."""

    def note(self, time_ms: int) -> None:
        """Note the time of a dead letter, or of a row that was read from the log."""
        self.latest_ms = max(self.latest_ms, time_ms)

    def of_row(self) -> int:
        """Return the time of the next row. It is not before any dead letter."""
        return max(self._clock.wall_ms(), self.latest_ms)

    def of_new_state(self) -> int:
        """Return the time of a new share state. It is after all dead letters."""
        return max(self._clock.wall_ms(), self.latest_ms + 1)


class ShareStateShard:
    """One partition of `__share_group_state`. `states` has the durable states of its share partitions."""

    def __init__(self, partition: Partition, times: RowTimes, memory: GroupMemory):
        self.partition = partition
        self.states: dict[ShareKey, ShareState] = {}
        self._times = times
        self._memory = memory
        self._in_flight: dict[ShareKey, ShareState | None] = {}
        self._appended: deque[tuple[int, Sequence[PendingRow]]] = deque()

    def load(self) -> None:
        """Replay the log. After that, each appended batch is replayed when it is durable. Raise CorruptLogError if the
        log cannot be read."""
        self.partition.replay_all(self.replay)
        self.partition.set_replayer(self.replay)

    def forget(self) -> None:
        """Remove all states from memory, because the partition is closed or deleted."""
        for key in list(self.states):
            self._set(key, None)

    def newest(self, key: ShareKey) -> ShareState | None:
        """Return the state after the last appended row of a share partition, on which its next row builds. This row may
        be in flight."""
        return self._in_flight[key] if key in self._in_flight else self.states.get(key)

    def is_settled(self, key: ShareKey) -> bool:
        """Return whether no row of the share partition is in flight."""
        return key not in self._in_flight

    def append(self, changes: Sequence[PendingRow], done: Done) -> None:
        """Append the rows as one batch. Call `done` with None when the rows are durable and applied in memory, or with
        the error."""
        base_offset = self.partition.log_end_offset
        before = {change.key: self.newest(change.key) for change in changes if not self.is_settled(change.key)}
        entry = (base_offset, tuple(
            change if change.state is None or change.state.updates else
            change._replace(state=replace(change.state, snapshot_offset=base_offset + number))
            for number, change in enumerate(changes)))
        # The entry in `_appended` is added before the append, because the batch may be durable and replayed before the
        # append returns.
        self._appended.append(entry)
        for change in entry[1]:
            self._in_flight[change.key] = change.state
        row_ms = self._times.of_row()
        try:
            self.partition.append_batch(encode_batch([(row_ms, *change.row) for change in changes]))
        except KafkaError as error:
            self._appended.remove(entry)
            for change in changes:
                del self._in_flight[change.key]
            self._in_flight.update(before)
            done(client_error(error))
            return
        self.partition.when_durable(self.partition.log_end_offset,
                                    lambda error: done(None if error is None else client_error(error)))

    def when_settled(self, done: Done) -> None:
        """Call `done` with None when all batches that were appended before this call are durable, or with the error."""
        self.partition.when_durable(self.partition.log_end_offset,
                                    lambda error: done(None if error is None else client_error(error)))

    def replay(self, header: BatchHeader, batch: Any) -> None:
        """Apply one durable batch of the log to the states. A batch that this shard has appended itself is not
        decoded."""
        if header.is_control:
            return
        if self._appended and self._appended[0][0] == header.base_offset:
            for change in self._appended.popleft()[1]:
                self._set(change.key, change.state)
                if self._in_flight.get(change.key, change) is change.state:
                    del self._in_flight[change.key]
            return
        self._times.note(header.max_timestamp_ms)
        for record in decode_records(batch):
            try:
                found = read_row(self.states, record)
            except NewerRowError as error:
                raise CorruptLogError(f'{SHARE_GROUP_STATE}-{self.partition.partition}: the row at offset '
                                      f'{record.offset} cannot be read: {error}') from error
            except RowError as error:
                logger.warning('%s-%d, offset %d: skipped, %s', SHARE_GROUP_STATE, self.partition.partition,
                               record.offset, error)
                continue
            if found is not None:
                self._set(*found)

    def _set(self, key: ShareKey, state: ShareState | None) -> None:
        before = self.states.get(key)
        name_bytes = memory_of(key.group_id)
        held_bytes = 0 if before is None else -before.held_bytes - name_bytes
        if state is None:
            self.states.pop(key, None)
        else:
            self.states[key] = state
            held_bytes += state.held_bytes + name_bytes
        self._memory.hold(held_bytes)

    def prune(self) -> None:
        """Delete the records of the log before the oldest snapshot that a restart needs."""
        if self._appended:
            return
        # The last row is always kept: a restart reads from it which times were used (`RowTimes`).
        needed = min((state.snapshot_offset for state in self.states.values()),
                     default=self.partition.high_watermark - 1)
        if needed > self.partition.log_start_offset:
            self.partition.delete_records(needed)


class ShareStates:
    """The states of all share partitions.

    The operations with an argument `done` do not raise errors. They pass a KafkaError to `done`, which may be called
    before the operation returns:

    - COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: the log cannot be written.
    - COORDINATOR_LOAD_IN_PROGRESS: there is no memory for another share partition.
    - UNKNOWN_TOPIC_OR_PARTITION, FENCED_STATE_EPOCH, FENCED_LEADER_EPOCH, INVALID_REQUEST: see the documentation of
      each operation.

    `updates_per_snapshot` returns the setting share.coordinator.snapshot.update.records.per.snapshot. `on_reset` is
    called with the key of each share partition whose state was initialized again or deleted.
    """

    def __init__(self, clock: Clock, timers: Timers, topics: TopicRegistry, long_work: LongWork, memory: GroupMemory,
                 updates_per_snapshot: Callable[[], int]):
        self._updates_per_snapshot = updates_per_snapshot
        self._clock = clock
        self.times = RowTimes(clock)
        self._timers = timers
        self._topics = topics
        self._long_work = long_work
        self._memory = memory
        self._shards: list[ShareStateShard] = []
        self._stop_timer: Callable[[], None] | None = None
        self._is_sweeping = False
        self.on_reset: list[Callable[[ShareKey], object]] = []

    def start(self) -> None:
        """Load all states, and start the timer of the sweep. Raise CorruptLogError if the log cannot be read."""
        self._topics.on_topic_created.append(self._on_topic_created)
        self._topics.on_topic_deleted.append(self._on_topic_deleted)
        topic = self._topics.topic(SHARE_GROUP_STATE)
        if topic is not None:
            self._load(topic)
            self._long_work.start(self._forget_deleted_topics())
        self._stop_timer = self._timers.every(SNAPSHOT_INTERVAL_MS, self.sweep)

    def close(self) -> None:
        """Stop the timer of the sweep, and forget all states. Operations after this call fail with NOT_COORDINATOR."""
        if self._stop_timer is not None:
            self._stop_timer()
            self._stop_timer = None
        for shard in self._shards:
            shard.forget()
        self._shards = []

    # ---- operations

    def initialize(self, starts: Mapping[ShareKey, int], state_epoch: int,
                   done: Callable[[dict[ShareKey, KafkaError]], object]) -> None:
        """Initialize the states of share partitions. If a share partition already has a state, its acknowledgements are
        lost.

        `starts` maps each share partition to the offset at which its group starts to read; -1 means that
        `share.auto.offset.reset` decides. Create `__share_group_state` if it does not exist. When all states are
        durable or have failed, call `done` with {key: error} for the share partitions that failed. The error is
        UNKNOWN_TOPIC_OR_PARTITION, or FENCED_STATE_EPOCH if the existing state has a higher state epoch.
        """
        try:
            self._topics.ensure_internal(SHARE_GROUP_STATE)
        except KafkaError as error:
            refusal = client_error(error)
            done(dict.fromkeys(starts, refusal))
            return
        self._in_parts(starts, lambda shard, key: self._initialized(shard, key, state_epoch, starts[key]), done)

    def read(self, key: ShareKey, leader_epoch: int,
             done: Callable[[KafkaError | None, ShareState | None], object]) -> None:
        """Pass the durable state of a share partition to `done`, because the partition's leader loads the share
        partition.

        If `leader_epoch` is higher than the state's leader epoch, it is first written to the state. If it is lower, the
        error is FENCED_LEADER_EPOCH. If the state was never initialized, the error is INVALID_REQUEST.
        """
        try:
            if self._topics.topic(SHARE_GROUP_STATE) is None:
                raise not_initialized(key)
            shard = self._shard(key)
        except KafkaError as error:
            done(error, None)
            return

        def answer(error: KafkaError | None) -> None:
            state = shard.states.get(key)
            if error is None and state is None:
                error = not_initialized(key)
            done(error, None if error is not None else state)

        known = shard.newest(key)
        if known is None:
            answer(None if shard.is_settled(key) else not_initialized(key))
        elif known.leader_epoch > leader_epoch:
            done(fenced_leader(known.leader_epoch, leader_epoch), None)
        elif known.leader_epoch < leader_epoch:
            self._write(shard, key, known, Changes(known.state_epoch, leader_epoch, UNKNOWN_OFFSET,
                                                   known.delivery_complete_count, ()), answer)
        elif shard.is_settled(key):
            answer(None)
        else:
            shard.when_settled(answer)

    def write(self, key: ShareKey, changes: Changes, done: Done) -> None:
        """Write changes that the leader of a share partition has made. Call `done` with None when the changes are
        durable, or with one of these errors:

        - INVALID_REQUEST: the state was never initialized.
        - FENCED_LEADER_EPOCH, FENCED_STATE_EPOCH: the epoch in `changes` is lower than that of the state.
        - UNKNOWN_TOPIC_OR_PARTITION: the partition does not exist.
        """
        try:
            shard = self._shard(key)
            known = shard.newest(key)
            if known is None:
                raise not_initialized(key)
            if known.leader_epoch > changes.leader_epoch:
                raise fenced_leader(known.leader_epoch, changes.leader_epoch)
            if known.state_epoch > changes.state_epoch:
                raise fenced_state(known.state_epoch, changes.state_epoch)
            self._check_partition(key)
        except KafkaError as error:
            done(error)
        else:
            self._write(shard, key, known, changes, done)

    @property
    def is_served(self) -> bool:
        """True if `__share_group_state` exists. Without this topic, no share partition has a state."""
        return bool(self._shards)

    def summary(self, key: ShareKey) -> ShareState | None:
        """Return the durable state of a share partition; None if it was never initialized.

        Callers only use the state's epochs, start offset and delivery complete count. Raise NOT_COORDINATOR if
        `__share_group_state` does not exist.
        """
        return self._shard(key).states.get(key)

    def keys_of(self, group_id: str) -> Steps[list[ShareKey]]:
        """Return the share partitions of a group that have a state. This is a generator, which searches in parts."""
        pace = Pace()
        found = []
        for shard in list(self._shards):
            for key in list(shard.states):
                if key.group_id == group_id:
                    found.append(key)
                if pace.spend():
                    yield
        return found

    def is_archiving(self, key: ShareKey) -> bool:
        """Return whether records of a share partition wait for their dead letters, by its durable state."""
        state = self._shard(key).states.get(key) if self._shards else None
        return state is not None and state.is_archiving

    def archiving_since(self, key: ShareKey, first: int, last: int) -> int | None:
        """Return the earliest time of the dead letters of a share partition, in ms. Return None if not all records from
        `first` to `last` wait for their dead letters. This counts rows in flight, for example of an initialization."""
        state = self._shard(key).newest(key) if self._shards else None
        return state.created_ms if state is not None and state.is_archiving_all(first, last) else None

    def archiving_keys(self) -> Steps[list[ShareKey]]:
        """Return the share partitions with records that wait for their dead letters, as a generator, which searches in
        parts."""
        pace = Pace()
        found = []
        for shard in list(self._shards):
            for key, state in list(shard.states.items()):
                if state.is_archiving:
                    found.append(key)
                if pace.spend(1 + len(state.batches)):
                    yield
        return found

    def delete(self, keys: Sequence[ShareKey], done: Callable[[dict[ShareKey, KafkaError]], object]) -> None:
        """Delete the states of share partitions. When the deletions are durable or have failed, call `done` with {key:
        error} for the share partitions that failed.

        A share partition that has no state counts as deleted.
        """
        if not self._shards:
            done({})        # `__share_group_state` does not exist, so no share partition has a state
            return
        self._in_parts(keys, self._deleted, done)

    # ---- rows

    def _initialized(self, shard: ShareStateShard, key: ShareKey, state_epoch: int, start_offset: int) -> PendingRow:
        known = shard.newest(key)
        if known is not None and known.state_epoch > state_epoch:
            raise fenced_state(known.state_epoch, state_epoch)
        self._check_partition(key)
        if known is None:
            self._memory.check(STATE_BYTES)
        new_ms = self.times.of_new_state()
        state = ShareState(
            0 if known is None else known.snapshot_epoch + 1, state_epoch, 0, start_offset,
            UNKNOWN_COUNT if start_offset == UNKNOWN_OFFSET else 0, new_ms, written_ms=new_ms)
        return PendingRow(key, state, snapshot_row(key, state))

    def _deleted(self, shard: ShareStateShard, key: ShareKey) -> PendingRow | None:
        return None if shard.newest(key) is None else PendingRow(key, None, tombstone(key))

    def _write(self, shard: ShareStateShard, key: ShareKey, known: ShareState, changes: Changes, done: Done) -> None:
        now_ms = self._clock.wall_ms()
        state = with_changes(known, changes, now_ms)
        if known.updates >= self._updates_per_snapshot():
            # A record that waits for its dead letter keeps the time since which the dead letter may exist.
            created_ms = state.created_ms if state.is_archiving else max(state.created_ms, now_ms)
            shard.append([self._snapshot(key, replace(state, created_ms=created_ms))], done)
            return
        state = replace(state, updates=known.updates + 1)
        shard.append([PendingRow(key, state, update_row(key, known.snapshot_epoch, changes))], done)

    def _snapshot(self, key: ShareKey, state: ShareState) -> PendingRow:
        state = replace(state, snapshot_epoch=state.snapshot_epoch + 1, updates=0)
        return PendingRow(key, state, snapshot_row(key, state))

    def _in_parts(self, keys: Iterable[ShareKey], change: Callable[[ShareStateShard, ShareKey], PendingRow | None],
                  done: Callable[[dict[ShareKey, KafkaError]], object]) -> None:
        """For each key, append the row that `change(shard, key)` returns, as long work. The rows of one shard are
        appended in batches."""
        failed: dict[ShareKey, KafkaError] = {}
        waiting = 1     # appends in progress, and the work that starts them

        def landed(part: Sequence[PendingRow], error: KafkaError | None) -> None:
            nonlocal waiting
            waiting -= 1
            for key, _, _ in part:
                if error is None:
                    self._reset(key)
                else:
                    failed[key] = error
            if not waiting:
                done(failed)

        def append(shard: ShareStateShard, part: Sequence[PendingRow]) -> None:
            nonlocal waiting
            waiting += 1
            shard.append(part, lambda error: landed(part, error))

        def work() -> Steps[None]:
            for same_shard in self._by_shard(keys):
                for start in range(0, len(same_shard), ROWS_TOGETHER):
                    part: list[PendingRow] = []
                    shard = None
                    for key in same_shard[start:start + ROWS_TOGETHER]:
                        try:
                            shard = self._shard(key)
                            changed = change(shard, key)
                        except KafkaError as error:
                            failed[key] = error
                            continue
                        if changed is not None:
                            part.append(changed)
                    if part and shard is not None:
                        append(shard, part)
                    yield
            landed((), None)

        self._long_work.start(work())

    def _by_shard(self, keys: Iterable[ShareKey]) -> Iterable[list[ShareKey]]:
        found: dict[int, list[ShareKey]] = {}
        for key in dict.fromkeys(keys):
            found.setdefault(self._shard_number(key) if self._shards else 0, []).append(key)
        return found.values()

    def _reset(self, key: ShareKey) -> None:
        for listener in self.on_reset:
            listener(key)

    def _shard(self, key: ShareKey) -> ShareStateShard:
        if not self._shards:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f'{SHARE_GROUP_STATE} does not exist yet')
        return self._shards[self._shard_number(key)]

    def _shard_number(self, key: ShareKey) -> int:
        return partition_for(key.coordinator_key, len(self._shards))

    def _check_partition(self, key: ShareKey) -> None:
        topic = self._topics.topic_by_id(key.topic_id)
        if topic is None or not 0 <= key.partition < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                             f'{key.coordinator_key} is no partition of an existing topic')

    # ---- snapshots after a time without writes

    def sweep(self) -> None:
        """Start a sweep, which writes snapshots of share partitions that were not written for SNAPSHOT_INTERVAL_MS, and
        prunes the logs. Do nothing if a sweep is in progress."""
        if not self._is_sweeping:
            self._is_sweeping = True
            self._long_work.start(self._sweep())

    def _sweep(self) -> Steps[None]:
        for shard in list(self._shards):
            now_ms = self._clock.wall_ms()
            quiet = [key for key, state in shard.states.items()
                     if state.updates and is_over(SNAPSHOT_INTERVAL_MS, state.written_ms, now_ms)
                     and shard.is_settled(key)]
            for keys in in_parts(quiet, shard.states):
                self._append_snapshots(shard, keys)
                yield
            if not quiet:
                shard.prune()
            yield
        self._is_sweeping = False

    def _append_snapshots(self, shard: ShareStateShard, keys: Sequence[ShareKey]) -> None:
        now_ms = self._clock.wall_ms()
        changes = [self._snapshot(key, replace(shard.states[key], written_ms=now_ms))
                   for key in keys if key in shard.states and shard.is_settled(key)]
        if changes and shard in self._shards:
            shard.append(changes, self._log_failure)

    # ---- topics

    def _load(self, topic: Topic) -> None:
        self._shards = [ShareStateShard(partition, self.times, self._memory) for partition in topic.partitions]
        for shard in self._shards:
            shard.load()
        logger.info('%d share partitions loaded', sum(len(shard.states) for shard in self._shards))

    def _on_topic_created(self, topic: Topic) -> None:
        """Load the partitions of `__share_group_state` when this topic is created. If partitions are added to the topic
        later, they are ignored until the broker restarts, because they change the shards of keys."""
        if topic.name == SHARE_GROUP_STATE and not self._shards:
            self._load(topic)

    def _on_topic_deleted(self, topic: Topic) -> None:
        if topic.name == SHARE_GROUP_STATE:
            for shard in self._shards:
                shard.forget()
            self._shards = []
        else:
            self._long_work.start(self._forget(lambda topic_id: topic_id == topic.topic_id))

    def _forget_deleted_topics(self) -> Steps[None]:
        """Delete the states of share partitions whose topics do not exist. States of this kind remain if the broker
        crashed after the deletion of a topic and before the deletion of its share states."""
        return self._forget(lambda topic_id: self._topics.topic_by_id(topic_id) is None)

    def _forget(self, is_deleted: Callable[[bytes], bool]) -> Steps[None]:
        for shard in list(self._shards):
            keys = [key for key in shard.states if is_deleted(key.topic_id)]
            if keys and not shard.partition.is_deleted:
                self.delete(keys, self._log_failures)
            yield

    def _log_failures(self, failed: dict[ShareKey, KafkaError]) -> None:
        for error in failed.values():
            self._log_failure(error)

    def _log_failure(self, error: KafkaError | None) -> None:
        if error is not None:
            logger.error('rows of %s were not stored: %s', SHARE_GROUP_STATE, error)


def in_parts(keys: Sequence[ShareKey], states: Mapping[ShareKey, ShareState]) -> Iterable[list[ShareKey]]:
    """Yield the keys in parts, so that the snapshots of one part are few and have few batches together: a part ends
    with ROWS_TOGETHER keys or BATCHES_TOGETHER batches."""
    part: list[ShareKey] = []
    batches = 0
    for key in keys:
        part.append(key)
        batches += len(states[key].batches) if key in states else 0
        if len(part) >= ROWS_TOGETHER or batches >= BATCHES_TOGETHER:
            yield part
            part, batches = [], 0
    if part:
        yield part


def client_error(error: KafkaError) -> KafkaError:
    """Convert the error of a failed append to the error that clients of the coordinator get."""
    return KafkaError(APPEND_ERRORS.get(error.code, error.code), str(error))


def not_initialized(key: ShareKey) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f'{key.coordinator_key} was never initialized')


def fenced_leader(known: int, found: int) -> KafkaError:
    return KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f'leader epoch {known} expected, found {found}')


def fenced_state(known: int, found: int) -> KafkaError:
    return KafkaError(ErrorCode.FENCED_STATE_EPOCH, f'state epoch {known} expected, found {found}')

"""The share partitions in memory: the tracked records of a share group in a partition that this broker leads. The first
fetch of a share partition loads its state from the share coordinator. Acquisitions are kept in memory only. An
acknowledgement or a release is first written to the share coordinator's log, then applied in memory, then answered. A
share partition that no member has fetched for a while is removed from memory; the next fetch loads it again.

If the group has a dead-letter queue, `share/dead_letters` writes the dead letters of records that become ARCHIVING. A
share partition with ARCHIVING records is loaded without a fetch, too: at the start of the broker, and when it was
removed from memory for another reason than a fetch's absence.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker.base.clock import Clock, Timer, Timers
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import LongWork, Pace
from kbroker.base.object_memory import memory_of
from kbroker.group.config import GroupConfig
from kbroker.group.memory import GroupMemory
from kbroker.group.share.batches import read_batches
from kbroker.group.share.limits import FetchLimits, Wanted
from kbroker.group.share.partition import Change, SharePartition
from kbroker.group.share.queues import DeadLetterQueues
from kbroker.group.share.rows import UNKNOWN_COUNT, UNKNOWN_OFFSET, Changes, ShareKey, ShareState
from kbroker.group.share.sessions import ShareSession, ShareSessions
from kbroker.group.share.state import ShareStates
from kbroker.log.segments import LogSlice
from kbroker.log.timestamps import INLINE, Searches
from kbroker.metadata.changes import Steps
from kbroker.security.escape import shown
from kbroker.settings.groups import BY_DURATION
from kbroker.topics.partition import Partition

if TYPE_CHECKING:
    from kbroker.group.share.dead_letters import DeadLetters

logger = logging.getLogger(__name__)

LIVE_BYTES = 2_000
"""An upper bound for the memory of a share partition without its runs and member ids, in bytes."""
IDLE_MS = 45_000
"""The time without a fetch after which a share partition is removed from memory. It equals the default session timeout
of a share group."""
MOST_TRIES = 8
"""The largest number of reads by one fetch. A fetch reads again if it found only records of aborted transactions."""

RETRY_MS = 1_000
"""The pause in ms before the end of a lock is stored again if this failed, and before a share partition with ARCHIVING
records that was removed from memory is loaded again."""
LOAD_RETRY_MS = 30_000
"""The pause in ms before the broker tries again to load a share partition with ARCHIVING records."""
JOB_BYTES = 400
"""An upper bound for the memory of a range of records that waits for its dead letters, in bytes."""

RELEASED_AT_ONCE = 64
"""The number of a session's partitions that are released in one part of long work."""

COORDINATOR_GONE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE,
                              ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
FENCED = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH})
AS_THEY_ARE = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})

Done = Callable[[KafkaError | None], object]
AcknowledgedBatch = tuple[int, int, Sequence[int]]
"""(first offset, last offset, types). `types` has either one type for all records of the batch, or one type for each
record."""


class Waiting(Protocol):
    """A fetch that waits until a share partition is loaded or has records to acquire."""

    def wake(self) -> object: ...


class Fetched(NamedTuple):
    """The batches that contain the acquired records, and the acquired ranges: (first offset, last offset, delivery
    count)."""

    records: LogSlice
    acquired: list[tuple[int, int, int]]


class LivePartition:
    """A share partition in memory. `records` is None while its state is being loaded. `jobs` is at least the number of
    ranges of records that wait for their dead letters."""

    def __init__(self, key: ShareKey, partition: Partition):
        self.key = key
        self.partition = partition
        self.records: SharePartition | None = None
        self.state_epoch = 0
        self.timer: Timer | None = None
        self.waiting: set[Waiting] = set()
        self.is_dropped = False
        self.used_ms = 0
        self.held_bytes = 0
        self.jobs = 0

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, set()
        for each in waiting:
            each.wake()


class SharePartitions:
    """All share partitions in memory. `config_of(group_id)` returns the configs in force for a group."""

    def __init__(self, states: ShareStates, sessions: ShareSessions, clock: Clock, timers: Timers,
                 long_work: LongWork, memory: GroupMemory, config_of: Callable[[str], GroupConfig],
                 searches: Searches = INLINE):
        self.config_of = config_of
        self._sessions = sessions
        self._states = states
        self._clock = clock
        self._timers = timers
        self._long_work = long_work
        self._memory = memory
        self._searches = searches
        self._live: dict[ShareKey, LivePartition] = {}
        self._stop_timer: Callable[[], None] | None = None
        self._queues: DeadLetterQueues | None = None
        self._writes_dead_letters = False
        self._letters: DeadLetters | None = None
        self._resume_timer: Timer | None = None
        self._is_loading = False
        self.acquired_records = self.redelivered_records = 0
        """The records that members have acquired since the start of the broker, and those of them that had been
        delivered before."""

    def __len__(self) -> int:
        return len(self._live)

    def all(self) -> list[LivePartition]:
        """Return all share partitions in memory, in the order in which their loads began."""
        return list(self._live.values())

    def start(self, queues: DeadLetterQueues) -> None:
        """Start the timers, and load the share partitions with ARCHIVING records. `queues` has the topics of the dead
        letters."""
        self._queues = queues
        self._writes_dead_letters = True
        self._states.on_reset.append(self._on_reset)
        self._sessions.on_end.append(self._release_and_drop)
        self._sessions.on_leave.append(self._drop_unused)
        self._stop_timer = self._timers.every(IDLE_MS, lambda: self._long_work.start(self._drop_idle()))
        self._resume_after(0)

    def dead_letter_counts(self) -> Steps[dict[str, int]]:
        """Return, as long work, the number of records in memory that wait for their dead letters, and the counts of
        `DeadLetters`."""
        waiting, pace = 0, Pace()
        for live in self.all():
            ranges = live.records.archiving() if live.jobs and live.records is not None else []
            waiting += sum(last - first + 1 for first, last, _ in ranges)
            if pace.spend(1 + len(ranges)):
                yield
        letters = self._letters
        written, refused, failures = (0, 0, 0) if letters is None else (
            letters.written, letters.refused, letters.failures)
        return {'waiting': waiting, 'written': written, 'refused': refused, 'failures': failures}

    @property
    def is_resuming(self) -> bool:
        """True while share partitions with ARCHIVING records are loaded, or their dead letters are searched for."""
        return (self._resume_timer is not None or self._is_loading or self.dead_letters().is_searching
                or any(live.records is None for live in self._live.values()))

    def stop_dead_letters(self) -> None:
        """Write no more dead letters, because the broker stops. Records still become ARCHIVING, and the next start
        continues with them."""
        self._writes_dead_letters = False
        if self._letters is not None:
            self._letters.stop()
        if self._resume_timer is not None:
            self._resume_timer.cancel()
            self._resume_timer = None

    def close(self) -> None:
        """Remove all share partitions from memory, because the log directory has failed."""
        if self._stop_timer is not None:
            self._stop_timer()
            self._stop_timer = None
        self.stop_dead_letters()
        for live in list(self._live.values()):
            self._drop(live)

    def find(self, key: ShareKey) -> LivePartition:
        """Return a share partition that a fetch has loaded. Raise UNKNOWN_TOPIC_OR_PARTITION if it is not in memory or
        not loaded yet."""
        live = self._live.get(key)
        if live is None or live.records is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 'the share partition is not known: fetch it first')
        return live

    def open(self, key: ShareKey, partition: Partition) -> LivePartition:
        """Return a share partition for a fetch. If it is not in memory, begin to load it. When it is loaded, the
        fetches in its `waiting` are woken.

        Raise KafkaError, with a code for the client, if it is already known that the share partition cannot be loaded.
        """
        live = self._live.get(key)
        if live is not None and live.partition is not partition:
            self._drop(live)
            live = None
        if live is None:
            live = self._load(key, partition)
        live.used_ms = self._clock.monotonic_ms()
        return live

    # ---- load

    def _load(self, key: ShareKey, partition: Partition) -> LivePartition:
        try:
            self._memory.check(LIVE_BYTES + memory_of(key.group_id))
        except KafkaError as error:
            raise for_client(error) from None
        live = LivePartition(key, partition)
        failure: KafkaError | None = None

        def read(error: KafkaError | None, state: ShareState | None) -> None:
            if error is None and state is not None and not live.is_dropped:
                self._choose_start(live, state, loaded)
            else:
                loaded(error, None)

        def loaded(error: KafkaError | None, state: ShareState | None) -> None:
            nonlocal failure
            if live.is_dropped:
                return
            if error is not None or state is None:
                failure = error and error.with_traceback(None)
                self._drop(live)
                return
            live.state_epoch = state.state_epoch
            live.records = SharePartition(state.start_offset, state.batches)
            self._count(live)
            live.wake()
            self._resume_dead_letters(live, state.created_ms)

        self._live[key] = live
        self._count(live)
        self._states.read(key, partition.leader_epoch, read)
        if failure is not None:
            raise for_client(failure)
        return live

    def _choose_start(self, live: LivePartition, state: ShareState,
                      loaded: Callable[[KafkaError | None, ShareState | None], None]) -> None:
        """Choose the start offset by `share.auto.offset.reset` if the share state has none.

        Write the chosen offset before it is used, unless `share.auto.offset.reset` is earliest. If the offset were not
        stored, a different offset could be chosen after a crash. Records that were acquired and not acknowledged could
        then be skipped.
        """
        if state.start_offset != UNKNOWN_OFFSET:
            loaded(None, state)
            return
        reset = self.config_of(live.key.group_id).share_auto_offset_reset
        if reset == 'earliest':
            loaded(None, state_with_start(state, live.partition.log_start_offset))
            return

        def found(error: Exception | None, start_offset: int | None) -> None:
            if error is not None and not isinstance(error, KafkaError):
                raise error
            if start_offset is None or live.is_dropped:
                loaded(error, None)
                return
            chosen = state_with_start(state, start_offset)
            changes = Changes(state.state_epoch, live.partition.leader_epoch, start_offset,
                              max(0, state.delivery_complete_count), ())
            self._states.write(live.key, changes, lambda error: loaded(error, None if error is not None else chosen))

        self._long_work.start(start_offset_of(reset, live.partition, self._clock.wall_ms(), self._searches), found)

    # ---- fetch

    def is_acquirable(self, live: LivePartition) -> bool:
        """Return whether a member may acquire records within the limit of record locks. Return False while the share
        partition is being loaded."""
        config = self.config_of(live.key.group_id)
        return live.records is not None and live.records.is_acquirable(config.share_partition_max_record_locks)

    def acquirable_bytes(self, live: LivePartition, max_bytes: int) -> int:
        """Return an estimate of the size in bytes of the records that a fetch could acquire. Raise KafkaError if the
        log cannot be read.
        """
        records = live.records
        if records is None:
            return 0
        config = self.config_of(live.key.group_id)
        self._adopt_log_start(live)
        offset, upper_bound_offset = records.next_fetch_offset(), upper_bound(live.partition, config)
        if offset >= upper_bound_offset or not records.is_acquirable(config.share_partition_max_record_locks):
            return 0
        found = live.partition.read(offset, max_bytes, upper_bound_offset, True)
        return 0 if found is None else found.size_bytes

    def awaits_disk(self, live: LivePartition) -> bool:
        """Return whether the next record that a member can acquire has been acknowledged to its producer, but is not
        durable yet."""
        partition = live.partition
        return live.records is not None and (
            partition.high_watermark <= live.records.next_fetch_offset() < partition.acknowledged_offset)

    def fetch(self, live: LivePartition, member_id: str, limits: FetchLimits) -> Fetched | None:
        """Acquire records for a member. Return None if no record can be acquired. Raise KafkaError if the log cannot be
        read."""
        records = live.records
        if records is None:
            return None
        config = self.config_of(live.key.group_id)
        max_record_locks = config.share_partition_max_record_locks
        upper_bound_offset = upper_bound(live.partition, config)
        wanted = Wanted(limits.max_records, limits.batch_size, limits.is_exact, max_record_locks,
                        config.share_delivery_count_limit)
        deadline_ms = self._clock.monotonic_ms() + config.share_record_lock_duration_ms
        for _ in range(MOST_TRIES):
            self._adopt_log_start(live)
            offset = records.next_fetch_offset()
            if offset >= upper_bound_offset or not records.is_acquirable(max_record_locks):
                return None
            last_offset = records.next_offset + min(limits.max_records, max_record_locks)
            batches = read_batches(live.partition, offset, limits.max_bytes, upper_bound_offset, last_offset,
                                   is_read_committed(config))
            acquired = records.acquire(member_id, batches, wanted, deadline_ms)
            self._count(live)
            if acquired:
                for first, last, delivery_count in acquired:
                    self.acquired_records += last - first + 1
                    if delivery_count > 1:
                        self.redelivered_records += last - first + 1
                self._arm(live, deadline_ms)
                return Fetched(self._slice(live, acquired, batches), acquired)
            if records.next_fetch_offset() == offset:
                return None
        return None

    def _slice(self, live: LivePartition, acquired: list[tuple[int, int, int]],
               batches: Sequence[tuple[int, int, bool]]) -> LogSlice:
        """Return the slice of the log with the batches that contain acquired records."""
        end_offset = next(last for _, last, _ in batches if last >= acquired[-1][1]) + 1
        found = live.partition.read(acquired[0][0], 2**62, end_offset, True)
        assert found is not None
        return found

    def _adopt_log_start(self, live: LivePartition) -> None:
        """Move the start offset of the share partition up to the start of the log, if the latter is higher. The next
        write stores the new start offset."""
        assert live.records is not None
        if live.records.move_start(live.partition.log_start_offset):
            self._count(live)

    # ---- changes

    def acknowledge(self, live: LivePartition, member_id: str, batches: Iterable[AcknowledgedBatch],
                    done: Done) -> None:
        """Acknowledge records that a member has acquired. If one record cannot be acknowledged, none of them is.

        Call `done` with None when the acknowledgement is durable, or with an error for the client:
        INVALID_RECORD_STATE, INVALID_REQUEST, or the error of the write.
        """
        assert live.records is not None
        config = self.config_of(live.key.group_id)
        deadline_ms = self._clock.monotonic_ms() + config.share_record_lock_duration_ms
        try:
            change = live.records.acknowledge(member_id, batches, config.share_delivery_count_limit, deadline_ms,
                                              self._makes_dead_letters(config))
        except KafkaError as error:
            done(error)
            return
        self._count(live)
        if change is None:
            done(None)
        else:
            self._write(live, change, done)

    def release(self, key: ShareKey, member_id: str, done: Done) -> None:
        """Free all records of a share partition that a member has acquired. Call `done` when the release is durable or
        has failed."""
        live = self._live.get(key)
        change = None
        if live is not None and live.records is not None:
            config = self.config_of(key.group_id)
            change = live.records.release(member_id, config.share_delivery_count_limit,
                                          self._makes_dead_letters(config))
        if live is None or change is None:
            done(None)
        else:
            self._write(live, change, done)

    def release_session(self, session: ShareSession, done: Callable[[], object]) -> None:
        """Free all records that the member of an ended session has acquired. Call `done` when all releases are durable
        or have failed.

        The records of a session with many partitions are released in parts. If the member begins a new session before
        the last part, the remaining parts are skipped, because their records may have been acquired in the new session.
        Records that are skipped stay acquired until their locks end.
        """
        waiting = 1     # releases in progress, and the work that starts them

        def released(error: KafkaError | None) -> None:
            nonlocal waiting
            waiting -= 1
            if error is not None:
                logger.error('records of member %s were not released: %s', session.key.member_id, error)
            if not waiting:
                done()

        def work() -> Steps[None]:
            nonlocal waiting
            for number, place in enumerate(session.partitions):
                if number % RELEASED_AT_ONCE == RELEASED_AT_ONCE - 1:
                    yield
                    if session.key in self._sessions:
                        break
                waiting += 1
                self.release(ShareKey(session.key.group_id, *place), session.key.member_id, released)
            released(None)

        self._long_work.start(work())

    def _write(self, live: LivePartition, change: Change, done: Done) -> None:
        """Write a change of records, and call `done` with the result. Adopt the change when it is durable, or abandon
        it if it cannot be written."""
        changes = Changes(live.state_epoch, live.partition.leader_epoch, change.start_offset,
                          change.delivery_complete_count, change.batches)

        def landed(error: KafkaError | None) -> None:
            if live.is_dropped or live.records is None:
                if change.dead_letters and error is None:
                    self._resume_after(RETRY_MS)
                done(None if error is None else for_client(error))
                return
            if error is None:
                live.records.adopt(change)
                self._begin_dead_letters(live, change)
            else:
                live.records.abandon(change, self._clock.monotonic_ms() + RETRY_MS)
            self._count(live)
            self._arm_next(live)
            if error is not None and error.code in COORDINATOR_GONE | FENCED | AS_THEY_ARE:
                self._drop(live)
            else:
                live.wake()
            done(None if error is None else for_client(error))

        self._states.write(live.key, changes, landed)

    # ---- dead letters

    def _makes_dead_letters(self, config: GroupConfig) -> bool:
        return self._queues is not None and self._queues.is_on(config)

    def dead_letters(self) -> DeadLetters:
        """Return the object that writes the dead letters."""
        if self._letters is None:
            # Not imported at the start of the broker: most brokers have no dead-letter queue.
            from kbroker.group.share.dead_letters import DeadLetters

            assert self._queues is not None
            self._letters = DeadLetters(self, self._states, self._queues, self._clock, self._timers,
                                             self._long_work, self._searches)
        return self._letters

    def _begin_dead_letters(self, live: LivePartition, change: Change) -> None:
        """Begin to write the dead letters of a change that is durable."""
        if change.dead_letters and self._writes_dead_letters:
            live.jobs += len(change.dead_letters)
            self.dead_letters().add(live, change.dead_letters)

    def finish_archiving(self, live: LivePartition, first: int, last: int, done: Done) -> None:
        """Archive the ARCHIVING records of a range: their dead letters are durable, or are not to be written.

        Call `done` when this is durable or has failed."""
        assert live.records is not None
        change = live.records.finish_archiving(first, last)

        def finished(error: KafkaError | None) -> None:
            self._forget_jobs(live)
            done(error)

        if change is None:
            finished(None)
        else:
            self._write(live, change, finished)

    def _forget_jobs(self, live: LivePartition) -> None:
        """Set `jobs` to 0 if no record of a share partition waits for a dead letter any more."""
        if live.jobs and live.records is not None and not live.records.is_archiving:
            live.jobs = 0
            self._count(live)

    def _resume_dead_letters(self, live: LivePartition, since_ms: int) -> None:
        """Continue with the dead letters of a share partition that has just been loaded."""
        if self._writes_dead_letters and live.records is not None and live.records.is_archiving:
            live.jobs = len(live.records.archiving())
            self._count(live)
            self.dead_letters().resume(live, since_ms)

    def _resume_after(self, delay_ms: int) -> None:
        """Load the share partitions with ARCHIVING records after a pause."""
        if self._resume_timer is None and self._writes_dead_letters:
            self._resume_timer = self._timers.after(delay_ms, self._resume)

    def _resume(self) -> None:
        self._resume_timer = None
        self._is_loading = True
        self._long_work.start(self._load_archiving())

    def _load_archiving(self) -> Steps[None]:
        for key in (yield from self._states.archiving_keys()):
            partition = None if self._queues is None else self._queues.partition_of(key)
            if key not in self._live and partition is not None and self._writes_dead_letters:
                try:
                    self.open(key, partition)
                except KafkaError as error:
                    logger.warning('the dead letters of %s-%d for share group %s are not written yet: %s',
                                   partition.topic, partition.partition, shown(key.group_id), error)
                    self._resume_after(LOAD_RETRY_MS)
            yield
        self._is_loading = False

    # ---- locks

    def _arm(self, live: LivePartition, deadline_ms: int) -> None:
        """Arm the timer of a share partition so that it ends at `deadline_ms`, unless it is already armed for an
        earlier time."""
        if live.timer is not None:
            if live.timer.deadline_ms <= deadline_ms:
                return
            live.timer.cancel()
        live.timer = self._timers.after(max(0, deadline_ms - self._clock.monotonic_ms()), lambda: self._expire(live))

    def _arm_next(self, live: LivePartition) -> None:
        deadline_ms = None if live.records is None else live.records.next_deadline_ms()
        if deadline_ms is not None:
            self._arm(live, deadline_ms)

    def _expire(self, live: LivePartition) -> None:
        """Free the records whose locks have ended, and arm the timer for the end of the next lock."""
        live.timer = None
        if live.records is None:
            return
        config = self.config_of(live.key.group_id)
        change = live.records.expire(self._clock.monotonic_ms(), config.share_delivery_count_limit,
                                     self._makes_dead_letters(config))
        self._arm_next(live)
        if change is not None:
            self._write(live, change, self._log_failure)

    def _log_failure(self, error: KafkaError | None) -> None:
        if error is not None:
            logger.error('the end of a record lock was not stored: %s', error)

    # ---- drop

    def _release_and_drop(self, session: ShareSession) -> None:
        """Free the records that a member has acquired, because its connection was closed. If its group then has no
        session, remove the group's share partitions from memory.

        As in Kafka, if a request ends the session, share partitions are removed from memory only when the connection is
        closed. Until then, records beyond the limit of record locks stay tracked for the next member.
        """
        self.release_session(session, lambda: self._drop_unused(session.key.group_id))

    def _drop_unused(self, group_id: str) -> None:
        if not self._sessions.has_group(group_id):
            self.drop_group(group_id)

    def drop_group(self, group_id: str) -> None:
        """Remove the share partitions of a group from memory, except those that a fetch waits for, and those with
        ARCHIVING records. The group must have no sessions."""
        for live in [live for key, live in self._live.items() if key.group_id == group_id]:
            if not live.waiting and not live.jobs:
                self._drop(live)

    def drop_topic(self, topic_id: bytes) -> None:
        """Remove the share partitions of a deleted topic from memory."""
        for live in [live for key, live in self._live.items() if key.topic_id == topic_id]:
            self._drop(live)

    def _on_reset(self, key: ShareKey) -> None:
        live = self._live.get(key)
        if live is not None:
            self._drop(live)

    def _drop_idle(self) -> Steps[None]:
        for number, live in enumerate(list(self._live.values())):
            self._forget_jobs(live)     # the log may have deleted the records that waited
            if self._is_idle(live):
                self._drop(live)
            if number % 64 == 63:
                yield
        yield

    def _is_idle(self, live: LivePartition) -> bool:
        """Return whether a share partition can be removed from memory: no fetch has used it for IDLE_MS, and no member
        has acquired records of it."""
        is_unused = not live.waiting and self._clock.monotonic_ms() - live.used_ms >= IDLE_MS
        return (is_unused and not live.jobs and live.records is not None
                and live.records.next_deadline_ms() is None)

    def _drop(self, live: LivePartition) -> None:
        if self._live.get(live.key) is live:
            del self._live[live.key]
        live.is_dropped = True
        live.records = None
        if live.timer is not None:
            live.timer.cancel()
            live.timer = None
        live.jobs = 0
        self._count(live)
        live.wake()
        if self._writes_dead_letters and self._states.is_archiving(live.key):
            self._resume_after(RETRY_MS)

    def _count(self, live: LivePartition) -> None:
        held_bytes = 0 if live.is_dropped else LIVE_BYTES + memory_of(live.key.group_id) + (
            0 if live.records is None else live.records.runs_bytes) + JOB_BYTES * live.jobs
        self._memory.hold(held_bytes - live.held_bytes)
        live.held_bytes = held_bytes


def is_read_committed(config: GroupConfig) -> bool:
    return config.share_isolation_level == 'read_committed'


def upper_bound(partition: Partition, config: GroupConfig) -> int:
    """Return the offset below which a share group may read records: the last stable offset or the high watermark, by
    the group's isolation level."""
    return partition.last_stable_offset if is_read_committed(config) else partition.high_watermark


def start_offset_of(reset: str, partition: Partition, now_ms: int, searches: Searches) -> Steps[int]:
    """Return the start offset of a group whose `share.auto.offset.reset` is latest or by_duration:<ISO 8601>.

    If no record is young enough for the duration, or if the config is latest, wait until all records that are
    acknowledged to their producers are durable, and return the high watermark. Raise KafkaError if the log cannot be
    read.
    """
    if reset.startswith(BY_DURATION):
        from kbroker.settings.durations import java_duration_ms  # not imported at the start of the broker

        age_ms = java_duration_ms(reset.removeprefix(BY_DURATION))
        found = yield from partition.offset_for_timestamp(max(0, now_ms - age_ms), searches)
        if found is not None:
            return int(found[1])
    yield from partition.acknowledged()
    return partition.high_watermark


def state_with_start(state: ShareState, start_offset: int) -> ShareState:
    return ShareState(state.snapshot_epoch, state.state_epoch, state.leader_epoch, start_offset,
                      0 if state.delivery_complete_count == UNKNOWN_COUNT else state.delivery_complete_count,
                      state.created_ms, state.batches)


def for_client(error: KafkaError) -> KafkaError:
    """Translate an error of the share coordinator to an error for a client that fetches or acknowledges records."""
    code = error.code
    if code in COORDINATOR_GONE:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    elif code in FENCED:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif code not in AS_THEY_ARE:
        code = ErrorCode.UNKNOWN_SERVER_ERROR
    return KafkaError(code, str(error))

"""Writes the dead letters of share groups (KIP-1191), each exactly once.

A record that needs a dead letter becomes ARCHIVING. When this is durable, its dead letter is appended to the topic of
the group's queue. When the dead letter is durable, the record becomes ARCHIVED.

A crash may come between the last two steps. So whenever a share partition is loaded with ARCHIVING records, the queues
are searched for their dead letters. A dead letter names its original record in its headers, and its time is not before
the time of the share state (`RowTimes`). If it is found, the record becomes ARCHIVED. Otherwise it is written.

If the group's configs do not allow a dead letter, the record is archived without one, as in Kafka. A warning says so.
"""
from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from kbroker.base.clock import Clock, Timer, Timers, is_over
from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass, replace
from kbroker.base.long_work import LongWork
from kbroker.group.share.dead_letter import (
    EXCEEDED,
    REJECTED,
    Built,
    Source,
    Wanted,
    build_batch,
    find_dead_letters,
    letters_with_originals,
    letters_without_originals,
)
from kbroker.group.share.queues import DeadLetterQueues, NoQueueError
from kbroker.group.share.state import ShareStates
from kbroker.log.segments import LogSlice
from kbroker.log.timestamps import Searches
from kbroker.metadata.changes import Steps
from kbroker.record.produced_records import ProduceRules
from kbroker.security.escape import shown
from kbroker.topics.partition import Partition

if TYPE_CHECKING:
    from kbroker.group.share.partitions import LivePartition, SharePartitions

logger = logging.getLogger(__name__)

RETRY_MS = 1_000
MOST_RETRY_MS = 30_000
"""The first and the longest pause in ms before a failed write is repeated. Each pause is twice as long as the one
before."""
WARNING_PAUSE_MS = 60_000
"""The time in ms in which a group gets one warning at most."""
MOST_WARNED = 1_000
"""The largest number of groups whose last warning is remembered."""
PIECE_BYTES = 1 << 20
"""The number of bytes of a log that one job of a worker reads. A single batch may be larger."""

RETRIED = frozenset({ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                     ErrorCode.COORDINATOR_NOT_AVAILABLE})
"""The errors of a write that may not occur again. With any other error, the topic refuses the dead letters."""


@dataclass(slots=True)
class Job:
    """The dead letters of a range of records, which have the same delivery count and the same cause."""

    live: LivePartition
    first: int
    last: int
    delivery_count: int
    message: str
    retry_ms: int = 0

    def __str__(self) -> str:
        partition = self.live.partition
        return f'the records {self.first} to {self.last} of {partition.topic}-{partition.partition}'


class Unsearched(NamedTuple):
    """The ARCHIVING records with which a share partition was loaded: (first offset, last offset, delivery count). Their
    dead letters, if they exist, are not before `since_ms`."""

    live: LivePartition
    since_ms: int
    ranges: list[tuple[int, int, int]]


class DeadLetters:
    """The dead letters that are to be written.

    `written` and `refused` count the dead letters that were written, and those that were not because of configs.
    `failures` counts the failed attempts to write a batch. With `only_searches`, the dead letters in the queues are
    searched for, but no dead letter is written.
    """

    def __init__(self, shares: SharePartitions, states: ShareStates, queues: DeadLetterQueues, clock: Clock,
                 timers: Timers, long_work: LongWork, searches: Searches):
        self.written = self.refused = self.failures = 0
        self._shares = shares
        self._states = states
        self._queues = queues
        self._clock = clock
        self._timers = timers
        self._long_work = long_work
        self._searches = searches
        self._jobs: deque[Job] = deque()
        self._ended: deque[Job] = deque()
        """The jobs whose records are to become ARCHIVED."""
        self._unsearched: list[Unsearched] = []
        self._timers_of_retries: set[Timer] = set()
        self._is_working = self._is_ending = self.is_searching = self._is_stopped = self.only_searches = False
        self._warned_ms: dict[str, int] = {}

    def stop(self) -> None:
        """Write no more dead letters. The next start continues with the records that wait for theirs."""
        self._is_stopped = True
        self._jobs.clear()
        self._unsearched.clear()
        for timer in self._timers_of_retries:
            timer.cancel()
        self._timers_of_retries.clear()

    def add(self, live: LivePartition, ranges: Iterable[tuple[int, int, int, bool]]) -> None:
        """Write the dead letters of records that have become ARCHIVING: (first offset, last offset, delivery count,
        whether the client has rejected the records). The caller must have stored this state."""
        for first, last, delivery_count, is_rejected in ranges:
            self._begin(Job(live, first, last, delivery_count, REJECTED if is_rejected else EXCEEDED))

    def resume(self, live: LivePartition, since_ms: int) -> None:
        """Write the dead letters of the ARCHIVING records with which a share partition was loaded, unless the queues
        have them."""
        assert live.records is not None
        self._unsearched.append(Unsearched(live, since_ms, live.records.archiving()))
        self._search()

    # ---- write

    def _begin(self, job: Job) -> None:
        if not self._is_stopped and not self.only_searches:
            self._jobs.append(job)
            if not self._is_working:
                self._is_working = True
                self._long_work.start(self._work())

    def _work(self) -> Steps[None]:
        while self._jobs:
            yield       # `_begin` runs the first part at once, and its caller may be in the middle of a change
            if self._jobs:
                yield from self._write(self._jobs.popleft())
        self._is_working = False

    def _write(self, job: Job) -> Steps[None]:
        try:
            while self._is_wanted(job):
                yield from self._write_batch(job)
        except NoQueueError as error:
            self._refuse(job, str(error))
        except KafkaError as error:
            self.failures += 1
            if error.code in RETRIED:
                self._write_later(job, error)
            else:
                self._refuse(job, str(error))
        except (OSError, CorruptLogError) as error:
            self.failures += 1
            self._write_later(job, error)

    def _is_wanted(self, job: Job) -> bool:
        """Return whether the rest of a job is to be written. Leave out records below the start offset: records that
        the log has deleted get no dead letters."""
        records = job.live.records
        if self._is_stopped or job.live.is_dropped or records is None:
            return False
        job.first = max(job.first, records.start_offset)
        return job.first <= job.last

    def _write_batch(self, job: Job) -> Steps[None]:
        """Append the next batch of a job. Set `job.first` to the first record that is not in the batch.

        The state is checked again after each wait, and immediately before the append: after an initialization of the
        share state, and after the deletion of the topic, no dead letter may be appended.
        """
        config = self._shares.config_of(job.live.key.group_id)
        topic = yield from self._queues.topic_of(config)
        since_ms = self._states.archiving_since(job.live.key, job.first, job.last)
        if not self._is_wanted(job):
            return
        if since_ms is None:
            job.first = job.last + 1
            return
        timestamp_ms = max(self._clock.wall_ms(), since_ms)
        first = job.first
        originals = read_originals(job) if config.errors_deadletterqueue_copy_record_enable else None
        built = yield from self._searches.call(
            partial(built_of, replace(job), originals, timestamp_ms, ProduceRules(topic.config)))
        target = topic.partitions[job.live.partition.partition % len(topic.partitions)]
        if not self._is_wanted(job) or job.first != first or target.is_deleted:
            return      # the caller tries again if records are left
        if self._states.archiving_since(job.live.key, first, built.last_offset) is None:
            job.first = job.last + 1
            return
        done = replace(job, last=built.last_offset)
        if built.batch is None:
            self._refuse(done, f'a dead letter is larger than topic {topic.name!r} allows')
        else:
            target.append_batch(bytearray(built.batch))
            self._states.times.note(timestamp_ms)
            target.when_durable(target.log_end_offset, partial(self._landed, done))
        job.first = built.last_offset + 1
        job.retry_ms = 0

    def _landed(self, job: Job, error: KafkaError | None) -> None:
        """Archive the records of a job, because their dead letters are durable. If the topic of the queue was deleted,
        begin the job again."""
        if error is None:
            self.written += job.last - job.first + 1
            self._end(job)
        elif self._is_wanted(job):
            self.failures += 1
            self._write_later(job, error)

    def _write_later(self, job: Job, error: Exception) -> None:
        if not self._is_wanted(job):
            return
        job.retry_ms = min(MOST_RETRY_MS, max(RETRY_MS, 2 * job.retry_ms))
        self._warn(job.live.key.group_id, f'the dead letters of {job} are not written yet: {error}')
        self._after(job.retry_ms, partial(self._begin, job))

    def _refuse(self, job: Job, reason: str) -> None:
        """Archive the records of a job without dead letters, as Kafka does."""
        if not self._is_wanted(job):
            return
        self.refused += job.last - job.first + 1
        self._warn(job.live.key.group_id, f'{job} get no dead letters: {reason}')
        self._end(job)

    def _end(self, job: Job) -> None:
        """Archive the records of a job, as long work: a sync may end many jobs."""
        self._ended.append(job)
        if not self._is_ending:
            self._is_ending = True
            self._long_work.start(self._end_all())

    def _end_all(self) -> Steps[None]:
        while self._ended:
            self._finish(self._ended.popleft())
            yield
        self._is_ending = False

    def _finish(self, job: Job) -> None:
        """Store that the records of a job are ARCHIVED. Try again if this fails.

        Store nothing if they do not wait any more, for example because an initialization of the share state is in
        flight.
        """
        if job.live.is_dropped or job.live.records is None:
            return
        job.first = max(job.first, job.live.records.start_offset)
        if self._states.archiving_since(job.live.key, job.first, job.last) is not None:
            self._shares.finish_archiving(job.live, job.first, job.last, partial(self._finished, job))

    def _finished(self, job: Job, error: KafkaError | None) -> None:
        if error is not None and self._is_wanted(job):
            self._after(RETRY_MS, partial(self._end, job))

    def _after(self, delay_ms: int, callback: partial[None]) -> None:
        if self._is_stopped:
            return

        def run() -> None:
            self._timers_of_retries.discard(timer)
            callback()

        timer = self._timers.after(delay_ms, run)
        self._timers_of_retries.add(timer)

    def _warn(self, group_id: str, text: str) -> None:
        now_ms = self._clock.wall_ms()
        if is_over(WARNING_PAUSE_MS, self._warned_ms.get(group_id, 0), now_ms):
            if len(self._warned_ms) >= MOST_WARNED:
                self._warned_ms.clear()
            self._warned_ms[group_id] = now_ms
            logger.warning('share group %s: %s', shown(group_id), text)

    # ---- search

    def _search(self) -> None:
        if not self.is_searching and not self._is_stopped:
            self.is_searching = True
            self._long_work.start(self._search_all())

    def _search_all(self) -> Steps[None]:
        """Search the queues for the dead letters of all loaded share partitions that wait for this."""
        yield
        while self._unsearched and not self._is_stopped:
            group, self._unsearched = [each for each in self._unsearched if not each.live.is_dropped], []
            if not group:
                break
            try:
                found = yield from self._find(group)
            except (KafkaError, OSError, CorruptLogError) as error:
                logger.error('dead letters cannot be searched for, so %d share partitions wait: %s', len(group), error)
                self._unsearched += group
                self._after(MOST_RETRY_MS, partial(self._search))
                break
            for each in group:
                yield from self._continue(each, found)
        self.is_searching = False

    def _find(self, group: list[Unsearched]) -> Steps[dict[tuple[Source, int], int]]:
        """Return the dead letters of these share partitions that the queues have, as (source, offset), with their
        times."""
        wanted: dict[Source, tuple[int, list[tuple[int, int]]]] = {}
        for live, since_ms, ranges in group:
            source = source_of(live)
            wanted[source] = since_ms, [(first, last) for first, last, _ in ranges]
        configs = [self._shares.config_of(source.group_id) for source in wanted]
        found: dict[tuple[Source, int], int] = {}
        for topic in (yield from self._queues.that_may_have(configs)):
            for partition in list(topic.partitions):
                yield from self._find_in(partition, wanted, found)
                yield
        for time_ms in found.values():
            self._states.times.note(time_ms)
        return found

    def _find_in(self, partition: Partition, wanted: Wanted, found: dict[tuple[Source, int], int]) -> Steps[None]:
        """Add the dead letters in a partition to `found`. Batches that are not durable yet are waited for."""
        try:
            partition.request_flush()
            yield from partition.durable(partition.log_end_offset)
            end_offset = partition.high_watermark
            begin = yield from partition.offset_for_timestamp(min(since_ms for since_ms, _ in wanted.values()),
                                                              self._searches)
            if begin is None:
                return
            offset = begin[1]
            while offset < end_offset and not self._is_stopped:
                offset = max(offset, partition.log_start_offset)
                piece = partition.read(offset, PIECE_BYTES, end_offset, True)
                if piece is None:
                    return
                found.update((yield from self._searches.call(partial(found_in, piece, wanted))))
                offset = piece.end_offset
        except KafkaError:
            if not partition.is_deleted:
                raise

    def _continue(self, unsearched: Unsearched, found: dict[tuple[Source, int], int]) -> Steps[None]:
        """Archive the records whose dead letters were found, and begin to write the others.

        The cause of a dead letter is not stored. As in Kafka, the delivery count decides.
        """
        live = unsearched.live
        limit = self._shares.config_of(live.key.group_id).share_delivery_count_limit
        source = source_of(live)
        for first, last, delivery_count in unsearched.ranges:
            message = EXCEEDED if delivery_count >= limit else REJECTED
            for is_found, begin, end in split(first, last, lambda offset: (source, offset) in found):
                job = Job(live, begin, end, delivery_count, message)
                if is_found:
                    self._end(job)
                else:
                    self._begin(job)
            yield


def source_of(live: LivePartition) -> Source:
    return Source(live.partition.topic, live.partition.partition, live.key.group_id)


def split(first: int, last: int, is_found: Callable[[int], bool]) -> list[tuple[bool, int, int]]:
    """Split a range of offsets into parts with the same result of `is_found`: (result, first offset, last offset)."""
    parts = []
    for result, offsets in groupby(range(first, last + 1), is_found):
        begin, *rest = offsets
        parts.append((result, begin, rest[-1] if rest else begin))
    return parts


def read_originals(job: Job) -> LogSlice | None:
    """Return a slice of the log that begins with the first record of a job. Return None if the log cannot be read
    there."""
    partition = job.live.partition
    try:
        return partition.read(job.first, PIECE_BYTES, partition.high_watermark, True)
    except KafkaError as error:
        if error.code in RETRIED:
            raise
        return None


def built_of(job: Job, originals: LogSlice | None, timestamp_ms: int, rules: ProduceRules) -> Built:
    """Return the next batch of a job. This is a job of a worker thread."""
    if originals is None:
        letters = letters_without_originals(job.first, job.last, job.delivery_count, job.message)
    else:
        try:
            letters = letters_with_originals(originals.read(), originals.end_offset, job.first, job.last,
                                             job.delivery_count, job.message)
        except (CorruptLogError, KafkaError):   # as in Kafka, records that cannot be read lose their keys and values
            letters = letters_without_originals(job.first, job.last, job.delivery_count, job.message)
    return build_batch(source_of(job.live), letters, timestamp_ms, rules)


def found_in(piece: LogSlice, wanted: Wanted) -> dict[tuple[Source, int], int]:
    """Return the wanted dead letters in a slice of a log. This is a job of a worker thread."""
    return find_dead_letters(piece.read(), wanted)

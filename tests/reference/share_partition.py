"""A slow implementation of share partitions, with which the tests compare `kbroker.group.share.partition`.

It has a dict with the state of each offset, and applies the rules of share groups record by record.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.share.limits import Wanted

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = 0, 1, 2, 3, 4
REJECT = 3
FINISHED = ACKNOWLEDGED, ARCHIVED
AFTER = {0: ARCHIVED, 1: ACKNOWLEDGED, 2: AVAILABLE, 3: ARCHIVED}
RENEW = 4
PAST_LIMIT = 10_000


@dataclass
class Tracked:
    """The state of one record in flight."""

    state: int = AVAILABLE
    count: int = 0
    size: int = 0
    member_id: str | None = None
    deadline_ms: int | None = 0
    next_state: int | None = None
    lock_ended: bool = False

    @property
    def is_free(self) -> bool:
        return self.state == AVAILABLE

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED

    def become(self, state: int) -> None:
        self.state, self.next_state, self.lock_ended, self.member_id = state, None, False, None
        if state in FINISHED:
            self.count = 0


@dataclass
class ReferenceChange:
    offsets: dict[int, Tracked]
    holds_anyway: bool
    limit: int
    makes_dead_letters: bool
    start_offset: int
    delivery_complete_count: int
    batches: list[tuple[int, int, int, int]]
    dead_letters: list[tuple[int, int, int, bool]]


class ReferenceSharePartition:

    def __init__(self, start_offset: int, batches: Iterable[tuple[int, int, int, int]] = ()):
        self.records: dict[int, Tracked] = {}
        self.start_offset = self.next_offset = start_offset
        for first, last, state, count in batches:
            for offset in range(self.next_offset, last + 1):
                hole = offset < first
                size = first - self.next_offset if hole else last + 1 - max(first, self.next_offset)
                self.records[offset] = Tracked(AVAILABLE if hole else state, 0 if hole or state in FINISHED else count,
                                               size)
            self.next_offset = max(self.next_offset, last + 1)
        self._trim()

    def next_fetch_offset(self) -> int:
        return next((offset for offset in range(self.start_offset, self.next_offset) if self.records[offset].is_free),
                    self.next_offset)

    def is_acquirable(self, max_record_locks: int) -> bool:
        return (self.next_offset - self.start_offset < max_record_locks
                or any(record.is_free for record in self.records.values()))

    def acquire(self, member_id: str, batches: Sequence[tuple[int, int, bool]], wanted: Wanted,
                deadline_ms: int) -> list[tuple[int, int, int]]:
        if not batches:
            return []
        offset = self.next_fetch_offset()
        if batches[0][0] > offset:
            if not self.records:
                self.start_offset = self.next_offset = batches[0][0]
            else:
                self._archive(offset, batches[0][0] - 1)
            offset = batches[0][0]
        locks, in_flight = wanted.max_record_locks, self.next_offset - self.start_offset
        budget = min(wanted.max_records, locks - in_flight) if in_flight < locks else wanted.max_records
        giving = Giving(wanted, budget)
        for first, last, is_aborted in batches:
            first = offset
            if last >= self.next_offset and self.next_offset - self.start_offset >= locks:
                last = self.next_offset - 1
            last = min(last, self.start_offset + locks + PAST_LIMIT - 1)
            if last < first:
                continue
            offset = last + 1
            if is_aborted:
                self._archive(first, last)
                continue
            self._give_batch(giving, first, last)
            if giving.is_full or giving.budget <= 0:
                break
        for first, last, count in giving.ranges:
            for given in range(first, last + 1):
                record = self.records[given]
                record.state, record.member_id, record.deadline_ms = ACQUIRED, member_id, deadline_ms
                if count == 1:
                    record.size = last - first + 1
        self._trim()
        return giving.ranges

    def _give_batch(self, giving: Giving, first: int, last: int) -> None:
        giving.is_first_of_batch = True
        for offset in range(max(first, self.start_offset), min(last + 1, self.next_offset)):
            if self.records[offset].is_free and not giving.is_full:
                giving.offer(offset, self.records[offset])
        if giving.throttled is not None:
            giving.is_full = giving.is_full or last >= self.next_offset
        elif not giving.is_full:
            for offset in range(self.next_offset, last + 1):
                self.records[offset] = Tracked()
                if not giving.is_full:
                    giving.offer(offset, self.records[offset])
                else:
                    self.records[offset].size = last - giving.ranges[-1][1]
                self.next_offset = offset + 1

    def acknowledge(self, member_id: str, batches: Sequence[tuple[int, int, Sequence[int]]], limit: int,
                    deadline_ms: int, makes_dead_letters: bool = False) -> ReferenceChange | None:
        said: dict[int, int] = {}
        for first, last, types in batches:
            if last < self.start_offset:
                continue
            if not self.records:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE)
            if last >= self.next_offset:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            for offset in range(max(first, self.start_offset), last + 1):
                record = self.records[offset]
                if (offset in said or record.state != ACQUIRED or record.next_state is not None
                        or record.lock_ended or record.member_id != member_id):
                    raise KafkaError(ErrorCode.INVALID_RECORD_STATE)
                said[offset] = types[0 if len(types) == 1 else offset - first]
        for offset, kind in said.items():
            if kind == RENEW:
                self.records[offset].deadline_ms = deadline_ms
        return self._begin({offset: ARCHIVING if kind == REJECT and makes_dead_letters else AFTER[kind]
                            for offset, kind in said.items() if kind != RENEW}, False, limit, makes_dead_letters)

    def release(self, member_id: str, limit: int, makes_dead_letters: bool = False) -> ReferenceChange | None:
        return self._begin({offset: AVAILABLE for offset, record in self.records.items()
                            if record.state == ACQUIRED and record.next_state is None
                            and record.member_id == member_id}, False, limit, makes_dead_letters)

    def expire(self, now_ms: int, limit: int, makes_dead_letters: bool = False) -> ReferenceChange | None:
        ended = {offset: record for offset, record in self.records.items()
                 if record.state == ACQUIRED and record.deadline_ms is not None and record.deadline_ms <= now_ms}
        change = self._begin({offset: AVAILABLE for offset, record in ended.items() if record.next_state is None},
                             True, limit, makes_dead_letters)
        for record in ended.values():
            record.lock_ended = True
            record.deadline_ms = None
        return change

    def next_deadline_ms(self) -> int | None:
        return min((record.deadline_ms for record in self.records.values()
                    if record.state == ACQUIRED and record.deadline_ms is not None), default=None)

    def archiving(self) -> list[int]:
        return [offset for offset, record in sorted(self.records.items()) if record.state == ARCHIVING]

    def finish_archiving(self, first: int, last: int) -> ReferenceChange | None:
        return self._begin({offset: ARCHIVED for offset, record in self.records.items()
                            if first <= offset <= last and record.state == ARCHIVING and record.next_state is None},
                           False, 0, False)

    def _begin(self, wanted: dict[int, int], holds_anyway: bool, limit: int,
               makes_dead_letters: bool) -> ReferenceChange | None:
        rows: list[tuple[int, int, int, int]] = []
        dead_letters: list[tuple[int, int, int, bool]] = []
        for offset, state in wanted.items():
            record = self.records[offset]
            record.next_state = state
            if state == AVAILABLE and record.count >= limit:
                record.next_state = ARCHIVING if makes_dead_letters else ARCHIVED
            if record.next_state == ARCHIVING:
                if dead_letters and dead_letters[-1][1:] == (offset - 1, record.count, state == ARCHIVING):
                    dead_letters[-1] = (dead_letters[-1][0], offset, *dead_letters[-1][2:])
                else:
                    dead_letters.append((offset, offset, record.count, state == ARCHIVING))
            if rows and rows[-1][1:] == (offset - 1, record.next_state, record.count):
                rows[-1] = (rows[-1][0], offset, *rows[-1][2:])
            else:
                rows.append((offset, offset, record.next_state, record.count))
        if not rows:
            return None
        return ReferenceChange({offset: self.records[offset] for offset in wanted}, holds_anyway, limit,
                               makes_dead_letters, self.start_offset, self.delivery_complete_count(), rows,
                               dead_letters)

    def delivery_complete_count(self) -> int:
        return sum((record.state if record.next_state is None else record.next_state) in FINISHED
                   for record in self.records.values())

    def adopt(self, change: ReferenceChange) -> None:
        for record in change.offsets.values():
            assert record.next_state is not None
            record.become(record.next_state)
        self._trim()

    def abandon(self, change: ReferenceChange, retry_ms: int = 0) -> None:
        for record in change.offsets.values():
            if change.holds_anyway or record.lock_ended:
                if record.count >= change.limit and change.makes_dead_letters:
                    record.next_state, record.lock_ended, record.deadline_ms = None, True, retry_ms
                else:
                    record.become(ARCHIVED if record.count >= change.limit else AVAILABLE)
            else:
                record.next_state = None
        self._trim()

    def move_start(self, log_start_offset: int) -> bool:
        if log_start_offset <= self.start_offset:
            return False
        self.records = {offset: record for offset, record in self.records.items() if offset >= log_start_offset}
        self.start_offset = log_start_offset
        self.next_offset = max(self.next_offset, log_start_offset)
        self._trim()
        return True

    def _archive(self, first: int, last: int) -> None:
        for offset in range(max(first, self.start_offset), last + 1):
            if offset >= self.next_offset:
                self.records[offset] = Tracked(ARCHIVED)
                self.next_offset = offset + 1
            elif self.records[offset].is_free:
                self.records[offset].become(ARCHIVED)
        self._trim()

    def _trim(self) -> None:
        while self.start_offset in self.records and self.records[self.start_offset].is_finished:
            del self.records[self.start_offset]
            self.start_offset += 1

    def table(self) -> list[tuple[int, int, int, str | None]]:
        """Return (offset, state, delivery count, member id) for each tracked record, sorted by offset."""
        return [(offset, record.state, record.count, record.member_id)
                for offset, record in sorted(self.records.items())]


class Giving:
    """One acquisition. The caller offers records in the order of their offsets, and those that the rules allow are
    acquired."""

    def __init__(self, wanted: Wanted, budget: int):
        self.wanted = wanted
        self.budget = budget
        self.is_full = budget <= 0
        self.throttled: int | None = None
        self.threshold = max(2, -(-wanted.delivery_count_limit // 2))
        self.is_first_of_batch = True
        self.ranges: list[tuple[int, int, int]] = []

    def offer(self, offset: int, record: Tracked) -> None:
        limit = self.wanted.delivery_count_limit
        is_last_try = limit > 2 and record.count >= limit - 1
        is_bad = record.count >= self.threshold
        if self.ranges and (is_last_try or is_bad != (self.throttled is not None)):
            self.is_full = True
            return
        if is_last_try:
            self.is_full = True
        elif is_bad:
            if self.throttled is None:
                self.throttled = max(1, record.size >> (record.count - self.threshold + 1))
            self.throttled -= 1
        record.count += 1
        record.state = ACQUIRED
        self.budget -= 1
        if self.throttled == 0 or (self.wanted.is_exact and self.budget <= 0):
            self.is_full = True
        self._add(offset, record.count)

    def _add(self, offset: int, count: int) -> None:
        if self.ranges:
            first, last, previous = self.ranges[-1]
            if last + 1 == offset and previous == count and (
                    self.wanted.is_exact or not self.is_first_of_batch
                    or last - first + 1 < self.wanted.batch_size):
                self.ranges[-1] = (first, offset, count)
                self.is_first_of_batch = False
                return
        self.is_first_of_batch = False
        self.ranges.append((offset, offset, count))

"""The state machine of the records that a share group tracks in one partition: their delivery states, and the members
that have acquired them.

The records from `start_offset` up to, but not including, `next_offset` are tracked. A run is a range of adjacent
tracked records with the same state. All records below `start_offset` are finished. The records at and above
`next_offset` were never acquired. This module does no I/O and reads no clock. The transitions are:

- AVAILABLE becomes ACQUIRED immediately, because acquisitions are not stored.
- ACQUIRED becomes AVAILABLE, ACKNOWLEDGED, ARCHIVING or ARCHIVED by a `Change`, which is stored first. The caller
  writes the change, and then adopts it, or abandons it if the write has failed. Until then, the records of the change
  have no other transition.
- ARCHIVING becomes ARCHIVED by a `Change`, too. An ARCHIVING record waits for its dead letter (KIP-1191). It is not
  finished: it keeps its delivery count, and `start_offset` does not pass it.

The limit of record locks plus `MOST_PAST_LIMIT` bounds the number of tracked records, and therefore the number of runs.
"""
cimport cython
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t
from libc.string cimport memset

from kbroker.group.share.runs cimport Run, Runs, is_like, is_owned_by, owner_of, set_owner

from kbroker.base.errors import ErrorCode, KafkaError

cdef enum:
    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4

cdef enum:
    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4

cdef enum:
    NO_CHANGE = 0
    # The number of records by which an acquisition may exceed the limit of record locks. It may exceed the limit
    # because it ends at the end of a batch.
    PAST_LIMIT = 10_000
    # The smallest limit of deliveries with which a record is delivered without other records in its last try.
    LEAST_LIMIT_WITH_LAST_TRY = 3

MOST_PAST_LIMIT = PAST_LIMIT
ACKNOWLEDGE_TYPES = frozenset({GAP, ACCEPT, RELEASE, REJECT, RENEW})
STATE_NAMES = {AVAILABLE: 'available', ACQUIRED: 'acquired', ACKNOWLEDGED: 'acknowledged', ARCHIVING: 'archiving',
               ARCHIVED: 'archived'}

# Maps each state to the states that may follow it.
cdef dict TRANSITIONS = {
    AVAILABLE: (ACQUIRED, ARCHIVED),
    ACQUIRED: (AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED),
    ACKNOWLEDGED: (),
    ARCHIVING: (ARCHIVED,),
    ARCHIVED: (),
}
cdef dict STATE_AFTER = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE, REJECT: ARCHIVED, RENEW: ACQUIRED}


cdef bint is_free(Run *run) noexcept:
    return run.state == AVAILABLE and run.change == NO_CHANGE


cdef bint is_finished(Run *run) noexcept:
    return run.change == NO_CHANGE and (run.state == ACKNOWLEDGED or run.state == ARCHIVED)


cdef int check_transition(Run *run, int state) except -1:
    """Raise ValueError unless TRANSITIONS allows the run's records to change to this state."""
    if state not in TRANSITIONS[run.state]:
        raise ValueError(f'{STATE_NAMES[run.state]} records {run.first}-{run.last} cannot become '
                         f'{STATE_NAMES[state]}')
    return 0


cdef int go_to(Run *run, int state) except -1:
    check_transition(run, state)
    run.state = state
    run.change = NO_CHANGE
    run.next_state = AVAILABLE
    run.lock_ended = False
    if state != ACQUIRED:
        set_owner(run, None)
        run.deadline_ms = 0
    if state == ACKNOWLEDGED or state == ARCHIVED:
        run.count = 0
    if state != AVAILABLE and state != ACQUIRED:
        run.size = 0
    return 0


cdef Run new_run(int64_t first, int64_t last, int state, int count) noexcept:
    cdef Run run
    memset(&run, 0, sizeof(Run))
    run.first, run.last, run.state = first, last, state
    if state == AVAILABLE or state == ARCHIVING:
        run.count = count
    if state == AVAILABLE:
        run.size = <int32_t>min(last - first + 1, <int64_t>PAST_LIMIT)
    return run


cdef class Change:
    """State transitions of records that are written together.

    * `batches`: a tuple (first offset, last offset, new state, delivery count) for each transition.
    * `dead_letters`: a tuple (first offset, last offset, delivery count, whether the client has rejected the records)
      for each range that becomes ARCHIVING.
    * `start_offset`, `delivery_complete_count`: the values that are written together with the transitions.
    * `holds_anyway`: true if the locks of the records have ended. If so, the records become free even if the write
      fails.
    * `makes_dead_letters`: true if the group has a dead-letter queue. Records that the client rejects, or that have
      reached the limit of deliveries, then become ARCHIVING instead of ARCHIVED.
    """

    def __init__(self, int32_t number, bint holds_anyway, int delivery_count_limit, bint makes_dead_letters):
        self.number = number
        self.holds_anyway = holds_anyway
        self.delivery_count_limit = delivery_count_limit
        self.makes_dead_letters = makes_dead_letters
        self.batches = []
        self.dead_letters = []

    cdef int add(self, int64_t first, int64_t last, int state, int count) except -1:
        if self.batches:
            previous = self.batches[len(self.batches) - 1]
            if previous[1] + 1 == first and previous[2] == state and previous[3] == count:
                self.batches[len(self.batches) - 1] = (previous[0], last, state, count)
                return 0
        self.batches.append((first, last, state, count))
        return 0

    cdef int add_dead_letters(self, int64_t first, int64_t last, int count, bint is_rejected) except -1:
        if self.dead_letters:
            previous = self.dead_letters[len(self.dead_letters) - 1]
            if previous[1] + 1 == first and previous[2] == count and previous[3] == is_rejected:
                self.dead_letters[len(self.dead_letters) - 1] = (previous[0], last, count, is_rejected)
                return 0
        self.dead_letters.append((first, last, count, is_rejected))
        return 0


cdef class SharePartition:
    """The tracked records of a share partition. Their offsets are from `start_offset` up to, but not including,
    `next_offset`."""

    def __init__(self, int64_t start_offset, batches=()):
        """Start to track the records of the stored batches, which are sorted and disjoint. A batch is (first offset,
        last offset, state, delivery count).

        The records between two batches are available. They were never delivered, or the outcome of their delivery was
        not stored.
        """
        cdef int64_t first, last, start
        cdef int state, count
        self.runs = Runs()
        self.start_offset = self.next_offset = start_offset
        for start, last, state, count in batches:
            first = max(start, self.next_offset)
            if last < first:
                continue
            if first > self.next_offset:
                self.runs.append(new_run(self.next_offset, first - 1, AVAILABLE, 0))
            if state == ACQUIRED:
                state = AVAILABLE
            self.runs.append(new_run(first, last, state, count))
            self.next_offset = last + 1
        self.settle()

    def __repr__(self):
        return f'<SharePartition {self.start_offset}..{self.next_offset}, {self.runs.count} runs>'

    @property
    def runs_count(self):
        return self.runs.count

    @property
    def runs_bytes(self):
        """The memory of the table of runs in bytes, including its unused places."""
        return self.runs.capacity * <Py_ssize_t>sizeof(Run)

    @property
    def in_flight(self):
        """The number of tracked records, including finished records and gaps."""
        return self.next_offset - self.start_offset

    def table(self):
        """Return a list of (first offset, last offset, state, delivery count, member id), with an entry for each
        run."""
        cdef Run *run
        cdef Py_ssize_t i
        cdef list rows = []
        for i in range(self.runs.count):
            run = &self.runs.at[i]
            rows.append((run.first, run.last, run.state, run.count, owner_of(run)))
        return rows

    def held(self, Py_ssize_t most):
        """Return the number of acquired records, the number of runs of acquired records, and a list of the first `most`
        of these runs.

        A run in the list is (first offset, last offset, delivery count, member id, deadline, whether a change is in
        flight). The deadline is the end of the lock in monotonic time, or None if the lock has ended.
        """
        cdef Run *run
        cdef int64_t records = 0
        cdef Py_ssize_t i, runs = 0
        cdef list listed = []
        for i in range(self.runs.count):
            run = &self.runs.at[i]
            if run.state != ACQUIRED:
                continue
            records += run.last - run.first + 1
            runs += 1
            if runs <= most:
                listed.append((run.first, run.last, run.count, owner_of(run),
                               None if run.lock_ended else run.deadline_ms, run.change != NO_CHANGE))
        return records, runs, listed

    # ---- records that can be fetched

    def next_fetch_offset(self):
        """Return the offset of the first free tracked record. If no tracked record is free, return `next_offset`."""
        return self.first_free()

    cdef int64_t first_free(self) except -1:
        cdef Py_ssize_t i
        for i in range(self.runs.count):
            if is_free(&self.runs.at[i]):
                return self.runs.at[i].first
        return self.next_offset

    def is_acquirable(self, int64_t max_record_locks):
        """Return whether a fetch can acquire records, if the log has them: either a tracked record is free, or the
        limit of record locks is not reached."""
        return self.next_offset - self.start_offset < max_record_locks or self.first_free() < self.next_offset

    # ---- acquire

    def acquire(self, str member_id not None, batches, wanted, int64_t deadline_ms):
        """Acquire records for a member. Return a list of the acquired ranges: (first offset, last offset, delivery
        count).

        `batches` are the batches of the log, starting at `next_fetch_offset`: (first offset, last offset, is aborted).
        Free records in aborted batches become ARCHIVED. Free records below the first batch also become ARCHIVED,
        because the log no longer has them. `wanted` is a `Wanted` object with the limits.
        """
        cdef Acquisition acquisition
        cdef int64_t first, last, base_offset, offset = self.first_free()
        cdef int64_t most = wanted.max_record_locks
        cdef bint is_aborted
        if not batches:
            return []
        base_offset = batches[0][0]
        if base_offset > offset:
            self.skip_hole(offset, base_offset)
            offset = base_offset
        acquisition = Acquisition(self, member_id, wanted, deadline_ms)
        for first, last, is_aborted in batches:
            first = offset              # includes records before the batch that compaction has removed
            if last >= self.next_offset and self.next_offset - self.start_offset >= most:
                last = self.next_offset - 1
            last = min(last, self.start_offset + most + PAST_LIMIT - 1)
            if last < first:
                continue
            offset = last + 1
            if is_aborted:
                self.archive(first, last)
            elif not acquisition.acquire_batch(first, last):
                break
        acquisition.end()
        self.settle()
        return acquisition.ranges

    cdef int skip_hole(self, int64_t first, int64_t base_offset) except -1:
        """Archive the free records from `first` up to, but not including, `base_offset`, because the log does not have
        them."""
        if self.runs.count:
            return self.archive(first, base_offset - 1)
        self.start_offset = self.next_offset = base_offset
        return 0

    cdef int archive(self, int64_t first, int64_t last) except -1:
        """Archive all records of a range that are free or not tracked yet."""
        cdef Py_ssize_t i, end
        if first < self.next_offset:
            i = self.runs.split_at(first)
            end = self.runs.split_at(min(last, self.next_offset - 1) + 1)
            for i in range(i, end):
                if is_free(&self.runs.at[i]):
                    go_to(&self.runs.at[i], ARCHIVED)
        if last >= self.next_offset:
            self.runs.append(new_run(self.next_offset, last, ARCHIVED, 0))
            self.next_offset = last + 1
        return self.settle()

    # ---- acknowledge

    def acknowledge(self, str member_id not None, batches, int delivery_count_limit, int64_t deadline_ms,
                    bint makes_dead_letters=False):
        """Begin the acknowledgement of records that a member has acquired. If one record cannot be acknowledged, none
        of them is.

        Return the Change to write, or None if no state changes. `batches` is a list of (first offset, last offset,
        types). `types` has either one type for all records of the batch, or one type for each record. `deadline_ms` is
        the new end of renewed locks. `makes_dead_letters` is true if the group has a dead-letter queue. Raise
        KafkaError with one of these codes:

        - INVALID_RECORD_STATE: the member has not acquired one of the records, has named it twice, or a change of its
          state is in flight.
        - INVALID_REQUEST: one of the records is above all tracked records.
        """
        cdef Change change
        cdef Run *run
        cdef int64_t first, last
        cdef int kind
        cdef list segments = self.segments_of(member_id, batches)
        cdef Py_ssize_t i
        if not segments:
            return None
        self.check_owned(member_id, segments)
        self.split_along(segments)
        i = self.runs.find(segments[0][0])
        change = self.begin(False, delivery_count_limit, makes_dead_letters)
        for first, last, kind in segments:
            while self.runs.at[i].last < first:
                i += 1
            while i < self.runs.count:
                run = &self.runs.at[i]
                if run.first > last:
                    break
                if kind == RENEW:
                    run.deadline_ms = deadline_ms
                elif kind == REJECT and makes_dead_letters:
                    self.begin_transition(change, run, ARCHIVING)
                else:
                    self.begin_transition(change, run, STATE_AFTER[kind])
                i += 1
        return self.begun(change)

    cdef list segments_of(self, str member_id, batches):
        """Return the segments of the batches: (first offset, last offset, type) for each range of records with the same
        type.

        Omit records below `start_offset`, which are finished.
        """
        cdef list segments = []
        cdef int64_t first, last, begin, end = self.start_offset
        cdef Py_ssize_t i, count
        for first, last, types in batches:
            if last < self.start_offset:
                continue
            if not self.runs.count:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, f'records {first}-{last} are not acquired')
            if last >= self.next_offset:
                if segments:
                    self.check_owned(member_id, segments)       # reports an error in a previous batch first
                raise KafkaError(ErrorCode.INVALID_REQUEST, f'found an acknowledgement of {first}-{last}, expected '
                                 f'one below {self.next_offset}')
            begin = max(first, self.start_offset)
            if begin < end:
                raise KafkaError(ErrorCode.INVALID_RECORD_STATE, f'record {begin} is acknowledged twice')
            end = last + 1
            count = len(types)
            if count == 1:
                segments.append((begin, last, types[0]))
                continue
            i = begin - first
            while i < count:
                kind = types[i]
                begin = first + i
                while i < count and types[i] == kind:
                    i += 1
                segments.append((begin, first + i - 1, kind))
        return segments

    cdef int check_owned(self, str member_id, list segments) except -1:
        """Raise INVALID_RECORD_STATE unless the member has acquired all records of the sorted segments."""
        cdef Run *run
        cdef int64_t first, last
        cdef Py_ssize_t i = self.runs.find(segments[0][0])
        for first, last, _ in segments:
            while self.runs.at[i].last < first:
                i += 1
            while True:
                run = &self.runs.at[i]
                if (run.state != ACQUIRED or run.change != NO_CHANGE or run.lock_ended
                        or not is_owned_by(run, member_id)):
                    raise KafkaError(ErrorCode.INVALID_RECORD_STATE, f'records {max(first, run.first)}-'
                                     f'{min(last, run.last)} are not acquired by member {member_id}')
                if run.last >= last:
                    break
                i += 1
        return 0

    cdef int split_along(self, list segments) except -1:
        """Split runs at the bounds of the sorted segments."""
        cdef int64_t first, last
        cdef list offsets = []
        for first, last, _ in segments:
            offsets.append(first)
            offsets.append(last + 1)
        return self.runs.split_along(offsets)

    def release(self, str member_id not None, int delivery_count_limit, bint makes_dead_letters=False):
        """Begin to free all records that a member has acquired. Return the Change to write, or None if the member has
        acquired no records."""
        cdef Run *run
        cdef Py_ssize_t i
        cdef Change change = self.begin(False, delivery_count_limit, makes_dead_letters)
        for i in range(self.runs.count):
            run = &self.runs.at[i]
            if run.state == ACQUIRED and run.change == NO_CHANGE and is_owned_by(run, member_id):
                self.begin_transition(change, run, AVAILABLE)
        return self.begun(change)

    def expire(self, int64_t now_ms, int delivery_count_limit, bint makes_dead_letters=False):
        """Begin to free the records whose locks have ended. Return the Change to write, or None if no lock has
        ended."""
        cdef Run *run
        cdef Py_ssize_t i
        cdef Change change = self.begin(True, delivery_count_limit, makes_dead_letters)
        for i in range(self.runs.count):
            run = &self.runs.at[i]
            if run.state != ACQUIRED or run.deadline_ms > now_ms:
                continue
            if run.change == NO_CHANGE:
                self.begin_transition(change, run, AVAILABLE)
            run.lock_ended = True
            run.deadline_ms = INT64_MAX
        return self.begun(change)

    def next_deadline_ms(self):
        """Return the monotonic time in ms at which the next lock ends; None if no record is locked."""
        cdef Run *run
        cdef Py_ssize_t i
        cdef int64_t earliest = INT64_MAX
        for i in range(self.runs.count):
            run = &self.runs.at[i]
            if run.state == ACQUIRED and run.deadline_ms < earliest:
                earliest = run.deadline_ms
        return None if earliest == INT64_MAX else earliest

    # ---- dead letters

    @property
    def is_archiving(self):
        """True if some records wait for their dead letters."""
        cdef Py_ssize_t i
        for i in range(self.runs.count):
            if self.runs.at[i].state == ARCHIVING:
                return True
        return False

    def archiving(self):
        """Return a list of (first offset, last offset, delivery count), with an entry for each run of records that wait
        for their dead letters."""
        cdef Run *run
        cdef Py_ssize_t i
        cdef list found = []
        for i in range(self.runs.count):
            run = &self.runs.at[i]
            if run.state == ARCHIVING:
                found.append((run.first, run.last, run.count))
        return found

    def finish_archiving(self, int64_t first, int64_t last):
        """Begin to archive the ARCHIVING records of a range, because their dead letters are durable or are not to be
        written. Return the Change to write, or None if the range has no such records."""
        cdef Change change = self.begin(False, 0, False)
        cdef Py_ssize_t i, end
        if self.start_offset < self.next_offset and first < self.next_offset and last >= self.start_offset:
            i = self.runs.split_at(max(first, self.start_offset))
            end = self.runs.split_at(min(last, self.next_offset - 1) + 1)
            for i in range(i, end):
                if self.runs.at[i].state == ARCHIVING and self.runs.at[i].change == NO_CHANGE:
                    self.begin_transition(change, &self.runs.at[i], ARCHIVED)
        return self.begun(change)

    # ---- changes

    cdef Change begin(self, bint holds_anyway, int delivery_count_limit, bint makes_dead_letters):
        cdef int32_t number = 1 if self.last_change == INT32_MAX else self.last_change + 1
        return Change(number, holds_anyway, delivery_count_limit, makes_dead_letters)

    cdef Change begun(self, Change change):
        if not change.batches:
            self.settle()
            return None
        self.last_change = change.number
        change.start_offset = self.start_offset
        change.delivery_complete_count = self.count_finished()
        self.settle()
        return change

    cdef int begin_transition(self, Change change, Run *run, int state) except -1:
        cdef bint is_rejected = state == ARCHIVING
        if state == AVAILABLE and run.count >= change.delivery_count_limit:
            state = ARCHIVING if change.makes_dead_letters else ARCHIVED
        check_transition(run, state)
        run.change = change.number
        run.next_state = state
        if state == ARCHIVING:
            change.add_dead_letters(run.first, run.last, run.count, is_rejected)
        return change.add(run.first, run.last, state, run.count)

    cdef int32_t count_finished(self) except -1:
        """Return the number of tracked records that are finished, or will be when all changes in flight are adopted."""
        cdef Run *run
        cdef Py_ssize_t i
        cdef int64_t count = 0
        for i in range(self.runs.count):
            run = &self.runs.at[i]
            state = run.state if run.change == NO_CHANGE else run.next_state
            if state == ACKNOWLEDGED or state == ARCHIVED:
                count += run.last - run.first + 1
        return <int32_t>min(count, <int64_t>0x7FFFFFFF)

    def delivery_complete_count(self):
        """Return the number of tracked records that are finished, or will be when all changes in flight are adopted."""
        return self.count_finished()

    def adopt(self, Change change not None):
        """Apply the transitions of a change, because the change is durable."""
        self.end_change(change, True, 0)

    def abandon(self, Change change not None, int64_t retry_ms=0):
        """Undo a change that could not be written. Its records keep the state that they had when the change began.

        However, records whose locks have ended become AVAILABLE, or ARCHIVED if they have reached the limit of
        deliveries. If they are to get dead letters, they stay ACQUIRED, because no dead letter may be written for a
        record whose state is not stored. `expire` tries again when the monotonic clock has reached `retry_ms`.
        """
        self.end_change(change, False, retry_ms)

    cdef int end_change(self, Change change, bint is_durable, int64_t retry_ms) except -1:
        """End the change in all runs of its records. Skip records below `start_offset`, which are no longer tracked."""
        cdef Run *run
        cdef int64_t first, last
        cdef Py_ssize_t i
        for first, last, _, _ in change.batches:
            i = self.runs.find(max(first, self.start_offset))
            while i < self.runs.count and self.runs.at[i].first <= last:
                run = &self.runs.at[i]
                i += 1
                if run.change != change.number:     # adjacent runs of the change may have been joined and ended
                    continue
                if is_durable:
                    go_to(run, run.next_state)
                elif change.holds_anyway or run.lock_ended:
                    if run.count < change.delivery_count_limit:
                        go_to(run, AVAILABLE)
                    elif not change.makes_dead_letters:
                        go_to(run, ARCHIVED)
                    else:
                        run.change = NO_CHANGE
                        run.next_state = AVAILABLE
                        run.lock_ended = True
                        run.deadline_ms = retry_ms
                else:
                    run.change = NO_CHANGE
                    run.next_state = AVAILABLE
        return self.settle()

    # ---- the start

    def move_start(self, int64_t log_start_offset):
        """Move the start of the tracked records up to the start of the log. Return False if it is not below the start
        of the log."""
        if log_start_offset <= self.start_offset:
            return False
        if log_start_offset >= self.next_offset:
            self.runs.remove_first(self.runs.count)
            self.next_offset = log_start_offset
        else:
            self.runs.remove_first(self.runs.split_at(log_start_offset))
        self.start_offset = log_start_offset
        self.settle()
        return True

    cdef int settle(self) except -1:
        """Stop tracking the finished records at the start of the tracked range, and join adjacent runs with the same
        state."""
        cdef Run *at = self.runs.at
        cdef Py_ssize_t i, kept = 0
        for i in range(self.runs.count):
            if kept == 0 and is_finished(&at[i]):
                self.start_offset = at[i].last + 1
            elif kept and is_like(&at[kept - 1], &at[i]):
                at[kept - 1].last = at[i].last
            else:
                if kept < i:
                    at[kept] = at[i]
                    at[i].member_id = NULL
                kept += 1
                continue
            set_owner(&at[i], None)
        return self.runs.truncate(kept)


@cython.final
cdef class Acquisition:
    """An acquisition in progress. It collects the ranges of records that a member gets, batch by batch.

    A record that no member can process must not use up the tries of the records around it. Records that were delivered
    often are therefore delivered in ever smaller parts. Let t = max(2, half the limit of deliveries, rounded up).
    Records that were delivered t times or more are delivered without other records: first half of their batch, then a
    quarter, and so on. A record in its last try is delivered without any other record.
    """
    def __init__(self, SharePartition owner not None, str member_id not None, wanted, int64_t deadline_ms):
        cdef int64_t in_flight = owner.next_offset - owner.start_offset
        self.owner = owner
        self.member_id = member_id
        self.deadline_ms = deadline_ms
        self.budget = wanted.max_records
        if in_flight < wanted.max_record_locks:
            self.budget = min(self.budget, <int64_t>wanted.max_record_locks - in_flight)
        self.batch_size = wanted.batch_size
        self.is_exact = wanted.is_exact
        self.limit = wanted.delivery_count_limit
        self.threshold = max(2, (self.limit + 1) // 2)
        self.throttled = -1
        self.is_full = self.budget <= 0
        self.ranges = []

    cdef bint acquire_batch(self, int64_t first, int64_t last) except -1:
        """Acquire the free records of a batch. Return whether the acquisition continues with the next batch."""
        cdef SharePartition owner = self.owner
        cdef int64_t tracked_last = min(last, owner.next_offset - 1)
        cdef Py_ssize_t i = owner.runs.find(first)
        cdef bint is_first = True       # the first range of this batch
        cdef Run *run
        while not self.is_full and first <= tracked_last and i < owner.runs.count:
            run = &owner.runs.at[i]
            if run.first > tracked_last:
                break
            if is_free(run):
                i = self.acquire_run(max(first, run.first), min(tracked_last, run.last), i, is_first)
                is_first = False
            i += 1
        if not self.is_full and last >= owner.next_offset:
            self.acquire_new(last, is_first)
        if self.budget <= 0:
            self.is_full = True
        return not self.is_full

    cdef Py_ssize_t acquire_run(self, int64_t first, int64_t last, Py_ssize_t i, bint is_first) except -1:
        """Acquire as many records from `first` to `last` of the free run with index `i` as the limits allow. Split the
        run. Return the index of the run of acquired records."""
        cdef Runs runs = self.owner.runs
        cdef Run *run = &runs.at[i]
        cdef bint is_last_try = self.limit >= LEAST_LIMIT_WITH_LAST_TRY and run.count >= self.limit - 1
        if (is_last_try or (run.count >= self.threshold) != (self.throttled >= 0)) and self.ranges:
            self.is_full = True
            return i
        if is_last_try:
            last = first
            self.is_full = True
        elif run.count >= self.threshold:
            if self.throttled < 0:
                self.throttled = max(<int64_t>1, <int64_t>run.size >> (run.count - self.threshold + 1))
            last = min(last, first + self.throttled - 1)
        if self.is_exact:
            last = min(last, first + self.budget - 1)
        i = runs.split_at(first)
        runs.split_at(last + 1)
        self.give(&runs.at[i], is_first)
        return i

    cdef int acquire_new(self, int64_t last, bint is_first) except -1:
        """Acquire the records of a batch that are not tracked yet. `last` is the last offset of the batch."""
        cdef SharePartition owner = self.owner
        cdef int64_t first = owner.next_offset
        cdef int64_t end = min(last, first + self.budget - 1) if self.is_exact else last
        cdef Py_ssize_t i = owner.runs.count
        if self.throttled >= 0:
            self.is_full = True
            return 0
        owner.runs.append(new_run(first, end, AVAILABLE, 0))
        if end < last:
            owner.runs.append(new_run(end + 1, last, AVAILABLE, 0))
        owner.next_offset = last + 1
        return self.give(&owner.runs.at[i], is_first)

    cdef int give(self, Run *run, bint is_first) except -1:
        """Mark a free run as acquired by the member, and add its records to the ranges."""
        cdef int64_t size = run.last - run.first + 1
        cdef tuple previous = self.ranges[len(self.ranges) - 1] if self.ranges else None
        go_to(run, ACQUIRED)
        run.count += 1
        set_owner(run, self.member_id)
        run.deadline_ms = self.deadline_ms
        self.budget -= size
        if self.throttled >= 0:
            self.throttled -= size
        if self.throttled == 0 or (self.is_exact and self.budget <= 0):
            self.is_full = True
        if (previous is not None and previous[1] + 1 == run.first and previous[2] == run.count
                and (self.is_exact or not is_first or previous[1] - previous[0] + 1 < self.batch_size)):
            self.ranges[len(self.ranges) - 1] = (previous[0], run.last, previous[2])
        else:
            self.ranges.append((run.first, run.last, run.count))
        return 0

    cdef int end(self) except -1:
        """Store the size of each range that is delivered for the first time in its runs. Later deliveries of the range
        divide this size."""
        cdef Runs runs = self.owner.runs
        cdef Py_ssize_t i, end
        cdef int64_t first, last
        cdef int count
        for first, last, count in self.ranges:
            if count == 1:
                i = runs.split_at(first)
                end = runs.split_at(last + 1)
                for i in range(i, end):
                    runs.at[i].size = <int32_t>(last - first + 1)
        return 0

"""The states of records in a share partition: a test for each rule, and random histories that are compared with a slow
and simple implementation."""
from __future__ import annotations

import itertools
import random
import tracemalloc

import pytest
from reference.share_partition import ReferenceSharePartition

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.share.limits import Wanted
from kbroker.group.share.partition import MOST_PAST_LIMIT, SharePartition

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = 0, 1, 2, 3, 4
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
LIMIT = 5
LOCK_MS = 30_000


def wanted(records: int = 500, *, batch_size: int = 500, exact: bool = False, locks: int = 2000,
           limit: int = LIMIT) -> Wanted:
    return Wanted(records, batch_size, exact, locks, limit)


def log(*bounds: int) -> list[tuple[int, int, bool]]:
    """Return the batches of a log, split at the given offsets. For example, the arguments 0, 10, 20 mean the batches
    0-9 and 10-19."""
    return [(first, end - 1, False) for first, end in itertools.pairwise(bounds)]


def acquire(partition: SharePartition, batches: list[tuple[int, int, bool]], member: str = 'm1', now: int = 0,
            **options: object) -> list[tuple[int, int, int]]:
    return partition.acquire(member, batches, wanted(**options), now + LOCK_MS)  # type: ignore[arg-type]


def acknowledge(partition: SharePartition, first: int, last: int, *types: int, member: str = 'm1',
                limit: int = LIMIT) -> None:
    """Acknowledge the records from `first` to `last`, and immediately adopt the change."""
    change = partition.acknowledge(member, [(first, last, types)], limit, LOCK_MS)
    if change is not None:
        partition.adopt(change)


def refusal(partition: SharePartition, first: int, last: int, *types: int, member: str = 'm1') -> ErrorCode:
    before = partition.table()
    with pytest.raises(KafkaError) as raised:
        partition.acknowledge(member, [(first, last, types or (ACCEPT,))], LIMIT, LOCK_MS)
    assert partition.table() == before
    return raised.value.code


# ---- held records

def test_held_records_are_counted_and_the_first_runs_are_listed():
    partition = SharePartition(0)
    assert partition.held(9) == (0, 0, [])
    acquire(partition, log(0, 4))
    acquire(partition, log(4, 6), member='m2', now=5)
    acknowledge(partition, 1, 1, RELEASE)
    listed = [(0, 0, 1, 'm1', LOCK_MS, False), (2, 3, 1, 'm1', LOCK_MS, False), (4, 5, 1, 'm2', LOCK_MS + 5, False)]
    assert partition.held(9) == (5, 3, listed)
    assert partition.held(2) == (5, 3, listed[:2])


def test_records_with_a_change_under_way_are_held_until_it_is_adopted():
    partition = SharePartition(0)
    acquire(partition, log(0, 2))
    change = partition.acknowledge('m1', [(0, 1, [ACCEPT])], LIMIT, LOCK_MS)
    assert partition.held(9) == (2, 1, [(0, 1, 1, 'm1', LOCK_MS, True)])
    assert partition.expire(LOCK_MS, LIMIT) is None
    assert partition.held(9) == (2, 1, [(0, 1, 1, 'm1', None, True)])
    partition.adopt(change)
    assert partition.held(9) == (0, 0, [])


# ---- acquire

def test_whole_batches_are_acquired_until_there_are_enough_records():
    partition = SharePartition(0)
    assert acquire(partition, log(0, 10, 20, 30), records=15) == [(0, 19, 1)]
    assert (partition.start_offset, partition.next_offset) == (0, 20)
    assert acquire(partition, log(20, 30), member='m2') == [(20, 29, 1)]


def test_ranges_end_with_a_batch_once_they_have_the_batch_size():
    partition = SharePartition(0)
    assert acquire(partition, log(0, 10, 20, 30, 35), batch_size=15) == [(0, 19, 1), (20, 34, 1)]


def test_record_limit_stops_within_a_batch_and_leaves_the_rest_available():
    partition = SharePartition(0)
    assert acquire(partition, log(0, 10), records=4, exact=True) == [(0, 3, 1)]
    assert partition.next_fetch_offset() == 4 and partition.next_offset == 10
    assert acquire(partition, log(0, 10), member='m2', records=100, exact=True) == [(4, 9, 1)]


def test_acquired_records_are_not_acquired_again():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    assert partition.next_fetch_offset() == 10
    assert acquire(partition, log(10, 20), member='m2') == [(10, 19, 1)]


def test_the_limit_of_record_locks_is_passed_only_to_the_end_of_a_batch():
    partition = SharePartition(0)
    assert acquire(partition, log(0, 10, 20, 30), locks=15) == [(0, 19, 1)]
    assert not partition.is_acquirable(15)
    assert acquire(partition, log(20, 30), locks=15) == []


def test_at_the_limit_of_record_locks_only_tracked_records_are_acquired():
    partition = SharePartition(0)
    acquire(partition, log(0, 10, 20), locks=20)
    acknowledge(partition, 5, 9, RELEASE)
    assert partition.is_acquirable(20) and partition.next_fetch_offset() == 5
    assert acquire(partition, log(0, 10, 20, 30), locks=20) == [(5, 9, 2)]


def test_a_batch_of_very_many_records_is_acquired_in_parts():
    partition = SharePartition(0)
    assert acquire(partition, log(0, 1_000_000), locks=100) == [(0, 100 + MOST_PAST_LIMIT - 1, 1)]


def test_records_that_compaction_removed_are_archived():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    acknowledge(partition, 0, 4, RELEASE)
    assert acquire(partition, log(3, 20)) == [(3, 4, 2), (10, 19, 1)]
    assert partition.start_offset == 3


def test_nothing_is_tracked_of_a_hole_at_the_start():
    partition = SharePartition(0)
    assert acquire(partition, log(7, 10)) == [(7, 9, 1)]
    assert (partition.start_offset, partition.next_offset) == (7, 10)


def test_a_hole_between_batches_is_acquired_with_the_batch_behind_it():
    partition = SharePartition(0)
    assert acquire(partition, [(0, 4, False), (8, 9, False)], batch_size=1) == [(0, 4, 1), (5, 9, 1)]


def test_aborted_batches_are_archived_and_cut_out():
    partition = SharePartition(0)
    batches = [(0, 4, False), (5, 7, True), (8, 9, False)]
    assert acquire(partition, batches) == [(0, 4, 1), (8, 9, 1)]
    assert partition.delivery_complete_count() == 3
    acknowledge(partition, 0, 4, ACCEPT)
    assert partition.start_offset == 8


def test_aborted_batches_at_the_start_are_passed_over():
    partition = SharePartition(0)
    assert acquire(partition, [(0, 9, True)]) == []
    assert (partition.start_offset, partition.next_offset) == (10, 10)


# ---- acknowledge

@pytest.mark.parametrize(('kind', 'state'), [(GAP, ARCHIVED), (ACCEPT, ACKNOWLEDGED), (REJECT, ARCHIVED),
                                             (RELEASE, AVAILABLE)])
def test_each_type_has_its_state(kind, state):
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    change = partition.acknowledge('m1', [(5, 9, (kind,))], LIMIT, LOCK_MS)
    assert change.batches == [(5, 9, state, 1)] and change.start_offset == 0
    assert [row[2] for row in partition.table()] == [ACQUIRED, ACQUIRED]
    partition.adopt(change)
    assert partition.table()[1][2] == state


def test_one_type_for_each_record():
    partition = SharePartition(0)
    acquire(partition, log(0, 5))
    change = partition.acknowledge('m1', [(0, 4, (ACCEPT, ACCEPT, RELEASE, REJECT, GAP))], LIMIT, LOCK_MS)
    assert change.batches == [(0, 1, ACKNOWLEDGED, 1), (2, 2, AVAILABLE, 1), (3, 4, ARCHIVED, 1)]
    assert change.delivery_complete_count == 4
    partition.adopt(change)
    assert partition.start_offset == 2 and partition.next_fetch_offset() == 2


def test_the_start_moves_over_the_finished_prefix_once_it_is_durable():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    acknowledge(partition, 5, 9, ACCEPT)
    assert partition.start_offset == 0
    change = partition.acknowledge('m1', [(0, 4, (ACCEPT,))], LIMIT, LOCK_MS)
    assert change.start_offset == 0 and change.delivery_complete_count == 10
    partition.adopt(change)
    assert (partition.start_offset, partition.next_offset, partition.in_flight) == (10, 10, 0)


def test_a_release_at_the_limit_archives():
    partition = SharePartition(0)
    for _ in range(2):
        acquire(partition, log(0, 1), limit=2)
        acknowledge(partition, 0, 0, RELEASE, limit=2)
    assert (partition.start_offset, partition.next_offset) == (1, 1)


def test_a_record_of_another_member_is_refused():
    partition = SharePartition(0)
    acquire(partition, log(0, 5))
    acquire(partition, log(5, 10), member='m2')
    assert refusal(partition, 0, 9) is refusal(partition, 5, 5) is ErrorCode.INVALID_RECORD_STATE


def test_what_is_not_acquired_is_refused():
    partition = SharePartition(0)
    assert refusal(partition, 0, 0) is ErrorCode.INVALID_RECORD_STATE
    acquire(partition, log(0, 10))
    acknowledge(partition, 5, 9, RELEASE)
    assert refusal(partition, 4, 5) is ErrorCode.INVALID_RECORD_STATE


def test_what_is_past_the_tracked_records_is_refused():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    assert refusal(partition, 9, 10) is refusal(partition, 10, 11) is ErrorCode.INVALID_REQUEST


def test_what_is_below_the_start_is_passed_over():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    acknowledge(partition, 0, 4, ACCEPT)
    assert partition.acknowledge('m2', [(0, 4, (RELEASE,))], LIMIT, LOCK_MS) is None
    acknowledge(partition, 3, 9, ACCEPT)
    assert partition.start_offset == 10


def test_a_record_with_a_change_under_way_is_refused_and_not_available():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    change = partition.acknowledge('m1', [(0, 9, (RELEASE,))], LIMIT, LOCK_MS)
    assert refusal(partition, 0, 9) is ErrorCode.INVALID_RECORD_STATE
    assert partition.next_fetch_offset() == 10
    partition.adopt(change)
    assert partition.next_fetch_offset() == 0


def test_an_abandoned_change_leaves_the_records_acquired():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    change = partition.acknowledge('m1', [(0, 9, (ACCEPT,))], LIMIT, LOCK_MS)
    partition.abandon(change)
    assert partition.table() == [(0, 9, ACQUIRED, 1, 'm1')]
    acknowledge(partition, 0, 9, ACCEPT)


def test_a_renewed_lock_starts_again_and_is_not_written():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    assert partition.acknowledge('m1', [(0, 4, (RENEW,))], LIMIT, 2 * LOCK_MS) is None
    assert partition.expire(LOCK_MS, LIMIT).batches == [(5, 9, AVAILABLE, 1)]
    assert partition.next_deadline_ms() == 2 * LOCK_MS


# ---- release of records, and their locks

def test_a_release_frees_everything_of_the_member():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    acquire(partition, log(10, 20), member='m2')
    change = partition.release('m1', LIMIT)
    assert change.batches == [(0, 9, AVAILABLE, 1)] and partition.next_fetch_offset() == 20
    partition.adopt(change)
    assert partition.release('m1', LIMIT) is None
    assert acquire(partition, log(0, 10), member='m3') == [(0, 9, 2)]


def test_an_ended_lock_frees_even_if_the_write_fails():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    assert partition.next_deadline_ms() == LOCK_MS and partition.expire(LOCK_MS - 1, LIMIT) is None
    change = partition.expire(LOCK_MS, LIMIT)
    assert partition.next_deadline_ms() is None
    partition.abandon(change)
    assert acquire(partition, log(0, 10), member='m2') == [(0, 9, 2)]


def test_a_lock_that_ends_during_a_failing_write_frees_the_records():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    change = partition.acknowledge('m1', [(0, 9, (ACCEPT,))], LIMIT, LOCK_MS)
    assert partition.expire(LOCK_MS, LIMIT) is None
    partition.abandon(change)
    assert partition.table() == [(0, 9, AVAILABLE, 1, None)]


def test_a_lock_that_ends_during_a_write_changes_nothing_if_it_succeeds():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    change = partition.acknowledge('m1', [(0, 9, (ACCEPT,))], LIMIT, LOCK_MS)
    partition.expire(LOCK_MS, LIMIT)
    partition.adopt(change)
    assert partition.start_offset == 10


# ---- dead letters

@pytest.mark.parametrize(('kind', 'state'), [(GAP, ARCHIVED), (ACCEPT, ACKNOWLEDGED), (REJECT, ARCHIVING),
                                             (RELEASE, AVAILABLE)])
def test_only_a_rejected_record_waits_for_a_dead_letter(kind, state):
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    change = partition.acknowledge('m1', [(5, 9, (kind,))], LIMIT, LOCK_MS, True)
    assert change.batches == [(5, 9, state, 1)]
    assert change.dead_letters == ([(5, 9, 1, True)] if kind == REJECT else [])
    assert partition.archiving() == []
    partition.adopt(change)
    assert partition.table()[1][2] == state
    assert partition.archiving() == ([(5, 9, 1)] if kind == REJECT else [])


def test_an_archiving_record_holds_the_start_offset_and_is_not_delivered():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    change = partition.acknowledge('m1', [(0, 9, [REJECT] + [ACCEPT] * 9)], LIMIT, LOCK_MS, True)
    assert change.delivery_complete_count == 9
    partition.adopt(change)
    assert (partition.start_offset, partition.next_fetch_offset(), partition.in_flight) == (0, 10, 10)
    assert partition.table() == [(0, 0, ARCHIVING, 1, None), (1, 9, ACKNOWLEDGED, 0, None)]
    assert partition.held(9) == (0, 0, [])
    assert refusal(partition, 0, 0) is ErrorCode.INVALID_RECORD_STATE
    change = partition.finish_archiving(0, 0)
    assert (change.batches, change.start_offset, change.delivery_complete_count) == ([(0, 0, ARCHIVED, 1)], 0, 10)
    assert partition.finish_archiving(0, 9) is None, 'the change is in flight'
    partition.adopt(change)
    assert (partition.start_offset, partition.in_flight) == (10, 0)


def test_an_archiving_record_stays_so_if_its_end_cannot_be_written():
    partition = SharePartition(0)
    acquire(partition, log(0, 4))
    partition.adopt(partition.acknowledge('m1', [(0, 3, [REJECT])], LIMIT, LOCK_MS, True))
    partition.abandon(partition.finish_archiving(1, 2))
    assert partition.table() == [(0, 3, ARCHIVING, 1, None)]
    partition.adopt(partition.finish_archiving(0, 3))
    assert partition.start_offset == 4


def test_records_at_the_limit_of_deliveries_get_dead_letters_with_another_cause_than_rejected_ones():
    partition = SharePartition(0)
    acquire(partition, log(0, 4), limit=1)
    change = partition.acknowledge('m1', [(0, 3, [RELEASE, REJECT, REJECT, RELEASE])], 1, LOCK_MS, True)
    assert change.batches == [(0, 3, ARCHIVING, 1)]
    assert change.dead_letters == [(0, 0, 1, False), (1, 2, 1, True), (3, 3, 1, False)]


@pytest.mark.parametrize('ending', ['release', 'expire'])
def test_the_end_of_a_session_or_of_a_lock_at_the_limit_makes_dead_letters(ending):
    partition = SharePartition(0)
    acquire(partition, log(0, 4), limit=1)
    change = partition.release('m1', 1, True) if ending == 'release' else partition.expire(LOCK_MS, 1, True)
    assert (change.batches, change.dead_letters) == ([(0, 3, ARCHIVING, 1)], [(0, 3, 1, False)])


def test_a_record_is_not_archiving_before_this_is_stored():
    """Its lock has ended, and the write has failed. Without a dead-letter queue, such a record is archived in memory
    alone. With one, a dead letter would follow that a restart does not know."""
    partition = SharePartition(0)
    acquire(partition, log(0, 4), limit=1)
    partition.abandon(partition.expire(LOCK_MS, 1, True), LOCK_MS + 1000)
    assert partition.table() == [(0, 3, ACQUIRED, 1, 'm1')] and partition.archiving() == []
    assert partition.held(1) == (4, 1, [(0, 3, 1, 'm1', None, False)])
    assert refusal(partition, 0, 3) is ErrorCode.INVALID_RECORD_STATE
    assert partition.next_deadline_ms() == LOCK_MS + 1000
    assert partition.expire(LOCK_MS + 999, 1, True) is None
    partition.adopt(partition.expire(LOCK_MS + 1000, 1, True))
    assert partition.archiving() == [(0, 3, 1)] and partition.next_deadline_ms() is None


def test_archiving_records_below_the_start_of_the_log_are_no_longer_tracked():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    partition.adopt(partition.acknowledge('m1', [(2, 7, [REJECT])], LIMIT, LOCK_MS, True))
    partition.move_start(5)
    assert partition.archiving() == [(5, 7, 1)]
    assert partition.finish_archiving(2, 4) is None
    assert partition.finish_archiving(2, 7).batches == [(5, 7, ARCHIVED, 1)]
    partition.move_start(20)
    assert partition.archiving() == [] and partition.finish_archiving(0, 30) is None


# ---- isolation of records that no member can process

def tries(partition: SharePartition, batches: list[tuple[int, int, bool]], limit: int) -> list[tuple[int, int, int]]:
    found = acquire(partition, batches, limit=limit)
    for first, last, _ in found:
        acknowledge(partition, first, last, RELEASE, limit=limit)
    return found


def test_bad_records_are_given_in_halves_and_alone_in_their_last_try():
    partition = SharePartition(0)
    found = [tries(partition, log(0, 500), 10) for _ in range(10)]
    assert [[(last - first + 1, count) for first, last, count in each] for each in found] == [
        [(500, 1)], [(500, 2)], [(500, 3)], [(500, 4)], [(500, 5)],
        [(250, 6)], [(125, 7)], [(62, 8)], [(31, 9)], [(1, 10)]]
    assert partition.start_offset == 1


def test_bad_records_are_given_without_others():
    partition = SharePartition(0)
    for _ in range(3):
        tries(partition, log(0, 8), LIMIT)
    assert acquire(partition, log(0, 8, 16)) == [(0, 3, 4)]
    assert acquire(partition, log(4, 8, 16), member='m2') == [(4, 7, 4)]
    assert acquire(partition, log(8, 16), member='m3') == [(8, 15, 1)]


def test_good_records_are_given_without_bad_ones_behind_them():
    partition = SharePartition(0)
    acquire(partition, log(0, 4, 8))
    acknowledge(partition, 4, 7, RELEASE)
    for _ in range(2):
        tries(partition, log(4, 8), LIMIT)
    acknowledge(partition, 0, 3, RELEASE)
    assert acquire(partition, log(0, 4, 8)) == [(0, 3, 2)]


def test_a_limit_of_two_has_no_last_try_alone():
    partition = SharePartition(0)
    tries(partition, log(0, 8), 2)
    assert acquire(partition, log(0, 8), limit=2) == [(0, 7, 2)]


# ---- loading of stored batches, and moves of the log's start

def test_a_loaded_partition_fills_its_holes_with_available_records():
    partition = SharePartition(0, [(0, 4, ACKNOWLEDGED, 1), (10, 14, AVAILABLE, 2), (15, 19, ARCHIVED, 1)])
    assert partition.start_offset == 5
    assert [row[:4] for row in partition.table()] == [
        (5, 9, AVAILABLE, 0), (10, 14, AVAILABLE, 2), (15, 19, ARCHIVED, 0)]
    assert acquire(partition, log(0, 12, 30)) == [(5, 9, 1), (10, 14, 3), (20, 29, 1)]


def test_a_loaded_archiving_record_still_waits_for_its_dead_letter():
    partition = SharePartition(0, [(0, 4, ARCHIVING, 2), (5, 5, ARCHIVED, 1)])
    assert (partition.start_offset, partition.archiving()) == (0, [(0, 4, 2)])
    assert partition.finish_archiving(0, 9).batches == [(0, 4, ARCHIVED, 2)]


def test_the_log_start_takes_records_along():
    partition = SharePartition(0)
    acquire(partition, log(0, 10))
    change = partition.acknowledge('m1', [(0, 3, (ACCEPT,))], LIMIT, LOCK_MS)
    assert partition.move_start(6) and not partition.move_start(6)
    partition.adopt(change)
    assert partition.table() == [(6, 9, ACQUIRED, 1, 'm1')]
    assert partition.move_start(20)
    assert (partition.start_offset, partition.next_offset) == (20, 20)


# ---- memory

def test_a_share_partition_takes_64_bytes_for_each_record_in_flight_at_most():
    """Two members acquire records alternately, so that each record is a run of its own."""
    partition, locks = SharePartition(0), 2_000
    members = [f'member {number}' for number in range(2)]
    batches = [log(offset, offset + 1) for offset in range(locks)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for offset, batch in enumerate(batches):
            acquire(partition, batch, members[offset % 2], locks=locks)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert partition.runs_count == locks
    assert partition.runs_bytes <= taken <= 64 * locks


def test_finished_records_give_their_memory_back():
    partition = SharePartition(0)
    for offset in range(1_000):
        acquire(partition, log(offset, offset + 1), f'm{offset % 2}')
    most_bytes = partition.runs_bytes
    for offset in range(1_000):
        acknowledge(partition, offset, offset, ACCEPT, member=f'm{offset % 2}')
    assert (partition.runs_count, partition.in_flight) == (0, 0)
    assert partition.runs_bytes < most_bytes / 20


# ---- comparison with a slow and simple implementation

def expanded(table: list[tuple[int, int, int, int, str | None]]) -> list[tuple[int, int, int, str | None]]:
    return [(offset, state, count, member) for first, last, state, count, member in table
            for offset in range(first, last + 1)]


@pytest.mark.parametrize('seed', range(60))
def test_random_histories_have_the_results_of_the_slow_twin(seed):
    rng = random.Random(seed)
    limit, locks = rng.choice([2, 3, 5, 10]), rng.choice([5, 20, 60])
    end = 0
    all_batches: list[tuple[int, int, bool]] = []
    while end < 400:
        first = end + (rng.randrange(4) if rng.random() < 0.1 else 0)
        end = first + rng.choice([1, 1, 3, 8, 30])
        all_batches.append((first, end - 1, rng.random() < 0.1))
    loaded, at = [], 0
    for _ in range(rng.randrange(4)):
        first = at + rng.randrange(5)
        at = first + rng.randrange(1, 9)
        loaded.append((first, at - 1, rng.choice([AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED]), rng.randrange(limit)))
    ours, twin = SharePartition(0, loaded), ReferenceSharePartition(0, loaded)
    changes: list[tuple[object, object]] = []
    now = log_start = 0
    has_queue = rng.random() < 0.6
    for _ in range(120):
        action = rng.choice(['acquire', 'acquire', 'acknowledge', 'acknowledge', 'release', 'expire', 'settle',
                             'settle', 'start', 'archive', 'queue'])
        member = rng.choice(['m1', 'm2', 'm3'])
        results = []
        if action == 'acquire':
            wish = Wanted(rng.choice([0, 1, 5, 30]), rng.choice([1, 7, 500]), rng.random() < 0.3, locks, limit)
            offset = ours.next_fetch_offset()
            batches = [batch for batch in all_batches if batch[1] >= max(offset, log_start)][:rng.randrange(1, 9)]
            results = [each.acquire(member, batches, wish, now + 50) for each in (ours, twin)]
        elif action == 'acknowledge':
            first = ours.start_offset + rng.randrange(-3, 30)
            last = first + rng.randrange(10)
            held = [row for row in ours.table() if row[2] == ACQUIRED and row[4] is not None]
            if held and rng.random() < 0.8:
                first, last, _, _, member = rng.choice(held)
                if rng.random() < 0.5:
                    last = rng.randint(first, last)
            types = (rng.randrange(5),) if rng.random() < 0.5 else [rng.randrange(5) for _ in range(last - first + 1)]
            batches = [(first, last, types)]
            if len(types) > 1 and rng.random() < 0.5:       # the same records in two batches
                middle = rng.randrange(first, last)
                batches = [(first, middle, types[:middle - first + 1]), (middle + 1, last, types[middle - first + 1:])]
            results = [attempt(each, member, batches, limit, now + 50, has_queue) for each in (ours, twin)]
        elif action == 'release':
            results = [each.release(member, limit, has_queue) for each in (ours, twin)]
        elif action == 'expire':
            now += rng.randrange(40)
            results = [each.expire(now, limit, has_queue) for each in (ours, twin)]
        elif action == 'archive':
            first = ours.start_offset + rng.randrange(-3, 30)
            last = first + rng.randrange(40)
            results = [each.finish_archiving(first, last) for each in (ours, twin)]
        elif action == 'queue':
            has_queue = rng.random() < 0.6
        elif action == 'start' and rng.random() < 0.2:
            log_start += rng.randrange(20)
            assert ours.move_start(log_start) == twin.move_start(log_start)
        elif action == 'settle' and changes:
            pair = changes.pop(rng.randrange(len(changes)))
            is_durable, retry_ms = rng.random() < 0.6, now + rng.randrange(1, 30)
            for each, change in zip((ours, twin), pair, strict=True):
                if is_durable:
                    each.adopt(change)
                else:
                    each.abandon(change, retry_ms)
        compare(results, changes)
        assert expanded(ours.table()) == twin.table()
        assert (ours.start_offset, ours.next_offset) == (twin.start_offset, twin.next_offset)
        assert ours.next_fetch_offset() == twin.next_fetch_offset()
        assert ours.is_acquirable(locks) == twin.is_acquirable(locks)
        assert ours.delivery_complete_count() == twin.delivery_complete_count()
        assert ours.next_deadline_ms() == twin.next_deadline_ms()
        assert ours.is_archiving == bool(twin.archiving())
        assert [offset for first, last, _ in ours.archiving()
                for offset in range(first, last + 1)] == twin.archiving()


def attempt(partition, member, batches, limit, deadline_ms, makes_dead_letters):
    try:
        return partition.acknowledge(member, batches, limit, deadline_ms, makes_dead_letters)
    except KafkaError as error:
        return error.code


def compare(results, changes):
    if not results:
        return
    ours, twin = results
    if hasattr(ours, 'batches') or hasattr(twin, 'batches'):
        assert (ours.batches, ours.dead_letters, ours.start_offset, ours.delivery_complete_count) == (
            twin.batches, twin.dead_letters, twin.start_offset, twin.delivery_complete_count)
        changes.append((ours, twin))
    else:
        assert ours == twin

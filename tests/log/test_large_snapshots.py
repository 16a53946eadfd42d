"""Snapshots of many producers are encoded and written in parts, while appends continue. Each snapshot has the state at
its offset. The tests measure the processor time of their thread, so other load on the machine has no effect.
"""
import errno
import gc
import os
import random
import time

import pytest
from batches import T, data_batch, marker_batch, snapshot_of
from support.disk.faulty_file_systems import FailingFileSystem, FreezingFileSystem
from support.runner.attempts import assert_within

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.long_work import LongWork, run_to_end
from kbroker.log.append import Origin
from kbroker.log.check import check_partition
from kbroker.log.fs import FileSystem
from kbroker.log.producer_state import MOST_PRODUCERS_OF_PARTITION, ProducerStateTable

LONGEST_TURN_S = 0.010
SEVERAL_PARTS = 3_000
"""A number of producers for which a snapshot is encoded in several parts and written in two parts."""


class Works:
    """The long work of a log, as a list of generators. Each tick runs one part of each generator."""

    def __init__(self):
        self.long_work = LongWork(Timers(ManualClock()), slice_us=0)

    def start(self, steps):
        self.long_work.start(steps)

    def tick(self):
        self.long_work.run_slice()

    def finish(self):
        """Run all generators to their end. Return the number of ticks."""
        ticks = 0
        while len(self.long_work):
            self.tick()
            ticks += 1
        return ticks


@pytest.fixture
def works():
    return Works()


def append(log, producer_id, sequence=0, **fields):
    log.append_batch(data_batch(producer_id=producer_id, epoch=0, sequence=sequence, **fields), Origin.CLIENT, 0)


def crowded(open_log, works, producers=SEVERAL_PARTS, **options):
    """Return a log with one batch and the state of many producers, like a log whose older segments were deleted."""
    log = open_log(start_work=works.start, **options)
    append(log, 0)
    log.flush()
    log.producer_state.load_snapshot(snapshot_of(producers), 1, T)
    return log


def full(open_log, works, **options):
    """Return a log with many producers, each of which has written one batch."""
    log = open_log(start_work=works.start, **options)
    for producer_id in range(SEVERAL_PARTS):
        append(log, producer_id)
    return log


def producers_of(table):
    return sorted(table.active_producers())


def read_snapshot(log, offset):
    table = ProducerStateTable()
    table.load_snapshot(FileSystem().read_file(log.snapshots.path(offset)), offset, T)
    return table


def temporary_files(log):
    return [name for name in os.listdir(log.directory) if name.endswith('.tmp')]


def test_a_roll_with_as_many_producers_as_a_partition_may_have_takes_no_long_turn(open_log, works):
    """In an earlier version, a roll encoded all producers in one part, and the next sync wrote the whole snapshot. This
    took 17 to 28 ms on a busy machine."""
    log = crowded(open_log, works, MOST_PRODUCERS_OF_PARTITION)
    longest_s = 0.0

    def turn(operation):
        nonlocal longest_s
        began = time.thread_time()
        operation()
        longest_s = max(longest_s, time.thread_time() - began)

    gc.collect()
    gc.disable()
    try:
        append(log, 0, 1)
        turn(log.roll)
        while len(works.long_work):
            turn(works.tick)
        turn(log.flush)
        while len(works.long_work):
            turn(works.tick)
    finally:
        gc.enable()
    assert log.snapshots.offsets == [2]
    assert len(read_snapshot(log, 2).entries) == MOST_PRODUCERS_OF_PARTITION
    assert_within(longest_s, LONGEST_TURN_S)


def large_lists():
    return {id(each) for each in gc.get_objects() if type(each) is list and len(each) >= SEVERAL_PARTS}


def test_the_garbage_collector_has_no_list_of_producers_to_search(open_log, works):
    """In an earlier version, each snapshot listed its producers. After a request that rolled ten logs, the lists had a
    million entries, and each collection of young objects took 20 ms."""
    log = crowded(open_log, works)
    append(log, 0, 1)
    before = large_lists()
    log.roll()
    while len(works.long_work):
        assert large_lists() <= before
        works.tick()


@pytest.mark.parametrize('seed', range(5))
def test_a_snapshot_shows_the_state_at_its_offset_though_appends_go_on(open_log, works, seed):
    rng = random.Random(seed)
    log = full(open_log, works)
    append(log, 5, 1, transactional=True)
    append(log, 6, 1, transactional=True)
    at_offset, ongoing = producers_of(log.producer_state), log.producer_state.unstable.ongoing
    offset = log.log_end_offset
    log.roll()
    sequences = {}
    for number in range(200):
        producer_id = rng.choice([rng.randrange(7, SEVERAL_PARTS), SEVERAL_PARTS + number])
        append(log, producer_id, sequences.get(producer_id, 0 if producer_id >= SEVERAL_PARTS else
                                               log.producer_state.get(producer_id).last_sequence + 1))
        sequences[producer_id] = log.producer_state.get(producer_id).last_sequence + 1
        if number == 20:
            log.append_batch(marker_batch(commit=True, producer_id=5, epoch=0), Origin.COORDINATOR, 0)
        if number == 40:
            run_to_end(log.producer_state.remove_expired(T + 86_400_000 - 1))
        if number % 50 == 0:
            works.tick()
        if number == 100:
            log.flush()
    works.finish()
    log.flush()
    works.finish()
    found = read_snapshot(log, offset)
    assert producers_of(found) == at_offset and found.unstable.ongoing == ongoing
    log.close()
    assert check_partition(FileSystem(), log.directory) == []


@pytest.mark.parametrize('ticks', range(3))
def test_producers_that_expire_while_a_snapshot_is_encoded_are_in_it(open_log, works, ticks):
    log = crowded(open_log, works)
    append(log, 0, 1, timestamp_ms=T + 1)
    log.roll()
    for _ in range(ticks):
        works.tick()
    assert run_to_end(log.producer_state.remove_expired(T + 86_400_000)) == SEVERAL_PARTS - 1
    log.flush()
    works.finish()
    assert len(read_snapshot(log, 2).entries) == SEVERAL_PARTS


def test_a_segment_that_is_closed_before_the_last_snapshot_is_encoded_has_none(open_log, works):
    """The next opening then uses an older snapshot and the batches after it."""
    log = crowded(open_log, works)
    for sequence in range(1, 4):
        append(log, 0, sequence)
        log.roll()
    log.flush()
    works.finish()
    assert log.snapshots.offsets == [2]
    append(log, 0, 4)
    log.roll()
    log.flush()
    works.finish()
    assert log.snapshots.offsets == [2, 5]
    log.close()
    assert open_log().producer_state.get(0).last_sequence == 4


def test_snapshots_that_wait_for_a_slow_disk_are_bounded_the_oldest_and_the_newest_stay(open_log, works):
    log = crowded(open_log, works, MOST_PRODUCERS_OF_PARTITION)
    for sequence in range(1, 5):
        append(log, 0, sequence)
        log.roll()
        works.finish()
    log.flush()
    works.finish()
    assert log.snapshots.offsets == [2, 5]


def test_a_crash_before_a_snapshot_exists_costs_nothing_but_time(open_log, works):
    log = full(open_log, works)
    expected = producers_of(log.producer_state)
    log.roll()
    log.flush()
    assert len(works.long_work) == 1 and log.snapshots.offsets == []
    again = open_log(clean_shutdown=False)
    assert producers_of(again.producer_state) == expected and again.log_end_offset == SEVERAL_PARTS
    again.close()
    assert check_partition(FileSystem(), again.directory) == []


@pytest.mark.parametrize('seed', range(4))
def test_a_power_cut_while_a_snapshot_is_written_leaves_no_part_of_it(open_log, works, tmp_path, seed):
    """The power fails before the first part is written, after each part, and after the rename."""
    fs = FreezingFileSystem(tmp_path)
    log = full(open_log, works, file_system=fs)
    expected = producers_of(log.producer_state)
    log.roll()
    log.flush()
    stops = 0
    while True:
        left = tmp_path.with_name(f'{tmp_path.name}-after-{stops}')
        fs.crash(left, random.Random(seed * 100 + stops))
        again = open_log(clean_shutdown=False, root=left)
        assert producers_of(again.producer_state) == expected and temporary_files(again) == []
        again.close()
        assert check_partition(FileSystem(), again.directory) == []
        if not len(works.long_work):
            break
        works.tick()
        stops += 1
    assert stops > SEVERAL_PARTS // 512 and log.snapshots.offsets == [SEVERAL_PARTS]


@pytest.mark.parametrize('operation', ['open', 'write', 'rename'])
def test_a_snapshot_that_cannot_be_written_leaves_no_file(open_log, works, operation, caplog):
    failing = FailingFileSystem()
    log = crowded(open_log, works, file_system=failing)
    append(log, 0, 1)
    log.roll()
    works.finish()
    failing.fail = lambda change, path: errno.ENOSPC if change == operation and '.snapshot' in path else None
    log.flush()
    works.finish()
    assert log.failure is None and log.snapshots.offsets == [] and temporary_files(log) == []
    assert 'cannot write the snapshot of offset 2' in caplog.text


@pytest.mark.parametrize('end', [
    lambda log: log.close(), lambda log: log.close(clean=False), lambda log: log.roll() or log.apply_retention(3)])
def test_a_snapshot_that_is_not_needed_any_more_is_given_up(open_log, works, clock, end):
    clock.set_wall_ms(T + 86_400_000)
    log = crowded(open_log, works, retention_ms=1)
    append(log, 0, 1)
    log.roll()
    works.finish()
    append(log, 0, 2)
    log.flush()
    assert len(temporary_files(log)) == 1
    end(log)
    assert temporary_files(log) == []
    written = list(log.snapshots.offsets)
    works.finish()
    assert log.snapshots.offsets == written
    assert temporary_files(log) == []

"""Log compaction: the choice of a log, the remaining records, and the state after a failure. Covers KIP-354 and
KIP-534.
"""

import errno
import logging
import os

import pytest
from batches import T
from support.disk.directory_with_cleaner import BACKOFF_MS, DirectoryWithCleaner, end, markers_of, records_of, write
from support.disk.faulty_file_systems import FailingFileSystem
from support.disk.held_disk import HeldDisk

from kbroker.base.long_work import run_to_end
from kbroker.log.append import Origin
from kbroker.log.check import Severity, check_partition
from kbroker.log.cleaner import LOGS_AT_ONCE, SOON_MS, examine, group_segments
from kbroker.log.fs import FileSystem
from kbroker.log.timestamps import INLINE
from kbroker.record.batch import encode_batch, read_header
from kbroker.wire.crc32c import crc32c

DAY_MS = 86_400_000


@pytest.fixture
def directory(tmp_path):
    directory = DirectoryWithCleaner(tmp_path / 'data')
    directory.cleaner.start()
    return directory


def checkpoint(tmp_path):
    return (tmp_path / 'data' / 'cleaner-offset-checkpoint').read_text().splitlines()[2:]


# ---- remaining records ----


def test_the_last_record_of_each_key_stays(directory):
    log = directory.open()
    write(log, ('a', '1'), ('b', '1'))
    write(log, ('a', '2'))
    log.roll()
    write(log, ('b', '2'))
    directory.clean(log)
    assert records_of(log) == [(2, 'a', '2'), (3, 'b', '2')]


def test_what_is_in_the_active_segment_stays_and_counts_not(directory):
    log = directory.open()
    write(log, ('a', '1'))
    log.roll()
    write(log, ('a', '2'))
    directory.run()
    assert records_of(log) == [(0, 'a', '1'), (1, 'a', '2')]


def test_a_batch_of_which_nothing_changes_is_copied_byte_for_byte(directory):
    log = directory.open()
    for number in range(5):
        write(log, (f'key {number}', 'value'), ('last', '1' if number == 4 else '0'), codec=number)
    before = [bytes(batch) for _, batch in log.batches()]
    directory.clean(log)
    after = [bytes(batch) for _, batch in log.batches()]
    assert after[4] == before[4] and all(old != new for old, new in zip(before[:4], after[:4], strict=True))
    assert [read_header(batch).compression for batch in after] == [0, 1, 2, 3, 4]


def test_a_tombstone_goes_when_delete_retention_ms_have_passed_since_it_was_first_cleaned(directory):
    log = directory.open()
    write(log, ('a', '1'))
    write(log, ('a', None), ('b', '1'))
    directory.clean(log)
    assert records_of(log) == [(1, 'a', None), (2, 'b', '1')]
    horizon_ms = directory.clock.wall_ms() + DAY_MS
    assert [header.delete_horizon_ms for header, _ in log.batches()] == [horizon_ms]
    directory.clock.set_wall_ms(horizon_ms - BACKOFF_MS - 1)
    write(log, ('c', '1'))
    directory.clean(log)
    assert (1, 'a', None) in records_of(log)
    write(log, ('d', '1'))
    directory.clean(log)
    assert records_of(log) == [(2, 'b', '1'), (3, 'c', '1'), (4, 'd', '1')]


def test_a_delete_horizon_does_not_change_the_time_of_a_record(directory):
    log = directory.open()
    log.append_batch(encode_batch([(T - 5, b'a', None), (T + 7, b'b', b'1')]), Origin.CLIENT, 0)
    directory.clean(log)
    assert run_to_end(log.offset_for_timestamp(T - 5, INLINE)) == (T - 5, 0, 0)
    assert run_to_end(log.offset_for_timestamp(T, INLINE)) == (T + 7, 1, 0)
    assert run_to_end(log.max_timestamp(INLINE)) == (T + 7, 1, 0)


def test_records_without_a_key_go(directory):
    """A compacted topic may have records without a key: its policy may have been `delete` when they were written."""
    log = directory.open()
    log.append_batch(encode_batch([(T, None, b'value'), (T, b'', b'an empty key is one')]), Origin.CLIENT, 0)
    directory.clean(log)
    assert records_of(log) == [(1, '', 'an empty key is one')]


# ---- transactions ----


def test_aborted_data_goes_and_hides_nothing(directory):
    log = directory.open()
    write(log, ('a', 'committed'))
    write(log, ('a', 'aborted'), producer=(1, 0, 0), transactional=True)
    end(log, 1, 0, commit=False)
    directory.clean(log)
    assert records_of(log) == [(0, 'a', 'committed')]


def test_nothing_from_the_first_open_transaction_on_is_cleaned(directory):
    log = directory.open()
    write(log, ('a', '1'))
    log.roll()
    write(log, ('a', '2'))
    log.roll()
    write(log, ('b', '1'), producer=(1, 0, 0), transactional=True)
    write(log, ('a', '3'))
    directory.clean(log)
    assert records_of(log) == [(1, 'a', '2'), (2, 'b', '1'), (3, 'a', '3')]


@pytest.mark.parametrize('commit', [True, False])
def test_a_marker_goes_two_cleanings_after_the_data_of_its_transaction(directory, commit):
    log = directory.open()
    write(log, ('a', '1'), producer=(1, 0, 0), transactional=True)
    end(log, 1, 0, commit=commit)
    write(log, ('a', '2'), producer=(1, 0, 1))
    directory.clean(log)
    assert markers_of(log) == [(1, None)], 'this cleaning still found data of the transaction'
    assert len(log.aborted_transactions(0, 3)) == (not commit)
    write(log, ('b', '1'))
    directory.clean(log)
    assert markers_of(log) == [(1, directory.clock.wall_ms() + DAY_MS)]
    assert log.aborted_transactions(0, 3) == []
    directory.clock.advance(DAY_MS)
    write(log, ('c', '1'))
    directory.clean(log)
    assert markers_of(log) == []


def test_a_marker_stays_as_long_as_data_of_its_committed_transaction_does(directory):
    log = directory.open()
    write(log, ('a', '1'), producer=(1, 0, 0), transactional=True)
    end(log, 1, 0, commit=True)
    for number in range(3):
        write(log, ('b', str(number)))
        directory.clock.advance(DAY_MS)
        directory.clean(log)
        assert markers_of(log) == [(1, None)]


def test_the_last_batch_of_an_active_producer_stays_as_a_header(directory, tmp_path):
    log = directory.open()
    write(log, ('a', '1'), ('a', '2'), codec=3, producer=(1, 4, 10))
    write(log, ('a', '3'))
    directory.clean(log)
    husk = next(header for header, _ in log.batches())
    assert (husk.base_offset, husk.last_offset, husk.records_count, husk.size_bytes) == (0, 1, 0, 61)
    assert (husk.producer_id, husk.producer_epoch, husk.base_sequence, husk.last_sequence) == (1, 4, 10, 11)
    assert (husk.compression, husk.base_timestamp_ms, husk.max_timestamp_ms) == (0, -1, T)
    directory.manager.close(clean=False)
    for snapshot in (tmp_path / 'data' / 'topic-0').glob('*.snapshot'):
        snapshot.unlink()
    again = DirectoryWithCleaner(tmp_path / 'data').open()
    assert again.producer_state.get(1).last_sequence == 11
    write(again, ('a', '1'), ('a', '2'), codec=3, producer=(1, 4, 10))
    assert again.log_end_offset == 3, 'the duplicate is still recognised'


def test_the_last_batch_before_the_high_watermark_stays_as_a_header(directory):
    """A consumer may wait at the first offset of this batch. The header shows the consumer that it has reached the end.
    """
    log = directory.open()
    write(log, ('a', '1'))
    write(log, ('b', '1'), producer=(1, 0, 0), transactional=True)
    end(log, 1, 0, commit=False)
    directory.clean(log)
    run_to_end(log.producer_state.remove_expired(directory.clock.wall_ms() + DAY_MS))
    directory.clock.advance(2 * DAY_MS)
    write(log, ('b', '1'), producer=(2, 0, 0), transactional=True)
    end(log, 2, 0, commit=False)
    write(log, ('c', '1'), producer=(2, 0, 1), transactional=True)
    end(log, 2, 0, commit=False)
    directory.clean(log)
    assert log.segments[-1].size_bytes == 0
    slice = log.read(1, 1000, log.log_end_offset, True)
    assert slice is not None and slice.end_offset == log.log_end_offset


def test_state_that_begins_inside_a_transaction_does_not_outlive_its_marker(directory, tmp_path):
    """In an earlier version, a snapshot between a transaction's data and its marker was kept when the marker was
    removed.

    A start after a crash loaded that snapshot, and the transaction stayed open forever.
    """
    log = directory.open(delete_retention_ms=0)
    write(log, ('a', '1'), producer=(1, 0, 0), transactional=True)
    log.roll()
    end(log, 1, 0, commit=False)
    for number in range(4):
        write(log, ('b', str(number)), producer=(1, 0, number + 1))
        directory.clean(log)
    assert markers_of(log) == []
    directory.manager.close(clean=False)
    for file in (tmp_path / 'data' / 'topic-0').glob('*index'):
        file.unlink()
    again = DirectoryWithCleaner(tmp_path / 'data').open()
    assert again.first_unstable_offset() is None
    assert again.producer_state.get(1).last_sequence == 4


# ---- choice of a log ----


def test_a_log_is_cleaned_when_its_dirty_part_is_large_enough(directory):
    log = directory.open(min_cleanable_dirty_ratio=0.5)
    write(log, *((f'key {number}', 'value') for number in range(20)))
    directory.clean(log)
    segments = list(log.segments)
    write(log, *((f'key {number}', 'value') for number in range(10)))
    directory.clean(log)
    assert log.segments[0] is segments[0]
    write(log, *((f'key {number}', 'value') for number in range(15)))
    directory.clean(log)
    assert len(records_of(log)) == 20


def test_the_log_with_the_largest_dirty_part_comes_first(directory, caplog):
    caplog.set_level(logging.INFO, 'kbroker.log.cleaner')
    logs = [directory.open(name) for name in ('half', 'all', 'none')]
    write(logs[0], ('a', '1'))
    directory.clean(logs[0])
    caplog.clear()
    for log in logs[:2]:
        write(log, ('a', '2'))
        log.roll()
    directory.run()
    assert [record.args[0].rpartition('/')[2] for record in caplog.records if 'cleaned' in record.msg] == [
        'all-0',
        'half-0',
    ]


def test_records_younger_than_min_compaction_lag_ms_are_left_alone(directory):
    log = directory.open(min_compaction_lag_ms=DAY_MS)
    write(log, ('a', '1'))
    write(log, ('a', '2'))
    directory.clean(log)
    assert len(records_of(log)) == 2
    directory.run(DAY_MS)
    assert records_of(log) == [(1, 'a', '2')]


def test_max_compaction_lag_ms_has_a_log_rolled_and_cleaned_that_is_not_dirty_enough(directory):
    log = directory.open(min_cleanable_dirty_ratio=1, max_compaction_lag_ms=DAY_MS)
    write(log, ('a', '1'), ('a', '2'))
    directory.run(DAY_MS + 1)
    write(log, ('b', '1'))
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    directory.run()
    assert records_of(log) == [(1, 'a', '2'), (2, 'b', '1')]


def test_a_log_with_another_policy_is_not_cleaned(directory):
    log = directory.open(cleanup_policy='delete')
    write(log, ('a', '1'), ('a', '2'))
    directory.clean(log)
    assert len(records_of(log)) == 2


def test_the_cleaner_can_be_switched_off(tmp_path):
    directory = DirectoryWithCleaner(tmp_path / 'data', log_cleaner_enable='false')
    directory.cleaner.start()
    log = directory.open()
    write(log, ('a', '1'), ('a', '2'))
    directory.clean(log)
    assert len(records_of(log)) == 2
    directory.cleaner.stop()


def test_compact_and_delete_together_do_both(directory):
    log = directory.open(cleanup_policy='compact,delete', retention_ms=DAY_MS)
    write(log, ('a', '1'), ('a', '2'))
    directory.clean(log)
    assert records_of(log) == [(1, 'a', '2')]
    directory.clock.advance(2 * DAY_MS)
    log.apply_retention(log.flushed_offset)
    assert (records_of(log), log.log_start_offset) == ([], 2)
    write(log, ('a', '3'), ('a', '4'))
    directory.clean(log)
    assert records_of(log) == [(3, 'a', '4')]


def test_more_keys_than_the_map_holds_take_several_cleanings(tmp_path):
    directory = DirectoryWithCleaner(tmp_path / 'data', log_cleaner_dedupe_buffer_size=24 * 12)
    directory.cleaner.start()
    log = directory.open()
    for number in range(40):
        write(log, (f'key {number}', 'old'), (f'key {number}', 'new'))
    directory.clean(log)
    assert records_of(log) == [(2 * number + 1, f'key {number}', 'new') for number in range(40)]


def test_segments_are_grouped_up_to_segment_bytes(directory):
    log = directory.open(segment_bytes=1 << 20)
    for number in range(6):
        write(log, (f'key {number}', 'v' * 300_000))
        log.roll()
    sizes = [[segment.base_offset for segment in group] for group in group_segments(log.segments[:-1], log.config)]
    assert sizes == [[0, 1, 2], [3, 4, 5]]
    directory.run()
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]
    assert [segment.next_offset for segment in log.segments] == [3, 6, 6]


def test_segments_are_not_grouped_beyond_what_a_relative_offset_holds(directory):
    log = directory.open()
    write(log, ('a', '1'))
    log.append_batch(encode_batch([(T, b'b', b'1')], last_offset_delta=2**31 - 2), Origin.CLIENT, 0)
    log.roll()
    write(log, ('c', '1'))
    log.roll()
    assert [len(group) for group in group_segments(log.segments[:-1], log.config)] == [1, 1]


def test_the_first_dirty_offset_outlives_a_restart(directory, tmp_path):
    log = directory.open()
    write(log, ('a', '1'), ('a', '2'))
    directory.clean(log)
    assert checkpoint(tmp_path) == ['topic 0 2']
    directory.cleaner.stop()
    directory.manager.close()
    again = DirectoryWithCleaner(tmp_path / 'data')
    log = again.open()
    again.cleaner.start()
    assert examine(log, 2, 2, T).dirty == []
    segments = list(log.segments)
    again.run()
    assert list(log.segments) == segments


def test_a_first_dirty_offset_that_the_log_does_not_have_counts_for_nothing(tmp_path):
    directory = DirectoryWithCleaner(tmp_path / 'data')
    (tmp_path / 'data' / 'cleaner-offset-checkpoint').write_text('0\n2\ntopic 0 100\ngone 0 7\n')
    log = directory.open()
    directory.cleaner.start()
    write(log, ('a', '1'), ('a', '2'))
    directory.clean(log)
    assert records_of(log) == [(1, 'a', '2')]
    assert checkpoint(tmp_path) == ['topic 0 2']


def test_a_topic_of_the_same_name_as_a_deleted_one_is_dirty_from_its_start(directory, tmp_path):
    log = directory.open()
    write(log, ('a', '1'), ('a', '2'))
    directory.clean(log)
    run_to_end(directory.manager.delete_logs([('topic', 0)]))
    log = directory.open()
    write(log, ('a', '1'), ('a', '2'), ('a', '3'))
    directory.clean(log)
    assert records_of(log) == [(2, 'a', '3')]


# ---- concurrent readers and writers ----


def test_a_slice_taken_before_is_read_after(directory):
    log = directory.open()
    write(log, ('a', '1'))
    write(log, ('a', '2'))
    slice = log.read(0, 1000, 2, True)
    before = slice.read()
    directory.clean(log)
    directory.run(DAY_MS)
    assert slice.read() == before


def test_a_reader_of_single_batches_continues_in_the_new_segments(directory):
    log = directory.open()
    for number in range(4):
        write(log, (f'key {number % 2}', str(number)))
        log.roll()
    batches = log.batches()
    assert next(batches)[0].base_offset == 0
    directory.run()
    assert [header.base_offset for header, _ in batches] == [2, 3]


def later(directory):
    """Return (submit, run_one, jobs). `submit` adds a job to `jobs` without running it, and `run_one` runs the oldest
    job.
    """
    jobs = []

    def run_one():
        job, done = jobs.pop(0)
        done(job())
        directory.timers.run_due()

    return (lambda job, done: jobs.append((job, done))), run_one, jobs


def open_dirty(directory, count):
    """Return `count` new logs, each with a dirty part."""
    logs = [directory.open(f'topic {number}') for number in range(count)]
    for log in logs:
        write(log, ('a', '1'))
        write(log, ('a', '2'))
        log.roll()
        log.flush()
        log.producer_state.unstable.on_high_watermark(log.flushed_offset)
    return logs


def test_logs_are_chosen_in_parts(directory):
    """In an earlier version, choosing among 10,000 cleaned logs blocked the event loop for more than a second."""
    logs = open_dirty(directory, 3 * LOGS_AT_ONCE)
    directory.cleaner._submit, _, jobs = later(directory)
    examined, parts = [], []
    directory.manager.high_watermark = lambda log: examined.append(log) or log.flushed_offset
    directory.clock.advance(BACKOFF_MS)
    while not jobs:
        directory.timers.run_due()
        parts.append(len(examined) - sum(parts))
        directory.clock.advance(SOON_MS)
    assert max(parts) == LOGS_AT_ONCE
    assert examined == [*logs, logs[0]]


def test_a_cleaning_waits_for_the_recovery_points_and_one_write_of_them_serves_many(tmp_path):
    disk = HeldDisk(is_held=True)
    directory = DirectoryWithCleaner(tmp_path / 'data', sync=disk.sync)
    directory.cleaner.start()
    logs = open_dirty(directory, 3)
    for _ in range(10):
        directory.run()
    assert [records_of(log) for log in logs] == [[(0, 'a', '1'), (1, 'a', '2')]] * 3
    syncs = 0
    while disk.jobs:
        disk.finish()
        syncs += 1
    directory.run()
    assert [records_of(log) for log in logs] == [[(1, 'a', '2')]] * 3
    assert syncs == 2, 'the file and its directory'


def test_jobs_are_bounded_and_appends_go_on_between_them(tmp_path, monkeypatch):
    monkeypatch.setattr('kbroker.log.cleaner.STEP_BYTES', 100)
    directory = DirectoryWithCleaner(tmp_path / 'data')
    directory.cleaner._submit, run_one, jobs = later(directory)
    directory.cleaner.start()
    log = directory.open()
    for number in range(20):
        write(log, ('a', str(number)))
    log.roll()
    directory.run()
    count = 0
    while jobs:
        write(log, ('b', 'meanwhile'))
        log.flush()
        run_one()
        count += 1
    assert count > 20
    assert records_of(log) == [(19, 'a', '19'), *((20 + number, 'b', 'meanwhile') for number in range(count))]


@pytest.mark.parametrize('steps', range(5))
def test_a_cleaning_of_a_log_that_is_deleted_is_given_up(tmp_path, steps):
    directory = DirectoryWithCleaner(tmp_path / 'data')
    directory.cleaner._submit, run_one, jobs = later(directory)
    directory.cleaner.start()
    log = directory.open()
    write(log, ('a', '1'), ('a', '2'))
    log.roll()
    directory.run()
    for _ in range(min(steps, 3)):
        run_one()
    run_to_end(directory.manager.delete_logs([('topic', 0)]))
    while jobs:
        run_one()
    directory.clock.advance(DAY_MS)
    directory.timers.run_due()
    assert not [name for name in os.listdir(tmp_path / 'data') if name.startswith('topic')]


@pytest.mark.parametrize('steps', range(4))
def test_a_stop_gives_up_the_cleaning_in_progress(tmp_path, steps):
    directory = DirectoryWithCleaner(tmp_path / 'data')
    directory.cleaner._submit, run_one, jobs = later(directory)
    directory.cleaner.start()
    log = directory.open()
    write(log, ('a', '1'), ('a', '2'))
    log.roll()
    directory.run()
    for _ in range(steps):
        run_one()
    directory.cleaner.stop()
    while jobs:
        run_one()
    assert not list((tmp_path / 'data').rglob('*.cleaned'))
    directory.manager.close()
    assert check_partition(FileSystem(), log.directory) == []


def test_segments_that_retention_took_meanwhile_do_not_come_back(tmp_path):
    directory = DirectoryWithCleaner(tmp_path / 'data')
    directory.cleaner._submit, run_one, jobs = later(directory)
    directory.cleaner.start()
    log = directory.open()
    for number in range(3):
        write(log, ('a', str(number)))
        log.roll()
    directory.run()
    log.delete_records(2)
    log.apply_retention(3)
    while jobs:
        run_one()
    assert (records_of(log), log.log_start_offset) == ([(2, 'a', '2')], 2)


# ---- failures ----


def test_a_log_with_damage_is_left_alone_and_the_others_go_on(directory, tmp_path, caplog):
    damaged, sound = directory.open('damaged'), directory.open('sound')
    for log in (damaged, sound):
        write(log, ('a', '1'), ('a', '2'))
        write(log, ('a', '3'))
        log.roll()
    path = tmp_path / 'data' / 'damaged-0' / f'{0:020}.log'
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    for _ in range(3):
        directory.run()
    assert records_of(sound) == [(2, 'a', '3')]
    assert path.read_bytes() == data
    assert [record.args[0] for record in caplog.records if record.levelno == logging.ERROR] == [damaged.directory]
    assert 'wrong checksum' in caplog.text


@pytest.mark.parametrize('count', [-1, 0, 1, 3])
def test_a_batch_that_does_not_hold_the_records_it_says_is_left_as_it_is(directory, count, caplog):
    """The checksum of the batch is valid, so its writer was faulty. The cleaner must not drop any bytes of the batch.
    """
    batch = encode_batch([(T, b'a', b'1'), (T, b'a', b'2')])
    batch[57:61] = count.to_bytes(4, 'big', signed=True)
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, 'big')
    log = directory.open()
    log.append_batch(batch, Origin.REPLICATION, 0)
    directory.clean(log)
    assert [bytes(found) for _, found in log.batches()] == [bytes(batch)]
    assert 'the log will not be cleaned again' in caplog.text


def test_want_of_space_leaves_a_log_as_it_was_until_there_is_some(tmp_path, caplog):
    fs = FailingFileSystem()
    directory = DirectoryWithCleaner(tmp_path / 'data', fs)
    directory.cleaner.start()
    log = directory.open()
    write(log, ('a', '1'), ('a', '2'))
    log.roll()
    fs.fail = lambda operation, path: errno.ENOSPC if operation == 'write' and path.endswith('.cleaned') else None
    directory.run()
    assert len(records_of(log)) == 2 and log.failure is None
    assert not list((tmp_path / 'data').rglob('*.cleaned'))
    assert 'No space left on device' in caplog.text
    fs.fail = lambda operation, path: None
    directory.run()
    assert len(records_of(log)) == 1


@pytest.mark.parametrize(('source', 'expected'), [
    ('.log', [(1, 'a', '2')]), ('.log.cleaned', [(0, 'a', '1'), (1, 'a', '2')])])
def test_a_swap_that_fails_takes_the_log_offline_and_the_next_start_ends_it(tmp_path, source, expected):
    """In an earlier version, the cleaned log file was removed after a failed swap, and the old log file got the new
    indexes."""
    directory = DirectoryWithCleaner(tmp_path / 'data', fs := FailingFileSystem())
    directory.cleaner.start()
    log = directory.open()
    for value in '12':
        write(log, ('a', value))
        log.roll()
    fs.fail = lambda operation, path: errno.EIO if operation == 'rename' and path.endswith(source) else None
    directory.run()
    assert log.failure is not None
    directory.manager.close(clean=False)
    again = DirectoryWithCleaner(tmp_path / 'data')
    assert records_of(again.open()) == expected
    again.manager.close()
    assert not [found for found in check_partition(FileSystem(), log.directory) if found.severity is Severity.ERROR]

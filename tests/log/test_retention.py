"""Rolling, deleting and replacing segments."""
import os
from functools import partial

import pytest
from batches import T, data_batch, marker_batch
from support.disk.faulty_file_systems import FailingFileSystem, fail_nth

from kbroker.base.clock import Timers
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import run_to_end
from kbroker.log.append import Origin
from kbroker.log.check import check_partition
from kbroker.log.fs import FileSystem
from kbroker.log.leader_epochs import LeaderEpochs
from kbroker.log.producer_state import ProducerStateTable
from kbroker.log.segment import SEGMENT_SUFFIXES, Segment
from kbroker.log.swap import CLEANED_SUFFIX, SWAP_SUFFIX, finish_swaps, rename_files
from kbroker.log.timestamps import INLINE


def append(log, **batch):
    return log.append_batch(data_batch(**batch), Origin.CLIENT, 0)


def bases(log):
    return [segment.base_offset for segment in log.segments]


def contents(log):
    return [(header.base_offset, bytes(batch)) for header, batch in log.batches()]


def test_a_segment_rolls_before_it_would_exceed_its_size(open_log):
    log = open_log(segment_bytes=1_048_576)
    size = len(data_batch(value=b'x' * 1000))
    fitting = 1_048_576 // size
    for _ in range(fitting):
        append(log, value=b'x' * 1000)
    assert bases(log) == [0]
    append(log, value=b'x' * 1000)
    assert bases(log) == [0, fitting]


def test_a_batch_larger_than_a_segment_is_refused(open_log):
    log = open_log(segment_bytes=1_048_576)
    with pytest.raises(KafkaError) as raised:
        append(log, value=b'x' * 1_048_576)
    assert raised.value.code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_segment_rolls_when_the_incoming_timestamp_is_segment_ms_after_its_first(open_log):
    log = open_log(segment_ms=1000)
    append(log, timestamp_ms=T)
    append(log, timestamp_ms=T + 1000)
    assert bases(log) == [0]
    append(log, timestamp_ms=T + 1001)
    assert bases(log) == [0, 2]
    log.close()
    again = open_log(segment_ms=1000)
    append(again, timestamp_ms=T + 2001)
    assert bases(again) == [0, 2]
    append(again, timestamp_ms=T + 2002)
    assert bases(again) == [0, 2, 4]


def test_a_segment_rolls_when_an_index_is_full(open_log):
    log = open_log(segment_index_bytes=60, index_interval_bytes=0)
    for number in range(12):
        append(log, timestamp_ms=T + number)
    assert [len(segment.offset_index) for segment in log.segments] == [4, 4, 1]
    assert [len(segment.time_index) for segment in log.segments] == [4, 4, 1]
    log.close()
    assert check_partition(FileSystem(), log.directory) == []


def test_retention_by_time_deletes_what_lies_below_the_high_watermark(open_log, clock):
    log = open_log(retention_ms=10_000)
    for number in range(4):
        append(log, timestamp_ms=T + number * 5000)
        log.roll()
    clock.advance(16_000)
    assert [segment.base_offset for segment in log.apply_retention(1)] == [0]
    assert [segment.base_offset for segment in log.apply_retention(4)] == [1]
    assert log.log_start_offset == 2 and bases(log) == [2, 3, 4]


def test_retention_may_delete_everything_and_offsets_go_on(open_log, clock):
    log = open_log(retention_ms=10_000)
    append(log, timestamp_ms=T)
    clock.advance(11_000)
    log.apply_retention(1)
    assert (bases(log), log.log_start_offset, log.log_end_offset) == ([1], 1, 1)
    assert append(log).base_offset == 1
    log.close()
    assert open_log().log_start_offset == 1


def test_retention_by_size_keeps_at_least_the_size(open_log):
    log = open_log(retention_bytes=250, retention_ms=-1)
    for _ in range(5):
        append(log)
        log.roll()
    assert log.segments.size_bytes == 5 * 76
    assert [segment.base_offset for segment in log.apply_retention(5)] == [0]


def test_a_compacted_topic_deletes_nothing_but_what_is_below_its_start(open_log, clock):
    log = open_log(retention_ms=1, cleanup_policy='compact')
    for _ in range(3):
        append(log)
        log.roll()
    clock.advance(100_000)
    assert log.apply_retention(3) == []
    log.delete_records(2)
    assert [segment.base_offset for segment in log.apply_retention(3)] == [0, 1]


def test_deleted_records_are_out_of_range_at_once(open_log):
    log = open_log()
    append(log, count=10)
    log.delete_records(4)
    assert log.log_start_offset == 4
    with pytest.raises(KafkaError):
        log.read(3, 100, 10, True)
    with pytest.raises(KafkaError):
        log.delete_records(11)
    log.delete_records(2)
    assert log.log_start_offset == 4 and log.read(4, 1000, 10, True).start_offset == 0


def test_deleted_files_stay_for_the_delay(fs, clock, tmp_path, open_log):
    timers = Timers(clock)
    log = open_log(retention_ms=1000, file_delete_delay_ms=5000, timers=timers)
    append(log)
    clock.advance(2000)
    log.apply_retention(1)
    assert [name for name in os.listdir(log.directory) if name.endswith('.deleted')]
    clock.advance(5000)
    timers.run_due()
    assert not [name for name in os.listdir(log.directory) if name.endswith('.deleted')]


def test_timestamps_are_found_by_record(open_log):
    log = open_log(index_interval_bytes=200)
    for number in range(50):
        append(log, count=3, timestamp_ms=T + number * 10)
        if number % 20 == 19:
            log.roll()
    assert run_to_end(log.offset_for_timestamp(T, INLINE)) == (T, 0, 0)
    assert run_to_end(log.offset_for_timestamp(T + 1, INLINE)) == (T + 1, 1, 0)
    assert run_to_end(log.offset_for_timestamp(T + 3, INLINE)) == (T + 10, 3, 0)
    assert run_to_end(log.offset_for_timestamp(T + 333, INLINE)) == (T + 340, 102, 0)
    assert run_to_end(log.offset_for_timestamp(T + 493, INLINE)) is None
    assert run_to_end(log.max_timestamp(INLINE)) == (T + 492, 149, 0)
    log.delete_records(100)
    assert run_to_end(log.offset_for_timestamp(T, INLINE)) == (T + 331, 100, 0)


def test_the_greatest_timestamp_of_an_empty_log_is_none(open_log):
    assert run_to_end(open_log().max_timestamp(INLINE)) is None


def clean_first_two(log):
    """Write a cleaned segment with every second batch of the first two segments of the log."""
    fs, old = log.fs, log.segments[:2]
    new = Segment(fs, log.directory, old[0].base_offset, log.config, 0, suffix=CLEANED_SUFFIX)
    kept = [batch for segment in old for number, (_, batch) in enumerate(segment.walk()) if number % 2]
    position = 0
    for batch in kept:
        new.open_file().write_at(batch, position)
        position += len(batch)
    sizes = {'.log': position}
    new = Segment(fs, log.directory, old[0].base_offset, log.config, 0, file_sizes=sizes, suffix=CLEANED_SUFFIX)
    return old, new, [bytes(batch) for batch in kept]


def build(log, new):
    new.recover(ProducerStateTable(), LeaderEpochs(log.fs, log.directory, read=False))
    new.seal()
    for file in new.files_to_sync(sealed=True):
        file.sync()


def three_segments(open_log):
    log = open_log(cleanup_policy='compact')
    for _ in range(3):
        for _ in range(4):
            append(log)
        log.roll()
    log.flush()
    return log


@pytest.mark.parametrize('clean', [True, False])
def test_cleaned_segments_take_the_place_of_old_ones(open_log, clean):
    log = three_segments(open_log)
    old, new, kept = clean_first_two(log)
    build(log, new)
    rest = contents(log)[8:]
    log.replace_segments(old, [new])
    expected = [batch for batch in kept]
    assert [batch for _, batch in contents(log)] == expected + [batch for _, batch in rest]
    assert log.read(0, 10_000, 12, True).start_offset == 1
    assert log.read(4, 10_000, 12, True).start_offset == 5
    log.close(clean)
    again = open_log(clean, cleanup_policy='compact')
    assert [batch for _, batch in contents(again)] == expected + [batch for _, batch in rest]
    assert bases(again)[:2] == [0, 8]
    again.close()
    assert check_partition(FileSystem(), log.directory) == []


def test_a_reader_goes_on_in_the_segment_that_took_the_place_of_its_own(open_log):
    """The file position at which the reader's last slice ended in the old segment is not valid in the new segment."""
    log = three_segments(open_log)
    size = log.segments[0].size_bytes // 4
    end_offset = log.read(0, 2 * size, 12, True).end_offset
    assert log.read(end_offset, size, 12, True).position == 2 * size
    old, new, _ = clean_first_two(log)
    build(log, new)
    log.replace_segments(old, [new])
    piece = log.read(end_offset, size, 12, True)
    assert (piece.start_offset, piece.position) == (3, size)


def test_a_swap_that_a_crash_interrupts_leaves_the_old_or_the_new_segments(open_log, tmp_path):
    """The swap runs once for each of its changes of the disk. In each run, this change and all later changes do not
    happen.
    """
    outcomes = set()
    number = 0
    while True:
        failing = FailingFileSystem()
        log = three_segments(partial(open_log, name=f'topic-{number}', file_system=failing))
        before = contents(log)
        old, new, kept = clean_first_two(log)
        build(log, new)
        failing.fail = fail_nth(number)
        try:
            log.replace_segments(old, [new])
        except KafkaError:
            pass
        else:
            assert outcomes == {'old', 'new'}
            return
        again = open_log(name=f'topic-{number}', clean_shutdown=False, cleanup_policy='compact')
        found = contents(again)
        if found == before:
            outcomes.add('old')
        else:
            assert [batch for _, batch in found] == kept + [batch for _, batch in before[8:]]
            outcomes.add('new')
        again.close()
        assert check_partition(FileSystem(), again.directory) == []
        number += 1


def test_swap_files_at_or_above_an_incomplete_cleaned_one_go(open_log, fs):
    log = three_segments(open_log)
    log.close()
    for base_offset, suffix in ((0, CLEANED_SUFFIX), (4, SWAP_SUFFIX)):
        for kind in SEGMENT_SUFFIXES:
            fs.write_file(os.path.join(log.directory, f'{base_offset:020d}{kind}{suffix}'), b'')
    finish_swaps(fs, log.directory, fs.listdir(log.directory))
    assert not [name for name in os.listdir(log.directory) if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]
    assert open_log(cleanup_policy='compact').log_end_offset == 12


@pytest.mark.parametrize('number', range(1, 4))
def test_a_kill_within_a_deletion_leaves_no_log_file_without_its_transaction_index(open_log, number):
    # Once, the transaction index was renamed to `.deleted` before the log file. After a kill between the two renames,
    # aborted records were readable.
    failing = FailingFileSystem()
    log = open_log(file_system=failing)
    append(log, producer_id=1, epoch=0, sequence=0, transactional=True)
    log.append_batch(marker_batch(commit=False, producer_id=1, epoch=0), Origin.COORDINATOR, 0)
    log.roll()
    append(log)
    log.delete_records(2)
    log.flush()
    failing.fail = fail_nth(number)
    with pytest.raises(KafkaError):
        log.apply_retention(3)
    kinds = {name.partition('.')[2] for name in os.listdir(log.directory) if name.startswith(f'{0:020d}.')}
    assert 'log' not in kinds or 'txnindex' in kinds
    again = open_log(clean_shutdown=False)
    assert again.aborted_transactions(0, 2) == ([(1, 0)] if again.log_start_offset == 0 else [])


def test_markers_and_rows_move_with_their_segment(open_log, fs):
    log = open_log(cleanup_policy='compact')
    append(log, producer_id=1, epoch=0, sequence=0, transactional=True)
    log.append_batch(marker_batch(commit=False, producer_id=1, epoch=0), Origin.COORDINATOR, 0)
    log.roll()
    rename_files(fs, log.directory, 0, '', SWAP_SUFFIX)
    again = open_log(clean_shutdown=False, cleanup_policy='compact')
    assert again.aborted_transactions(0, 2) == [(1, 0)]

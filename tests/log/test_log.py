"""Appending to, reading, rolling, closing and opening a log."""
import os

import pytest
from batches import T, data_batch, marker_batch

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.log.append import Origin
from kbroker.record.batch import iter_batches, read_header


def read_all(log, max_bytes=10_000):
    """Read the whole log in consecutive reads. Return a list of (header, batch)."""
    found = []
    offset = log.log_start_offset
    while (piece := log.read(offset, max_bytes, log.log_end_offset, True)) is not None:
        got = [(header, bytes(batch)) for header, batch in iter_batches(piece.read())]
        assert piece.end_offset == got[-1][0].last_offset + 1
        found += got
        offset = piece.end_offset
    return found


def test_an_append_places_offset_and_epoch_in_the_callers_buffer(open_log):
    log = open_log()
    log.append_batch(data_batch(3), Origin.CLIENT, 7)
    batch = data_batch(2)
    result = log.append_batch(batch, Origin.CLIENT, 7)
    assert (result.base_offset, result.last_offset, log.log_end_offset) == (3, 4, 5)
    header = read_header(batch)
    assert (header.base_offset, header.partition_leader_epoch) == (3, 7)
    assert log.read(3, 1000, 5, True).read() == bytes(batch)
    assert log.leader_epochs.rows == [(7, 0)]


@pytest.mark.parametrize('clean', [True, False])
def test_what_was_appended_is_there_after_reopening(open_log, clean):
    log = open_log(segment_bytes=1_048_576, index_interval_bytes=500)
    for number in range(4000):
        batch = data_batch(1 + number % 3, timestamp_ms=T + number, value=b'v' * (number % 900))
        log.append_batch(batch, Origin.CLIENT, number // 1000)
    before = read_all(log)
    assert len(before) == 4000 and len(log.segments) > 1
    log.flush()
    log.close(clean)
    again = open_log(clean, segment_bytes=1_048_576, index_interval_bytes=500)
    assert [batch for _, batch in read_all(again)] == [batch for _, batch in before]
    assert again.log_end_offset == again.flushed_offset == before[-1][0].last_offset + 1
    assert [epoch for epoch, _ in again.leader_epochs.rows] == [0, 1, 2, 3]
    assert [(header.base_offset, bytes(batch)) for header, batch in again.batches()] == [
        (header.base_offset, batch) for header, batch in before]


def test_a_read_may_begin_inside_a_batch(open_log):
    log = open_log()
    log.append_batch(data_batch(10), Origin.CLIENT, 0)
    log.append_batch(data_batch(10), Origin.CLIENT, 0)
    piece = log.read(15, 10_000, 20, True)
    assert (piece.start_offset, piece.end_offset) == (10, 20)


def test_a_read_ends_below_the_upper_bound_and_within_max_bytes(open_log):
    log = open_log()
    size = len(data_batch())
    for _ in range(6):
        log.append_batch(data_batch(), Origin.CLIENT, 0)
    assert log.read(0, 10_000, 4, True).end_offset == 4
    assert log.read(0, 2 * size + 5, 6, True).end_offset == 2
    assert log.read(0, 5, 6, True).end_offset == 1
    assert log.read(0, 5, 6, False) is None
    assert log.read(4, 10_000, 4, True) is None
    assert log.read(6, 10_000, 6, True) is None


@pytest.mark.parametrize('offset', [-1, 3])
def test_a_read_outside_the_log_is_out_of_range(open_log, offset):
    log = open_log()
    log.append_batch(data_batch(2), Origin.CLIENT, 0)
    with pytest.raises(KafkaError) as raised:
        log.read(offset, 1000, 2, True)
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_slice_stays_readable_after_its_segment_is_deleted(open_log):
    log = open_log(retention_ms=1)
    log.append_batch(data_batch(timestamp_ms=T - 10_000), Origin.CLIENT, 0)
    piece = log.read(0, 1000, 1, True)
    before = piece.read()
    log.flush()
    assert [segment.base_offset for segment in log.apply_retention(1)] == [0]
    assert log.log_start_offset == 1 and not os.path.exists(piece.file.path)
    assert piece.read() == before


def test_an_abort_moves_the_last_stable_offset_and_is_found_by_consumers(open_log):
    log = open_log()
    log.append_batch(data_batch(2, producer_id=1, epoch=0, sequence=0, transactional=True), Origin.CLIENT, 0)
    log.append_batch(data_batch(2, producer_id=2, epoch=0, sequence=0, transactional=True), Origin.CLIENT, 0)
    assert log.first_unstable_offset() == 0
    log.append_batch(marker_batch(commit=False, producer_id=1, epoch=0), Origin.COORDINATOR, 0)
    assert log.first_unstable_offset() == 0
    log.producer_state.unstable.on_high_watermark(log.log_end_offset)
    assert log.first_unstable_offset() == 2
    log.append_batch(marker_batch(commit=True, producer_id=2, epoch=0), Origin.COORDINATOR, 0)
    log.producer_state.unstable.on_high_watermark(log.log_end_offset)
    assert log.first_unstable_offset() is None
    assert log.aborted_transactions(0, 6) == [(1, 0)]
    assert log.aborted_transactions(5, 6) == []


def test_a_duplicate_answers_the_first_append(open_log):
    log = open_log()
    first = log.append_batch(data_batch(3, producer_id=9, epoch=1, sequence=0), Origin.CLIENT, 0)
    log.append_batch(data_batch(1, producer_id=9, epoch=1, sequence=3), Origin.CLIENT, 0)
    again = log.append_batch(data_batch(3, producer_id=9, epoch=1, sequence=0), Origin.CLIENT, 0)
    assert again.is_duplicate and (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset)
    assert again.append_time_ms == T + 2 and log.log_end_offset == 4

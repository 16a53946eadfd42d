"""Compares the sparse indexes with a plain list."""
import bisect
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.base.errors import CorruptLogError
from kbroker.log.fs import FileSystem
from kbroker.log.index import OffsetIndex, TimeIndex
from kbroker.log.transaction_index import AbortedTransaction, TransactionIndex

FULL_BYTES = 10_485_760


@given(steps=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=300), base=st.integers(0, 2**62))
def test_a_lookup_finds_the_last_entry_at_or_below(tmp_path_factory, steps, base):
    index = OffsetIndex(FileSystem(), str(tmp_path_factory.mktemp('index') / 'x.index'), base, FULL_BYTES)
    offsets, positions = [], []
    for offset_step, position_step in steps:
        offsets.append((offsets[-1] if offsets else base) + offset_step)
        positions.append((positions[-1] if positions else 0) + position_step)
        index.add(offsets[-1], positions[-1])
    for sealed in (False, True):
        for offset in [base, *offsets, *(offset - 1 for offset in offsets), *(offset + 1 for offset in offsets)]:
            place = bisect.bisect_right(offsets, offset)
            assert index.lookup(offset) == (positions[place - 1] if place else 0), (sealed, offset)
        index.seal()


def test_files_have_their_full_size_while_appended_to_and_their_own_when_sealed(tmp_path):
    fs = FileSystem()
    offsets = OffsetIndex(fs, str(tmp_path / 'x.index'), 10, FULL_BYTES)
    times = TimeIndex(fs, str(tmp_path / 'x.timeindex'), 10, FULL_BYTES)
    for number in range(1, 101):
        offsets.add(10 + number, number * 100)
        times.add(1000 + number, 10 + number)
    assert (fs.size(offsets.path), fs.size(times.path)) == (10_485_760, 10_485_756)
    offsets.seal()
    times.seal()
    assert (fs.size(offsets.path), fs.size(times.path)) == (800, 1200)
    assert fs.read_file(offsets.path)[:16] == bytes.fromhex('00000001000000640000000200 0000c8'.replace(' ', ''))
    assert fs.read_file(times.path)[:12] == bytes.fromhex('00000000000003e900000001')
    offsets.add(200, 20_000)
    offsets.seal()
    assert offsets[100] == (190, 20_000) and len(offsets) == 101


def test_a_time_index_skips_what_is_not_later(tmp_path):
    times = TimeIndex(FileSystem(), str(tmp_path / 'x.timeindex'), 0, FULL_BYTES)
    for timestamp_ms, offset in ((100, 1), (100, 2), (90, 3), (101, 4)):
        times.add(timestamp_ms, offset)
    assert list(times) == [(100, 1), (101, 4)]
    assert times.lookup(100) == (100, 1) and times.lookup(99) == (-1, 0)


def test_offsets_that_do_not_grow_are_refused(tmp_path):
    index = OffsetIndex(FileSystem(), str(tmp_path / 'x.index'), 0, FULL_BYTES)
    index.add(5, 100)
    with pytest.raises(CorruptLogError):
        index.add(5, 200)


@pytest.mark.parametrize('content', [b'\0' * 7, b'\0' * 16, b'\0\0\0\1\0\0\0\1' + b'\0' * 8,
                                     b'\0\0\0\1\0\0\0\1\xff\0\0\0\0\0\0\0'])
def test_an_offset_index_that_cannot_be_one_is_found_out(tmp_path, content):
    (tmp_path / 'x.index').write_bytes(content)
    with pytest.raises(CorruptLogError):
        OffsetIndex(FileSystem(), str(tmp_path / 'x.index'), 0, FULL_BYTES, file_bytes=len(content)).check()


def test_a_negative_position_or_offset_in_the_middle_of_an_index_is_named(tmp_path):
    """In an earlier version, the index returned position -1, which means an error, without an exception. A fetch at
    this offset failed with a SystemError."""
    for kind, entry in ((OffsetIndex, struct.Struct('>ii')), (TimeIndex, struct.Struct('>qi'))):
        path = tmp_path / kind.__name__
        path.write_bytes(entry.pack(10, 4000) + entry.pack(20, -1) + entry.pack(30, 12000))
        index = kind(FileSystem(), str(path), 0, FULL_BYTES, file_bytes=path.stat().st_size)
        index.check()
        assert index.lookup(10)
        with pytest.raises(CorruptLogError, match=f'{path}: found -1 in entry 1 of 3, expected a position'):
            index.lookup(20)


def test_a_transaction_index_row_is_kafkas_to_the_byte(tmp_path):
    path = str(tmp_path / 'x.txnindex')
    index = TransactionIndex(FileSystem(), path, 0, exists=False)
    row = AbortedTransaction(1000, 40, 42, 43)
    index.append(row)
    assert FileSystem().read_file(path) == bytes.fromhex(
        '0000 00000000000003e8 0000000000000028 000000000000002a 000000000000002b')
    assert TransactionIndex(FileSystem(), path, 0, exists=True).rows == [row]
    with pytest.raises(CorruptLogError):
        index.append(row)
    with pytest.raises(CorruptLogError):
        TransactionIndex(FileSystem(), path, 50, exists=True).check()
    index.truncate_to(42)
    assert TransactionIndex(FileSystem(), path, 0, exists=True).rows == []


def test_collecting_aborted_transactions_stops_when_no_later_row_can_touch_the_range(tmp_path):
    index = TransactionIndex(FileSystem(), str(tmp_path / 'x.txnindex'), 0, exists=False)
    for row in ((1, 0, 10, 11), (2, 5, 20, 21), (3, 12, 30, 31)):
        index.append(AbortedTransaction(*row))
    assert [row.producer_id for row in index.collect(0, 11)[0]] == [1]
    assert [row.producer_id for row in index.collect(0, 20)[0]] == [1, 2]
    found, complete = index.collect(11, 100)
    assert [row.producer_id for row in found] == [2, 3] and not complete


def test_an_abort_is_found_after_a_row_whose_stable_offset_a_follower_of_kafka_wrote_too_high(tmp_path):
    """In a cluster that shrank to one node, Apache Kafka 4.4.0 had stored the last stable offset 645 for the marker at
    642, and the same producer had aborted its next transaction, from 643 on. The search stopped at the first row.
    """
    index = TransactionIndex(FileSystem(), str(tmp_path / 'x.txnindex'), 0, exists=False)
    index.append(AbortedTransaction(1, 600, 642, 645))
    assert index.collect(600, 645)[1] is False
    index.append(AbortedTransaction(1, 643, 650, 651))
    assert [row.first_offset for row in index.collect(600, 645)[0]] == [600, 643]
    assert index.rows[0].last_stable_offset == 645


def test_a_time_index_of_zeros_is_found_out(tmp_path):
    """In an earlier version, a power cut undid the trimming of a rolled segment's index. The zeros in it were read as
    entries with timestamp 0 (1970)."""
    (tmp_path / 'x.timeindex').write_bytes(b'\0' * 120)
    with pytest.raises(CorruptLogError):
        TimeIndex(FileSystem(), str(tmp_path / 'x.timeindex'), 0, FULL_BYTES, file_bytes=120).check()

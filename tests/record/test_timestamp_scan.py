"""A search of one batch for a timestamp, in pieces of any size, finds the same record as a search of the decoded
records.
"""
from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.message_builder import batch_of

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.record.batch import CorruptBatchError, encode_batch
from kbroker.record.compression import Compression, compress, decompress
from kbroker.record.records import MAX_DECOMPRESSED_BYTES, decode_records
from kbroker.record.timestamp_scan import find_in_batch

T = 1_700_000_000_000
FIXED_BYTES = 61
RECORDS = st.lists(st.tuples(st.integers(-(2**40), 2**40), st.none() | st.binary(max_size=200),
                             st.none() | st.binary(max_size=200)), min_size=1, max_size=30)


def expected(batch, timestamp_ms, start_offset=0):
    """Return the result that a search of the decoded records has."""
    return next(((record.timestamp_ms, record.offset) for record in decode_records(batch)
                 if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset), None)


@given(records=RECORDS, codec=st.sampled_from(Compression), wanted=st.integers(-(2**41), 2**41),
       start_offset=st.integers(0, 30), piece_bytes=st.integers(1, 40))
def test_a_search_finds_what_decoding_finds(records, codec, wanted, start_offset, piece_bytes):
    batch = encode_batch([(T + delta, key, value) for delta, key, value in records], compression=codec)
    assert find_in_batch(batch, T + wanted, start_offset, piece_bytes) == expected(batch, T + wanted, start_offset)


@pytest.mark.parametrize('codec', Compression)
def test_a_codec_can_be_used_again_after_a_search_that_ended_early(codec):
    batch = encode_batch([(T, None, bytes(50_000))] * 20, compression=codec)
    for _ in range(3):
        assert find_in_batch(batch, T) == (T, 0)
        assert find_in_batch(batch, T, 19) == (T, 19)
    assert decompress(codec, compress(codec, b'sound'), 10) == b'sound'


def test_with_log_append_time_the_first_record_is_found():
    batch = bytearray(batch_of(T, b'a', b'b'))
    batch[22] |= 8
    assert find_in_batch(batch, T) == (T, 0)
    assert find_in_batch(batch, T, 1) == (T, 1)
    assert find_in_batch(batch, T + 1) is None


def with_records(records, count):
    """Return a batch that has the bytes `records` as its records. Its header says that it has `count` records."""
    batch = bytearray(batch_of(T, b''))[:FIXED_BYTES]
    batch[8:12] = (FIXED_BYTES - 12 + len(records)).to_bytes(4, 'big')
    batch[57:61] = count.to_bytes(4, 'big', signed=True)
    return bytes(batch) + records


@pytest.mark.parametrize('piece_bytes', [1, 3, 65536])
@pytest.mark.parametrize(('records', 'count'), [
    (b'', 1),                                               # no record, but the header says 1
    (b'\x0c\x00\x00\x00\x01\x00', 1),                       # a cut record
    (b'\x0c\x00\x00\x00\x01\x00\x00', 2),                   # one of two records is missing
    (b'\x0c\x00\x00\x00\x01\x00\x00\x0c', 1),               # bytes behind the last record
    (b'\x0c\x00\x00\x00\x01\x00\x00', 0),                   # one record, but the header says 0
    (b'\x0c\x00\x00\x00\x01\x00\x00', -1),
    (b'\x00\x00\x00\x00\x01\x00\x00', 1),                   # a length of 0
    (b'\x01\x00\x00\x00\x01\x00\x00', 1),                   # a length of -1
    (b'\x04\x00\x00\x00\x01\x00\x00', 1),                   # a length within the head
    (b'\x80\x80\x80\x80\x80\x80\x80', 1),                   # a length without an end
    (b'\x40\x00' + b'\xff' * 40, 1),                        # a timestamp without an end
    (b'\x40\x00\x00' + b'\xff' * 40, 1),                    # an offset without an end
])
def test_records_that_are_malformed_are_refused(records, count, piece_bytes):
    with pytest.raises(CorruptBatchError):
        find_in_batch(with_records(records, count), T + 1, 0, piece_bytes)


def test_a_batch_that_expands_too_much_is_refused():
    batch = batch_of(T, b'', compression=Compression.ZSTD)[:FIXED_BYTES]
    bomb = compress(Compression.ZSTD, b'\xfe\xff\xff\x7f' + bytes(MAX_DECOMPRESSED_BYTES))
    batch = batch[:8] + (FIXED_BYTES - 12 + len(bomb)).to_bytes(4, 'big') + batch[12:] + bytes(bomb)
    with pytest.raises(KafkaError) as caught:
        find_in_batch(batch, T + 1)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_million_records_take_no_memory():
    batch = encode_batch([(T, None, None)] * 999_999 + [(T + 1, None, None)], compression=Compression.GZIP)
    tracemalloc.start()
    try:
        assert find_in_batch(batch, T + 1) == (T + 1, 999_999)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()

"""Batch headers and the batch writer, compared with the golden vectors and a reference implementation. Covers KIP-534.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import record as reference

from kbroker.base.errors import ErrorCode
from kbroker.record.batch import (
    HEADER_BYTES,
    BatchEncoder,
    CorruptBatchError,
    check_crc,
    encode_batch,
    iter_batches,
    read_header,
    set_base_offset,
    set_partition_leader_epoch,
)
from kbroker.record.records import Record, decode_records

T = 1_700_000_000_000
DATA_BATCH = bytes.fromhex(
    '000000000000002800000049000000000241171cd60010000000010000018bcfe568000000018bcfe5680500000000000003e80003000000000000000214'
    '000000046b300476300018000a02046b31010202680278'
)

int8, int16, int32, int64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64))
blobs = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=20), blobs), max_size=3)


@st.composite
def reference_batches(draw):
    """Generate batches with any header fields, and up to 100 random bytes as their records."""
    return reference.Batch(
        base_offset=draw(int64),
        partition_leader_epoch=draw(int32),
        attributes=draw(int16),
        last_offset_delta=draw(int32),
        base_timestamp_ms=draw(int64),
        max_timestamp_ms=draw(int64),
        producer_id=draw(int64),
        producer_epoch=draw(int16),
        base_sequence=draw(int32),
        records_count=draw(int32),
        records=draw(st.binary(max_size=100)),
    )


# --- reading ---


def test_a_header_says_what_the_batch_holds():
    header = read_header(DATA_BATCH)
    check_crc(DATA_BATCH, header)
    assert (header.base_offset, header.last_offset, header.size_bytes, header.records_count) == (40, 41, 85, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (1000, 3, 0, 1)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (T, T + 5)
    assert header.is_transactional and not header.is_control and not header.is_log_append_time
    assert header.compression == 0 and header.delete_horizon_ms is None
    assert repr(header).startswith('<BatchHeader offsets 40..41')


@given(expected=reference_batches(), lead=st.binary(max_size=10))
def test_every_field_is_read_as_the_format_says(expected, lead):
    data = lead + expected.encode()
    header = read_header(data, len(lead))
    check_crc(data, header, len(lead))
    for name in (
        'base_offset',
        'partition_leader_epoch',
        'attributes',
        'last_offset_delta',
        'base_timestamp_ms',
        'max_timestamp_ms',
        'producer_id',
        'producer_epoch',
        'base_sequence',
        'records_count',
    ):
        assert getattr(header, name) == getattr(expected, name), name
    assert header.magic == 2
    assert header.size_bytes == header.batch_length + 12 == len(data) - len(lead)
    assert header.compression == expected.attributes & 7
    assert (header.delete_horizon_ms is None) != bool(expected.attributes & 0x40)


def test_sequences_start_over_after_the_largest():
    header = read_header(encode_batch([(T, None, b'x')] * 3, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert header.last_sequence == 0


def test_a_batch_without_a_sequence_has_no_last_one():
    assert read_header(encode_batch([(T, None, b'x')] * 3)).last_sequence == -1


def test_a_flipped_bit_fails_the_checksum():
    for position in range(21, len(DATA_BATCH)):
        batch = bytearray(DATA_BATCH)
        batch[position] ^= 1
        with pytest.raises(CorruptBatchError, match='CRC'):
            check_crc(batch, read_header(batch))


@pytest.mark.parametrize(
    ('damage', 'message'),
    [
        (lambda batch: batch[: HEADER_BYTES - 1], 'found 60 bytes'),
        (lambda batch: b'', 'found 0 bytes'),
        (lambda batch: batch[:8] + (48).to_bytes(4, 'big') + batch[12:], 'batch length 48, expected at least 49'),
        (lambda batch: batch[:8] + b'\xff\xff\xff\xff' + batch[12:], 'batch length -1'),
        (lambda batch: batch[:16] + b'\x01' + batch[17:], 'magic 1, expected 2'),
        (lambda batch: bytes(100), 'batch length 0'),
    ],
)
def test_what_is_no_header_is_refused(damage, message):
    with pytest.raises(CorruptBatchError, match=message) as raised:
        read_header(damage(DATA_BATCH))
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize('position', [-1, 86, 2**40])
def test_a_position_outside_the_buffer_is_refused(position):
    with pytest.raises(CorruptBatchError, match='position'):
        read_header(DATA_BATCH, position)
    with pytest.raises(CorruptBatchError, match='position'):
        check_crc(DATA_BATCH, read_header(DATA_BATCH), position)


def test_a_batch_that_claims_two_gigabytes_is_short_of_them():
    batch = DATA_BATCH[:8] + (2**31 - 1).to_bytes(4, 'big') + DATA_BATCH[12:]
    header = read_header(batch)
    assert header.size_bytes == 2**31 + 11
    with pytest.raises(CorruptBatchError, match='found 85 bytes of the batch'):
        check_crc(batch, header)
    assert list(iter_batches(batch)) == []


def test_iteration_gives_each_whole_batch_and_stops_at_an_incomplete_tail():
    buffer = DATA_BATCH * 2 + DATA_BATCH[:-1]
    assert [(header.base_offset, bytes(view)) for header, view in iter_batches(buffer)] == [(40, DATA_BATCH)] * 2
    assert [len(view) for _, view in iter_batches(DATA_BATCH + DATA_BATCH[:30])] == [85]


def test_iteration_refuses_what_is_no_batch():
    with pytest.raises(CorruptBatchError):
        list(iter_batches(DATA_BATCH + bytes(100)))


# --- writing ---


def test_a_data_batch_is_written_to_the_byte():
    batch = encode_batch(
        [(T, b'k0', b'v0'), (T + 5, b'k1', None, [('h', b'x')])],
        base_offset=40,
        partition_leader_epoch=0,
        producer_id=1000,
        producer_epoch=3,
        base_sequence=0,
        transactional=True,
    )
    assert batch == DATA_BATCH


def test_what_was_read_is_written_again_to_the_byte():
    assert (
        encode_batch(
            decode_records(DATA_BATCH),
            base_offset=40,
            partition_leader_epoch=0,
            producer_id=1000,
            producer_epoch=3,
            base_sequence=0,
            transactional=True,
        )
        == DATA_BATCH
    )


@given(timestamp_ms=st.integers(0, 2**45), values=st.lists(st.binary(max_size=300), min_size=1, max_size=150),
       base_offset=st.integers(0, 2**60), epoch=int32)
def test_a_batch_that_is_encoded_record_by_record_is_that_of_all_records(timestamp_ms, values, base_offset, epoch):
    encoder = BatchEncoder(timestamp_ms)
    for value in values:
        encoder.add(value)
    assert len(encoder) == len(values)
    assert encoder.finish(base_offset=base_offset, partition_leader_epoch=epoch) == encode_batch(
        [(timestamp_ms, None, value) for value in values], base_offset=base_offset, partition_leader_epoch=epoch)


def test_a_batch_that_is_encoded_record_by_record_has_a_record():
    with pytest.raises(ValueError, match='found no record'):
        BatchEncoder(T).finish(base_offset=0, partition_leader_epoch=0)


@given(
    rows=st.lists(st.tuples(st.integers(0, 2**45), blobs, blobs, headers), min_size=1, max_size=5),
    gaps=st.lists(st.integers(0, 2**20), min_size=5, max_size=5),
    base_offset=st.integers(0, 2**60),
    producer_id=int64,
    producer_epoch=int16,
    base_sequence=int32,
    transactional=st.booleans(),
    control=st.booleans(),
    horizon=st.none() | st.integers(0, 2**45),
)
def test_a_batch_with_gaps_is_what_the_reference_writes(
    rows, gaps, base_offset, producer_id, producer_epoch, base_sequence, transactional, control, horizon
):
    deltas, delta = [], -1
    for _row, gap in zip(rows, gaps, strict=False):
        delta += 1 + gap
        deltas.append(delta)
    base_timestamp_ms = rows[0][0] if horizon is None else horizon
    expected = reference.Batch(
        base_offset=base_offset,
        attributes=(0x10 if transactional else 0) | (0x20 if control else 0) | (0x40 if horizon is not None else 0),
        last_offset_delta=deltas[-1],
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max(row[0] for row in rows),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=len(rows),
        records=b''.join(
            reference.encode_record(
                reference.Record(
                    delta,
                    timestamp_ms - base_timestamp_ms,
                    key,
                    value,
                    [(name.encode(), content) for name, content in pairs],
                )
            )
            for delta, (timestamp_ms, key, value, pairs) in zip(deltas, rows, strict=True)
        ),
    )
    batch = encode_batch(
        [Record(base_offset + delta, *row) for delta, row in zip(deltas, rows, strict=True)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        delete_horizon_ms=horizon,
    )
    assert batch == expected.encode()


def test_the_husk_of_a_compacted_batch_keeps_offsets_and_sequence():
    husk = encode_batch(
        [],
        base_offset=7,
        last_offset_delta=4,
        max_timestamp_ms=T,
        producer_id=5,
        producer_epoch=1,
        base_sequence=10,
        compression=4,
        delete_horizon_ms=T,
        transactional=True,
    )
    header = read_header(husk)
    check_crc(husk, header)
    assert (len(husk), header.records_count, header.last_offset, header.last_sequence) == (61, 0, 11, 14)
    assert (header.base_timestamp_ms, header.max_timestamp_ms, header.compression, header.delete_horizon_ms) == (
        -1,
        T,
        0,
        None,
    )
    assert decode_records(husk) == []


def test_a_delete_horizon_leaves_the_timestamps_readable():
    batch = encode_batch([(T, b'k', None), (T + 9, b'l', None)], delete_horizon_ms=T + 86_400_000)
    assert read_header(batch).delete_horizon_ms == T + 86_400_000
    assert [record.timestamp_ms for record in decode_records(batch)] == [T, T + 9]


def test_log_append_time_is_the_timestamp_of_every_record():
    batch = encode_batch([(T, b'k', None), (T + 9, b'l', None)], log_append_time_ms=T + 50)
    header = read_header(batch)
    assert header.is_log_append_time and header.max_timestamp_ms == T + 50
    assert [record.timestamp_ms for record in decode_records(batch)] == [T + 50] * 2


def test_an_offset_of_none_is_the_next_one():
    batch = encode_batch([Record(12, T, None, b'a'), Record(-1, T, None, b'b')], base_offset=10, last_offset_delta=9)
    assert [record.offset for record in decode_records(batch)] == [12, 13]
    assert read_header(batch).last_offset == 19


@pytest.mark.parametrize('offsets', [(9,), (11, 11), (12, 11), (10 + 2**31,)])
def test_offsets_must_ascend_from_the_base_offset(offsets):
    with pytest.raises(ValueError, match='found offset'):
        encode_batch([Record(offset, T, None, b'') for offset in offsets], base_offset=10)


def test_the_last_offset_delta_covers_the_last_record():
    with pytest.raises(ValueError, match='last offset delta 0, expected at least 1'):
        encode_batch([(T, None, b'')] * 2, last_offset_delta=0)
    with pytest.raises(ValueError, match='needs a last_offset_delta'):
        encode_batch([])


@pytest.mark.parametrize('value', ['text', 5])
def test_only_bytes_are_keys_and_values(value):
    with pytest.raises(TypeError):
        encode_batch([(T, None, value)])


def test_any_buffer_is_a_value():
    batch = encode_batch([(T, bytearray(b'k'), memoryview(b'value')[1:])])
    assert [(record.key, record.value) for record in decode_records(batch)] == [(b'k', b'alue')]


def test_offset_and_leader_epoch_are_placed_outside_the_checksum():
    batch = bytearray(DATA_BATCH)
    set_base_offset(batch, 2**40)
    set_partition_leader_epoch(memoryview(batch), 9)
    header = read_header(batch)
    check_crc(batch, header)
    assert (header.base_offset, header.partition_leader_epoch) == (2**40, 9)
    assert batch[16:] == DATA_BATCH[16:]


@pytest.mark.parametrize('place', [set_base_offset, set_partition_leader_epoch])
def test_placing_needs_a_writable_header(place):
    with pytest.raises(BufferError):
        place(DATA_BATCH, 1)
    with pytest.raises(CorruptBatchError):
        place(bytearray(60), 1)

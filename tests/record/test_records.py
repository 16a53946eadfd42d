"""Decoding records to objects: compared with a reference implementation, and from hostile bytes."""

import aiokafka.record.default_records
import aiokafka.record.memory_records
import kafka.record.default_records
import kafka.record.memory_records
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from reference import record as reference
from support.messages.odd_records import batch_of_records, null_record

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.record.batch import CorruptBatchError, encode_batch, read_header
from kbroker.record.batch_filter import BatchFilter
from kbroker.record.columns import RECORD_COLUMNS, ColumnDecoder, RecordColumns
from kbroker.record.records import Record, decode_records, iter_records

T = 1_700_000_000_000

blobs = st.none() | st.binary(max_size=200)
reference_records = st.builds(
    reference.Record,
    offset_delta=st.integers(-(2**31), 2**31 - 1),
    timestamp_delta_ms=st.integers(-(2**63), 2**63 - 1),
    key=blobs,
    value=blobs,
    headers=st.lists(st.tuples(st.binary(max_size=20), blobs), max_size=3),
)


def wrapping(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def a_batch(records: bytes, count: int, **fields) -> bytes:
    return reference.Batch(records=records, records_count=count, last_offset_delta=max(count - 1, 0), **fields).encode()


def test_the_golden_batch_is_read():
    batch = bytes.fromhex(
        '000000000000002800000049000000000241171cd60010000000010000018bcfe568000000018bcfe5680500000000000003e80003000000000000000214'
        '000000046b300476300018000a02046b31010202680278'
    )
    assert decode_records(batch) == [
        Record(40, T, b'k0', b'v0', [], 0),
        Record(41, T + 5, b'k1', None, [('h', b'x')], 1),
    ]


@given(
    records=st.lists(reference_records, max_size=5),
    base_offset=st.integers(0, 2**62),
    base_timestamp_ms=st.integers(-(2**63), 2**63 - 1),
)
def test_what_the_reference_writes_is_read(records, base_offset, base_timestamp_ms):
    batch = a_batch(
        b''.join(map(reference.encode_record, records)),
        len(records),
        base_offset=base_offset,
        base_timestamp_ms=base_timestamp_ms,
    )
    assert decode_records(batch) == [
        Record(
            base_offset + record.offset_delta,
            wrapping(base_timestamp_ms + record.timestamp_delta_ms, 64),
            record.key,
            record.value,
            [(key.decode('utf-8', 'surrogateescape'), value) for key, value in record.headers],
        )
        for record in records
    ]


@given(
    records=st.lists(
        st.tuples(st.integers(0, 2**45), blobs, blobs, st.lists(st.tuples(st.text(max_size=9), blobs), max_size=2)),
        min_size=1,
        max_size=6,
    ),
    compression=st.integers(0, 4),
)
def test_a_written_batch_is_read_again(records, compression):
    batch = encode_batch(records, compression=compression, producer_id=1, producer_epoch=0, base_sequence=2**31 - 1)
    assert [
        (record.timestamp_ms, record.key, record.value, record.headers) for record in decode_records(batch)
    ] == records
    assert [record.sequence for record in decode_records(batch)] == [2**31 - 1, *range(len(records) - 1)]


def test_header_keys_that_are_not_utf8_keep_their_bytes():
    raw = reference.encode_record(reference.Record(0, 0, None, b'v', [(b'\xff\x00k', b'x')]))
    batch = a_batch(raw, 1)
    assert encode_batch(decode_records(batch), base_timestamp_ms=0)[61:] == raw


# Snappy is missing for kafka-python, because it needs another package to read snappy.
OTHERS = [(aiokafka, compression) for compression in range(5)] + [(kafka, compression) for compression in (0, 1, 3, 4)]


@pytest.mark.parametrize(('other', 'compression'), OTHERS)
def test_another_implementation_reads_what_is_written(other, compression):
    records = [(T + i, b'key %d' % i, None if i == 3 else b'value %d' % i * 20, [('h', b'x')]) for i in range(50)]
    batch = encode_batch(
        records,
        base_offset=7,
        compression=compression,
        producer_id=9,
        producer_epoch=2,
        base_sequence=5,
        transactional=True,
    )
    read = other.record.memory_records.MemoryRecords(bytes(batch)).next_batch()
    assert read.validate_crc()
    assert read.is_transactional and read.producer_id == 9
    assert [(record.offset, record.timestamp, record.key, record.value, list(record.headers)) for record in read] == [
        (7 + i, *record) for i, record in enumerate(records)
    ]


@pytest.mark.parametrize(('other', 'compression'), OTHERS)
def test_what_another_implementation_writes_is_read(other, compression):
    builder = other.record.default_records.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=100_000,
    )
    for i in range(30):
        builder.append(i, timestamp=T + i, key=b'k%d' % i, value=b'v' * i * 50, headers=[('h', b'x')])
    assert decode_records(builder.build()) == [
        Record(i, T + i, b'k%d' % i, b'v' * i * 50, [('h', b'x')]) for i in range(30)
    ]


# --- hostile bytes ---


@pytest.mark.parametrize(
    ('records', 'count', 'message'),
    [
        (b'', 2**31 - 1, 'record 0 of 2147483647'),
        (b'\x0c\0\0\0\x01\x01\0', 2**31 - 1, 'record 1 of'),
        (b'\xfe\xff\xff\xff\x0f' + bytes(9), 1, '2147483647 bytes expected, 9 left'),
        (b'\xff\xff\xff\xff\x0f' + bytes(9), 1, 'truncated: -2147483648 bytes expected'),
        (b'\x80\x80\x80\x80\x80\x01', 1, 'varint without an end'),
        (b'\x0c\0\0\0\x01\x02\0', 1, '0 left'),
        (b'\x14\0\0\0\x01\x01\xfe\xff\xff\xff\x0f', 1, '0 left'),
        (b'\x0c\0\0\0\x01\x01\x01', 1, 'header count'),
        (b'\x10\0\0\0\x01\x01\x02\x01\x01', 1, 'truncated: -1 bytes'),
        (b'\x0e\0\0\0\x01\x01\0\0', 1, 'bytes after the last header'),
        (b'\x0c\0\0\0\x01\x01\0\0', 1, 'found 1 bytes after the last'),
        (b'x', 0, 'found 1 bytes after the last of 0 records'),
        (b'x', -5, 'found 1 bytes after the last of -5 records'),
    ],
)
def test_records_that_contradict_themselves_are_refused(records, count, message):
    with pytest.raises(CorruptBatchError, match=message):
        decode_records(a_batch(records, count))
    with pytest.raises(CorruptBatchError, match=message):
        list(iter_records(a_batch(records, count)))


@pytest.mark.parametrize('length', [-1, -2, -1000, -(2**31)])
@pytest.mark.parametrize('part', ['key', 'value', 'header'])
def test_each_length_below_zero_is_read_as_null(part, length):
    """Kafka writes length -1 for null, and reads every negative length as null. In a produced batch, a negative length
    other than -1 is refused.
    """
    batch = batch_of_records([null_record(part, length)], T)
    record = Record(0, T, None if part == 'key' else b'k', None if part == 'value' else b'v',
                    [('h', None)] if part == 'header' else [])
    assert decode_records(batch) == [record]
    decoder = ColumnDecoder(RECORD_COLUMNS)
    decoder.feed(batch, BatchFilter())
    assert RecordColumns(decoder).records() == [record]


def test_a_batch_shorter_than_its_length_is_refused():
    batch = encode_batch([(T, b'k', b'v')])
    with pytest.raises(CorruptBatchError, match='of the batch, expected'):
        decode_records(batch[:-1])
    with pytest.raises(CorruptBatchError, match='found 10 bytes'):
        decode_records(batch[:10])


def test_what_follows_the_batch_is_not_read():
    batch = encode_batch([(T, b'k', b'v')])
    assert len(decode_records(batch + b'more')) == 1


SEEDS = [
    encode_batch(
        [(T + i, b'k%d' % i, b'v' * i, [('h', b'x')]) for i in range(20)],
        compression=compression,
        producer_id=3,
        producer_epoch=0,
        base_sequence=0,
    )
    for compression in range(5)
]


@given(seed=st.sampled_from(SEEDS), data=st.data())
@example(seed=SEEDS[1], data=None)
def test_a_mutated_batch_raises_kafka_errors_and_nothing_else(seed, data):
    batch = bytearray(seed)
    if data is not None:
        for _ in range(data.draw(st.integers(1, 6))):
            batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
        batch = batch[: data.draw(st.integers(0, len(batch)))] + data.draw(st.binary(max_size=8))
    try:
        assert len(decode_records(batch)) == max(read_header(batch).records_count, 0)
    except KafkaError as error:
        assert error.code in (
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )


@given(records=st.binary(max_size=60), count=st.integers(0, 5))
def test_any_bytes_are_read_or_refused_as_the_reference_does(records, count):
    try:
        expected = len(reference.decode_records(records, count))
    except reference.Malformed:
        with pytest.raises(CorruptBatchError):
            decode_records(a_batch(records, count))
    else:
        assert len(decode_records(a_batch(records, count))) == expected


@pytest.mark.parametrize('compression', range(1, 5))
def test_a_decompression_bomb_is_refused(compression):
    batch = encode_batch([(T, None, bytes(3_000_000))], compression=compression)
    assert len(batch) < 200_000
    with pytest.raises(KafkaError, match='more than 1000000 bytes') as raised:
        decode_records(batch, max_decompressed_bytes=1_000_000)
    assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert len(decode_records(batch)) == 1

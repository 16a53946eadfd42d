"""The validation of produced batches, and the changes that the broker makes to them."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import record as reference

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.record.batch import check_crc, encode_batch, read_header
from kbroker.record.produced import prepare_produced
from kbroker.record.produced_records import MAX_RECORD_ERRORS, InvalidRecordsError, ProduceRules
from kbroker.record.records import decode_records

T = 1_700_000_000_000
HOUR_MS = 3_600_000


def topic(**settings) -> SimpleNamespace:
    """Return an object with the topic settings that the validation reads. Settings that are not given have Kafka's
    defaults.
    """
    return SimpleNamespace(
        **{
            'max_message_bytes': 1_048_588,
            'max_decompressed_message_bytes': 2_147_483_639,
            'segment_bytes': 2**30,
            'cleanup_policy': frozenset({'delete'}),
            'message_timestamp_type': 'CreateTime',
            'message_timestamp_before_max_ms': 2**63 - 1,
            'message_timestamp_after_max_ms': HOUR_MS,
            'compression_type': 'producer',
            'compression_gzip_level': -1,
            'compression_lz4_level': 9,
            'compression_zstd_level': 3,
        }
        | settings
    )


DEFAULT = ProduceRules(topic())


def some_batch(**fields) -> bytearray:
    return encode_batch([(T + i, b'k%d' % i, b'v' * 20 * i, [('h', b'x')]) for i in range(10)], **fields)


def patched(**fields) -> bytes:
    """Return a valid batch in which some header fields are changed and the CRC matches."""
    batch = reference.decode_batch(bytes(some_batch()))
    for name, value in fields.items():
        setattr(batch, name, value)
    return batch.encode()


def refusal(batch, rules=DEFAULT, now_ms=T, **options) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        prepare_produced(batch, rules, now_ms, **options)
    return raised.value.code


# --- batches accepted unchanged ---


@pytest.mark.parametrize('compression', range(5))
def test_a_good_batch_is_taken_as_it_is(compression):
    batch = some_batch(compression=compression, producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    before = bytes(batch)
    view = memoryview(batch)
    assert prepare_produced(view, DEFAULT, T) is view
    assert batch == before


@pytest.mark.parametrize('count', [1, 5000])
def test_large_and_small_batches_are_taken(count):
    batch = encode_batch([(T, None, b'value')] * count)
    assert prepare_produced(batch, DEFAULT, T) is batch


# --- header ---


@pytest.mark.parametrize(
    ('batch', 'code'),
    [
        (b'', ErrorCode.INVALID_RECORD),
        (bytes(60), ErrorCode.CORRUPT_MESSAGE),
        (bytes(100), ErrorCode.CORRUPT_MESSAGE),
        (some_batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (some_batch()[:16] + b'\x00' + some_batch()[17:], ErrorCode.INVALID_RECORD),
        (some_batch()[:16] + b'\x01' + some_batch()[17:], ErrorCode.INVALID_RECORD),
        (some_batch()[:16] + b'\x03' + some_batch()[17:], ErrorCode.CORRUPT_MESSAGE),
        (some_batch()[:-1] + b'!', ErrorCode.CORRUPT_MESSAGE),
        (some_batch() * 2, ErrorCode.INVALID_RECORD),
        (some_batch() + b'!', ErrorCode.INVALID_RECORD),
        (some_batch(base_offset=1), ErrorCode.INVALID_RECORD),
        (some_batch(control=True), ErrorCode.INVALID_RECORD),
        (some_batch(producer_id=1, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
        (patched(records_count=11), ErrorCode.INVALID_RECORD),
        (patched(records_count=9), ErrorCode.INVALID_RECORD),
        (patched(records_count=9, last_offset_delta=8), ErrorCode.INVALID_RECORD),
        (patched(records_count=11, last_offset_delta=10), ErrorCode.INVALID_RECORD),
        (patched(records_count=2**31 - 1, last_offset_delta=2**31 - 2), ErrorCode.INVALID_RECORD),
        (patched(records_count=0, last_offset_delta=-1), ErrorCode.INVALID_RECORD),
        (patched(records_count=-1, last_offset_delta=-2), ErrorCode.INVALID_RECORD),
        (patched(records_count=0, last_offset_delta=-1, records=b''), ErrorCode.INVALID_RECORD),
        (patched(last_offset_delta=2**31 - 1), ErrorCode.INVALID_RECORD),
        (patched(attributes=5), ErrorCode.UNKNOWN_SERVER_ERROR),
        (patched(attributes=7), ErrorCode.UNKNOWN_SERVER_ERROR),
        (patched(attributes=1), ErrorCode.UNKNOWN_SERVER_ERROR),
        (patched(attributes=2), ErrorCode.UNKNOWN_SERVER_ERROR),
        (patched(attributes=3), ErrorCode.UNKNOWN_SERVER_ERROR),
        (patched(attributes=4), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_batch_that_a_client_may_not_send_is_refused(batch, code):
    assert refusal(batch) is code


@pytest.mark.parametrize(('claimed', 'kept'), [(T, T), (T - 5, T - 5), (0, 0), (-7, -1), (T + HOUR_MS, T + HOUR_MS)])
def test_a_producer_that_claims_log_append_time_chooses_the_maximum_timestamp_alone(claimed, kept):
    """Like Apache Kafka, the broker validates the claimed append time as the timestamp of each record, and clears the
    LogAppendTime bit.
    """
    records = [(T, b'k', b'v'), (T + 2 * HOUR_MS, b'k', b'v')]
    prepared = prepare_produced(encode_batch(records, log_append_time_ms=claimed), DEFAULT, T)
    header = read_header(prepared)
    check_crc(prepared, header)
    assert not header.is_log_append_time and header.max_timestamp_ms == kept
    assert [record.timestamp_ms for record in decode_records(prepared)] == [T, T + 2 * HOUR_MS]


@pytest.mark.parametrize('compression', [0, 2])
@pytest.mark.parametrize(
    ('claimed', 'settings', 'reason'),
    [
        (T, {'message_timestamp_type': 'LogAppendTime'}, 'type LogAppendTime, expected CreateTime'),
        (-1, {}, 'type LogAppendTime, expected CreateTime'),
        (T + HOUR_MS + 1, {}, f'timestamp {T + HOUR_MS + 1}, expected'),
        (T - 2, {'message_timestamp_before_max_ms': 1}, f'timestamp {T - 2}, expected'),
    ],
)
def test_a_claimed_append_time_is_checked_for_each_record(compression, claimed, settings, reason):
    batch = encode_batch([(T, b'k', b'v')] * 2, log_append_time_ms=claimed, compression=compression)
    with pytest.raises(InvalidRecordsError) as raised:
        prepare_produced(batch, ProduceRules(topic(**settings)), T)
    assert raised.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in raised.value.record_errors] == [0, 1]
    assert all(reason in text for _, text in raised.value.record_errors)


def test_zstd_needs_version_7_of_produce():
    batch = some_batch(compression=4)
    assert refusal(batch, allow_zstd=False) is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert prepare_produced(some_batch(compression=3), DEFAULT, T, allow_zstd=False)


def test_the_largest_message_is_the_whole_batch():
    batch = some_batch()
    assert prepare_produced(batch, ProduceRules(topic(max_message_bytes=len(batch))), T) is batch
    assert refusal(batch, ProduceRules(topic(max_message_bytes=len(batch) - 1))) is ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_must_fit_into_a_segment():
    batch = some_batch()
    assert prepare_produced(batch, ProduceRules(topic(segment_bytes=len(batch))), T) is batch
    assert refusal(batch, ProduceRules(topic(segment_bytes=len(batch) - 1))) is ErrorCode.RECORD_LIST_TOO_LARGE


# --- records ---


@pytest.mark.parametrize('compression', range(5))
def test_offsets_inside_the_batch_count_from_zero(compression):
    records = [reference.Record(delta, 0, None, b'v') for delta in (0, 2, 1)]
    batch = reference.Batch(
        records_count=3,
        last_offset_delta=2,
        base_timestamp_ms=T,
        max_timestamp_ms=T,
        records=b''.join(map(reference.encode_record, records)),
    )
    raw = bytearray(batch.encode())
    if compression:
        from kbroker.record.compression import compress

        batch.attributes, batch.records = compression, compress(compression, batch.records)
        raw = batch.encode()
    assert refusal(raw) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize('compression', range(5))
def test_a_compacted_topic_names_the_records_without_a_key(compression):
    batch = encode_batch([(T, b'k', None), (T, None, b'v'), (T, b'', None), (T, None, None)], compression=compression)
    with pytest.raises(InvalidRecordsError, match='no key') as raised:
        prepare_produced(batch, ProduceRules(topic(cleanup_policy=frozenset({'compact', 'delete'}))), T)
    assert raised.value.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in raised.value.record_errors] == [1, 3]
    assert prepare_produced(batch, DEFAULT, T) is batch


@pytest.mark.parametrize('compression', range(5))
def test_timestamps_out_of_bounds_are_named(compression):
    rules = ProduceRules(topic(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500))
    times = [T - 1001, T - 1000, T + 500, T + 501, -1]
    batch = encode_batch([(timestamp_ms, None, b'v') for timestamp_ms in times], compression=compression)
    with pytest.raises(InvalidRecordsError, match=f'timestamp {T - 1001}, expected {T - 1000} to {T + 500}') as raised:
        prepare_produced(batch, rules, T)
    assert raised.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in raised.value.record_errors] == [0, 3]


def test_a_time_that_cannot_be_compared_with_now_is_refused_where_a_bound_is_set():
    farthest = T - (2**63 - 1)
    assert prepare_produced(encode_batch([(farthest, None, b'v')]), DEFAULT, T)
    assert refusal(encode_batch([(farthest - 1, None, b'v')])) is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize('timestamp_ms', [-(2**63), 2**63 - 1])
def test_the_ends_of_time_do_not_overflow(timestamp_ms):
    batch = encode_batch([(timestamp_ms, None, b'v')])
    assert refusal(batch, ProduceRules(topic(message_timestamp_before_max_ms=0))) is ErrorCode.INVALID_TIMESTAMP
    unbounded = ProduceRules(topic(message_timestamp_after_max_ms=2**63 - 1))
    assert prepare_produced(batch, unbounded, T)


def test_the_timestamp_outweighs_the_missing_key():
    rules = ProduceRules(topic(cleanup_policy=frozenset({'compact'}), message_timestamp_before_max_ms=0))
    assert refusal(encode_batch([(T, None, b'v'), (0, b'k', b'v')]), rules) is ErrorCode.INVALID_TIMESTAMP


def test_only_so_many_faulty_records_are_named():
    batch = encode_batch([(T, None, None)] * (MAX_RECORD_ERRORS + 5))
    with pytest.raises(InvalidRecordsError, match=f'{MAX_RECORD_ERRORS + 5} of') as raised:
        prepare_produced(batch, ProduceRules(topic(cleanup_policy=frozenset({'compact'}))), T)
    assert len(raised.value.record_errors) == MAX_RECORD_ERRORS


@pytest.mark.parametrize('compression', range(1, 5))
def test_a_decompression_bomb_is_refused(compression):
    batch = encode_batch([(T, None, bytes(2_000_000))], compression=compression)
    rules = ProduceRules(topic(), max_decompressed_bytes=1_000_000)
    assert refusal(batch, rules) is ErrorCode.MESSAGE_TOO_LARGE
    assert prepare_produced(batch, DEFAULT, T) is batch


def batch_of_bodies(*sizes, compression=0, key=None):
    """Return a batch of records whose bodies have these sizes in bytes, from 71 to 8198."""
    return encode_batch([(T, key, bytes(size - 7 - len(key or b''))) for size in sizes], compression=compression)


@pytest.mark.parametrize('compression', range(1, 5))
def test_each_record_of_a_compressed_batch_is_bounded(compression):
    rules = ProduceRules(topic(max_decompressed_message_bytes=100))
    fits = batch_of_bodies(100, 71, 100, compression=compression)
    assert prepare_produced(fits, rules, T) is fits
    for sizes in ((101,), (100, 101, 100), (100, 8000)):
        with pytest.raises(KafkaError) as refused:
            prepare_produced(batch_of_bodies(*sizes, compression=compression), rules, T)
        assert refused.value.code is ErrorCode.INVALID_RECORD
        assert not isinstance(refused.value, InvalidRecordsError), 'Apache Kafka lists no record'
        assert 'expected at most 100 (max.decompressed.message.bytes)' in str(refused.value)


@pytest.mark.parametrize('compression_type', ['producer', 'lz4'])
def test_the_records_of_an_uncompressed_batch_are_not_bounded(compression_type):
    rules = ProduceRules(topic(max_decompressed_message_bytes=100, compression_type=compression_type))
    found = prepare_produced(batch_of_bodies(8000), rules, T)
    assert [len(record.value) for record in decode_records(found)] == [7993]


def test_a_record_that_is_too_large_hides_the_faults_of_other_records():
    rules = ProduceRules(topic(max_decompressed_message_bytes=100, cleanup_policy=frozenset({'compact'})))
    with pytest.raises(KafkaError) as refused:
        prepare_produced(batch_of_bodies(100, 101, compression=1), rules, T)
    assert not isinstance(refused.value, InvalidRecordsError)
    with pytest.raises(InvalidRecordsError):
        prepare_produced(batch_of_bodies(100, 99, compression=1), rules, T)


# --- changes by the broker ---


@pytest.mark.parametrize('compression', range(5))
@pytest.mark.parametrize('claimed', [-1, 0, T + 10, 2**63 - 1])
def test_the_maximum_timestamp_is_that_of_the_records(compression, claimed):
    batch = some_batch(compression=compression, max_timestamp_ms=claimed)
    prepared = prepare_produced(batch, DEFAULT, T)
    assert prepared is batch
    assert prepared == some_batch(compression=compression)


def test_what_cannot_be_written_is_copied():
    batch = bytes(some_batch(max_timestamp_ms=1))
    assert prepare_produced(batch, DEFAULT, T) == some_batch()
    assert batch == some_batch(max_timestamp_ms=1)


@pytest.mark.parametrize('compression', range(5))
def test_log_append_time_is_the_brokers(compression):
    rules = ProduceRules(topic(message_timestamp_type='LogAppendTime', message_timestamp_before_max_ms=0))
    batch = some_batch(compression=compression, producer_id=1, producer_epoch=2, base_sequence=3)
    prepared = prepare_produced(batch, rules, T + 10_000)
    assert prepared is batch
    header = read_header(prepared)
    check_crc(prepared, header)
    assert header.is_log_append_time and header.max_timestamp_ms == T + 10_000 and header.compression == compression
    assert {record.timestamp_ms for record in decode_records(prepared)} == {T + 10_000}


@pytest.mark.parametrize('source', range(5))
@pytest.mark.parametrize(('name', 'target'), [('uncompressed', 0), ('gzip', 1), ('snappy', 2), ('lz4', 3), ('zstd', 4)])
def test_a_topic_with_a_codec_recompresses(source, name, target):
    batch = some_batch(
        compression=source, producer_id=1, producer_epoch=2, base_sequence=3, transactional=True, max_timestamp_ms=0
    )
    prepared = prepare_produced(batch, ProduceRules(topic(compression_type=name)), T)
    header = read_header(prepared)
    check_crc(prepared, header)
    assert (prepared is batch) == (source == target)
    assert header.compression == target and header.size_bytes == len(prepared) and header.max_timestamp_ms == T + 9
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional) == (1, 2, 3, True)
    assert decode_records(prepared) == decode_records(some_batch(producer_id=1, producer_epoch=2, base_sequence=3))


def test_a_batch_that_grows_beyond_the_limit_in_the_topics_codec_is_refused():
    batch = encode_batch([(T, None, bytes(10_000))], compression=4)
    rules = ProduceRules(topic(compression_type='uncompressed', max_message_bytes=5000))
    assert refusal(batch, rules) is ErrorCode.MESSAGE_TOO_LARGE


# --- hostile bytes ---


@given(seed=st.sampled_from([bytes(some_batch(compression=compression)) for compression in range(5)]), data=st.data())
def test_mutated_records_under_a_good_checksum_raise_kafka_errors_and_nothing_else(seed, data):
    batch = reference.decode_batch(seed)
    records = bytearray(batch.records)
    for _ in range(data.draw(st.integers(0, 4))):
        records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.integers(0, 255))
    batch.records = bytes(records[: data.draw(st.integers(0, len(records)))]) + data.draw(st.binary(max_size=5))
    batch.records_count = data.draw(st.sampled_from([10, 10, 1, 2**31 - 1]))
    batch.last_offset_delta = batch.records_count - 1
    batch.base_timestamp_ms = data.draw(st.sampled_from([T, -(2**63), 2**63 - 1]))
    raw = bytearray(batch.encode())
    try:
        prepared = prepare_produced(raw, DEFAULT, T)
    except KafkaError as error:
        assert error.code in (
            ErrorCode.UNKNOWN_SERVER_ERROR,
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.INVALID_TIMESTAMP,
        )
    else:
        header = read_header(prepared)
        check_crc(prepared, header)
        assert [record.offset for record in decode_records(prepared)] == list(range(header.records_count))


@given(records=st.binary(max_size=40), count=st.integers(1, 4))
def test_records_are_accepted_exactly_where_the_reference_reads_them(records, count):
    batch = reference.Batch(records_count=count, last_offset_delta=count - 1, records=records).encode()
    try:
        deltas = [record.offset_delta for record in reference.decode_records(records, count, is_strict=True)]
    except reference.Malformed:
        deltas = []
    if deltas == list(range(count)):
        prepare_produced(batch, ProduceRules(topic(message_timestamp_after_max_ms=2**63 - 1)), T)
    else:
        assert refusal(batch) is ErrorCode.INVALID_RECORD

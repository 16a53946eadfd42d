"""The codec has the same results as the slow codec in tests/reference, withstands hostile bytes, and reports errors."""
import contextlib
import gc
import random
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import codec as reference
from support.messages.message_strategies import NAMES, as_values, messages_and_versions, versions_of

from kbroker.base.errors import ProtocolError
from kbroker.protocol import messages
from kbroker.protocol.codec import EncodeError, decode, decode_prefix, encode, encode_segments
from kbroker.protocol.messages import (
    ApiVersionsRequest,
    EndTxnRequest,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionChangeRecord,
    ProduceRequest,
    ProduceResponse,
    RequestHeader,
    VotersRecord,
)

TRUNCATED_OR_WRONG = (ProtocolError, reference.Malformed)


# ---- comparison with the slow codec

@pytest.mark.parametrize('name', NAMES)
def test_what_the_codec_writes_is_what_the_reference_writes_and_reads(name):
    message_class = getattr(messages, name)

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(messages_and_versions(name))
    def agree(message_and_version):
        message, version = message_and_version
        data = encode(message, version)
        assert data == reference.encode(message_class.schema, version, as_values(message))
        assert reference.decode(message_class.schema, version, data) == as_values(message)
        assert decode(message_class, data, version) == message

    agree()


@pytest.mark.parametrize('name', NAMES)
def test_defaults_survive_the_wire_in_every_version(name):
    message_class = getattr(messages, name)
    for version in versions_of(name):
        data = encode(message_class(), version)
        assert data == reference.encode(message_class.schema, version, as_values(message_class()))
        assert decode(message_class, data, version) == message_class()


def mutated(random_source: random.Random, data: bytes) -> bytes:
    """Return a copy of `data` with one to three random mutations: a changed byte, removed or inserted bytes, or a
    truncation."""
    changed = bytearray(data)
    for _ in range(random_source.randint(1, 3)):
        at = random_source.randrange(len(changed) + 1)
        kind = random_source.randrange(4)
        if kind == 0:
            changed[at:at + 1] = bytes([random_source.choice((0, 1, 0x7f, 0x80, 0xff, random_source.randrange(256)))])
        elif kind == 1:
            del changed[at:at + random_source.randint(1, 4)]
        elif kind == 2:
            changed[at:at] = random_source.randbytes(random_source.randint(1, 4))
        else:
            del changed[at:]
    return bytes(changed)


def test_hostile_bytes_raise_protocol_error_or_mean_what_the_reference_reads():
    """Both codecs refuse each of 20,000 mutated messages, or both read the same values from it."""
    random_source = random.Random(20)
    samples = []
    for name in NAMES:
        message_class = getattr(messages, name)
        for version in versions_of(name):
            samples.append((message_class, version, encode(filled(message_class, random_source), version)))
    refused = 0
    for i in range(20_000):
        message_class, version, data = samples[i % len(samples)]
        data = mutated(random_source, data)
        try:
            expected = reference.decode(message_class.schema, version, data)
        except reference.Malformed:
            expected = None
        try:
            found = as_values(decode(message_class, data, version))
        except ProtocolError:
            found = None
            refused += 1
        # Compare the values as texts, because nan does not equal nan.
        assert repr(found) == repr(expected), (message_class.__name__, version, data.hex())
    assert 1_000 < refused < 20_000


def filled(message_class, random_source: random.Random):
    """Return a message of this class with non-empty arrays and strings."""
    numbers = {'bool': True, 'float64': 0.5, 'string': 'name', 'bytes': b'\x01\x02', 'records': b'records'}

    def fill(struct, struct_class):
        return struct_class(**{field.name: value(field) for field in struct.fields})

    def value(field):
        if field.struct is not None:
            one = fill(field.struct, getattr(message_class, field.struct.name))
        elif field.type == 'uuid':
            one = random_source.randbytes(16)
        else:
            one = numbers.get(field.type, random_source.randrange(100))
        return [one, one] if field.is_array else one

    return fill(message_class.schema.struct, message_class)


def test_every_truncation_of_a_frame_is_refused():
    response = filled(MetadataResponse, random.Random(1))
    for version in versions_of('MetadataResponse'):
        data = encode(response, version)
        for size in range(len(data)):
            with pytest.raises(ProtocolError):
                decode(MetadataResponse, data[:size], version)


# ---- decode

def test_bytes_after_the_message_are_refused_unless_a_prefix_is_asked_for():
    data = encode(EndTxnRequest(transactional_id='id', producer_id=7), 3)
    with pytest.raises(ProtocolError, match=r'EndTxnRequest version 3.*2 bytes left over'):
        decode(EndTxnRequest, data + b'xy', 3)
    message, end = decode_prefix(EndTxnRequest, b'header' + data + b'xy', 3, 6)
    assert (message.producer_id, end) == (7, 6 + len(data))
    assert decode(EndTxnRequest, b'header' + data, 3, 6) == message


def test_records_are_a_view_and_bytes_are_a_copy():
    topic = ProduceRequest.TopicProduceData(
        name='t', partition_data=[ProduceRequest.PartitionProduceData(index=1, records=b'batch')])
    frame = bytearray(encode(ProduceRequest(acks=-1, topic_data=[topic]), 9))
    records = decode(ProduceRequest, frame, 9).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview) and records == b'batch'
    frame[frame.index(b'batch')] = ord('B')
    assert records == b'Batch'


def test_a_view_of_a_frame_can_be_decoded():
    data = encode(MetadataRequest(), 12)
    assert decode(MetadataRequest, memoryview(b'...' + data)[3:], 12) == MetadataRequest()


def test_an_array_count_beyond_the_bytes_left_is_refused_before_anything_is_allocated():
    frame = (2 ** 31 - 1).to_bytes(4, 'big') + bytes(64)
    with pytest.raises(ProtocolError, match=r'an array of 2147483647 elements of at least \d+ bytes, 64 bytes left'):
        decode(MetadataRequest, frame, 1)
    with pytest.raises(ProtocolError, match='array of 17 elements of at least 4 bytes'):       # 17 * 4 > 64
        decode(messages.ElectLeadersRequest, b'\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x11' + bytes(64), 0)


@pytest.mark.parametrize(('data', 'version', 'complaint'), [
    (b'\xff\xff', 0, 'null where null is not allowed'),
    (b'\xff\xfe', 0, 'null where null is not allowed'),
    (b'\x00', 3, 'null where null is not allowed'),
    (b'\x03\xff\xfe', 3, 'not UTF-8'),
    (b'\x81\x80\x02' + bytes(40_000), 3, 'a string of 32768 bytes'),
    (b'\xff\xff\xff\xff\xff\x00', 3, 'varint without an end'),
    (b'\xff\xff\xff\xff\x07', 3, 'a string of 2147483646 bytes'),
    (b'\xff\xff\xff\xff\x7f', 3, 'null where null is not allowed'),
    (b'', 3, 'varint without an end'),
])
def test_what_is_wrong_with_a_string_is_said(data, version, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        decode(EndTxnRequest, data, version)


@pytest.mark.parametrize(('message_class', 'version', 'field', 'null'), [
    (MetadataRequest, 1, 'topics', b'\xff\xff\xff\xff'), (MetadataRequest, 1, 'topics', b'\xff\xff\xff\xfe'),
    (MetadataRequest, 1, 'topics', b'\x80\0\0\0'), (MetadataRequest, 9, 'topics', b'\0'),
    (MetadataRequest, 9, 'topics', b'\xff\xff\xff\xff\x0f'), (MetadataRequest, 9, 'topics', b'\x81\x80\x80\x80\x08'),
    (MetadataRequest, 9, 'topics', b'\x80\x80\x80\x80\x70'),
    (messages.FindCoordinatorResponse, 1, 'error_message', b'\xff\xff'),
    (messages.FindCoordinatorResponse, 1, 'error_message', b'\x80\0'),
    (messages.FindCoordinatorResponse, 3, 'error_message', b'\xff\xff\xff\xff\x0f'),
    (messages.ConsumerProtocolSubscription, 0, 'user_data', b'\xff\xff\xff\xfe')])
def test_each_length_below_zero_is_null_as_kafka_reads_it(message_class, version, field, null):
    """A compact length is an unsigned varint minus one. Kafka reads the varint into 32 bits, so large values become
    lengths below 0."""
    message = message_class(**{field: None})
    good = encode(message, version)
    size = {'topics': 1 if version >= 9 else 4, 'error_message': 1 if version >= 3 else 2, 'user_data': 4}[field]
    at = {'topics': 0, 'error_message': 6, 'user_data': len(good) - 4}[field]
    assert decode(message_class, good[:at] + null + good[at + size :], version) == message


def test_an_unknown_version_is_refused():
    with pytest.raises(ProtocolError, match='EndTxnRequest has no version 99'):
        decode(EndTxnRequest, b'', 99)
    with pytest.raises(EncodeError, match='EndTxnRequest has no version -1'):
        encode(EndTxnRequest(), -1)


def test_a_position_outside_the_data_is_an_error_of_the_caller():
    for position in (-1, 4):
        with pytest.raises(ValueError, match='outside'):
            decode(EndTxnRequest, b'abc', 3, position)


# ---- tags

def test_unknown_tags_are_skipped_and_known_ones_read():
    known = encode(PartitionChangeRecord(leader=3), 0)
    assert known.endswith(b'\x01\x01\x04\x00\x00\x00\x03')
    with_unknown = known[:-7] + b'\x02' + b'\x01\x04\x00\x00\x00\x03' + b'\x63\x02xy'
    assert decode(PartitionChangeRecord, with_unknown, 0) == PartitionChangeRecord(leader=3)


def test_a_tag_whose_value_does_not_fill_it_is_refused():
    known = encode(PartitionChangeRecord(leader=3), 0)
    with pytest.raises(ProtocolError, match='1 bytes left over in tag 1'):
        decode(PartitionChangeRecord, known[:-7] + b'\x01\x01\x05\x00\x00\x00\x03\x00', 0)
    with pytest.raises(ProtocolError):
        decode(PartitionChangeRecord, known[:-7] + b'\x01\x01\x03\x00\x00\x03', 0)


def test_a_tag_longer_than_127_bytes_gets_a_longer_size():
    message = PartitionChangeRecord(isr=list(range(5000)), leader=1)
    data = encode(message, 2)
    assert data == reference.encode(PartitionChangeRecord.schema, 2, as_values(message))
    assert decode(PartitionChangeRecord, data, 2) == message


def test_a_tagged_struct_is_left_out_while_it_equals_its_default():
    partition = ProduceResponse.PartitionProduceResponse
    response = ProduceResponse(responses=[ProduceResponse.TopicProduceResponse(partition_responses=[partition()])])
    short = encode(response, 10)
    response.responses[0].partition_responses[0].current_leader.leader_id = 0
    assert len(encode(response, 10)) == len(short) + 2 + 8 + 1


def test_the_client_id_of_a_request_header_keeps_the_old_string_length():
    header = RequestHeader(request_api_key=18, request_api_version=3, correlation_id=7, client_id='me')
    assert encode(header, 2) == bytes.fromhex('0012 0003 00000007 0002') + b'me\x00'
    header.client_id = None
    assert encode(header, 1) == bytes.fromhex('0012 0003 00000007 ffff')


# ---- encode

@pytest.mark.parametrize(
    ('message', 'version', 'complaint'),
    [
        (EndTxnRequest(producer_epoch=2**15), 0, 'EndTxnRequest.producer_epoch: 32768 is outside -32768 to 32767'),
        (EndTxnRequest(producer_id=2**63), 0, 'producer_id: 9223372036854775808 is outside'),
        (EndTxnRequest(producer_id=-(2**63) - 1), 0, 'producer_id: -9223372036854775809 is outside'),
        (EndTxnRequest(producer_id='7'), 0, "producer_id: '7' is not an integer"),
        (EndTxnRequest(producer_id=7.0), 0, 'producer_id: 7.0 is not an integer'),
        (EndTxnRequest(producer_id=None), 0, 'producer_id: None is not an integer'),
        (EndTxnRequest(transactional_id=None), 3, 'transactional_id: null where null is not allowed'),
        (EndTxnRequest(transactional_id=b'id'), 3, "transactional_id: b'id' is not a string"),
        (EndTxnRequest(transactional_id='\ud800'), 3, 'transactional_id: .*surrogates'),
        (EndTxnRequest(transactional_id='x' * 32768), 0, 'transactional_id: a string of 32768 bytes'),
        (EndTxnRequest(transactional_id='é' * 16384), 3, 'transactional_id: a string of 32768 bytes'),
        (
            VotersRecord(voters=[VotersRecord.Voter(endpoints=[VotersRecord.Endpoint(port=65536)])]),
            0,
            'VotersRecord version 0: Endpoint.port: 65536 is outside 0 to 65535',
        ),
        (
            VotersRecord(voters=[VotersRecord.Voter(voter_directory_id=bytes(15))]),
            0,
            'voter_directory_id: .* not a uuid of 16 bytes',
        ),
        (VotersRecord(voters=[VotersRecord.Endpoint()]), 0, 'voters: Voter expected, not Endpoint'),
        (VotersRecord(voters=None), 0, 'voters: null where null is not allowed'),
        (VotersRecord(voters='abc'), 0, 'voters: str is not a list'),
        (MetadataRequest(topics=None), 0, 'topics: null where null is not allowed'),
    ],
)
def test_what_cannot_be_written_is_named(message, version, complaint):
    with pytest.raises(EncodeError, match=complaint):
        encode(message, version)


def test_null_is_written_where_the_version_allows_it():
    assert encode(MetadataRequest(topics=None), 1) == b'\xff\xff\xff\xff'
    assert decode(MetadataRequest, b'\xff\xff\xff\xff', 1).topics is None


def test_fields_that_the_version_lacks_are_left_out():
    assert encode(FetchRequest(rack_id='here', session_id=9), 4) == encode(FetchRequest(), 4)


class Slice:
    """Stands in for a slice of a log file in a `records` field."""

    def __init__(self, size_bytes):
        self.size_bytes = size_bytes


@pytest.mark.parametrize('version', [4, 11, 12, 18])
def test_file_slices_become_segments_of_their_own(version):
    def response(first, second):
        partitions = [
            FetchResponse.PartitionData(partition_index=i, records=each)
            for i, each in enumerate((first, b'inline', second))
        ]
        return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic='t', partitions=partitions)])

    slices = Slice(300), Slice(0)
    segments = encode_segments(response(*slices), version, b'prefix')
    assert [type(segment) for segment in segments][:4] == [bytes, Slice, bytes, Slice]
    assert (segments[1], segments[3]) == slices
    joined = b''.join(segment if isinstance(segment, bytes) else b'x' * segment.size_bytes for segment in segments)
    assert joined == b'prefix' + encode(response(b'x' * 300, b''), version)
    with pytest.raises(EncodeError, match=r'PartitionData.records: .*bytes-like'):
        encode(response(*slices), version)
    with pytest.raises(EncodeError, match='records'):
        encode_segments(response(object(), None), version)


def test_without_slices_there_is_one_segment():
    assert encode_segments(EndTxnRequest(), 3) == [encode(EndTxnRequest(), 3)]
    assert encode_segments(messages.EndTransactionRecord(), 0, b'\x01\x18\x00') == [b'\x01\x18\x00\x00']


def test_bytes_like_objects_are_written_without_a_wrapper():
    for records in (bytearray(b'batch'), memoryview(b'-batch')[1:]):
        partition = ProduceRequest.PartitionProduceData(records=records)
        data = encode(ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(partition_data=[partition])]), 9)
        assert b'\x06batch' in data


# ---- messages

def test_a_message_takes_keywords_and_defaults_the_rest():
    request = FetchRequest(max_wait_ms=5)
    assert (request.max_wait_ms, request.max_bytes, request.topics, request.cluster_id) == (5, 0x7fffffff, [], None)
    assert request.replica_state == FetchRequest.ReplicaState(replica_id=-1, replica_epoch=-1)
    with pytest.raises(TypeError, match="FetchRequest has no field 'max_wait'"):
        FetchRequest(max_wait=5)
    with pytest.raises(AttributeError):
        request.max_wait = 5


def test_mutable_defaults_are_not_shared():
    one, other = FetchRequest(), decode(FetchRequest, encode(FetchRequest(), 15), 15)
    one.topics.append(FetchRequest.FetchTopic())
    one.replica_state.replica_id = 4
    assert (
        other.topics,
        other.replica_state.replica_id,
        FetchRequest().topics,
        FetchRequest().replica_state.replica_id,
    ) == ([], -1, [], -1)


def test_messages_compare_by_class_and_fields_and_have_no_hash():
    assert EndTxnRequest(producer_id=1) == EndTxnRequest(producer_id=1) != EndTxnRequest(producer_id=2)
    assert messages.HeartbeatResponse() != messages.AddOffsetsToTxnResponse()
    with pytest.raises(TypeError, match='unhashable'):
        hash(EndTxnRequest())


def test_a_message_shows_its_fields():
    assert repr(messages.HeartbeatResponse(error_code=3)) == 'HeartbeatResponse(throttle_time_ms=0, error_code=3)'


# ---- reference counts

def churn() -> None:
    """Decode and encode many times, with every kind of success and failure."""
    metadata = encode(filled(MetadataResponse, random.Random(2)), 12)
    fetch = encode(filled(FetchRequest, random.Random(3)), 15)
    for size in range(len(metadata)):
        for message_class, data, version in ((MetadataResponse, metadata, 12), (FetchRequest, fetch, 15)):
            with contextlib.suppress(ProtocolError):
                decode(message_class, data[:size], version)
    decode(MetadataResponse, metadata, 12)
    decode(ApiVersionsRequest, encode(ApiVersionsRequest(), 3), 3)
    broken = filled(FetchResponse, random.Random(4))
    broken.responses[0].partitions[0].aborted_transactions.append(None)
    for version in (4, 12):
        with contextlib.suppress(EncodeError):
            encode(broken, version)
    with contextlib.suppress(TypeError):
        FetchRequest(nonsense=1)


def test_failing_and_succeeding_leak_no_references():
    churn()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(20):
        churn()
    gc.collect()
    assert sys.getallocatedblocks() - before < 50


def test_classes_and_shared_defaults_keep_their_reference_counts():
    frame = encode(filled(FetchRequest, random.Random(5)), 15)
    watched = (FetchRequest.FetchTopic, FetchRequest.ReplicaState, frame)
    before = [sys.getrefcount(each) for each in watched]
    for size in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode(FetchRequest, frame[:size] + b'', 15)
    for _ in range(100):
        decode(FetchRequest, frame, 15)
        FetchRequest()
    assert [sys.getrefcount(each) for each in watched] == before


@given(
    st.binary(max_size=300),
    st.sampled_from(['ProduceRequest', 'MetadataRequest', 'TransactionLogValue', 'ApiVersionsRequest']),
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_decoded_or_refused(data, name):
    message_class = getattr(messages, name)
    for version in versions_of(name):
        try:
            message = decode(message_class, data, version)
        except ProtocolError:
            continue
        assert decode(message_class, encode(message, version), version) == message

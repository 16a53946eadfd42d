"""The hand-written reader and writer of Produce agree with the generic codec, which interprets the message table."""
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.apis.compiled_readers import readers
from support.messages.filled_messages import filled

from kbroker.apis.produce.produce import API
from kbroker.base.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.protocol.codec import decode, decode_prefix, encode
from kbroker.protocol.messages import ProduceRequest, ProduceResponse
from kbroker.record.produced_records import InvalidRecordsError

INT64 = st.integers(-(2**63), 2**63 - 1)
ERRORS = st.builds(KafkaError, st.sampled_from(ErrorCode), st.text(max_size=300)) | st.builds(
    InvalidRecordsError, st.sampled_from(ErrorCode), st.text(max_size=20),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.text(max_size=200)), max_size=3))
VERSIONS = st.integers(API.min_version, API.max_version)
FIRST_WITH_TOPIC_IDS = 13
FIRST_WITH_ERROR_MESSAGES = 8
FIRST_FLEXIBLE = 9


@st.composite
def requests(draw):
    """Generate (request, version)."""
    version = draw(VERSIONS)
    part = st.builds(ProduceRequest.PartitionProduceData, index=st.integers(-(2**31), 2**31 - 1),
                     records=st.none() | st.binary(max_size=300))
    by_id = version >= FIRST_WITH_TOPIC_IDS
    named = {'topic_id': st.binary(min_size=16, max_size=16)} if by_id else {'name': st.text(max_size=200)}
    topic = st.builds(ProduceRequest.TopicProduceData, partition_data=st.lists(part, max_size=20), **named)
    request = st.builds(ProduceRequest, transactional_id=st.none() | st.text(max_size=200),
                        acks=st.integers(-(2**15), 2**15 - 1), timeout_ms=st.integers(-(2**31), 2**31 - 1),
                        topic_data=st.lists(topic, max_size=4))
    return draw(request), version


def name_of(topic, version):
    return topic.topic_id if version >= FIRST_WITH_TOPIC_IDS else topic.name.encode()


def expected_reading(request, version):
    """Return the request in the form of `read_produce`."""
    return request.transactional_id, request.acks, [
        (name_of(topic, version), [(part.index, None if part.records is None else bytes(part.records))
                                   for part in topic.partition_data])
        for topic in request.topic_data]


@given(given_request=requests(), before=st.binary(max_size=20), behind=st.binary(max_size=3))
def test_a_request_is_read_as_the_codec_reads_it(given_request, before, behind):
    request, version = given_request
    found = readers.read_produce(before + encode(request, version) + behind, version, len(before))
    assert found == expected_reading(request, version)


@given(given_request=requests(), data=st.data())
def test_bytes_that_are_no_request_are_refused_where_the_codec_refuses_them(given_request, data):
    request, version = given_request
    changed = bytearray(encode(request, version))
    for _ in range(data.draw(st.integers(1, 3))):
        if changed:
            at = data.draw(st.integers(0, len(changed) - 1))
            changed[at] = data.draw(st.sampled_from((0, 1, 0x7f, 0x80, 0xff)) | st.integers(0, 255))
    changed = bytes(changed[:data.draw(st.integers(0, len(changed)))] if data.draw(st.booleans()) else changed)
    try:
        expected = expected_reading(decode_prefix(ProduceRequest, changed, version)[0], version)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            readers.read_produce(changed, version)
    else:
        assert readers.read_produce(changed, version) == expected


@pytest.mark.parametrize('version', range(FIRST_FLEXIBLE, API.max_version + 1))
def test_unknown_tags_are_skipped(version):
    tags = b'\2\0\1x\5\3abc'
    name = bytes(16) if version >= FIRST_WITH_TOPIC_IDS else b'\2t'
    request = b'\0' + b'\xff\xff' + bytes(4) + b'\2' + name + b'\2' + b'\0\0\0\7' + b'\3ab' + 3 * tags
    assert readers.read_produce(request, version)[2][0][1] == [(7, b'ab')]
    for size in range(len(request)):
        with pytest.raises(ProtocolError):
            readers.read_produce(request[:size], version)


@given(given_request=requests(), correlation_id=st.integers(-(2**31), 2**31 - 1), data=st.data())
def test_an_answer_is_written_as_the_codec_writes_it(given_request, correlation_id, data):
    request, version = given_request
    parts = sum(len(topic.partition_data) for topic in request.topic_data)
    answers = data.draw(st.lists(ERRORS | st.tuples(INT64, INT64, INT64), min_size=parts, max_size=parts))
    header = correlation_id.to_bytes(4, 'big', signed=True) + (b'\0' if version >= FIRST_FLEXIBLE else b'')
    written = readers.write_produce_answer(encode(request, version), version, correlation_id, answers)
    assert written == header + encode(response_of(request, iter(answers)), version)


def response_of(request, answers):
    return ProduceResponse(responses=[
        ProduceResponse.TopicProduceResponse(
            name=topic.name, topic_id=topic.topic_id,
            partition_responses=[answer_of(part.index, next(answers)) for part in topic.partition_data])
        for topic in request.topic_data])


def answer_of(index, answer):
    if isinstance(answer, KafkaError):
        return ProduceResponse.PartitionProduceResponse(
            index=index, error_code=int(answer.code), base_offset=-1, error_message=str(answer),
            record_errors=[ProduceResponse.BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=why)
                           for at, why in getattr(answer, 'record_errors', ())])
    base_offset, log_append_time_ms, log_start_offset = answer
    return ProduceResponse.PartitionProduceResponse(index=index, base_offset=base_offset,
                                                    log_append_time_ms=log_append_time_ms,
                                                    log_start_offset=log_start_offset)


@pytest.mark.parametrize('version', range(API.min_version, API.max_version + 1))
def test_requests_with_something_in_every_field_are_read(version):
    source = random.Random(version)
    for _ in range(20):
        request = filled(ProduceRequest, version, source)
        assert readers.read_produce(encode(request, version), version) == expected_reading(request, version)


def test_a_message_longer_than_a_string_may_be_is_cut_between_two_characters():
    topic = ProduceRequest.TopicProduceData(name='t', partition_data=[ProduceRequest.PartitionProduceData(index=0)])
    error = KafkaError(ErrorCode.INVALID_RECORD, 'x' + 'é' * 20_000)
    error.record_errors = [(0, 'x' + 'é' * 20_000)]
    for version in (FIRST_WITH_ERROR_MESSAGES, FIRST_FLEXIBLE):
        written = readers.write_produce_answer(encode(ProduceRequest(topic_data=[topic]), version), version, 0, [error])
        answer = decode(ProduceResponse, written, version, 5 if version >= FIRST_FLEXIBLE else 4)
        refused = answer.responses[0].partition_responses[0]
        assert refused.error_message == 'x' + 'é' * 7_999 + '...'
        assert [found.batch_index_error_message for found in refused.record_errors] == ['x' + 'é' * 16_383]


@pytest.mark.parametrize('version', range(API.min_version, API.max_version + 1))
def test_an_array_longer_than_its_bytes_is_refused_before_anything_is_allocated(version):
    length = b'\xff\xff\xff\xff\x07' if version >= FIRST_FLEXIBLE else b'\x7f\xff\xff\xff'
    no_id = b'\0' if version >= FIRST_FLEXIBLE else b'\xff\xff'
    with pytest.raises(ProtocolError, match=r'an array of 214748364[67] elements'):
        readers.read_produce(no_id + b'\0\1' + bytes(4) + length + bytes(100), version)

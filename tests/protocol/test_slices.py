"""Long messages are decoded and encoded in parts. The results equal those of the codec, and the number of elements is
bounded."""
import gc
import random
import time

import pytest
from hypothesis import given, settings
from support.messages.message_strategies import NAMES, messages_and_versions
from support.runner.attempts import assert_within

from kbroker.base.errors import ProtocolError
from kbroker.protocol import messages
from kbroker.protocol.codec import EncodeError, decode, encode, encode_segments
from kbroker.protocol.messages import CreateTopicsRequest, MetadataRequest, MetadataResponse, OffsetFetchRequest
from kbroker.protocol.slices import MOST_ELEMENTS, decode_in_slices, encode_in_slices, free_in_slices

LONGEST_PART_S = 0.005
"""The most processor time that a part may take. This is generous: a part takes about 0.1 ms."""


@pytest.fixture(autouse=True)
def no_collections():
    """Turn the garbage collector off, so that the measured times do not include its runs in the test process."""
    gc.disable()
    yield
    gc.enable()


def run(steps):
    """Run a generator. Return its result, the number of its parts, and the processor time of the longest part in s."""
    count, longest_s = 0, 0.0
    while True:
        begun = time.thread_time()
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value, count + 1, max(longest_s, time.thread_time() - begun)
        count, longest_s = count + 1, max(longest_s, time.thread_time() - begun)


def groups(count):
    return OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id='')] * count)


@pytest.mark.parametrize('name', NAMES)
def test_slices_agree_with_the_codec(name):
    @settings(max_examples=4, deadline=None)
    @given(messages_and_versions(name))
    def agree(message_and_version):
        message, version = message_and_version
        data = encode(message, version)
        segments, _, _ = run(encode_in_slices(message, version, b'prefix'))
        assert b''.join(segments) == b'prefix' + data
        found, _, _ = run(decode_in_slices(getattr(messages, name), b'x' + data + b'behind', version, 1))
        assert found == decode(getattr(messages, name), data, version)

    agree()


def test_damaged_messages_raise_the_same_errors_as_in_the_codec():
    source = random.Random(13)
    topic = CreateTopicsRequest.CreatableTopic
    data = encode(CreateTopicsRequest(topics=[
        topic(name='t', assignments=[topic.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])])
        if hasattr(topic, 'CreatableReplicaAssignment') else topic(name='t') for _ in range(5)]), 7)
    for _ in range(2_000):
        mutant = bytearray(data)
        for _ in range(source.randint(1, 3)):
            mutant[source.randrange(len(mutant))] = source.randrange(256)
        mutant = bytes(mutant[:source.randint(1, len(mutant))])
        try:
            expected = decode(CreateTopicsRequest, mutant + bytes(0), 7)
        except ProtocolError as error:
            if 'left over' in str(error):
                continue
            with pytest.raises(ProtocolError) as found:
                run(decode_in_slices(CreateTopicsRequest, mutant, 7))
            assert str(found.value) == str(error)
        else:
            assert run(decode_in_slices(CreateTopicsRequest, mutant, 7))[0] == expected


@pytest.mark.parametrize('request_', [
    groups(100_000),
    MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name='t' * 30)] * 100_000),
    OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id='g', topics=[
        OffsetFetchRequest.OffsetFetchRequestTopics(name='t', partition_indexes=list(range(100_000)))])]),
], ids=['groups', 'topics', 'partitions'])
def test_a_long_request_is_decoded_and_freed_in_short_parts(request_):
    version = 9
    data = encode(request_, version)
    message, parts, longest_s = run(decode_in_slices(type(request_), data, version))
    assert message == request_
    assert parts >= 100_000 // 256
    assert_within(longest_s, LONGEST_PART_S)
    _, parts, longest_s = run(free_in_slices(message))
    assert parts >= 100_000 // 256
    assert_within(longest_s, LONGEST_PART_S)


def test_a_long_reply_is_encoded_in_short_parts():
    topic = MetadataResponse.MetadataResponseTopic
    partition = topic.MetadataResponsePartition if hasattr(topic, 'MetadataResponsePartition') else (
        MetadataResponse.MetadataResponsePartition)
    reply = MetadataResponse(topics=[
        topic(name=f'topic-{number}', partitions=[partition(partition_index=index, replica_nodes=[1], isr_nodes=[1])
                                                  for index in range(100)])
        for number in range(200)])
    segments, parts, longest_s = run(encode_in_slices(reply, 12, b'12345'))
    assert b''.join(segments) == b''.join(encode_segments(reply, 12, b'12345'))
    assert parts >= 20_000 // 256
    assert_within(longest_s, LONGEST_PART_S)
    assert max(len(segment) for segment in segments) < 100_000


def test_a_short_message_takes_one_part():
    data = encode(groups(50), 9)
    assert run(decode_in_slices(OffsetFetchRequest, data, 9))[1] == 1
    assert run(encode_in_slices(groups(50), 9))[1] == 1


def test_too_many_elements_are_refused_before_they_are_read():
    data = encode(groups(MOST_ELEMENTS + 1), 9)
    with pytest.raises(ProtocolError, match='more than 500000 elements of arrays in one message'):
        next(decode_in_slices(OffsetFetchRequest, data, 9))


def test_what_was_read_of_a_damaged_message_is_freed_in_short_parts():
    data = encode(groups(100_000), 9)
    damaged = data[:-50] + b'\xff' * 50
    steps, parts, longest_s = decode_in_slices(OffsetFetchRequest, damaged, 9), 0, 0.0
    with pytest.raises(ProtocolError, match='OffsetFetchRequest version 9, near byte'):
        while True:
            begun = time.thread_time()
            next(steps)
            parts, longest_s = parts + 1, max(longest_s, time.thread_time() - begun)
    assert parts >= 2 * 100_000 // 256 - 2
    assert_within(longest_s, LONGEST_PART_S)


def test_the_garbage_collector_does_not_search_a_decoded_message():
    data = encode(groups(10_000), 9)
    message, _, _ = run(decode_in_slices(OffsetFetchRequest, data, 9))
    assert not gc.is_tracked(message)
    assert not gc.is_tracked(message.groups)
    assert not any(gc.is_tracked(group) for group in message.groups)


def test_what_a_handler_keeps_of_a_message_is_not_freed():
    message, _, _ = run(decode_in_slices(OffsetFetchRequest, encode(groups(1_000), 9), 9))
    kept_list = message.groups
    run(free_in_slices(message))
    assert len(kept_list) == 1_000
    kept = kept_list[5]
    del kept_list
    run(free_in_slices(message))
    assert message.groups == [] and kept == OffsetFetchRequest.OffsetFetchRequestGroup(group_id='')


def test_what_cannot_be_encoded_is_named():
    with pytest.raises(EncodeError, match=r'MetadataRequest version 9: .*MetadataRequest.topics: int is not a list'):
        run(encode_in_slices(MetadataRequest(topics=5), 9))
    with pytest.raises(EncodeError, match='MetadataRequest has no version 99'):
        run(encode_in_slices(MetadataRequest(), 99))


def test_too_many_tagged_fields_are_refused():
    tags = b'\x00\x00' * 10_001
    data = encode(MetadataRequest(topics=[]), 9)[:-1] + b'\x91\x4e' + tags
    for read in (lambda: decode(MetadataRequest, data, 9), lambda: run(decode_in_slices(MetadataRequest, data, 9))):
        with pytest.raises(ProtocolError, match='10001 tagged fields, at most 10000 expected'):
            read()

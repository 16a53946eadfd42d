"""The reader and the hand-written writer of Fetch agree with the generic codec in every version."""
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.apis.compiled_readers import readers
from support.messages.filled_messages import filled

from kbroker.base.errors import ProtocolError
from kbroker.protocol.codec import decode, decode_prefix, encode
from kbroker.protocol.messages import FetchRequest, FetchResponse

VERSIONS = range(4, 19)


def as_judged(data, version):
    """Decode a request with the generic codec. Return the fields in the form in which the hand-written reader returns
    them."""
    request, _ = decode_prefix(FetchRequest, data, version)
    has_ids = version >= 13
    fields = (request.replica_state.replica_id if version >= 15 else request.replica_id, request.max_wait_ms,
              request.min_bytes, request.max_bytes, request.isolation_level, request.session_id,
              request.session_epoch)
    topics = [(topic.topic_id if has_ids else topic.topic.encode(), [
        (one.partition, one.current_leader_epoch, one.fetch_offset, one.last_fetched_epoch, one.partition_max_bytes)
        for one in topic.partitions]) for topic in request.topics]
    forgotten = [(topic.topic_id if has_ids else topic.topic.encode(), list(topic.partitions))
                 for topic in request.forgotten_topics_data or ()]
    return fields, topics, forgotten


@settings(deadline=None)
@given(st.sampled_from(VERSIONS), st.randoms(use_true_random=False), st.binary(max_size=4))
def test_the_reader_finds_what_the_codec_finds(version, source, behind):
    data = encode(filled(FetchRequest, version, source), version) + behind
    assert readers.read_fetch(data, version) == as_judged(data, version)


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(VERSIONS), st.randoms(use_true_random=False), st.data())
def test_the_reader_refuses_what_the_codec_refuses(version, source, data):
    frame = bytearray(encode(filled(FetchRequest, version, source), version))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at:at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
        if not frame:
            break
    try:
        expected = as_judged(frame, version)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            readers.read_fetch(frame, version)
    else:
        assert readers.read_fetch(frame, version) == expected


@pytest.mark.parametrize('version', VERSIONS)
def test_every_byte_that_is_missing_is_missed(version):
    partitions = [FetchRequest.FetchPartition(partition=1, fetch_offset=2)]
    data = encode(FetchRequest(topics=[FetchRequest.FetchTopic(topic='t', topic_id=bytes(16), partitions=partitions)],
                               forgotten_topics_data=[]), version)
    for size in range(len(data)):
        with pytest.raises(ProtocolError):
            readers.read_fetch(data[:size], version)


@pytest.fixture
def rich(client, producer):
    """Return a client, after a topic was created with aborted transactions, an open transaction, an ended leader epoch,
    and an empty partition."""
    client.create_topic('wide', 3)
    for committed in (False, True, False):
        producer.produce(producer.batch(b'value'), topic='wide')
        producer.end(committed)
    producer.produce(producer.batch(b'open'), topic='wide', partition=1)
    client.produce(client.batch(b'plain' * 50), topic='wide', partition=1)
    client.broker.topics.get('wide', 0).leader_epoch = 5
    client.produce(client.batch(b'in a new epoch'), topic='wide')
    return client


WHOLE = [('wide', [(0, 0, -1), (1, 0, -1), (2, 0, -1), (3, 0, -1)]), ('orders', [(0, 0, -1), (1, 0, -1)]),
         ('absent', [(0, 0, -1)])]
AFTER_AN_EPOCH = [('orders', [(0, 9, -1)]), ('wide', [(0, 7, 0), (1, 0, 9), (2, 0, -1)])]


@pytest.mark.parametrize('version', VERSIONS)
@pytest.mark.parametrize('isolation_level', [0, 1])
@pytest.mark.parametrize('topics', [WHOLE, AFTER_AN_EPOCH])
def test_the_codec_writes_the_same_response(rich, version, isolation_level, topics):
    ids = {topic.name: topic.topic_id for topic in rich.broker.topics.topics()}
    request = FetchRequest(
        max_bytes=1 << 20, isolation_level=isolation_level, session_epoch=0, forgotten_topics_data=[],
        topics=[FetchRequest.FetchTopic(
            topic=name, topic_id=ids.get(name, b'\7' * 16),
            partitions=[FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, last_fetched_epoch=last,
                                                    partition_max_bytes=1 << 20)
                        for partition, offset, last in partitions]) for name, partitions in topics])
    reply = rich.broker.begin(request, version).replies[-1]
    head = 5 if version >= 12 else 4
    response = decode(FetchResponse, reply, version, head)
    assert encode(response, version) == reply[head:]
    answers = [partition for topic in response.responses for partition in topic.partitions]
    assert [answer.partition_index for answer in answers] == [
        asked[0] for _, partitions in topics for asked in partitions]
    assert any(answer.diverging_epoch.epoch != -1 for answer in answers) == (version >= 12 and topics is AFTER_AN_EPOCH)
    assert any(answer.aborted_transactions for answer in answers) == (isolation_level == 1 and topics is WHOLE)


def test_a_session_error_is_written_as_the_codec_does(client):
    for version in range(7, 19):
        request = FetchRequest(session_id=5, session_epoch=3, topics=[], forgotten_topics_data=[])
        reply = client.broker.begin(request, version).replies[-1]
        head = 5 if version >= 12 else 4
        response = decode(FetchResponse, reply, version, head)
        assert response.error_code == 70 and encode(response, version) == reply[head:]

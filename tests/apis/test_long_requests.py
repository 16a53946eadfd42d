"""Long requests are decoded in slices, a few requests at a time, within bounds of bytes and elements."""
from __future__ import annotations

import pytest
from support.brokers.in_process_broker import InProcessBroker, frame_of

from kbroker.apis.serving.request import LONGEST_FRAME_BYTES
from kbroker.protocol.messages import DeleteTopicsRequest, MetadataRequest, OffsetFetchRequest

SETTINGS = {'kbroker.durability': 'page-cache', 'offsets.topic.num.partitions': '1'}


@pytest.fixture
def broker(tmp_path):
    with InProcessBroker(tmp_path, SETTINGS) as broker:
        broker.topics.create('orders', 1, {})
        yield broker


def metadata_of(names):
    return MetadataRequest(allow_auto_topic_creation=False,
                           topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names])


def begin(broker, request, version):
    """Serve a request without ending the tick. Return its connection."""
    connection = broker.connect()
    broker.serve(connection, frame_of(request, version))
    return connection


@pytest.mark.parametrize('count', [100, 1_000, 20_000, 100_000])
def test_a_request_of_any_length_is_answered(broker, count):
    answer = broker.ask(metadata_of([f'unknown-{number:010}' for number in range(count - 1)] + ['orders']), 12)
    assert len(answer.topics) == count
    assert {topic.error_code for topic in answer.topics} == {0, 3}


def test_a_long_request_is_not_decoded_within_its_turn(broker):
    connection = begin(broker, metadata_of([f'topic-{number}' for number in range(20_000)]), 12)
    assert connection.replies == []
    broker.turn()
    assert len(connection.replies) == 1


def test_a_request_of_a_handler_without_slices_is_decoded_in_slices_too(broker):
    request = DeleteTopicsRequest(topic_names=[f'topic-{number}' for number in range(20_000)], timeout_ms=1_000)
    connection = begin(broker, request, 1)
    assert connection.replies == []
    broker.turn()
    assert len(broker.answer_to(connection, request, 1).responses) == 20_000


def test_few_long_requests_are_in_progress_at_a_time(broker):
    medium = [begin(broker, metadata_of([f'topic-{number}' for number in range(20_000)]), 12) for _ in range(5)]
    large = [begin(broker, metadata_of([f'topic-{number}' * 5 for number in range(30_000)]), 12) for _ in range(3)]
    assert (len(broker.long_work.medium_requests), len(broker.long_work.large_requests)) == (3, 2)
    broker.turn()
    assert all(len(connection.replies) == 1 for connection in medium + large)


def test_a_short_request_does_not_wait_for_long_ones(broker):
    for _ in range(10):
        begin(broker, metadata_of([f'topic-{number}' for number in range(20_000)]), 12)
    assert len(begin(broker, metadata_of(['orders']), 12).replies) == 1


def test_a_frame_above_the_bound_closes_the_connection(broker):
    connection = begin(broker, metadata_of(['t' * 30_000] * (LONGEST_FRAME_BYTES // 30_000 + 1)), 12)
    assert connection.closed.endswith(f'a frame of at most {LONGEST_FRAME_BYTES} bytes expected')
    assert connection.replies == []


def test_too_many_elements_close_the_connection(broker):
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id='')] * 600_000
    connection = begin(broker, OffsetFetchRequest(groups=groups), 9)
    assert connection.closed.endswith('more than 500000 elements of arrays in one message')


def test_a_long_request_that_does_not_parse_closes_the_connection(broker):
    connection = broker.connect()
    frame = frame_of(metadata_of([f'topic-{number}' for number in range(20_000)]), 12)
    broker.serve(connection, frame[:-1_000] + b'\xff' * 1_000)
    assert connection.closed is None
    broker.turn()
    assert connection.closed.startswith('METADATA v12') and connection.replies == []


def test_a_long_request_of_a_client_that_left_is_dropped(broker):
    first = begin(broker, metadata_of([f'topic-{number}' * 5 for number in range(30_000)]), 12)
    second = begin(broker, metadata_of([f'topic-{number}' * 5 for number in range(30_000)]), 12)
    second.is_closed = True
    broker.turn()
    assert (len(first.replies), len(second.replies)) == (1, 0)

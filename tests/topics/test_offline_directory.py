"""When the log directory is offline, every request gets the same error object, which must not keep the refused requests
in memory.

Covers KIP-112.
"""
from support.brokers.in_process_broker import InProcessBroker
from support.messages.message_builder import batch_of, build

from kbroker.base.errors import ErrorCode

REQUESTS = 50


def test_the_error_of_an_offline_directory_keeps_no_requests(tmp_path):
    """Each refusal once added stack frames to the traceback of the shared error object. These frames kept the request
    and its connection in memory."""
    with InProcessBroker(tmp_path) as broker:
        broker.topics.create('orders', 1, {})
        failure = broker.logs.fail('the disk is gone')
        try:
            refuse(broker)
            before = length_of_traceback(failure)
            for _ in range(REQUESTS):
                refuse(broker)
            assert length_of_traceback(failure) <= before
        finally:
            broker.crash()


def refuse(broker):
    """Send a Fetch and a Produce request. Check that the broker refuses both."""
    batch = batch_of(broker.clock.wall_ms(), b'value')
    fetched = broker.ask(build('FetchRequest', max_wait_ms=0, min_bytes=0, max_bytes=1000, session_epoch=-1, topics=[
        {'topic': 'orders', 'partitions': [{'partition': 0, 'fetch_offset': 0, 'partition_max_bytes': 1000}]}]), 12)
    produced = broker.ask(build('ProduceRequest', acks=1, timeout_ms=1000, topic_data=[
        {'name': 'orders', 'partition_data': [{'index': 0, 'records': batch}]}]), 9)
    assert fetched.responses[0].partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert produced.responses[0].partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


def length_of_traceback(error):
    length, entry = 0, error.__traceback__
    while entry is not None:
        length, entry = length + 1, entry.tb_next
    return length

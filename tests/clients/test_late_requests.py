"""Real clients on a network that delays a request until their next transaction, or loses an answer.

Covers KIP-890.
"""
import pytest
from behaviours import client_of, fresh, until
from support.clients.late_requests import (
    COMMITTED_AFTER_LATE_REQUEST,
    COMMITTED_AFTER_LOST_ANSWER,
    LATE,
    check_late_request,
    check_lost_answer,
    create_topic,
)
from test_aiokafka import AiokafkaClient
from test_confluent import ConfluentClient
from test_kafka_python import KafkaPythonClient

from kbroker.protocol.api_keys import ApiKey

each_client = pytest.mark.parametrize('kind', [ConfluentClient, KafkaPythonClient, AiokafkaClient])
each_request = pytest.mark.parametrize('api_key', LATE, ids=lambda key: key.name)
ADDITIONS = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN)
each_answer = pytest.mark.parametrize('api_key', [
    pytest.param(key, marks=[pytest.mark.soak] if key in ADDITIONS else [], id=key.name) for key in LATE])


def staged(kind, proxied, check, api_key, committed):
    """Run a check of `late_requests` with a client. Then check the committed records of its topic and the offset of its
    group."""
    broker, proxy = proxied
    topic, last = fresh('late'), max(int(value[1:]) for value in committed) + 1
    create_topic(broker.address, topic)
    with client_of(kind, proxy.address) as client, client.consumer(fresh('group')) as consumer:
        def send_offsets(producer, offset):
            producer.send_offsets({(topic, 0): offset}, consumer)

        with client.transactional(fresh('late')) as producer:
            check(broker, proxy, producer, topic, send_offsets, api_key)
        client.expect_committed(topic, 1, committed)
        until(lambda: consumer.committed(topic, 0) == last)


@each_request
@each_client
def test_a_request_that_arrives_in_the_next_transaction_is_refused(proxied, kind, api_key):
    staged(kind, proxied, check_late_request, api_key, COMMITTED_AFTER_LATE_REQUEST)


@each_answer
@each_client
def test_a_request_that_is_executed_before_its_repetition_is_executed_once(proxied, kind, api_key):
    staged(kind, proxied, check_lost_answer, api_key, COMMITTED_AFTER_LOST_ANSWER)

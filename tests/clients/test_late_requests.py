"""Requests of real clients that a network delays until their next transaction."""
from contextlib import closing

import pytest
from behaviours import fresh, send, values
from support.broker_process import PROMPT, BrokerProcess
from support.holding_proxy import HoldingProxy
from support.in_process_broker import read_answer
from test_aiokafka import AiokafkaClient
from test_confluent import ConfluentClient
from test_kafka_python import KafkaPythonClient

from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import AddPartitionsToTxnRequest, EndTxnRequest
from kbroker.status import read_status

CLIENTS = (ConfluentClient, KafkaPythonClient, AiokafkaClient)
REFUSALS = {ApiKey.END_TXN: ErrorCode.NOT_COORDINATOR, ApiKey.ADD_PARTITIONS_TO_TXN: ErrorCode.NOT_COORDINATOR}


@pytest.fixture(scope='module')
def proxied(tmp_path_factory):
    """A broker whose clients come through a proxy."""
    with closing(HoldingProxy()) as proxy:
        broker = BrokerProcess(tmp_path_factory.mktemp('late') / 'data', PROMPT | {
            'advertised.listeners': f'PLAINTEXT://{proxy.address}', 'transaction.state.log.num.partitions': '1'})
        broker.start()
        proxy.target = broker.address
        yield broker, proxy
        broker.kill9()


def refused(broker):
    return read_status(str(broker.directory))['refused_stale_requests']


@pytest.mark.parametrize('api_key', REFUSALS, ids=lambda key: key.name)
@pytest.mark.parametrize('kind', CLIENTS)
def test_a_request_that_arrives_in_the_next_transaction_is_refused(proxied, kind, api_key):
    broker, proxy = proxied
    client = kind(proxy.address)
    topic, before = client.new_topic('late', 1), refused(broker)
    with client.transactional(fresh('late')) as producer:
        proxy.hold(api_key)
        producer.begin()
        send(producer, topic, 1, 0, 5)
        producer.commit()               # the client repeats what was held, on a new connection
        producer.begin()
        send(producer, topic, 1, 5, 10)
        producer.flush()
        assert error_of(*proxy.release(), api_key) == REFUSALS[api_key]
        assert refused(broker) == before + 1
        send(producer, topic, 1, 10, 15)
        producer.abort()
        producer.begin()
        send(producer, topic, 1, 15, 20)
        producer.commit()
    client.expect_committed(topic, 1, values(0, 5) | values(15, 20))
    assert refused(broker) == before + 1


def error_of(version, answer, api_key):
    if api_key is ApiKey.END_TXN:
        return read_answer(EndTxnRequest(), version, answer).error_code
    found = read_answer(AddPartitionsToTxnRequest(), version, answer)
    return found.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code

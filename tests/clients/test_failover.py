"""Clients fail over between the virtual brokers of kbroker-proxy: a node stops, starts again, or loses a partition,
while they produce in transactions and consume in groups. Each record is read exactly once.
"""
from contextlib import closing

import pytest
from behaviours import client_of, fresh, send, until, values
from support.proxies.virtual_cluster import VirtualCluster
from test_aiokafka import AiokafkaClient
from test_confluent import ConfluentClient
from test_kafka_python import KafkaPythonClient

from kbroker_tools.proxy.nodes import GROUP, TRANSACTION

pytestmark = pytest.mark.timeout(600)

PARTITIONS = 6


@pytest.fixture
def nodes(shared_broker):
    with closing(VirtualCluster(shared_broker.address)) as found:
        yield found


@pytest.fixture(params=[ConfluentClient, KafkaPythonClient, AiokafkaClient], ids=lambda library: library.__name__)
def client(nodes, request):
    with client_of(request.param, nodes.address) as client:
        yield client


def test_transactions_go_on_when_their_coordinator_and_a_leader_stop(nodes, client):
    topic, transactional_id = client.new_topic('failover', PARTITIONS), fresh('tx')
    with client.transactional(transactional_id) as producer:
        producer.begin()
        send(producer, topic, PARTITIONS, 0, 12)
        producer.flush()
        stopped = nodes.coordinator(TRANSACTION, transactional_id)
        if isinstance(client, KafkaPythonClient):   # 3.0.12 forgets an EndTxn if the coordinator refuses connections
            stopped = nodes.leader(topic, next(each for each in range(PARTITIONS)
                                               if nodes.leader(topic, each) != stopped))
        nodes.stop(stopped)
        send(producer, topic, PARTITIONS, 12, 24)
        producer.commit()
        nodes.start(stopped)
        producer.begin()
        send(producer, topic, PARTITIONS, 24, 36)
        leader = nodes.leader(topic, 0)
        nodes.move(topic, 0, next(each for each in nodes.running if each != leader))
        send(producer, topic, PARTITIONS, 36, 48)
        producer.commit()
        coordinator = nodes.coordinator(TRANSACTION, transactional_id)
        nodes.stop(next(each for each in nodes.running if each != coordinator))
        producer.begin()
        send(producer, topic, PARTITIONS, 48, 60)
        producer.flush()
        producer.abort()
    client.expect_committed(topic, PARTITIONS, values(0, 48))


def test_a_group_goes_on_when_its_coordinator_and_leaders_stop_one_after_the_other(nodes, client):
    topic, group = client.new_topic('failover', PARTITIONS), fresh('group')
    found = []

    def has(count):
        def ended():
            found.extend(value for _, _, _, value, _ in consumer.poll())
            return len(set(found)) >= count
        return ended

    def has_committed():
        try:
            consumer.commit()
        except client.errors:       # aiokafka raises the end of the connection
            return False
        return True

    with client.consumer(group) as consumer:
        consumer.subscribe(topic)
        client.produce(topic, PARTITIONS, 0, 12)
        until(has(12))
        stopped = nodes.coordinator(GROUP, group)
        nodes.stop(stopped)
        client.produce(topic, PARTITIONS, 12, 24)
        until(has(24))
        nodes.start(stopped)
        stopped = nodes.leader(topic, 0)
        nodes.stop(stopped)
        client.produce(topic, PARTITIONS, 24, 36)
        until(has(36))
        nodes.start(stopped)        # aiokafka cannot be closed while a fetch waits for a broker that has ended
        client.produce(topic, PARTITIONS, 36, 48)
        until(has(48))
        until(has_committed)
    assert sorted(set(found)) == sorted(values(0, 48)) and len(found) == 48

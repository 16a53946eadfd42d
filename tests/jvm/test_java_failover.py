"""Kafka's Java producer and tools on the virtual brokers of kbroker-proxy, in front of kbroker and of Apache Kafka; and
the proxy in front of a cluster of several brokers of Apache Kafka.
"""
from contextlib import ExitStack, closing

import pytest
from support.clients.line_producer import LineProducer
from support.kafka.apache_kafka import KafkaProcess, java, run_tool
from support.kafka.shown_metadata import await_shown_metadata
from support.proxies.virtual_cluster import VirtualCluster, committed_values, fail_over
from support.runner.free_ports import free_port

from kbroker.client import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.testing import Proxy

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]


def test_transactions_of_the_java_producer_go_on_when_nodes_stop(shared_broker):
    with closing(VirtualCluster(shared_broker.address)) as nodes:
        with Admin(shared_broker.address) as admin:
            assert admin.create_topics([NewTopic('java', 6)]) == {'java': None}
        with LineProducer(java('kbroker.LineProducer', nodes.address, 'java')) as producer:
            expected = fail_over(nodes, producer, 'java', 'java')
        assert committed_values(shared_broker.address, 'java', len(expected)) == expected


def test_kafkas_tools_show_a_cluster(shared_broker):
    with closing(VirtualCluster(shared_broker.address)) as nodes:
        to = ['--bootstrap-server', nodes.address]
        run_tool('org.apache.kafka.tools.TopicCommand', *to, '--create', '--topic', 'shown', '--partitions', '3',
                 '--replication-factor', '3')
        nodes.stop(2)
        shown = run_tool('org.apache.kafka.tools.TopicCommand', *to, '--describe', '--topic', 'shown')
        assert shown.count('Replicas: ') == 3 and 'Leader: 2' not in shown
        assert run_tool('org.apache.kafka.tools.TopicCommand', *to, '--describe', '--under-replicated-partitions',
                        '--topic', 'shown').count('Isr: ') == 3


@pytest.fixture
def three(tmp_path):
    """Three brokers of Apache Kafka. The first one is the controller, too."""
    shared = {'offsets.topic.replication.factor': '3', 'transaction.state.log.replication.factor': '3',
              'transaction.state.log.min.isr': '1', 'min.insync.replicas': '1', 'broker.session.timeout.ms': '3000'}
    first = KafkaProcess(tmp_path / '1', shared)
    nodes = [first]
    for number in (2, 3):
        address = f'127.0.0.1:{free_port()}'
        nodes.append(KafkaProcess(tmp_path / str(number), shared | {
            'process.roles': 'broker', 'node.id': str(number), 'listeners': f'PLAINTEXT://{address}',
            'controller.quorum.voters': f'1@{first._controller}'}, address=address))
    with ExitStack() as stack:
        for node in nodes:
            stack.enter_context(node)
        yield nodes


@pytest.mark.soak
def test_a_cluster_behind_the_proxy_fails_over_and_no_client_leaves_the_proxy(three):
    direct = {int(node.address.rpartition(':')[2]) for node in three}
    with Proxy(three[0].address) as proxy:
        with Admin(proxy.bootstrap_servers) as admin:
            assert admin.create_topics([NewTopic('wide', 6, 3)]) == {'wide': None}
        await_shown_metadata(three[0].address)
        with LineProducer(java('kbroker.LineProducer', proxy.bootstrap_servers, 'wide')) as producer:
            producer.begin()
            for number in range(6):
                producer.send('wide', number, f'v{number}')
            three[1].kill9()
            for number in range(6, 12):
                producer.send('wide', number % 6, f'v{number}')
            producer.commit()
        assert {each.client_id for each in proxy.requests(api='Produce')}
        with closing(Cluster(ClientConfig.load(proxy.bootstrap_servers))) as cluster:
            cluster.refresh()
            assert set(cluster.nodes) == {1, 3} and not {node.port for node in cluster.nodes.values()} & direct
        assert committed_values(proxy.bootstrap_servers, 'wide', 12) == sorted(f'v{number}' for number in range(12))

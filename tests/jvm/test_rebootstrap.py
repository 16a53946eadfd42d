"""A consumer of Apache Kafka 4.4 goes on when its broker's address belongs to another cluster.

Covers KIP-1242.
"""
import subprocess
from contextlib import closing

import pytest
from support.brokers.broker_process import BrokerProcess
from support.clients.librdkafka import create_topics
from support.kafka.apache_kafka import java
from support.proxies.cutting_proxy import CuttingProxy

from kbroker.client import Producer

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

TOPIC = 'orders'
LIMIT_S = 120


def write(address, value):
    create_topics(address, **{TOPIC: 1})
    with Producer(address) as producer:
        producer.send(TOPIC, value)


def test_a_consumer_bootstraps_again_and_reads_the_other_cluster(tmp_path):
    """The address always accepts connections, so only the answer to ApiVersions can make the consumer bootstrap
    again.
    """
    with closing(CuttingProxy(0)) as proxy:
        settings = {'advertised.listeners': f'PLAINTEXT://{proxy.address}'}
        before, after = (BrokerProcess(tmp_path / name, settings) for name in ('before', 'after'))
        with before, after:
            proxy.target = before.address
            write(proxy.address, b'old')
            consumer = subprocess.Popen(
                java('org.apache.kafka.tools.consumer.ConsoleConsumer', '--bootstrap-server', proxy.address, '--topic',
                     TOPIC, '--from-beginning', '--max-messages', '2', log_level='info', release='4.4'),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            try:
                while consumer.stdout.readline() not in ('old\n', ''):
                    pass
                proxy.target = after.address
                write(proxy.address, b'new')
                before.stop()
                output, _ = consumer.communicate(timeout=LIMIT_S)
            finally:
                consumer.kill()
                consumer.wait()
    assert 'Rebootstrapping with' in output
    assert 'new' in output.splitlines()

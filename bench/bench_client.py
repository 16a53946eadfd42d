"""The time to the first response of the commands' client and of other clients, on the same broker. `clients.py`
measures produce and consume.

python -m pytest bench/bench_client.py --benchmark-group-by=group --benchmark-columns=median,iqr,rounds
"""
import subprocess
import sys

import pytest
from support.brokers.broker_process import ROOT, BrokerProcess

from kbroker.client import Admin

LIST_TOPICS = {
    'python alone': 'import sys',
    'kbroker': '''import sys
from kbroker.client.config import ClientConfig
from kbroker_tools.cluster.live_view import LiveView
view = LiveView(ClientConfig.load(sys.argv[1]))
print(*view.topics())
view.close()''',
    'kafka-python': '''import sys
from kafka import KafkaAdminClient
admin = KafkaAdminClient(bootstrap_servers=sys.argv[1])
print(*admin.list_topics())
admin.close()''',
    'confluent-kafka': '''import sys
from confluent_kafka.admin import AdminClient
print(*AdminClient({'bootstrap.servers': sys.argv[1]}).list_topics().topics)''',
}


@pytest.fixture(scope='module')
def address(tmp_path_factory):
    broker = BrokerProcess(tmp_path_factory.mktemp('bench'))
    broker.start()
    with Admin(broker.address) as admin:
        admin.create_topics({'whole': 1})
    yield broker.address
    broker.stop()


@pytest.mark.parametrize('name', LIST_TOPICS)
def test_topics_are_listed_by_a_process_of_its_own(benchmark, address, name):
    benchmark.group = 'start, list the topics, end'
    command = [sys.executable, '-c', LIST_TOPICS[name], address]
    done = benchmark.pedantic(subprocess.run, (command,), dict(cwd=ROOT, capture_output=True, text=True), rounds=10)
    assert done.returncode == 0 and (name == 'python alone' or 'whole' in done.stdout.split()), done.stderr

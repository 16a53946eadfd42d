"""The commands' client against other clients, on the same broker: the first response, and a whole partition.

python -m pytest bench/bench_client.py --benchmark-group-by=group --benchmark-columns=median,iqr,rounds
"""
import subprocess
import sys

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from support.broker_process import ROOT, BrokerProcess

from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.fetching import fetch_batches
from kbroker.record.records import iter_records

RECORDS, QUICK_RECORDS = 200_000, 1000
VALUE = b'x' * 200

LIST_TOPICS = {
    'python alone': 'import sys',
    'kbroker': '''import sys
from kbroker.client.config import ClientConfig
from kbroker_tools.live_view import LiveView
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
def records(request):
    return QUICK_RECORDS if request.config.getoption('--quick') else RECORDS


@pytest.fixture(scope='module')
def address(tmp_path_factory, records):
    broker = BrokerProcess(tmp_path_factory.mktemp('bench'))
    broker.start()
    producer = Producer({'bootstrap.servers': broker.address, 'linger.ms': 5, 'queue.buffering.max.messages': records})
    for _ in range(records):
        producer.produce('whole', VALUE, partition=0)
    producer.flush()
    yield broker.address
    broker.stop()


@pytest.mark.parametrize('name', LIST_TOPICS)
def test_topics_are_listed_by_a_process_of_its_own(benchmark, address, name):
    benchmark.group = 'start, list the topics, end'
    command = [sys.executable, '-c', LIST_TOPICS[name], address]
    done = benchmark.pedantic(subprocess.run, (command,), dict(cwd=ROOT, capture_output=True, text=True), rounds=10)
    assert done.returncode == 0 and (name == 'python alone' or 'whole' in done.stdout.split()), done.stderr


def read_with_kbroker(address, records):
    cluster = Cluster(ClientConfig.load(address))
    count = sum(len(record.value) == len(VALUE) for _, batch in fetch_batches(cluster, 'whole', 0)
                for record in iter_records(batch))
    cluster.close()
    return count


def read_with_confluent_kafka(address, records):
    consumer = Consumer({'bootstrap.servers': address, 'group.id': 'bench', 'enable.auto.commit': False})
    consumer.assign([TopicPartition('whole', 0, OFFSET_BEGINNING)])
    count = 0
    while count < records:
        count += sum(len(message.value()) == len(VALUE) for message in consumer.consume(10_000, 1))
    consumer.close()
    return count


@pytest.mark.parametrize('read', [read_with_kbroker, read_with_confluent_kafka])
def test_every_record_of_a_partition_is_read(benchmark, address, records, read):
    benchmark.group = f'{RECORDS} records of {len(VALUE)} bytes, from the first to the last'
    assert benchmark.pedantic(read, (address, records), rounds=5, warmup_rounds=1) == records

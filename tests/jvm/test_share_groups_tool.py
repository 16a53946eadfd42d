"""kbroker-share-groups prints the same as kafka-share-groups, about a group on a running Apache Kafka and about the
group in its log directory.

Covers KIP-932.
"""
import subprocess
import time

import pytest
from support.kafka.apache_kafka import KafkaProcess, java, run_tools
from support.runner.command_runner import run_in_process

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.config import ClientConfig
from kbroker.client.producer import Producer
from kbroker.protocol import messages

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

TOOL = 'org.apache.kafka.tools.consumer.group.ShareGroupCommand'
CONSUMER = 'org.apache.kafka.tools.consumer.ConsoleShareConsumer'
SETTINGS = {
    'share.coordinator.state.topic.replication.factor': '1', 'share.coordinator.state.topic.min.isr': '1',
    'group.share.heartbeat.interval.ms': '200', 'group.share.min.heartbeat.interval.ms': '200',
}
LIMIT_S = 120
GROUP = ('--group', 'workers')
QUESTIONS = [
    ('--list',), ('--list', '--state'), ('--list', '--state', 'stable'), ('--describe', *GROUP),
    ('--describe', *GROUP, '--offsets', '--verbose'), ('--describe', *GROUP, '--members'),
    ('--describe', *GROUP, '--members', '--verbose'), ('--describe', *GROUP, '--state'),
    ('--describe', *GROUP, '--state', '--verbose'), ('--describe', '--all-groups'),
]
NO_MEMBERS = "Share group 'workers' has no active members."
"""A note that kbroker-share-groups prints apart from the table."""


@pytest.fixture
def kafka(tmp_path):
    with KafkaProcess(tmp_path / 'data', SETTINGS) as process:
        yield process


def settled(ask, is_settled):
    deadline = time.monotonic() + LIMIT_S
    while not is_settled(found := ask()):
        assert time.monotonic() < deadline, found
    return found


def lines(text):
    return [line.rstrip() for line in text.strip().splitlines()]


def test_the_tables_are_those_of_kafkas_tool(kafka):
    def ours(*arguments):
        return run_in_process('share_groups', *arguments)

    def compare(questions):
        for question, theirs in zip(questions, run_tools(TOOL, *[[*server, *each] for each in questions]), strict=True):
            assert lines(ours(*server, *question).stdout) == lines(theirs.output.replace(NO_MEMBERS, '')), question

    server = ('--bootstrap-server', kafka.address)
    cluster = Cluster(ClientConfig.load(kafka.address))
    Admin(cluster).create_topics([NewTopic('orders', 3)])
    consumer = subprocess.Popen(java(CONSUMER, *server, '--topic', 'orders', *GROUP), stdout=subprocess.DEVNULL)
    try:
        settled(lambda: ours(*server, '--describe', *GROUP, '--members').stdout, lambda text: 'orders:0,1,2' in text)
        compare(QUESTIONS)
    finally:
        consumer.terminate()
        consumer.wait(LIMIT_S)
    settled(lambda: ours(*server, '--list', '--state', 'empty').stdout, lambda text: 'workers' in text)
    compare(QUESTIONS)
    producer = Producer(cluster)
    for number in range(20):
        producer.send('orders', b'%d' % number, partition=number % 3)
    producer.flush()
    cluster.close()
    without_address = [question for question in QUESTIONS if question[-1] != '--state' and '--members' not in question]
    without_address.remove(('--describe', *GROUP, '--state', '--verbose'))
    live = [ours(*server, *question).stdout for question in without_address]
    kafka.stop()
    assert [ours('--data-dir', str(kafka.directory), *question).stdout for question in without_address] == live


def test_a_group_is_deleted_with_its_offsets(kafka):
    server = ('--bootstrap-server', kafka.address)
    cluster = Cluster(ClientConfig.load(kafka.address))
    Admin(cluster).create_topics([NewTopic('orders', 1)])
    request = messages.AlterShareGroupOffsetsRequest
    settled(lambda: cluster.retrying(lambda: cluster.coordinator(KeyType.GROUP, 'workers').call(request(
        group_id='workers', topics=[request.AlterShareGroupOffsetsRequestTopic(topic_name='orders', partitions=[
            request.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)])])), 'altering'),
        lambda answer: not answer.error_code and not any(
            row.error_code for topic in answer.responses for row in topic.partitions))
    cluster.close()
    settled(lambda: run_in_process('share_groups', *server, '--list').stdout, lambda text: 'workers' in text)
    forgotten = run_in_process('share_groups', *server, '--delete-offsets', *GROUP, '--topic', 'orders')
    assert (forgotten.returncode, 'Successful' in forgotten.stdout) == (0, True), forgotten.stderr
    assert run_in_process('share_groups', *server, '--delete', *GROUP).returncode == 0
    assert 'workers' not in run_in_process('share_groups', *server, '--list').stdout
    missing = run_in_process('share_groups', *server, '--delete', *GROUP)
    assert missing.returncode == 1 and 'there is no share group workers' in missing.stderr


def test_resets_are_planned_and_exported_as_by_kafkas_tool(tmp_path):
    plan = tmp_path / 'plan.csv'
    plan.write_text('orders,0,2\norders,2,99\n')
    reset = ('--reset-offsets', *GROUP)
    begun = [*reset, '--topic', 'orders', '--to-offset', '3', '--execute']
    plans = [
        [*reset, '--topic', 'orders:0,1', '--to-offset', '5', '--dry-run'],
        [*reset, '--topic', 'orders', '--to-offset', '99', '--dry-run', '--export'],
        [*reset, '--topic', 'orders:1', '--to-current', '--dry-run'],
        [*reset, '--all-topics', '--to-current', '--dry-run', '--export'],
        [*reset, '--from-file', str(plan), '--dry-run'],
    ]
    with KafkaProcess(tmp_path / 'data', SETTINGS, release='4.4') as kafka:
        server = ('--bootstrap-server', kafka.address)
        cluster = Cluster(ClientConfig.load(kafka.address))
        Admin(cluster).create_topics([NewTopic('orders', 3)])
        producer = Producer(cluster)
        for number in range(30):
            producer.send('orders', b'%d' % number, partition=number % 3)
        producer.flush()
        cluster.close()
        settled(lambda: run_in_process('share_groups', *server, *begun), lambda run: run.returncode == 0)
        theirs = run_tools(TOOL, *[[*server, *each] for each in plans], release='4.4')
        for each, expected in zip(plans, theirs, strict=True):
            found = run_in_process('share_groups', *server, *each)
            assert (found.returncode, expected.code) == (0, 0), (found, expected)
            assert sorted(found.stdout.splitlines()) == sorted(expected.output.splitlines()), each

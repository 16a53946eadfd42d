"""The tables `groups` and `offsets`: groups of every kind, read from a broker and from its directory."""
import contextlib
import json
import time

import pytest
from spark_rows import rows
from support.brokers.broker_process import BrokerProcess
from support.runner.command_runner import run_in_process
from support.worlds.streams_groups import topology

from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.config import ClientConfig
from kbroker.client.consumer import Consumer
from kbroker.client.producer import Producer
from kbroker.client.share_consumer import ShareConsumer
from kbroker.client.stream_settings import ConsumerSettings, ProducerSettings, ShareConsumerSettings
from kbroker.protocol.messages import StreamsGroupHeartbeatRequest
from kbroker_tools.cluster.directory_view import DirectoryView

LIMIT_S = 120
SETTINGS = {
    **{f'group.{kind}.{name}heartbeat.interval.ms': '100' for kind in ('consumer', 'share', 'streams')
       for name in ('', 'min.')},
    'group.share.assignment.interval.ms': '0', 'group.streams.initial.rebalance.delay.ms': '0',
    'offsets.topic.num.partitions': '2', 'share.coordinator.state.topic.num.partitions': '2',
}


def until(is_over, do):
    deadline = time.monotonic() + LIMIT_S
    while not is_over():
        assert time.monotonic() < deadline
        do()


def join_streams(cluster):
    """Join a streams group. Wait until the member has tasks."""
    epoch, answered = 0, []

    def beat():
        nonlocal epoch
        joins = {'rebalance_timeout_ms': 60_000, 'topology': topology(sources=('orders',)), 'active_tasks': [],
                 'standby_tasks': [], 'warmup_tasks': [], 'process_id': 'p'} if epoch == 0 else {}
        answer = cluster.coordinator(KeyType.GROUP, 'counts').call(StreamsGroupHeartbeatRequest(
            group_id='counts', member_id='counter', member_epoch=epoch, endpoint_information_epoch=0,
            shutdown_application=False, **joins))
        assert answer.error_code == 0, answer
        epoch = answer.member_epoch
        answered.append(answer.active_tasks)

    cluster.retrying(beat, 'joining')
    until(lambda: any(answered), beat)


@pytest.fixture(scope='module')
def lived_in(tmp_path_factory):
    """Yield a broker whose groups have read a part of a topic with two partitions."""
    broker = BrokerProcess(tmp_path_factory.mktemp('spark-groups') / 'data', SETTINGS)
    with contextlib.ExitStack() as stack:
        stack.callback(broker.kill9)
        broker.start()
        cluster = Cluster(ClientConfig.load(broker.address))
        stack.callback(cluster.close)
        Admin(cluster).create_topics([NewTopic('orders', 2)])
        producer = Producer(cluster)
        for number in range(5):
            producer.send('orders', b'%d' % number, partition=0)
        producer.flush()
        for protocol in ('classic', 'consumer'):
            consumer = Consumer(cluster, ConsumerSettings(group_id=protocol, group_protocol=protocol,
                                                          auto_offset_reset='earliest'))
            stack.callback(consumer.close)
            consumer.subscribe(['orders'])
            until(lambda consumer=consumer: consumer.assignment and consumer.position('orders', 0) == 5,
                  lambda consumer=consumer: consumer.poll(50))
            consumer.commit()
        Admin(cluster).alter_share_group_offsets('share', {('orders', 0): 1, ('orders', 1): 0})
        sharer = ShareConsumer(cluster, ShareConsumerSettings('share', max_poll_records=1, fetch_max_wait_ms=50))
        stack.callback(sharer.close)
        sharer.subscribe(['orders'])
        pending = Producer(cluster, ProducerSettings(transactional_id='pending', transaction_timeout_ms=600_000))
        stack.callback(pending.close)
        pending.init_transactions()
        pending.begin_transaction()
        pending.send('orders', b'undecided', partition=0)
        pending.flush()
        taken = []
        until(lambda: taken and len(sharer.assignment) == 2, lambda: taken.extend(sharer.poll(50)))
        join_streams(cluster)
        yield broker
        assert broker.tracebacks() == []


@pytest.fixture(params=['broker', 'files'])
def options(request, lived_in):
    if request.param == 'files':
        return {'path': lived_in.directory}
    return {'kafka_bootstrap_servers': lived_in.address}


def test_groups_of_every_kind_are_listed(options):
    found = {row['group_id']: row for row in rows(table='groups', **options)}
    assert {name: (row['group_type'], row['state'], row['protocol_type'], row['protocol'], row['members'])
            for name, row in found.items()} == {
        'classic': ('classic', 'Stable', 'consumer', 'range', 1), 'consumer': ('consumer', 'Stable', 'consumer', '', 1),
        'share': ('share', 'Stable', 'share', 'simple', 1), 'counts': ('streams', 'Stable', 'streams', 'sticky', 1)}
    for row in found.values():
        assert sorted((each['topic'], each['partition']) for each in row['assignment']) == [
            ('orders', 0), ('orders', 1)], row


def test_offsets_of_every_kind_are_listed(options):
    found = [row for row in rows(table='offsets', **options) if row['partition'] == 0]
    assert {(row['group_id'], row['group_type'], row['topic'], row['committed_offset'], row['last_stable_offset'],
             row['lag']) for row in found} == {
        ('classic', 'classic', 'orders', 5, 5, 0), ('consumer', 'consumer', 'orders', 5, 5, 0),
        ('share', 'share', 'orders', 1, 5, 5)}


@pytest.mark.parametrize('isolation', ['read_committed', 'read_uncommitted'])
def test_the_lag_of_a_share_group_ends_at_the_high_watermark(options, lived_in, isolation):
    """The lag equals the LAG of kbroker-share-groups, and includes the records of an open transaction."""
    described = run_in_process('share-groups', '--bootstrap-server', lived_in.address, '--describe', '--group', 'share',
                               '--json')
    expected = [json.loads(line)['lag'] for line in described.stdout.splitlines()]
    assert expected == [5, 0]
    offline = run_in_process('share-groups', '--data-dir', lived_in.directory, '--describe', '--group', 'share',
                             '--json')
    assert [json.loads(line)['lag'] for line in offline.stdout.splitlines()] == expected
    found = rows(table='offsets', isolation=isolation, **options)
    assert [row['lag'] for row in sorted(found, key=lambda row: row['partition'])
            if row['group_type'] == 'share'] == expected


def test_a_directory_has_the_groups_of_its_broker(lived_in):
    view = DirectoryView(lived_in.directory)
    assert {group.group_id: (group.group_type, group.state) for group in view.listed_groups()} == {
        'classic': ('classic', 'Stable'), 'consumer': ('consumer', 'Stable'), 'share': ('share', 'Stable'),
        'counts': ('streams', 'Stable')}
    places = [('--data-dir', lived_in.directory), ('--bootstrap-server', lived_in.address)]
    for more, expected in (([], [['GROUP', 'TYPE'], ['classic', 'Classic'], ['consumer', 'Consumer']]),
                           (['consumer'], [['GROUP', 'TYPE'], ['consumer', 'Consumer']])):
        for place in places:
            listed = run_in_process('groups', *place, '--list', '--type', *more)
            assert [line.split() for line in listed.stdout.splitlines()] == expected, listed.stderr

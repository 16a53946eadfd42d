"""A running broker and its directory give the same answers."""
from __future__ import annotations

import contextlib
import time

import confluent_kafka
import pytest
from support.brokers.broker_process import BrokerProcess
from support.clients.sample_topic import LIMIT_S, sample_topic
from support.kafka.apache_kafka import KafkaProcess

from kbroker.base.lean_dataclasses import replace
from kbroker.client.config import ClientConfig
from kbroker_tools.cluster.directory_view import DirectoryView
from kbroker_tools.cluster.live_view import LiveView

pytestmark = pytest.mark.timeout(600)


@contextlib.contextmanager
def a_member(address, group_id, **options):
    """Start a consumer, wait for its assignment and commit offset 3."""
    consumer = confluent_kafka.Consumer({'bootstrap.servers': address, 'group.id': group_id, 'client.id': 'c',
                                         'auto.offset.reset': 'earliest', 'enable.auto.commit': False, **options})
    consumer.subscribe(['orders'])
    deadline = time.monotonic() + LIMIT_S
    while len(consumer.assignment()) < 2:
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    consumer.commit(offsets=[confluent_kafka.TopicPartition('orders', 1, 3, metadata='why')], asynchronous=False)
    yield
    consumer.close()


def answers(view):
    topics = view.topics()
    partitions = [(topic.name, partition.partition) for topic in topics.values() for partition in topic.partitions]
    orders = [key for key in partitions if key[0] == 'orders']
    transaction = view.transaction('history')
    return {
        'topics': topics,
        'offsets': {key: view.partition_offsets(*key) for key in partitions},
        'producers': {key: sorted(view.producers(*key), key=lambda each: each.producer_id) for key in orders},
        'batches': {key: [bytes(batch) for _, batch in view.batches(*key)] for key in orders},
        'batches from the middle': {key: [bytes(batch) for _, batch in view.batches(*key, 5, 12)] for key in orders},
        'transactions': sorted(view.transactions(), key=lambda each: each.transactional_id),
        'transaction': (replace(transaction, partitions=()), sorted(transaction.partitions)),
        'groups': sorted(view.groups()),
        'group': {group_id: view.group(group_id) for group_id in view.groups()},
        'group offsets': {group_id: view.group_offsets(group_id) for group_id in view.groups()},
        'nothing': (view.transaction('none'), view.group_offsets('none')),
    }


@pytest.mark.parametrize(('broker_type', 'member_options'), [
    pytest.param(BrokerProcess, {'classic': {}}, id='kbroker'),
    pytest.param(KafkaProcess, {'classic': {}, 'kip-848': {'group.protocol': 'consumer'}}, id='apache-kafka',
                 marks=pytest.mark.jvm)])
def test_both_views_of_a_broker_agree(tmp_path, broker_type, member_options):
    broker = broker_type(tmp_path / 'data', {'group.initial.rebalance.delay.ms': '0'})
    try:
        broker.start()
        with contextlib.ExitStack() as stack:
            stack.enter_context(sample_topic(broker.address))
            for group_id, options in member_options.items():
                stack.enter_context(a_member(broker.address, group_id, **options))
            live = LiveView(ClientConfig.load(broker.address, None))
            stack.callback(live.close)
            expected, seen = answers(live), answers(DirectoryView(tmp_path / 'data'))
        if 'kip-848' in expected['group']:
            # The member leaves the choice of the assignor to the broker, so no row names an assignor.
            expected['group']['kip-848'] = replace(expected['group']['kip-848'], protocol='')
        for question, answer in expected.items():
            assert seen[question] == answer, question
    finally:
        broker.kill9()

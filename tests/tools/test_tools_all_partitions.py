"""kbroker-transactions on all partitions, and its output after it has ended a transaction."""
import json

import pytest
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.runner.command_runner import run_command

from kbroker.client import Admin, Producer


@pytest.fixture(scope='module')
def broker(tmp_path_factory):
    process = BrokerProcess(tmp_path_factory.mktemp('all') / 'data', PROMPT)
    process.start()
    with Admin(process.address) as admin:
        admin.create_topics({'orders': 2, 'audit': 1, 'idle': 60})
    yield process
    process.stop()


@pytest.fixture
def held(broker):
    """Open two transactions: `billing` holds orders-0 and audit-0, and `shipping` waits behind `billing` in
    orders-0."""
    producers = [Producer(broker.address, transactional_id=name) for name in ('billing', 'shipping')]
    for producer, places in zip(producers, ([('orders', 0), ('audit', 0)], [('orders', 0)]), strict=True):
        producer.init_transactions()
        producer.begin_transaction()
        for topic, partition in places:
            producer.send(topic, b'open', partition=partition)
        producer.flush()
    yield broker
    with Admin(broker.address) as admin:
        admin.fence_producers(['billing', 'shipping'])
    for producer in producers:
        producer._close_cluster()


def run(broker, *arguments):
    return run_command('transactions', *arguments, '--bootstrap-server', broker.address)


def test_all_topics_are_looked_at_without_one(held):
    """An operator once had to name the topic. The facts about 63 partitions need two requests; held partitions need
    further requests."""
    done = run(held, 'why-stuck')
    assert done.returncode == 1 and done.stdout.startswith('all topics: 2 of ')
    assert all(f"{name} is held at offset" in done.stdout for name in ('orders-0', 'audit-0'))
    assert "behind it    transactional.id 'shipping', producer id" in done.stdout
    found = json.loads(run(held, 'why-stuck', '--json').stdout)
    assert [f'{row["topic"]}-{row["partition"]}' for row in found['partitions']] == ['audit-0', 'orders-0']
    assert [row['transactional_id'] for row in found['partitions'][1]['behind']] == ['shipping']


def test_nothing_is_held_on_all_topics(broker):
    done = run(broker, 'why-stuck')
    assert (done.returncode, done.stdout) == (0, 'all topics: no partition is held\n')


def test_the_search_for_hanging_ones_names_those_that_are_open(held):
    done = run(held, 'find-hanging', '--topic', 'orders')
    assert len(done.stdout.splitlines()) == 1       # the titles alone, as Kafka's tool prints them
    assert done.stderr == ('none hangs; 2 open transactions in 1 partition: see kbroker-transactions '
                           f'--bootstrap-server {held.address} why-stuck orders\n')


def test_force_terminate_says_what_it_did_and_what_holds_the_partitions_now(held):
    done = run(held, 'force-terminate', '--transactional-id', 'billing')
    assert (done.returncode, done.stdout) == (0, '')
    first, audit, orders, command = done.stderr.splitlines()
    assert first.startswith("aborted the transaction of 'billing' on audit-0, orders-0; its producer is fenced: the id")
    assert audit.startswith('audit-0 is not held: last stable offset = high watermark')
    assert orders.startswith('orders-0 is held at offset') and "by transactional.id 'shipping'" in orders
    assert command == f'  do: kbroker-transactions --bootstrap-server {held.address} why-stuck orders:0'
    again = run(held, 'force-terminate', '--transactional-id', 'billing')
    assert again.stderr.startswith("'billing' had no open transaction (Empty); its producer is fenced")


def test_abort_says_what_it_did_and_what_holds_the_partition_now(held):
    found = json.loads(run(held, 'why-stuck', 'orders:0', '--json').stdout)['partitions'][0]['producer']
    done = run(held, 'abort', '--topic', 'orders', '--partition', '0', '--start-offset', str(found['first_offset']))
    first, second, _ = done.stderr.splitlines()
    assert first == (f'wrote an abort marker of producer id {found["producer_id"]}, epoch '
                     f'{found["producer_epoch"]}, to orders-0')
    assert 'orders-0 is held at offset' in second and "'shipping'" in second
    assert (done.returncode, done.stdout) == (0, '')


def test_a_timeline_of_a_topic_has_all_its_partitions(held):
    done = run(held, 'timeline', 'orders')
    assert done.returncode == 0 and 'orders-0' in done.stdout and 'orders-1' in done.stdout
    assert done.stdout.index('orders-0') < done.stdout.index('orders-1')
    assert run(held, 'timeline', 'orders:1').stdout in done.stdout
    refused = run(held, 'timeline', 'orders', '--html', 'x.html')
    assert refused.returncode == 2 and '--html shows one partition: found 2 of orders' in refused.stderr

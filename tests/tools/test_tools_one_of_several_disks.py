"""Commands on the log directory of one broker of several. They continue, and report which partitions are on other
brokers."""
import json
import shutil

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.clients.promises import Client, Promises
from support.runner.command_runner import run_command

from kbroker.base.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE

SETTINGS = {'offsets.topic.num.partitions': '3', 'transaction.state.log.num.partitions': '3'}


@pytest.fixture
def disk(tmp_path):
    """Return a directory like that of a stopped broker 2. It lacks the partitions that only broker 1 has, such as
    orders-1."""
    with InProcessBroker(tmp_path / 'data', SETTINGS) as broker:
        client = Client(broker, Promises())
        client.create_topic('orders', 3)
        client.init_idempotent()
        client.produce({('orders', number): [f'value {number}'] for number in range(3)})
        for topic in (CONSUMER_OFFSETS, TRANSACTION_STATE):
            broker.topics.ensure_internal(topic)
        broker.turn()
    for name in ('orders-1', f'{CONSUMER_OFFSETS}-2', f'{TRANSACTION_STATE}-0', f'{TRANSACTION_STATE}-1'):
        shutil.rmtree(tmp_path / 'data' / name)
    properties = tmp_path / 'data' / 'meta.properties'
    properties.write_text(properties.read_text().replace('node.id=1', 'node.id=2'))
    return tmp_path / 'data'


def run(name, disk, *arguments):
    return run_command(name, *arguments, '--data-dir', disk)


def elsewhere(disk):
    return f'{disk}: found no partition orders-1: this is the disk of broker 2, and the replicas are on broker 1 ('


def test_a_topic_is_consumed_beyond_a_partition_that_is_elsewhere(disk):
    """A command once ended at the first partition that is on another broker."""
    done = run('consume', disk, '--topic', 'orders')
    assert done.stdout.split('\n')[:2] == ['value 0', 'value 2'] and done.returncode == 1
    assert elsewhere(disk) in done.stderr and 'not all was read: 1 partition cannot be read here' in done.stderr


def test_a_damaged_batch_does_not_end_the_other_partitions(disk):
    log, = (disk / 'orders-0').glob('*.log')
    content = bytearray(log.read_bytes())
    content[65] ^= 1
    log.write_bytes(content)
    done = run('consume', disk, '--topic', 'orders')
    assert done.stdout == 'value 2\n' and 'orders-0 cannot be read on: orders-0, offset 0:' in done.stderr
    assert 'not to the end: orders-0, orders-1' in done.stderr and done.returncode == 1


def test_why_stuck_names_the_broker_that_has_the_partition(disk):
    """The command once advised to use the broker whose directory it was reading."""
    done = run('transactions', disk, 'why-stuck', 'orders')
    assert done.returncode == 1 and elsewhere(disk) in done.stdout
    assert json.loads(run('transactions', disk, 'why-stuck', 'orders', '--json').stdout)['not_seen'].keys() == {
        'orders-1'}


@pytest.mark.parametrize(('name', 'arguments', 'missing', 'topic'), [
    ('groups', ['--list'], '1 of the 3', CONSUMER_OFFSETS),
    ('share-groups', ['--list'], '1 of the 3', CONSUMER_OFFSETS),
    ('streams-groups', ['--list'], '1 of the 3', CONSUMER_OFFSETS),
    ('transactions', ['list'], '2 of the 3', TRANSACTION_STATE),
    ('txn-state', ['--table'], '2 of the 3', TRANSACTION_STATE)])
def test_lists_of_groups_and_transactions_say_that_they_are_incomplete(disk, name, arguments, missing, topic):
    done = run(name, disk, *arguments)
    assert done.returncode == 0, done
    assert (f'{disk}: the list is incomplete: this is the disk of broker 2, without {missing} partitions of {topic}. '
            'Ask the cluster: --bootstrap-server ') in done.stderr


def test_the_lists_of_a_whole_directory_say_nothing(tmp_path):
    with InProcessBroker(tmp_path / 'data', SETTINGS) as broker:
        broker.topics.ensure_internal(CONSUMER_OFFSETS)
        broker.turn()
    assert run('groups', tmp_path / 'data', '--list').stderr == ''

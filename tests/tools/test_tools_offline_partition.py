"""A partition that damage keeps offline. The commands and the client work on all other partitions, and report the
reason immediately.

A consumer of a damaged and a healthy partition once printed nothing, ignored its timeout and ended after 60 s.

Covers KIP-112.
"""
import json

import pytest
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.runner.command_runner import run_command, run_until_idle

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client import Admin, Consumer, Producer
from kbroker.client.cluster import Cluster, Node, PartitionMetadata
from kbroker.client.config import ClientConfig
from kbroker.client.errors import PartitionOffline
from kbroker.daemon.status import lines_of, read_status

LIMIT_S = 50
"""The time limit of a command in seconds. It is less than default.api.timeout.ms, after which the commands once
failed."""
FLIPPED = 350


@pytest.fixture(scope='module')
def broker(tmp_path_factory):
    """Yield a broker. In its partition pay-0, a bit was flipped after the last clean stop. pay-1 has ten records."""
    process = BrokerProcess(tmp_path_factory.mktemp('offline') / 'data', PROMPT)
    process.start()
    with Admin(process.address) as admin:
        admin.create_topics({'pay': 2, 'other': 1})
    with Producer(process.address) as producer:
        for number in range(10):
            for topic, partition in (('pay', 0), ('pay', 1), ('other', 0)):
                producer.send(topic, f'{topic}-{partition}-{number}'.encode(), partition=partition)
                producer.flush()
    process.stop()
    log = process.directory / 'pay-0' / '00000000000000000000.log'
    content = bytearray(log.read_bytes())
    content[FLIPPED] ^= 1
    log.write_bytes(content)
    process.start()
    yield process
    process.stop()


@pytest.fixture
def damage(broker):
    """Return (the reason, the advised command), which all commands print."""
    log = broker.directory / 'pay-0' / '00000000000000000000.log'
    return f'pay-0 is offline: {log}: found the checksum', f'kbroker-check {broker.directory}/pay-0'


def run(name, broker, *arguments, stdin=''):
    return run_command(name, '--bootstrap-server', broker.address, *arguments, stdin=stdin, timeout=LIMIT_S)


@pytest.mark.parametrize('members', [[], ['--group', 'g'], ['--group', 'h', '--group-protocol', 'consumer']])
def test_a_healthy_partition_beside_a_damaged_one_is_consumed_and_the_other_is_named(broker, damage, members):
    values = [f'pay-1-{number}' for number in range(10)]
    done = run_until_idle(lambda ms: run('consume', broker, '--topic', 'pay', '--from-beginning', '--timeout-ms', ms,
                                         *members), lambda text: text.split() == values)
    assert done.stdout.split() == values
    assert all(text in done.stderr for text in damage) and 'not all was read: 1 partition without a leader: pay-0' \
        in done.stderr and done.returncode == 1


def test_a_share_group_gets_the_healthy_partition(broker, damage):
    reset = run('share-groups', broker, '--reset-offsets', '--group', 's', '--topic', 'pay', '--to-earliest',
                '--execute')
    assert 'pay             1          0' in reset.stdout and 'the offsets of pay-0 stay as they are' in reset.stderr
    done = run_until_idle(lambda ms: run('share-consume', broker, '--topic', 'pay', '--group', 's', '--timeout-ms', ms),
                          lambda text: len(text.split()) == 10)
    assert len(done.stdout.split()) == 10 and all(text in done.stderr for text in damage)


def test_a_poll_returns_the_records_that_are_there_and_ends_at_its_timeout(broker):
    with Consumer(broker.address, auto_offset_reset='earliest') as consumer:
        consumer.assign([('pay', 0), ('pay', 1)])
        found = []
        while len(found) < 10:
            found += [batch.partition for batch in consumer.poll(LIMIT_S * 1000) for _ in range(len(batch))]
        assert found == [1] * 10 and consumer.poll(300) == []
        error = consumer.offline['pay', 0]
        assert error.code is ErrorCode.KAFKA_STORAGE_ERROR and 'pay-0 is offline' in str(error)
        assert list(consumer.offline) == [('pay', 0)]


def test_a_record_for_a_damaged_partition_fails_by_its_own_timeout(broker):
    answers = []
    with Producer(broker.address, delivery_timeout_ms=1000, request_timeout_ms=900,
                  on_delivery=answers.append) as producer:
        producer.send('pay', b'lost', partition=0)
        producer.send('pay', b'kept', partition=1)
        producer.send('other', b'kept', partition=0)
        while not answers:
            producer.poll(100)
        for number in range(20):        # without a key, each goes to a partition with a leader
            producer.send('pay', str(number).encode())
        producer.flush()
    failed = [delivery for delivery in answers if delivery.error is not None]
    assert answers[0].error is None and sum(delivery.records_count for delivery in answers) == 23
    assert [(delivery.topic, delivery.partition, delivery.records_count) for delivery in failed] == [('pay', 0, 1)]
    assert 'not written within delivery.timeout.ms' in str(failed[0].error)
    assert 'pay-0 is offline' in str(failed[0].error)


def test_an_admin_fails_at_once_for_the_damaged_partition_alone(broker):
    with Admin(broker.address) as admin:
        assert admin.list_offsets({('pay', 1): 'earliest'})['pay', 1].offset == 0
        with pytest.raises(PartitionOffline, match='pay-0 is offline'):
            admin.list_offsets({('pay', 0): 'latest'})
        with pytest.raises(PartitionOffline, match='pay-0 is offline'):
            admin.describe_producers([('pay', 0), ('pay', 1)])


def test_why_stuck_names_the_damage_and_the_command(broker, damage):
    for where, headline in (('pay', 'pay: no partition is held, and 1 partition cannot be read'),
                            ('pay:0', 'pay:0: 1 partition cannot be read')):
        done = run('transactions', broker, 'why-stuck', where)
        assert done.stdout.startswith(headline) and all(text in done.stdout for text in damage)
        assert done.returncode == 1
    found = json.loads(run('transactions', broker, 'why-stuck', 'pay', '--json').stdout)
    assert found['not_seen']['pay-0'].startswith(damage[0]) and not found['is_stuck']


def test_topics_describe_names_the_damage(broker, damage):
    done = run('topics', broker, '--describe', '--topic', 'pay')
    assert 'Leader: none' in done.stdout and all(text in done.stderr for text in damage)
    rows = json.loads(run('topics', broker, '--describe', '--topic', 'pay', '--json').stdout)['partitions']
    assert rows[0]['offline'].startswith(damage[0]) and rows[1]['offline'] is None
    done = run_command('topics', '--data-dir', broker.directory, '--describe', '--topic', 'pay')
    assert all(text in done.stderr for text in damage)


def test_the_status_names_the_damage(broker, damage):
    report = read_status(str(broker.directory))
    assert report['offline_partitions'] == 1 and report['failure'] is None
    lines = list(lines_of(report))
    assert any(line.startswith('OFFLINE     pay-0: ') for line in lines)
    assert f'            do: kbroker-check {broker.directory}' in lines


def test_groups_are_described_and_reset_without_the_damaged_partition(broker, damage):
    with Admin(broker.address) as admin:
        admin.alter_group_offsets('offsets', {('pay', 0): 2, ('pay', 1): 3})
    done = run('groups', broker, '--describe', '--group', 'offsets', '--isolation-level', 'read_committed', '--json')
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first['current_offset'], first['log_end_offset'], second['current_offset']) == (2, None, 3)
    assert second['lag'] == second['log_end_offset'] - 3 and all(text in done.stderr for text in damage)
    done = run('groups', broker, '--reset-offsets', '--group', 'offsets', '--topic', 'pay', '--to-earliest',
               '--execute')
    assert done.returncode == 1 and 'the offsets of pay-0 stay as they are' in done.stderr
    with Admin(broker.address) as admin:
        assert {at: found.offset for at, found in admin.list_group_offsets('offsets').items()} == {
            ('pay', 0): 2, ('pay', 1): 0}


def test_the_search_for_hanging_transactions_goes_on(broker, damage):
    done = run('transactions', broker, 'find-hanging', '--topic', 'pay')
    assert done.returncode == 0 and all(text in done.stderr for text in damage)


def test_a_command_for_one_partition_says_where_to_look(broker):
    done = run('transactions', broker, 'describe-producers', '--topic', 'pay', '--partition', '0')
    assert done.returncode == 1 and 'kbroker-topics --describe --unavailable-partitions says why' in done.stderr


@pytest.mark.parametrize(('offline', 'kind'), [((1,), PartitionOffline), ((2,), KafkaError), ((), KafkaError)])
def test_only_a_broker_that_runs_proves_that_a_retry_is_useless(offline, kind):
    """If its broker is down, a partition may come back after a restart. The client then repeats requests until the
    timeout."""
    cluster = Cluster(ClientConfig((('localhost', 1),), default_api_timeout_ms=1000), Clock(), lambda seconds: None)
    cluster.nodes = {1: Node(1, 'localhost', 1)}
    row = PartitionMetadata(0, -1, 0, offline, (), offline, ErrorCode.LEADER_NOT_AVAILABLE)
    error = cluster._without_leader('t', row)
    assert type(error) is kind and cluster._is_transient(error, ()) is (kind is KafkaError)

"""kbroker-cluster shows a cluster in one screen, and the parts that an older broker can tell."""
import json

import pytest
from support.runner.command_runner import run_command, run_in_process

from kbroker.client import Producer
from kbroker.client.connection import Connection
from kbroker.protocol.api_keys import ApiKey
from kbroker_tools.base.view import PartitionInfo, TopicInfo
from kbroker_tools.cluster.overview import Overview
from kbroker_tools.commands import cluster


@pytest.fixture(scope='module')
def broker(shared_broker):
    """A broker with an open transaction in partition 1 of `screen`."""
    done = run_command('topics', '--bootstrap-server', shared_broker.address, '--create', '--topic', 'screen',
                       '--partitions', '2')
    assert done.returncode == 0
    with (Producer(shared_broker.address, transactional_id='screen-loader') as producer,
          pytest.raises(InterruptedError), producer.transaction()):
        for _ in range(3):
            producer.send('screen', b'x', partition=1)
        producer.flush()
        yield shared_broker
        raise InterruptedError      # aborts the transaction


def run(broker, *arguments):
    return run_in_process('cluster', '--bootstrap-server', broker.address, *arguments)


def test_one_screen_shows_the_brokers_features_and_the_open_transaction(broker):
    done = run(broker)
    assert (done.returncode, done.stderr) == (0, '')
    assert f'1     \t{broker.address}' in done.stdout and 'transaction.version 2' in done.stdout
    assert 'none offline; none under-replicated' in done.stdout
    assert 'screen-loader' in done.stdout and 'screen-1' in done.stdout
    assert f'kbroker-transactions --bootstrap-server {broker.address} why-stuck' in done.stdout
    assert len(done.stdout.splitlines()) < 40


def test_the_overview_is_one_json_object(broker):
    row = json.loads(run(broker, 'describe', '--json').stdout)
    found = {each['transactional_id']: each for each in row['open_transactions']}['screen-loader']
    assert found['partitions'] == ['screen-1'] and found['open_ms'] >= 0 and found['state'] == 'Ongoing'
    held = next(each for each in row['held_partitions'] if each['topic'] == 'screen')
    assert (held['partition'], held['last_stable_offset'], held['distance']) == (1, 0, 3)
    assert row['brokers'][0]['is_controller'] and row['offline_partitions'] == [] and row['missing'] == {}
    produce = row['api_versions']['1'][0]
    assert produce['name'] == 'Produce' and produce['chosen'] == produce['broker'][1]


def test_a_broker_that_lacks_apis_gets_a_line_for_each_part(broker, monkeypatch):
    learn = Connection._learn_versions

    def learn_less(self):
        learn(self)
        for key in (ApiKey.DESCRIBE_CLUSTER, ApiKey.LIST_TRANSACTIONS):
            self.api_versions.pop(key, None)

    monkeypatch.setattr(Connection, '_learn_versions', learn_less)
    done = run(broker)
    assert done.returncode == 0
    assert done.stderr == (f'open transactions: not shown: broker {broker.address} does not serve ListTransactions\n')
    assert f'1     \t{broker.address}' in done.stdout and 'none offline' in done.stdout
    row = json.loads(run(broker, '--json').stdout)
    assert row['open_transactions'] is None and list(row['missing']) == ['open transactions']
    assert row['brokers'][0]['is_fenced'] is None


def test_an_offline_partition_is_a_finding(broker, monkeypatch):
    rows = tuple(PartitionInfo('t', number, leader, (1,), ()) for number, leader in enumerate([-1, 1]))
    found = Overview('id', topics={'t': TopicInfo('t', bytes(16), False, rows)})
    assert found.offline == [('t', 0)] and found.under_replicated == [('t', 0), ('t', 1)]
    monkeypatch.setattr('kbroker_tools.cluster.overview.read_overview', lambda view: found)
    done = run(broker)
    assert done.returncode == 1 and '2 in 1 topic; 1 offline: t-0; 2 under-replicated: t-0, t-1' in done.stdout


def test_the_lists_name_a_few_and_count_the_rest():
    assert cluster._listed('offline', [f't-{number}' for number in range(8)]) == (
        '8 offline: t-0, t-1, t-2, t-3, t-4 and 3 more')
    assert cluster._few([('t', number) for number in range(4)]) == 't-0, t-1 and 2 more'
    assert cluster._few([('t', number) for number in range(3)]) == 't-0, t-1, t-2'


def test_the_commands_of_kafka_cluster(broker):
    assert run(broker, 'cluster-id').stdout.startswith('Cluster ID: ')
    host, port = broker.address.split(':')
    heading, row = run(broker, 'list-endpoints').stdout.splitlines()
    assert heading.split() == ['ID', 'HOST', 'PORT', 'RACK', 'STATE', 'ENDPOINT_TYPE']
    assert row.split() == ['1', host, port, 'null', 'unfenced', 'broker']
    lines = run(broker, 'api-versions').stdout.splitlines()
    assert lines[0] == f'{broker.address} (id: 1 rack: null isFenced: false) -> ('
    assert '\tFetch(1): 4 to 18 [usable: 18],' in lines and lines[-1] == ')'
    assert [json.loads(line)['api_key'] for line in run(broker, 'api-versions', '--json').stdout.splitlines()][:2] == [
        0, 1]


def test_a_broker_that_is_not_there_is_one_line():
    done = run_in_process('cluster', '--bootstrap-server', '127.0.0.1:1')
    assert (done.returncode, done.stdout, done.stderr.count('\n')) == (1, '', 1)

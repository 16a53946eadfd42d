"""Transactions, groups and reads of kafkajs with a live broker."""
import json
import subprocess

import pytest
from kafkajs import script

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

SCENARIOS = ['plain_produce', 'idempotent_produce', 'group_rebalance', 'commit_over_partitions',
             'abort_over_partitions', 'send_offsets', 'fencing', 'timeout_abort']


@pytest.fixture(scope='module')
def judgement(shared_broker):
    """Run all scenarios in one process of Node.js, and return their results."""
    done = subprocess.run(['node', script('judge.js'), shared_broker.address, *SCENARIOS], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=500, check=True)
    return {entry['scenario']: entry['error'] for entry in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize('scenario', SCENARIOS)
def test_kafkajs_sees_what_kafka_promises(judgement, scenario):
    assert judgement[scenario] == ''


@pytest.mark.parametrize('way', ['stop', 'kill9'])
def test_a_transaction_of_kafkajs_outlives_a_restart(broker, way):
    with subprocess.Popen(['node', script('judge.js'), broker.address, 'restart_in_transaction'], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == 'waiting\n'
        getattr(broker, way)()
        broker.start()
        output, _ = process.communicate('\n', timeout=120)
    assert json.loads(output) == {'scenario': 'restart_in_transaction', 'error': ''}

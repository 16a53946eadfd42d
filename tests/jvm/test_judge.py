"""Kafka's Java clients work on a live broker, with transaction version 2."""
import json
import subprocess

import pytest
from support.kafka.apache_kafka import java

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

SCENARIOS = ['plain_produce', 'idempotent_produce', 'group_rebalance', 'commit_over_partitions',
             'abort_over_partitions', 'empty_transactions', 'send_offsets', 'fencing', 'timeout_abort',
             'consumer_protocol_group_rebalance', 'consumer_protocol_send_offsets', 'consumer_protocol_pattern',
             'consumer_protocol_static_member', 'consumer_protocol_more_partitions']


@pytest.fixture(scope='module')
def judgement(shared_broker):
    """The results of all scenarios, which run in one virtual machine."""
    done = subprocess.run(java('kbroker.Judge', shared_broker.address, *SCENARIOS), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=500, check=True)
    return {entry['scenario']: entry['error'] for entry in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize('scenario', SCENARIOS)
def test_the_java_client_sees_what_kafka_promises(judgement, scenario):
    assert judgement[scenario] == ''


@pytest.mark.parametrize('scenario', ['restart_in_transaction', 'consumer_protocol_restart_in_group'])
@pytest.mark.parametrize('way', ['stop', 'kill9'])
def test_the_work_of_the_java_client_outlives_a_restart(broker, way, scenario):
    with subprocess.Popen(java('kbroker.Judge', broker.address, scenario), stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as judge:
        assert judge.stdout.readline() == 'waiting\n'
        getattr(broker, way)()
        broker.start()
        output, _ = judge.communicate('\n', timeout=120)
    assert json.loads(output) == {'scenario': scenario, 'error': ''}

"""kafkajs with a live broker."""
import functools
import hashlib
import json
import pathlib
import shutil
import subprocess

import pytest
from support.machine_requirements import JUDGES

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

SOURCES = pathlib.Path(__file__).parent
SCENARIOS = ['plain_produce', 'idempotent_produce', 'group_rebalance', 'commit_over_partitions',
             'abort_over_partitions', 'send_offsets', 'fencing', 'timeout_abort']


@functools.cache
def judge():
    """Return the path of the script, in a directory with its packages."""
    package, script = SOURCES / 'package.json', SOURCES / 'judge.js'
    directory = JUDGES / 'node' / hashlib.sha256(package.read_bytes()).hexdigest()[:16]
    if not (directory / 'installed').exists():
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(package, directory)
        subprocess.run(['npm', 'install', '--no-audit', '--no-fund', '--silent'], cwd=directory, check=True,
                       stdin=subprocess.DEVNULL, timeout=500)
        (directory / 'installed').touch()
    return shutil.copy(script, directory)


@pytest.fixture(scope='module')
def judgement(shared_broker):
    """The results of all scenarios, run in one process."""
    done = subprocess.run(['node', judge(), shared_broker.address, *SCENARIOS], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=500, check=True)
    return {entry['scenario']: entry['error'] for entry in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize('scenario', SCENARIOS)
def test_kafkajs_sees_what_kafka_promises(judgement, scenario):
    assert judgement[scenario] == ''


@pytest.mark.parametrize('way', ['stop', 'kill9'])
def test_a_transaction_of_kafkajs_outlives_a_restart(broker, way):
    with subprocess.Popen(['node', judge(), broker.address, 'restart_in_transaction'], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == 'waiting\n'
        getattr(broker, way)()
        broker.start()
        output, _ = process.communicate('\n', timeout=120)
    assert json.loads(output) == {'scenario': 'restart_in_transaction', 'error': ''}

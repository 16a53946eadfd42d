"""kbroker-acls: its usage, its output, and the directory of a stopped broker."""
import json
import os

import pytest
from support.brokers.broker_process import BrokerProcess
from support.brokers.in_process_broker import InProcessBroker
from support.runner.command_runner import run_in_process

from kbroker.metadata.features import METADATA_VERSION
from kbroker.metadata.offline import changed_directory
from kbroker.protocol.messages import FeatureLevelRecord
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.security.principal import parse_principal

ON = {'authorizer.class.name': 'StandardAuthorizer', 'transaction.state.log.num.partitions': '1',
      'offsets.topic.num.partitions': '1'}
ALLOW_ALICE = ('--allow-principal', 'User:alice')
CLUSTER = ResourceType.CLUSTER, 'kafka-cluster'


@pytest.fixture
def directory(tmp_path):
    """Return the directory of a stopped broker."""
    with InProcessBroker(tmp_path / 'data', ON):
        pass
    return tmp_path / 'data'


def run(*arguments):
    done = run_in_process('acls', *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(('arguments', 'words'), [
    ([], 'exactly one of --add, --remove and --list'), (['--list', '--add'], 'exactly one of'),
    (['--add', *ALLOW_ALICE], 'name a resource'), (['--add', '--topic', 'a'], '--add needs --allow-principal'),
    (['--add', *ALLOW_ALICE, '--topic', 'a', '--operation', 'Sing'], "found 'Sing', expected All, Read, Write"),
    (['--add', *ALLOW_ALICE, '--cluster', '--operation', 'Read'], 'CLUSTER supports the operations ALL, ALTER'),
    (['--add', '--allow-principal', 'alice', '--topic', 'a'], "found 'alice', expected TYPE:NAME"),
    (['--add', *ALLOW_ALICE, '--topic', 'a', '--resource-pattern-type', 'match'], 'literal or prefixed'),
    (['--add', *ALLOW_ALICE, '--producer', '--group', 'a'], '--producer needs --topic'),
    (['--add', *ALLOW_ALICE, '--consumer', '--topic', 'a'], '--consumer needs --group'),
    (['--add', *ALLOW_ALICE, '--idempotent', '--topic', 'a'], '--idempotent goes with --producer'),
    (['--add', *ALLOW_ALICE, '--producer', '--operation', 'Read', '--topic', 'a'], 'exclude each other'),
    (['--list', '--operation', 'Read'], '--operation goes with'),
    (['--remove', '--topic', 'a', '--principal', 'User:a'], '--principal goes with --list'),
    (['--list', '--data-dir', '/', '--bootstrap-server', 'a:1'], 'give one of --bootstrap-server')])
def test_wrong_usage_is_reported_with_exit_code_2(arguments, words):
    done = run_in_process('acls', *arguments)
    assert done.returncode == 2
    assert words in ' '.join(done.stderr.split())


def test_an_operator_who_was_locked_out_gets_in_through_the_directory(directory):
    place = '--data-dir', directory
    assert run(*place, '--list') == ''
    assert run(*place, '--add', *ALLOW_ALICE, '--operation', 'Alter', '--cluster') == (
        'Adding ACLs for resource `ResourcePattern(resourceType=CLUSTER, name=kafka-cluster, patternType=LITERAL)`: \n'
        ' \t(principal=User:alice, host=*, operation=ALTER, permissionType=ALLOW)\n\n')
    assert 'already exists.' in run(*place, '--add', *ALLOW_ALICE, '--operation', 'Alter', '--cluster')
    for times in range(2):      # the second start follows a clean stop
        with InProcessBroker(directory, ON) as node:
            access = node.authorizer.access_of(parse_principal('User:alice'), '10.0.0.1')
            assert access.may(Operation.ALTER, *CLUSTER) is (times == 0)
            assert len(node.metadata.image.brokers) == 1
        assert 'User:alice' in run(*place, '--list') or times
        assert run(*place, '--remove', '--force', '--cluster') == ''
    assert run(*place, '--list') == ''


def test_each_acl_is_a_json_object(directory):
    place = '--data-dir', directory
    run(*place, '--add', *ALLOW_ALICE, '--consumer', '--topic', 'orders', '--group', 'billing')
    rows = [json.loads(line) for line in run(*place, '--list', '--json').splitlines()]
    assert [(row['resource_type'], row['resource_name'], row['operation']) for row in rows] == [
        ('TOPIC', 'orders', 'READ'), ('TOPIC', 'orders', 'DESCRIBE'), ('GROUP', 'billing', 'READ')]
    assert rows[0] | {'operation': None} == {
        'resource_type': 'TOPIC', 'resource_name': 'orders', 'pattern_type': 'LITERAL', 'principal': 'User:alice',
        'host': '*', 'operation': None, 'permission_type': 'ALLOW'}


def test_the_directory_of_a_running_broker_is_read_and_not_changed(directory):
    broker = BrokerProcess(directory, ON)
    broker.start()
    try:
        log, = (directory / '__cluster_metadata-0').glob('*.log')
        before = log.read_bytes()
        assert run('--data-dir', directory, '--list') == ''
        done = run_in_process('acls', '--data-dir', directory, '--add', *ALLOW_ALICE, '--cluster')
        assert done.returncode == 1
        assert 'another broker, kbroker or Kafka, uses' in done.stderr
        assert log.read_bytes() == before
        broker.stop()
    finally:
        broker.kill9()


def test_a_directory_that_is_no_brokers_is_not_changed(tmp_path):
    done = run_in_process('acls', '--data-dir', tmp_path, '--add', *ALLOW_ALICE, '--cluster')
    assert (done.returncode, os.listdir(tmp_path)) == (1, [])


def test_only_the_owner_of_a_directory_changes_it(directory, monkeypatch):
    monkeypatch.setattr(os, 'geteuid', lambda: 4711)
    done = run_in_process('acls', '--data-dir', directory, '--add', *ALLOW_ALICE, '--cluster')
    assert done.returncode == 1
    assert 'run this command as that user, found 4711' in done.stderr


def test_an_acl_that_a_broker_would_refuse_is_not_written(directory):
    done = run_in_process('acls', '--data-dir', directory, '--add', *ALLOW_ALICE, '--topic', 'x' * 40_000)
    assert done.returncode == 1
    assert 'found a text of more than 32767 bytes' in done.stderr


def test_a_range_of_hosts_is_written_if_the_directory_has_a_metadata_version_that_knows_it(directory):
    """A directory is formatted at metadata.version 30. Ranges begin at 32."""
    place = '--data-dir', directory
    allowed = (*ALLOW_ALICE, '--allow-host', '10.0.0.0/8', '--topic', 'orders')
    done = run_in_process('acls', *place, '--add', *allowed)
    assert done.returncode == 1
    assert 'Found metadata.version 30, expected at least 32' in done.stderr
    with changed_directory(str(directory)) as controller:
        controller.at_once(controller.commits.write([FeatureLevelRecord(name=METADATA_VERSION, feature_level=33)]))
    assert 'host=10.0.0.0/8, operation=ALL' in run(*place, '--add', *allowed)
    done = run_in_process('acls', *place, '--add', *ALLOW_ALICE, '--allow-host', '10.0.0.0/33', '--cluster')
    assert done.returncode == 1
    assert "Invalid CIDR notation '10.0.0.0/33': Value [33] not in range [0,32]" in done.stderr
    with InProcessBroker(directory, ON) as node:
        access = node.authorizer.access_of(parse_principal('User:alice'), '10.1.2.3')
        assert access.may(Operation.READ, ResourceType.TOPIC, 'orders')

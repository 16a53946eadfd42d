"""kafka-cluster shows the APIs of kbroker, and asks it to unregister a controller, as it does with Apache Kafka.
"""
import re

import pytest
from support.brokers.broker_process import BrokerProcess
from support.kafka.apache_kafka import KafkaProcess, run_tools
from support.kafka.beside_kafka import running
from support.kafka.skipped_apis import skipped_keys
from support.runner.command_runner import run_command

from kbroker.log.fs import FileSystem
from kbroker.metadata.directory import format_directory
from kbroker.metadata.features import RELEASES

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

TOOL = 'org.apache.kafka.tools.ClusterTool'
RELEASE = '4.4'
"""The first release whose tool has the commands."""


@pytest.fixture(scope='module')
def brokers(tmp_path_factory):
    """Apache Kafka and kbroker, in this order, with directories of the same levels."""
    directory = tmp_path_factory.mktemp('brokers')
    kafka, ours = KafkaProcess(directory / 'kafka', release=RELEASE, dynamic=True), BrokerProcess(directory / 'kbroker')
    format_directory(FileSystem(), str(ours.directory), node_id=1, timestamp_ms=0, features=RELEASES[RELEASE])
    with running(kafka, ours) as both:
        yield both


def asked(broker, *command):
    run, = run_tools(TOOL, [*command, '--bootstrap-server', broker.address], release=RELEASE)
    return run


def usable(run):
    """Return {API key: what the tool says of it} of the output of api-versions."""
    assert run.code == 0, run
    return {int(key): text for key, text in re.findall(r'^\s*\w+\((\d+)\): (.*?),?$', run.output, re.MULTILINE)}


def test_the_tool_can_use_the_same_versions_of_each_api(brokers):
    kafka, ours = (usable(asked(broker, 'api-versions')) for broker in brokers)
    assert kafka.keys() == ours.keys() and len(kafka) > 60
    different = {key: (kafka[key], ours[key]) for key in kafka if kafka[key] != ours[key]}
    assert different.keys() <= skipped_keys(), different
    assert {text for _, text in different.values()} == {'UNSUPPORTED'}


@pytest.mark.parametrize(('controller_id', 'reason'), [
    ('1', 'Controller cannot unregister itself while it is active.'),
    ('2', 'Controller ID 2 is not currently registered.'),
])
def test_a_controller_that_is_active_or_unknown_is_not_unregistered(brokers, controller_id, reason):
    for broker in brokers:
        run = asked(broker, 'unregister-controller', '--id', controller_id)
        assert run.code == 1
        assert f'request for controller ID {controller_id} failed: {reason}' in run.errors


def test_the_only_endpoint_is_shown(brokers):
    kafka, ours = (asked(broker, 'list-endpoints') for broker in brokers)
    assert [run.output.replace(broker.address.split(':')[1], 'PORT').split()
            for run, broker in zip((kafka, ours), brokers, strict=True)] == 2 * [[
                'ID', 'HOST', 'PORT', 'RACK', 'STATE', 'ENDPOINT_TYPE', '1', '127.0.0.1', 'PORT', 'null', 'unfenced',
                'broker']]


def test_kbroker_cluster_prints_the_same_as_the_tool(brokers):
    """The test compares the lines of APIs that this client knows. The tool also names the APIs of brokers alone."""
    for broker in brokers:
        for command in ('cluster-id', 'list-endpoints'):
            ours = run_command('cluster', command, '--bootstrap-server', broker.address)
            assert ours.stdout == asked(broker, command).output, ours.stderr
        ours = run_command('cluster', 'api-versions', '--bootstrap-server', broker.address).stdout.splitlines()
        theirs = asked(broker, 'api-versions').output.splitlines()
        known = [line.rstrip(',') for line in ours if 'UNKNOWN' not in line and 'UNSUPPORTED' not in line]
        both = [line for line in known if line in {line.rstrip(',') for line in theirs}]
        assert len(both) > 60 and both[0] == theirs[0]
        assert [line for line in known if line not in both] == []

"""kafka-configs and kbroker-configs set and print the configs of groups, on Apache Kafka and on kbroker.

Covers KIP-848, KIP-932 and KIP-1071.
"""
import pytest
from support.brokers.broker_fixtures import either_broker
from support.kafka.apache_kafka import config_command, run_tools
from support.kafka.shown_metadata import await_shown_metadata
from support.runner.command_runner import run_in_process

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

TOOL = config_command()
GROUPS = ('--entity-type', 'groups')
ALTERED = [
    (*GROUPS, '--entity-name', 'readers', '--add-config', 'consumer.session.timeout.ms=50000,share.isolation.level='
     'read_committed'),
    ('--group', 'readers', '--add-config', 'share.auto.offset.reset=by_duration:PT1H'),
    (*GROUPS, '--entity-name', 'streams', '--add-config', 'streams.num.standby.replicas=1'),
    ('--group', 'readers', '--delete-config', 'share.isolation.level'),
]
REFUSED = [
    (*GROUPS, '--entity-name', 'readers', '--add-config', 'consumer.session.timeout.ms=1'),
    (*GROUPS, '--entity-name', 'readers', '--add-config', 'no.such.config=1'),
]
DESCRIBED = [GROUPS, ('--group', 'readers'), (*GROUPS, '--entity-name', 'streams'), ('--group', 'readers', '--all')]
broker = either_broker()


def test_both_commands_set_and_print_the_configs_of_groups(broker):
    def kafkas(*runs):
        return run_tools(TOOL, *[['--bootstrap-server', broker.address, *run] for run in runs])

    def ours(*run):
        return run_in_process('configs', '--bootstrap-server', broker.address, *run)

    for index, change in enumerate(ALTERED):
        if index % 2:
            assert ours('--alter', *change).returncode == 0, change
        else:
            assert [run.code for run in kafkas(('--alter', *change))] == [0], change
        await_shown_metadata(broker.address)
    for change in REFUSED:
        run, = kafkas(('--alter', *change))
        assert 'InvalidConfigurationException' in run.output + run.errors
        assert 'INVALID_CONFIG' in ours('--alter', *change).stderr
    for question, theirs in zip(DESCRIBED, kafkas(*(('--describe', *question) for question in DESCRIBED)), strict=True):
        assert theirs.code == 0, theirs
        assert sorted(ours('--describe', *question).stdout.splitlines()) == sorted(theirs.output.splitlines()), question


def test_the_configs_of_groups_outlive_a_restart(broker):
    for change in ALTERED[:2]:
        assert run_in_process('configs', '--bootstrap-server', broker.address, '--alter', *change).returncode == 0
    await_shown_metadata(broker.address)
    asked = run_in_process('configs', '--bootstrap-server', broker.address, '--describe', '--group', 'readers')
    broker.stop()
    offline = run_in_process('configs', '--data-dir', str(broker.directory), '--describe', '--group', 'readers')
    assert sorted(line.split()[0] for line in offline.stdout.splitlines()[1:]) == sorted(
        line.split()[0] for line in asked.stdout.splitlines()[1:])
    broker.start()
    again = run_in_process('configs', '--bootstrap-server', broker.address, '--describe', '--group', 'readers')
    assert again.stdout == asked.stdout and 'consumer.session.timeout.ms=50000' in again.stdout

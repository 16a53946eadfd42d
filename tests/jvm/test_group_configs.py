"""kafka-configs and kbroker-configs set and print the configs of groups, on Apache Kafka and on kbroker.

Covers KIP-848, KIP-932, KIP-1071 and KIP-1191.
"""
import pytest
from cases_topics import GROUP, SET
from raw_peer import RawPeer
from support.brokers.broker_fixtures import either_broker
from support.brokers.broker_process import BrokerProcess
from support.kafka.apache_kafka import KafkaProcess, config_command, run_tools
from support.kafka.beside_kafka import running
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


SINCE_4_4 = {
    'streams.num.warmup.replicas': ('0', '20', '21', '-1', 'many'),
    'streams.task.offset.interval.ms': ('15000', '14999', '0'),
    'streams.acceptable.recovery.lag': ('0', '-1'),
    'streams.rack.aware.assignment.tags': ('', 'rack', 'rack,zone', 'rack,rack', 'rack,,zone'),
    'streams.assignor.name': ('sticky', ' sticky ', 'STICKY', 'nope', ''),
    'consumer.assignor.offload.enable': ('false', 'x'),
    'share.assignor.offload.enable': ('true', ''),
    'streams.assignor.offload.enable': ('TRUE', '1'),
    'errors.deadletterqueue.topic.name': ('', 'dlq.orders', 'bad name!', '_one', '__two', ' __three'),
    'errors.deadletterqueue.copy.record.enable': ('true', 'yes'),
}
"""Maps each config that Apache Kafka 4.4 adds to values of it, some of which are not valid."""
IN_KAFKAS_WORDS = ('is not a registered task assignor', 'DLQ topic name must not start with')


def test_configs_of_kafka_4_4_are_accepted_and_refused_as_by_kafka(tmp_path):
    def outcomes(broker):
        peer = RawPeer(broker.address, 'group')
        try:
            for name, values in SINCE_4_4.items():
                for value in values:
                    answer = peer.ask('IncrementalAlterConfigs', validate_only=True, resources=[dict(
                        resource_type=GROUP, resource_name='group', configs=[
                            dict(name=name, config_operation=SET, value=value)])]).responses[0]
                    has_kafkas_words = any(words in (answer.error_message or '') for words in IN_KAFKAS_WORDS)
                    yield name, value, answer.error_code, answer.error_message if has_kafkas_words else None
        finally:
            peer.close()

    with running(KafkaProcess(tmp_path / 'kafka', release='4.4'), BrokerProcess(tmp_path / 'kbroker')) as brokers:
        kafka, ours = map(list, map(outcomes, brokers))
    assert ours == kafka
    assert {code for _, _, code, _ in kafka} == {0, 40}
    assert sum(message is not None for *_, message in kafka) == 5

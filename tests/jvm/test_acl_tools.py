"""kbroker-acls and kafka-acls do the same, on kbroker and on Apache Kafka. ACLs survive when a directory moves between
the brokers.

Covers KIP-11, KIP-140 and KIP-290.
"""
import pytest
from support.brokers.broker_fixtures import either_broker
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.kafka.apache_kafka import KafkaProcess, dump_log, run_several_tools, run_tools
from support.kafka.shown_metadata import await_shown_metadata
from support.runner.command_runner import run_command, run_in_process

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

TOOL = 'org.apache.kafka.tools.AclCommand'
ON = PROMPT | {'authorizer.class.name': 'org.apache.kafka.metadata.authorizer.StandardAuthorizer',
               'super.users': 'User:ANONYMOUS'}
ALLOW_ALICE = ('--allow-principal', 'User:alice')
CASES = [
    ('--list',),
    ('--add', *ALLOW_ALICE, '--operation', 'Read', '--topic', '{}-orders'),
    ('--add', *ALLOW_ALICE, '--operation', 'Read', '--topic', '{}-orders'),
    ('--add', *ALLOW_ALICE, '--deny-principal', 'User:bob', '--allow-host', '10.0.0.1', '--operation', 'Read',
     '--operation', 'DescribeConfigs', '--topic', '{}-orders', '--topic', '{}-pay'),
    ('--add', '--allow-principal', 'User:CN=app,O=Ex', '--producer', '--idempotent', '--topic', '{}-orders',
     '--transactional-id', '{}-loader'),
    ('--add', '--allow-principal', 'User:*', '--consumer', '--topic', '{}-', '--group', '{}-',
     '--resource-pattern-type', 'prefixed'),
    ('--add', *ALLOW_ALICE, '--consumer', '--producer', '--topic', '{}-both', '--group', '{}-both'),
    ('--add', *ALLOW_ALICE, '--cluster'), ('--add', *ALLOW_ALICE, '--operation', 'Alter', '--cluster'),
    ('--add', '--deny-principal', 'User:eve', '--deny-host', '::1', '--group', '{}-orders'),
    ('--add', *ALLOW_ALICE, '--operation', 'CreateTokens', '--user-principal', '{}:eve'),
    ('--add', '--allow-principal', 'User:', '--operation', 'TwoPhaseCommit', '--transactional-id', '{}-x'),
    ('--list', '--topic', '{}-orders'), ('--list', '--topic', '{}-'), ('--list', '--cluster'),
    ('--list', '--topic', '{}-', '--resource-pattern-type', 'prefixed'),
    ('--list', '--topic', '{}-orders', '--resource-pattern-type', 'match'),
    ('--list', '--topic', '{}-orders', '--group', '{}-orders', '--resource-pattern-type', 'any'),
    ('--list', '--principal', 'User:alice', '--topic', '{}-both', '--topic', '{}-pay'),
    ('--list', '--topic', 'none'),
    ('--remove', '--force', *ALLOW_ALICE, '--operation', 'Read', '--topic', '{}-orders'),
    ('--list', '--topic', '{}-orders'),
    ('--remove', '--force', '--topic', '{}-orders', '--resource-pattern-type', 'match'),
    ('--list', '--topic', '{}-orders', '--topic', '{}-both', '--topic', '{}-'),
    ('--remove', '--force', '--producer', *ALLOW_ALICE, '--topic', '{}-both'),
    ('--list', '--topic', '{}-both'),
    ('--remove', '--force', '--topic', '{}-none'), ('--remove', '--force', '--cluster'),
]
LEFT = [('topic', 'they-pay'), ('topic', 'they-both'), ('group', 'they-'), ('group', 'they-both'),
        ('group', 'they-orders'), ('transactional-id', 'they-loader'), ('transactional-id', 'they-x'),
        ('user-principal', 'they:eve')]
"""The resources that still have ACLs after all cases."""
WRONG = [
    ('--add', '--list'), ('--list', '--producer', '--topic', 'x'), ('--add', '--topic', 'x'),
    ('--add', *ALLOW_ALICE), ('--add', *ALLOW_ALICE, '--topic', 'x', '--resource-pattern-type', 'any'),
    ('--add', *ALLOW_ALICE, '--topic', 'x', '--operation', 'CreateTokens'),
    ('--add', '--allow-principal', 'a', '--topic', 'x'),
    ('--add', *ALLOW_ALICE, '--producer', '--operation', 'Read', '--topic', 'x'),
    ('--add', *ALLOW_ALICE, '--producer', '--group', 'x'), ('--add', *ALLOW_ALICE, '--idempotent', '--topic', 'x'),
    ('--add', *ALLOW_ALICE, '--consumer', '--topic', 'x'), ('--remove', '--principal', 'User:a', '--topic', 'x'),
    ('--add', *ALLOW_ALICE, '--consumer', '--topic', 'x', '--group', 'x', '--cluster')]
broker = either_broker(ON, scope='module')


def lines(text):
    """Return the lines of a text, stripped and sorted. Kafka prints lines in the order of its hash tables."""
    return sorted(map(str.strip, text.splitlines()))


def are_alike(ours, kafka):
    """Return whether kbroker-acls printed the same about its resources as Kafka's tool printed about other resources.
    """
    return lines(ours.replace('them', 'they')) == lines(kafka.output)


def kafkas(address, run):
    """Run Kafka's tool, and wait until the broker shows the changes of the tool."""
    done, = run_tools(TOOL, ['--bootstrap-server', address, *run])
    await_shown_metadata(address)
    return done


def ours(address, *run):
    """Run kbroker-acls, and wait until the broker shows the changes of the command."""
    done = run_in_process('acls', '--bootstrap-server', address, *run)
    assert done.returncode == 0, (run, done.stderr)
    await_shown_metadata(address)
    return done


def test_what_is_printed_is_what_kafkas_tool_prints(broker):
    """The two tools make the same changes, each to its own resources."""
    def runs_for(who):
        return [[text.format(who) for text in run] for run in CASES]

    found = [kafkas(broker.address, run) for run in runs_for('they')]
    for kind, name in LEFT:
        ours(broker.address, '--remove', '--force', f'--{kind}', name, '--resource-pattern-type', 'any')
    assert ours(broker.address, '--list').stdout == ''
    for run, kafka in zip(runs_for('them'), found, strict=True):
        done = ours(broker.address, *run)
        assert kafka.code == 0, (run, kafka)
        assert are_alike(done.stdout, kafka), (run, done.stdout, kafka.output)


def test_what_kafkas_tool_refuses_is_wrong_usage(broker):
    found = run_several_tools([[TOOL, '--bootstrap-server', broker.address, *run] for run in WRONG])
    for run, kafka in zip(WRONG, found, strict=True):
        done = run_in_process('acls', '--bootstrap-server', broker.address, *run)
        assert (kafka.code, done.returncode) == (1, 2), (run, kafka, done)


def test_both_tools_ask_before_they_remove(broker):
    ours(broker.address, '--add', *ALLOW_ALICE, '--topic', 'asked')
    removal = ('--bootstrap-server', broker.address, '--remove', *ALLOW_ALICE, '--topic', 'asked')
    for answer, left in (('n\n', True), ('', True), ('Y\n', False)):
        done = run_command('acls', *removal, stdin=answer)
        assert done.returncode == 0 and 'Are you sure you want to remove ACLs' in done.stdout
        await_shown_metadata(broker.address)
        assert ('asked' in ours(broker.address, '--list', '--topic', 'asked').stdout) is left


@pytest.mark.parametrize('types', [(KafkaProcess, BrokerProcess, KafkaProcess),
                                   (BrokerProcess, KafkaProcess, BrokerProcess)],
                         ids=['from-apache-kafka', 'from-kbroker'])
def test_acls_survive_the_way_to_the_other_broker_and_back(tmp_path, types):
    """Each broker adds an ACL. Between the two brokers, kbroker-acls adds and removes ACLs in the directory of the
    stopped broker.
    """
    def listed(*place):
        done = run_in_process('acls', *place, '--list')
        assert done.returncode == 0, done.stderr
        return done.stdout

    known, directory = '', tmp_path / 'data'
    for number, process in enumerate(types):
        with process(directory, ON) as broker:
            assert listed('--bootstrap-server', broker.address) == known
            for run in (('--add', *ALLOW_ALICE, '--producer', '--topic', f'orders-{number}'),
                        ('--add', '--deny-principal', 'User:*', '--group', 'tmp-', '--resource-pattern-type',
                         'prefixed')):
                ours(broker.address, *run)
            known = listed('--bootstrap-server', broker.address)
            broker.stop()
        assert listed('--data-dir', directory) == known
        for run in (('--add', '--allow-principal', f'User:offline-{number}', '--cluster'),
                    ('--remove', '--force', *ALLOW_ALICE, '--operation', 'Create', '--topic', f'orders-{number}')):
            done = run_in_process('acls', '--data-dir', directory, *run)
            assert done.returncode == 0, done.stderr
        before, known = known, listed('--data-dir', directory)
        assert len(known) != len(before)
        assert f'User:offline-{number}' in known and known.count('CREATE') == before.count('CREATE') - 1
    text = dump_log(*sorted((directory / '__cluster_metadata-0').glob('*.log')), decode='cluster-metadata')
    assert text.count('"type":"ACCESS_CONTROL_ENTRY_RECORD"') == 3 * 4 + 1
    assert text.count('"type":"REMOVE_ACCESS_CONTROL_ENTRY_RECORD"') == 3

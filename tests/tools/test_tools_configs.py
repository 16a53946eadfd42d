"""kbroker-configs: the syntax of settings, usage, and a directory without a broker."""
import json

import click
import pytest
from click.testing import CliRunner
from support.runner.command_runner import run_command

from kbroker_tools.base.command import ToolError
from kbroker_tools.cluster.client_configs import quota_of
from kbroker_tools.commands.configs import main, parse_settings


@pytest.mark.parametrize(('text', 'expected'), [
    ('a=1', {'a': '1'}), ('a=1,b=2', {'a': '1', 'b': '2'}), ('a=[x,y],b=[],c=', {'a': 'x,y', 'b': '', 'c': ''}),
    ('a=1=2', {'a': '1=2'}), (' a = 1 ', {'a': '1'})])
def test_settings_are_names_and_values_with_commas_in_brackets(text, expected):
    assert parse_settings(text) == expected


@pytest.mark.parametrize('text', ['a', 'a=1,b', '=1', 'a=[x', 'a=1,,b=2'])
def test_what_is_no_setting_is_wrong_usage(text):
    with pytest.raises(click.BadParameter, match='expected NAME=VALUE'):
        parse_settings(text)


@pytest.mark.parametrize('parse', [
    lambda: parse_settings('SCRAM-SHA-512=[iterations=4096,password=sec,ret'), lambda: parse_settings('a=sec,ret'),
    lambda: quota_of('SCRAM-SHA-1', 'password=secret')])
def test_an_error_shows_no_part_of_what_may_be_a_password(parse):
    with pytest.raises((click.BadParameter, ToolError)) as caught:
        parse()
    assert 'sec' not in str(caught.value) and 'ret' not in str(caught.value)


@pytest.mark.parametrize(('arguments', 'words'), [
    ([], 'exactly one of --describe and --alter'), (['--describe'], 'exactly one of --entity-type'),
    (['--describe', '--topic', 'a', '--broker', '1'], 'exactly one of'),
    (['--describe', '--topic', 'a', '--entity-name', 'b'], 'exclude each other'),
    (['--describe', '--topic', 'a', '--add-config', 'a=1'], '--add-config goes with --alter'),
    (['--alter', '--topic', 'a'], '--alter needs --add-config'),
    (['--alter', '--entity-type', 'topics', '--add-config', 'a=1'], '--alter needs a name'),
    (['--alter', '--topic', 'a', '--add-config', 'a=1', '--delete-config', 'a'], 'found both in the added settings'),
    (['--alter', '--topic', 'a', '--add-config', 'a=1', '--data-dir', '/'], 'needs a broker'),
    (['--describe', '--broker', 'one'], 'expected the id of a broker'),
    (['--describe', '--entity-type', 'topics', '--entity-default'], 'goes with --entity-type brokers'),
    (['--describe', '--entity-type', 'devices'], "'devices' is not one of"),
    (['--describe', '--topic', ''], 'is empty'),
    (['--describe', '--entity-type', 'users', '--entity-type', 'ips'], 'only users and clients go together'),
    (['--describe', '--entity-type', 'users', '--entity-type', 'topics'], 'only users and clients go together'),
    (['--describe', '--entity-type', 'topics', '--entity-type', 'groups'], 'only users and clients go together'),
    (['--describe', '--entity-type', 'users', '--user', 'alice'], 'found users twice'),
    (['--describe', '--entity-type', 'users', '--entity-name', 'a', '--entity-default'], 'found 2 names of 1 types')])
def test_wrong_usage_is_reported_with_exit_code_2(arguments, words):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert words in ' '.join(result.stderr.split())


@pytest.fixture(scope='module')
def staged(shared_broker):
    """Return a broker with a setting of a topic, and with a default setting for all brokers."""
    where = ('--bootstrap-server', shared_broker.address)
    alter = ('configs', '--alter')
    for name, *arguments in (('topics', '--create', '--topic', 'orders', '--config', 'retention.ms=1000'),
                             (*alter, '--topic', 'orders', '--add-config',
                              'cleanup.policy=[compact , delete],preallocate=False'),
                             (*alter, '--group', 'readers', '--add-config', 'share.renew.acknowledge.enable=TRUE'),
                             (*alter, '--broker', '1', '--add-config', 'log.cleaner.io.buffer.load.factor=0.80'),
                             (*alter, '--broker-defaults', '--add-config', 'message.max.bytes=2000000')):
        done = run_command(name, *where, *arguments)
        assert done.returncode == 0, done.stderr
    return shared_broker


def rows(*arguments):
    done = run_command('configs', '--describe', '--json', *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_setting_says_what_it_wins_over(staged):
    policy, _, retention = rows('--bootstrap-server', staged.address, '--topic', 'orders')
    assert (policy['name'], policy['value'], policy['source']) == (
        'cleanup.policy', 'compact,delete', 'DYNAMIC_TOPIC_CONFIG')
    assert policy['synonyms'][1] == {'name': 'log.cleanup.policy', 'value': 'delete', 'source': 'DEFAULT_CONFIG'}
    assert retention['value'] == '1000'


@pytest.mark.parametrize('asked', [('--topic', 'orders'), ('--broker-defaults',), ('--entity-type', 'brokers'),
                                   ('--entity-type', 'topics'), ('--group', 'readers'), ('--broker', '1')])
def test_the_directory_has_the_same_values(staged, asked):
    def values(found):
        return [(row['entity_name'], row['name'], row['value'], row['source']) for row in found]
    assert values(rows('--data-dir', staged.directory, *asked)) == values(
        rows('--bootstrap-server', staged.address, *asked))


def test_values_have_their_usual_form_however_they_were_written(staged):
    for place in (('--bootstrap-server', staged.address), ('--data-dir', staged.directory)):
        assert [(row['name'], row['value']) for row in rows(*place, '--topic', 'orders')] == [
            ('cleanup.policy', 'compact,delete'), ('preallocate', 'false'), ('retention.ms', '1000')]
        topic = run_command('topics', *place, '--describe', '--topic', 'orders').stdout
        assert 'cleanup.policy=compact,delete' in topic
        assert 'preallocate=false' in topic
        broker, = rows(*place, '--broker', '1')
        assert (broker['value'], broker['synonyms'][0]['value']) == ('0.8', '0.80')


def test_a_file_of_properties_is_set(staged, tmp_path):
    file = tmp_path / 'settings.properties'
    file.write_text('# a comment\nsegment.ms = 12345\n')
    where = ('--bootstrap-server', staged.address)
    made = run_command('topics', *where, '--create', '--topic', 'from-a-file')
    assert made.returncode == 0, made.stderr
    done = run_command('configs', *where, '--alter', '--topic', 'from-a-file', '--add-config-file', file)
    assert done.stdout == 'Completed updating config for topic from-a-file.\n'
    assert [(row['name'], row['value']) for row in rows(*where, '--topic', 'from-a-file')] == [('segment.ms', '12345')]


@pytest.mark.parametrize(('where', 'arguments'), [
    ('live', ('--describe', '--topic', 'nothing')), ('live', ('--describe', '--broker', '9')),
    ('live', ('--alter', '--topic', 'orders', '--add-config', 'no.such.setting=1')),
    ('directory', ('--describe', '--topic', 'nothing')), ('directory', ('--describe', '--group', 'nothing'))])
def test_operations_that_fail_are_reported_in_one_line(staged, where, arguments):
    place = ('--bootstrap-server', staged.address) if where == 'live' else ('--data-dir', staged.directory)
    failed = run_command('configs', *place, *arguments)
    assert (failed.returncode, failed.stderr.count('\n')) == (1, 1), failed.stderr

"""kbroker-topics: the selection of topics, usage, directories and JSON."""
import json
import os

import pytest
from click.testing import CliRunner
from support.brokers.in_process_broker import InProcessBroker
from support.runner.command_runner import run_command

from kbroker.protocol.messages import CreateTopicsRequest
from kbroker_tools.base.java_order import in_java_order, string_hash
from kbroker_tools.base.topic_pattern import pattern_of
from kbroker_tools.cluster.topic_descriptions import PartitionDescription, TopicDescription
from kbroker_tools.commands.topics import FILTERS, headline, main, parse_assignment


def create(broker, name, partitions=1, **configs):
    request = CreateTopicsRequest
    answer = broker.ask(request(topics=[request.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, configs=[
            request.CreatableTopicConfig(name=key.replace('_', '.'), value=value) for key, value in configs.items()])]))
    assert answer.topics[0].error_code == 0


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp('topics')
    with InProcessBroker(path) as broker:
        create(broker, 'orders', 2, retention_ms='1000', cleanup_policy='compact')
        create(broker, 'payments')
    return path


@pytest.mark.parametrize(('text', 'matching', 'others'), [
    ('orders', ['orders'], ['orders2', 'my-orders']), ('orders.*', ['orders', 'orders2'], ['my-orders']),
    ('a,b', ['a', 'b'], ['ab', 'a,b']), ('"a b"', ['ab'], ['a b'])])
def test_a_topic_is_a_regular_expression_for_the_whole_name(text, matching, others):
    pattern = pattern_of(text)
    assert all(pattern.fullmatch(name) for name in matching)
    assert not any(pattern.fullmatch(name) for name in others)


def topic_of(*partitions, least=2):
    return TopicDescription('orders', bytes(16), False, tuple(
        PartitionDescription(number, *partition, (), ()) for number, partition in enumerate(partitions)), (), least)


@pytest.mark.parametrize(('name', 'found'), [
    ('under_replicated_partitions', [1, 2, 3]), ('unavailable_partitions', [3, 4]),
    ('under_min_isr_partitions', [2, 3]), ('at_min_isr_partitions', [1])])
def test_partitions_are_chosen_by_their_replicas(name, found):
    """In the test's topic, each partition is (leader, True if the leader is alive, replicas, in-sync replicas)."""
    topic = topic_of((1, True, (1, 2, 3), (1, 2, 3)), (1, True, (1, 2, 3), (1, 2)), (1, True, (1, 2, 3), (1,)),
                     (-1, False, (1, 2, 3), ()), (9, False, (1, 2, 3), (1, 2, 3)))
    assert [row.partition for row in topic.partitions if FILTERS[name](topic, row)] == found


def test_the_replication_factor_is_that_of_the_first_partition():
    assert 'PartitionCount: 1\tReplicationFactor: 3' in headline(topic_of((1, True, (1, 2, 3), (1, 2, 3))))


def test_settings_stand_in_the_order_of_javas_hash_map():
    """When Kafka's tool printed the 33 settings of a topic, these four were in the order of `printed`."""
    printed = ['min.insync.replicas', 'cleanup.policy', 'retention.ms', 'max.message.bytes']
    assert in_java_order(sorted(printed), string_hash, size=33) == printed


@pytest.mark.parametrize(('text', 'assignment'), [('1', [[1]]), ('1:2,2:1', [[1, 2], [2, 1]]), (None, None)])
def test_an_assignment_names_the_replicas_of_each_partition(text, assignment):
    assert parse_assignment(text) == assignment


@pytest.mark.parametrize(('arguments', 'words'), [
    ([], 'exactly one of --list'), (['--list', '--describe'], 'found --list and --describe'),
    (['--list', '--partitions', '2'], '--partitions goes with --create or --alter'),
    (['--describe', '--if-not-exists'], '--if-not-exists goes with --create'),
    (['--create'], '--create needs --topic'), (['--alter', '--topic', 'a'], '--alter needs --partitions'),
    (['--create', '--topic', 'a', '--partitions', '0'], 'not in the range'),
    (['--create', '--topic', 'a', '--partitions', '2', '--replica-assignment', '1'], 'exclude each other'),
    (['--describe', '--unavailable-partitions', '--topics-with-overrides'], 'exclude each other'),
    (['--describe', '--topic', 'a', '--topic-id', 'b'], 'exclude each other'),
    (['--list', '--data-dir', '/', '--bootstrap-server', 'a:1'], 'give one of --bootstrap-server'),
    (['--delete', '--topic', 'a', '--data-dir', '/'], 'needs a broker')])
def test_wrong_usage_is_reported_with_exit_code_2(arguments, words):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert words in result.stderr.replace('\n', ' ')


@pytest.mark.parametrize('text', ['1:1', '1:2,1', 'x', '1,,2'])
def test_an_assignment_that_is_none_is_wrong_usage(text):
    result = CliRunner().invoke(main, ['--create', '--topic', 'a', '--replica-assignment', text, '--bootstrap-server',
                                       '127.0.0.1:1'])
    assert (result.exit_code, '--replica-assignment' in result.stderr) == (2, True)


def test_a_directory_is_listed_and_described_without_a_broker(directory):
    assert run_command('topics', '--data-dir', directory, '--list').stdout == 'orders\npayments\n'
    lines = run_command('topics', '--data-dir', directory, '--describe', '--topic', 'orders').stdout.splitlines()
    assert lines[0].startswith('Topic: orders\tTopicId: ')
    assert lines[0].endswith('\tPartitionCount: 2\tReplicationFactor: 1\t'
                             'Configs: cleanup.policy=compact,retention.ms=1000')
    assert len(lines) == 3


def test_a_topic_is_described_by_its_id(directory):
    listed = run_command('topics', '--data-dir', directory, '--list', '--topic', 'orders', '--json')
    topic_id = json.loads(listed.stdout)['topic_id']
    found = run_command('topics', '--data-dir', directory, '--describe', '--topic-id', topic_id, '--json')
    row, = map(json.loads, found.stdout.splitlines())
    assert (row['topic'], row['configs']) == ('orders', {'cleanup.policy': 'compact', 'retention.ms': '1000'})
    assert [partition['replicas'] for partition in row['partitions']] == [[1], [1]]
    nobody = run_command('topics', '--data-dir', directory, '--describe', '--topic-id', 'A' * 22)
    assert (nobody.returncode, nobody.stderr.count('\n')) == (1, 1)


def test_only_topics_with_settings_of_their_own(directory):
    found = run_command('topics', '--data-dir', directory, '--describe', '--topics-with-overrides')
    assert [line.split('\t')[0] for line in found.stdout.splitlines()] == ['Topic: orders']


def test_a_topic_that_is_not_there_is_reported_in_one_line(directory):
    missing = run_command('topics', '--data-dir', directory, '--describe', '--topic', 'nothing')
    assert (missing.returncode, missing.stdout) == (1, '')
    assert missing.stderr.endswith("no topic matches 'nothing'; --list shows the existing ones\n")
    wanted = run_command('topics', '--data-dir', directory, '--describe', '--topic', 'nothing', '--if-exists')
    assert (wanted.returncode, wanted.stderr) == (0, '')
    wrong = run_command('topics', '--data-dir', directory, '--describe', '--topic', '[')
    assert (wrong.returncode, wrong.stderr.count('\n')) == (1, 1)


def test_a_directory_without_a_metadata_log_is_read_by_its_names(directory, tmp_path):
    for name in os.listdir(directory):
        if name.startswith('orders-'):
            (tmp_path / name).symlink_to(directory / name)
    found = run_command('topics', '--data-dir', tmp_path, '--describe')
    assert (found.returncode, found.stdout.count('Partition: ')) == (0, 2)

"""kbroker-log-dirs, kbroker-get-offsets, kbroker-delete-records and the sizes and counts of kbroker-topics: a live
broker and its log directory give the same answers, and bad input is reported before anything is done."""
import io
import json
import os
from contextlib import nullcontext

import pytest
from click.testing import CliRunner
from support.brokers.broker_fixtures import module_broker
from support.brokers.broker_process import PROMPT
from support.runner.command_runner import main_of, run_in_process
from support.worlds.in_memory_view import InMemoryLog

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client import Admin, Producer
from kbroker.client.descriptions import LogDirectory, ReplicaSize
from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import Output
from kbroker_tools.base.view import PartitionInfo, PartitionOffsets, TopicInfo
from kbroker_tools.commands import log_dirs, topics
from kbroker_tools.commands.log_dirs import java_exception, kafka_json

broker = module_broker(PROMPT | {'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '1'})
START_MS = 1_700_000_000_000


@pytest.fixture(scope='module')
def written(broker):
    """`orders-1` has 10 records of a committed transaction, the marker at offset 10, and an open transaction from
    offset 11 on. Its timestamps are 10 ms apart."""
    with Admin(broker.address) as admin:
        admin.create_topics({'orders': 3, 'payments': 1, 'compacted': 1, 'scratch': 2})
        admin.alter_config('topic', 'compacted', {'cleanup.policy': 'compact'})
    producers = [Producer(broker.address, transactional_id=name) for name in ('first', 'second')]
    for producer, count in zip(producers, (10, 3), strict=True):
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(count):
            producer.send('orders', b'value', partition=1, timestamp_ms=START_MS + 10 * number)
        producer.flush()
        if count == 10:
            producer.commit_transaction()
    with Producer(broker.address) as producer:
        for partition in (0, 1):
            for _ in range(5):
                producer.send('scratch', b'x' * 100, partition=partition)
    yield broker
    with Admin(broker.address) as admin:
        admin.fence_producers(['second'])
    for producer in producers:
        producer._close_cluster()


def live(broker, name, *arguments):
    return run_in_process(name, '--bootstrap-server', broker.address, *arguments)


def both(broker, name, *arguments):
    """Return the output for the broker, after comparing it with the output for its directory."""
    asked, read = live(broker, name, *arguments), run_in_process(name, '--data-dir', broker.directory, *arguments)
    assert (asked.returncode, read.returncode) == (0, 0), (asked.stderr, read.stderr)
    assert asked.stdout == read.stdout
    return asked.stdout


def bytes_of_logs(broker, name):
    directory = os.path.join(broker.directory, name)
    return sum(os.path.getsize(os.path.join(directory, file)) for file in os.listdir(directory)
               if file.endswith('.log'))


# ---- log-dirs

def test_the_size_of_a_partition_is_that_of_its_log_files(written):
    row, = map(json.loads, live(written, 'log-dirs', '--json').stdout.splitlines())
    sizes = {f'{each["topic"]}-{each["partition"]}': each['size_bytes'] for each in row['partitions']}
    assert {'orders-1', 'payments-0', '__transaction_state-0'} <= sizes.keys()
    for name, size_bytes in sizes.items():
        assert size_bytes == bytes_of_logs(written, name), name
    assert row['size_bytes'] == sum(sizes.values())
    assert 0 < row['usable_bytes'] < row['total_bytes']
    assert (row['broker'], row['log_dir'], row['error']) == (1, str(written.directory), None)


def test_a_broker_and_its_directory_show_the_same_sizes(written):
    first, second, document = both(written, 'log-dirs', '--topic-list', 'orders,payments').splitlines()
    assert first == 'Querying brokers for log directories information'
    assert second == 'Received log directory information from brokers 1'
    found, = json.loads(document)['brokers']
    assert [row['partition'] for row in found['logDirs'][0]['partitions']] == [
        'orders-0', 'orders-1', 'orders-2', 'payments-0']


def test_a_failed_directory_and_a_move_are_shown_as_kafka_shows_them():
    directories = [LogDirectory(1, '/a', 'KAFKA_STORAGE_ERROR', (), None, None),
                   LogDirectory(1, '/b', None, (ReplicaSize('orders', 0, 5, 3, True),), 10, 5)]
    assert kafka_json([1, 2], directories)['brokers'] == [
        {'broker': 1, 'logDirs': [
            {'partitions': [], 'error': 'org.apache.kafka.common.errors.KafkaStorageException', 'logDir': '/a'},
            {'partitions': [{'partition': 'orders-0', 'size': 5, 'offsetLag': 3, 'isFuture': True}], 'error': None,
             'logDir': '/b'}]},
        {'broker': 2, 'logDirs': []}]
    assert java_exception('LOG_DIR_NOT_FOUND').endswith('.LogDirNotFoundException')


def test_a_replica_that_moves_between_disks_is_a_future_one(written, tmp_path):
    (tmp_path / f'orders-0.{"a" * 32}-future').mkdir()
    (tmp_path / f'orders-0.{"a" * 32}-future' / f'{0:020}.log').write_bytes(b'')
    (tmp_path / 'orders-1').symlink_to(os.path.join(written.directory, 'orders-1'))
    row, = map(json.loads, run_in_process('log-dirs', '--data-dir', tmp_path, '--json').stdout.splitlines())
    assert [(each['topic'], each['partition'], each['is_future']) for each in row['partitions']] == [
        ('orders', 0, True), ('orders', 1, False)]


@pytest.mark.parametrize(('name', 'arguments', 'words'), [
    ('log-dirs', ('--broker-list', '1,7'), 'found no broker 7; the brokers are 1'),
    ('log-dirs', ('--topic-list', 'orders,no'), 'there is no topic no; kbroker-topics --list shows the existing ones'),
    ('get-offsets', ('--topic', 'no'), 'no partition matches'), ('get-offsets', ('--partitions', '9'), 'no partition'),
    ('get-offsets', ('--topic', '['), 'is not a regular expression'),
    ('delete-records', ('--topic-partition', 'orders:9:1'), 'there is no partition orders-9. Nothing was deleted'),
    ('delete-records', ('--topic-partition', 'scratch:0:1', '--topic-partition', 'scratch:1:6'),
     'scratch-1: found offset 6, expected at most the end of the log at 5'),
    ('delete-records', ('--topic-partition', 'scratch:0:1', '--topic-partition', '__transaction_state:0:0'),
     '__transaction_state is an internal topic'),
    ('delete-records', ('--topic-partition', 'scratch:0:1', '--topic-partition', 'compacted:0:0', '--dry-run'),
     'compacted has cleanup.policy=compact')])
def test_what_does_not_exist_or_is_refused_is_reported_in_one_line(written, name, arguments, words):
    done = live(written, name, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count('\n')) == (1, '', 1)
    assert words in done.stderr


@pytest.mark.parametrize(('name', 'arguments', 'words'), [
    ('log-dirs', ('--broker-list', 'one'), "found 'one', expected broker ids"),
    ('log-dirs', ('--data-dir', '.', '--bootstrap-server', 'a:1'), 'give one of --bootstrap-server'),
    ('get-offsets', ('--time', 'soon'), 'expected latest, earliest'), ('get-offsets', ('--time', '-7'), "found '-7'"),
    ('get-offsets', ('--time', str(2**63)), 'or milliseconds'), ('get-offsets', ('--partitions', 'x'), "found 'x'"),
    ('get-offsets', ('--topic-partitions', 'a:x'), "found 'a:x'"), ('get-offsets', ('--all', '--time', '5'), 'exclude'),
    ('get-offsets', ('--topic-partitions', 'a', '--topic', 'b'), 'excludes'),
    ('delete-records', (), 'give one of --offset-json-file and --topic-partition'),
    ('delete-records', ('--topic-partition', 'orders:0'), 'expected TOPIC:PARTITION:OFFSET'),
    ('delete-records', ('--topic-partition', 'a:0:1', '--topic-partition', 'a-0:2'), 'is given twice'),
    ('delete-records', ('--topic-partition', 'a:0:1', '--data-dir', '/'), 'give --bootstrap-server')])
def test_wrong_usage_is_reported_with_exit_code_2(name, arguments, words):
    result = CliRunner().invoke(main_of(name), arguments)
    assert result.exit_code == 2
    assert words in ' '.join(result.stderr.split())


# ---- the sizes of kbroker-topics

def test_a_pipe_gets_sizes_only_if_asked_and_then_as_the_last_field(written):
    plain = live(written, 'topics', '--describe', '--topic', 'orders').stdout
    sized = live(written, 'topics', '--describe', '--topic', 'orders', '--size').stdout
    assert 'Size' not in plain
    assert [line.rpartition('\tSize: ')[0] or line for line in sized.splitlines()] == plain.splitlines()
    assert [line.rpartition('\tSize: ')[2] for line in sized.splitlines()[1:]] == [
        str(bytes_of_logs(written, f'orders-{partition}')) for partition in range(3)]


def test_json_has_the_sizes_of_partitions_and_topics(written):
    for place in (('--bootstrap-server', written.address), ('--data-dir', written.directory)):
        done = run_in_process('topics', *place, '--describe', '--topic', 'orders', '--json')
        row = json.loads(done.stdout)
        assert row['size_bytes'] == sum(each['size_bytes'] for each in row['partitions']) > 0


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Denied:
    is_live = True

    def log_directories(self, partitions, broker_ids):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 'denied')


def test_a_user_who_may_not_see_sizes_may_still_describe_topics(capsys):
    """The option --size asks for them, so it fails."""
    assert topics.shown_sizes(Denied(), Output(True, io.StringIO()), [], is_asked_for=False) is None
    assert capsys.readouterr().err.startswith('the sizes of partitions are not known: ')
    with pytest.raises(KafkaError):
        topics.shown_sizes(Denied(), Output(False, io.StringIO()), [], is_asked_for=True)


def test_a_terminal_gets_the_largest_partitions_first_and_no_empty_ones(monkeypatch):
    monkeypatch.setenv('TERM', 'dumb')
    out = Terminal()
    log_dirs.show_tables(Output(stream=out), [LogDirectory(1, '/data', None, (
        ReplicaSize('orders', 0, 5, 0, False), ReplicaSize('orders', 1, 2048, 0, False),
        ReplicaSize('empty', 0, 0, 0, False)), 4096, 1024)], with_empty=False)
    first, *rows, last = [line.rstrip() for line in out.getvalue().splitlines()]
    assert first == 'broker 1, /data, 2.0 KiB in 3 partitions, 1.0 KiB of 4.0 KiB free'
    assert [line.split() for line in rows[2:]] == [
        ['orders', '1', '2.0', 'KiB', '2048'], ['orders', '0', '5', 'B', '5']]
    assert last == '1 empty partition not shown'


# ---- the counts of kbroker-topics

def test_records_are_counted_by_what_a_consumer_gets(written):
    rows = [json.loads(line) for line in both(written, 'topics', '--count', '--topic', 'orders', '--json').splitlines()]
    assert [(row['readable'], row['held'], row['undecided'], row['aborted'], row['markers']) for row in rows] == [
        (0, 0, 0, 0, 0), (10, 0, 3, 0, 1), (0, 0, 0, 0, 0)]
    assert [(row['log_start_offset'], row['log_end_offset'], row['counted_to_offset']) for row in rows] == [
        (0, 0, 0), (0, 14, 14), (0, 0, 0)]


def test_a_topic_with_several_partitions_has_a_row_of_sums(written):
    rows = [line.split('\t') for line in live(written, 'topics', '--count', '--exclude-internal').stdout.splitlines()]
    assert [(row[0].strip(), row[1].strip()) for row in rows[1:]] == [
        ('compacted', '0'), ('orders', '0'), ('orders', '1'), ('orders', '2'), ('orders', 'all'), ('payments', '0'),
        ('scratch', '0'), ('scratch', '1'), ('scratch', 'all')]
    assert [cell.strip() for cell in rows[5][2:7]] == ['10', '0', '3', '0', '1']


class Batches:
    """A view of one partition with a transaction. Each of its 250 batches takes 1 ms to read."""

    place, is_live = 'nowhere', True

    def __init__(self):
        self.log, self.now_s = InMemoryLog(), 0.0
        for _ in range(250):
            self.log.write(producer_id=1, epoch=0)
        self.log.end(1, 0)

    def topics(self):
        return {'orders': TopicInfo('orders', bytes(16), False, (PartitionInfo('orders', 0, 1),))}

    def unreadable(self, partitions):
        return {}

    def partition_offsets_of(self, partitions):
        return {at: PartitionOffsets(0, self.log.end_offset, self.log.end_offset) for at in partitions}

    def batch_headers(self, topic, partition, start_offset, end_offset):
        for header, batch in self.log.batches(start_offset, end_offset):
            self.now_s += 0.001
            yield header, batch


@pytest.mark.parametrize(('limit_ms', 'expected', 'reached'), [
    (1, (0, 0), 0), (50, (0, 100), 100), (150, (0, 200), 200), (10_000, (250, 0), 251), (None, (250, 0), 251)])
def test_a_count_that_ran_out_of_time_says_how_far_it_came(monkeypatch, limit_ms, expected, reached):
    """The marker was not reached in time, so the records are undecided."""
    view, out = Batches(), io.StringIO()
    monkeypatch.setattr(topics.time, 'monotonic', lambda: view.now_s)
    options = {'topic': None, 'topic_id': None, 'exclude_internal': False, 'if_exists': False, 'list': False,
               'timeout_ms': limit_ms}
    with pytest.raises(ToolError, match='1 of 1 partitions') if reached < 251 else nullcontext():
        topics.count(view, Output(True, out), options)
    row = json.loads(out.getvalue())
    assert ((row['readable'], row['undecided']), row['counted_to_offset']) == (expected, reached)


# ---- get-offsets

@pytest.mark.parametrize(('time', 'expected'), [
    ('latest', [0, 14, 0]), ('-1', [0, 14, 0]), ('earliest', [0, 0, 0]), ('-2', [0, 0, 0]), ('-4', [0, 0, 0]),
    ('last-stable', [0, 11, 0]), ('latest-tiered', []), ('-6', []), (str(START_MS + 35), [None, 4]),
    (str(START_MS * 2), [])])
def test_a_broker_and_its_directory_name_the_same_offsets(written, time, expected):
    found = both(written, 'get-offsets', '--topic', 'orders', '--time', time)
    assert found == ''.join(f'orders:{partition}:{offset}\n' for partition, offset in enumerate(expected)
                            if offset is not None)


def test_the_newest_record_is_found_with_its_time(written):
    """It is the marker: a client chose the times of the records, and the broker chose that of the marker."""
    row = json.loads(both(written, 'get-offsets', '--topic', 'orders', '--time', 'max-timestamp', '--json'))
    assert (row['partition'], row['offset']) == (1, 10)
    assert row['timestamp_ms'] > START_MS + 100


def test_all_ends_of_a_partition_are_shown_together(written):
    assert both(written, 'get-offsets', '--topic-partitions', 'orders:1', '--all') == 'orders:1:0:11:14\n'


def test_records_below_the_start_of_the_log_are_not_found_in_a_directory(written, tmp_path):
    """The start is inside a batch."""
    (tmp_path / 'scratch-0').symlink_to(os.path.join(written.directory, 'scratch-0'))
    (tmp_path / 'log-start-offset-checkpoint').write_text('0\n1\nscratch 0 3\n')
    for time, expected in (('0', 'scratch:0:3\n'), ('earliest', 'scratch:0:3\n'), (str(2 * START_MS), '')):
        assert run_in_process('get-offsets', '--data-dir', tmp_path, '--time', time).stdout == expected


@pytest.mark.parametrize(('rules', 'expected'), [
    ('orders:1-', 'orders:1 orders:2'), ('orders:1-2', 'orders:1'), ('orders:-2,pay.*', 'orders:0 orders:1 payments:0'),
    (':1', 'orders:1 scratch:1'), ('orders:', 'orders:0 orders:1 orders:2')])
def test_rules_select_partitions_as_in_kafka(written, rules, expected):
    found = both(written, 'get-offsets', '--exclude-internal-topics', '--topic-partitions', rules)
    assert [line.rpartition(':')[0] for line in found.splitlines()] == expected.split()


# ---- delete-records

def test_a_dry_run_deletes_nothing(written):
    done = live(written, 'delete-records', '--topic-partition', 'scratch:1:3', '--dry-run', '--json')
    assert json.loads(done.stdout) == {'topic': 'scratch', 'partition': 1, 'log_start_offset': 0,
                                       'new_log_start_offset': 3, 'offsets_deleted': 3}
    assert live(written, 'get-offsets', '--topic', 'scratch', '--time', 'earliest').stdout == (
        'scratch:0:0\nscratch:1:0\n')


def test_records_before_the_offsets_of_a_file_are_deleted(written, tmp_path):
    (tmp_path / 'offsets.json').write_text(json.dumps({'partitions': [
        {'topic': 'scratch', 'partition': 0, 'offset': 2}, {'topic': 'scratch', 'partition': 1, 'offset': -1}]}))
    done = live(written, 'delete-records', '--offset-json-file', tmp_path / 'offsets.json')
    assert done.stdout == ('Executing records delete operation\nRecords delete operation completed:\n'
                           'partition: scratch-0\tlow_watermark: 2\npartition: scratch-1\tlow_watermark: 5\n')
    assert live(written, 'get-offsets', '--topic', 'scratch', '--time', '0').stdout == 'scratch:0:2\n'
    assert live(written, 'delete-records', '--topic-partition', 'scratch-0:latest').stdout.endswith(
        'low_watermark: 5\n')


@pytest.mark.parametrize(('text', 'words'), [
    ('{', 'found no JSON'), ('[]', 'found no list of partitions'), ('{"partitions": [], "version": 2}', 'version 2'),
    ('{"partitions": [{"topic": "a", "partition": true, "offset": 0}]}', 'expected a topic, a partition'),
    ('{"partitions": [{"topic": "a", "partition": 0, "offset": 1}, {"topic": "a", "partition": 0, "offset": 2}]}',
     'found a-0 twice'), (b'\xff\x00', 'found no JSON')])
def test_a_file_that_is_wrong_is_named_with_what_was_expected(tmp_path, text, words):
    path = tmp_path / 'offsets.json'
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = run_in_process('delete-records', '--bootstrap-server', '127.0.0.1:1', '--offset-json-file', path)
    assert (done.returncode, done.stderr.count('\n')) == (1, 1)
    assert str(path) in done.stderr and words in done.stderr

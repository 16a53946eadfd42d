"""kbroker-consume: the output of records from a broker and from a directory, and the ends of the command."""
import json
import signal
import subprocess
from contextlib import suppress
from types import SimpleNamespace

import pytest
from support.runner.command_runner import ROOT, command_line, run_command, run_until_idle

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.admin import Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.consumed import DeliveredRecords
from kbroker.client.consumer import Consumer
from kbroker.client.producer import Producer
from kbroker.client.stream_settings import ProducerSettings
from kbroker.record.batch import encode_batch
from kbroker.record.records import decode_records
from kbroker_tools.base.command import ToolError
from kbroker_tools.console.message_printer import Printer
from kbroker_tools.console.message_source import BrokerSource, include_pattern
from kbroker_tools.console.message_text import SWITCHES, make_formatter

LIMIT_S = 120
WHEN_MS = 1_700_000_000_000
ALL_SWITCHES = {name: 'true' for name in SWITCHES}


def shown(properties, key=b'k', value=b'v', headers=(('a', b'1'), ('b', None)), as_json=False, **options):
    batch = encode_batch([(WHEN_MS, key, value, list(headers))], base_offset=7, partition_leader_epoch=3, **options)
    consumed = DeliveredRecords('t', 2, decode_records(batch))
    return make_formatter('default', properties, as_json).text(consumed, consumed.records[0])


@pytest.mark.parametrize(('properties', 'text'), [
    ({}, b'v\n'),
    ({'print.key': 'true'}, b'k\tv\n'),
    ({'print.value': 'false'}, b''),
    ({'print.key': 'true', 'print.value': 'false'}, b'k\n'),
    ({'print.key': ' TRUE', 'key.separator': '=', 'line.separator': ';'}, b'k=v;'),
    (ALL_SWITCHES, b'CreateTime:1700000000000\tPartition:2\tOffset:7\tDelivery:NOT_PRESENT\tEpoch:NOT_PRESENT\t'
                   b'a:1,b:null\tk\tv\n'),
    ({'print.headers': 'true', 'headers.separator': '|', 'null.literal': 'N'}, b'a:1|b:N\tv\n'),
])
def test_a_record_is_shown_as_the_default_formatter_shows_it(properties, text):
    assert shown(properties) == text


def test_what_is_not_there_is_shown_in_words():
    assert shown({'print.key': 'true', 'print.headers': 'true', 'print.epoch': 'true'}, key=None, value=None,
                 headers=()) == b'Epoch:NOT_PRESENT\tNO_HEADERS\tnull\tnull\n'


def test_a_header_name_that_is_not_utf8_is_shown_as_by_kafkas_tool_and_is_valid_json():
    """Java's decoder replaces the longest valid beginning of a character by one U+FFFD."""
    headers = [(name.decode('utf-8', 'surrogateescape'), b'\xff') for name in (b'\xff\xe2\x82', b'\xed\xa0\x80')]
    assert shown({'print.headers': 'true'}, headers=headers) == (
        '\ufffd\ufffd:'.encode() + b'\xff,' + '\ufffd\ufffd\ufffd:'.encode() + b'\xff\tv\n')
    row = json.loads(shown({}, headers=headers, as_json=True).decode())
    assert [name for name, _ in row['headers']] == ['\ufffd\ufffd', '\ufffd\ufffd\ufffd']


def test_json_of_a_record_has_no_character_that_a_terminal_obeys():
    text = shown({}, value='a\x7f\x9b\u202e'.encode(), as_json=True).decode()
    assert text[:-1].isprintable() and json.loads(text)['value'] == 'a\x7f\x9b\u202e'


def test_the_time_of_the_broker_is_named():
    assert shown({'print.timestamp': 'true'}, log_append_time_ms=WHEN_MS + 5) == b'LogAppendTime:1700000000005\tv\n'


def test_json_keeps_every_byte():
    row = json.loads(shown({}, key=None, value=b'\xff', headers=[('h', 'é'.encode())], as_json=True))
    assert row == {'topic': 't', 'partition': 2, 'offset': 7, 'timestamp_ms': WHEN_MS, 'timestamp_type': 'CreateTime',
                   'leader_epoch': 3, 'key': None, 'value': {'base64': '/w=='}, 'headers': [['h', 'é']]}


@pytest.mark.parametrize(('formatter', 'properties', 'message'), [
    ('fancy', {}, '--formatter: found fancy, expected one of default, '),
    ('default', {'print.keys': 'true'}, '--formatter-property: found print.keys, expected one of ')])
def test_a_formatter_that_is_not_known_is_refused(formatter, properties, message):
    with pytest.raises(ToolError) as raised:
        make_formatter(formatter, properties, as_json=False)
    assert message in str(raised.value)


def test_include_is_a_regular_expression_with_commas():
    assert [name for name in ('a', 'b1', 'ab') if include_pattern('a,b.').fullmatch(name)] == ['a', 'b1']
    with pytest.raises(ToolError, match="--include: '\\(' is not a regular expression"):
        include_pattern('(')


# ---- the command

@pytest.fixture(scope='module')
def filled(shared_broker):
    """Return a broker with two topics. `plain` has 20 records in two partitions. `mixed` has records of four
    transactions: committed, aborted, committed and open."""
    cluster = Cluster(ClientConfig.load(shared_broker.address))
    Admin(cluster).create_topics([NewTopic('plain', 2), NewTopic('mixed', 1)])
    producer = Producer(cluster, ProducerSettings(batch_size_bytes=0))
    for number in range(20):
        producer.send('plain', b'%d' % number, partition=number // 10)
    producer.flush()
    for number, ending in enumerate(['commit_transaction', 'abort_transaction', 'commit_transaction', 'flush']):
        producer = Producer(cluster, ProducerSettings(transactional_id=f'mixed-{number == 3}'))
        producer.init_transactions()
        producer.begin_transaction()
        producer.send('mixed', b'%d' % number, b'k')
        producer.flush()
        getattr(producer, ending)()
    cluster.close()
    return shared_broker


def consume(broker, *options, timeout=LIMIT_S):
    return run_command('consume', '--bootstrap-server', broker.address, *options, timeout=timeout)


def total(count):
    return f'Processed a total of {count} messages'


@pytest.mark.parametrize(('options', 'numbers'), [
    (['--topic', 'plain', '--from-beginning', '--max-messages', '20'], range(20)),
    (['--include', 'pl.*', '--from-beginning', '--max-messages', '20'], range(20)),
    (['--topic', 'plain', '--partition', '1', '--offset', '7', '--max-messages', '3'], range(17, 20)),
    (['--topic', 'plain', '--partition', '0', '--offset', 'Earliest', '--max-messages', '3'], range(3)),
    (['--topic', 'plain', '--partition', '0', '--timeout-ms', '200'], ()),
    (['--topic', 'plain', '--max-messages', '0'], ()),
])
def test_the_options_say_where_to_begin_and_to_end(filled, options, numbers):
    done = consume(filled, *options)
    assert done.returncode == 0
    assert sorted(map(int, done.stdout.split())) == list(numbers)
    assert done.stderr.splitlines()[-1] == total(len(numbers))


def test_only_what_is_committed_is_shown_if_so_wanted(filled):
    options = ['--topic', 'mixed', '--from-beginning']
    assert consume(filled, *options, '--max-messages', '4').stdout == '0\n1\n2\n3\n'
    committed = '0\n2\n'
    assert run_until_idle(lambda ms: consume(filled, *options, '--isolation-level', 'read_committed', '--timeout-ms',
                                             ms), committed.__eq__).stdout == committed


def test_a_group_commits_what_was_shown_and_nothing_else(filled):
    options = ['--topic', 'plain', '--group', 'tools', '--from-beginning']
    first = consume(filled, *options, '--max-messages', '7')
    second = consume(filled, *options, '--max-messages', '13')
    assert len(first.stdout.split()) == 7
    assert sorted(map(int, (first.stdout + second.stdout).split())) == list(range(20))
    assert consume(filled, *options, '--timeout-ms', '1500').stdout == ''


def test_json_rows(filled):
    done = consume(filled, '--topic', 'mixed', '--from-beginning', '--max-messages', '1', '--json')
    row = json.loads(done.stdout)
    assert (row['topic'], row['offset'], row['key'], row['value'], row['headers']) == ('mixed', 0, 'k', '0', [])


@pytest.mark.parametrize('formatter', ['transaction', 'org.apache.kafka.tools.consumer.TransactionLogMessageFormatter'])
def test_rows_of_the_internal_topics_are_shown_as_kafkas_json(filled, formatter):
    def ids_in(text):
        return {json.loads(line)['key']['data']['transactionalId'] for line in text.splitlines()}

    expected = {'mixed-False', 'mixed-True'}
    done = run_until_idle(
        lambda ms: consume(filled, '--topic', '__transaction_state', '--from-beginning', '--timeout-ms', ms,
                           '--formatter', formatter), lambda text: ids_in(text) == expected)
    assert ids_in(done.stdout) == expected


def test_a_reader_that_goes_away_ends_it_quietly(filled):
    with subprocess.Popen(command_line('consume', '--bootstrap-server', filled.address, '--topic', 'plain',
                                       '--from-beginning'), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          bufsize=0) as process:
        assert process.stdout.read(2)
        process.stdout.close()
        cluster = Cluster(ClientConfig.load(filled.address))
        producer = Producer(cluster)
        producer.send('plain', b'more', partition=0)
        producer.flush()
        assert process.wait(LIMIT_S) == 141
        assert process.stderr.read().decode().startswith('Processed a total of ')
        Admin(cluster).delete_records({('plain', 0): 0})
        cluster.close()


def test_ctrl_c_ends_it_with_the_count(filled):
    with subprocess.Popen(command_line('consume', '--bootstrap-server', filled.address, '--topic', 'mixed',
                                       '--from-beginning'), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          ) as process:
        assert process.stdout.read(8) == b'0\n1\n2\n3\n'
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert stderr.decode().splitlines()[0] == total(4)


def test_ctrl_c_commits_what_was_shown_and_leaves_the_group(filled):
    with subprocess.Popen(command_line('consume', '--bootstrap-server', filled.address, '--topic', 'mixed',
                                       '--from-beginning', '--group', 'leaves'), cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        assert process.stdout.read(8) == b'0\n1\n2\n3\n'
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    cluster = Cluster(ClientConfig.load(filled.address))
    admin = Admin(cluster)
    assert admin.describe_classic_groups(['leaves'])['leaves'].members == ()
    assert admin.list_group_offsets('leaves')['mixed', 0].offset >= 6
    cluster.close()


def test_ctrl_c_before_fetched_records_are_shown_leaves_them_to_the_group():
    class Fetched(SimpleNamespace):
        topic, partition = 't', 0

        def records(self):
            if self.offsets[0] == 5:
                raise KeyboardInterrupt
            return []

    positions = {('t', 0): 9}
    consumer = SimpleNamespace(poll=lambda timeout_ms: [Fetched(offsets=[3, 4]), Fetched(offsets=[5])], offline={},
                               assignment=positions.keys(),
                               seek=lambda topic, partition, offset: positions.update({(topic, partition): offset}))
    with pytest.raises(KeyboardInterrupt):
        next(BrokerSource(None, consumer, SimpleNamespace(timeout_ms=None)).batches())
    assert positions == {('t', 0): 3}


def test_a_second_ctrl_c_does_not_wait_for_a_coordinator_that_is_gone(broker):
    produced = run_command('produce', '--bootstrap-server', broker.address, '--topic', 'left', stdin='one\n')
    assert produced.returncode == 0
    with subprocess.Popen(command_line('consume', '--bootstrap-server', broker.address, '--topic', 'left', '--group',
                                       'left', '--from-beginning'), cwd=ROOT, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b'one\n'
        broker.kill9()
        for _ in range(LIMIT_S):        # a signal that is not yet handled swallows the next one
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
                break
        assert process.stderr.read().decode().splitlines()[0] == total(1)
    assert process.returncode in (130, -signal.SIGINT)


def test_an_end_of_the_records_is_followed_by_a_last_commit_whose_failure_is_reported(capsys):
    def fail():
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, 'OffsetCommit of the group')

    source = SimpleNamespace(batches=lambda: iter(()), close=fail)
    with pytest.raises(KafkaError, match='OffsetCommit of the group'):
        Printer(None, None).print_and_close(source)
    assert capsys.readouterr().err == total(0) + '\n'


@pytest.mark.parametrize(('options', 'code', 'message'), [
    (['--topic', 'nowhere'], 1, 'topic nowhere does not exist'),
    (['--topic', 'plain', '--partition', '9'], 1, 'plain-9 does not exist: the topic has 2 partitions'),
    ([], 2, 'Exactly one of --include/--topic is required.'),
    (['--topic', 'plain', '--include', 'x'], 2, 'Exactly one of --include/--topic is required.'),
    (['--include', 'plain', '--partition', '0'], 2, 'The topic is required when partition is specified.'),
    (['--topic', 'plain', '--offset', '3'], 2, 'The partition is required when offset is specified.'),
    (['--topic', 'plain', '--partition', '0', '--offset', '-0'], 2, "The provided offset value '-0' is incorrect."),
    (['--topic', 'plain', '--partition', '0', '--offset', '1', '--from-beginning'], 2, 'cannot be specified together.'),
    (['--topic', 'plain', '--partition', '0', '--group', 'g'], 2, 'Options group and partition cannot be specified'),
    (['--topic', 'plain', '--isolation-level', 'serializable'], 2, 'read_committed'),
    (['--topic', 'plain', '--command-property', 'isolation.level=none'], 1, "isolation.level: found 'none', expected "),
    (['--topic', 'plain', '--formatter', 'x'], 1, '--formatter: found x'),
])
def test_wrong_options_are_reported_in_a_line(filled, options, code, message):
    done = consume(filled, *options)
    assert done.returncode == code
    assert any(message in line for line in done.stderr.splitlines())


def test_a_directory_shows_what_a_broker_shows(start_broker):
    broker = start_broker()
    cluster = Cluster(ClientConfig.load(broker.address))
    Admin(cluster).create_topics([NewTopic('t', 2)])
    producer = Producer(cluster, ProducerSettings(transactional_id='x'))
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        producer.send('t', b'%d' % number, partition=number // 3)
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.begin_transaction()
    producer.send('t', b'open', partition=1)
    producer.flush()
    broker.kill9()
    cluster.close()

    def offline(*options):
        done = run_command('consume', '--data-dir', broker.directory, '--topic', 't', *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()
    assert offline() == ['0', '1', '2', '3', '4', '5', 'open']
    assert offline('--isolation-level', 'read_committed') == ['0', '2', '4']
    assert offline('--isolation-level', 'read_committed', '--partition', '0', '--offset', '1') == ['2']
    assert offline('--partition', '1', '--offset', 'latest') == []
    assert offline('--max-messages', '2') == ['0', '1']
    group = run_command('consume', '--data-dir', broker.directory, '--topic', 't', '--group', 'g')
    assert (group.returncode, group.stderr.splitlines()[-1]) == (
        2, 'Error: --group needs --bootstrap-server: a directory has no members')


def test_a_command_ends_at_its_time_beside_a_member_that_does_not_poll(broker, cluster):
    """The rebalance of the group waits for the busy member, for up to its max.poll.interval.ms."""
    Admin(cluster).create_topics([NewTopic('shared', 1)])
    with Consumer(broker.address, group_id='g', topics=['shared']) as busy:
        while not busy.assignment:
            busy.poll(100)
        done = run_command('consume', '--bootstrap-server', broker.address, '--topic', 'shared', '--group', 'g',
                           '--timeout-ms', '500', timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, '', 'Processed a total of 0 messages\n')

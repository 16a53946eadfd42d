"""kbroker-produce: the conversion of lines to records, and the ends of the command."""
import os
import pty
import signal
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runner.command_runner import ROOT, command_line, run_command

from kbroker.client.admin import LATEST, Admin, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.consumer import Consumer
from kbroker.client.stream_settings import ConsumerSettings
from kbroker_tools.base.command import ToolError
from kbroker_tools.console.line_reader import LineError, LineReader, LineSplitter, parse_properties

LIMIT_S = 120


def read(line, **properties):
    return LineReader({name.replace('_', '.'): value for name, value in properties.items()}).read(line, 7)


# ---- lines as records

@pytest.mark.parametrize(('line', 'properties', 'record'), [
    (b'v', {}, (None, b'v', [])),
    (b'k\tv', {}, (None, b'k\tv', [])),
    (b'k\tv\tw', {'parse_key': 'true'}, (b'k', b'v\tw', [])),
    (b'\t', {'parse_key': 'TRUE '}, (b'', b'', [])),
    (b'k::v', {'parse_key': 'true', 'key_separator': '::'}, (b'k', b'v', [])),
    (b'\xff\tv\xfe', {'parse_key': 'true'}, (b'\xff', b'v\xfe', [])),
    (b'a:1,b:2\tv', {'parse_headers': 'true'}, (None, b'v', [('a', b'1'), ('b', b'2')])),
    (b'a:1:2\tk\tv', {'parse_headers': 'true', 'parse_key': 'true'}, (b'k', b'v', [('a', b'1:2')])),
    (b'a=1|b=2 v', {'parse_headers': 'true', 'headers_delimiter': ' ', 'headers_separator': r'\|',
                    'headers_key_separator': '='}, (None, b'v', [('a', b'1'), ('b', b'2')])),
    (b'a:,,b:\tv', {'parse_headers': 'true', 'ignore_error': 'true'},
     (None, b'v', [('a', b''), ('', None), ('b', b'')])),
    (b'a:1,,\tv', {'parse_headers': 'true'}, (None, b'v', [('a', b'1')])),
    (b'N\tN', {'parse_key': 'true', 'null_marker': 'N'}, (None, None, [])),
    (b'N\ta:N\tv', {'parse_key': 'true', 'null_marker': 'N'}, (None, b'a:N\tv', [])),
    (b'a:N\tv', {'parse_headers': 'true', 'null_marker': 'N'}, (None, b'v', [('a', None)])),
    (b'N\tv', {'parse_headers': 'true', 'null_marker': 'N'}, (None, b'v', [])),
    (b'v', {'parse_key': 'true', 'ignore_error': 'true'}, (None, b'v', [])),
    (b'a\tv', {'parse_headers': 'true', 'ignore_error': 'true'}, (None, b'v', [('a', None)])),
])
def test_a_line_is_read_by_kafkas_rules(line, properties, record):
    assert read(line, **properties) == record


@pytest.mark.parametrize(('line', 'properties', 'message'), [
    (b'v', {'parse_key': 'true'}, "No key separator found on line number 7: 'v'"),
    (b'\xff', {'parse_headers': 'true'}, "No headers delimiter found on line number 7: '\\xff'"),
    (b'a\tv', {'parse_headers': 'true'}, "No header key separator found in pair 'a' on line number 7"),
    (b'N:1\tv', {'parse_headers': 'true', 'null_marker': 'N'}, "Header keys should not be equal to the null marker 'N' "
                                                              "as they can't be null (line number 7)"),
    (b'\xff:1\tv', {'parse_headers': 'true'}, "A header key has to be UTF-8: found '\\xff' on line number 7"),
])
def test_a_line_in_error_is_named_by_its_number(line, properties, message):
    with pytest.raises(LineError) as raised:
        read(line, **properties)
    assert str(raised.value) == message


@pytest.mark.parametrize(('properties', 'message'), [
    ({'headers.delimiter': ','}, 'headers.delimiter and headers.separator may not be equal'),
    ({'headers.key.separator': '\t'}, 'headers.delimiter and headers.key.separator may not be equal'),
    ({'headers.key.separator': ','}, 'headers.separator and headers.key.separator may not be equal'),
    ({'null.marker': '\t'}, 'null.marker and key.separator may not be equal'),
    ({'null.marker': ','}, 'null.marker and headers.separator may not be equal'),
    ({'headers.separator': '('}, 'headers.separator must be a regular expression'),
    ({'parse.keys': 'true'}, 'found parse.keys, expected one of parse.key, '),
])
def test_properties_that_contradict_each_other_are_refused(properties, message):
    with pytest.raises(ToolError) as raised:
        LineReader(properties)
    assert message in str(raised.value)


def test_properties_are_names_and_values():
    assert parse_properties('--p', ('a=b=c', 'd=', 'e')) == {'a': 'b=c', 'd': '', 'e': ''}
    with pytest.raises(ToolError, match='--p: found'):
        parse_properties('--p', ('=x',))


@given(st.binary(max_size=60).map(lambda data: data.translate(bytes([10, 13, 65, 66] * 64))),
       st.lists(st.integers(1, 10), max_size=12))
def test_lines_do_not_depend_on_how_the_input_arrives(data, sizes):
    splitter, lines, rest = LineSplitter(), [], data
    for size in sizes:
        lines += splitter.feed(rest[:size])
        rest = rest[size:]
    lines += splitter.feed(rest) if rest else []
    assert [*lines, *splitter.finish()] == data.splitlines()


# ---- the command

def produce(broker, topic, *options, stdin=b''):
    return subprocess.run(command_line('produce', '--bootstrap-server', broker.address, '--topic', topic, *options),
                          input=stdin, capture_output=True, timeout=LIMIT_S, check=False, cwd=ROOT)


def records(broker, topic, isolation_level='read_committed'):
    """Return (key, value, headers) of each record up to the high watermark.

    The function does not stop at the last stable offset: a broker answers a commit before it writes the markers, so
    this offset may still be below the last record.
    """
    cluster = Cluster(ClientConfig.load(broker.address))
    partitions = [(topic, partition) for partition in cluster.topics([topic])[topic].partitions]
    ends = Admin(cluster).list_offsets(dict.fromkeys(partitions, LATEST))
    consumer = Consumer(cluster, ConsumerSettings(isolation_level=isolation_level, auto_offset_reset='earliest'))
    consumer.assign(partitions)
    found = []
    while any((consumer.position(*at) or 0) < end.offset for at, end in ends.items()):
        found += [(record.key, record.value, record.headers)
                  for batch in consumer.poll(100) for record in batch.records()]
    cluster.close()
    return found


def test_lines_of_any_bytes_become_records(shared_broker):
    done = produce(shared_broker, 'bytes', '--compression-codec', '--reader-property', 'parse.key=true',
                   '--reader-property', 'null.marker=-', stdin=b'k\t\xff\xfe\r\n\x80\t-\n-\tlast')
    assert (done.returncode, done.stderr) == (0, b'')
    assert records(shared_broker, 'bytes') == [(b'k', b'\xff\xfe', []), (b'\x80', None, []), (None, b'last', [])]


def test_lines_are_committed_in_pieces_and_the_rest_at_the_end(shared_broker):
    done = produce(shared_broker, 'pieces', '--transactional-id', 'pieces', '--commit-every', '2',
                   stdin=b'1\n2\n3\n4\n5\n')
    assert (done.returncode, done.stderr) == (0, b'')
    assert [value for _, value, _ in records(shared_broker, 'pieces')] == [b'1', b'2', b'3', b'4', b'5']


def test_a_line_in_error_aborts_the_open_transaction_and_is_named(shared_broker):
    done = produce(shared_broker, 'abort', '--transactional-id', 'abort', '--commit-every', '2', '--sync',
                   '--reader-property', 'parse.key=true', stdin=b'k\t1\nk\t2\nk\t3\nbad\n')
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        'The open transaction of abort was aborted.', "kbroker-produce: No key separator found on line number 4: 'bad'"]
    assert [value for _, value, _ in records(shared_broker, 'abort')] == [b'1', b'2']
    assert [value for _, value, _ in records(shared_broker, 'abort', 'read_uncommitted')] == [b'1', b'2', b'3']


def test_without_a_transaction_what_was_read_before_an_error_is_written(shared_broker):
    done = produce(shared_broker, 'before', '--property', 'parse.key=true', stdin=b'k\t1\nbad\n')
    assert done.returncode == 1
    assert records(shared_broker, 'before') == [(b'k', b'1', [])]


def test_ctrl_c_aborts_the_open_transaction(shared_broker):
    process = subprocess.Popen(command_line('produce', '--bootstrap-server', shared_broker.address, '--topic', 'ctrl-c',
                                            '--transactional-id', 'ctrl-c', '--timeout', '0'), cwd=ROOT,
                               stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b'line\n')
    process.stdin.flush()
    cluster = Cluster(ClientConfig.load(shared_broker.address))
    consumer = None
    while consumer is None:
        if 'ctrl-c' in cluster.topics():
            consumer = Consumer(cluster, ConsumerSettings(auto_offset_reset='earliest'))
            consumer.assign([('ctrl-c', 0)])
    while not consumer.poll(1000):
        pass
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert stderr.strip() == b'The open transaction of ctrl-c was aborted.'
    assert records(shared_broker, 'ctrl-c') == []
    cluster.close()


def test_a_failed_abort_is_reported_in_addition_to_the_error_that_ended_the_command(start_broker):
    """The failed abort once was not reported, and the transaction blocked consumers until its timeout."""
    broker = start_broker()
    process = subprocess.Popen(command_line('produce', '--bootstrap-server', broker.address, '--topic', 'gone',
                                            '--transactional-id', 'gone', '--timeout', '0', '--max-block-ms', '500',
                                            '--command-property', 'transaction.timeout.ms=30000'), cwd=ROOT,
                               stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b'line\n')
    process.stdin.flush()
    while not written(broker, 'gone'):
        pass
    broker.kill9()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    last_line, = stderr.decode().splitlines()
    assert last_line.startswith('The open transaction of gone could not be aborted (')
    assert last_line.endswith('it stays open, and holds up read_committed consumers, until its timeout of 30000 ms.')


def written(broker, topic):
    cluster = Cluster(ClientConfig.load(broker.address))
    try:
        return topic in cluster.topics() and Admin(cluster).list_offsets({(topic, 0): LATEST})[topic, 0].offset
    finally:
        cluster.close()


def test_a_line_that_waits_for_others_is_sent_while_there_is_no_input(shared_broker):
    process = subprocess.Popen(command_line('produce', '--bootstrap-server', shared_broker.address, '--topic', 'slow',
                                            '--timeout', '50'), cwd=ROOT, stdin=subprocess.PIPE)
    process.stdin.write(b'line\n')
    process.stdin.flush()
    cluster = Cluster(ClientConfig.load(shared_broker.address))
    while 'slow' not in cluster.topics():
        pass
    while not records(shared_broker, 'slow'):
        pass
    process.stdin.close()
    assert process.wait(LIMIT_S) == 0
    cluster.close()


def test_a_record_that_the_broker_refuses_is_reported_by_its_line(shared_broker):
    cluster = Cluster(ClientConfig.load(shared_broker.address))
    Admin(cluster).create_topics([NewTopic('compacted', 1, configs={'cleanup.policy': 'compact'})])
    cluster.close()
    done = produce(shared_broker, 'compacted', '--reader-property', 'parse.key=true', '--reader-property',
                   'null.marker=-', '--batch-size', '0', stdin=b'k\t1\n-\t2\nk\t3\n')
    assert done.returncode == 1
    lines = done.stderr.decode().splitlines()
    assert lines[0].startswith('line 2 was not written: ')
    assert lines[1] == 'kbroker-produce: 1 of 3 lines were not written'
    assert [value for _, value, _ in records(shared_broker, 'compacted')] == [b'1', b'3']


def test_a_line_that_is_too_large_is_reported_and_the_others_are_written(shared_broker):
    done = produce(shared_broker, 'large', stdin=b'1\n' + b'x' * (5 << 20) + b'\n3\n')
    assert done.returncode == 1
    lines = done.stderr.decode().splitlines()
    assert lines[0].startswith('line 2 was not written: ') and lines[0].endswith('max.request.size is 1048576')
    assert lines[1:] == ['kbroker-produce: 1 of 3 lines were not written']
    assert [value for _, value, _ in records(shared_broker, 'large')] == [b'1', b'3']


def test_a_line_that_is_too_large_ends_a_transaction(shared_broker):
    done = produce(shared_broker, 'large-tx', '--transactional-id', 'large', stdin=b'1\n' + b'x' * (5 << 20) + b'\n')
    assert done.returncode == 1
    aborted, last_line = done.stderr.decode().splitlines()
    assert aborted == 'The open transaction of large was aborted.'
    assert last_line.startswith('kbroker-produce: line 2: ')


def test_on_a_terminal_the_lines_are_counted(shared_broker):
    master, slave = pty.openpty()
    done = subprocess.run(command_line('produce', '--bootstrap-server', shared_broker.address, '--topic', 'counted',
                                       '--transactional-id', 'counted', '--commit-every', '2'), cwd=ROOT,
                          input=b'1\n2\n3\n', stderr=slave, timeout=LIMIT_S, check=False)
    os.close(slave)
    assert done.returncode == 0
    assert os.read(master, 1000).strip() == b'3 lines written to counted in 2 transactions'
    os.close(master)


@pytest.mark.parametrize(('options', 'code', 'message'), [
    (['--partition', '9'], 1, 'usage-9 does not exist: the topic has'),
    (['--acks', '1', '--transactional-id', 'x'], 1, 'transactional.id needs acks=all'),
    (['--acks', '2'], 1, "acks: found '2', expected all or -1 or 1 or 0"),
    (['--commit-every', '2'], 2, '--commit-every needs --transactional-id'),
    (['--compression-codec', 'rar'], 2, 'rar'),
    (['--reader-property', 'null.marker=,'], 1, 'null.marker and headers.separator may not be equal'),
    (['--command-property', 'linger.ms=soon'], 1, "linger.ms: found 'soon'"),
])
def test_wrong_options_are_reported_in_a_line(shared_broker, options, code, message):
    done = run_command('produce', '--bootstrap-server', shared_broker.address, '--topic', 'usage', *options,
                       stdin='x\n')
    assert done.returncode == code
    assert message in done.stderr.splitlines()[-1]


def test_a_topic_that_is_not_created_is_reported_in_a_line(start_broker):
    broker = start_broker({'auto.create.topics.enable': 'false'})
    done = run_command('produce', '--bootstrap-server', broker.address, '--topic', 'nowhere', stdin='x\n')
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert 'topic nowhere' in done.stderr and 'does not exist' in done.stderr


def test_a_broker_that_is_not_there_is_reported_in_a_line():
    done = run_command('produce', '--bootstrap-server', '127.0.0.1:1', '--topic', 't', stdin='x\n')
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert '127.0.0.1:1 cannot be reached' in done.stderr

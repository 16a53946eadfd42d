"""kbroker-txn-state on directories and on a live broker.

tests/jvm/test_formatters.py compares its JSON with Apache Kafka's console consumer.
"""
import contextlib
import io
import json
import pathlib
import shutil
import signal
import subprocess

import confluent_kafka
import pytest
from support.runner.command_runner import ROOT, command_line, run_command
from support.runner.free_ports import free_port

from kbroker.base.clock import ManualClock
from kbroker.base.errors import CorruptLogError
from kbroker.log.append import Origin
from kbroker.log.fs import FileSystem
from kbroker.log.log import Log
from kbroker.protocol.messages import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
)
from kbroker.protocol.rows import encode_row_key, encode_row_value
from kbroker.record.batch import encode_batch, iter_batches
from kbroker.record.control import encode_end_txn_marker
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig
from kbroker_tools.base.render import Output
from kbroker_tools.rows.coordinator_tables import TABLES, show
from kbroker_tools.rows.coordinator_tail import CoordinatorTail
from kbroker_tools.rows.decoders import formatter

T = 1_700_000_000_000
PARTITIONS = {'tx-a': 0, 'tx-b': 2, 'tx-c': 0}


class Topic:
    """The partitions of an internal topic in a directory. `append` appends rows."""

    def __init__(self, directory, name, partitions=3):
        config = LogConfig(Config({}), {})
        self.logs = [Log(FileSystem(), str(directory / f'{name}-{number}'), name, number, config, ManualClock(T))
                     for number in range(partitions)]

    def append(self, partition, *rows, **options):
        batch = encode_batch([(T, key, value) for key, value in rows], **options)
        self.logs[partition].append_batch(batch, Origin.COORDINATOR, 0)

    def mark(self, partition, producer_id, *, commit):
        marker = encode_end_txn_marker(commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0,
                                       timestamp_ms=T)
        self.logs[partition].append_batch(marker, Origin.COORDINATOR, 0)

    def close(self):
        for log in self.logs:
            log.close()


def transaction(transactional_id, status, updated_ms, **fields):
    partitions = [TransactionLogValue.PartitionsSchema(topic='orders', partition_ids=[0, 1])] if status else None
    value = TransactionLogValue(**{
        'producer_id': 7, 'producer_epoch': 1, 'transaction_timeout_ms': 60_000, 'transaction_status': status,
        'transaction_partitions': partitions, 'transaction_last_update_timestamp_ms': updated_ms,
        'transaction_start_timestamp_ms': updated_ms - 500 if status else -1, **fields})
    return transaction_key(transactional_id), encode_row_value(value, 1)


def transaction_key(transactional_id):
    return encode_row_key(TransactionLogKey(transactional_id=transactional_id))


def offset(group, number, timestamp_ms=T, partition=0):
    return (encode_row_key(OffsetCommitKey(group=group, topic='orders', partition=partition)),
            encode_row_value(OffsetCommitValue(offset=number, metadata='m', commit_timestamp=timestamp_ms), 3))


@pytest.fixture
def data(tmp_path):
    """Return a directory with three transactional ids: one has a completed transaction, one has an open transaction,
    and one was deleted by a tombstone."""
    directory = tmp_path / 'data'
    directory.mkdir()
    topic = Topic(directory, '__transaction_state')
    for transactional_id, status, updated_ms in (('tx-a', 0, T), ('tx-a', 1, T + 1000), ('tx-b', 0, T + 1500),
                                                 ('tx-b', 1, T + 2000), ('tx-a', 4, T + 3000), ('tx-c', 0, T)):
        topic.append(PARTITIONS[transactional_id], transaction(transactional_id, status, updated_ms))
    topic.append(0, (transaction_key('tx-c'), None))
    topic.close()
    return directory


def run(*arguments, **options):
    return run_command('txn-state', *arguments, **options)


def lines(*arguments):
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, '')
    return done.stdout.splitlines()


def statuses(shown):
    return [(row['key']['data']['transactionalId'], row['value'] and row['value']['data']['transactionStatus'])
            for row in map(json.loads, shown)]


# ---- rows

def test_every_row_is_shown_on_a_line_partition_by_partition(data):
    shown = lines('--data-dir', data, '--from-beginning')
    assert statuses(shown) == [('tx-a', 'Empty'), ('tx-a', 'Ongoing'), ('tx-a', 'CompleteCommit'), ('tx-c', 'Empty'),
                               ('tx-c', None), ('tx-b', 'Empty'), ('tx-b', 'Ongoing')]
    assert shown[0] == (
        '{"key":{"type":0,"data":{"transactionalId":"tx-a"}},"value":{"version":1,"data":{"producerId":7,'
        '"producerEpoch":1,"transactionTimeoutMs":60000,"transactionStatus":"Empty","transactionPartitions":null,'
        '"transactionLastUpdateTimestampMs":1700000000000,"transactionStartTimestampMs":-1}}}')


def test_rows_of_one_transactional_id_alone(data):
    assert statuses(lines('--data-dir', data, '--from-beginning', '--transactional-id', 'tx-b')) == [
        ('tx-b', 'Empty'), ('tx-b', 'Ongoing')]
    assert lines('--data-dir', data, '--from-beginning', '--transactional-id', 'nobody') == []


def test_at_most_so_many_rows(data):
    assert statuses(lines('--data-dir', data, '--from-beginning', '--max-messages', '2')) == [
        ('tx-a', 'Empty'), ('tx-a', 'Ongoing')]


def test_the_status_is_a_number_in_the_text_of_4_3(data):
    shown = lines('--data-dir', data, '--from-beginning', '--compat', '4.3', '--transactional-id', 'tx-a')
    assert statuses(shown) == [('tx-a', 0), ('tx-a', 1), ('tx-a', 4)]


def test_json_says_where_each_row_stands(data):
    shown = lines('--data-dir', data, '--from-beginning', '--json', '--transactional-id', 'tx-b')
    assert [(row['partition'], row['offset'], row['timestamp_ms']) for row in map(json.loads, shown)] == [
        (2, 0, T), (2, 1, T)]
    assert json.loads(shown[0])['key'] == {'type': 0, 'data': {'transactionalId': 'tx-b'}}


def test_offsets_and_groups_have_formatters_too(tmp_path):
    topic = Topic(tmp_path, '__consumer_offsets', 1)
    group = (encode_row_key(GroupMetadataKey(group='g')), encode_row_value(GroupMetadataValue(generation=4), 3))
    topic.append(0, offset('g', 5), group)
    topic.close()
    arguments = ('--data-dir', tmp_path, '--from-beginning', '--formatter')
    assert [json.loads(line)['key']['type'] for line in lines(*arguments, 'offsets')] == [1]
    assert [json.loads(line)['key']['type'] for line in lines(*arguments, 'group-metadata')] == [2]


# ---- following

@pytest.fixture
def follow():
    """Yield a function that starts the command and returns its process."""
    started = []

    def start(*arguments):
        process = subprocess.Popen(command_line('txn-state', *arguments), cwd=ROOT, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_following_goes_on_with_rows_that_are_written_later(tmp_path, follow):
    topic = Topic(tmp_path, '__transaction_state')
    topic.append(1, transaction('tx-a', 0, T))
    process = follow('--data-dir', tmp_path, '--from-beginning', '--follow')
    assert statuses([process.stdout.readline()]) == [('tx-a', 'Empty')]
    topic.append(1, transaction('tx-a', 1, T + 1))
    topic.append(2, transaction('tx-b', 0, T + 2))
    assert sorted(statuses([process.stdout.readline(), process.stdout.readline()])) == [
        ('tx-a', 'Ongoing'), ('tx-b', 'Empty')]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (130, '', '')
    topic.close()


def test_without_from_beginning_only_new_rows_are_shown(tmp_path):
    """Kafka's console consumer does the same. The command determines the end of the log before it reads any row."""
    topic = Topic(tmp_path, '__transaction_state', 1)
    topic.append(0, transaction('tx-a', 0, T))
    tail = tail_of(DirectoryPartition(tmp_path))
    tail.seek_to_end()
    topic.append(0, transaction('tx-a', 1, T + 1), transaction('tx-a', 2, T + 2))
    assert [row.record.offset for batch in tail.batches() for row in batch.rows] == [1, 2]
    assert list(tail.batches()) == []
    topic.close()


def test_the_tail_ends_after_so_many_rows(tmp_path, follow):
    topic = Topic(tmp_path, '__transaction_state', 1)
    topic.append(0, transaction('old', 0, T))
    process = follow('--data-dir', tmp_path, '--max-messages', '1', '--transactional-id', 'new')
    while process.poll() is None:           # rows before the position of the tail are skipped
        topic.append(0, transaction('new', 1, T + 1))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    assert statuses(process.stdout.read().splitlines()) == [('new', 'Ongoing')]
    assert process.returncode == 0
    topic.close()


# ---- unreadable rows

class DirectoryPartition:
    """A view with only the method that following needs. Each call returns the batches of one log file from its
    start."""

    is_live = False
    place = 'here'

    def __init__(self, directory):
        self._file = pathlib.Path(directory) / '__transaction_state-0' / f'{0:020d}.log'

    def partition_offsets(self, topic, partition):
        from kbroker_tools.base.view import PartitionOffsets
        end = max(header.last_offset + 1 for header, _ in iter_batches(self._file.read_bytes()))
        return PartitionOffsets(0, end, end)

    def batches(self, topic, partition, start_offset=0, end_offset=None):
        for header, batch in iter_batches(self._file.read_bytes()):
            if header.last_offset >= start_offset:
                yield header, batch


class BrokenPartition(DirectoryPartition):
    def batches(self, topic, partition, start_offset=0, end_offset=None):
        yield from super().batches(topic, partition, start_offset)
        raise CorruptLogError('found 14 bytes, expected a batch')


def tail_of(view, complain=None):
    return CoordinatorTail(view, '__transaction_state', [0], formatter('transaction'), complain or pytest.fail)


def test_a_row_that_cannot_be_read_is_reported_with_its_place_and_the_others_are_shown(tmp_path):
    topic = Topic(tmp_path, '__transaction_state')
    topic.append(1, transaction('tx-a', 0, T), (transaction_key('tx-a'), b'\0\x09'), transaction('tx-a', 1, T))
    topic.close()
    done = run('--data-dir', tmp_path, '--from-beginning')
    assert done.returncode == 1
    assert statuses(done.stdout.splitlines()) == [('tx-a', 'Empty'), ('tx-a', 'Ongoing')]
    assert done.stderr == ('kbroker-txn-state: __transaction_state-1, offset 1: Could not read record at offset 1 due '
                           'to: Found an unknown record version 9 for 0 type\n')
    table = run('--data-dir', tmp_path, '--table')
    assert (table.returncode, table.stderr) == (1, done.stderr)
    assert 'Ongoing' in table.stdout


def test_a_batch_that_cannot_be_decompressed_is_reported_and_skipped(tmp_path):
    topic = Topic(tmp_path, '__transaction_state', 1)
    topic.append(0, transaction('tx-a', 0, T))
    topic.append(0, transaction('tx-a', 1, T), compression=1)
    topic.append(0, transaction('tx-a', 4, T))
    topic.close()
    file = tmp_path / '__transaction_state-0' / f'{0:020d}.log'
    content = bytearray(file.read_bytes())
    second = next(iter_batches(content))[0].size_bytes
    content[second + 61:second + 71] = b'not gzip !'
    file.write_bytes(content)
    done = run('--data-dir', tmp_path, '--from-beginning')
    assert done.returncode == 1
    assert statuses(done.stdout.splitlines()) == [('tx-a', 'Empty'), ('tx-a', 'CompleteCommit')]
    assert done.stderr.startswith('kbroker-txn-state: __transaction_state-0, offset 1: ')
    assert len(done.stderr.splitlines()) == 1


def test_damage_is_reported_once_however_often_it_is_read(tmp_path):
    topic = Topic(tmp_path, '__transaction_state', 1)
    topic.append(0, transaction('tx-a', 0, T))
    reported = []
    tail = tail_of(BrokenPartition(tmp_path), reported.append)
    assert [batch.rows[0].record.offset for batch in tail.batches()] == [0]
    assert list(tail.batches()) == []
    assert reported == ['__transaction_state-0, offset 1: found 14 bytes, expected a batch']
    topic.close()


# ---- tables

def shown_table(directory, *arguments):
    return [json.loads(line) for line in lines('--data-dir', directory, '--table', '--json', *arguments)]


def test_the_table_has_the_state_of_each_id_that_is_not_forgotten_newest_first(data):
    assert shown_table(data) == [
        {'transactional_id': 'tx-a', 'state': 'CompleteCommit', 'producer_id': 7, 'producer_epoch': 1,
         'last_update_timestamp_ms': T + 3000, 'open_since_timestamp_ms': None, 'timeout_ms': 60000,
         'partitions': ['orders-0', 'orders-1']},
        {'transactional_id': 'tx-b', 'state': 'Ongoing', 'producer_id': 7, 'producer_epoch': 1,
         'last_update_timestamp_ms': T + 2000, 'open_since_timestamp_ms': T + 1500, 'timeout_ms': 60000,
         'partitions': ['orders-0', 'orders-1']}]
    assert [row['transactional_id'] for row in shown_table(data, '--transactional-id', 'tx-b')] == ['tx-b']


def test_a_table_for_people_has_ages_in_words(tmp_path):
    topic = Topic(tmp_path, '__transaction_state', 1)
    topic.append(0, transaction('tx-a', 1, T), transaction('tx-b', 4, T + 5000), transaction('tx-c', 11, T - 1))
    table, stream = TABLES['transaction'](), io.StringIO()
    for batch in tail_of(DirectoryPartition(tmp_path)).batches():
        table.add(batch)
    show(table, Output(stream=stream), T + 65_000)
    text = [[cell.strip() for cell in line.split('\t')] for line in stream.getvalue().splitlines()]
    assert text[1][:7] == ['tx-b', 'CompleteCommit', '7', '1', '1 min', '-', '1 min']
    assert text[2][:7] == ['tx-a', 'Ongoing', '7', '1', '1 min 5 s', '1 min 6 s', '1 min']
    assert text[3][1] == '11'
    assert text[1][7] == 'orders-0,orders-1'
    topic.close()


def test_offsets_in_a_transaction_count_from_its_marker_on(tmp_path):
    topic = Topic(tmp_path, '__consumer_offsets', 1)
    in_transaction = {'producer_epoch': 0, 'transactional': True}
    topic.append(0, offset('plain', 5), offset('plain', 1, partition=1), offset('gone', 1))
    topic.append(0, offset('committed', 6, T + 3), producer_id=1, **in_transaction)
    topic.append(0, offset('plain', 99), producer_id=2, **in_transaction)
    topic.append(0, offset('plain', 77), producer_id=3, **in_transaction)
    topic.append(0, (offset('gone', 1)[0], None))
    topic.mark(0, 1, commit=True)
    topic.mark(0, 2, commit=False)
    topic.close()
    rows = shown_table(tmp_path, '--formatter', 'offsets')
    assert [(row['group'], row['partition'], row['offset']) for row in rows] == [('committed', 0, 6), ('plain', 0, 5),
                                                                                 ('plain', 1, 1)]
    assert rows[0] == {'group': 'committed', 'topic': 'orders', 'partition': 0, 'offset': 6, 'leader_epoch': -1,
                       'metadata': 'm', 'commit_timestamp_ms': T + 3}


def test_groups_are_shown_by_their_last_row(tmp_path):
    topic = Topic(tmp_path, '__consumer_offsets', 1)
    key = encode_row_key(GroupMetadataKey(group='g'))
    member = GroupMetadataValue.MemberMetadata(member_id='m')
    for generation, members in ((1, [member]), (2, [member, member])):
        value = GroupMetadataValue(protocol_type='consumer', protocol='range', generation=generation, leader='m',
                                   members=members, current_state_timestamp=T)
        topic.append(0, (key, encode_row_value(value, 3)))
    topic.append(0, (encode_row_key(GroupMetadataKey(group='old')), encode_row_value(GroupMetadataValue(), 0)))
    topic.close()
    assert shown_table(tmp_path, '--formatter', 'group-metadata') == [
        {'group': 'g', 'protocol_type': 'consumer', 'protocol': 'range', 'generation': 2, 'members': 2, 'leader': 'm',
         'state_timestamp_ms': T},
        {'group': 'old', 'protocol_type': '', 'protocol': None, 'generation': 0, 'members': 0, 'leader': None,
         'state_timestamp_ms': None}]


# ---- errors

@pytest.mark.parametrize('arguments', [
    ('--data-dir', '.', '--bootstrap-server', 'x:1'), ('--data-dir', '.', '--table', '--follow'),
    ('--data-dir', '.', '--table', '--max-messages', '1'), ('--data-dir', '.', '--max-messages', '0'),
    ('--data-dir', '.', '--formatter', 'offsets', '--transactional-id', 'x'), ('--data-dir', 'nowhere')])
def test_wrong_usage_exits_with_2(arguments):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, '')
    assert 'Traceback' not in done.stderr


@pytest.mark.parametrize(('name', 'expected'), [
    ('transaction', 'no topic __transaction_state: if this is all of a log directory, no transaction was ever begun'),
    ('offsets', 'no topic __consumer_offsets: if this is all of a log directory, no group ever joined')])
def test_a_topic_that_was_never_made_is_reported(tmp_path, name, expected):
    topic = Topic(tmp_path, 'orders', 1)
    topic.close()
    done = run('--data-dir', tmp_path, '--from-beginning', '--formatter', name)
    assert (done.returncode, done.stdout) == (1, '')
    assert expected in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_directory_that_is_none_is_reported(tmp_path):
    done = run('--data-dir', tmp_path, '--from-beginning')
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_a_broker_that_is_not_there_is_reported():
    address = f'127.0.0.1:{free_port()}'
    done = run('--bootstrap-server', address, '--from-beginning')
    assert (done.returncode, done.stdout) == (1, '')
    assert address in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path, follow):
    topic = Topic(tmp_path, '__transaction_state', 1)
    for _ in range(40):
        topic.append(0, *[transaction('tx-a', 0, T)] * 100)
    topic.close()
    process = follow('--data-dir', tmp_path, '--from-beginning')
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 141
    assert process.stderr.read() == ''


# ---- an incomplete directory

def test_a_copy_of_some_partitions_is_read_as_far_as_it_goes(data, tmp_path):
    """Without the metadata log, the number of partitions of `__transaction_state` is unknown. The command therefore
    looks for an id in all existing partitions."""
    for name, expected in (('tx-b', [('tx-b', 'Empty'), ('tx-b', 'Ongoing')]), ('tx-a', [])):
        found = lines('--data-dir', data / '__transaction_state-2', '--from-beginning', '--transactional-id', name)
        assert statuses(found) == expected


def test_a_directory_without_a_partition_of_the_topic_is_reported(start_broker):
    broker = start_broker()
    transact(broker, 'tx', 1)
    broker.stop()
    for path in broker.directory.glob('__transaction_state-*'):
        shutil.rmtree(path)
    done = run('--data-dir', broker.directory, '--from-beginning')
    assert (done.returncode, done.stdout) == (1, '')
    assert 'none of the 50 partitions of __transaction_state is in this directory' in done.stderr


# ---- a live broker

def transact(broker, transactional_id, times):
    """Run `times` transactions, which commit and abort alternately."""
    producer = confluent_kafka.Producer({'bootstrap.servers': broker.address, 'transactional.id': transactional_id})
    producer.init_transactions(120)
    for number in range(times):
        producer.begin_transaction()
        producer.produce('orders', 'x')
        producer.flush(120)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(30)


def test_a_live_broker_is_followed(start_broker, follow):
    broker = start_broker({'transaction.state.log.num.partitions': '3'})
    transact(broker, 'first', 1)
    process = follow('--bootstrap-server', broker.address, '--from-beginning', '--follow')
    expected = ['Empty', 'Ongoing', 'PrepareCommit', 'CompleteCommit']
    assert statuses(process.stdout.readline() for _ in expected) == [('first', status) for status in expected]
    transact(broker, 'second', 1)
    assert statuses(process.stdout.readline() for _ in expected) == [('second', status) for status in expected]
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130


def test_a_live_broker_shows_what_its_directory_does(start_broker):
    broker = start_broker({'transaction.state.log.num.partitions': '3', 'offsets.topic.num.partitions': '3'})
    for name in ('live-1', 'live-2'):
        transact(broker, name, 2)
    live = ('--bootstrap-server', broker.address)
    shown = lines(*live, '--from-beginning')
    assert len(shown) >= 14
    assert {name for name, _ in statuses(shown)} == {'live-1', 'live-2'}
    only = lines(*live, '--from-beginning', '--transactional-id', 'live-2')
    assert only == [line for line in shown if '"live-2"' in line]
    table = lines(*live, '--table', '--json')
    assert [json.loads(line)['state'] for line in table] == ['CompleteAbort'] * 2
    broker.stop()
    offline = ('--data-dir', broker.directory)
    assert lines(*offline, '--from-beginning') == shown
    assert lines(*offline, '--from-beginning', '--transactional-id', 'live-2') == only
    assert lines(*offline, '--table', '--json') == table

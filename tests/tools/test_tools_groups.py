"""kbroker-groups: lag in records, the targets of offset resets, usage, and a directory without a broker."""
import io
import json

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given
from hypothesis import strategies as st
from support.runner.command_runner import run_command

from kbroker.client import Admin
from kbroker.client import Producer as KbrokerProducer
from kbroker.record.batch import encode_batch, read_header
from kbroker.record.control import encode_end_txn_marker
from kbroker.record.records import Record
from kbroker_tools.base.render import Output
from kbroker_tools.cluster.record_counts import RecordCounts, count_records
from kbroker_tools.commands.groups import main
from kbroker_tools.groups.offset_resets import (
    CannotReset,
    Reset,
    csv_row,
    parse_datetime_ms,
    parse_duration_ms,
    parse_scope,
    plan,
    read_plan,
)
from kbroker_tools.groups.tables import cell, show

# ---- lag in records


class Partition:
    """The batches of a partition in memory."""

    def __init__(self):
        self.batches = []
        self.end_offset = 0

    def write(self, count, producer_id=-1):
        self.put(encode_batch([(0, b'k', b'v')] * count, base_offset=self.end_offset, producer_id=producer_id,
                              producer_epoch=0 if producer_id >= 0 else -1, base_sequence=0 if producer_id >= 0 else -1,
                              transactional=producer_id >= 0))

    def mark(self, producer_id, commit):
        self.put(encode_end_txn_marker(commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0,
                                       timestamp_ms=0))

    def put(self, batch):
        batch[:8] = self.end_offset.to_bytes(8, 'big')
        header = read_header(batch)
        self.batches.append((header, memoryview(batch)))
        self.end_offset = header.last_offset + 1

    def left(self, position, last_stable_offset):
        return count_records([(header, batch) for header, batch in self.batches if header.last_offset >= position],
                                  position, last_stable_offset)


def test_markers_and_aborted_records_are_no_lag():
    partition = Partition()
    partition.write(3, producer_id=1)
    partition.mark(1, commit=False)
    partition.write(2, producer_id=1)
    partition.mark(1, commit=True)
    partition.write(4)
    assert partition.end_offset == 11
    assert partition.left(0, 11) == RecordCounts(committed=6, aborted=3, markers=2)


def test_what_lies_above_an_open_transaction_is_held():
    partition = Partition()
    partition.write(2)
    partition.write(5, producer_id=7)
    partition.write(3)
    partition.write(1, producer_id=8)
    partition.mark(8, commit=True)
    assert partition.left(0, 2) == RecordCounts(committed=2, held=4, undecided=5, markers=1)


def test_a_marker_above_the_last_stable_offset_decides_about_records_below_it():
    partition = Partition()
    partition.write(2, producer_id=1)
    partition.write(1, producer_id=2)
    partition.mark(1, commit=True)
    assert partition.left(0, 2) == RecordCounts(committed=2, undecided=1, markers=1)


def test_a_position_within_a_batch_counts_the_records_behind_it_also_after_compaction():
    partition = Partition()
    partition.put(encode_batch([Record(offset, 0, b'k', b'v', [], -1) for offset in (0, 3, 4, 9)], base_offset=0,
                               last_offset_delta=9))
    assert partition.left(4, 10) == RecordCounts(committed=2)


@given(st.lists(st.tuples(st.sampled_from(['plain', 'begin', 'commit', 'abort']), st.integers(1, 3),
                          st.integers(1, 4)), max_size=30), st.integers(0, 20))
def test_the_records_left_are_those_that_a_consumer_would_see(steps, position):
    """The test computes the expected numbers by marking every single record."""
    partition, records, open_since, markers = Partition(), [], {}, []
    for step, producer_id, count in steps:
        if step in ('commit', 'abort'):
            markers.append(partition.end_offset)
            partition.mark(producer_id, commit=step == 'commit')
            for record in records:
                if record['producer_id'] == producer_id and record['fate'] is None:
                    record['fate'] = step
            open_since.pop(producer_id, None)
            continue
        writer = producer_id if step == 'begin' else -1
        if writer >= 0:
            open_since.setdefault(writer, partition.end_offset)
        records += [{'offset': partition.end_offset + index, 'producer_id': writer,
                     'fate': 'commit' if writer < 0 else None} for index in range(count)]
        partition.write(count, writer)
    stable = min(open_since.values(), default=partition.end_offset)
    left = [record for record in records if record['offset'] >= position]
    assert partition.left(position, stable) == RecordCounts(
        sum(record['fate'] == 'commit' and record['offset'] < stable for record in left),
        sum(record['fate'] == 'commit' and record['offset'] >= stable for record in left),
        sum(record['fate'] is None for record in left), sum(record['fate'] == 'abort' for record in left),
        sum(offset >= position for offset in markers))


def test_a_transaction_whose_marker_was_compacted_away_is_committed():
    """The second marker of the test is an empty batch, which compaction keeps for the sequence numbers."""
    partition = Partition()
    partition.write(3, producer_id=1)
    partition.write(2, producer_id=2)
    partition.put(encode_batch([], producer_id=2, producer_epoch=0, base_sequence=-1, transactional=True, control=True,
                               last_offset_delta=0))
    partition.write(4, producer_id=1)
    assert partition.left(0, 6) == RecordCounts(committed=5, undecided=4)


# ---- targets of offset resets

A, B = ('orders', 0), ('orders', 1)


class Log:
    """A view of two partitions, with the earliest offset 10 and the latest offset 20. One of them has a record with the
    timestamp 500 at offset 15."""

    def earliest(self, partitions):
        return dict.fromkeys(partitions, 10)

    def latest(self, partitions):
        return dict.fromkeys(partitions, 20)

    def at_time(self, partitions, timestamp_ms):
        return {at: 15 if at == A and timestamp_ms <= 500 else -1 for at in partitions}


@pytest.mark.parametrize(('reset', 'expected', 'notes'), [
    (Reset('to_earliest'), {A: 10, B: 10}, 0), (Reset('to_latest'), {A: 20, B: 20}, 0),
    (Reset('to_current'), {A: 12, B: 19}, 0), (Reset('to_offset', 17), {A: 17, B: 17}, 0),
    (Reset('to_offset', 3), {A: 10, B: 10}, 2), (Reset('shift_by', 3), {A: 15, B: 20}, 1),
    (Reset('shift_by', -4), {A: 10, B: 15}, 1), (Reset('to_time', 500), {A: 15, B: 20}, 1)])
def test_a_new_offset_is_always_within_the_log(reset, expected, notes):
    found, said = plan(reset, [B, A], {A: 12, B: 19}, Log())
    assert (found, len(said)) == (expected, notes)


def test_without_an_offset_to_current_is_the_end_and_shift_by_is_refused():
    assert plan(Reset('to_current'), [A, B], {A: 12}, Log())[0] == {A: 12, B: 20}
    with pytest.raises(CannotReset, match='orders-1 has no committed offset'):
        plan(Reset('shift_by', 1), [A, B], {A: 12}, Log())


@pytest.mark.parametrize(('text', 'expected'), [
    ('PT1H30M', 5_400_000), ('P2D', 172_800_000), ('PT0.5S', 500), ('-PT1S', -1000), ('P1DT1S', 86_401_000),
    ('pt5m', 300_000)])
def test_a_duration_is_iso_8601(text, expected):
    assert parse_duration_ms(text) == expected


@pytest.mark.parametrize('text', ['', 'P', 'PT', '5m', 'P1Y', 'P1DT', 'PT1.5M'])
def test_a_duration_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match='expected a duration as PnDTnHnMnS'):
        parse_duration_ms(text)


@pytest.mark.parametrize(('text', 'expected'), [
    ('1970-01-01T00:00:01.500', 1500), ('1970-01-01T00:00:01Z', 1000), ('1970-01-01T02:00:00.000+02:00', 0)])
def test_a_time_is_utc_unless_it_says_otherwise(text, expected):
    assert parse_datetime_ms(text) == expected


@pytest.mark.parametrize('text', ['', '1970-01-01', 'yesterday', '1970-13-01T00:00:00'])
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match='expected a time as'):
        parse_datetime_ms(text)


def test_a_time_before_1970_would_mean_an_end_of_the_log():
    with pytest.raises(ValueError, match='expected a time from 1970 on'):
        parse_datetime_ms('1969-12-31T23:59:59.999')


def test_a_topic_stands_alone_or_with_partitions():
    assert parse_scope(['orders', 'payments:0,2', 'payments:3']) == {'orders': None, 'payments': [0, 2, 3]}
    assert parse_scope(['payments-1', 'payments:3', 'a-0'], ['payments', 'a-0']) == {'payments': [1, 3], 'a-0': None}
    assert parse_scope(['orders', 'orders:1']) == parse_scope(['orders:1', 'orders']) == {'orders': None}
    with pytest.raises(ValueError, match='expected TOPIC or TOPIC:PARTITION'):
        parse_scope(['orders:x'])


@given(st.dictionaries(st.tuples(st.text(min_size=1).filter(lambda text: text.splitlines() == [text] and text.strip()),
                                 st.integers(0, 99)), st.integers(0, 2**60), min_size=1))
def test_what_is_exported_is_read_back(offsets):
    text = ''.join(csv_row((*at, offset)) + '\n' for at, offset in offsets.items())
    assert read_plan(text, ['group']) == {'group': offsets}


@pytest.mark.parametrize(('text', 'words'), [
    ('orders,0\n', 'expected topic,partition,offset'), ('orders,0,1\norders,x,1\n', 'line 2'),
    ('other,orders,0,1\n', 'group other is not among those')])
def test_a_plan_that_cannot_be_read_names_the_line(text, words):
    with pytest.raises(ValueError, match=words):
        read_plan(text, ['group'])


# ---- the command

@pytest.mark.parametrize(('arguments', 'words'), [
    ([], 'exactly one of --list'), (['--list', '--group', 'a'], '--group goes with --describe'),
    (['--describe'], '--describe needs --group or --all-groups'),
    (['--describe', '--group', 'a', '--all-groups'], 'exclude each other'),
    (['--describe', '--group', 'a', '--members', '--state'], 'exclude each other'),
    (['--describe', '--group', 'a', '--members', '--isolation-level', 'read_committed'], 'goes with --offsets'),
    (['--reset-offsets', '--group', 'a', '--topic', 't'], 'exactly one of --to-earliest'),
    (['--reset-offsets', '--group', 'a', '--to-latest'], 'needs --topic or --all-topics'),
    (['--reset-offsets', '--group', 'a', '--topic', 't', '--to-latest', '--shift-by', '1'], 'exactly one of'),
    (['--reset-offsets', '--group', 'a', '--topic', 't', '--to-latest', '--dry-run', '--execute'], 'exclude'),
    (['--delete-offsets', '--group', 'a'], '--delete-offsets needs --topic'),
    (['--delete-offsets', '--group', 'a', '--group', 'b', '--topic', 't'], 'takes one --group'),
    (['--delete', '--group', 'a', '--data-dir', '/'], 'needs a broker'),
    (['--list', '--type', '--data-dir', '/'], ''), (['--list', '--data-dir', '/', '--bootstrap-server', 'a:1'],
                                                'give one of --bootstrap-server')])
def test_wrong_usage_is_reported_with_exit_code_2(arguments, words):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 or (words == '' and result.exit_code == 1)
    assert words in ' '.join(result.stderr.split())


@pytest.fixture(scope='module')
def staged(shared_broker):
    """Yield a broker with a group. The group's offset is below an aborted, an open and a committed transaction."""
    servers = {'bootstrap.servers': shared_broker.address}
    admin = AdminClient(servers)
    for made in admin.create_topics([NewTopic('orders', 1)]).values():
        made.result()
    holders = []
    for name, count, end in (('aborter', 3, 'abort_transaction'), ('holder', 2, None),
                             ('other', 4, 'commit_transaction')):
        producer = Producer(servers | {'transactional.id': name})
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(count):
            producer.produce('orders', f'{number}', partition=0)
        producer.flush()
        if end is not None:
            getattr(producer, end)()
        holders.append(producer)
    reader = Consumer(servers | {'group.id': 'readers'})
    reader.commit(offsets=[TopicPartition('orders', 0, 1)], asynchronous=False)
    reader.close()
    yield shared_broker
    holders[1].abort_transaction()


def test_for_read_committed_the_remaining_records_and_the_holder_of_the_rest_are_shown(staged):
    found = run_command('groups', '--bootstrap-server', staged.address, '--describe', '--group', 'readers', '--json',
                        '--isolation-level', 'read_committed')
    row, = map(json.loads, found.stdout.splitlines())
    expected = {'current_offset': 1, 'log_end_offset': 11, 'lag': 10, 'last_stable_offset': 4, 'records_left': 0,
                'held': 4, 'undecided': 2, 'held_by': 'holder'}
    assert {name: row[name] for name in expected} == expected


def test_the_directory_of_the_live_broker_tells_the_same(staged):
    asked = ('--describe', '--group', 'readers', '--isolation-level', 'read_committed')
    live = run_command('groups', '--bootstrap-server', staged.address, *asked)
    offline = run_command('groups', '--data-dir', staged.directory, *asked)
    assert (offline.returncode, offline.stdout) == (0, live.stdout)


def test_offsets_go_to_a_file_and_back(staged, tmp_path):
    plan_file = tmp_path / 'plan.csv'
    where = ('--bootstrap-server', staged.address, '--reset-offsets', '--group', 'copy')
    exported = run_command('groups', *where, '--topic', 'orders', '--to-offset', '5', '--dry-run', '--export')
    assert exported.stdout == 'orders,0,5\n\n'
    plan_file.write_text(exported.stdout)
    assert run_command('groups', *where, '--from-file', plan_file, '--execute').returncode == 0
    described = run_command('groups', '--bootstrap-server', staged.address, '--describe', '--group', 'copy', '--json')
    assert json.loads(described.stdout)['current_offset'] == 5


def test_a_note_about_a_group_without_members_has_a_line_of_its_own(staged):
    """Its empty first line was printed as the two characters of an escape."""
    described = run_command('groups', '--bootstrap-server', staged.address, '--describe', '--group', 'readers')
    assert described.stderr.splitlines()[:2] == ['', "Consumer group 'readers' has no active members."]


def test_without_execute_nothing_is_changed_and_that_is_said(staged):
    done = run_command('groups', '--bootstrap-server', staged.address, '--reset-offsets', '--group', 'nobody',
                       '--topic', 'orders', '--to-latest')
    assert (done.returncode, '--execute' in done.stderr) == (0, True)
    assert 'nobody' not in run_command('groups', '--bootstrap-server', staged.address, '--list').stdout


@pytest.mark.parametrize('arguments', [
    ('--describe', '--group', 'nothing'), ('--delete', '--group', 'nothing'),
    ('--reset-offsets', '--group', 'readers', '--topic', 'nothing', '--to-latest', '--execute'),
    ('--reset-offsets', '--group', 'readers', '--topic', 'orders:7', '--to-latest', '--execute'),
    ('--reset-offsets', '--group', 'new', '--topic', 'orders', '--shift-by', '1', '--execute')])
def test_operations_that_fail_are_reported_in_one_line(staged, arguments):
    failed = run_command('groups', '--bootstrap-server', staged.address, *arguments)
    assert (failed.returncode, failed.stderr.count('\n')) == (1, 1), failed.stderr


# ---- layout

class Terminal(io.StringIO):
    def isatty(self):
        return True


CELLS = [cell('GROUP'), cell('LAG'), cell('CONSUMER-ID'), cell('CLIENT-ID', None)]


def test_a_terminal_is_spared_the_columns_without_a_value(monkeypatch):
    monkeypatch.setenv('COLUMNS', '80')
    terminal = Terminal()
    show(Output(stream=terminal), CELLS, [('billing', 3, None, None), ('shipping', None, None, None)])
    assert 'LAG' in terminal.getvalue()
    assert 'CONSUMER-ID' not in terminal.getvalue()


def test_a_pipe_gets_every_column_at_least_fifteen_wide():
    pipe = io.StringIO()
    show(Output(stream=pipe), CELLS, [('a-group-with-a-long-name', 3, None, 'me')])
    assert pipe.getvalue() == ('GROUP                    LAG             CONSUMER-ID     CLIENT-ID\n'
                               'a-group-with-a-long-name 3               -               me\n')


def test_json_has_every_column_and_null_where_there_is_nothing():
    out = io.StringIO()
    show(Output(as_json=True, stream=out), CELLS, [('billing', 3, None, None)])
    assert json.loads(out.getvalue()) == {'group': 'billing', 'lag': 3, 'consumer_id': None, 'client_id': None}


def test_a_limit_of_time_is_taken(staged):
    assert run_command('groups', '--bootstrap-server', staged.address, '--list', '--timeout', '60000').returncode == 0


def test_a_description_says_which_offsets_lie_behind_the_end_and_which_are_held(broker):
    """The tables once showed a negative lag, or a lag that does not shrink, without an explanation."""
    with Admin(broker.address) as admin, KbrokerProducer(broker.address, transactional_id='billing') as producer:
        admin.create_topics({'noted': 2})
        producer.begin_transaction()
        producer.send('noted', b'open', partition=1)
        producer.flush()
        admin.alter_group_offsets('noted', {('noted', 0): 20, ('noted', 1): 0})
        done = run_command('groups', '--bootstrap-server', broker.address, '--describe', '--group', 'noted')
        producer.abort_transaction()
    start = f'--bootstrap-server {broker.address}'
    notes = [line for line in done.stderr.splitlines() if line.startswith(('noted', '  do'))]
    assert done.returncode == 0 and notes == [
        'noted-0 ends at 0, below offset 20 of group noted: it lost records, or the topic was created again. The group '
        'needs a reset once it has no members',
        f'  do: kbroker-groups {start} --reset-offsets --group noted --topic noted:0 --to-latest --execute',
        'noted-1 is held at offset 0 by an open transaction: consumers that read committed records only wait there',
        f'  do: kbroker-transactions {start} why-stuck noted:1']

"""--last, --offset -N and P:O, --from and --to of kbroker-consume: which records they select, beside transactions."""
from types import SimpleNamespace

import click
import pytest
from support.runner.command_runner import run_command

from kbroker.client import Admin, Producer
from kbroker.client.admin import NewTopic
from kbroker.client.consumed import DeliveredRecords
from kbroker.record.records import Record
from kbroker_tools.base.command import ToolError
from kbroker_tools.console.places import Range, last_of_all, last_of_each, parse_offsets, parse_time_ms

NOW_MS = 1_764_237_600_000      # 2025-11-27T10:00Z
COMMITTED = ('--isolation-level', 'read_committed')


# ---- texts

@pytest.mark.parametrize(('text', 'offsets'), [
    ('5', {None: '5'}), ('-5', {None: '-5'}), ('Earliest', {None: 'earliest'}),
    ('0:15,1:200', {0: '15', 1: '200'}), ('3:-2, 0:latest', {3: '-2', 0: 'latest'})])
def test_offsets_are_of_all_partitions_or_of_named_ones(text, offsets):
    assert parse_offsets(text) == offsets


@pytest.mark.parametrize('text', ['', '-0', '--1', 'x', '0:', ':5', 'a:5', '1,2', '0:1,2', '0:1,0:2', '٣', '-1000001',
                                  '9223372036854775808', '2147483648:0', '-1:5'])
def test_other_offsets_are_refused(text):
    with pytest.raises(click.UsageError, match=r'incorrect|twice'):
        parse_offsets(text)


@pytest.mark.parametrize(('text', 'time_ms'), [
    ('2h', NOW_MS - 7_200_000), ('15m', NOW_MS - 900_000), ('2d', NOW_MS - 172_800_000), ('0s', NOW_MS),
    ('2025-11-27T10:00Z', NOW_MS), ('2025-11-27T12:00+02:00', NOW_MS), ('2025-11-27T10:00', NOW_MS),
    ('2025-11-27', NOW_MS - 36_000_000), (str(NOW_MS), NOW_MS), ('999999d', 0)])
def test_a_time_is_an_age_or_iso_or_in_milliseconds(text, time_ms):
    assert parse_time_ms('--from', text, NOW_MS) == time_ms


@pytest.mark.parametrize('text', ['', '2', '1764237600', '20251127', '2 weeks', 'yesterday', '2025-13-01', '9' * 30])
def test_other_times_are_refused_with_what_is_expected(text):
    with pytest.raises(ToolError, match=r'--to: found .*, expected an age such as 15m, 2h or 2d, an ISO 8601 time'):
        parse_time_ms('--to', text, NOW_MS)


# ---- the search

class Ranges(SimpleNamespace):
    """A reader of records in memory, which counts the offsets that it reads."""

    def __init__(self, **topics):
        super().__init__(topics=topics, failed=set(), offsets_read=0)

    def read(self, ranges):
        for (topic, partition), wanted in ranges.items():
            self.offsets_read += wanted.end - wanted.start
            yield [DeliveredRecords(topic, partition, [record for record in self.topics[topic]
                                                       if wanted.start <= record.offset < wanted.end])]


def records(offsets, time_ms=0):
    return [Record(offset, time_ms + offset, None, b'%d' % offset) for offset in offsets]


def test_the_last_records_are_found_behind_long_gaps_without_reading_much_more():
    offsets = [*range(100_000), 150_000, 200_000]
    reader = Ranges(t=records(offsets))
    found = last_of_each(reader, {('t', 0): Range(0, 300_000)}, 3)['t', 0]
    assert [record.offset for record in found] == [99_999, 150_000, 200_000]
    reader = Ranges(t=records(range(1_000_000)))
    last_of_each(reader, {('t', 0): Range(0, 1_000_000)}, 5)
    assert reader.offsets_read <= 64
    assert last_of_each(reader, {('t', 0): Range(7, 7)}, 5) == {('t', 0): []}


def test_the_last_records_of_all_partitions_are_the_newest_ones_in_the_order_of_each_partition():
    reader = Ranges(a=records(range(10)), b=records(range(4), time_ms=7), c=[])
    reader.topics['b'][2] = Record(2, 0, None, None)        # an early time between later ones
    ranges = {('a', 0): Range(0, 10), ('b', 0): Range(0, 4), ('c', 0): Range(0, 0)}
    assert [(at[0], record.offset) for at, record in last_of_all(reader, ranges, 3)] == [
        ('a', 8), ('a', 9), ('b', 3)]
    even = last_of_all(reader, ranges, 2, lambda record: record.offset % 2 == 0 and record.value is not None)
    assert [(at[0], record.offset) for at, record in even] == [('b', 0), ('a', 8)]


# ---- the command, at a broker and at a directory

@pytest.fixture(scope='module')
def places(shared_broker):
    """Return a broker with the topic `places`. Partition 0 has 20 records, a second apart. Partition 1 has 3 committed
    records, each followed by an aborted one, and an open transaction."""
    address = shared_broker.address
    with Admin(address) as admin:
        admin.create_topics([NewTopic('places', 2)])
    with Producer(address) as producer:
        for number in range(20):
            producer.send('places', b'p%d' % number, b'k%d' % (number % 2), partition=0,
                          timestamp_ms=NOW_MS + number * 1000)
    producer = Producer(address, transactional_id='places')
    producer.init_transactions()
    for number in range(6):
        producer.begin_transaction()
        producer.send('places', b'q%d' % number, partition=1, timestamp_ms=NOW_MS + number * 100)
        producer.flush()
        if number % 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.begin_transaction()
    producer.send('places', b'open', partition=1, timestamp_ms=NOW_MS + 600)
    producer.flush()
    yield shared_broker
    producer.close()


def consume(place, *options):
    done = run_command('consume', *place, '--topic', 'places', *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(params=['--bootstrap-server', '--data-dir'])
def place(request, places):
    return request.param, places.address if request.param == '--bootstrap-server' else places.directory


@pytest.mark.parametrize(('options', 'values'), [
    (['--last', '3'], ['p17', 'p18', 'p19']),
    (['--last', '2', '--filter', 'key=0'], ['p16', 'p18']),
    (['--last', '2', '--partition', '1'], ['q5', 'open']),
    (['--last', '2', '--partition', '1', *COMMITTED], ['q2', 'q4']),
    (['--last', '9', '--partition', '1', *COMMITTED], ['q0', 'q2', 'q4']),
    (['--last', '2', '--to', '2025-11-27T10:00:05Z', '--partition', '0'], ['p3', 'p4']),
    (['--from', '2025-11-27T10:00:05Z', '--to', '2025-11-27T10:00:07Z', '--partition', '0'], ['p5', 'p6']),
    (['--from', '2025-11-27T10:00:18Z', '--to', '2035-01-01', '--partition', '0'], ['p18', 'p19']),
    (['--to', '2025-11-27T10:00:02Z', '--partition', '0', *COMMITTED], ['p0', 'p1']),
    (['--offset', '0:18', '--to', '2035-01-01'], ['p18', 'p19']),
    (['--offset', '-2', '--to', '2035-01-01', '--partition', '1', *COMMITTED], ['q2', 'q4']),
])
def test_a_bounded_reading_ends_and_counts_only_records_that_a_consumer_gets(place, options, values):
    assert consume(place, *options) == values


@pytest.mark.parametrize(('options', 'values'), [
    (['--offset', '-2', '--max-messages', '4'], {'p18', 'p19', 'q5', 'open'}),
    (['--offset', '0:17,1:-1', '--max-messages', '4'], {'p17', 'p18', 'p19', 'open'}),
    (['--offset', '-2', '--partition', '1', '--max-messages', '2', *COMMITTED], {'q2', 'q4'}),
    (['--from', '2025-11-27T10:00:18Z', '--partition', '0', '--max-messages', '2'], {'p18', 'p19'}),
])
def test_a_reading_without_an_end_begins_where_the_option_says(place, options, values):
    assert set(consume(place, *options)) == values


@pytest.mark.parametrize(('options', 'code', 'message'), [
    (['--last', '0'], 2, '0 is not in the range'),
    (['--last', '2', '--from-beginning'], 2, 'Options last and from-beginning cannot be specified together.'),
    (['--from', '2h', '--offset', '-2'], 2, 'Options from and offset cannot be specified together.'),
    (['--from', 'noon'], 1, "--from: found 'noon', expected an age"),
    (['--from', '1h', '--to', '2h'], 1, 'found --from 1h after --to 2h, expected it before'),
    (['--last', '2', '--group', 'g'], 2, 'need a consumer without --group'),
    (['--offset', '0:1', '--partition', '0'], 2, '--offset 0:1 names partitions'),
    (['--offset', '7:1'], 1, 'places-7 does not exist: the topic has 2 partitions'),
])
def test_places_that_contradict_are_refused_in_a_line(places, options, code, message):
    done = run_command('consume', '--bootstrap-server', places.address, '--topic', 'places', *options)
    assert done.returncode == code and message in done.stderr
    assert 'Traceback' not in done.stderr

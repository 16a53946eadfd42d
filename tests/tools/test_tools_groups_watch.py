"""kbroker-groups --watch: rates between samples, the shares of members, groups that come and go, and how it ends."""
import io
import json
import signal
import subprocess

import pytest
from support.brokers.broker_fixtures import module_broker
from support.brokers.broker_process import PROMPT
from support.runner.command_runner import command_line, run_in_process
from support.runner.interrupts import give_children_the_default_interrupt

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client import Admin, Consumer, Producer
from kbroker.client.descriptions import GroupInfo, GroupMemberInfo
from kbroker_tools.base.command import ToolError
from kbroker_tools.base.render import Output
from kbroker_tools.base.view import GroupOffset, PartitionInfo, PartitionOffsets, TopicInfo
from kbroker_tools.groups.trends import LAGS_KEPT, Position, Sample, Trend, bars, step_between
from kbroker_tools.groups.watching import MOST_GROUPS, watch_groups

broker = module_broker(PROMPT | {'offsets.topic.num.partitions': '1'})
A, B = ('orders', 0), ('orders', 1)


def sample(at_s, *rows, state='Stable'):
    """Return a sample. A row is (committed, last stable offset, high watermark, member) of the next partition."""
    positions = {('orders', number): Position(*row) for number, row in enumerate(rows)}
    return Sample(at_s, state, (), positions)


# ---- rates

def test_rates_are_averages_over_the_window():
    trend = Trend(sample(0, (0, 90, 100, 'a')))
    assert (trend.consumed_per_s, trend.produced_per_s, trend.seconds_to_catch_up) == (None, None, None)
    trend.add(sample(10, (50, 100, 120, 'a')))
    assert (trend.consumed_per_s, trend.produced_per_s) == (5, 2)
    assert trend.seconds_to_catch_up == pytest.approx(70 / 3)
    for second in (20, 30, 40, 50):
        trend.add(sample(second, (50, 100, 120, 'a')))
    assert (trend.consumed_per_s, trend.produced_per_s, trend.seconds_to_catch_up) == (0, 0, None)
    assert list(trend.lags) == [100, 70, 70, 70, 70, 70]


def test_a_lag_counts_to_both_ends_and_leaves_out_what_is_not_known():
    found = sample(0, (10, 15, 20, 'a'), (None, 5, 9, 'b'), (7, None, None, 'b'), (30, 20, 25, None))
    assert (found.lag, found.stable_lag, found.lag_of('a'), found.lag_of('b')) == (10, 5, 10, 0)


def test_a_reset_and_a_new_partition_are_no_progress():
    step = step_between(sample(0, (50, 60, 60, 'a')), sample(2, (10, 70, 70, 'a'), (5, 9, 9, 'b')))
    assert (step.duration_s, step.produced, step.consumed) == (2, 10, {'a': 0})


def test_a_share_follows_the_partition_to_its_new_member():
    trend = Trend(sample(0, (0, 9, 9, 'a'), (0, 9, 9, 'a')))
    trend.add(sample(1, (4, 9, 9, 'a'), (2, 9, 9, 'b')))
    assert (trend.consumed_per_s_by('a'), trend.consumed_per_s_by('b'), trend.consumed_per_s_by('c')) == (4, 2, 0)


def test_the_memory_of_a_trend_does_not_grow_with_time():
    trend = Trend(sample(0, (0, 0, 0, 'a')))
    for second in range(1, 1000):
        trend.add(sample(second, (second, second, second, 'a')))
    assert (len(trend.lags), len(trend._steps)) == (LAGS_KEPT, 30)
    assert trend.consumed_per_s == 1


@pytest.mark.parametrize(('amounts', 'line'), [([], ''), ([0, 0], '▁▁'), ([0, 1, 7], '▁▂█'), ([5, 5], '██')])
def test_the_highest_bar_is_that_of_the_greatest_lag(amounts, line):
    assert bars(amounts) == line


# ---- rounds

class Cluster:
    """A view of one topic. `rounds` has the committed offset of each group in each round, or an error."""

    place, is_live = 'nowhere', True

    def __init__(self, *rounds):
        self.rounds, self.round = rounds, 0

    def sleep(self, _):
        self.round += 1

    def now_ms(self):
        return 1_700_000_000_000 + 1000 * self.round

    def group(self, group_id):
        if isinstance(self.rounds[self.round], KafkaError):
            raise self.rounds[self.round]
        if group_id not in self.rounds[self.round]:
            return None
        member = GroupMemberInfo('m', None, 'client', '/h', (A,))
        return GroupInfo(group_id, 'Stable', 'consumer', 'range', 1, (member,))

    def group_offsets(self, group_id):
        return [GroupOffset(*A, self.rounds[self.round][group_id], -1, '')]

    def topics(self):
        return {'orders': TopicInfo('orders', bytes(16), False, (PartitionInfo(*A, 1),))}

    def unreadable(self, partitions):
        return {}

    def partition_offsets_of(self, partitions):
        return {at: PartitionOffsets(0, 100, 80) for at in partitions}


def watch(cluster, *groups, rounds=None, as_json=True):
    out = io.StringIO()
    options = {'all_groups': False, 'group': groups, 'rounds': rounds or len(cluster.rounds), 'interval': 1.0}
    watch_groups(cluster, Output(as_json, out), options, cluster.sleep, lambda: float(cluster.round))
    return [json.loads(line) for line in out.getvalue().splitlines()] if as_json else out.getvalue()


def test_each_round_shows_lag_rates_and_the_share_of_each_member():
    first, second = watch(Cluster({'billing': 50}, {'billing': 60}), 'billing')
    assert (first['lag'], first['stable_lag'], first['consumed_per_s']) == (50, 30, None)
    assert (second['lag'], second['consumed_per_s'], second['produced_per_s'], second['seconds_to_catch_up']) == (
        40, 10, 0, 4)
    assert second['members'] == [{
        'consumer_id': 'm', 'host': '/h', 'client_id': 'client', 'partitions': 1, 'lag': 40, 'share_of_lag': 1,
        'consumed_per_s': 10, 'share_consumed': 1}]


def test_a_pipe_gets_the_tables_of_each_round():
    text = watch(Cluster({'billing': 50}, {'billing': 60}), 'billing', as_json=False)
    assert text.count('GROUP           STATE') == 2
    assert [line.split() for line in text.splitlines() if line.startswith('billing')] == [
        ['billing', 'Stable', '1', '50', '30', '-', '-', '-'],
        ['billing', 'm', '/h', 'client', '1', '50', '100%', '-', '-'],
        ['billing', 'Stable', '1', '40', '20', '10.0', '0.0', '4.0', 's'],
        ['billing', 'm', '/h', 'client', '1', '40', '100%', '10.0', '100%']]


def test_a_group_that_is_deleted_stays_as_dead_until_it_comes_back():
    rows = watch(Cluster({'a': 1, 'b': 1}, {'a': 2}, {'a': 3, 'b': 0}), 'a', 'b')
    assert [(row['group'], row['state'], row['lag']) for row in rows] == [
        ('a', 'Stable', 99), ('b', 'Stable', 99), ('a', 'Stable', 98), ('b', 'Dead', 0), ('a', 'Stable', 97),
        ('b', 'Stable', 100)]


def test_a_broker_that_restarts_does_not_end_the_watch(capsys):
    error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, 'loading')
    rows = watch(Cluster({'a': 1}, error, {'a': 21}), 'a')
    assert [(row['lag'], row['consumed_per_s']) for row in rows] == [(99, None), (79, 10)]
    assert 'loading' in capsys.readouterr().err
    with pytest.raises(KafkaError):
        watch(Cluster(error), 'a')


def test_what_cannot_be_watched_is_reported():
    with pytest.raises(ToolError, match='there is no group b; --list shows'):
        watch(Cluster({'a': 1}), 'a', 'b')
    with pytest.raises(ToolError, match=f'expected at most {MOST_GROUPS}'):
        watch(Cluster({'a': 1}), *(f'g{number}' for number in range(MOST_GROUPS + 1)))


# ---- the command

@pytest.fixture(scope='module')
def watched(broker):
    with Admin(broker.address) as admin:
        admin.create_topics({'orders': 1})
    with Producer(broker.address) as producer:
        producer.send_batch('orders', [b'v'] * 10)
    with Consumer(broker.address, group_id='billing', auto_offset_reset='earliest') as consumer:
        consumer.subscribe(['orders'])
        while not consumer.poll(1000):
            pass
        consumer.commit()
    return broker


def test_rounds_end_the_watch(watched):
    done = run_in_process('groups', '--bootstrap-server', watched.address, '--watch', '--all-groups', '--rounds', '1',
                          '--json')
    row = json.loads(done.stdout)
    assert (row['group'], row['state'], row['lag'], row['members']) == ('billing', 'Empty', 0, [])


@pytest.mark.parametrize(('end', 'code'), [('interrupt', 130), ('reader', 141)])
def test_a_watch_ends_without_a_word(watched, end, code):
    give_children_the_default_interrupt()
    arguments = command_line('groups', '--bootstrap-server', watched.address, '--watch', '--group', 'billing',
                             '--interval', '0.1', '--json')
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert json.loads(process.stdout.readline())['group'] == 'billing'
        if end == 'interrupt':
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
        assert process.wait(60) == code
        assert process.stderr.read() == ''


@pytest.mark.parametrize(('arguments', 'words'), [
    (('--watch',), '--watch needs --group or --all-groups'), (('--watch', '--list'), 'found --list and --watch'),
    (('--watch', '--group', 'a', '--data-dir', '/'), '--watch needs a broker'),
    (('--describe', '--group', 'a', '--rounds', '2'), '--rounds goes with --watch'),
    (('--watch', '--group', 'a', '--interval', '0'), 'not in the range')])
def test_wrong_usage_is_reported_with_exit_code_2(arguments, words):
    done = run_in_process('groups', *arguments)
    assert done.returncode == 2
    assert words in ' '.join(done.stderr.split())

"""kbroker-exporter on a live cluster: lags in offsets and in records, open and hanging transactions, few requests, and
what is left out of a collection, with its reason. Kafka judges that it works with Apache Kafka too.
"""
import signal
import subprocess
import threading
import urllib.request

import pytest
from support.brokers.broker_process import BrokerProcess
from support.brokers.scripted_broker import serving
from support.clients.tv1_producer import SocketPeer, Tv1Producer, create_topics
from support.kafka.apache_kafka import KafkaProcess
from support.runner.command_runner import ROOT, command_line, run_in_process

from kbroker.base.clock import Clock, ManualClock, Timers
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import replace
from kbroker.base.long_work import LongWork
from kbroker.client import Admin, Consumer, Producer
from kbroker.client.cluster import Cluster, Node
from kbroker.client.config import ClientConfig
from kbroker.client.connection import Connection
from kbroker.client.errors import ClientError
from kbroker.client.share_consumer import ShareConsumer
from kbroker.client.time_limit import OutOfTime
from kbroker.page.render import page
from kbroker.protocol.api_keys import ApiKey
from kbroker_tools.exporter.collector import Collector, Options
from kbroker_tools.exporter.facts import PartitionEnds, RecordBounds
from kbroker_tools.exporter.metrics import METRICS, samples
from kbroker_tools.exporter.page_facts import PageSource
from kbroker_tools.exporter.sharing import SharedFacts

SETTINGS = {'transaction.partition.verification.enable': 'false', 'log.retention.ms': '-1'}
HOUR_MS = 3_600_000
PATIENCE_MS = 120_000
"""The time of a collection. Apache Kafka answers its first requests late on a busy machine."""
GROUPS = 30
PLACES = {'orders': 2, 'plain': 20, 'late': 1}


@pytest.fixture(scope='module', params=[BrokerProcess, pytest.param(KafkaProcess, marks=pytest.mark.jvm)],
                ids=['kbroker', 'apache-kafka'])
def broker(request, tmp_path_factory):
    with request.param(tmp_path_factory.mktemp('broker') / 'data', SETTINGS) as broker:
        write(broker.address)
        yield broker


def write(address):
    """Write 6 committed records, 4 aborted ones and an open transaction to orders-0, a hanging one to `late`."""
    with SocketPeer(address) as peer:
        create_topics(peer, **PLACES)
        pay, hold, lost = (Tv1Producer(peer, name) for name in ('pay', 'hold', 'lost'))
        for count, committed in ((2, True), (4, False), (4, True)):
            pay.add('orders', 0)
            for _ in range(count):
                pay.write('orders')
            pay.end(committed)
        hold.add('orders', 0)
        hold.write('orders')
        hold.write('orders')
        lost.write('late', age_ms=HOUR_MS)
    with Producer(address) as producer:
        for partition in range(20):
            producer.send('plain', b'value', partition=partition)
        producer.flush()
    with Admin(address) as admin:
        admin.alter_group_offsets('near', {('orders', 0): 8})
        admin.alter_group_offsets('far', {('orders', 0): 0, ('plain', 3): 0, ('plain', 4): 1})
        for number in range(GROUPS):
            admin.alter_group_offsets(f'other-{number:02}', {('plain', number % 20): 0})
        admin.alter_share_group_offsets('workers', {('plain', 5): 0})


@pytest.fixture
def cluster(broker):
    cluster = cluster_of(broker.address)
    yield cluster
    cluster.close()


def cluster_of(address):
    return Cluster(ClientConfig.load(address, None))


def lags_of(facts):
    return {(lag.group_id, lag.topic, lag.partition): lag for lag in facts.lags}


def values_of(facts, name):
    return {labels: value for metric, labels, value in filter(None, samples(facts, shared_counts()))
            if metric.name == name}


def shared_counts():
    return SharedFacts(None, None, 0, None, None, None).counts


def test_lags_count_offsets_to_both_ends_and_the_records_that_a_consumer_gets(cluster):
    lags = lags_of(Collector(cluster, Options(timeout_ms=PATIENCE_MS)).collect())
    far, near = lags['far', 'orders', 0], lags['near', 'orders', 0]
    assert (far.to_high_watermark, far.to_last_stable_offset, far.records) == (15, 13, RecordBounds(6, 6))
    assert (near.to_high_watermark, near.to_last_stable_offset, near.records) == (7, 5, RecordBounds(4, 4))


def test_a_partition_without_transactions_has_bounds_and_its_lag_in_offsets(cluster):
    lags = lags_of(Collector(cluster, Options(timeout_ms=PATIENCE_MS)).collect())
    assert lags['far', 'plain', 3].records == RecordBounds(0, 1)
    assert lags['far', 'plain', 4].records == RecordBounds(0, 0)
    assert lags['far', 'plain', 4].age_ms == 0


def test_groups_of_each_kind_have_their_members_and_lags(broker, cluster):
    members_cluster = Cluster(ClientConfig.from_settings({
        'bootstrap.servers': broker.address, 'group.id': 'share-one'}))
    share = ShareConsumer(members_cluster)
    share.subscribe(['plain'])
    share.poll(1000)
    with (Consumer(broker.address, topics=['plain'], settings={
              'group.id': 'classic-one', 'group.protocol': 'classic', 'enable.auto.commit': 'false'}) as classic,
          Consumer(broker.address, topics=['plain'], settings={
              'group.id': 'consumer-one', 'group.protocol': 'consumer', 'enable.auto.commit': 'false'}) as modern):
        classic.poll(1000)
        modern.poll(1000)
        facts = Collector(cluster, Options(timeout_ms=PATIENCE_MS)).collect()
    share.close()
    members_cluster.close()
    members = {group.group_id: (group.kind, group.members) for group in facts.groups}
    assert members['classic-one'] == ('classic', 1)
    assert members['consumer-one'] == ('consumer', 1)
    assert members['share-one'] == ('share', 1)
    assert members['far'] == ('classic', 0)
    assert ('workers', 'plain', 5, 1) in facts.share_lags
    assert facts.problems == []


def test_the_age_of_an_offset_is_that_of_its_batch(cluster):
    facts = Collector(cluster, Options(timeout_ms=PATIENCE_MS)).collect()
    ages = values_of(facts, 'kbroker_exporter_group_offset_age_seconds')
    assert 0 <= ages['far', 'orders', '0'] < 600
    assert ages['far', 'plain', '4'] == 0


def test_a_second_collection_reads_no_batch_again(cluster):
    collector = Collector(cluster, Options(timeout_ms=PATIENCE_MS))
    assert collector.collect().fetched_bytes > 0
    facts = collector.collect()
    assert facts.fetched_bytes == 0
    assert lags_of(facts)['far', 'orders', 0].records == RecordBounds(6, 6)
    assert lags_of(facts)['far', 'orders', 0].age_ms is not None


def test_without_bytes_to_read_there_are_only_bounds(cluster):
    facts = Collector(cluster, Options(timeout_ms=PATIENCE_MS, read_bytes=0)).collect()
    far = lags_of(facts)['far', 'orders', 0]
    assert (far.records, far.age_ms, facts.fetched_bytes) == (RecordBounds(0, 13), None, 0)
    assert values_of(facts, 'kbroker_exporter_group_lag_records_at_most')['far', 'orders', '0'] == 13
    assert ('far', 'orders', '0') not in values_of(facts, 'kbroker_exporter_group_lag_records')


def test_open_transactions_are_named_with_what_they_hold(cluster):
    facts = Collector(cluster, Options(timeout_ms=PATIENCE_MS)).collect()
    assert [each.transactional_id for each in facts.open_transactions] == ['hold']
    assert values_of(facts, 'kbroker_exporter_partition_held_offsets')['orders', '0'] == 2
    holder, = facts.open_producers['orders', 0]
    assert holder.producer_id == facts.open_transactions[0].producer_id
    assert holder.transaction_first_offset == 13
    assert values_of(facts, 'kbroker_exporter_transaction_oldest_open_age_seconds')[()] > 0


def test_a_hanging_transaction_is_found_and_a_known_one_is_not(cluster):
    facts = Collector(cluster, Options(timeout_ms=PATIENCE_MS)).collect()
    assert [(each.topic, each.partition) for each in facts.hanging] == [('late', 0)]
    lenient = Options(timeout_ms=PATIENCE_MS, max_transaction_timeout_ms=2 * HOUR_MS)
    assert Collector(cluster, lenient).collect().hanging == []


def test_many_groups_and_partitions_cost_as_many_requests_as_one(cluster):
    collector = Collector(cluster, Options(timeout_ms=PATIENCE_MS,
                                           selects_group=lambda group_id: not group_id.endswith('-one')))
    assert collector.collect().problems == []
    facts = collector.collect()
    assert len(facts.groups) == GROUPS + 3
    assert facts.requests | {'DescribeLogDirs': 1} == {
        'Metadata': 1, 'ListGroups': 1, 'OffsetFetch': 1, 'DescribeShareGroupOffsets': 1, 'ListOffsets': 3,
        'ListTransactions': 2, 'DescribeTransactions': 2, 'DescribeProducers': 1, 'DescribeLogDirs': 1}


def test_sizes_are_kept_for_a_minute(cluster):
    clock = ManualClock()
    collector = Collector(cluster, Options(timeout_ms=PATIENCE_MS), clock)
    first = collector.collect()
    assert first.requests['DescribeLogDirs'] == 1
    assert values_of(first, 'kbroker_exporter_topic_size_bytes')['orders',] > 0
    second = collector.collect()
    assert 'DescribeLogDirs' not in second.requests
    assert second.sizes == first.sizes
    clock.advance(60_000)
    assert collector.collect().requests['DescribeLogDirs'] == 1


def test_filters_choose_topics_and_groups(cluster):
    facts = Collector(cluster, Options(timeout_ms=PATIENCE_MS, selects_topic='plain'.__eq__, selects_group='far'.__eq__,
                                       is_filtered=True)).collect()
    assert list(facts.topics) == ['plain']
    assert [group.group_id for group in facts.groups] == ['far']
    assert {lag.topic for lag in facts.lags} == {'plain'}
    assert {size.topic for size in facts.sizes} == {'plain'}


def test_the_page_shows_who_is_open_and_the_lags_of_groups(cluster):
    facts = Collector(cluster, Options(timeout_ms=PATIENCE_MS)).collect()
    source = PageSource('cluster', (), Clock())
    source.note(facts)
    shown = source.facts(facts, None)
    hold, = shown.transactions
    assert (hold.transactional_id, hold.partitions, hold.held_records) == ('hold', (('orders', 0),), 2)
    assert hold.deadline_ms == hold.began_ms + 60_000
    assert {(each.topic, each.holder, each.held_records) for each in shown.held} == {
        ('orders', 'hold', 2), ('late', None, 1)}
    far = next(each for each in shown.lags if each.group == 'far')
    assert (far.partitions, far.to_high_watermark, far.to_last_stable_offset) == (3, 16, 14)
    html = b''.join(filter(None, page(shown, {})))
    assert b'hold' in html and b'far' in html


def test_the_page_shows_the_throughput_between_two_collections(cluster):
    source = PageSource('cluster', (), Clock())
    first = Collector(cluster, Options(timeout_ms=PATIENCE_MS)).collect()
    appended = {at: ends._replace(high_watermark=ends.high_watermark + 1) for at, ends in first.ends.items()}
    second = replace(first, at_ms=first.at_ms + 2000, ends={**appended, ('new', 0): PartitionEnds(0, 500, 500)})
    source.note(first)
    assert source.facts(first, None).series == ()
    source.note(second)
    assert source.facts(second, None).series[0].values == [len(first.ends) / 2]


def test_the_page_of_a_cluster_that_is_not_reached_says_why():
    shown = PageSource('cluster', (), Clock()).facts(None, 'b:1 cannot be reached')
    assert b'b:1 cannot be reached' in b''.join(filter(None, page(shown, {})))


def test_each_sample_is_of_a_declared_metric_and_its_metric_is_in_one_piece(cluster):
    names = []
    for sample in samples(Collector(cluster, Options(timeout_ms=PATIENCE_MS)).collect(), shared_counts()):
        if sample is not None:
            metric, labels, _ = sample
            assert metric in METRICS
            assert len(labels) == len(metric.labels)
            if names[-1:] != [metric.name]:
                names.append(metric.name)
    assert len(names) == len(set(names))
    assert {'kafka_consumergroup_lag', 'kafka_topic_partition_current_offset', 'kafka_brokers'} < set(names)


def test_an_api_that_the_broker_lacks_is_one_problem_and_the_rest_goes_on(cluster, monkeypatch):
    learn = Connection._learn_versions

    def learn_less(connection):
        learn(connection)
        del connection.api_versions[ApiKey.LIST_TRANSACTIONS]

    monkeypatch.setattr(Connection, '_learn_versions', learn_less)
    facts = Collector(cluster, Options(timeout_ms=PATIENCE_MS)).collect()
    assert [problem[:2] for problem in facts.problems] == [('ListTransactions', 'UNSUPPORTED_VERSION')]
    assert 'does not serve ListTransactions: what it reports is left out' in facts.problems[0].line
    assert facts.open_transactions == facts.hanging == []
    assert lags_of(facts)['far', 'orders', 0].records == RecordBounds(6, 6)


def test_a_connection_that_the_broker_has_closed_is_opened_again(cluster):
    collector = Collector(cluster, Options(timeout_ms=PATIENCE_MS))
    collector.collect()
    for connection in cluster._connections.values():
        connection._socket.shutdown(2)
    facts = collector.collect()
    assert facts.problems == []
    assert len(facts.lags) == GROUPS + 4


def test_the_page_lists_each_metric():
    rows = []
    for metric in METRICS:
        labels = ', '.join(f'`{name}`' for name in metric.labels)
        rows.append(f'| `{metric.name}{"_total" if metric.kind == "counter" else ""}` | {labels} | {metric.help} |')
    assert (ROOT / 'docs' / 'exporter.md').read_text().splitlines()[-len(rows):] == rows


# ---- without a cluster

@pytest.fixture(scope='module')
def facts_broker(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp('broker') / 'data') as broker:
        yield broker


@pytest.fixture(scope='module')
def facts(facts_broker):
    cluster = cluster_of(facts_broker.address)
    yield Collector(cluster, Options()).collect()
    cluster.close()



def test_a_broker_that_never_answers_ends_the_collection_in_time():
    hangs = threading.Event()
    with serving(lambda _: hangs.wait(60)) as port:
        cluster = cluster_of(f'127.0.0.1:{port}')
        with pytest.raises((OutOfTime, ClientError)):
            Collector(cluster, Options(timeout_ms=100)).collect()
        hangs.set()
        cluster.close()


class ClusterWithSilentBroker(Cluster):
    """A cluster whose metadata name one more broker, which accepts connections and never answers."""

    silent = None

    def refresh(self, *arguments, **options):
        answer = super().refresh(*arguments, **options)
        self.nodes[99] = self.silent
        return answer


@pytest.fixture
def silent_address():
    hangs = threading.Event()
    with serving(lambda _: hangs.wait(60)) as port:
        yield '127.0.0.1', port
        hangs.set()


def test_a_silent_broker_is_left_out_and_the_others_are_served(facts_broker, silent_address):
    cluster = ClusterWithSilentBroker(ClientConfig.load(facts_broker.address, None))
    cluster.silent = Node(99, *silent_address)
    facts = Collector(cluster, Options(timeout_ms=4_400)).collect()
    assert facts.took_ms < 4_400
    assert [problem.line.partition(':')[0] for problem in facts.problems] == ['broker 99 is left out']
    assert facts.brokers.keys() > {99}
    assert facts.log_directories != []
    cluster.close()


def test_a_silent_bootstrap_server_does_not_keep_the_collection_from_the_next_one(facts_broker, silent_address):
    host, port = silent_address
    cluster = cluster_of(f'{host}:{port},{facts_broker.address}')
    collector = Collector(cluster, Options(timeout_ms=4_400))
    assert collector.collect().log_directories != []
    cluster.close()


class Scrapes:
    """The scrapes of one exporter, whose collections end when the test says so."""

    def __init__(self, interval_ms=10_000):
        self.clock = ManualClock()
        self.timers = Timers(self.clock)
        self.work = LongWork(self.timers)
        self.lines, self.refusals, self.jobs, self.results = [], [], [], []
        self.shared = SharedFacts(self.collect, self.submit, interval_ms, self.clock, self.lines.append,
                                  self.refusals.append)

    def collect(self):
        raise AssertionError('the test ends collections')

    def submit(self, job, done):
        self.jobs.append(done)

    def scrape(self):
        self.work.start(self.shared.current(), lambda error, facts: self.results.append(error or facts))
        self.timers.run_due()

    def end(self, result):
        self.jobs.pop()(result)
        self.timers.run_due()


def test_scrapes_at_the_same_time_share_a_collection(facts):
    scrapes = Scrapes()
    for _ in range(200):
        scrapes.scrape()
    assert len(scrapes.jobs) == 1
    scrapes.end(facts)
    assert scrapes.results == [facts] * 200


def test_scrapes_within_the_interval_get_the_same_facts(facts):
    scrapes = Scrapes()
    scrapes.scrape()
    scrapes.end(facts)
    scrapes.clock.advance(9_999)
    scrapes.scrape()
    assert scrapes.jobs == []
    assert scrapes.results == [facts, facts]
    scrapes.clock.advance(1)
    scrapes.scrape()
    assert len(scrapes.jobs) == 1


def test_a_failure_is_one_line_until_it_changes(facts):
    scrapes = Scrapes(interval_ms=0)
    for error in (ClientError('b:1 cannot be reached'), ClientError('b:1 cannot be reached'), facts):
        scrapes.scrape()
        scrapes.end(error)
    assert scrapes.results == [None, None, facts]
    assert scrapes.lines == ['b:1 cannot be reached; trying again at each scrape', 'the cluster is reached again']
    assert scrapes.shared.problem is None


def test_a_refused_login_at_the_start_ends_the_exporter_and_a_later_one_does_not(facts):
    refusal = KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, 'wrong password')
    first, later = Scrapes(interval_ms=0), Scrapes(interval_ms=0)
    first.shared.begin()
    first.end(refusal)
    assert first.refusals == [refusal]
    for result in (facts, refusal):
        later.scrape()
        later.end(result)
    assert later.refusals == []
    assert later.lines == ['wrong password; trying again at each scrape']


# ---- the command

def test_once_prints_the_metrics(broker):
    done = run_in_process('exporter', '--bootstrap-server', broker.address, '--once', '--timeout', '120', '--groups',
                          'far|near')
    assert (done.returncode, done.stderr) == (0, '')
    assert 'kafka_consumergroup_lag{consumergroup="far",partition="0",topic="orders"} 15.0\n' in done.stdout
    assert 'kbroker_exporter_up 1.0\n' in done.stdout
    assert 'other-00' not in done.stdout


@pytest.mark.parametrize(('arguments', 'text'), [
    (['--topics', '('], "Invalid value for --topics: found '(': found a missing ) at position 1"),
    (['--listen', 'nowhere'], "Invalid value for --listen: found 'nowhere', expected HOST:PORT"),
    (['--once'], '127.0.0.1:1 cannot be reached'),
])
def test_wrong_usage_is_one_clear_line(arguments, text):
    done = run_in_process('exporter', '--bootstrap-server', '127.0.0.1:1', *arguments)
    assert done.returncode != 0
    assert text in done.stderr.splitlines()[-1]


def test_the_exporter_serves_while_its_cluster_is_gone_and_ends_at_sigterm():
    command = command_line('exporter', '--bootstrap-server', '127.0.0.1:1', '--listen', '127.0.0.1:0')
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        url = process.stderr.readline().split()[-1]
        assert url.startswith('http://127.0.0.1:')
        with urllib.request.urlopen(url) as answer:
            assert '\nkbroker_exporter_up 0.0\n' in answer.read().decode()
        with urllib.request.urlopen(url.removesuffix('metrics')) as answer:
            assert b'127.0.0.1:1 cannot be reached' in answer.read()
        taken = subprocess.run(command_line('exporter', '--bootstrap-server', '127.0.0.1:1', '--listen',
                                            url.removeprefix('http://').removesuffix('/metrics')),
                               capture_output=True, text=True, check=False)
        assert (taken.returncode, len(taken.stderr.splitlines())) == (1, 1)
        assert 'Address already in use' in taken.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert process.stderr.read().count('cannot be reached') == 1

"""kbroker-transactions: one command for a broker and for a directory, and one line for each error."""
import json
import shutil
import types

import confluent_kafka
import pytest
from click.testing import CliRunner
from support.brokers.scripted_broker import ScriptedBroker, running
from support.clients.tv1_producer import SocketPeer, Tv1Producer, create_topics
from support.disk.handwritten_directory import HandwrittenDirectory
from support.runner.command_runner import run_command
from support.runner.free_ports import free_port

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker.protocol import messages
from kbroker_tools.base.java_order import in_java_order, partition_hash, string_hash
from kbroker_tools.commands.transactions import main
from kbroker_tools.spark.sink.values import tasks_of
from kbroker_tools.stuck.gatherer import Gatherer

ORDERS, AUDIT = ('orders', 0), ('audit', 0)
NOBODY = '127.0.0.1:1'


def run(*arguments):
    return run_command('transactions', *arguments)


def rows_of(done):
    """Return the rows of a piped table, each a list of cells."""
    assert (done.returncode, done.stderr) == (0, '')
    return [[cell.strip() for cell in line.split('\t')[:-1]] for line in done.stdout.splitlines()][1:]


@pytest.fixture
def stage(tmp_path):
    """Return a directory with an open transaction, a hanging transaction that began an hour ago, and a transactional id
    without a transaction."""
    stage = HandwrittenDirectory(tmp_path / 'data')
    stage.row('open', 'Ongoing', (7, 3), 1, start=1, partitions=[ORDERS, ('orders', 1)], timeout_ms=900_000)
    stage.data(ORDERS, (7, 3), 1)
    stage.data(('orders', 1), (7, 3), 1)
    stage.row('done', 'CompleteCommit', (8, 4), 90, start=91)
    stage.data(AUDIT, (8, 4), 60)
    stage.row('fresh', 'Empty', (9, 0), 5)
    stage.group('readers', ORDERS, 0)
    return stage


@pytest.fixture
def directory(stage):
    return stage.write()


# ---- Kafka's commands, offline

def test_list_offline(directory):
    listed = rows_of(run('list', '--data-dir', directory))
    assert [(row[0], row[2], row[3]) for row in listed] == [
        ('done', '8', 'CompleteCommit'), ('fresh', '9', 'Empty'), ('open', '7', 'Ongoing')]


def test_list_offline_filters_as_a_broker_does(directory):
    def ids(*filters):
        return [row[0] for row in rows_of(run('--data-dir', directory, 'list', *filters))]

    assert ids('--transactional-id-pattern', 'o.*|fre') == ['open']
    assert ids('--duration-filter', '3600000') == ['done', 'fresh']
    assert ids('--duration-filter', '-1', '--transactional-id-pattern', '') == ['done', 'fresh', 'open']


def test_the_list_of_two_phase_commit_leaves_idle_ids_to_the_broker(monkeypatch):
    asked = []
    admin = types.SimpleNamespace(list_transactions=lambda states, **filters: asked.append(states) or [])
    monkeypatch.setattr('kbroker_tools.commands.transactions.open_view',
                        lambda **place: types.SimpleNamespace(is_live=True, admin=admin,
                                                              transactions_of=dict.fromkeys))
    for option in (['--two-phase'], []):
        assert CliRunner().invoke(main, ['list', '--bootstrap-server', NOBODY, *option]).exit_code == 0
    assert asked == [['Ongoing'], []]


def test_transactions_of_two_phase_commit_are_listed_and_described_with_their_way_out(stage):
    stage.row('two-phase', 'Ongoing', (11, 2), 300, start=300, partitions=[('audit', 1)], timeout_ms=2147483647)
    stage.data(('audit', 1), (11, 2), 300)
    stage.row('idle', 'CompleteCommit', (12, 2), 300, start=300, timeout_ms=2147483647)
    directory = stage.write()
    assert [row[0] for row in rows_of(run('list', '--two-phase', '--data-dir', directory))] == ['two-phase']
    described = run('describe', '--transactional-id', 'two-phase', '--data-dir', directory)
    assert described.returncode == 0
    assert 'the open transaction 11:2 never times out' in described.stderr
    assert 'force-terminate --transactional-id two-phase' in described.stderr
    assert run('describe', '--transactional-id', 'idle', '--data-dir', directory).stderr == ''
    explained = run('why-stuck', 'audit:1', '--data-dir', directory)
    assert "'two-phase' is Ongoing, epoch 2, no timeout" in ' '.join(explained.stdout.split())
    found = json.loads(run('why-stuck', 'audit:1', '--data-dir', directory, '--json').stdout)
    assert found['partitions'][0]['coordinator']['expires_at_ms'] is None


def test_the_way_out_of_a_transaction_of_a_spark_query_is_that_of_its_ledger(stage):
    """Spark's ledger may say that the transaction is to be committed. A forced end would lose its records."""
    name = tasks_of('word count', ProducerIdAndEpoch(5, 2)) + '0.17'
    stage.row(name, 'Ongoing', (11, 2), 300, start=300, partitions=[('audit', 1)], timeout_ms=2147483647)
    stage.data(('audit', 1), (11, 2), 300)
    described = CliRunner().invoke(main, ['describe', '--transactional-id', name, '--data-dir', str(stage.write())])
    assert described.exit_code == 0
    assert "finish-spark --prefix 'word count' --dry-run (with --ledger-topic" in described.output
    assert 'force-terminate' not in described.output


def test_describe_offline_in_text_and_json(directory, stage):
    assert rows_of(run('describe', '--transactional-id', 'fresh', '--data-dir', directory))[0][1:] == [
        'fresh', '9', '0', 'Empty', '60000', 'None', 'None', '']
    found = json.loads(run('describe', '--transactional-id', 'open', '--data-dir', directory, '--json').stdout)
    assert (found['start_timestamp_ms'], found['partitions']) == (stage.time(1), ['orders-0', 'orders-1'])


def test_describe_producers_offline(directory, stage):
    assert rows_of(run('describe-producers', '--topic', 'audit', '--partition', '0', '--data-dir', directory)) == [
        ['8', '4', '-1', '0', str(stage.time(60)), '0']]


def test_find_hanging_offline_searches_the_directory(directory, stage):
    found = rows_of(run('find-hanging', '--data-dir', directory))
    assert found == [['audit', '0', '8', '4', '-1', '0', str(stage.time(60)), found[0][-1]]]
    assert int(found[0][-1]) >= 60
    for options, note in ((('--topic', 'orders'), '1 open transaction in 2 partitions'),
                          (('--max-transaction-timeout', '600'), '2 open transactions in 3 partitions')):
        done = run('find-hanging', '--data-dir', directory, *options)
        assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
        assert done.stderr.startswith(f'none hangs; {note}: see kbroker-transactions ')


def test_options_stand_on_either_side_of_the_command_those_behind_it_win(directory, tmp_path):
    expected = run('list', '--data-dir', directory).stdout
    assert run('--data-dir', directory, 'list').stdout == expected
    (tmp_path / 'other').mkdir()
    assert run('--data-dir', tmp_path / 'other', 'list', '--data-dir', directory).stdout == expected
    assert run('--data-dir', directory, 'history', 'open').returncode == 0


# ---- why-stuck

def test_why_stuck_ends_with_1_and_begins_with_the_verdict(directory):
    done = run('why-stuck', 'audit:0', '--data-dir', directory)
    assert (done.returncode, done.stderr) == (1, '')
    lines = done.stdout.splitlines()
    assert lines[0].startswith("audit-0 is held at offset 0 by transactional.id 'done': its transaction is hanging")
    assert ('  kbroker-transactions --bootstrap-server HOST:PORT abort --topic audit --partition 0 --start-offset 0'
            in lines)


def test_why_stuck_of_a_topic_counts_its_partitions(directory):
    done = run('--data-dir', directory, 'why-stuck', 'orders')
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == 'orders: 2 of 2 partitions are held'
    assert 'readers: at 0, lag 1' in done.stdout


def test_why_stuck_of_a_group_looks_where_it_reads(directory):
    done = run('--data-dir', directory, 'why-stuck', '--group', 'readers', '--json')
    found = json.loads(done.stdout)
    assert (done.returncode, found['is_stuck']) == (1, True)
    assert {f'{each["topic"]}-{each["partition"]}': each['cause'] for each in found['partitions']} == {
        'orders-0': 'in-progress', '__consumer_offsets-0': 'healthy'}


@pytest.mark.parametrize(('numbers', 'cause'), [
    ((), 'coordinator-unseen'), ((3,), 'coordinator-unseen'), ((0, 2), 'coordinator-unseen'),
    ((0, 1), 'unknown-producer')])
def test_a_directory_without_all_rows_does_not_call_a_transaction_hanging(stage, numbers, cause):
    """In a cluster of several brokers, the rows of a transactional id may be in the directory of another broker."""
    stage.data(('lone', 0), (77, 0), 60)
    directory = stage.write()
    rows = (directory / '__transaction_state-0').rename(directory / 'rows')
    for number in numbers:
        shutil.copytree(rows, directory / f'__transaction_state-{number}')
    shutil.rmtree(rows)
    found, = json.loads(run('why-stuck', 'lone:0', '--data-dir', directory, '--json').stdout)['partitions']
    subcommand = 'why-stuck lone:0' if cause == 'coordinator-unseen' else \
        'abort --topic lone --partition 0 --start-offset 0'
    assert (found['cause'], found['command']) == (
        cause, f'kbroker-transactions --bootstrap-server HOST:PORT {subcommand}')
    searched = run('find-hanging', '--data-dir', directory, '--topic', 'lone')
    assert (searched.returncode, len(searched.stdout.splitlines())) == (0, 2)
    assert ('lacks partitions of __transaction_state' in searched.stderr) == (cause == 'coordinator-unseen')


def test_the_command_of_a_directory_is_for_the_address_that_its_broker_registered(start_broker):
    broker = start_broker({})
    with SocketPeer(broker.address) as peer:
        create_topics(peer, orders=1)
        producer = Tv1Producer(peer, 'tx', timeout_ms=900_000)
        producer.add('orders')
        producer.write('orders')
    broker.stop()
    done = run('why-stuck', 'orders:0', '--data-dir', broker.directory)
    assert (f'  kbroker-transactions --bootstrap-server {broker.address} force-terminate --transactional-id tx'
            in done.stdout.splitlines()), done.stdout


def test_why_stuck_of_a_healthy_partition_says_why(tmp_path):
    stage = HandwrittenDirectory(tmp_path)
    stage.plain(ORDERS, 1, values=3)
    done = run('why-stuck', 'orders:0', '--data-dir', stage.write())
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == 'orders-0 is not held: last stable offset = high watermark = 3'


def test_partitions_that_could_not_be_looked_at_are_counted_in_the_verdict(directory, monkeypatch):
    """The command cannot check the partitions of a topic that is deleted while it runs."""
    whole = Gatherer.facts

    def facts(self, topic, partition):
        if partition == 1:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 'it is gone')
        return whole(self, topic, partition)

    monkeypatch.setattr(Gatherer, 'facts', facts)
    arguments = ['why-stuck', 'orders', '--data-dir', str(directory)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    assert done.stdout.splitlines()[0] == 'orders: 1 of 1 partitions are held, and 1 partition cannot be read'
    assert done.stdout.splitlines()[-1] == 'orders-1 could not be checked: it is gone'
    assert json.loads(CliRunner().invoke(main, [*arguments, '--json']).stdout)['not_seen'] == {
        'orders-1': 'orders-1 could not be checked: it is gone'}


# ---- on a broker

@pytest.fixture
def peer(start_broker):
    broker = start_broker({'transaction.partition.verification.enable': 'false'})
    with SocketPeer(broker.address) as peer:
        peer.address = broker.address
        create_topics(peer, orders=2, audit=1)
        yield peer


def run_command_of(done):
    """Run the command that a verdict names, verbatim."""
    line = next(line for line in done.stdout.splitlines() if line.startswith('  kbroker-transactions '))
    return run(*line.split()[1:])


def test_what_why_stuck_says_to_do_heals(peer):
    old = Tv1Producer(peer, 'old')
    old.add('orders')
    old.write('orders')
    old.end()
    old.write('orders', age_ms=3_600_000)
    live = Tv1Producer(peer, 'live', timeout_ms=900_000)
    live.add('audit')
    live.write('audit')
    where = ('--bootstrap-server', peer.address)
    for place, cause in (('orders:0', 'late-write'), ('audit:0', 'in-progress')):
        found, = json.loads(run(*where, 'why-stuck', place, '--json').stdout)['partitions']
        assert found['cause'] == cause
        stuck = run(*where, 'why-stuck', place)
        assert stuck.returncode == 1
        healed = run_command_of(stuck)
        assert (healed.returncode, healed.stdout) == (0, '')
        assert healed.stderr.splitlines()[1].startswith(f'{place.replace(":", "-")} is not held')
        assert run(*where, 'why-stuck', place).returncode == 0


def test_a_consumer_that_waits_is_named_with_its_client_and_address(peer):
    where = ('--bootstrap-server', peer.address)
    reader = confluent_kafka.Consumer({
        'bootstrap.servers': peer.address, 'group.id': 'readers', 'client.id': 'reader-1',
        'auto.offset.reset': 'earliest', 'isolation.level': 'read_committed', 'enable.auto.commit': False})
    producer = Tv1Producer(peer, 'tx', timeout_ms=900_000)
    for end in (True, None):
        producer.add('audit')
        producer.write('audit')
        if end is not None:
            producer.end(end)
    reader.subscribe(['audit'])
    assert reader.consume(1, 30)[0].value() == b'value'
    reader.commit(asynchronous=False)
    try:
        done = run(*where, 'why-stuck', '--group', 'readers', '--json')
        found = next(each for each in json.loads(done.stdout)['partitions'] if each['is_stuck'])
        assert (done.returncode, found['topic'], found['last_stable_offset']) == (1, 'audit', 2)
        assert found['groups'] == [{'group_id': 'readers', 'offset': 1, 'lag': 2, 'is_past_end': False, 'members': [
            {'client_id': 'reader-1', 'client_host': found['groups'][0]['members'][0]['client_host']}]}]
        assert 'reader-1 at 127.0.0.1' in run(*where, 'why-stuck', 'audit:0').stdout
    finally:
        reader.close()


def test_a_producer_is_known_by_the_group_whose_offsets_it_commits(peer):
    writer = confluent_kafka.Producer({'bootstrap.servers': peer.address, 'transactional.id': 'app-0'})
    reader = confluent_kafka.Consumer({'bootstrap.servers': peer.address, 'group.id': 'app', 'client.id': 'app-reader',
                                       'auto.offset.reset': 'earliest', 'enable.auto.commit': False})
    writer.init_transactions(120)
    writer.begin_transaction()
    writer.produce('audit', b'value', partition=0)
    reader.subscribe(['orders', 'audit'])
    while not reader.assignment():
        reader.poll(0.1)
    writer.send_offsets_to_transaction([confluent_kafka.TopicPartition('orders', 0, 7)],
                                       reader.consumer_group_metadata(), 30)
    assert writer.flush(120) == 0
    try:
        done = run('--bootstrap-server', peer.address, 'why-stuck', 'audit:0')
        assert "it commits offsets of group 'app': app-reader at 127.0.0.1" in done.stdout, done.stdout
        held = run('--bootstrap-server', peer.address, 'why-stuck', '--group', 'app')
        assert '__consumer_offsets-' in held.stdout
        assert "members of 'app' that ask for stable offsets" in ' '.join(held.stdout.split()), held.stdout
    finally:
        reader.close()


def test_the_next_check_of_the_coordinator_follows_from_its_own_setting(peer):
    producer = Tv1Producer(peer, 'tx', timeout_ms=900_000)
    producer.add('orders')
    producer.write('orders')
    done = run('--bootstrap-server', peer.address, 'why-stuck', 'orders:0', '--json')
    assert 'it checks every 200 ms' in json.loads(done.stdout)['partitions'][0]['next']


# ---- errors

def test_a_directory_does_not_abort(directory):
    for arguments in (('abort', '--topic', 'audit', '--partition', '0', '--start-offset', '0'),
                      ('force-terminate', '--transactional-id', 'open')):
        done = run('--data-dir', directory, *arguments)
        assert done.returncode == 2
        assert f'`{arguments[0]}` writes through a broker: give --bootstrap-server' in done.stderr


@pytest.mark.parametrize(('code', 'words', 'arguments'), [
    (2, 'give one of --bootstrap-server', ['--bootstrap-server', NOBODY, 'list', '--data-dir', '{directory}']),
    (2, 'Missing option', ['describe', '--data-dir', '{directory}']),
    (2, "'x' is not a valid integer", ['describe-producers', '--topic', 't', '--partition', 'x']),
    (2, 'requires either --topic or --broker-id', ['find-hanging', '--bootstrap-server', NOBODY]),
    (2, 'requires --topic', ['find-hanging', '--data-dir', '{directory}', '--partition', '0']),
    (2, 'identified either with --start-offset', ['abort', '--topic', 't', '--partition', '0']),
    (2, '--producer-epoch', ['abort', '--topic', 't', '--partition', '0', '--producer-id', '1']),
    (2, '--coordinator-epoch',
     ['abort', '--topic', 't', '--partition', '0', '--producer-id', '1', '--producer-epoch', '0']),
    (2, 'give one of TOPIC', ['why-stuck', 'orders', '--group', 'g', '--data-dir', '{directory}']),
    (2, "found 'orders:x', expected TOPIC:PARTITION", ['why-stuck', 'orders:x', '--data-dir', '{directory}']),
    (2, '--broker-id', ['describe-producers', '--topic', 'orders', '--partition', '0', '--broker-id', '1',
                        '--data-dir', '{directory}']),
    (2, '--broker-id', ['find-hanging', '--broker-id', '1', '--data-dir', '{directory}']),
    (1, "found no transactional id 'nobody'",
     ['describe', '--transactional-id', 'nobody', '--data-dir', '{directory}']),
    (1, 'found no topic lost', ['why-stuck', 'lost', '--data-dir', '{directory}']),
    (1, 'found 2 partitions of orders, no 9', ['why-stuck', 'orders:9', '--data-dir', '{directory}']),
    (1, "found no group 'nobody'", ['why-stuck', '--group', 'nobody', '--data-dir', '{directory}']),
    (1, 'orders-9', ['describe-producers', '--topic', 'orders', '--partition', '9', '--data-dir', '{directory}']),
    (1, 'lost', ['find-hanging', '--topic', 'lost', '--data-dir', '{directory}']),
    (1, '--transactional-id-pattern', ['list', '--transactional-id-pattern', '(', '--data-dir', '{directory}']),
    (1, '127.0.0.1:1', ['list', '--bootstrap-server', NOBODY]),
    (1, '127.0.0.1:1', ['why-stuck', 'orders', '--bootstrap-server', NOBODY]),
    (1, 'expected a log directory', ['list', '--data-dir', '{empty}']),
])
def test_errors_are_reported_in_a_line(directory, tmp_path, code, words, arguments):
    (tmp_path / 'empty').mkdir()
    done = run(*(argument.format(directory=directory, empty=tmp_path / 'empty') for argument in arguments))
    assert (done.returncode, done.stdout) == (code, '')
    assert words in done.stderr.splitlines()[-1]
    assert code == 2 or len(done.stderr.splitlines()) == 1


def test_a_broker_refuses_what_it_does_not_know_in_a_line(peer):
    where = ('--bootstrap-server', peer.address)
    for words, arguments in {
        'lost': ('describe-producers', '--topic', 'lost', '--partition', '0'),
        'orders-9': ('describe-producers', '--topic', 'orders', '--partition', '9'),
        'no replica on broker 9': ('find-hanging', '--broker-id', '9'),
        'broker 9': ('describe-producers', '--topic', 'orders', '--partition', '0', '--broker-id', '9'),
        'regular expression': ('list', '--transactional-id-pattern', '('),
        "'nobody'": ('force-terminate', '--transactional-id', 'nobody'),
        'starting at offset 7 on partition orders-0': ('abort', '--topic', 'orders', '--partition', '0',
                                                       '--start-offset', '7'),
    }.items():
        done = run(*where, *arguments)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, '', 1), done.stderr
        assert words in done.stderr, done.stderr


@pytest.mark.parametrize(('lacking', 'arguments'), [
    ('ListTransactions', ['list']),
    ('DescribeProducers', ['describe-producers', '--topic', 'orders', '--partition', '0']),
    ('DescribeProducers', ['why-stuck', 'orders:0']),
    ('WriteTxnMarkers', ['abort', '--topic', 'orders', '--partition', '0', '--producer-id', '1', '--producer-epoch',
                         '0', '--coordinator-epoch', '0']),
])
def test_a_broker_that_lacks_an_api_is_reported_in_a_line(lacking, arguments):
    broker = ScriptedBroker()

    def metadata(request, respond=broker.metadata):
        if request.topics is None:
            request.topics = [messages.MetadataRequest.MetadataRequestTopic(name='orders')]
        return respond(request)

    broker.answers['Metadata'] = metadata
    with running(broker):
        done = run('--bootstrap-server', f'127.0.0.1:{broker.port}', *arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, '', 1), done.stderr
    assert f'does not serve {lacking}' in done.stderr


def test_a_port_that_is_no_broker_is_reported_in_a_line():
    done = run('list', '--bootstrap-server', f'127.0.0.1:{free_port()}')
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


# ---- Kafka's order

def test_strings_and_partitions_are_hashed_as_java_does():
    assert string_hash('hello') == 99162322
    assert partition_hash(('', 0)) == 31 * 31


def test_a_hash_map_grows_before_it_is_filled_beyond_three_quarters():
    assert in_java_order([16, 1], int) == [16, 1]
    assert in_java_order([*range(16, 28), 1], int) == [1, *range(16, 28)]
    assert in_java_order([3, 1, 2], int, capacity=3) == [1, 2, 3]

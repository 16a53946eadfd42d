"""kbroker-transactions and Apache Kafka's own tool print the same bytes for the same broker.

Covers KIP-664.
"""
import json
import re

import pytest
from click.testing import CliRunner
from support.brokers.broker_process import BrokerProcess
from support.clients.tv1_producer import SocketPeer, Tv1Producer, create_topics
from support.kafka.apache_kafka import KafkaProcess, run_tools

from kbroker_tools.commands.transactions import PROGRAM, main

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

TOOL = 'org.apache.kafka.tools.TransactionsCommand'
HOUR_MS = 3_600_000
SETTINGS = {'transaction.partition.verification.enable': 'false'}
PARTITIONS = 17

COMPARED = [
    'list',
    'list --duration-filter 100000',
    'list --transactional-id-pattern o.*n',
    'describe --transactional-id open',
    'describe --transactional-id done',
    'describe --transactional-id fresh',
    'describe-producers --topic orders --partition 0',
    'describe-producers --topic orders --partition 1 --broker-id 1',
    'describe-producers --topic nobody --partition 0',
    'find-hanging --topic late',
    'find-hanging --topic late --partition 3',
    'find-hanging --broker-id 1',
    'find-hanging --broker-id 1 --topic orders',
    'find-hanging --broker-id 1 --max-transaction-timeout 600',
]
REFUSED = [
    'describe',
    'describe --transactional-id unheard-of',
    'describe-producers --topic orders',
    'describe-producers --topic orders --partition x',
    'list --duration-filter x',
    'list --transactional-id-pattern (',
    'find-hanging',
    'find-hanging --broker-id 1 --partition 0',
    'find-hanging --topic no-such-topic',
    'abort --topic late --partition 0',
    'abort --topic late --partition 0 --producer-id 1',
    'abort --topic late --partition 0 --start-offset 77',
    'forceTerminateTransaction',
    'nonsense',
]
ABORTED = 'abort --topic late --partition 0 --start-offset 0'


@pytest.fixture(scope='module', params=[BrokerProcess, KafkaProcess], ids=['kbroker', 'apache-kafka'])
def broker(request, tmp_path_factory):
    settings = SETTINGS if request.param is KafkaProcess else {'node.id': '1', **SETTINGS}
    with request.param(tmp_path_factory.mktemp('broker') / 'data', settings) as broker:
        with SocketPeer(broker.address) as peer:
            create_topics(peer, orders=PARTITIONS, late=PARTITIONS, nobody=1)
            stage(peer)
        yield broker


def stage(peer):
    """Write transactions in every lasting state, and hanging transactions of two producers on many partitions."""
    done, gone = Tv1Producer(peer, 'done'), Tv1Producer(peer, 'gone')
    Tv1Producer(peer, 'fresh')
    for producer, committed in ((done, True), (gone, False)):
        producer.add('orders', 0, 1)
        producer.write('orders', 0)
        producer.write('orders', 1)
        producer.end(committed)
    for number in range(PARTITIONS):
        (done if number % 2 else gone).write('late', number, age_ms=HOUR_MS)
    producer = Tv1Producer(peer, 'open', timeout_ms=600_000)
    producer.add('orders', *range(PARTITIONS))
    producer.add('nobody')
    producer.write('orders', 0)


@pytest.fixture(scope='module')
def runs(broker):
    """The results of each run, from kbroker's tool and from Kafka's tool. The last run aborts a transaction."""
    mine = [ours(broker, run) for run in (*COMPARED, *REFUSED)]
    theirs = run_tools(TOOL, *(['--bootstrap-server', broker.address, *run.split()]
                               for run in (*COMPARED, *REFUSED, ABORTED)))
    return dict(zip((*COMPARED, *REFUSED, ABORTED), zip([*mine, None], theirs, strict=True), strict=True))


def ours(broker, run):
    return CliRunner().invoke(main, ['--bootstrap-server', broker.address, *run.split()])


def settled(text):
    """Return the output with the durations of transactions replaced by zeros, because they change between two runs."""
    lines = [line.split('\t') for line in text.splitlines()]
    for name in ('TransactionDurationMs', 'Duration(min)'):
        if name in map(str.strip, lines[0]):
            column = [cell.strip() for cell in lines[0]].index(name)
            for row in lines[1:]:
                row[column] = re.sub(r'\d', '0', row[column].ljust(len(name)))
                row[column] = re.sub(r'0+ *', '0'.ljust(len(name)), row[column])
    return '\n'.join('\t'.join(cells) for cells in lines)


def test_the_output_is_that_of_kafkas_tool(runs):
    for run in COMPARED:
        mine, theirs = runs[run]
        assert (mine.exit_code, theirs.code, theirs.errors) == (0, 0, ''), run
        # If find-hanging finds no hanging transaction, it prints the number of open transactions.
        assert mine.stderr == '' or ('find-hanging' in run and mine.stderr.startswith('none hangs; ')), run
        assert settled(mine.stdout) == settled(theirs.output), run


def test_what_kafkas_tool_refuses_is_refused_in_one_line(runs):
    for run in REFUSED:
        mine, theirs = runs[run]
        assert theirs.code == 1 and mine.exit_code in (1, 2), run
        assert mine.stdout == '', run
        assert 'Traceback' not in mine.stderr and len(mine.stderr.splitlines()[-1]) > 20, run


def test_both_tools_end_a_hanging_transaction_alike(broker, runs):
    theirs = runs[ABORTED][1]
    mine = ours(broker, 'abort --topic late --partition 2 --start-offset 0')
    assert (mine.exit_code, mine.stdout) == (theirs.code, theirs.output) == (0, '') and theirs.errors == ''
    assert mine.stderr.startswith('wrote an abort marker of producer id ')
    states = [[re.sub(r'\d{13}', 'time', line) for line in ours(
        broker, f'describe-producers --topic late --partition {number}').stdout.splitlines()] for number in (0, 2)]
    assert states[0] == states[1]
    for number in (0, 2):
        assert ours(broker, f'why-stuck late:{number}').exit_code == 0
    by_ids = ours(broker, 'describe-producers --topic late --partition 4 --json')
    producer = json.loads(by_ids.stdout)
    assert ours(broker, f'abort --topic late --partition 4 --producer-id {producer["producer_id"]} --producer-epoch '
                        f'{producer["producer_epoch"]} --coordinator-epoch {producer["coordinator_epoch"]}'
                ).exit_code == 0
    assert ours(broker, 'why-stuck late:4').exit_code == 0


def test_why_stuck_names_the_command_that_frees_the_partition(broker):
    stuck = ours(broker, 'why-stuck late:1')
    assert stuck.exit_code == 1
    first_line, command = stuck.stdout.splitlines()[0], command_in(stuck.stdout)
    assert first_line == ("late-1 is held at offset 0 by transactional.id 'done': its transaction is hanging, and "
                          'nothing will end it')
    assert command == (f'kbroker-transactions --bootstrap-server {broker.address} abort --topic late --partition 1 '
                       '--start-offset 0')
    assert run_command(command).exit_code == 0
    assert ours(broker, 'why-stuck late:1').exit_code == 0


def test_why_stuck_names_the_command_that_ends_an_open_transaction(broker):
    stuck = ours(broker, 'why-stuck orders:0 --json')
    found, = json.loads(stuck.stdout)['partitions']
    assert (stuck.exit_code, found['cause'], found['transactional_id']) == (1, 'in-progress', 'open')
    assert found['command'].endswith(' force-terminate --transactional-id open')
    assert run_command(found['command']).exit_code == 0
    healthy = ours(broker, 'why-stuck orders')
    assert (healthy.exit_code, healthy.stdout) == (0, 'orders: no partition is held\n')


def command_in(text):
    return next(line.strip() for line in text.splitlines() if line.startswith('  kbroker-transactions '))


def run_command(line):
    program, *arguments = line.split()
    assert program == PROGRAM
    return CliRunner().invoke(main, arguments)

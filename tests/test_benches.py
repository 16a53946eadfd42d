"""The benches run. These tests ignore the measurements."""
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers.broker_process import ROOT, BrokerProcess
from support.spark.spark_machine import quick_start

sys.path.append(str(ROOT / 'bench'))

from peer_report import Results, Row, curves, verdicts
from transaction_cost import LEAST_BLOCKS, interval, judged

STOP_LIMIT_S = 180
BENCHES = sorted((ROOT / 'bench').glob('bench_*.py'))


@pytest.mark.parametrize('bench', BENCHES, ids=lambda bench: bench.stem)
def test_each_bench_runs(bench):
    run(['-m', 'pytest', str(bench), '-o', 'python_files=bench_*.py', '--quick'])


def test_the_bench_of_the_whole_broker_prints_its_table():
    lines = run(['bench/broker.py', '--quick']).splitlines()
    table = [line.strip('| ').split(' | ') for line in lines if line.startswith('|')]
    assert table[0] == ['what', 'figures', 'noise']
    assert {row[0].split(',')[0] for row in table[2:]} == {
        'start to first answer', 'resident when idle', 'produce', 'consume', 'transactions of one record'}


def test_the_bench_of_security_prints_its_tables():
    lines = run(['bench/secured.py', '--quick']).splitlines()
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines if line.startswith('| ')]
    heads = [number for number, row in enumerate(rows) if row[0] in ('logins a second', 'load')]
    assert heads == [0, 2] and len(rows) == 7
    assert [row[0].split()[0] for row in rows[3:]] == ['produce', 'produce', 'fetch', 'transactions']
    assert all(re.fullmatch(r'\d+\.\d{3} \(\d+\.\d{3} to \d+\.\d{3}\)', cell) for row in rows[3:] for cell in row[3:])


def test_the_bench_of_the_fixture_measures_three_suites():
    lines = run(['bench/fixture.py', '--quick']).splitlines()
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines if line.startswith('| ')]
    assert [row[0] for row in rows[1:]] == ['one process', 'two processes', 'tests of 0.4 s']
    assert all(float(row[4]) > 0 for row in rows[1:])


def test_the_bench_of_clients_prints_its_tables():
    lines = run(['bench/clients.py', '--quick']).splitlines()
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines if line.startswith('| ')]
    assert [row[0] for row in rows if row[-1] == 'to confluent-kafka'] == [
        'produce 100 B', 'consume 100 B', 'produce 1,024 B', 'consume 1,024 B']
    figures = [row for row in rows if row[-1] != 'to confluent-kafka']
    assert len(figures) == 32
    assert all(float(row[-1].split()[0]) > 0 for row in figures)


def test_the_bench_of_groups_measures_rebalances_and_idle_members():
    lines = run(['bench/groups.py', '--quick', '--peers', 'kbroker-disk']).splitlines()
    (row,) = [line.split('|')[1:-1] for line in lines if line.startswith('| kbroker-disk')]
    assert len(row) == 4 and 0 < float(row[1].split()[0]) < 60


def test_the_bench_of_share_groups_reads_everything():
    lines = run(['bench/shares.py', '--quick', '--peers', 'kbroker-disk']).splitlines()
    (row,) = [line.split('|')[1:-1] for line in lines if line.startswith('| kbroker-disk')]
    assert len(row) == 3 and float(row[1].split()[0]) > 0


def test_the_bench_of_dump_log_prints_its_table():
    lines = run(['bench/dump_log.py', '--quick']).splitlines()
    table = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
    assert table[0] == ['what', 'kbroker', 'Kafka', 'times as fast']
    assert [row[0].rpartition(', ')[::2] for row in table[2:]] == [
        (name, kind) for name in ('1 MiB, 8700 records', '100 KiB, Kafka as its script starts it',
                               '100 KiB, Kafka in the leanest Java machine') for kind in ('wall', 'cpu')]
    assert all(row[1].split()[-1] in ('records/s', 'ms') for row in table[2:])


def test_the_bench_of_fresh_brokers_measures_those_that_need_neither_java_nor_go():
    lines = run(['bench/fresh_brokers.py', '--quick', '--brokers', 'librdkafka,kbroker.testing,kbroker']).splitlines()
    rows = {row[0]: row[1:] for row in ([cell.strip() for cell in line.split('|')[1:-1]]
                                        for line in lines if line.startswith('| '))}
    assert all(float(cpu_s) > 0 for cpu_s in rows['10 tests, CPU s'][1:3])
    assert rows['records that can be read'][:3] == ['1,000'] * 3
    assert rows['an aborted record is hidden from read_committed'] == ['no', 'yes', 'yes']
    assert rows['an acknowledged record outlives SIGKILL'] == ['no', 'yes', 'yes']


@pytest.mark.jvm
@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_bench_of_spark_prints_its_tables():
    lines = run(['bench/spark.py', '--quick'], quick_start()).splitlines()
    tables = [[cell.strip() for cell in line.strip('| ').split(' | ')] for line in lines if line.startswith('| ')]
    heads = {number: len(row) for number, row in enumerate(tables) if row[0] == 'cell'}
    assert list(heads.values()) == [5, 7]
    written = next(number for number, row in enumerate(tables) if row[0].startswith('micro-batches'))
    assert {row[1] for row in tables[max(heads) + 1:written]} == {
        'connector, Kafka', 'connector, kbroker', 'ours, broker', 'ours, files', 'transport'}
    sinks = {'noop', 'noop, Python', 'connector', 'ours, driver', 'ours, prepared'}
    rates = next(number for number, row in enumerate(tables) if row[:2] == ['rows written', 'sink'])
    assert {row[0] for row in tables[written + 1:written + 1 + len(sinks)]} == sinks
    assert {row[1] for row in tables[rates + 1:]} == sinks


def test_the_bench_of_tables_prints_what_needs_no_java():
    lines = run(['bench/lake.py', '--quick', '--what', 'start', '--what', 'partitions']).splitlines()
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines if line.startswith('| ')]
    assert [row[0] for row in rows] == [
        'table', 'Iceberg', 'Delta', '20 partitions, one record in each',
        *(f'{kind}, from the {source}' for source in ('broker', 'files') for kind in ('Iceberg', 'Delta'))]
    assert all(float(cell) >= 0 for row in (*rows[1:3], *rows[4:]) for cell in row[1:])


@pytest.mark.jvm
@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_bench_of_tables_prints_all_its_tables():
    lines = run(['bench/lake.py', '--quick'], quick_start()).splitlines()
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines if line.startswith('| ')]
    heads = [row[0] for row in rows if row[0] in ('values', 'table', 'topic') or ' values of ' in row[0]]
    assert heads[:4] == ['values', 'command, 2,000 values of 200 B', 'table', 'topic']
    ways = {row[2] for row in rows[1:15]}
    assert len(ways) == 7 and ways == {row[0] for row in rows[16:23]}


@pytest.fixture(scope='module')
def address():
    """The address of a broker with a topic of four partitions."""
    with tempfile.TemporaryDirectory() as directory:
        broker = BrokerProcess(pathlib.Path(directory) / 'data', {'kbroker.durability': 'page-cache'})
        broker.start()
        try:
            admin = AdminClient({'bootstrap.servers': broker.address})
            admin.create_topics([NewTopic('loaded', 4)])['loaded'].result(60)
            yield broker.address
        finally:
            broker.kill9()


@pytest.mark.parametrize('loads', [
    ['produce:connections=2,depth=3,partitions=4,each=3,count=50'],
    ['produce:connections=2,depth=3,partitions=4,scattered=1,count=50'],
    ['produce:connections=2,acks=1,size=300,partitions=4,count=50', 'idle:connections=20'],
    ['transaction:connections=3,records=2,each=2,partitions=4,aborts=50,count=20'],
    ['transaction:connections=3,records=2,each=2,partitions=4,version=1,count=20'],
    ['stream:connections=2,depth=3,partitions=4,commit_ms=10,count=50', 'stream:depth=3,partitions=4,count=50'],
    ['fetch:partitions=4,each=2,connections=2,depth=2,once=1', 'fetch:partitions=4,each=4,committed=1,count=20'],
    ['fetch:partitions=4,each=4,from=-1,wait_ms=10,count=20', 'produce:partitions=4,count=50'],
    ['fetch:partitions=4,each=4,session=1,from=-1,wait_ms=10,count=20', 'produce:partitions=4,count=50'],
    ['fetch:partitions=4,session=1,from=2,span=5,count=20'],
], ids=lambda loads: ' beside '.join(load.partition(':')[0] for load in loads))
def test_the_load_generator_finishes_what_it_was_asked_for(address, loads):
    lines = run(['bench/load_generator.py', address, '--seconds', '20', '--warm-up', '0',
                 *(f'{load},topic=loaded' for load in loads)]).splitlines()
    for load, line in zip(loads, lines, strict=False):
        kind, _, options = load.partition(':')
        said_kind, count, unit, *_ = line.split()
        assert (said_kind, unit) == (f'{kind}:', 'transactions,' if kind == 'transaction' else 'requests,')
        expected = re.search('count=(.*)', options)
        if kind == 'stream':
            assert int(count) >= int(expected[1])  # commits count as requests, too
        else:
            assert int(count) == int(expected[1]) if expected else (int(count) > 0) == (kind != 'idle')


def test_the_load_generator_says_which_error_codes_came(address):
    done = subprocess.run([sys.executable, 'bench/load_generator.py', address, 'produce:topic=none,count=3'], cwd=ROOT,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1 and '3 x UNKNOWN_TOPIC_OR_PARTITION' in done.stderr


def test_the_bench_of_peers_measures_those_that_there_are(tmp_path):
    """The test omits peers that need Java or Go, because they take longer than all other tests of this file."""
    out = tmp_path / 'peers.jsonl'
    pattern = 'produce 300 B, 8 x 5$|fetch 64 KiB, 8|transactions of 1, 64 producers, version 2( .disk.)?$|confluent'
    arguments = ['bench/peers.py', '--quick', '--set', 'all', '--peers', 'kbroker,kbroker-disk', '--cells', pattern,
                 '--out', str(out)]
    lines = run(arguments).splitlines()
    table = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines if line.startswith('| ')]
    head = next(index for index, row in enumerate(table) if row[:2] == ['cell', 'peer'])
    assert {(row[0], row[1]) for row in table[head + 1:]} == {
        ('produce 300 B, 8 x 5', 'kbroker'), ('fetch 64 KiB, 8 x 1', 'kbroker'),
        ('transactions of 1, 64 producers, version 2', 'kbroker'),
        ('transactions of 1, 64 producers, version 2 (disk)', 'kbroker-disk'),
        ('confluent-kafka producer, 1 KB', 'kbroker'), ('confluent-kafka consumer, 1 KB', 'kbroker')}
    assert not [row for row in table if '**' in row[2]]
    assert ElementTree.parse(out.with_suffix('.svg')).getroot().tag.endswith('svg')
    assert out.with_suffix('.md').read_text() == run([*arguments, '--report'])


@pytest.mark.jvm
def test_the_bench_of_peers_measures_apache_kafka(tmp_path):
    assert_measured('kafka', tmp_path)


@pytest.mark.skipif(not (ROOT / 'bench' / 'out' / 'kfake').exists(),
                    reason='bench/out/kfake is not there: bench/peers.py compiles it, with Go, which takes a minute')
def test_the_bench_of_peers_measures_kfake(tmp_path):
    assert_measured('kfake', tmp_path)


def assert_measured(peer, directory):
    lines = run(['bench/peers.py', '--quick', '--seconds', '1', '--peers', peer, '--cells', 'round trip', '--out',
                 str(directory / 'peers.jsonl')]).splitlines()
    cell, name, rate, *_ = (cell.strip() for cell in lines[-1].strip('| ').split('|'))
    assert (cell, name) == ('round trip of 1 record', peer) and float(rate.replace(',', '')) >= 0


def test_the_bench_of_peers_goes_on_where_it_was(tmp_path):
    """The bench does not measure a cell again that the results file already has, but its table includes the cell."""
    peers = ('kbroker', 'floor', 'floor-files')
    arguments = ['bench/peers.py', '--quick', '--peers', ','.join(peers), '--out', str(tmp_path / 'peers.jsonl')]
    run([*arguments, '--cells', 'round trip'])
    listed = run([*arguments, '--cells', 'round trip|produce 16 KiB, 1 x', '--list']).splitlines()
    assert listed == ['0  produce 16 KiB, 1 x 5', '1  round trip of 1 record']
    table = run([*arguments, '--cells', 'round trip|produce 16 KiB, 1 x']).splitlines()
    rows = [tuple(cell.strip() for cell in line.split('|')[1:3]) for line in table if line.startswith('| ')]
    for row in itertools.product(('round trip of 1 record', 'produce 16 KiB, 1 x 5'), peers):
        assert rows.count(row) == 1
    held = [json.loads(line) for line in (tmp_path / 'peers.jsonl').read_text().splitlines()]
    assert len([row for row in held if row.get('cell') == 'round trip of 1 record' and 'rate' in row['figures']]) == 3


def judgements(produced):
    """Return the verdicts that compare a peer with Kafka for Produce of 16 KiB. `produced` maps each peer to (rate,
    broker CPU).
    """
    rows = [Row('produce 16 KiB, 8 x 5', peer, 1, {'rate': rate, 'cpu_us': cpu_us})
            for peer, (rate, cpu_us) in produced.items()]
    cells = [[cell.strip() for cell in line.split('|')[1:-1]] for line in verdicts(Results(rows))]
    return {figure: said for _, figure, against, *_, said in cells if against == 'kafka'}


def test_a_target_beyond_what_the_floor_reaches_is_no_fault_of_the_broker():
    assert judgements({'kafka': (100, 10), 'kbroker': (280, 4), 'floor': (290, 3.5)}) == {
        'per second': "the client's limit: floor 2.90 x", 'broker CPU each': "the kernel's limit: floor 0.35 x"}
    assert judgements({'kafka': (100, 10), 'kbroker': (280, 4), 'floor': (310, 3)}) == {
        'per second': '**short**', 'broker CPU each': '**short**'}
    assert judgements({'kafka': (100, 10), 'kbroker': (280, 4)}) == {
        'per second': '**short**', 'broker CPU each': '**short**'}
    assert judgements({'kafka': (100, 10), 'kbroker': (300, 3), 'floor': (290, 3.5)}) == {
        'per second': 'met', 'broker CPU each': 'met'}


def test_a_curve_is_judged_by_the_most_by_which_it_rises():
    """A curve that falls is accepted: a broker that handles more requests together has lower costs for each request."""
    costs = {'1': 9, '100': 3, '1,000': 3.5, '10,000': 4.2}
    rows = [Row(f'produce 300 B at random, 8 x 5, {partitions} partitions', peer, 1, {'cpu_us': cost * scale})
            for partitions, cost in costs.items() for peer, scale in (('kafka', 1), ('kbroker', 2))]
    rows.append(Row('produce 300 B at random, 8 x 5, 20,000 partitions', 'kbroker', 1, {'cpu_us': 6}))
    judged_curves = [[cell.strip() for cell in line.split('|')[1:-1]] for line in curves(Results(rows))][2:]
    assert [(peer, points, rise, said) for _, peer, points, rise, said in judged_curves] == [
        ('kafka', '1: 9.00, 100: 3.00, 1,000: 3.50, 10,000: 4.20', '1.40 x', '**short**'),
        ('kbroker', '1: 18.00, 100: 6.00, 1,000: 7.00, 10,000: 8.40, 20,000: 6.00', '1.40 x', '**short**')]


def test_a_loss_is_judged_by_the_interval_of_its_median():
    assert interval([float(number) for number in range(40)]) == (13, 26)
    assert judged([0.01] * 20 + [0.02] * 20, 0.03) == 'met'
    assert judged([0.04] * 20 + [0.05] * 20, 0.03) == '**short**'
    assert judged([0.01] * 20 + [0.05] * 20, 0.03) == 'open'
    assert judged([0.01] * (LEAST_BLOCKS - 1), 0.03) == 'open'


@pytest.mark.parametrize('handling', ['pass', "raise SystemError('error return without exception') from stopped"],
                         ids=['dropped', 'replaced'])
def test_a_stop_that_a_client_library_hides_is_one(handling, tmp_path):
    """In an earlier version, the signal sometimes arrived in a callback of confluent-kafka, where its exception became
    a SystemError, or was only printed. If it was printed, the bench continued and ended with status 0.
    """
    program = ("import signal, sys; sys.path.insert(0, 'bench'); from stopping import workplace\n"
               'with workplace():\n'
               '    try:\n'
               '        signal.raise_signal(signal.SIGTERM)\n'
               '    except BaseException as stopped:\n'
               f'        {handling}\n')
    done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, env={**os.environ, 'TMPDIR': str(tmp_path)},
                          capture_output=True, text=True, timeout=STOP_LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, 'stopped by SIGTERM\n')
    assert not list(tmp_path.iterdir())


STOPPED = {
    'peers': ['bench/peers.py', '--peers', 'kbroker', '--cells', 'round trip', '--rounds', '10000', '--seconds', '0.1',
              '--out', '{directory}/out/peers.jsonl'],
    'transaction_cost': ['bench/transaction_cost.py', '--peers', 'kbroker', '--clients', 'confluent-kafka', '--blocks',
                         '10000', '--slice', '0.2', '--records', '20000', '--warm-up', '0'],
}


@pytest.mark.parametrize('to_group', [False, True], ids=['alone', 'with all it started'])
@pytest.mark.parametrize('bench', STOPPED)
def test_a_bench_that_is_stopped_leaves_nothing_but_what_it_measured(bench, to_group, tmp_path):
    """`timeout` and Ctrl-C signal the whole process group, so the brokers end together with the bench. An earlier
    version of the bench still sent topic deletions to the brokers, and waited five minutes for the answers. Then it
    took the timeout for a failed measurement and started the next broker, instead of stopping.
    """
    temporary = tmp_path / 'temporary'
    temporary.mkdir()
    arguments = [argument.format(directory=tmp_path) for argument in STOPPED[bench]]
    with subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env={**os.environ, 'TMPDIR': str(temporary)},
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        measured = itertools.takewhile(lambda line: 'kbroker' not in line, process.stderr)  # now it is measuring
        said = [*measured]
        assert process.poll() is None, ''.join(said) + process.stdout.read()
        (os.killpg if to_group else os.kill)(process.pid, signal.SIGTERM)
        output, errors = process.communicate(timeout=STOP_LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM, ''.join(said) + errors
    assert 'stopped by SIGTERM' in errors
    assert '| kbroker |' in output
    assert not list(temporary.iterdir())
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # no process of its group is left


IN_A_LIBRARY = """
import ctypes, stopping
stopping.GRACE_S = 0.1
with stopping.workplace(report=lambda: 'measured so far\\n'):
    print('in it', flush=True)
    ctypes.CDLL(None).system(b'exec sleep 600')  # no signal brings it back
"""


def test_a_bench_that_waits_in_a_library_is_ended_by_force_and_reports(tmp_path):
    """If the signal ends the broker as well, a commit of confluent-kafka waits for a minute, and no Python code runs.
    """
    with subprocess.Popen([sys.executable, '-c', IN_A_LIBRARY], cwd=ROOT / 'bench', stdout=subprocess.PIPE,
                          env={**os.environ, 'TMPDIR': str(tmp_path)}, text=True) as process:
        process.stdout.readline()
        process.terminate()
        assert process.wait(STOP_LIMIT_S) == 128 + signal.SIGTERM
        assert process.stdout.read() == 'measured so far\n'
    assert not list(tmp_path.iterdir())


def test_the_bench_of_what_transactions_cost_prints_its_table():
    lines = run(['bench/transaction_cost.py', '--quick', '--peers', 'kbroker', '--clients', 'confluent-kafka,raw'])
    table = [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines.splitlines() if line.startswith('| ')]
    expected = itertools.product(('confluent-kafka', 'raw'), ('transactions of 100 ms', 'read_committed'))
    assert [(row[0], row[2]) for row in table[1:]] == list(expected)
    assert '**failed**' not in lines


def run(arguments, variables=None):
    """Run Python in the project's directory, with additional environment variables. Return its output."""
    result = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=os.environ | (variables or {}),
                            capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout

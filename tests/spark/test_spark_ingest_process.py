"""`kbroker-ingest` as a process, which is killed, interrupted, run on a cluster, or run by spark-submit."""
import contextlib
import json
import os
import pty
import random
import re
import signal
import subprocess
import sys

import pytest
from spark_rows import LogFiles
from support.brokers.broker_process import ROOT
from support.runner.command_runner import command_line, run_command
from support.spark.ingest_topics import LIMIT_S, SteadyWriter, Writer, consumed, create_topic, ingested
from support.spark.spark_cluster import SPARK, SparkCluster, settings
from support.spark.spark_machine import quick_start

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.errors import ClientError
from kbroker_tools.commands.ingest import Retries

pytestmark = pytest.mark.jvm
VARIABLES = {'PYTHONPATH': str(ROOT), 'PYSPARK_PYTHON': sys.executable, 'SPARK_LOCAL_IP': '127.0.0.1'}
SMALL = ('--master', 'local[2]', '--conf', 'spark.driver.memory=512m')


def environment():
    return os.environ | VARIABLES | quick_start()


@pytest.fixture(scope='module')
def writer(shared_broker):
    return Writer(shared_broker.address, 'ingest-process')


def arguments(shared_broker, topic, root):
    return ['--topics', topic, '--from', shared_broker.address, '--to', root / 'to', '--state', root / 'state']


def start(*more):
    return subprocess.Popen(command_line('ingest', *more), cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize('kills', [1, pytest.param(25, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_killed_at_random_it_has_each_row_once_in_the_end(shared_broker, tmp_path, kills, soak_count):
    kills = soak_count(kills, 1)
    topic = create_topic(shared_broker.address)
    given = [*arguments(shared_broker, topic, tmp_path), *SMALL]
    chance = random.Random()
    runs = set()
    with SteadyWriter(shared_broker.address, topic):
        for _ in range(kills):
            process = start(*given, '--follow', '--interval', '0', '--json')
            first = process.stdout.readline()  # the first run has ended, and others follow
            assert first, process.stderr.read()
            runs.add(json.loads(first)['run'])
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, 2))
            process.kill()
            process.communicate(timeout=LIMIT_S)
            rows = ingested(tmp_path / 'to')
            assert len(rows) == len({row[:2] for row in rows})
    assert len(runs) == kills  # each run began where the previous one had ended
    done = run_command('ingest', *given, '--json', env=environment())
    assert (done.returncode, done.stderr) == (0, '')
    assert ingested(tmp_path / 'to') == consumed(shared_broker.address, topic)


@pytest.mark.parametrize(('number', 'code'), [
    (signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.soak)])
def test_a_signal_ends_it_and_leaves_what_was_there(shared_broker, writer, tmp_path, number, code):
    topic = create_topic(shared_broker.address)
    writer.write(topic, 10)
    process = start(*arguments(shared_broker, topic, tmp_path), *SMALL, '--follow', '--interval', '0')
    assert process.stdout.readline().split()[:2] == ['Run', 'Rows']
    process.send_signal(number)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors) == (code, '')
    assert ingested(tmp_path / 'to') == consumed(shared_broker.address, topic)


@pytest.mark.soak
def test_where_snappy_does_not_load_one_line_names_another_codec(tmp_path):
    """The error once was a stack trace of Java, and there was no option for another codec."""
    files = LogFiles(tmp_path / 'log', 'orders')
    files.write('a', 'b')
    files.flush()
    given = ['--topics', 'orders', '--from', tmp_path / 'log', '--to', tmp_path / 'to', '--state', tmp_path / 'state',
             *SMALL, '--conf', 'spark.driver.extraJavaOptions=-Dorg.xerial.snappy.tempdir=/proc/nowhere']
    done = run_command('ingest', *given, env=environment())
    assert (done.returncode, done.stdout) == (1, '')
    assert done.stderr.startswith('kbroker-ingest: the codec snappy does not work here, because Java cannot load its')
    assert done.stderr.count('\n') == 1 and '--compression zstd' in done.stderr
    done = run_command('ingest', *given, '--compression', 'zstd', '--json', env=environment())
    assert (done.returncode, done.stderr) == (0, '')
    assert [row[1] for row in ingested(tmp_path / 'to')] == [0, 1]


@pytest.mark.soak
def test_following_goes_on_when_the_broker_comes_back(broker, tmp_path):
    topic = create_topic(broker.address)
    Writer(broker.address, 'before').write(topic, 10)
    process = start(*arguments(broker, topic, tmp_path), *SMALL, '--follow', '--interval', '0', '--json',
                    '--option', 'kafka.default.api.timeout.ms=1000')
    assert json.loads(process.stdout.readline())['rows'] == 10
    broker.kill9()
    assert re.fullmatch(r'.*127\.0\.0\.1:\d+.*; trying again in 1\.0 s, and for 10 min at most\n',
                        process.stderr.readline())
    broker.start()
    Writer(broker.address, 'behind').write(topic, 20)
    rows = 0
    while rows < 20:    # a run may begin between the writes to two partitions
        rows += json.loads(process.stdout.readline())['rows']
    assert rows == 20
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert re.fullmatch(r'(.* trying again in .*\n)*the source is back after .*\n', errors)
    assert ingested(tmp_path / 'to') == consumed(broker.address, topic)


def test_following_gives_up_when_the_broker_stays_away(broker, tmp_path):
    topic = create_topic(broker.address)
    Writer(broker.address, 'writer').write(topic, 10)
    process = start(*arguments(broker, topic, tmp_path), *SMALL, '--follow', '--interval', '0', '--json',
                    '--option', 'kafka.default.api.timeout.ms=1000', '--give-up-after', '1.5')
    process.stdout.readline()
    broker.kill9()
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert re.fullmatch(r'(.* trying again in .*\n){2,}kbroker-ingest: .*127\.0\.0\.1:\d+.*\n', errors)


class TaskError(Exception):
    """Return the message that PySpark makes of an exception in Python."""


@pytest.mark.parametrize(('error', 'passes'), [
    (ClientError('refused'), True),
    (ClientError('no answer', is_lasting=True), True),
    (KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, 'elsewhere'), True),
    (KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, 'no'), False),
    (TaskError('Job aborted\nTraceback (most recent call last):\n  File x\n'
               'kbroker.client.errors.ClientError: localhost:1: refused\n'), True),
    (TaskError('Traceback (most recent call last):\n  File x\nkbroker.base.errors.KafkaError: fetching t-0: '
               'LEADER_NOT_AVAILABLE: There is no leader\n'), True),
    (TaskError('Traceback (most recent call last):\n  File x\nkbroker.base.errors.KafkaError: fetching t-0: '
               'UNKNOWN_TOPIC_OR_PARTITION: gone\n'), False),
    (TaskError('Job aborted: org.apache.spark.api.python.PythonException: kbroker.client.errors.ClientError: '
               'localhost:1: refused\n\tat java\n'), True),
    (TaskError('[STREAM_FAILED] kbroker.base.errors.KafkaError: topic t: TOPIC_AUTHORIZATION_FAILED: no'), False),
    (TaskError('No space left'), False),
])
def test_what_passes_by_itself_is_waited_for(error, passes):
    clock = ManualClock()
    said, pauses = [], []

    def sleep(seconds):
        pauses.append(seconds)
        clock.advance(round(seconds * 1000))

    retries = Retries(200, said.append, lambda: clock.monotonic_ms() / 1000, sleep)
    with pytest.raises(type(error)):
        for _ in range(20):
            retries.wait(error)
    assert pauses == ([1, 2, 4, 8, 16, 32, 60, 60, 17] if passes else [])
    retries.end()
    assert [text.startswith('the source is back after 3 min 20 s') for text in said[-1:]] == ([True] if passes else [])
    if passes:
        retries.wait(error)
        assert pauses[-1] == 1


def test_what_is_wrong_is_said_in_one_line(shared_broker, tmp_path):
    done = run_command('ingest', *arguments(shared_broker, 'no-such-topic', tmp_path), *SMALL, env=environment())
    assert (done.returncode, done.stdout) == (1, '')
    assert re.fullmatch(r"kbroker-ingest: option subscribe: found topic 'no-such-topic', which does not exist.*\n",
                        done.stderr)


def test_on_a_terminal_it_says_what_it_is_at_and_leaves_the_table(shared_broker, writer, tmp_path):
    topic = create_topic(shared_broker.address)
    writer.write(topic, 10)
    master, slave = pty.openpty()
    process = subprocess.Popen(command_line('ingest', *arguments(shared_broker, topic, tmp_path), *SMALL), cwd=ROOT,
                               env=environment() | {'TERM': 'xterm', 'COLUMNS': '120'}, stdin=slave, stdout=slave,
                               stderr=slave)
    os.close(slave)
    text = b''
    with contextlib.suppress(OSError):  # a terminal that closes
        while data := os.read(master, 1 << 16):
            text += data
    os.close(master)
    assert process.wait(LIMIT_S) == 0
    shown = text.decode()
    phases = [shown.index(words) for words in ('starting Spark ...', 'looking for new records', 'Transactions')]
    assert phases == sorted(phases)
    assert '%' not in shown and 'Traceback' not in shown
    last = re.sub(r'\x1b\[[\d;?]*[A-Za-z]', '', shown).splitlines()[-1].split()
    assert last[:2] == ['1', '10']


def test_a_package_of_spark_that_is_not_there_is_named(shared_broker, writer, tmp_path):
    topic = create_topic(shared_broker.address)
    writer.write(topic, 1)
    done = run_command('ingest', *arguments(shared_broker, topic, tmp_path), *SMALL, '--format', 'avro',
                       env=environment())
    assert (done.returncode, done.stdout) == (1, '')
    assert re.fullmatch(r'kbroker-ingest: files of this format need a Spark package that is missing: give --conf '
                        r'spark\.jars\.packages=org\.apache\.spark:spark-avro_2\.13:4\..*\n', done.stderr)


@pytest.mark.parametrize(('more', 'words'), [
    (['--to', 's3://bucket/a'], 'an object store cannot rename a directory atomically'),
    (['--to', '/tmp/a', '--option', 'x'], "found 'x', expected NAME=VALUE"),
    (['--to', '/tmp/a', '--value-schema', 'a int'], 'give --value-format and --value-schema together'),
    (['--to', '/tmp/a', '--max-rows-per-file', '0'], 'max-rows-per-file'),
])
def test_wrong_usage_is_reported_before_java_starts(more, words):
    done = run_command('ingest', '--topics', 't', '--from', 'localhost:1', '--state', '/tmp/s', *more)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.fixture
def cluster(tmp_path):
    """Yield the address of a Spark master with two workers, which have one core each."""
    cluster = SparkCluster(tmp_path)
    yield cluster.address
    cluster.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_cluster_of_two_workers_runs_it_and_so_does_spark_submit(cluster, shared_broker, writer, tmp_path):
    topic = create_topic(shared_broker.address)
    given = [*arguments(shared_broker, topic, tmp_path), '--json']
    small = ['--conf', 'spark.driver.memory=512m']
    for name, value in settings().items():
        small += ['--conf', f'{name}={value}']
    writer.write(topic, 50)
    done = run_command('ingest', *given, '--master', cluster, *small, timeout=180, env=environment())
    assert (done.returncode, done.stderr) == (0, '')
    assert json.loads(done.stdout)['rows'] == 50
    # An executor on each worker ran tasks.
    assert [len(list(tmp_path.glob(f'work{number}/app-*/*'))) > 0 for number in range(2)] == [True, True]

    writer.write(topic, 50)
    done = subprocess.run([str(SPARK / 'bin' / 'spark-submit'), '--master', cluster, *small,
                           str(ROOT / 'kbroker_tools' / 'commands' / 'ingest.py'), *map(str, given)], cwd=tmp_path,
                          env=environment(), capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)['rows'] == 50
    assert ingested(tmp_path / 'to') == consumed(shared_broker.address, topic)

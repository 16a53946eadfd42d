"""`kbroker-ingest --to-table` as a user runs it: options, reports, signals, kills, and a broker that goes away."""
import json
import os
import random
import signal
import subprocess
import sys

import pytest
from support.brokers.broker_process import ROOT
from support.lake.catalogs import sql_catalog
from support.runner.command_runner import command_line, run_command, run_in_process
from support.spark.ingest_topics import LIMIT_S, SteadyWriter, Writer, consumed, create_topic
from support.spark.spark_machine import quick_start

from kbroker_tools.spark.lake import runners
from kbroker_tools.spark.lake.iceberg import IcebergTable

COLUMNS = ('partition', 'offset', 'key', 'value')


@pytest.fixture(scope='module')
def writer(shared_broker):
    return Writer(shared_broker.address, 'lake-command')


@pytest.fixture
def catalog(tmp_path):
    """Return the settings of a catalog. The file catalog.properties has them, too."""
    settings = sql_catalog(tmp_path)
    (tmp_path / 'catalog.properties').write_text(''.join(f'{name}={value}\n' for name, value in settings.items()))
    return settings


def arguments(address, topic, tmp_path):
    return ['--topics', topic, '--from', address, '--to-table', 'lake.orders', '--table-format', 'iceberg',
            '--catalog', tmp_path / 'catalog.properties']


def start(*more):
    return subprocess.Popen(command_line('ingest', *more), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def rows_in(catalog):
    found = IcebergTable('lake.orders', catalog, {}).load('default').handle.scan().to_arrow()
    return sorted(zip(*(found.column(name).to_pylist() for name in COLUMNS), strict=True))


def leftovers(tmp_path):
    return [path for path in tmp_path.rglob('*') if path.parent.name == 'kbroker-attempts']


@pytest.mark.parametrize(('more', 'message'), [
    ([], 'give exactly one of --to and --to-table; found none of them'),
    (['--to', '/x', '--to-table', 'a.b'], 'give exactly one of --to and --to-table; found --to and --to-table'),
    (['--to', '/x'], '--to needs --state'),
    (['--to-table', 'a.b'], '--to-table needs --table-format'),
    (['--to-table', 'a.b', '--table-format', 'iceberg'], '--to-table needs --catalog'),
    (['--to-table', 'a.b', '--table-format', 'iceberg', '--format', 'orc'], '--format goes with --to, not with '
                                                                            '--to-table'),
    (['--to', '/x', '--state', '/y', '--job', 'one'], '--job goes with --to-table, not with --to'),
    (['--to', 's3://b/x', '--state', '/y'], 'Give --to-table, because the commit of a table is atomic'),
    (['--to-table', 'a.b', '--table-format', 'iceberg', '--target-file-size', '1x'], "found '1x', expected a size"),
])
def test_options_that_do_not_go_together_are_refused(more, message):
    done = run_in_process('ingest', '--topics', 'orders', '--from', 'localhost:9092', *more)
    assert done.returncode == 2
    assert message in ' '.join(done.stderr.split())


def test_spark_and_processes_have_options_of_their_own(tmp_path, catalog):
    for more, message in ((['--conf', 'a=b'], '--conf is for Spark: give --master, too'),
                          (['--master', 'local', '--workers', '2'], '--workers goes with processes of this machine')):
        done = run_in_process('ingest', *arguments('localhost:9092', 'orders', tmp_path), *more)
        assert (done.returncode, message in done.stderr) == (2, True)


@pytest.mark.parametrize(('name', 'extra'), [('pyiceberg', 'iceberg'), ('pyarrow', 'iceberg')])
def test_a_missing_package_is_an_error_that_names_the_extra(tmp_path, catalog, monkeypatch, name, extra):
    for module in [module for module in sys.modules if module.partition('.')[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    done = run_in_process('ingest', *arguments('localhost:9092', 'orders', tmp_path))
    assert done.returncode == 1
    assert f'pip install "kbroker[{extra}]"' in done.stderr


def test_a_report_has_the_snapshot_and_the_number_of_files(shared_broker, writer, catalog, tmp_path):
    topic = create_topic(shared_broker.address)
    writer.write(topic, 10)
    writer.write(topic, 10, 'abort')
    given = arguments(shared_broker.address, topic, tmp_path)
    done = run_in_process('ingest', *given, '--json')
    assert (done.returncode, done.stderr) == (0, '')
    found = json.loads(done.stdout)
    table = IcebergTable('lake.orders', catalog, {}).load('default')
    assert {name: found[name] for name in ('run', 'rows', 'files', 'version', 'lag')} == {
        'run': 1, 'rows': 10, 'files': 1, 'version': table.version, 'lag': 0}
    assert rows_in(catalog) == consumed(shared_broker.address, topic)
    done = run_in_process('ingest', *given)
    assert done.stdout.split()[10:14] == ['Files', 'Version', 'None', '0']


@pytest.mark.parametrize('kills', [1, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_killed_at_random_it_has_each_row_once_in_the_end(shared_broker, catalog, tmp_path, kills, soak_count):
    kills = soak_count(kills, 1)
    topic = create_topic(shared_broker.address)
    given = arguments(shared_broker.address, topic, tmp_path)
    chance = random.Random()
    with SteadyWriter(shared_broker.address, topic):
        for _ in range(kills):
            process = start(*given, '--follow', '--interval', '0', '--json')
            assert process.stdout.readline(), process.stderr.read()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, 1))
            process.kill()
            process.communicate(timeout=LIMIT_S)
            rows = rows_in(catalog)
            assert len(rows) == len({row[:2] for row in rows})
    for _ in range(2):      # the files of a run that did not commit go when a later one has
        done = run_in_process('ingest', *given)
        assert (done.returncode, done.stderr) == (0, '')
        Writer(shared_broker.address, 'more').write(topic, 2)
    run_in_process('ingest', *given)
    assert rows_in(catalog) == consumed(shared_broker.address, topic)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(('number', 'code'), [
    (signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.soak)])
def test_a_signal_ends_it_and_leaves_what_was_there(shared_broker, writer, catalog, tmp_path, number, code):
    topic = create_topic(shared_broker.address)
    writer.write(topic, 10)
    process = start(*arguments(shared_broker.address, topic, tmp_path), '--follow', '--interval', '0')
    assert process.stdout.readline().split()[:2] == ['Run', 'Rows']
    process.send_signal(number)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors) == (code, '')
    assert rows_in(catalog) == consumed(shared_broker.address, topic)
    assert leftovers(tmp_path) == []


def test_following_goes_on_when_the_broker_comes_back(broker, catalog, tmp_path):
    topic = create_topic(broker.address)
    Writer(broker.address, 'before').write(topic, 10)
    process = start(*arguments(broker.address, topic, tmp_path), '--follow', '--interval', '0', '--json',
                    '--option', 'kafka.default.api.timeout.ms=1000')
    assert json.loads(process.stdout.readline())['rows'] == 10
    broker.kill9()
    assert 'trying again' in process.stderr.readline()
    broker.start()
    Writer(broker.address, 'after').write(topic, 10)
    assert json.loads(process.stdout.readline())['rows'] == 10
    process.kill()
    process.communicate(timeout=LIMIT_S)
    assert rows_in(catalog) == consumed(broker.address, topic)


@pytest.mark.parametrize(('workers', 'cores', 'threads'), [
    (1, 1, 0), (1, 2, 2), (1, 64, 2), (2, 2, 0), (2, 3, 1), (2, 4, 2), (8, 2, 0)])
def test_processes_leave_no_core_idle_and_have_few_threads(workers, cores, threads, monkeypatch):
    monkeypatch.setattr(runners, 'cores', lambda: cores)
    assert runners.ProcessRunner(workers).write_threads == threads


@pytest.mark.jvm
def test_on_spark_the_rows_are_the_same(shared_broker, writer, catalog, tmp_path):
    topic = create_topic(shared_broker.address)
    for end in ('commit', 'abort', 'commit'):
        writer.write(topic, 20, end)
    environment = os.environ | {'PYTHONPATH': str(ROOT), 'PYSPARK_PYTHON': sys.executable,
                                'SPARK_LOCAL_IP': '127.0.0.1'} | quick_start()
    done = run_command('ingest', *arguments(shared_broker.address, topic, tmp_path), '--json', '--partition-by',
                       'topic,date', '--master', 'local[2]', '--conf', 'spark.driver.memory=512m', env=environment)
    assert (done.returncode, done.stderr) == (0, '')
    assert json.loads(done.stdout)['rows'] == 40
    assert rows_in(catalog) == consumed(shared_broker.address, topic)
    assert leftovers(tmp_path) == []

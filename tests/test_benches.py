"""The benches still run. What they measure is for those who run them by hand."""
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
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


def test_the_bench_of_dump_log_prints_its_table():
    lines = run(['bench/dump_log.py', '--quick']).splitlines()
    table = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
    assert table[0] == ['what', 'kbroker', 'Kafka', 'times as fast']
    assert [row[0].rpartition(', ')[::2] for row in table[2:]] == [
        (name, kind) for name in ('1 MiB, 8700 records', '100 KiB, Kafka as its script starts it',
                               '100 KiB, Kafka in the leanest Java machine') for kind in ('wall', 'cpu')]
    assert all(row[1].split()[-1] in ('records/s', 'ms') for row in table[2:])


@pytest.mark.jvm
@pytest.mark.timeout(400)
def test_the_bench_of_spark_prints_its_tables():
    lines = run(['bench/spark.py', '--quick']).splitlines()
    tables = [[cell.strip() for cell in line.strip('| ').split(' | ')] for line in lines if line.startswith('| ')]
    heads = [row for row in tables if row[0] == 'cell']
    assert [len(row) for row in heads] == [4, 5]
    rows = tables[tables.index(heads[1]) + 1:]
    assert {row[1] for row in rows} == {'connector, Kafka', 'connector, kbroker', 'ours, broker', 'ours, files',
                                        'transport'}


def run(arguments):
    """Run Python in the project's directory. Returns what it printed."""
    result = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout

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


def run(arguments):
    """Run Python in the project's directory. Returns what it printed."""
    result = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout

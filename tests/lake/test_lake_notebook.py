"""The notebook in docs/examples/notebook: from transactions in a topic to tables of Iceberg and Delta Lake."""
import json
import os
import subprocess
import sys

import pytest
from support.brokers.broker_process import ROOT
from support.spark.spark_machine import quick_start

NOTEBOOK = ROOT / 'docs' / 'examples' / 'notebook' / 'topic-to-table.ipynb'
LIMIT_S = 400
NEXT_CELL = '---- the next cell ----\n'


def is_code(cell):
    return cell['cell_type'] == 'code'


def needs_spark(cell):
    return 'spark' in cell['metadata'].get('tags', ())


def shown(cell):
    return ''.join(line for output in cell['outputs'] for line in output['text'])


def printed(cells, directory):
    """Run the cells in a new Python process, and return what each cell prints."""
    program = f'print({NEXT_CELL!r}, end="")\n'.join(''.join(cell['source']) + '\n' for cell in cells)
    environment = os.environ | {'PYTHONPATH': str(ROOT)} | quick_start()
    done = subprocess.run([sys.executable, '-c', program], cwd=directory, env=environment, capture_output=True,
                          text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(NEXT_CELL)


def test_the_notebook_is_a_valid_file_of_jupyter():
    """The file has the form in which Jupyter writes it, so that a change of a cell is a small difference."""
    text = NOTEBOOK.read_text()
    notebook = json.loads(text)
    assert json.dumps(notebook, indent=1, ensure_ascii=False) + '\n' == text
    assert (notebook['nbformat'], notebook['nbformat_minor']) == (4, 5)
    assert notebook['metadata']['kernelspec']['name'] == 'python3'
    ids = [cell['id'] for cell in notebook['cells']]
    assert len(set(ids)) == len(ids)
    for cell in notebook['cells']:
        expected = {'cell_type', 'id', 'metadata', 'source'}
        assert cell.keys() == (expected | {'execution_count', 'outputs'} if is_code(cell) else expected)
        assert {output['output_type'] for output in cell.get('outputs', ())} <= {'stream'}
        assert not ''.join(cell['source']).endswith('\n')


def test_the_cells_without_spark_print_what_the_notebook_shows(tmp_path):
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())['cells'] if is_code(cell) and not needs_spark(cell)]
    assert printed(cells, tmp_path) == [shown(cell) for cell in cells]


@pytest.mark.soak
@pytest.mark.jvm
def test_all_cells_print_what_the_notebook_shows(tmp_path):
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())['cells'] if is_code(cell)]
    assert any(map(needs_spark, cells))
    assert printed(cells, tmp_path) == [shown(cell) for cell in cells]

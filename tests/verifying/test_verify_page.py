"""The two forms of the verdict of kbroker-verify: the text in the terminal, and the timeline."""
import json
import re

import pytest
from click.testing import CliRunner
from support.runner.browser import dump_dom
from support.worlds.modelled_histories import ModelledRun

from kbroker_tools.commands.verify import main


@pytest.fixture
def recorded(tmp_path):
    """A function that changes the rows of a history, writes the history, and returns the arguments for its check."""
    def write(change=lambda rows: None):
        rows = ModelledRun(3, 400).rows()
        change(rows)
        path = tmp_path / 'history.jsonl'
        path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
        return ['--check-history', str(path), '--output', str(tmp_path / 'out')]
    return write


def lower_stable_offset(rows):
    next(row for row in rows if row['type'] == 'stable')['stable'] -= 1


def mark_zombie(rows):
    fenced = next(row['producer'] for row in rows if row['type'] == 'producer' and row['transactional_id'] == 'fenced')
    row = next(row for row in rows if row['type'] == 'transaction' and row['producer'] == fenced)
    row['writes'][3] = 10**9


def test_a_sound_history_passes(recorded):
    done = CliRunner().invoke(main, recorded())
    assert done.exit_code == 0, done.output
    assert 'Verdict: no anomaly.' in done.output
    assert re.search(r'^  lost write +none$', done.output, re.MULTILINE)


def test_an_anomaly_is_shown_with_its_evidence_and_ends_with_code_1(recorded):
    done = CliRunner().invoke(main, recorded(lower_stable_offset))
    assert done.exit_code == 1
    assert re.search(r'^! stable offset stands still +1: ', done.output, re.MULTILINE)
    assert 'list-0: the last stable offset is' in done.output
    assert 'Verdict: 1 kind of anomalies.' in done.output


def test_an_interrupted_run_is_not_called_sound(recorded):
    done = CliRunner().invoke(main, recorded(list.pop))
    assert done.exit_code == 1
    assert 'The run was not completed' in done.output


def test_a_run_in_which_no_record_was_acknowledged_is_not_called_sound(recorded):
    def refuse_all(rows):
        rows[:] = [row for row in rows if row['type'] in ('start', 'reader', 'finish')]

    done = CliRunner().invoke(main, recorded(refuse_all))
    assert done.exit_code == 1
    assert 'Verdict: none. No record of model was acknowledged.' in done.output


@pytest.mark.parametrize('damage', [
    b'{"type":"po', b'\xff', b'{"type":"poll","reads":[[0,[9223372036854775808],[0]]]}',
], ids=['torn', 'binary', 'number'])
def test_a_damaged_history_is_one_line(recorded, tmp_path, damage):
    arguments = recorded()
    with (tmp_path / 'history.jsonl').open('ab') as file:
        file.write(damage)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1 and 'expected a line of a history' in done.output


@pytest.mark.parametrize(('arguments', 'message'), [
    ([], 'give --bootstrap-server'),
    (['--bootstrap-server', 'here'], "found 'here', expected HOST:PORT"),
    (['--bootstrap-server', 'localhost:65536'], "found 'localhost:65536', expected HOST:PORT"),
    (['--bootstrap-server', 'localhost:1', '--broker-command', "kbroker 'serve"], 'No closing quotation, expected'),
    (['--bootstrap-server', 'localhost:1', '--broker-command', ' '], 'found no word, expected'),
    (['--bootstrap-server', 'localhost:1', '--nemesis', 'kill'], '--nemesis kill needs --broker-command'),
    (['--bootstrap-server', 'localhost:1', '--nemesis', 'rain'], "found 'rain', expected some of cut,"),
    (['--bootstrap-server', 'localhost:1', '--check-history', __file__], '--check-history needs no broker'),
])
def test_wrong_options_are_refused(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2 and message in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.browser
def test_the_timeline_shows_faults_and_marks_the_evidence(recorded, tmp_path):
    def change(rows):
        mark_zombie(rows)
        rows.insert(1, {'type': 'fault', 'fault': 'kill', 'begin': 0, 'end': 300_000, 'detail': ''})

    CliRunner().invoke(main, recorded(change))
    page = dump_dom(tmp_path / 'out' / 'timeline.html')
    assert len(re.findall(r'<rect class="fault"', page)) == 1
    assert len(re.findall(r'class="restart"', page)) == 2       # one in the legend
    assert '>fenced</text>' in page.replace('<title>', '</text>')

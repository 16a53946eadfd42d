"""A shell completes topics, groups and transactional ids from the broker or the directory that the line names."""
import socket
import time

import pytest
from click.shell_completion import BashComplete
from support.runner.command_runner import main_of, run_command

from kbroker_tools.cluster import completion


def suggested(command, *words):
    name = f'kbroker-{command}'
    complete = BashComplete(main_of(command), {}, name, f'_{name}_COMPLETE'.upper())
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


@pytest.fixture(scope='module')
def broker(shared_broker):
    at = ('--bootstrap-server', shared_broker.address)
    assert run_command('topics', *at, '--create', '--topic', 'tab-orders').returncode == 0
    for words in (['--transactional-id', 'tab-loader'], []):
        assert run_command('produce', *at, '--topic', 'tab-orders', *words, stdin='a\n').returncode == 0
    assert run_command('consume', *at, '--topic', 'tab-orders', '--group', 'tab-readers', '--from-beginning',
                       '--max-messages', '1').returncode == 0
    return shared_broker


@pytest.mark.parametrize(('command', 'words', 'found'), [
    ('consume', ['--topic', 'tab-'], ['tab-orders']), ('produce', ['--topic', 'tab-'], ['tab-orders']),
    ('topics', ['--describe', '--topic', 'tab-'], ['tab-orders']), ('acls', ['--topic', 'tab-'], ['tab-orders']),
    ('groups', ['--describe', '--group', 'tab-'], ['tab-readers']), ('consume', ['--group', 'tab-'], ['tab-readers']),
    ('txn-state', ['--transactional-id', 'tab-'], ['tab-loader']),
    ('transactions', ['describe', '--transactional-id', 'tab-'], ['tab-loader']),
    ('transactions', ['history', 'tab-'], ['tab-loader']), ('transactions', ['timeline', 'tab-'], ['tab-orders']),
    ('transactions', ['why-stuck', 'tab-'], ['tab-orders']), ('groups', ['--group', 'none-'], [])])
def test_names_come_from_the_broker(broker, monkeypatch, command, words, found):
    monkeypatch.setenv('KBROKER_BOOTSTRAP_SERVER', broker.address)
    assert suggested(command, *words) == found


def test_the_line_names_the_broker(broker, monkeypatch, tmp_path):
    monkeypatch.setenv('KBROKER_BOOTSTRAP_SERVER', '127.0.0.1:1')
    at = ('--bootstrap-server', broker.address)
    assert suggested('consume', *at, '--topic', 'tab-') == ['tab-orders']
    assert suggested('transactions', *at, 'describe', '--transactional-id', 'tab-') == ['tab-loader']
    assert suggested('transactions', 'describe', *at, '--transactional-id', 'tab-') == ['tab-loader']
    assert suggested('consume', '--topic', 'tab-') == []


def test_names_come_from_a_directory(broker):
    assert suggested('consume', '--data-dir', broker.directory, '--topic', 'tab-') == ['tab-orders']


def test_a_broker_that_does_not_answer_costs_a_second_and_prints_nothing(monkeypatch, capfd):
    monkeypatch.setattr(completion, 'MOST_SECONDS', 0.2)
    with socket.create_server(('127.0.0.1', 0)) as silent:
        began = time.monotonic()
        assert suggested('consume', '--bootstrap-server', f'127.0.0.1:{silent.getsockname()[1]}', '--topic', '') == []
        assert time.monotonic() - began < 5
    assert suggested('consume', '--profile', 'none', '--topic', '') == []
    assert capfd.readouterr() == ('', '')

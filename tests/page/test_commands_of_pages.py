import os
import signal
import subprocess
import sys
import time

import pytest
from support.brokers.broker_process import ROOT

from kbroker.base.clock import Clock, Timers
from kbroker.base.long_work import Pause, run_to_end
from kbroker.network.reactor import Reactor
from kbroker.page import outputs
from kbroker.page.child import MOST_RUNNING, MOST_WAITING, Commands, Result, TooManyCommandsError
from kbroker.page.facts import PageFacts
from kbroker.page.outputs import OutputPages

FACTS = PageFacts('localhost:9092', 'kbroker 1.0', 'id', 1_795_845_000_000,
                  place_options=('--bootstrap-server', 'localhost:9092'))
TIMELINE = b'''<!DOCTYPE html><meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src \
'sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA='">'''


@pytest.fixture
def loop():
    timers = Timers(Clock())
    reactor = Reactor(Clock(), timers)
    yield reactor, timers
    reactor.close()


def module(directory, monkeypatch, text):
    """Write the module that the commands of a test run."""
    (directory / 'acted.py').write_text(text)
    monkeypatch.setenv('PYTHONPATH', f'{directory}{os.pathsep}{ROOT}')


def result_of(loop, steps):
    """Run the loop until the steps have ended, and return their result."""
    while True:
        try:
            pause = next(steps)
        except StopIteration as ended:
            return ended.value
        assert isinstance(pause, Pause)
        loop[0].run_once(1000)


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_command_gets_its_arguments_as_they_are_and_its_outputs_are_apart(loop, tmp_path, monkeypatch):
    module(tmp_path, monkeypatch, 'import sys; print(sys.argv[1:]); print("note", file=sys.stderr); sys.exit(1)')
    result = result_of(loop, Commands(*loop).run(['acted', '$(x)', '--', '--help', 'a b;']))
    assert result == Result(1, b"['$(x)', '--', '--help', 'a b;']\n", 'note\n', None)


def test_a_command_that_writes_more_than_pipes_hold_is_read_to_its_end(loop, tmp_path, monkeypatch):
    module(tmp_path, monkeypatch, 'import sys; sys.stderr.write("e" * 300_000); sys.stdout.write("o" * 300_000)')
    result = result_of(loop, Commands(*loop).run(['acted']))
    assert (len(result.output), len(result.errors), result.problem) == (300_000, 300_000, None)


def test_a_command_that_takes_too_long_is_killed_with_the_processes_that_it_started(loop, tmp_path, monkeypatch):
    module(tmp_path, monkeypatch, f'''
import subprocess, sys
child = subprocess.Popen([{sys.executable!r}, '-c', 'import time; time.sleep(600)'])
print(child.pid, flush=True)
child.wait()
''')
    commands = Commands(*loop, limit_ms=600_000)
    steps = commands.run(['acted'])
    next(steps)
    [child] = commands._running
    while not child._output.endswith(b'\n'):
        loop[0].run_once(1000)
    child.end('it took longer than 20 s')
    result = result_of(loop, steps)
    assert result.problem == 'it took longer than 20 s'
    assert result.status == -9
    assert len(commands) == 0
    gone_by = time.monotonic() + 60     # the kernel ends the grandchild, and its new parent waits for it
    while is_there(int(result.output)) and state_of(int(result.output)) != 'Z':
        assert time.monotonic() < gone_by


def state_of(pid):
    try:
        with open(f'/proc/{pid}/stat') as stat:
            return stat.read().rpartition(')')[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return 'Z'


@pytest.mark.skipif(sys.platform != 'linux', reason='only Linux ends a process with its parent')
def test_a_command_ends_when_its_server_is_killed(tmp_path, monkeypatch):
    module(tmp_path, monkeypatch, 'import time; print(flush=True); time.sleep(600)')
    server = '''
import os, signal
from kbroker.base.clock import Clock, Timers
from kbroker.network.reactor import Reactor
from kbroker.page.child import Commands
timers = Timers(Clock())
reactor = Reactor(Clock(), timers)
commands = Commands(reactor, timers)
steps = commands.run(['acted'])
next(steps)
[child] = commands._running
print(child._process.pid, flush=True)
while not child._output:
    reactor.run_once(1000)
os.kill(os.getpid(), signal.SIGKILL)
'''
    ended = subprocess.run([sys.executable, '-c', server], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    gone_by = time.monotonic() + 60
    while is_there(int(ended.stdout)) and state_of(int(ended.stdout)) != 'Z':
        assert time.monotonic() < gone_by


def test_a_command_whose_server_has_ended_already_does_not_begin():
    ended = subprocess.run([sys.executable, '-m', 'kbroker.page.with_parent', '1', 'this'], capture_output=True,
                           text=True)
    assert (ended.returncode, ended.stdout) == (1, '')
    assert ended.stderr == 'the process 1, which started this one, has ended\n'


def test_the_limit_of_a_command_ends_it(loop, tmp_path, monkeypatch):
    module(tmp_path, monkeypatch, 'import time; time.sleep(600)')
    result = result_of(loop, Commands(*loop, limit_ms=1).run(['acted']))
    assert result.problem == 'it took longer than 0.001 s'


def test_a_command_that_writes_too_much_is_killed(loop, tmp_path, monkeypatch):
    module(tmp_path, monkeypatch, 'while True: print("x" * 1000)')
    result = result_of(loop, Commands(*loop, most_bytes=1 << 20).run(['acted']))
    assert result.problem == 'it wrote more than 1.0 MiB'
    assert len(result.output) < 2 << 20


def test_further_commands_wait_until_another_one_has_ended(loop, tmp_path, monkeypatch):
    module(tmp_path, monkeypatch, 'import time; time.sleep(600)')
    commands = Commands(*loop)
    running = [commands.run(['acted']) for _ in range(MOST_RUNNING)]
    for steps in running:
        next(steps)
    first, *others = [commands.run(['acted']) for _ in range(MOST_WAITING)]
    for steps in first, *others:
        next(steps)
    with pytest.raises(TooManyCommandsError):
        next(commands.run(['acted']))
    module(tmp_path, monkeypatch, 'print("done")')
    running[0].close()
    assert result_of(loop, first).output == b'done\n'
    assert len(commands) == MOST_RUNNING - 1
    for steps in running:
        steps.close()


def test_a_stop_ends_all_commands(loop, tmp_path, monkeypatch):
    module(tmp_path, monkeypatch, 'import time; time.sleep(600)')
    commands = Commands(*loop)
    running = [commands.run(['acted']) for _ in range(MOST_RUNNING)]
    for steps in running:
        next(steps)
    commands.close()
    assert [result_of(loop, steps).problem for steps in running] == ['the server stops'] * MOST_RUNNING
    assert len(commands) == 0


class Recorded:
    """Commands that run nothing: they note their arguments and return a result."""

    def __init__(self, result):
        self._result = result
        self.ran = []

    def run(self, arguments):
        self.ran.append(list(arguments))
        if isinstance(self._result, Exception):
            raise self._result
        return self._result
        yield


def facts():
    yield from ()
    return FACTS


def answer(path, query, result=None):
    commands = Recorded(result or Result(0, b'x\n', '', None))
    return run_to_end(OutputPages(commands, facts).answer(path, query)), commands.ran


def test_a_topic_named_as_an_option_stays_a_topic():
    _, [ran] = answer('/why-stuck', {'topic': '--help', 'partition': '3'})
    assert ran == [outputs.MODULE, 'why-stuck', '--bootstrap-server', 'localhost:9092', '--', '--help:3']
    _, [ran] = answer('/history', {'id': '--data-dir=/etc'})
    assert ran[-2:] == ['--', '--data-dir=/etc']


@pytest.mark.parametrize('path, query', [
    ('/history', {}), ('/history', {'id': 'a\0b'}), ('/history', {'id': 'x' * 5000}),
    ('/timeline', {'topic': 'orders'}),
    ('/timeline', {'topic': '../etc', 'partition': '0'}), ('/timeline', {'topic': 'a b', 'partition': '0'}),
    ('/timeline', {'topic': 'x\n', 'partition': '0'}), ('/why-stuck', {'topic': 'orders', 'partition': '-1'}),
    ('/why-stuck', {'topic': 'orders', 'partition': '²'}), ('/why-stuck', {'topic': 'orders', 'partition': '1' * 99}),
    ('/why-stuck', {'topic': 'o' * 250, 'partition': '0'})])
def test_a_query_that_names_nothing_runs_no_command(path, query):
    page, ran = answer(path, query)
    assert (page.status, ran) == (400, [])
    assert b'found the ' in page.body
    assert b', expected ?' in page.body


def test_a_page_shows_the_output_its_notes_and_the_command_to_copy():
    result = Result(1, b'<held>\nby a\n', 'note\x1b\n', None)
    page, _ = answer('/why-stuck', {'topic': 'orders', 'partition': '0'}, result)
    assert page.status == 200
    assert b'&lt;held&gt;\nby a\nnote\\u{1b}<' in page.body
    assert b'kbroker-transactions why-stuck --bootstrap-server localhost:9092 orders:0<' in page.body


@pytest.mark.parametrize('result, status, text', [
    (Result(-9, b'half', '', 'it took longer than 20 s'), 503, b'The command was ended: it took longer than 20 s.'),
    (Result(1, b'', 'kbroker-transactions: found no topic', None), 502, b'found no topic'),
    (Result(3, b'', '', None), 502, b'ended with status 3'),
    (TooManyCommandsError(), 503, b'20 commands wait already'),
    (OSError('no memory'), 503, b'The command did not start: no memory')])
def test_a_command_that_fails_is_one_clear_line(result, status, text):
    page, _ = answer('/history', {'id': 'app'}, result)
    assert page.status == status
    assert text in page.body


def test_a_timeline_is_served_with_the_hash_of_its_own_script():
    page, [ran] = answer('/timeline', {'topic': 'orders', 'partition': '00'}, Result(0, TIMELINE, 'wrote it\n', None))
    assert ran[1:] == ['timeline', '--bootstrap-server', 'localhost:9092', '--html', '/dev/stdout', 'orders:0']
    assert page.body == TIMELINE
    policy = dict(page.headers)['content-security-policy']
    assert "script-src 'sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA='" in policy
    assert "default-src 'none'" in policy

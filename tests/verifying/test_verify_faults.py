"""The faults of kbroker-verify that concern the broker's process and its clock."""
import io
import os
import random
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from click import ClickException
from support.runner.free_ports import free_port
from support.runner.machine_requirements import do_without

from kbroker_tools.commands import verify
from kbroker_tools.proxy.relay import Proxy
from kbroker_tools.verify.broker_command import CLOCK_FILES, BrokerCommand, BrokerCommandError
from kbroker_tools.verify.nemesis import Nemesis
from kbroker_tools.verify.recorder import Recorder
from kbroker_tools.verify.run import Plan, Run
from kbroker_tools.verify.workloads import Setting, Worker

LISTENS = '''
import socket
import sys

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    listener.accept()
'''


def command_for(tmp_path, program, port, environment=None):
    script = tmp_path / 'broker.py'
    script.write_text(program)
    return BrokerCommand(f'{sys.executable} {script} {port}', ('127.0.0.1', port), tmp_path / 'log', environment)


def test_a_broker_that_was_killed_starts_again(tmp_path):
    broker = command_for(tmp_path, LISTENS, free_port())
    with ExitStack() as stack:
        stack.callback(broker.stop)
        broker.start()
        broker.kill()
        broker.start()
        broker.pause()
    assert (tmp_path / 'log').exists()


def test_another_server_at_the_address_is_not_taken_for_the_broker(tmp_path):
    with socket.create_server(('127.0.0.1', 0)) as other:
        broker = command_for(tmp_path, LISTENS, other.getsockname()[1])
        with pytest.raises(BrokerCommandError, match='accepts connections, expected none before'):
            broker.start()
    broker.stop()


def test_a_broker_that_ended_by_itself_is_reported_and_not_replaced(tmp_path):
    broker = command_for(tmp_path, LISTENS.replace('while True:\n    listener.accept()', 'listener.accept()'),
                         free_port())
    broker.start()
    with pytest.raises(BrokerCommandError, match='ended with code 0'):
        while True:
            broker.check()
    with pytest.raises(BrokerCommandError, match='ended with code 0'):
        broker.kill()
    broker.stop()


def test_a_broker_that_is_gone_at_the_end_leaves_the_history_without_an_end(tmp_path):
    broker = command_for(tmp_path, 'raise SystemExit(3)', free_port())
    with pytest.raises(BrokerCommandError):
        broker.start()
    run = Run(Plan('127.0.0.1:1', 0), tmp_path / 'history', broker)
    run.read_to_the_end(Recorder(io.StringIO(), [], {}))
    assert 'the final reads failed: the broker command ended with code 3' in run.problems[0]


class BusyWorker(Worker):
    """A worker that does not stop."""

    def work(self):
        pass

    def start(self):
        pass

    def join(self, timeout_s):
        return False


def test_nothing_is_final_while_a_worker_goes_on(tmp_path):
    run, stop = Run(Plan('127.0.0.1:1', 0), tmp_path / 'history'), threading.Event()
    recorder = Recorder(io.StringIO(), [], {})
    worker = BusyWorker('busy', Setting(recorder, stop, [], dict), random.Random(1))
    with closing(Proxy([('127.0.0.1', 1)], random.Random(1))) as proxy:
        assert not run.work([worker], stop, recorder, proxy)
    assert "the worker 'busy' did not stop" in run.problems[0]


class LateWriter(Worker):
    """A worker whose first record is acknowledged only after the duration of the run."""

    def work(self):
        self._stop.wait(0.01)
        self._recorder.producer(0, None, 'late', 0)
        self._recorder.sends(0, [0, 0, 5, 0])
        self._stop.wait()


def test_a_run_goes_on_until_each_client_has_had_a_record_acknowledged(tmp_path):
    run, stop = Run(Plan('127.0.0.1:1', 0), tmp_path / 'history'), threading.Event()
    run.writers = {'late'}
    recorder = Recorder(io.StringIO(), [], {})
    worker = LateWriter('late', Setting(recorder, stop, [], dict), random.Random(1))
    with closing(Proxy([('127.0.0.1', 1)], random.Random(1))) as proxy:
        assert run.work([worker], stop, recorder, proxy)
    assert recorder.active_clients == {'late'} and run.problems == []


def test_a_run_does_not_wait_for_ever_for_a_client_that_writes_nothing(tmp_path):
    run, stop = Run(Plan('127.0.0.1:1', 0, patience_s=0.01), tmp_path / 'history'), threading.Event()
    run.writers = {'silent'}
    with closing(Proxy([('127.0.0.1', 1)], random.Random(1))) as proxy:
        assert run.work([], stop, Recorder(io.StringIO(), [], {}), proxy)


def test_a_broker_command_that_ends_is_reported_with_its_last_lines(tmp_path):
    broker = command_for(tmp_path, 'raise SystemExit("no such setting")', free_port())
    with pytest.raises(BrokerCommandError, match=r'ended with code 1; .* ends: no such setting'):
        broker.start()


def test_a_broker_that_was_killed_leaves_no_files_of_its_clock(tmp_path):
    try:
        environment = verify.fake_time(tmp_path / 'clock')
    except ClickException as error:
        do_without('faketime', error.message)
    broker = command_for(tmp_path, LISTENS, free_port(), environment)
    broker.start()
    files = [Path(name.format(broker._process.pid)) for name in CLOCK_FILES]
    assert [file for file in files if not file.exists()] == []
    broker.kill()
    assert [file for file in files if file.exists()] == []


WAIT = """public class Wait {
    public static void main(String[] arguments) throws Exception {
        long start = System.nanoTime();
        java.util.concurrent.locks.LockSupport.parkNanos(100_000_000L);
        System.out.print((System.nanoTime() - start) / 1_000_000);
    }
}
"""


@pytest.mark.jvm
def test_a_java_process_waits_as_long_as_it_asks_with_the_clock_of_a_run(tmp_path):
    """In an earlier version, each wait of a Java process ended immediately, so Apache Kafka kept all processors busy
    and did not start.
    """
    try:
        environment = verify.fake_time(tmp_path / 'clock')
    except ClickException as error:
        do_without('faketime', error.message)
    (tmp_path / 'Wait.java').write_text(WAIT)
    done = subprocess.run(['java', str(tmp_path / 'Wait.java')], env=os.environ | environment, capture_output=True,
                          text=True, check=True)
    assert int(done.stdout) >= 100


def test_the_clock_needs_libfaketime(tmp_path, monkeypatch):
    monkeypatch.setattr(verify, 'FAKE_TIME_LIBRARIES', (str(tmp_path / '*.so'),))
    with pytest.raises(ClickException, match='found no libfaketime'):
        verify.fake_time(tmp_path / 'clock')
    (tmp_path / 'fake.so').touch()
    environment = verify.fake_time(tmp_path / 'clock')
    assert environment['LD_PRELOAD'] == str(tmp_path / 'fake.so')
    assert environment['FAKETIME_TIMESTAMP_FILE'] == str(tmp_path / 'clock')
    assert (tmp_path / 'clock').read_text() == '+0\n'


def test_the_clock_goes_back_after_its_jump_and_the_fault_is_recorded(tmp_path):
    out, stop = io.StringIO(), threading.Event()
    recorder = Recorder(out, [], {})
    with closing(Proxy([('127.0.0.1', 1)], random.Random(1))) as proxy:
        nemesis = Nemesis(('clock',), recorder, random.Random(1), proxy, None, tmp_path / 'clock')
        thread = threading.Thread(target=nemesis.run, args=(stop, (0, 0)))
        thread.start()
        while thread.is_alive() and recorder.counts['faults'] < 1:
            thread.join(0.01)
        stop.set()
        thread.join()
    assert (tmp_path / 'clock').read_text() == '+0\n'
    assert '"fault":"clock"' in out.getvalue()

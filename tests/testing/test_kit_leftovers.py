"""A test process that ends, for any reason, leaves no broker, no port and no directory."""
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from kbroker.testing import Broker, BrokerError

ROOT = pathlib.Path(__file__).parents[2]
LIMIT_MS = 60_000

SCRIPT = '''
    import os, signal, sys
    from kbroker.testing import Broker
    with Broker() as kafka, Broker(settings={'num.partitions': '3'}) as other:
        keeper = os.popen(f'ps -o ppid= -p {kafka.pid}').read().strip()
        print(keeper, kafka.pid, other.pid, kafka.bootstrap_servers, kafka.data_dir, flush=True)
        sys.stdin.readline()
        HOW
'''


class Script:
    """A test process with two brokers, and what it leaves."""

    def __init__(self, how: str, tmp_path: pathlib.Path):
        script = textwrap.dedent(SCRIPT).replace('HOW', how)
        self.temporary = tmp_path / 'temporary'
        self.temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen([sys.executable, '-c', script], cwd=ROOT, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL,
                                        start_new_session=True, env={**os.environ, 'TMPDIR': str(self.temporary)})
        assert self.process.stdout is not None and self.process.stdin is not None
        keeper, first, second, self.address, self.data_dir = self.process.stdout.readline().split()
        self.descriptors = [os.pidfd_open(int(pid)) for pid in (keeper, first, second)]
        self.keeper = int(keeper)
        self.process.stdin.write('\n')
        self.process.stdin.flush()

    def assert_nothing_is_left(self) -> None:
        for descriptor in self.descriptors:
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            assert waiting.poll(LIMIT_MS), 'a process is left'
            os.close(descriptor)
        assert list(self.temporary.iterdir()) == []
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(('127.0.0.1', int(self.address.rpartition(':')[2])))


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGINT])
def test_a_test_process_that_a_signal_ends_leaves_nothing(number, tmp_path):
    script = Script('signal.pause()', tmp_path)
    script.process.send_signal(number)
    script.process.communicate()
    script.assert_nothing_is_left()


def test_a_test_process_that_ends_without_a_clean_up_leaves_nothing(tmp_path):
    script = Script('os._exit(3)', tmp_path)
    script.process.communicate()
    script.assert_nothing_is_left()


def test_a_fork_that_outlives_the_test_process_keeps_nothing_alive(tmp_path):
    script = Script('os.fork() or signal.pause() or os._exit(0)\n    os.kill(os.getpid(), signal.SIGKILL)', tmp_path)
    script.process.wait()
    script.assert_nothing_is_left()
    os.killpg(script.process.pid, signal.SIGKILL)       # the fork is still there
    script.process.communicate()


def test_a_keeper_that_is_killed_takes_its_brokers_along_and_the_next_removes_its_directory(tmp_path):
    script = Script('signal.pause()', tmp_path)
    os.kill(script.keeper, signal.SIGKILL)
    script.process.kill()
    script.process.communicate()
    assert list(script.temporary.iterdir()) != []
    again = Script('pass', tmp_path)
    again.process.communicate()
    again.descriptors += script.descriptors
    again.assert_nothing_is_left()


def test_a_forked_process_does_not_close_the_broker_of_its_parent():
    with Broker() as kafka:
        pid = os.fork()
        if not pid:
            try:
                kafka.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert kafka.is_running


def test_a_forked_process_starts_a_broker_of_its_own():
    with Broker() as kafka:
        pid = os.fork()
        if not pid:
            try:
                with pytest.raises(BrokerError, match='belongs to process'):
                    kafka.kill()
                with Broker() as other:
                    other.create_topic('other')
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        kafka.create_topic('mine')

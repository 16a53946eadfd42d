"""A pytest that is killed, or interrupted in a test, leaves no process, no port and no directory."""
import os
import pathlib
import select
import signal
import socket
import subprocess

import pytest
from support.runner.suites import Suite

LIMIT_MS = 60_000

WAITS = '''
    import os, pathlib, signal
    import pytest

    @pytest.mark.parametrize('number', [1, 2])
    def test_waits(kafka, number):
        status = pathlib.Path(f'/proc/{kafka.pid}/status').read_text()
        keeper = next(line.split()[1] for line in status.splitlines() if line.startswith('PPid:'))
        with open('started', 'w') as started:
            started.write(f'{os.getpid()} {keeper} {kafka.pid} {kafka.bootstrap_servers}\\n')
        signal.pause()
'''


class Started:
    """A suite of which `count` tests wait. `pids` has the processes that run tests."""

    def __init__(self, tmp_path: pathlib.Path, count: int, *arguments: str):
        self.suite = Suite(tmp_path, WAITS)
        os.mkfifo(tmp_path / 'started')
        self.process = subprocess.Popen(self.suite.command('-s', *arguments), cwd=tmp_path,
                                        env=self.suite.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        lines: list[list[str]] = []
        while len(lines) < count:
            lines += [line.split() for line in (tmp_path / 'started').read_text().splitlines()]
        self.pids = [int(line[0]) for line in lines]
        self.addresses = [line[3] for line in lines]
        self.descriptors = [os.pidfd_open(int(pid)) for line in lines for pid in line[:3]]

    def assert_nothing_is_left(self) -> None:
        for descriptor in self.descriptors:
            waiting = select.poll()
            waiting.register(descriptor, select.POLLIN)
            assert waiting.poll(LIMIT_MS), 'a process is left'
            os.close(descriptor)
        assert [path for path in self.suite.temporary.iterdir() if path.name.startswith('kbroker-')] == []
        for address in self.addresses:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(('127.0.0.1', int(address.rpartition(':')[2])))


def test_a_test_that_is_interrupted_leaves_nothing(tmp_path):
    started = Started(tmp_path, 1)
    started.process.send_signal(signal.SIGINT)
    output = started.process.communicate()[0].decode()
    assert started.process.returncode == pytest.ExitCode.INTERRUPTED, output
    started.assert_nothing_is_left()


@pytest.mark.parametrize('are_workers_killed', [False, True], ids=['the controller', 'all'])
def test_processes_of_xdist_that_are_killed_leave_nothing(are_workers_killed, tmp_path):
    started = Started(tmp_path, 2, '-n', '2')
    started.process.kill()
    for pid in started.pids if are_workers_killed else []:
        os.kill(pid, signal.SIGKILL)
    started.process.communicate()
    started.assert_nothing_is_left()

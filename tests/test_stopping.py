"""A clean stop logs its progress, and ends by force if it hangs."""
import logging
import os
import signal
import socket
import subprocess
import sys

import pytest
from support.brokers.broker_process import ROOT
from support.runner.machine_requirements import do_without

from kbroker.daemon import stopping
from kbroker.daemon.stopping import STALL_LIMIT_S, SYNC_LIMIT_S, StopProgress

HANG = """
import logging, signal, sys
from kbroker.daemon import stopping
logging.basicConfig(format='%(message)s')
stopping.LOOK_S, stopping.STALL_LIMIT_S = 0.001, 0
progress = stopping.StopProgress()
signal.pause()
"""


@pytest.fixture
def as_process_1():
    """The start of a command line that runs a program as process 1 of a PID namespace."""
    command = ['unshare', '--pid', '--fork', '--kill-child']
    done = subprocess.run([*command, 'true'], capture_output=True, text=True, check=False)
    if done.returncode:
        do_without('mount', done.stderr.strip())
    return command


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """The socket on which a service manager receives notifications."""
    monkeypatch.setenv('NOTIFY_SOCKET', str(tmp_path / 'notify'))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / 'notify'))
        receiver.settimeout(60)
        yield receiver


@pytest.fixture
def progress(monkeypatch):
    monkeypatch.setattr(stopping, 'LOOK_S', 0.001)
    action = signal.getsignal(signal.SIGALRM)
    progress = StopProgress()
    yield progress
    progress.end()
    signal.signal(signal.SIGALRM, action)


def test_a_stop_that_hangs_ends_the_process_with_a_line_in_the_log():
    """In an earlier version, an alarm ended the whole stop after 30 s without a line in the log, whatever progress it
    had made.
    """
    done = subprocess.run([sys.executable, '-c', HANG], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGALRM
    assert done.stderr == ('the broker ends without a clean stop: no progress for 0 s: answering the requests under '
                           'way; the next start recovers\n')


def test_a_stop_that_hangs_ends_process_1(as_process_1):
    """The kernel ignores a signal with its default action for process 1, which the broker is in a container."""
    done = subprocess.run([*as_process_1, sys.executable, '-c', HANG], cwd=ROOT, capture_output=True, text=True,
                          timeout=180, check=False)
    assert done.returncode == 128 + signal.SIGALRM
    assert 'the broker ends without a clean stop' in done.stderr


def test_a_signal_ends_process_1_before_the_broker_is_ready(as_process_1, tmp_path):
    with subprocess.Popen([*as_process_1, sys.executable, '-m', 'kbroker', 'serve', '--advertise',
                           f'@{tmp_path / "never"}'], cwd=ROOT, stderr=subprocess.PIPE, text=True) as broker:
        assert 'waiting for the address' in broker.stderr.readline()
        process_1, = (ROOT / f'/proc/{broker.pid}/task/{broker.pid}/children').read_text().split()
        os.kill(int(process_1), signal.SIGTERM)
        assert broker.wait(timeout=180) == 128 + signal.SIGTERM


def test_a_stop_that_goes_on_gets_more_time_from_the_service_manager(manager, progress):
    progress.note('closing logs', 1_500, 10_000)
    while 'closing' not in (message := manager.recv(4096).decode()):
        pass
    assert message.splitlines() == ['WATCHDOG=1', f'EXTEND_TIMEOUT_USEC={STALL_LIMIT_S}000000',
                                    'STATUS=Stopping: closing logs, 1,500 of 10,000']


def test_a_stop_that_takes_long_says_in_the_log_how_far_it_is(monkeypatch, manager, progress, caplog):
    monkeypatch.setattr(stopping, 'REPORT_S', 0)
    caplog.set_level(logging.INFO)
    progress.note('syncing the file system', is_sync=True)
    while 'stopping for 0 s: syncing the file system' not in caplog.text:
        manager.recv(4096)


def test_a_single_sync_may_take_longer_than_other_work(progress):
    progress.note('syncing the file system', is_sync=True)
    assert progress._limit_s == SYNC_LIMIT_S > STALL_LIMIT_S
    progress.note('closing logs', 1, 2)
    assert progress._limit_s == STALL_LIMIT_S


def test_the_kernel_ends_a_process_whose_threads_cannot_run(progress):
    left_s = signal.alarm(0)
    assert STALL_LIMIT_S < left_s <= STALL_LIMIT_S + stopping.GRACE_S
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL

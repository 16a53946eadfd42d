"""SIGINT ends a process that inherited an ignored SIGINT, such as one in the background of a script. An interrupted
ingest ends cleanly.
"""
import os
import signal
import subprocess
import sys

import pytest
from support.brokers.broker_process import ROOT, BrokerProcess

IGNORING = ['sh', '-c', 'trap "" INT; exec "$@"', 'sh']
INTERRUPTED_INGEST = """
import atexit, os, subprocess
from types import SimpleNamespace as Some
from kbroker_tools.spark.session import end_with_java
atexit.register(os.abort)
java = subprocess.Popen(['sleep', '600'])
print('run 1', java.pid)
end_with_java(Some(sparkContext=Some(_gateway=Some(proc=java))), 143)
"""
SHOW_ACTION = 'import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)'


def test_a_child_of_a_test_has_the_default_action_for_ctrl_c():
    shown = subprocess.run([sys.executable, '-c', SHOW_ACTION], capture_output=True, text=True, check=True)
    assert shown.stdout == 'True\n'


@pytest.mark.parametrize('processes', ['0', '1'])
def test_a_run_of_the_tests_that_ignores_ctrl_c_passes_that_on_to_no_child(processes):
    name = test_a_child_of_a_test_has_the_default_action_for_ctrl_c.__name__
    environment = {key: value for key, value in os.environ.items() if not key.startswith('PYTEST_')}
    done = subprocess.run([*IGNORING, sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-n', processes,
                           f'{__file__}::{name}'], cwd=ROOT, env=environment, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout


class BackgroundBroker(BrokerProcess):
    """A broker that a script started in the background. It inherits an ignored SIGINT."""

    def launch(self, arguments):
        super().launch([*IGNORING, *arguments])


def test_a_broker_started_with_ctrl_c_ignored_outlives_it(tmp_path):
    broker = BackgroundBroker(tmp_path)
    broker.start()
    os.kill(broker.pid, signal.SIGINT)
    assert broker.end_by(signal.SIGTERM) == 0
    assert not any('SIGINT' in line for line in broker.lines)
    assert (tmp_path / '.kafka_cleanshutdown').exists()


def test_check_ends_its_workers_by_ctrl_c_unless_it_is_ignored(monkeypatch):
    from kbroker_tools.commands import check
    for inherited, left in ((signal.SIG_IGN, signal.SIG_IGN), (signal.default_int_handler, signal.SIG_DFL)):
        before = signal.signal(signal.SIGINT, inherited)
        try:
            check._begin_worker()
            assert signal.getsignal(signal.SIGINT) is left
        finally:
            signal.signal(signal.SIGINT, before)


def test_an_interrupted_ingest_ends_java_and_leaves_without_finalizing_the_interpreter():
    """In an earlier version, an ingest under load ended by SIGABRT, because PySpark's threads ran while the interpreter
    was finalized.
    """
    ended = subprocess.run([sys.executable, '-c', INTERRUPTED_INGEST], cwd=ROOT, capture_output=True, text=True,
                           check=False)
    shown, _, pid = ended.stdout.rpartition(' ')
    assert (ended.returncode, shown, ended.stderr) == (143, 'run 1', '')
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)

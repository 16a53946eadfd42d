"""The faults of kbroker-verify that concern the broker's process and its clock."""
import io
import random
import sys
import threading
from contextlib import closing

import pytest
from click import ClickException
from support.free_ports import free_port

from kbroker_tools import verify
from kbroker_tools.verifying.broker_command import BrokerCommand, BrokerCommandError
from kbroker_tools.verifying.nemesis import Nemesis
from kbroker_tools.verifying.proxy import Proxy
from kbroker_tools.verifying.recorder import Recorder

LISTENS = '''
import socket
import sys

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    listener.accept()
'''


def command_for(tmp_path, program, port):
    script = tmp_path / 'broker.py'
    script.write_text(program)
    return BrokerCommand(f'{sys.executable} {script} {port}', ('127.0.0.1', port), tmp_path / 'log')


def test_a_broker_that_was_killed_starts_again(tmp_path):
    broker = command_for(tmp_path, LISTENS, free_port())
    broker.start()
    broker.kill()
    broker.start()
    broker.pause()
    broker.stop()
    assert (tmp_path / 'log').exists()


def test_a_broker_command_that_ends_is_reported_with_its_last_lines(tmp_path):
    broker = command_for(tmp_path, 'raise SystemExit("no such setting")', free_port())
    with pytest.raises(BrokerCommandError, match=r'ended with code 1; .* ends: no such setting'):
        broker.start()


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
    with closing(Proxy('127.0.0.1', 1, random.Random(1))) as proxy:
        nemesis = Nemesis(('clock',), recorder, random.Random(1), proxy, None, tmp_path / 'clock')
        thread = threading.Thread(target=nemesis.run, args=(stop, (0, 0)))
        thread.start()
        while recorder.counts['faults'] < 1:
            thread.join(0.01)
        stop.set()
        thread.join()
    assert (tmp_path / 'clock').read_text() == '+0\n'
    assert '"fault":"clock"' in out.getvalue()

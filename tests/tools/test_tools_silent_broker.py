"""kbroker-consume and kbroker-share-consume with a broker that falls silent: `--timeout-ms` limits the close, too."""
import os
import signal
import subprocess
from contextlib import contextmanager

import pytest
from support.brokers.broker_fixtures import module_broker
from support.brokers.broker_process import PROMPT_SHARES
from support.runner.command_runner import ROOT, command_line, run_in_process

from kbroker.client import Admin, Producer

LIMIT_S = 25
"""A close without the limit would take 30 s."""
broker = module_broker(PROMPT_SHARES)


@contextmanager
def stopped(broker):
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.parametrize('is_interrupted', [False, True], ids=['idle', 'interrupted'])
@pytest.mark.parametrize(('command', 'options'), [
    ('consume', ('--from-beginning', '--group-protocol', 'classic')),
    ('consume', ('--from-beginning', '--group-protocol', 'consumer')),
    ('share-consume', ())], ids=['classic', 'consumer', 'share'])
def test_a_command_with_a_time_out_ends_beside_a_silent_broker(broker, command, options, is_interrupted):
    name = f'{command}-{len(options) and options[-1]}-{is_interrupted}'
    place = ('--bootstrap-server', broker.address, '--topic', name, '--group', name)
    with Admin(broker.address) as admin:
        assert admin.create_topics({name: 1}) == {name: None}
    if command == 'share-consume':
        assert run_in_process(command.replace('consume', 'groups'), *place, '--reset-offsets', '--to-earliest',
                              '--execute').returncode == 0
    with Producer(broker.address) as producer:
        producer.send(name, b'v', partition=0)
    with subprocess.Popen([*command_line(command), *place, *options, '--timeout-ms', '4000'], cwd=ROOT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == 'v\n'
            with stopped(broker):
                if is_interrupted:
                    process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert 'Processed a total of 1 messages\n' in errors
    assert 'Traceback' not in errors

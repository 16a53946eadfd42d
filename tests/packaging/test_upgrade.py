"""`packaging/upgrade.py`: the clients of `make upgrade` write transactions until the broker is killed, and notice lost,
aborted and reordered records after the next start.
"""
from __future__ import annotations

import json
import os
import pathlib
import runpy
import subprocess
import sys

import pytest
from support.brokers.confined_broker import until

PROGRAM = pathlib.Path(__file__).parents[2] / 'packaging' / 'upgrade.py'
UPGRADE = runpy.run_path(str(PROGRAM))
ENOUGH = 6


def test_a_restart_after_a_kill_keeps_the_records_and_each_loss_is_noticed(start_broker, tmp_path):
    path = tmp_path / 'ledger'
    broker = start_broker()
    with subprocess.Popen([sys.executable, PROGRAM, 'client', broker.address, path, 'load'], cwd=tmp_path,
                          env=os.environ | {'PYTHONPATH': str(PROGRAM.parents[1])}) as load:
        until(lambda: len(UPGRADE['Ledger'](path).committed) >= ENOUGH, 'the load commits nothing')
        broker.kill9()
    assert load.returncode == 0
    broker.start()
    check(broker, path)
    for changed, complaint in CHANGES:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        other = tmp_path / 'changed'
        other.write_text(''.join(f'{json.dumps(line)}\n' for line in changed(lines)))
        with pytest.raises(SystemExit, match=complaint):
            check(broker, other)


CHANGES = [
    (lambda lines: [*lines, ['7777', 'committed']], r"partition 0: found 1 lost records \['7777'\], 0 of aborted"),
    (lambda lines: [[value, 'aborted' if value == '1' else end] for value, end in lines],
     r"found 0 lost records \[\], 1 of aborted transactions \['1'\]"),
    (lambda lines: lines[::-1], 'order kept: False'),
]


def check(broker, path):
    UPGRADE['check'](broker.address, UPGRADE['Ledger'](path))

"""kbroker-verify finds bugs that were planted into a broker, and no bug in an unchanged broker.

Covers promises 1, 2 and 4 of docs/design.md.
"""
import shlex
import sys
from contextlib import contextmanager

import confluent_kafka  # noqa: F401 # the sessions of the clients need it
import pytest
from support.brokers.broker_process import ROOT
from support.brokers.planted_bugs import BUGS, build
from support.runner.free_ports import free_port

from kbroker_tools.verify.anomalies import Kind
from kbroker_tools.verify.broker_command import BrokerCommand
from kbroker_tools.verify.checker import check
from kbroker_tools.verify.history import load
from kbroker_tools.verify.run import Plan, Run

ROUNDS = 12
SETTINGS = {'transaction.state.log.num.partitions': '1', 'offsets.topic.num.partitions': '1',
            'transaction.abort.timed.out.transaction.cleanup.interval.ms': '200'}
STALE_CHECK = 'kbroker.transaction.stale.request.check.enable'
AT_ONCE = 0, 0.05


@contextmanager
def broker(directory, settings=None, program=('-m', 'kbroker'), place=ROOT):
    """Start a broker that a run of kbroker-verify controls. Yield its address and its command."""
    address = '127.0.0.1', free_port()
    words = [sys.executable, '-P', *program, 'serve', '--listen', f'{address[0]}:{address[1]}', '--data-dir',
             str(directory / 'data')]
    for name, value in (SETTINGS | (settings or {})).items():
        words += ['--set', f'{name}={value}']
    found = BrokerCommand(shlex.join(words), address, directory / 'log', {'PYTHONPATH': str(place)})
    try:
        found.start()
        yield f'{address[0]}:{address[1]}', found
    finally:
        found.stop()


def kinds_found(directory, servers, command, **plan):
    """Run kbroker-verify once. Return the kinds of anomalies that it found, and the failures of the run itself."""
    history = directory / 'history.jsonl'
    outcome = Run(Plan(servers, **plan), history, command).run()
    verdict = check(load(history))
    return {kind for kind, _ in verdict.found}, outcome.problems


def find(directory, servers, command, wanted, **plan):
    """Run kbroker-verify until it finds an anomaly of one of the wanted kinds."""
    found = set()
    for seed in range(ROUNDS):
        kinds, _ = kinds_found(directory, servers, command, seed=seed, **plan)
        found |= kinds
        if found & wanted:
            return
    raise AssertionError(f'found {found} in {ROUNDS} rounds, expected one of {wanted}')


HELD = {'seconds': 3, 'nemesis': ('hold',), 'workloads': ('list',), 'clients': ('confluent',), 'pause_s': AT_ONCE}


def test_a_late_request_that_is_applied_to_the_next_transaction_is_found(tmp_path):
    with broker(tmp_path, {STALE_CHECK: 'false'}) as (servers, command):
        find(tmp_path, servers, command, {Kind.ABORTED_READ, Kind.PRECOMMITTED_READ, Kind.TORN}, **HELD)


def test_late_requests_do_no_harm_to_the_broker_as_it_is(tmp_path):
    with broker(tmp_path) as (servers, command):
        assert kinds_found(tmp_path, servers, command, **HELD) == (set(), [])


def test_an_acknowledged_write_that_a_power_cut_takes_is_found(tmp_path):
    program = [str(ROOT / 'tests' / 'support' / 'brokers' / 'power_cut.py'), str(tmp_path / 'data'), 'input', '--']
    with broker(tmp_path, program=program) as (servers, command):
        find(tmp_path, servers, command, {Kind.LOST_WRITE}, seconds=2, nemesis=('kill',), workloads=('transform',),
             clients=('kbroker',), pause_s=(0.3, 0.6))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_writes_that_are_acknowledged_before_their_sync_are_found(tmp_path):
    program = [str(ROOT / 'tests' / 'support' / 'brokers' / 'power_cut.py'), str(tmp_path / 'data'), '', '--']
    with broker(tmp_path, {'kbroker.durability': 'page-cache'}, program=program) as (servers, command):
        find(tmp_path, servers, command, {Kind.LOST_WRITE}, seconds=10, nemesis=('kill',), pause_s=(0.3, 0.6),
             patience_s=5)


WANTED = {
    'last stable offset early': {Kind.PRECOMMITTED_READ, Kind.ABORTED_READ},
    'fencing skipped': {Kind.ZOMBIE},
    'duplicate forgotten': {Kind.DUPLICATE},
    'marker dropped': {Kind.STABLE_OFFSET, Kind.LOST_WRITE, Kind.TORN, Kind.ABORTED_READ, Kind.UNREADABLE},
    'acceptance forgotten': {Kind.REDELIVERED},
    'release taken for a rejection': {Kind.PASSED_OVER},
}


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize('bug', BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(tmp_path, bug):
    place = build(bug, tmp_path / 'planted')
    with broker(tmp_path, place=place) as (servers, command):
        find(tmp_path, servers, command, WANTED[bug.name], seconds=10, nemesis=('cut',), pause_s=(0.1, 0.5),
             patience_s=5)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_sound_broker_shows_no_anomaly_in_an_hour(tmp_path, soak_minutes, soak_seed, tally):
    """`--soak-share` changes the duration, and `--soak-seed` the faults."""
    with broker(tmp_path) as (servers, command):
        assert kinds_found(tmp_path, servers, command, seconds=60 * soak_minutes, seed=soak_seed, nemesis=(
            'cut', 'delay', 'hold', 'half-open', 'kill', 'pause')) == (set(), [])
    tally('minutes of kbroker-verify', round(soak_minutes))

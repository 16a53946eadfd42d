"""systemd accepts the installed service, and the broker can run within the restrictions of the service."""
import configparser
import functools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

from kbroker.daemon.main import main
from kbroker.daemon.stopping import GRACE_S, STALL_LIMIT_S
from kbroker.settings.properties import read_properties

ROOT = pathlib.Path(__file__).parent.parent
LARGEST_EXPOSURE = 12
"""The highest allowed score of `systemd-analyze security` in tenths: 0 is the most secure, 100 the least."""

needs_systemd = pytest.mark.skipif(shutil.which('systemd-analyze') is None, reason='systemd-analyze is not installed')


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
    """The directory that `make install-service` installs to, with kbroker in its `bin`."""
    directory = tmp_path_factory.mktemp('installed')
    program = directory / 'bin' / 'kbroker'
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n')
    program.chmod(0o755)
    install(directory)
    return directory


def install(directory):
    return subprocess.run(['make', '--silent', 'install-service', f'DESTDIR={directory}',
                           f'BINDIR={directory / "bin"}'], cwd=ROOT, capture_output=True, text=True, check=True)


def analyze(*arguments):
    return subprocess.run(['systemd-analyze', *map(str, arguments)], capture_output=True, text=True, check=False,
                          env=os.environ | {'SYSTEMD_PAGER': '', 'SYSTEMD_COLORS': '0'})


def unit_of(directory):
    return directory / 'usr/local/lib/systemd/system/kbroker.service'


def settings_of(unit):
    """Return the last value of each setting of a unit file, in which `SystemCallFilter` occurs twice."""
    parser = configparser.ConfigParser(strict=False, delimiters=('=',), comment_prefixes=('#',), interpolation=None)
    parser.optionxform = str
    parser.read_string(unit.read_text())
    return parser['Service']


def test_the_sample_settings_are_valid_and_without_a_warning():
    result = CliRunner().invoke(main, ['config', '--check', str(ROOT / 'packaging' / 'server.properties')])
    assert (result.exit_code, result.stderr) == (0, '')


def test_the_unit_serves_the_settings_and_the_directory_that_are_installed(installed):
    command = settings_of(unit_of(installed))['ExecStart'].split()
    assert command[0] == str(installed / 'bin' / 'kbroker')
    assert not re.search('@[A-Z]+@', unit_of(installed).read_text())
    given, _ = read_properties((installed / command[-1].removeprefix('/')).read_text())
    assert given['log.dirs'] == '/var/lib/' + settings_of(unit_of(installed))['StateDirectory']
    for file in ('sysusers.d', 'tmpfiles.d'):
        assert given['log.dirs'] in (installed / 'usr/local/lib' / file / 'kbroker.conf').read_text()


def test_a_clean_stop_is_given_more_time_than_the_broker_takes_between_two_signs_of_progress(installed):
    assert int(settings_of(unit_of(installed))['TimeoutStopSec']) > STALL_LIMIT_S + GRACE_S


def test_installing_again_keeps_the_settings_of_the_operator(tmp_path):
    install(tmp_path)
    settings = tmp_path / 'etc/kbroker/server.properties'
    settings.write_text('num.partitions=7\n')
    install(tmp_path)
    assert settings.read_text() == 'num.partitions=7\n'


def test_every_man_page_is_installed_in_its_section(installed):
    pages = {path.name for path in (ROOT / 'man').glob('*.[158]')}
    found = {path.name: path.parent.name for path in (installed / 'usr/local/share/man').rglob('*.*')}
    assert found == {name: f'man{name[-1]}' for name in pages}


@needs_systemd
def test_systemd_finds_no_fault_in_the_unit(installed):
    done = analyze('verify', '--man=no', unit_of(installed))
    assert (done.returncode, done.stderr) == (0, '')


@needs_systemd
def test_the_exposure_of_the_service_is_low(installed):
    done = analyze('security', '--offline=true', f'--threshold={LARGEST_EXPOSURE}', '--no-pager', unit_of(installed))
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which('systemd-sysusers') is None, reason='systemd-sysusers is not installed')
def test_the_user_and_the_directory_are_made_as_described(installed):
    (installed / 'etc/passwd').write_text('')
    (installed / 'etc/group').write_text('')
    subprocess.run(['systemd-sysusers', f'--root={installed}'], check=True, capture_output=True)
    name, _, _, _, _, home, shell = (installed / 'etc/passwd').read_text().strip().split(':')
    assert (name, home) == ('kbroker', '/var/lib/kbroker')
    assert shell.endswith('nologin')


@functools.cache
def group_of_system_calls(name):
    calls = set()
    for line in analyze('syscall-filter', name).stdout.splitlines()[1:]:
        word = line.strip()
        if word.startswith('@'):
            calls |= group_of_system_calls(word)
        elif word and not word.startswith('#'):
            calls.add(word)
    return frozenset(calls)


@needs_systemd
@pytest.mark.strace
def test_a_broker_at_work_makes_no_system_call_that_the_unit_forbids(installed, tmp_path):
    filters = re.findall(r'^SystemCallFilter=(.*)$', unit_of(installed).read_text(), re.MULTILINE)
    permitted = set()
    for line in filters:
        named = set().union(*map(group_of_system_calls, line.removeprefix('~').split()))
        permitted = permitted - named if line.startswith('~') else permitted | named
    calls = trace_a_broker_at_work(tmp_path)
    made = {re.match(r'\d+ +(\w+)\(', call)[1] for call in calls if re.match(r'\d+ +\w+\(', call)}
    assert {'epoll_wait', 'fdatasync', 'prlimit64'} <= made, 'the trace is not of a broker'
    assert made <= permitted
    assert not [call for call in calls if 'PROT_WRITE' in call and 'PROT_EXEC' in call], 'MemoryDenyWriteExecute=yes'


def trace_a_broker_at_work(directory):
    """Return the system calls of a broker that starts, serves a transaction and a client that reads it, and stops."""
    trace = directory / 'trace'
    broker = subprocess.Popen(['strace', '-f', '-o', str(trace), sys.executable, '-m', 'kbroker', 'serve', '--listen',
                               '127.0.0.1:0', '--data-dir', str(directory / 'data')], cwd=ROOT, text=True,
                              stderr=subprocess.PIPE)
    try:
        ready = next(line for line in broker.stderr if ' ready on ' in line)
        address = {'bootstrap.servers': re.search(r'ready on (\S+),', ready)[1], 'log_level': 0}
        producer = Producer(address | {'transactional.id': 'id'})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce('topic', 'value')
        producer.commit_transaction()
        reader = Consumer(address | {'group.id': 'group', 'auto.offset.reset': 'earliest'})
        reader.subscribe(['topic'])
        assert reader.consume(1, timeout=180)[0].value() == b'value'
        reader.close()
        os.kill(int(trace.read_text().split(maxsplit=1)[0]), signal.SIGTERM)
        broker.communicate(timeout=180)
    finally:
        broker.kill()
        broker.wait()
    return trace.read_text().splitlines()


def test_make_alone_prints_each_target_with_its_help():
    printed = subprocess.run(['make', '--silent'], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = ' '.join(re.findall(r'^\.PHONY: (.*)$', (ROOT / 'Makefile').read_text(), re.MULTILINE)).split()
    assert sorted(targets) == sorted(line.split()[0] for line in printed.splitlines())
    assert all(re.fullmatch(r'\S+ +[A-Z].+\.', line) for line in printed.splitlines())

"""A start and the commands on a directory report a fault of the machine in one line: the fault, the expectation and the
remedy.

The faults: another owner, missing rights, a read-only or full disk, a file system without locks, and an address that
the broker cannot use.
"""
from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from support.brokers.confined_broker import until
from support.brokers.in_process_broker import InProcessBroker
from support.clients.certificates import certificate_between
from support.clients.promises import TOPIC, Client, Promises
from support.runner.machine_requirements import do_without
from support.runner.other_user import (
    GROUP_ID,
    IS_ROOT,
    USER_ID,
    OtherUser,
    directory_for_all,
    give_to_other_user,
)

from kbroker.base.errors import LogDirectoryError
from kbroker.base.os_errors import describe
from kbroker.daemon import broker
from kbroker.daemon.status import read_status
from kbroker.log.fs import FileSystem
from kbroker.log.log_directory import lock_directory
from kbroker.network import listen_errors

SETTINGS = {'log.index.size.max.bytes': '4096', 'offsets.topic.num.partitions': '1', 'log.segment.bytes': '1048576'}
SERVE = 'serve', '--listen', '127.0.0.1:0', '--data-dir'
WITH_ANOTHER_USER = pytest.mark.skipif(not IS_ROOT, reason='only root can become another user')


@pytest.fixture(scope='module')
def user():
    other = OtherUser()
    yield other
    other.close()


@pytest.fixture
def place():
    """An empty directory that every user can enter, and that belongs to the user of the tests."""
    with directory_for_all() as directory:
        yield directory


def mine(place: pathlib.Path) -> pathlib.Path:
    """Return a directory of the other user in `place`."""
    directory = place / 'data'
    directory.mkdir()
    give_to_other_user(directory)
    return directory


def used(place: pathlib.Path, *, is_killed: bool) -> pathlib.Path:
    """Return the log directory of a broker of the other user. A topic in it has several segments."""
    directory = place / 'data'
    broker = InProcessBroker(directory, SETTINGS)
    with broker:
        client = Client(broker, Promises())
        client.create_topic(TOPIC, 1)
        client.init_idempotent()
        for number in range(4):
            client.produce({(TOPIC, 0): [f'{number}' * 700_000]})
        if is_killed:
            broker.crash()
    give_to_other_user(directory)
    return directory


def close_to_user(path: pathlib.Path, mode: int) -> None:
    """Give a path to root, or, without root, take the rights of its owner away."""
    if IS_ROOT:
        os.chown(path, 0, 0)
    path.chmod(mode)


def only_line(ended) -> str:
    assert ended.status == 1, ended
    assert len(ended.lines) == 1, ended.lines
    return ended.lines[0]


# ---- the log directory ----

@WITH_ANOTHER_USER
def test_the_directory_of_another_owner_is_not_called_locked(user, place):
    directory = place / 'data'
    directory.mkdir()
    directory.chmod(0o755)      # commands that other tests call in this process change its umask
    line = only_line(user.run('kbroker', *SERVE, directory))
    assert line == (f'kbroker: {directory}: Permission denied: found {directory} of user id 0 (root) with mode 0755, '
                    f'expected that user id {USER_ID} may create files in it. Run as root: chown -R '
                    f'{USER_ID}:{GROUP_ID} {directory}')
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize('mode', [0o500, 0o300, 0o600])
def test_the_missing_right_of_the_owner_is_named(user, place, mode):
    directory = mine(place)
    directory.chmod(mode)
    right = {0o500: 'create files in it', 0o300: 'read it', 0o600: 'enter it'}[mode]
    line = only_line(user.run('kbroker', *SERVE, directory))
    assert f'with mode {mode:04o}, expected that user id {USER_ID}' in line
    assert line.endswith(f'may {right}. Run: chmod -R u+rwX {directory}')


FILES = ['.lock', '__cluster_metadata-0', '__cluster_metadata-0/quorum-state', f'{TOPIC}-0', f'{TOPIC}-0/{0:020}.log',
         'recovery-point-offset-checkpoint', 'meta.properties']


@pytest.mark.parametrize('is_killed', [False, True])
def test_one_file_of_another_owner_is_found_at_the_start(user, place, is_killed):
    """A sealed segment, for example, is opened only when a client reads it."""
    directory = used(place, is_killed=is_killed)
    assert len(list((directory / f'{TOPIC}-0').glob('*.log'))) > 2
    for name in FILES:
        path = directory / name
        mode = path.stat().st_mode & 0o777
        close_to_user(path, 0o500 if path.is_dir() else 0o400)
        line = only_line(user.run('kbroker', *SERVE, directory))
        assert line.startswith(f'kbroker: {path}: Permission denied: found {path} of user id '), line
        assert f'{directory}' in line.partition('Run')[2], line
        path.chmod(mode)
        give_to_other_user(path)


@WITH_ANOTHER_USER
def test_a_missing_directory_needs_the_right_to_create_it(user, place):
    line = only_line(user.run('kbroker', *SERVE, place / 'data'))
    assert line.endswith(f'found {place} of user id 0 (root) with mode 0755, expected that user id {USER_ID} may '
                         f'create files in it. Run as root: install -d -o {USER_ID} -g {GROUP_ID} -m 750 {place}/data, '
                         'or name another directory')


def test_a_missing_parent_is_named(user, place):
    line = only_line(user.run('kbroker', *SERVE, place / 'a' / 'b' / 'data'))
    assert line.endswith(f'found no directory {place}/a/b. Run: mkdir -p {place}/a/b')


def test_a_file_in_place_of_the_directory_is_named(user, place):
    (place / 'file').touch()
    for path in (place / 'file', place / 'file' / 'data'):
        line = only_line(user.run('kbroker', *SERVE, path))
        assert line.endswith(f'found a file at {place}/file, expected a directory: move it away, or name another '
                             'directory')


def test_a_closed_directory_above_is_named(user, place):
    (place / 'above').mkdir()
    close_to_user(place / 'above', 0o600)
    line = only_line(user.run('kbroker', *SERVE, place / 'above' / 'data'))
    assert f'found {place}/above of user id' in line
    assert line.endswith(f'may enter it. Let the user enter {place}/above, or name another directory')


@pytest.mark.parametrize('command', [
    ('kbroker', 'status', '--data-dir'), ('kbroker', 'storage', '--data-dir'), ('kbroker', 'hand-over', '--data-dir'),
    ('kbroker-check',), ('kbroker-topics', '--list', '--data-dir'), ('kbroker-groups', '--list', '--data-dir'),
    ('kbroker-transactions', 'list', '--data-dir'), ('kbroker-acls', '--list', '--data-dir')])
def test_the_commands_on_a_directory_name_the_missing_right(user, place, command):
    directory = mine(place)
    close_to_user(directory, 0o600)
    line = only_line(user.run(*command, directory))
    assert line.startswith(f'{command[0]}: {directory}'), line
    assert f'found {directory} of user id' in line and f'expected that user id {USER_ID}' in line, line


# ---- the disk ----

@pytest.fixture
def mounted(place):
    """Mount a small file system with the given options. Return its directory."""
    directory = place / 'disk'
    directory.mkdir()

    def mount(options: str) -> pathlib.Path:
        done = subprocess.run(['mount', '-t', 'tmpfs', '-o', options, 'none', directory], capture_output=True,
                              text=True, check=False)
        if done.returncode:
            do_without('mount', done.stderr.strip())
        return directory

    yield mount
    subprocess.run(['umount', directory], capture_output=True, check=False)


def test_a_read_only_root_without_a_volume_asks_for_a_volume(user, mounted):
    directory = mounted('size=1m,ro')
    for path in (directory, directory / 'data'):
        line = only_line(user.run('kbroker', *SERVE, path))
        assert f'found {directory} on a read-only file system, expected one that can be written' in line
        assert line.endswith(f'In a container, mount a volume at {path}; elsewhere, name another directory')


@pytest.mark.parametrize(('options', 'found'), [
    ('size=8k', r'found 0 of 8,192 bytes free on the file system of /.*: remove files there'),
    ('size=20k', r'found 0 of 20,480 bytes free on the file system of /.*: remove files there'),
    ('nr_inodes=5', r'found no free inode of 5 on the file system of /.*: remove files there')])
def test_a_full_disk_is_reported_with_its_size(user, mounted, options, found):
    directory = mounted(f'{options},mode=777')
    line = [line for line in user.run('kbroker', *SERVE, directory).lines if line.startswith('kbroker: ')]
    assert len(line) == 1 and re.search(found, line[0]), line


@pytest.mark.parametrize('code', [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_named(tmp_path, code):
    class WithoutLocks(FileSystem):
        def lock(self, path):
            raise OSError(code, os.strerror(code))

    with pytest.raises(LogDirectoryError, match=r'found a file system that locks no files .* NFS \(rpc.statd\)$'):
        lock_directory(WithoutLocks(), str(tmp_path))


@pytest.mark.parametrize(('code', 'text'), [
    (errno.EDQUOT, r'the disk quota of user id \d+ .* is used up'),
    (errno.EMFILE, r'this process may open [\d,]+ files, and at most [\d,]+\. Raise the limit'),
    (errno.EIO, 'the device failed'),
    (errno.ENAMETOOLONG, 'File name too long$')])
def test_other_faults_of_the_machine_have_a_remedy(tmp_path, code, text):
    line = describe(OSError(code, os.strerror(code), str(tmp_path / 'x')), str(tmp_path))
    assert re.search(text, line), line


def test_a_refusal_that_no_mode_explains_is_not_put_down_to_a_mode(tmp_path):
    (tmp_path / 'x').touch()
    line = describe(PermissionError(errno.EPERM, 'Operation not permitted', str(tmp_path / 'x')), str(tmp_path))
    assert 'lsattr' in line and 'SELinux' in line


# ---- files of settings ----

def test_a_settings_file_without_the_right_to_read_it_is_named(user, place):
    file = place / 'server.properties'
    file.write_text('num.partitions=1\n')
    give_to_other_user(file)
    close_to_user(file, 0o200)
    line = only_line(user.run('kbroker', 'serve', '--config', file))
    assert f'found {file} of user id' in line and f'expected that user id {USER_ID}' in line


@pytest.mark.parametrize('name', ['ssl.keystore.location', 'kbroker.audit.log'])
def test_a_file_of_a_setting_without_rights_is_named(user, place, name):
    file = place / 'key.pem'
    file.write_text('-----BEGIN PRIVATE KEY-----\n')
    give_to_other_user(file)
    close_to_user(file, 0o200 if name.startswith('ssl') else 0o400)
    ended = user.run('kbroker', 'serve', '--data-dir', mine(place), '--set', 'listeners=SSL://127.0.0.1:0', '--set',
                     'ssl.keystore.type=PEM', '--set', f'{name}={file}')
    line, = [line for line in ended.lines if line.startswith('kbroker: ')]
    assert f'found {file} of user id' in line and f'expected that user id {USER_ID}' in line


# ---- addresses ----

def test_a_port_that_needs_a_capability_is_named_with_the_ways_to_it(user, place):
    lowest = int(listen_errors.LOWEST_PORT.read_text())
    if lowest <= 1 or not IS_ROOT:
        pytest.skip(f'every user may listen on ports from {lowest} on')
    ended = user.run('kbroker', 'serve', '--data-dir', mine(place), '--listen', f'127.0.0.1:{lowest - 1}')
    assert ended.status == 1
    assert ended.lines[-1] == (
        f'kbroker: cannot listen on 127.0.0.1:{lowest - 1}: Permission denied: only a process with '
        f'CAP_NET_BIND_SERVICE may use a port below {lowest}. Choose a higher port, or grant the capability (systemd: '
        'AmbientCapabilities=CAP_NET_BIND_SERVICE; container: --cap-add NET_BIND_SERVICE), or run as root: sysctl '
        f'net.ipv4.ip_unprivileged_port_start={lowest - 1}')


def test_an_address_of_another_machine_is_refused_with_advice(user, place):
    ended = user.run('kbroker', 'serve', '--data-dir', mine(place), '--set', 'kbroker.allow.insecure.listener=true',
                     '--listen', '192.0.2.1:9092')
    assert ended.status == 1
    assert ended.lines[-1] == ('kbroker: cannot listen on 192.0.2.1:9092: Cannot assign requested address: this '
                               'machine has no such address. `ip -brief address` lists those that it has')


def test_a_taken_port_names_the_process_that_has_it():
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        text = listen_errors.remedy(OSError(errno.EADDRINUSE, ''), taken.getsockname())
    comm = pathlib.Path('/proc/self/comm').read_text().strip()
    assert text == f': process {os.getpid()} ({comm}) listens there. Stop it, or choose another port'


@pytest.mark.parametrize(('is_off', 'text'), [(True, ': IPv6 is off on this machine'), (False, ': this machine has')])
def test_an_address_without_ipv6_says_so(monkeypatch, is_off, text):
    monkeypatch.setattr(listen_errors, '_ipv6_is_off', lambda: is_off)
    assert listen_errors.remedy(OSError(errno.EADDRNOTAVAIL, ''), ('::1', 9092, 0, 0)).startswith(text)


def test_a_kernel_without_ipv6_says_so():
    assert 'without IPv6' in listen_errors.remedy(OSError(errno.EAFNOSUPPORT, ''), ('::1', 9092, 0, 0))


# ---- the surroundings of the process ----

def is_served(directory: pathlib.Path) -> bool:
    with contextlib.suppress(OSError):
        return bool(read_status(str(directory)))
    return False



@pytest.mark.parametrize('surroundings', [
    {'HOME': None, 'PATH': None}, {'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'}])
def test_errors_need_no_home_and_no_utf_8(tmp_path, surroundings):
    variables = {name: value for name, value in (os.environ | surroundings).items() if value is not None}
    file = tmp_path / 'Straße'
    file.touch()
    done = subprocess.run([sys.executable, '-m', 'kbroker', *SERVE, str(file)], env=variables, capture_output=True,
                          check=False)
    assert done.returncode == 1
    assert done.stderr.count(b'\n') == 1 and b'expected a directory' in done.stderr, done.stderr


def test_a_machine_without_proc_has_a_status(monkeypatch, tmp_path):
    """An earlier version ended at the first question for its status."""
    resident_bytes, most_bytes = broker.measure_memory()
    assert 0 < resident_bytes <= most_bytes
    monkeypatch.setattr(broker, 'STATM', tmp_path / 'missing')
    assert broker.measure_memory() == (pytest.approx(most_bytes, rel=0.1),) * 2


@pytest.mark.parametrize('limit', [8, 13])
def test_too_few_descriptors_are_one_line(tmp_path, limit):
    done = subprocess.run(['sh', '-c', f'ulimit -n {limit}; exec "$@"', 'sh', sys.executable, '-m', 'kbroker', *SERVE,
                           str(tmp_path / 'data')], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'Traceback' not in done.stderr
    assert f'Too many open files: this process may open {limit} files' in done.stderr.splitlines()[-1]


def test_a_broker_with_closed_streams_keeps_its_files_apart_from_them(tmp_path):
    """A file of the log directory would otherwise be descriptor 2, to which libraries write their errors."""
    with subprocess.Popen(['sh', '-c', 'exec "$@" <&- >&- 2>&-', 'sh', sys.executable, '-m', 'kbroker', *SERVE,
                           str(tmp_path / 'data')]) as process:
        until(lambda: is_served(tmp_path / 'data'), 'the broker does not start')
        assert [os.readlink(f'/proc/{process.pid}/fd/{number}') for number in range(3)] == [os.devnull] * 3
        process.terminate()
    assert process.returncode == 0


def test_an_error_with_closed_streams_still_has_its_status(tmp_path):
    (tmp_path / 'file').touch()
    done = subprocess.run(['sh', '-c', 'exec "$@" <&- >&- 2>&-', 'sh', sys.executable, '-m', 'kbroker', *SERVE,
                           str(tmp_path / 'file')], check=False)
    assert done.returncode == 1


def test_a_start_with_an_expired_certificate_ends_with_one_line(tmp_path):
    now = datetime.now(UTC)
    keys = tmp_path / 'keys.pem'
    keys.touch(0o600)
    keys.write_text(certificate_between('broker', now - timedelta(days=90), now - timedelta(days=1)))
    done = subprocess.run([sys.executable, '-m', 'kbroker', 'serve', '--data-dir', str(tmp_path / 'data'), '--set',
                           'listeners=SSL://127.0.0.1:0', '--set', f'ssl.keystore.location={keys}'],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        f'kbroker: ssl.keystore.location: {keys}: the certificate CN=broker expired at ')

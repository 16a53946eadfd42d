"""A broker refuses to start if every user may read a file with secrets. Only the broker's user may read the files that
it creates.
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest
from support.clients.certificates import make_certificates

from kbroker.base.errors import ConfigError
from kbroker.settings.file_modes import check_data_directory, check_secret_file, holds_secrets


@pytest.fixture
def open_directory(tmp_path, monkeypatch):
    """A directory that the broker considers open to every user. Other users cannot really enter it, because pytest's
    directory is closed to them.
    """
    real = pathlib.Path.stat

    def stat(path, **kwargs):
        found = real(path, **kwargs)
        return found if path == tmp_path or tmp_path in path.parents else real(pathlib.Path('/'))

    monkeypatch.setattr(pathlib.Path, 'stat', stat)
    tmp_path.chmod(0o755)
    return tmp_path


def file(directory, mode):
    path = directory / 'secret'
    path.write_text('x')
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize('mode', [0o600, 0o400, 0o700, 0o620, 0o602])
def test_a_file_for_its_owner_is_in_order(open_directory, mode):
    assert check_secret_file(file(open_directory, mode), 'the key', False) == []


@pytest.mark.parametrize('mode', [0o640, 0o440, 0o660])
def test_a_group_that_may_read_costs_a_warning(open_directory, mode):
    path = file(open_directory, mode)
    assert check_secret_file(path, 'the key', False) == [
        f'{path}: its group may read the key (mode {mode:04o}); chmod 600 {path} ends that']


@pytest.mark.parametrize('mode', [0o644, 0o604, 0o666])
def test_a_file_for_everybody_is_refused_unless_it_is_allowed(open_directory, mode):
    path = file(open_directory, mode)
    with pytest.raises(ConfigError) as caught:
        check_secret_file(path, 'the key', False)
    assert str(caught.value).startswith(
        f'{path}: every user of this machine may read the key (mode {mode:04o}). Run: chmod 600 {path} ')
    assert check_secret_file(path, 'the key', True) == [
        f'{path}: every user of this machine may read the key (mode {mode:04o})']


def test_a_closed_directory_protects_what_is_in_it(open_directory):
    closed = open_directory / 'closed'
    closed.mkdir(0o700)
    assert check_secret_file(file(closed, 0o644), 'the key', False) == []
    closed.chmod(0o750)
    assert 'its group may read' in check_secret_file(file(closed, 0o644), 'the key', False)[0]


def test_an_open_log_directory_costs_a_warning(open_directory):
    assert 'every user of this machine may enter' in check_data_directory(str(open_directory))[0]
    open_directory.chmod(0o750)
    assert check_data_directory(str(open_directory)) == []
    assert check_data_directory(str(open_directory / 'missing')) == []


@pytest.mark.parametrize(('name', 'is_secret'), [
    ('ssl.key.password', True), ('listener.name.inside.ssl.key.password', True), ('ssl.keystore.location', False),
    ('listener.name.inside.plain.sasl.jaas.config', True), ('log.dirs', False)])
def test_settings_that_are_secrets(name, is_secret):
    assert holds_secrets(['num.partitions', name]) is is_secret


@pytest.fixture
def world():
    """A directory that every user may enter, below /tmp."""
    path = pathlib.Path(tempfile.mkdtemp(dir='/tmp'))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def serve(*arguments):
    return subprocess.run([sys.executable, '-m', 'kbroker', 'serve', *arguments], capture_output=True, text=True,
                          timeout=180, check=False)


def test_a_readable_settings_file_with_a_password_stops_the_start(world):
    settings = world / 'server.properties'
    settings.write_text('listeners=PLAINTEXT://127.0.0.1:0\nssl.key.password=marker-secret\n')
    settings.chmod(0o644)
    refused = serve('--config', str(settings), '--data-dir', str(world / 'data'))
    assert refused.returncode == 1
    assert f'Run: chmod 600 {settings}' in refused.stderr
    assert 'marker-secret' not in refused.stderr
    assert not (world / 'data').exists()


def test_a_readable_key_stops_the_start(world):
    make_certificates(world)
    (world / 'server.pem').chmod(0o644)
    refused = serve('--set', 'listeners=SSL://127.0.0.1:0', '--set', f'ssl.keystore.location={world / "server.pem"}',
                    '--data-dir', str(world / 'data'))
    assert refused.returncode == 1
    assert f'{world / "server.pem"}: every user of this machine may read the private key' in refused.stderr


def test_new_files_are_for_the_owner_only_unless_the_operator_says_otherwise(start_broker, tmp_path):
    for umask, name in (('077', 'closed'), ('027', 'group')):
        directory = tmp_path / name
        start_broker({'kbroker.file.umask': umask}, directory=directory).stop()
        for path in (directory, *directory.rglob('*')):
            assert path.stat().st_mode & int(umask, 8) == 0, path
    assert (tmp_path / 'group').stat().st_mode & 0o050 == 0o050


def test_a_umask_that_would_lock_out_the_broker_is_refused():
    for text in ('777', '0o77', '8', '-1', ''):
        refused = serve('--set', f'kbroker.file.umask={text}')
        assert refused.returncode == 1
        assert 'kbroker.file.umask: found' in refused.stderr

"""`make package` refuses an sdist with other files than the repository, and a wheel that is too large."""
import io
import runpy
import subprocess
import sys
import tarfile

import pytest
from support.brokers.broker_process import ROOT

JUDGE = runpy.run_path(str(ROOT / 'packaging' / 'judge.py'))


def test_an_sdist_has_the_files_that_git_tracks_and_those_of_the_build():
    tracked = {'setup.py', 'kbroker/a.py'}
    written = {'PKG-INFO', 'setup.cfg', 'kbroker.egg-info/SOURCES.txt', 'kbroker/daemon/site.tar.xz'}
    assert JUDGE['contents_faults'](tracked | written, tracked) == []
    assert JUDGE['contents_faults']({'setup.py', 'kbroker/notes', *written}, tracked) == [
        'kbroker/notes: in the sdist, and not tracked by git', 'kbroker/a.py: not in the sdist. See MANIFEST.in']


def test_an_sdist_is_compared_with_the_repository(tmp_path, monkeypatch):
    subprocess.run(['git', 'init', '--quiet', tmp_path], check=True)
    (tmp_path / 'kbroker').mkdir()
    for name in ('setup.py', 'kbroker/a.py', 'other.txt'):
        (tmp_path / name).write_text('x')
    subprocess.run(['git', '-C', tmp_path, 'add', '.'], check=True)
    path = tmp_path / 'kbroker-1.tar.gz'
    with tarfile.open(path, 'w:gz') as archive:
        for name in ('setup.py', 'kbroker/b.py'):
            archive.addfile(tarfile.TarInfo(f'kbroker-1/{name}'), io.BytesIO())
    monkeypatch.chdir(tmp_path)
    assert JUDGE['sdist_faults'](path) == [
        'kbroker/b.py: in the sdist, and not tracked by git', 'kbroker/a.py: not in the sdist. See MANIFEST.in']


def test_a_size_above_its_bound_is_a_fault(capsys):
    assert JUDGE['size_faults']('the wheel', 6000000, 6000000) == []
    assert JUDGE['size_faults']('the wheel', 6000001, 6000000) == [
        'the wheel: found 6000001 bytes, expected at most 6000000']
    assert capsys.readouterr().out == 'the wheel: 6.00 MB, at most 6 MB\n' * 2


def test_a_directory_without_a_package_is_refused_in_one_line(tmp_path):
    done = subprocess.run([sys.executable, ROOT / 'packaging' / 'judge.py', tmp_path, tmp_path], capture_output=True,
                          text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f'{tmp_path}: found 0 files *.tar.gz, expected one\n')


@pytest.mark.parametrize('arguments', [[], ['WHEEL=no-such.whl']])
def test_smoke_without_a_wheel_says_how_to_build_one(arguments, tmp_path):
    done = subprocess.run(['make', '--silent', 'smoke', f'DIST={tmp_path}', '-o', 'build/packaging/installed',
                           *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and done.stderr.startswith('found no wheel ') and 'make package' in done.stderr

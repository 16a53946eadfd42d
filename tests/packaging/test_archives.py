"""Each build of a commit writes the same bytes, on any machine and under any umask. `make reproducible` compares whole
builds.
"""
import hashlib
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import tarfile

import pytest
from setuptools import Distribution
from support.runner.pages import ROOT

ARCHIVES = runpy.run_path(str(ROOT / 'packaging' / 'archives.py'))
TIME = 1_700_000_000


@pytest.fixture(scope='module')
def tree(tmp_path_factory):
    """A small project with the commands of setup.py, which also has what an earlier build left."""
    directory = tmp_path_factory.mktemp('project')
    (directory / 'setup.py').write_text(
        "import runpy\n"
        "from setuptools import setup\n"
        "archives = runpy.run_path('archives.py')\n"
        "setup(name='project', version='1', packages=['package'],\n"
        "      cmdclass={'sdist': archives['SameSdist'], 'bdist_wheel': archives['SameWheel']})\n")
    (directory / 'package').mkdir()
    (directory / 'package' / '__init__.py').touch()
    shutil.copy(ROOT / 'packaging' / 'archives.py', directory)
    (directory / 'MANIFEST.in').write_text('include archives.py\nglobal-exclude *.py[cod]\n')
    return directory


def build(command, tree, umask, zone, to):
    """Run a command of a copy of the project, whose files have new times, and return the archive."""
    old = os.umask(umask)
    try:
        for path in tree.rglob('*'):
            copy = to / 'project' / path.relative_to(tree)
            if path.is_dir():
                copy.mkdir(parents=True)
            else:
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
        subprocess.run([sys.executable, 'setup.py', '--quiet', command], cwd=to / 'project', check=True,
                       capture_output=True, env=os.environ | {'SOURCE_DATE_EPOCH': str(TIME), 'TZ': zone})
    finally:
        os.umask(old)
    archive, = (to / 'project' / 'dist').iterdir()
    return archive


@pytest.mark.parametrize('command', ['sdist', 'bdist_wheel'])
def test_two_builds_under_another_umask_and_time_zone_write_the_same_bytes(command, tree, tmp_path):
    archives = [build(command, tree, umask, zone, tmp_path / zone)
                for umask, zone in ((0o022, 'UTC'), (0o077, 'JST-9'))]
    assert len({hashlib.sha256(archive.read_bytes()).digest() for archive in archives}) == 1


def test_the_sdist_names_no_owner_and_has_the_time_and_the_modes_that_it_should(tree, tmp_path):
    with tarfile.open(build('sdist', tree, 0o077, 'UTC', tmp_path)) as tar:
        members = tar.getmembers()
    assert {(member.uid, member.gid, member.uname, member.gname, member.mtime) for member in members} == {
        (0, 0, '', '', TIME)}
    assert {oct(member.mode) for member in members if member.isdir()} == {'0o755'}
    assert {oct(member.mode) for member in members if member.isfile()} == {'0o644'}


def test_the_sdist_leaves_out_bytecode_and_files_that_only_an_earlier_sdist_named(tree, tmp_path):
    for left in ('notes.txt', 'package/left.pyc', 'project.egg-info/SOURCES.txt'):
        (tmp_path / 'left' / left).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / 'left' / left).write_text('notes.txt\n')
    shutil.copytree(tree, tmp_path / 'left', dirs_exist_ok=True)
    with tarfile.open(build('sdist', tmp_path / 'left', 0o022, 'UTC', tmp_path / 'built')) as tar:
        names = {name.removeprefix('project-1/') for name in tar.getnames()}
    assert {'package/__init__.py', 'archives.py', 'PKG-INFO'} <= names
    assert not {name for name in names if name.endswith('pyc') or 'notes' in name}


def test_an_sdist_in_another_format_is_refused():
    command = ARCHIVES['SameSdist'](Distribution())
    with pytest.raises(ValueError, match='found zip, expected gztar'):
        command.make_archive('project-1', 'zip', base_dir='project-1')


def test_the_packages_of_the_project_are_written_by_these_commands(monkeypatch):
    monkeypatch.chdir(ROOT)
    found = {}
    program = runpy.run_path('setup.py', run_name='setup')
    program['main'].__globals__['setup'] = lambda **arguments: found.update(arguments['cmdclass'])
    program['main']()
    assert {found['sdist'].__name__, found['bdist_wheel'].__name__} == {'SameSdist', 'SameWheel'}
    assert 'global-exclude *.py[cod]' in (ROOT / 'MANIFEST.in').read_text()


@pytest.mark.parametrize('command', ['sdist', 'bdist_wheel'])
def test_a_package_of_a_checkout_has_the_site(command, tree, tmp_path):
    shutil.copytree(tree, tmp_path / 'checkout')
    (tmp_path / 'checkout' / 'docs').mkdir()
    (tmp_path / 'checkout' / 'docs' / 'build.py').write_text(
        'def write_archive(archive):\n    archive.parent.mkdir(parents=True)\n    archive.touch()\n')
    shutil.unpack_archive(build(command, tmp_path / 'checkout', 0o022, 'UTC', tmp_path / 'built'), tmp_path / 'files',
                          'gztar' if command == 'sdist' else 'zip')
    place = tmp_path / 'files' / ('project-1' if command == 'sdist' else '')
    assert (place / 'kbroker' / 'daemon' / 'site.tar.xz').exists()


def test_a_build_without_mkdocs_warns_that_the_site_is_missing(tmp_path, monkeypatch):
    (tmp_path / 'docs').mkdir()
    (tmp_path / 'docs' / 'build.py').touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    command, said = ARCHIVES['SameSdist'](Distribution()), []
    command.warn = said.append
    ARCHIVES['add_site'](command, tmp_path)
    assert said == ['found no mkdocs: `kbroker docs` of this package will have nothing to open']

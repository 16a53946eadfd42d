"""The code, the tag, the changelog, the man pages and the packages of a release name one version."""
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tomllib

import pytest
from support.kafka.apache_kafka import NEWEST, RELEASES
from support.runner.pages import ROOT, rows_of_table, text_of

from kbroker import __version__

PROGRAM = ROOT / 'packaging' / 'release.py'
TAG = f'v{__version__}'


@pytest.fixture
def tree(tmp_path):
    """A copy of the files that name the version, with an sdist and a wheel in dist/."""
    for name in ('kbroker/__init__.py', 'packaging/release.py', 'pyproject.toml', 'CHANGELOG.md', 'man/kbroker.8'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / 'dist').mkdir()
    for name in (f'kbroker-{__version__}.tar.gz', f'kbroker-{__version__}-cp311-cp311-linux_x86_64.whl'):
        (tmp_path / 'dist' / name).touch()
    return tmp_path


def judge(tree, tag=TAG, **environment):
    return subprocess.run([sys.executable, 'packaging/release.py', tag, 'dist'], cwd=tree, capture_output=True,
                          text=True, check=False, env=environment)


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_changelog_and_every_man_page_have_the_version_of_the_code():
    assert list(runpy.run_path(str(PROGRAM))['faults_of_source'](ROOT)) == []


def test_a_release_whose_files_agree_has_no_fault(tree):
    done = judge(tree)
    assert (done.returncode, done.stderr) == (0, '')
    assert done.stdout == f'{TAG}: the code, the changelog, the man pages and dist agree\n'


def test_a_tag_of_another_version_is_refused(tree):
    done = judge(tree, 'v0.9')
    assert (done.returncode, done.stderr) == (
        1, f'the tag: found v0.9, expected {TAG}, the version in kbroker/__init__.py\n')


def test_a_section_of_changes_that_are_not_released_may_come_first_but_not_at_a_tag(tree):
    replace(tree / 'CHANGELOG.md', f'## {__version__} - ', f'## Unreleased\n\n* A change.\n\n## {__version__} - ')
    assert list(runpy.run_path(str(PROGRAM))['faults_of_source'](tree)) == []
    done = judge(tree)
    assert done.stderr == (f'CHANGELOG.md: the section Unreleased has entries; move them into the section of '
                           f'{__version__}\n')


@pytest.mark.parametrize(('file', 'old', 'new', 'fault'), [
    ('CHANGELOG.md', f'## {__version__} - ', '## 0.9 - ', 'CHANGELOG.md: the newest release is 0.9, expected'),
    ('CHANGELOG.md', f'## {__version__} - ', f'## {__version__} of ',
     f'CHANGELOG.md: found the section "{__version__} of'),
    ('man/kbroker.8', __version__, '0.9', 'man/kbroker.8: found version 0.9, expected'),
    ('man/kbroker.8', '.TH', '.XX', 'man/kbroker.8: found version none, expected')])
def test_a_file_of_another_version_is_named(tree, file, old, new, fault):
    replace(tree / file, old, new)
    done = judge(tree)
    assert done.returncode == 1
    assert done.stderr.startswith(fault) and done.stderr.count('\n') == 1


def test_a_package_of_another_version_and_a_missing_one_are_named(tree):
    sdist = pathlib.Path('dist', f'kbroker-{__version__}.tar.gz')
    (tree / sdist).rename(tree / 'dist' / 'kbroker-0.9-py3-none-any.whl')
    done = judge(tree)
    assert done.stderr.splitlines() == ['dist: found no sdist: make package',
                                        f'dist/kbroker-0.9-py3-none-any.whl: found kbroker 0.9, expected kbroker '
                                        f'{__version__}']


def test_hosted_ci_refuses_to_publish_from_another_repository_than_the_one_that_the_package_names(tree):
    source = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['urls']['Source']
    server, owner, name = source.rsplit('/', 2)
    assert judge(tree, GITHUB_SERVER_URL=server, GITHUB_REPOSITORY=f'{owner}/{name}').returncode == 0
    done = judge(tree, GITHUB_SERVER_URL=server, GITHUB_REPOSITORY='fork/kbroker')
    assert done.stderr.startswith('pyproject.toml: found the source at ')
    assert done.stderr.endswith(f', expected {server}/fork/kbroker, where this workflow runs\n')


def test_the_notes_of_a_release_are_its_section_of_the_changelog():
    done = subprocess.run([sys.executable, str(PROGRAM), '--notes'], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in (ROOT / 'CHANGELOG.md').read_text()
    assert '### Transactions' in done.stdout and '\n## ' not in done.stdout


def test_a_wrong_call_prints_how_to_call_it():
    done = subprocess.run([sys.executable, str(PROGRAM), '--help'], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, 'Usage: python packaging/release.py TAG DIRECTORY, or '
                                                 'python packaging/release.py --notes|--version\n')


def test_the_page_of_compatibility_names_the_versions_that_the_tests_run_on():
    text = text_of('docs/compatibility.md')
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    stated, = re.findall(r'kbroker supports Python (.*?), as CPython', text)
    assert re.findall(r'3\.\d+', stated) == re.findall(r':: (3\.\d+)', ' '.join(project['classifiers']))
    supported = dict(rows_of_table('docs/compatibility.md', 'program'))
    assert supported['log directories of Apache Kafka'].startswith(f'{min(RELEASES)} to {max(RELEASES)}')
    assert f'Apache Kafka {NEWEST}' in supported['clients']
    spark, arrow = re.findall(r'(\d[\d.]*) and later', supported['PySpark'])
    assert {f'pyspark>={spark}', f'pyarrow>={arrow}'} == set(project['optional-dependencies']['spark'])


def test_the_commands_of_the_page_of_releasing_exist():
    commands = [line for block in re.findall(r'^ *```sh\n(.*?)```', text_of('docs/releasing.md'),
                                             re.MULTILINE | re.DOTALL) for line in block.split('\n')]
    targets = set(re.findall(r'^([a-z-]+):', text_of('Makefile'), re.MULTILINE))
    named = {word for command in commands for word in re.sub(r"\w+=('.*?'|\S+)", '', command).split()[1:]
             if command.split()[0] == 'make'}
    assert {'package', 'reproducible', 'man'} <= named <= targets
    for path in {path for command in commands for path in re.findall(r'\S+/\S+\.py|\.ci/\w+', command)}:
        assert (ROOT / path).is_file(), path
    assert all(f'v{__version__}' in command for command in commands if 'release.py' in command)

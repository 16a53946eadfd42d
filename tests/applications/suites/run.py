"""Runs the test suites of two libraries on the test kit, in place of the Apache Kafka that they start in Docker.

    python tests/applications/suites/run.py [--aiokafka REPOSITORY] [SUITE...]

* **taskiq-aio-kafka**: its sdist has the tests, and the versions that they pin. Each test gets a fresh broker.
* **aiokafka**: a clone of REPOSITORY has the tests. They share one broker for the session, as they share a container.

Only fixtures of their `conftest.py` change: `taskiq_fixtures.py` and `aiokafka_fixtures.py` have the new ones. Each
suite runs in an environment of its own, in build/suites.
"""
from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import click

ROOT = pathlib.Path(__file__).parents[3]
HERE, BUILD = pathlib.Path(__file__).parent, ROOT / 'build' / 'suites'
RELEASES = {'taskiq-aio-kafka': '1.0.0', 'aiokafka': '0.14.0'}
KBROKER_NEEDS = ['click', 'cramjam', 'h11', 'prometheus-client', 'rich', 'xxhash', 'backports.zstd']
AIOKAFKA_TESTS = ('producer', 'consumer', 'transactional_producer', 'transactional_consumer', 'client', 'coordinator',
                  'admin')


def run(*command: object, directory: pathlib.Path = ROOT) -> None:
    environment = os.environ | {'PYTHONPATH': str(ROOT)}
    done = subprocess.run([str(each) for each in command], cwd=directory, env=environment, check=False)
    if done.returncode:
        sys.exit(done.returncode)


class Place:
    """The directory of a suite: its environment and its tests."""

    def __init__(self, name: str):
        self.directory = BUILD / name
        shutil.rmtree(self.directory / 'tests', ignore_errors=True)
        self.python = self.directory / 'venv' / 'bin' / 'python'

    def install(self, *requirements: str) -> None:
        if not self.python.exists():
            run(sys.executable, '-m', 'venv', self.directory / 'venv')
        run(self.python, '-m', 'pip', 'install', '--quiet', *KBROKER_NEEDS, *requirements)

    def test(self, directory: pathlib.Path, *arguments: str) -> None:
        run(self.python, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-p', 'no:kbroker',
            '-p', 'kbroker.testing.plugin', *arguments, directory=directory)


def append_fixtures(conftest: pathlib.Path, name: str) -> None:
    """Append fixtures to a `conftest.py`. They replace those of the same name above them."""
    conftest.write_text(f'{conftest.read_text()}\n\n{(HERE / name).read_text()}')


def run_taskiq(_: str) -> None:
    place, name = Place('taskiq-aio-kafka'), f'taskiq_aio_kafka-{RELEASES["taskiq-aio-kafka"]}'
    place.install('pip')
    run(place.python, '-m', 'pip', 'download', '--quiet', '--no-deps', '--no-binary', ':all:', '--dest',
        place.directory, f'taskiq-aio-kafka=={RELEASES["taskiq-aio-kafka"]}')
    with tarfile.open(place.directory / f'{name}.tar.gz') as archive:
        archive.extractall(place.directory / 'tests', filter='data')
    tests = place.directory / 'tests' / name
    pinned = dict(re.findall(r'^name = "(.*)"\nversion = "(.*)"', (tests / 'uv.lock').read_text(), re.MULTILINE))
    place.install(*(f'{package}=={pinned[package]}' for package in ('aiokafka', 'anyio', 'kafka-python', 'pytest',
                                                                   'pytest-xdist', 'taskiq')))
    append_fixtures(tests / 'tests' / 'conftest.py', 'taskiq_fixtures.py')
    place.test(tests)


def run_aiokafka(repository: str) -> None:
    place, tests = Place('aiokafka'), BUILD / 'aiokafka' / 'tests'
    place.install(f'aiokafka=={RELEASES["aiokafka"]}', 'docker', 'pytest', 'pytest-asyncio', 'pytest-mock',
                  'pytest-xdist')
    run('git', 'clone', '--quiet', '--depth', '1', repository, tests)
    shutil.rmtree(tests / 'aiokafka')       # the tests meet the installed package
    append_fixtures(tests / 'tests' / 'conftest.py', 'aiokafka_fixtures.py')
    place.test(tests, '-W', 'default', '--docker-image', 'kbroker:2.13_4.3.0',
               *(f'tests/test_{name}.py' for name in AIOKAFKA_TESTS))


SUITES = {'taskiq-aio-kafka': run_taskiq, 'aiokafka': run_aiokafka}


@click.command(help=__doc__)
@click.option('--aiokafka', 'repository', default='https://github.com/aio-libs/aiokafka', metavar='REPOSITORY')
@click.argument('suites', nargs=-1, type=click.Choice(list(SUITES)))
def main(repository: str, suites: tuple[str, ...]) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in suites or SUITES:
        print(f'{name} {RELEASES[name]}', flush=True)
        SUITES[name](repository)


if __name__ == '__main__':
    main()

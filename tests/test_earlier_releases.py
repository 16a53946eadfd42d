"""A broker opens a directory of an earlier release, and serves everything that the clients of that release saw. Open
transactions continue.
"""
from __future__ import annotations

import pytest
from support.brokers.release_broker import ReleaseBroker, names_of_directories, unpack
from support.disk.crash_points import findings_of_check

from kbroker import __version__

NAMES = names_of_directories()


def test_there_is_a_killed_and_a_stopped_directory_of_each_release():
    releases = {name.rpartition('-')[0] for name in NAMES}
    assert releases >= {'0.1.0', __version__}
    assert {f'{release}-{end}' for release in releases for end in ('killed', 'stopped')} == set(NAMES)


@pytest.mark.parametrize('name', NAMES)
def test_a_directory_of_an_earlier_release_opens_with_everything_and_its_transactions_go_on(name, tmp_path):
    open_directory(*unpack(name, tmp_path))


@pytest.mark.soak
def test_the_directories_of_the_next_release_can_be_made(tmp_path):
    from support.brokers.release_directory import make

    make('next', tmp_path)
    for end in ('killed', 'stopped'):
        open_directory(*unpack(f'next-{end}', tmp_path / end, tmp_path))


def open_directory(directory, manifest):
    with ReleaseBroker(directory, manifest) as broker:
        broker.check_everything()
        broker.end_transactions()
    with ReleaseBroker(directory, manifest) as broker:
        broker.check_ended_transactions()
    assert findings_of_check(str(directory)) == []

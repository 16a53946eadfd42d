"""The power fails at any change that the first start on a directory of an earlier release makes on the disk.

The next start finds everything that the clients of the earlier release saw, and the open transactions continue.

Covers promises 1 and 2 of docs/design.md.
"""
from __future__ import annotations

import pytest
from support.brokers.release_broker import ReleaseBroker, names_of_directories, unpack
from support.disk.crash_points import cut_power, findings_of_check, judging, spread

POINTS, SOAK_SEEDS = 8, 4


@pytest.mark.usefixtures('many_brokers')
@pytest.mark.parametrize('points, seeds', [
    (POINTS, 1), pytest.param(None, SOAK_SEEDS, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
@pytest.mark.parametrize('name', names_of_directories())
def test_an_upgrade_outlives_a_power_cut_at_any_change(memory_path, name, points, seeds):
    changes, _ = first_start(name, memory_path / 'counted', lambda change: 0)
    chosen = spread(changes, points or changes)
    _, cuts = first_start(name, memory_path / 'cut', lambda change: seeds * (change in chosen))
    assert cuts >= min(changes, points or changes)
    print(f'{cuts} power cuts at {changes} changes')


def first_start(name, root, choose):
    """Start a broker on the directory of a release, and cut its power. Return (number of changes, number of cuts)."""
    directory, manifest = unpack(name, root)

    def start(fs):
        with ReleaseBroker(directory, manifest, fs) as broker:
            broker.check_everything()
            broker.crash()

    def hold(left, what):
        with judging(what):
            with ReleaseBroker(left / 'data', manifest) as broker:
                broker.check_everything()
                broker.end_transactions()
            with ReleaseBroker(left / 'data', manifest) as broker:
                broker.check_ended_transactions()
            assert findings_of_check(str(left / 'data')) == []

    return cut_power(root, choose, start, hold)

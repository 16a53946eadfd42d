"""The power fails at any change of the disk in the first start on a directory of an earlier release.

The next start finds everything that the clients of the earlier release saw, and its transactions go on.

Covers promises 1 and 2 of docs/design.md.
"""
from __future__ import annotations

import gc
import random

import pytest
from support.brokers.release_broker import ReleaseBroker, names_of_directories, unpack
from support.clients.promises import Promises
from support.disk.crash_points import Judge, Moment, findings_of_check, spread
from support.disk.faulty_file_systems import FreezingFileSystem

POINTS, SOAK_SEEDS = 8, 4


@pytest.mark.usefixtures('many_brokers')
@pytest.mark.parametrize('points, seeds', [
    (POINTS, 1), pytest.param(None, SOAK_SEEDS, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
@pytest.mark.parametrize('name', names_of_directories())
def test_an_upgrade_outlives_a_power_cut_at_any_change(memory_path, name, points, seeds):
    first_start = FirstStart(name, memory_path)
    changes = first_start.cut_power((), 0)
    cuts = first_start.cut_power(spread(changes, points or changes), seeds)
    assert cuts >= min(changes, points or changes)
    print(f'{cuts} power cuts at {changes} changes')


class FirstStart:
    """The first start of a broker on a directory of a release."""

    def __init__(self, name, base):
        self.name, self.base = name, base

    def cut_power(self, chosen, seeds):
        """Pass possible power cuts before each chosen change to `hold`. Return their number, or that of all changes."""
        root = self.base / f'root-{len(chosen)}'
        directory, manifest = unpack(self.name, root)
        changes = 0
        judge = Judge(lambda moment: self.hold(moment, manifest))

        def freeze(change, path):
            nonlocal changes
            for seed in range(seeds if changes in chosen else 0):
                cut = self.base / f'{changes}-{seed}'
                fs.crash(cut, random.Random(f'{changes} {seed}'))
                judge.hold(Moment(cut, f'change {changes}, {change} of {path}, seed {seed}', 0, Promises(), 0))
            changes += 1

        fs = FreezingFileSystem(root, freeze)
        with ReleaseBroker(directory, manifest, fs) as broker:
            broker.check_everything()
            broker.crash()
        freeze('the end', str(root))
        return judge.count() if seeds else changes

    @staticmethod
    def hold(moment, manifest):
        try:
            directory = moment.directory / 'data'
            with ReleaseBroker(directory, manifest) as broker:
                broker.check_everything()
                broker.end_transactions()
            with ReleaseBroker(directory, manifest) as broker:
                broker.check_ended_transactions()
            assert findings_of_check(str(directory)) == []
            gc.collect()    # a broker is a reference cycle, and holds its files open until it is collected
        except BaseException as error:
            error.add_note(moment.what)
            raise

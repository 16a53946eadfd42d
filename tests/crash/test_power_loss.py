"""The power fails at any change that a broker makes on the disk. A broker that opens the resulting directory has
everything that was acknowledged.

The file system of these tests records what is durable. Before a write, sync, truncation, rename, removal or creation
takes effect, it writes a directory that a power cut may leave at that moment. This directory has all, none or some of
the unsynced changes, and some of its writes are torn. One run of a test's story therefore yields all its power cuts.

Covers promises 1, 2, 4 and 5 of docs/design.md.
"""
from __future__ import annotations

import random

import pytest
from support.disk.crash_points import spread
from support.disk.crash_stories import CASES

POINTS, RECOVERIES, POINTS_OF_RECOVERY = 48, 2, 6
SOAK_SEEDS, SOAK_RECOVERIES, SOAK_POINTS_OF_RECOVERY = 3, 12, 30
each_case = pytest.mark.parametrize('case', CASES.values(), ids=list(CASES))


@pytest.mark.usefixtures('many_brokers')
@pytest.mark.parametrize('points, seeds', [
    (POINTS, 1), pytest.param(None, SOAK_SEEDS, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
@each_case
def test_what_was_answered_outlives_a_power_cut_at_any_change(memory_path, case, points, seeds, tally):
    numbers = iter(range(1_000_000))
    count = case.count_changes(memory_path)
    cuts = case.cut_power(memory_path, spread(count, points or count), seeds,
                          lambda moment: case.hold(moment, goes_on=next(numbers) % 2 == 0))
    assert cuts >= min(count, points or count)
    print(f'{cuts} power cuts at {count} changes')
    tally('power cuts', cuts)


@pytest.mark.usefixtures('many_brokers')
@pytest.mark.parametrize('recoveries, points_of_recovery', [
    (RECOVERIES, POINTS_OF_RECOVERY),
    pytest.param(SOAK_RECOVERIES, SOAK_POINTS_OF_RECOVERY, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
@each_case
def test_what_was_answered_outlives_a_power_cut_in_a_recovery(memory_path, case, recoveries, points_of_recovery, tally):
    numbers = iter(range(1_000_000))
    rng = random.Random(recoveries)

    def fail_again(moment):
        """Cut the power again at about `points_of_recovery` of the changes that the recovery makes. It makes dozens or
        hundreds.
        """
        return case.cut_power_in_recovery(moment, lambda number: rng.random() < points_of_recovery / 60,
                                          lambda second: case.hold(second, goes_on=next(numbers) % 2 == 0))

    count = case.count_changes(memory_path)
    cuts: list[int] = []
    case.cut_power(memory_path, spread(count, recoveries), 1, lambda moment: cuts.append(fail_again(moment)))
    assert sum(cuts) > 0
    tally('power cuts', sum(cuts))
    print(f'{sum(cuts)} power cuts in {len(cuts)} recoveries')

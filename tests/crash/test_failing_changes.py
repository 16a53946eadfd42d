"""One write to the disk fails, or all writes from one point on. No answer is wrong, and the next start finds everything
that was acknowledged.

A write is any change of the disk, such as a rename or a sync. After the failure the broker serves what it still can.
Then the power fails.

Covers promises 1 and 2 of docs/design.md.
"""
from __future__ import annotations

import itertools
import shutil

import pytest
from support.disk.crash_points import FAULTS, spread
from support.disk.crash_stories import CASES

POINTS = 6
KINDS = list(itertools.product(FAULTS, (True, False)))
"""Each fault, once as a single failure and once as a lasting one. Each case begins at a different place in this list.
"""


@pytest.mark.usefixtures('many_brokers')
@pytest.mark.parametrize('points', [POINTS, pytest.param(None, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
@pytest.mark.parametrize('case', CASES.values(), ids=list(CASES))
def test_what_was_answered_outlives_any_change_that_fails(memory_path, case, points, tally):
    changes = case.count_changes(memory_path) - 1       # without the end
    failed = 0
    for turn, number in enumerate(spread(changes, points or changes)):
        fault, lasts = KINDS[(turn + len(case.story)) % len(KINDS)]
        moment = case.fail_change(memory_path, number, fault, lasts=lasts)
        if moment is not None:
            case.hold(moment, goes_on=turn % 4 < 2)
            shutil.rmtree(moment.directory)
            failed += 1
    assert failed >= min(changes, POINTS) - 1, 'the story ends earlier than it did when its changes were counted'
    tally('failed writes and syncs', failed)

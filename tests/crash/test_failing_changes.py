"""One change of the disk fails, or all from one on. No answer is wrong, and the next start finds all that was answered.

After the failure the broker goes on as far as it can. Then the power fails, too.
"""
from __future__ import annotations

import itertools

import pytest
from support.crash_points import FAULTS, spread
from support.crash_stories import CASES

POINTS = 6


@pytest.mark.usefixtures('many_brokers')
@pytest.mark.parametrize('points', [POINTS, pytest.param(None, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
@pytest.mark.parametrize('case', CASES.values(), ids=list(CASES))
def test_what_was_answered_outlives_any_change_that_fails(memory_path, case, points):
    count = case.count_changes(memory_path)
    faults = itertools.cycle(itertools.product(FAULTS, (True, False)))
    for number, (fault, lasts) in zip(spread(count, points or count), faults, strict=False):
        moment = case.fail_change(memory_path, number, fault, lasts=lasts)
        if moment is not None:
            case.hold(moment, goes_on=number % 2 == 0)

"""A sync fails, the broker restarts, and the power fails later.

After the failed sync, the page cache has data that the disk lacks, and no later sync writes this data. The restarted
broker reads it. Nothing that the restarted broker acknowledges may depend on it.

Covers promises 1 and 2 of docs/design.md.
"""
from __future__ import annotations

import shutil

import pytest
from support.disk.crash_points import spread
from support.disk.crash_stories import CASES

POINTS = 3


@pytest.mark.usefixtures('many_brokers')
@pytest.mark.parametrize('points', [POINTS, pytest.param(None, marks=[pytest.mark.soak, pytest.mark.timeout(0)])])
@pytest.mark.parametrize('case', CASES.values(), ids=list(CASES))
def test_what_was_answered_outlives_a_failed_sync_and_a_later_power_cut(memory_path, case, points, tally):
    syncs = [number for number, change in enumerate(case.list_changes(memory_path)) if change == 'sync']
    failed = 0
    for turn, place in enumerate(spread(len(syncs), points or len(syncs))):
        moment = case.fail_change(memory_path, syncs[place], 'EIO', restarts=True)
        if moment is not None:
            case.hold(moment, goes_on=turn % 2 == 0)
            shutil.rmtree(moment.directory)
            failed += 1
    assert failed >= min(len(syncs), POINTS) - 1, 'the story ends earlier than it did when its changes were counted'
    print(f'{failed} of {len(syncs)} syncs failed')
    tally('failed writes and syncs', failed)

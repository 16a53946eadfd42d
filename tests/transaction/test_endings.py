"""The decisions about EndTxn requests equal those in two tables, which have Kafka's names of states and errors."""
import itertools

import pytest

from kbroker.base.errors import ErrorCode
from kbroker.transaction.endings import Claim, claim_of, decide_with_bump, decide_without_bump, is_overflow_retry
from kbroker.transaction.state import TransactionRow, TransactionState

WITHOUT_BUMP = """
Ongoing         PrepareCommit            PrepareAbort
PrepareCommit   CONCURRENT_TRANSACTIONS  INVALID_TXN_STATE
PrepareAbort    INVALID_TXN_STATE        CONCURRENT_TRANSACTIONS
CompleteCommit  NONE                     INVALID_TXN_STATE
CompleteAbort   INVALID_TXN_STATE        NONE
Empty           INVALID_TXN_STATE        INVALID_TXN_STATE
"""
# The columns: the state, then the results of an abort with the previous epoch (a retry), an abort with the current
# epoch, a commit with the previous epoch, and a commit with the current epoch.
WITH_BUMP = """
Ongoing         PRODUCER_FENCED          PrepareAbort     PRODUCER_FENCED          PrepareCommit
Empty           PRODUCER_FENCED          PrepareAbort     PRODUCER_FENCED          INVALID_TXN_STATE
CompleteAbort   NONE                     PrepareAbort     PRODUCER_FENCED          INVALID_TXN_STATE
CompleteCommit  INVALID_TXN_STATE        PrepareAbort     NONE                     INVALID_TXN_STATE
PrepareCommit   INVALID_TXN_STATE        PRODUCER_FENCED  CONCURRENT_TRANSACTIONS  PRODUCER_FENCED
PrepareAbort    CONCURRENT_TRANSACTIONS  PRODUCER_FENCED  INVALID_TXN_STATE        PRODUCER_FENCED
"""
BY_TITLE = {state.title: state for state in TransactionState}
OVERFLOW_POSSIBLE = {'CompleteCommit', 'CompleteAbort'}


def parse(name):
    return BY_TITLE.get(name) or ErrorCode[name]


def cells(table):
    return [line.split() for line in table.strip().splitlines()]


@pytest.mark.parametrize(('state', 'commit', 'abort'), cells(WITHOUT_BUMP))
def test_an_ending_that_bumps_no_epoch(state, commit, abort):
    assert decide_without_bump(BY_TITLE[state], True) is parse(commit)
    assert decide_without_bump(BY_TITLE[state], False) is parse(abort)


@pytest.mark.parametrize(('state', 'abort_retry', 'abort_current', 'commit_retry', 'commit_current'), cells(WITH_BUMP))
def test_an_ending_that_bumps_the_epoch(state, abort_retry, abort_current, commit_retry, commit_current):
    found = BY_TITLE[state]
    assert decide_with_bump(found, Claim.CURRENT, True) is parse(commit_current)
    assert decide_with_bump(found, Claim.CURRENT, False) is parse(abort_current)
    assert decide_with_bump(found, Claim.BUMPED, True) is parse(commit_retry)
    assert decide_with_bump(found, Claim.BUMPED, False) is parse(abort_retry)
    for committed, retry in ((True, commit_retry), (False, abort_retry)):
        expected = parse(retry) if state in OVERFLOW_POSSIBLE else ErrorCode.PRODUCER_FENCED
        assert decide_with_bump(found, Claim.OVERFLOWED, committed) is expected


@pytest.mark.parametrize(('state', 'committed'), list(itertools.product(cells(WITH_BUMP), (True, False))))
def test_any_other_epoch_is_fenced_whatever_the_state(state, committed):
    assert decide_with_bump(BY_TITLE[state[0]], Claim.FENCED, committed) is ErrorCode.PRODUCER_FENCED


def row(producer_id, producer_epoch, previous=-1):
    return TransactionRow(TransactionState.COMPLETE_COMMIT, producer_id, producer_epoch, 60000, 0,
                          previous_producer_id=previous)


@pytest.mark.parametrize(('current', 'claimed', 'claim'), [
    (row(7, 4, 7), (7, 4), Claim.CURRENT),
    (row(7, 4, 7), (7, 3), Claim.BUMPED),
    (row(7, 4, 7), (7, 2), Claim.FENCED),
    (row(7, 4, 7), (7, 5), Claim.FENCED),
    (row(8, 0, 7), (7, 32766), Claim.OVERFLOWED),
    (row(8, 0, 7), (8, 0), Claim.CURRENT),
    (row(8, 0, 8), (8, 32766), Claim.OVERFLOWED),
])
def test_how_a_producer_id_and_epoch_relate_to_those_in_force(current, claimed, claim):
    assert claim_of(current, *claimed) is claim


@pytest.mark.parametrize(('current', 'claimed'), [
    (row(8, 1, 7), (7, 32766)), (row(8, 0, 7), (7, 32765)), (row(8, 0, 6), (7, 32766)),
])
def test_no_retry_over_an_overflow_unless_the_rotation_is_the_last_thing_that_happened(current, claimed):
    assert not is_overflow_retry(current, *claimed)

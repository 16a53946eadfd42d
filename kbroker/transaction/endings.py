"""What EndTxn leads to: the decision tables, apart from everything that carries a decision out.

Only a client's request needs them: the coordinator's own aborts, by fence or timeout, are of an Ongoing transaction
at or above its epoch, and that always ends in PrepareAbort.

A decision is a state to prepare (the transaction ends, or for TV2 an empty one does), or an error code to answer;
NONE means that the ending asked for has happened already and the answer was lost on the way.
"""
from __future__ import annotations

import enum

from kbroker.errors import ErrorCode
from kbroker.transaction.state import EXHAUSTED_PRODUCER_EPOCH, TransactionRow, TransactionState

Decision = TransactionState | ErrorCode

_S = TransactionState
_COMMIT = TransactionState.PREPARE_COMMIT
_ABORT = TransactionState.PREPARE_ABORT
_DONE = ErrorCode.NONE
_BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
_FENCED = ErrorCode.PRODUCER_FENCED
_WRONG = ErrorCode.INVALID_TXN_STATE


class Claim(enum.Enum):
    """How the (producer id, epoch) of a TV2 EndTxn relates to the current ones."""

    CURRENT = 'current'
    """The same: a first attempt."""
    BUMPED = 'bumped'
    """The pair before the bump that an ending gave: a retry."""
    OVERFLOWED = 'overflowed'
    """The pair before the rotation to a new producer id that an ending gave: a retry, too."""
    FENCED = 'fenced'
    """Anything else."""


#                      commit   abort
_WITHOUT_BUMP: dict[TransactionState, tuple[Decision, Decision]] = {
    _S.ONGOING:         (_COMMIT, _ABORT),
    _S.PREPARE_COMMIT:  (_BUSY,   _WRONG),
    _S.PREPARE_ABORT:   (_WRONG,  _BUSY),
    _S.COMPLETE_COMMIT: (_DONE,   _WRONG),
    _S.COMPLETE_ABORT:  (_WRONG,  _DONE),
    _S.EMPTY:           (_WRONG,  _WRONG),
}

# A commit retried after CompleteAbort can only be one that raced an abort of the coordinator's own, as a client
# repeats what it asked for: it is fenced, and not in a wrong state (KAFKA-20785).
#                      commit                     abort
#                      current  bumped   overflow current  bumped   overflow
_WITH_BUMP: dict[TransactionState, tuple[Decision, Decision, Decision, Decision, Decision, Decision]] = {
    _S.ONGOING:         (_COMMIT, _FENCED, _FENCED, _ABORT,  _FENCED, _FENCED),
    _S.EMPTY:           (_WRONG,  _FENCED, _FENCED, _ABORT,  _FENCED, _FENCED),
    _S.COMPLETE_ABORT:  (_WRONG,  _FENCED, _FENCED, _ABORT,  _DONE,   _DONE),
    _S.COMPLETE_COMMIT: (_WRONG,  _DONE,   _DONE,   _ABORT,  _WRONG,  _WRONG),
    _S.PREPARE_COMMIT:  (_FENCED, _BUSY,   _FENCED, _FENCED, _WRONG,  _FENCED),
    _S.PREPARE_ABORT:   (_FENCED, _WRONG,  _FENCED, _FENCED, _BUSY,   _FENCED),
}
_COLUMN = {Claim.CURRENT: 0, Claim.BUMPED: 1, Claim.OVERFLOWED: 2}


def decide_without_bump(state: TransactionState, committed: bool) -> Decision:
    """TV0 and TV1: EndTxn v0-4."""
    commit, abort = _WITHOUT_BUMP[state]
    return commit if committed else abort


def decide_with_bump(state: TransactionState, claim: Claim, committed: bool) -> Decision:
    """TV2: EndTxn from v5 (KIP-890)."""
    if claim is Claim.FENCED:
        return _FENCED
    return _WITH_BUMP[state][_COLUMN[claim] + (0 if committed else 3)]


def is_overflow_retry(current: TransactionRow, producer_id: int, producer_epoch: int) -> bool:
    """Whether the pair is the last one of the producer id that the current one replaced."""
    return (current.previous_producer_id == producer_id and producer_epoch == EXHAUSTED_PRODUCER_EPOCH
            and current.producer_epoch == 0)


def claim_of(current: TransactionRow, producer_id: int, producer_epoch: int) -> Claim:
    """The claim of a client whose producer id is the current one, unless `is_overflow_retry` holds."""
    if is_overflow_retry(current, producer_id, producer_epoch):
        return Claim.OVERFLOWED
    if producer_epoch == current.producer_epoch:
        return Claim.CURRENT
    return Claim.BUMPED if producer_epoch + 1 == current.producer_epoch else Claim.FENCED

"""The decision about a client's EndTxn: checks of the producer, then a lookup in a table.

`end_transaction` executes the decision.

The coordinator itself aborts a transaction because of a fence or a timeout. Such an abort needs no table: it ends an
Ongoing transaction, at its epoch or a higher one, and always leads to PrepareAbort.

A decision is the state of the Prepare row (in TV2 also for an empty transaction) or the error code of the reply. The
error code NONE means that the transaction has already ended as requested: the request is a retry, because the first
reply was lost.
"""
import enum

from libc.stdint cimport int16_t, int64_t

from kbroker.base.errors import ErrorCode
from kbroker.transaction.checks cimport check_epoch, check_not_busy, check_producer_id, check_row_can_hold
from kbroker.transaction.stale_requests cimport StaleRequests
from kbroker.transaction.state cimport EPOCH_BUMPS_FROM, EXHAUSTED_PRODUCER_EPOCH, TransactionMetadata, TransactionRow
from kbroker.transaction.state import TransactionState

Decision = TransactionState | ErrorCode

_S = TransactionState
_COMMIT = TransactionState.PREPARE_COMMIT
_ABORT = TransactionState.PREPARE_ABORT
_DONE = ErrorCode.NONE
_BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
_FENCED = ErrorCode.PRODUCER_FENCED
_WRONG = ErrorCode.INVALID_TXN_STATE


class Claim(enum.IntEnum):
    """How the (producer id, epoch) in a TV2 EndTxn compares with the client's pair in force: the columns of the table.

    - CURRENT: it is the client's pair, so the request is a first attempt.
    - BUMPED: it is the pair before an ending bumped the epoch, so the request is a retry.
    - OVERFLOWED: it is the pair before an ending changed the producer id, so the request is a retry, too.
    - FENCED: it is any other pair.
    """

    CURRENT = 0
    BUMPED = 1
    OVERFLOWED = 2
    FENCED = 3


#                      commit   abort
cdef dict _WITHOUT_BUMP = {
    _S.ONGOING:         (_COMMIT, _ABORT),
    _S.PREPARE_COMMIT:  (_BUSY,   _WRONG),
    _S.PREPARE_ABORT:   (_WRONG,  _BUSY),
    _S.COMPLETE_COMMIT: (_DONE,   _WRONG),
    _S.COMPLETE_ABORT:  (_WRONG,  _DONE),
    _S.EMPTY:           (_WRONG,  _WRONG),
}

# A client always retries with the same decision. So if a retried commit finds CompleteAbort, the coordinator aborted
# the transaction before the commit arrived. The client gets PRODUCER_FENCED, and not INVALID_TXN_STATE (KAFKA-20785).
#                      commit                     abort
#                      current  bumped   overflow current  bumped   overflow
cdef dict _WITH_BUMP = {
    _S.ONGOING:         (_COMMIT, _FENCED, _FENCED, _ABORT,  _FENCED, _FENCED),
    _S.EMPTY:           (_WRONG,  _FENCED, _FENCED, _ABORT,  _FENCED, _FENCED),
    _S.COMPLETE_ABORT:  (_WRONG,  _FENCED, _FENCED, _ABORT,  _DONE,   _DONE),
    _S.COMPLETE_COMMIT: (_WRONG,  _DONE,   _DONE,   _ABORT,  _WRONG,  _WRONG),
    _S.PREPARE_COMMIT:  (_FENCED, _BUSY,   _FENCED, _FENCED, _WRONG,  _FENCED),
    _S.PREPARE_ABORT:   (_FENCED, _WRONG,  _FENCED, _FENCED, _BUSY,   _FENCED),
}

cdef enum:
    CURRENT = 0
    BUMPED = 1
    OVERFLOWED = 2
    FENCED = 3
    COMMITS = 3         # the number of columns for commits, which precede those for aborts


cdef list without_bump = [_WITHOUT_BUMP.get(state) for state in TransactionState]
cdef list with_bump = [_WITH_BUMP.get(state) for state in TransactionState]


cdef object judge_without_bump(TransactionMetadata metadata, int64_t producer_id, int16_t producer_epoch,
                               bint committed, StaleRequests stale_requests, object connection):
    """Return the decision about an EndTxn of TV0 or TV1, which arrived on `connection`.

    Raise KafkaError to refuse it.
    """
    check_producer_id(metadata, producer_id)
    check_epoch(metadata, producer_epoch)
    check_not_busy(metadata)
    stale_requests.check(metadata, connection, 'an EndTxn')
    return decide_without_bump(metadata.current.fields.state, committed)


cdef object judge_with_bump(TransactionMetadata metadata, int64_t producer_id, int16_t producer_epoch, bint committed,
                            int transaction_version):
    """Return the decision about an EndTxn of TV2. Raise KafkaError to refuse it."""
    cdef int claim
    check_row_can_hold(EPOCH_BUMPS_FROM, transaction_version)
    check_not_busy(metadata)
    claim = claimed(metadata.current, producer_id, producer_epoch)
    if claim != OVERFLOWED:
        check_producer_id(metadata, producer_id)
    return decide_with_bump(metadata.current.fields.state, claim, committed)


cpdef decide_without_bump(int state, bint committed):
    """Return the decision for clients of TV0 and TV1, which send EndTxn v0-4."""
    return (<tuple?>without_bump[state])[0 if committed else 1]


cpdef decide_with_bump(int state, int claim, bint committed):
    """Return the decision for clients of TV2, which send EndTxn v5 and above (KIP-890)."""
    if claim == FENCED:
        return _FENCED
    return (<tuple?>with_bump[state])[claim + (0 if committed else COMMITS)]


cpdef bint is_overflow_retry(TransactionRow current, int64_t producer_id, int16_t producer_epoch) noexcept:
    """Return whether this pair is the last pair of the client's previous producer id.

    An ending has replaced that producer id, so the request is a retry.
    """
    return (current.fields.previous_producer_id == producer_id and producer_epoch == EXHAUSTED_PRODUCER_EPOCH
            and current.fields.producer_epoch == 0 and not current.keeps())


def claim_of(TransactionRow current not None, int64_t producer_id, int16_t producer_epoch):
    """Return the Claim for a pair. Its producer id must be the client's, unless `is_overflow_retry` is true for it."""
    return Claim(claimed(current, producer_id, producer_epoch))


cdef int claimed(TransactionRow current, int64_t producer_id, int16_t producer_epoch) noexcept:
    if is_overflow_retry(current, producer_id, producer_epoch):
        return OVERFLOWED
    if producer_epoch == current.epoch_of_client():
        return CURRENT
    return BUMPED if producer_epoch + 1 == current.epoch_of_client() else FENCED

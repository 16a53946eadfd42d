"""The decision table of InitProducerId. Other code executes the decisions.

The columns are the states of a transactional.id. The rows are the kinds of requests. A request names the client's
(producer id, epoch) pair, another pair or none. It may also ask to keep an open transaction (KIP-939).

The step NEXT_PAIR follows the rules of KIP-360: `TransactionMetadata.prepare_epoch_increment` refuses any pair except
the client's current pair and the pair before it.
"""
from __future__ import annotations

import enum

from kbroker.base.errors import ErrorCode
from kbroker.transaction.state import IDLE, NO_PRODUCER_ID, PREPARED, TransactionRow, TransactionState


class Step(enum.Enum):
    """The next step of the broker.

    - NEXT_PAIR: append an Empty row with the client's next pair.
    - FENCE: abort the open transaction. The client repeats its request.
    - KEEP: leave the transaction open, and give the client a separate pair.
    """

    NEXT_PAIR = 'next pair'
    FENCE = 'fence'
    KEEP = 'keep'


class Claim(enum.IntEnum):
    """How the pair that a client names compares with the client's pair in force."""

    NONE = 0
    CURRENT = 1
    OTHER = 2


class Place(enum.IntEnum):
    """The state of a transactional.id: a column of the table."""

    IDLE = 0
    OPEN = 1
    KEPT = 2
    DECIDED = 3


Decision = Step | ErrorCode

_NEXT, _FENCE, _KEEP = Step.NEXT_PAIR, Step.FENCE, Step.KEEP
_FENCED, _BUSY = ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS

# As in Kafka, a request that names another pair may fence an open transaction. Its client repeats the request, and is
# refused only then, with the error that it is fenced.
#                            idle   open     kept     decided
_DECISIONS: dict[tuple[Claim, bool], tuple[Decision, ...]] = {
    (Claim.NONE, False):    (_NEXT, _FENCE,  _FENCE,  _BUSY),
    (Claim.NONE, True):     (_NEXT, _KEEP,   _KEEP,   _BUSY),
    (Claim.CURRENT, False): (_NEXT, _FENCE,  _FENCE,  _BUSY),
    (Claim.CURRENT, True):  (_NEXT, _KEEP,   _KEEP,   _BUSY),
    (Claim.OTHER, False):   (_NEXT, _FENCE,  _FENCED, _BUSY),
    (Claim.OTHER, True):    (_NEXT, _FENCED, _FENCED, _BUSY),
}


def decide(place: Place, claim: Claim, keeps: bool) -> Decision:
    """Return the next step for an InitProducerId, or the error code with which to refuse it."""
    return _DECISIONS[claim, keeps][place]


def place_of(row: TransactionRow) -> Place:
    """Return the column of the table for a row. Raise KeyError for a state that a row in force never has."""
    return Place.KEPT if row.is_kept and row.state is TransactionState.ONGOING else _PLACES[row.state]


_PLACES = {**dict.fromkeys(IDLE, Place.IDLE), TransactionState.ONGOING: Place.OPEN,
           **dict.fromkeys(PREPARED, Place.DECIDED)}


def claim_of(row: TransactionRow, producer_id: int, producer_epoch: int) -> Claim:
    """Compare the pair that a client names with the client's pair in force.

    If the client names no pair, both numbers are -1.
    """
    if producer_id == NO_PRODUCER_ID:
        return Claim.NONE
    is_current = (producer_id, producer_epoch) == (row.client_producer_id, row.client_producer_epoch)
    return Claim.CURRENT if is_current else Claim.OTHER

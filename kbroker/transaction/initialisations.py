"""The decision table of InitProducerId, without the code that carries out a decision.

The columns are the states of a transactional.id. A row is a kind of request: it names the client's pair, another pair
or none, and it keeps an open transaction or not (KIP-939).

The next pair follows the rules of KIP-360: `TransactionMetadata.prepare_epoch_increment` refuses a pair that is neither
the client's nor the one before it.
"""
from __future__ import annotations

import enum

from kbroker.base.errors import ErrorCode
from kbroker.transaction.state import IDLE, NO_PRODUCER_ID, PREPARED, TransactionRow, TransactionState


class Step(enum.Enum):
    """The broker's next step. NEXT_PAIR: append an Empty row with the next pair. FENCE: abort the open transaction; the
    client repeats its request. KEEP: leave the transaction open, and give the client a separate pair."""

    NEXT_PAIR = 'next pair'
    FENCE = 'fence'
    KEEP = 'keep'


class Claim(enum.IntEnum):
    """The pair that a client names, compared with the client's pair in force."""

    NONE = 0
    CURRENT = 1
    OTHER = 2


class Place(enum.IntEnum):
    """The state of a transactional.id, as a column of the table."""

    IDLE = 0
    OPEN = 1
    KEPT = 2
    DECIDED = 3


Decision = Step | ErrorCode

_NEXT, _FENCE, _KEEP = Step.NEXT_PAIR, Step.FENCE, Step.KEEP
_FENCED, _BUSY = ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS

# A request with another pair may fence an open transaction, as in Kafka. Its client repeats the request, and only then
# gets the error that it was fenced.
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
    """Return the step that answers an InitProducerId, or the error code to refuse it with."""
    return _DECISIONS[claim, keeps][place]


def place_of(row: TransactionRow) -> Place:
    """Return the column of a row in force. Raise KeyError for a state that is never in force."""
    return Place.KEPT if row.is_kept and row.state is TransactionState.ONGOING else _PLACES[row.state]


_PLACES = {**dict.fromkeys(IDLE, Place.IDLE), TransactionState.ONGOING: Place.OPEN,
           **dict.fromkeys(PREPARED, Place.DECIDED)}


def claim_of(row: TransactionRow, producer_id: int, producer_epoch: int) -> Claim:
    """Return the relation of a client's pair to the pair in force. Both numbers are -1 if the client names no pair."""
    if producer_id == NO_PRODUCER_ID:
        return Claim.NONE
    is_current = (producer_id, producer_epoch) == (row.client_producer_id, row.client_producer_epoch)
    return Claim.CURRENT if is_current else Claim.OTHER

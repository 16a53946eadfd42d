"""The decision table of InitProducerId, without the code that carries out a decision.

The columns are the states of a transactional.id. The rows are what the client asks: whether it names the client's pair,
another one or none, and whether it keeps an open transaction (KIP-939).

The next pair follows the rules of KIP-360: `TransactionMetadata.prepare_epoch_increment` refuses a pair that is neither
the client's nor the one before it.
"""
from __future__ import annotations

import enum

from kbroker.base.errors import ErrorCode
from kbroker.transaction.state import IDLE, NO_PRODUCER_ID, PREPARED, TransactionRow, TransactionState


class Step(enum.Enum):
    """NEXT_PAIR: append an Empty row with the next pair. FENCE: abort the open transaction; the client asks again.
    KEEP: leave it open, and give the client a pair of its own."""

    NEXT_PAIR = 'next pair'
    FENCE = 'fence'
    KEEP = 'keep'


class Claim(enum.IntEnum):
    """The pair that a client names, compared with the client's pair in force."""

    NONE = 0
    CURRENT = 1
    OTHER = 2


class Place(enum.IntEnum):
    """A column of the table."""

    IDLE = 0
    OPEN = 1
    KEPT = 2
    DECIDED = 3


Decision = Step | ErrorCode

_NEXT, _FENCE, _KEEP = Step.NEXT_PAIR, Step.FENCE, Step.KEEP
_FENCED, _BUSY = ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS

# Another pair may fence an open transaction, as in Kafka: its client learns from the repetition that it was fenced.
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
    """Return the column of a row in force. KeyError for a state that is never in force."""
    return Place.KEPT if row.is_kept and row.state is TransactionState.ONGOING else _PLACES[row.state]


_PLACES = {**dict.fromkeys(IDLE, Place.IDLE), TransactionState.ONGOING: Place.OPEN,
           **dict.fromkeys(PREPARED, Place.DECIDED)}


def claim_of(row: TransactionRow, producer_id: int, producer_epoch: int) -> Claim:
    """Return how a client's pair relates to the one in force. Without a pair, both numbers are -1."""
    if producer_id == NO_PRODUCER_ID:
        return Claim.NONE
    is_current = (producer_id, producer_epoch) == (row.client_producer_id, row.client_producer_epoch)
    return Claim.CURRENT if is_current else Claim.OTHER

"""Types of endings.pyx, which has the documentation."""
import enum

from kbroker.base.errors import ErrorCode
from kbroker.transaction.state import TransactionRow, TransactionState

Decision = TransactionState | ErrorCode

class Claim(enum.IntEnum):
    CURRENT = 0
    BUMPED = 1
    OVERFLOWED = 2
    FENCED = 3

def decide_without_bump(state: int, committed: bool) -> Decision: ...
def decide_with_bump(state: int, claim: int, committed: bool) -> Decision: ...
def is_overflow_retry(current: TransactionRow, producer_id: int, producer_epoch: int) -> bool: ...
def claim_of(current: TransactionRow, producer_id: int, producer_epoch: int) -> Claim: ...

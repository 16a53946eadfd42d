"""Types of markers.pyx, which has the documentation."""
import enum

from kbroker.base.errors import ErrorCode

class Reaction(enum.Enum):
    RETRY = 'retry'
    GIVE_UP = 'give up'
    DONE = 'done'

REACTIONS: dict[ErrorCode, Reaction]

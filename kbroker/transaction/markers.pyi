"""Types of markers.pyx; the documentation stands there."""
import enum

from kbroker.clock import Clock, Timers
from kbroker.errors import ErrorCode
from kbroker.topics.registry import TopicRegistry

RETRY_BACKOFF_MS: int

class Reaction(enum.Enum):
    RETRY = 'retry'
    GIVE_UP = 'give up'
    DONE = 'done'

REACTIONS: dict[ErrorCode, Reaction]

class MarkerSender:
    def __init__(self, topics: TopicRegistry, clock: Clock, timers: Timers) -> None: ...
    def stop(self) -> None: ...

class Sending:
    def retry(self) -> None: ...

"""Types of sessions.pyx, which has the documentation."""
from collections.abc import Generator

from kbroker.apis.serving.waiting import WaitingRoom
from kbroker.base.clock import Clock
from kbroker.base.ledger import Line
from kbroker.base.long_work import LongWork
from kbroker.topics.partition import FetchWaiter

MOST_HELD_PARTITIONS: int

class WantedTopic: ...

class WantedPartition(FetchWaiter):
    def wake(self) -> None: ...

class FetchSession:
    session_id: int
    epoch: int
    def __len__(self) -> int: ...

    def ask_again(self) -> Generator[None]: ...
    def end_in_parts(self) -> Generator[None]: ...

class News:
    partitions: list[WantedPartition]

class FetchSessions:
    sessions: dict[int, FetchSession]
    held: int
    def __init__(self, slots: int, clock: Clock, room: WaitingRoom, long_work: LongWork) -> None: ...
    def ledger(self) -> list[Line]: ...
    def work_on_queue(self) -> Generator[None]: ...
    def __len__(self) -> int: ...

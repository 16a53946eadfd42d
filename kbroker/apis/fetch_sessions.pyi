"""Types of fetch_sessions.pyx; the documentation stands there."""
from kbroker.apis.waiting import WaitingRoom
from kbroker.clock import Clock
from kbroker.topics.partition import FetchWaiter

class WantedTopic: ...

class WantedPartition(FetchWaiter):
    def wake(self) -> None: ...

class FetchSession:
    session_id: int
    epoch: int
    def __len__(self) -> int: ...

class FetchSessions:
    sessions: dict[int, FetchSession]
    def __init__(self, slots: int, clock: Clock, room: WaitingRoom) -> None: ...
    def __len__(self) -> int: ...

"""Types of idle_members.pyx; the documentation stands there."""
from typing import Any

SESSION: str

class Sender: ...

class IdleMembers:
    def __init__(self, heartbeats: Any) -> None: ...

def next_interval_ms(configured_ms: int, is_settled: bool, since_assignment_ms: int, members: int) -> int: ...

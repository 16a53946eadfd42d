"""Types of sessions.pyx; see sessions.pyx for the documentation."""
from collections.abc import Callable

from kbroker.base.clock import Clock, Timers
from kbroker.group.classic.group import ClassicGroup
from kbroker.group.classic.members import Member
from kbroker.group.group import Group

class Sessions:
    def __init__(self, clock: Clock, timers: Timers, on_silence: Callable[[ClassicGroup, Member], None]) -> None: ...
    def restart(self, group: ClassicGroup, member: Member, timeout_ms: int = ...) -> None: ...
    def touch(self, group: Group, member_id: str) -> None: ...

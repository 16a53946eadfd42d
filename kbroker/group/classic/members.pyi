"""Types of members.pyx; see members.pyx for the documentation."""
from collections.abc import Generator, Sequence

from kbroker.base.clock import Timer
from kbroker.base.completion import Completion

MAX_MEMBER_NAME_LENGTH: int
MEMBER_BYTES: int
PROTOCOL_BYTES: int

Protocols = Sequence[tuple[str, bytes]]

def new_member_id(client_id: str, group_instance_id: str | None) -> str: ...

class Member:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes
    held_bytes: int
    metadata_bytes: int
    is_new: bool
    join_done: Completion | None
    sync_done: Completion | None
    session_timer: Timer | None
    session_deadline_ms: int
    def __init__(self, member_id: str, group_instance_id: str | None, client_id: str, client_host: str,
                 rebalance_timeout_ms: int, session_timeout_ms: int, protocols: Protocols,
                 assignment: bytes = b'') -> None: ...
    def copy(self) -> Member: ...
    @property
    def is_static(self) -> bool: ...
    @property
    def is_waiting(self) -> bool: ...
    def metadata(self, protocol_name: str | None) -> bytes: ...

class Assignors:
    def __init__(self, group_id: str, members: dict[str, Member]) -> None: ...
    def is_common(self, name: str) -> bool: ...
    def common(self) -> list[str]: ...
    def elect(self) -> str: ...

class Subscriptions:
    def read(self, members: list[Member], protocol_name: str) -> Generator[object]: ...

"""Types of records.pyx; see records.pyx for the documentation."""
from collections.abc import Iterator
from typing import Any

OFFSET_VERSION: int
EXPIRING_OFFSET_VERSION: int
GROUP_VERSION: int

Row = tuple[bytes, bytes | None]

class OffsetKey:
    group_id: str
    topic: str
    partition: int
    def __init__(self, group_id: str, topic: str, partition: int) -> None: ...
    def __lt__(self, other: OffsetKey) -> bool: ...

class CommittedOffset:
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None
    topic_id: bytes
    log_offset: int
    def __init__(self, offset: int, leader_epoch: int, metadata: str, commit_timestamp_ms: int,
                 expire_timestamp_ms: int | None = None, topic_id: bytes = ..., log_offset: int = -1) -> None: ...

class OffsetRow:
    key: OffsetKey
    committed: CommittedOffset | None
    def __init__(self, key: OffsetKey, committed: CommittedOffset | None) -> None: ...

class GroupRow:
    key: Any
    value: Any
    def __init__(self, key: Any, value: Any) -> None: ...

def offset_tombstone(key: OffsetKey) -> Row: ...
def read_row(key: bytes | None, value: bytes | None, log_offset: int) -> OffsetRow | GroupRow | None: ...
def row_bytes(row: Row) -> int: ...
def topics_of_subscription(metadata: bytes) -> Iterator[str]: ...

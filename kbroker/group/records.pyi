"""Types of records.pyx; the documentation stands there."""
from collections.abc import Iterator
from typing import Any

from kbroker.group.classic import ClassicGroup

NO_TOPIC_ID: bytes
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
    group_id: str
    value: Any
    def __init__(self, group_id: str, value: Any) -> None: ...

def offset_tombstone(key: OffsetKey) -> Row: ...
def group_tombstone(group_id: str) -> Row: ...
def read_row(key: bytes | None, value: bytes | None, log_offset: int) -> OffsetRow | GroupRow | None: ...
def row_bytes(row: Row) -> int: ...
def restore_group(group_id: str, value: Any) -> ClassicGroup: ...
def topics_of_subscription(metadata: bytes) -> Iterator[str]: ...

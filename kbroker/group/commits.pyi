"""Types of commits.pyx; see commits.pyx for the documentation."""
from kbroker.base.topic_partition import TopicPartition

NO_TOPIC_ID: bytes
TXN_VERSION_WITH_CODES_OF_GROUPS: int

class NewOffset:
    offset: int
    leader_epoch: int
    metadata: str | None
    topic_id: bytes
    def __init__(self, offset: int, leader_epoch: int = -1, metadata: str | None = '',
                 topic_id: bytes = ...) -> None: ...

class Commit:
    group_id: str
    offsets: dict[TopicPartition, NewOffset]
    generation: int
    member_id: str
    group_instance_id: str | None
    retention_ms: int
    def __init__(self, group_id: str, offsets: dict[TopicPartition, NewOffset], generation: int = -1,
                 member_id: str = '', group_instance_id: str | None = None, retention_ms: int = -1) -> None: ...
    def names_member(self) -> bool: ...

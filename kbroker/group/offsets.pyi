"""Types of offsets.pyx; the documentation stands there."""
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from kbroker.clock import Clock
from kbroker.completion import Completion
from kbroker.errors import ErrorCode
from kbroker.group.sessions import Sessions
from kbroker.group.shard import Shard, TransactionalProducer
from kbroker.long_work import LongWork

TopicPartition = tuple[str, int]

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

class FetchedOffset:
    error: ErrorCode
    offset: int
    leader_epoch: int
    metadata: str
    def __init__(self, error: ErrorCode = ..., offset: int = -1, leader_epoch: int = -1,
                 metadata: str = '') -> None: ...

class OffsetsUnderWay(Completion): ...

class Offsets:
    def __init__(self, shard: Shard, sessions: Sessions, config: Any, clock: Clock,
                 long_work: LongWork) -> None: ...
    def commit(self, commit: Commit, version: int, done: Completion) -> None: ...
    def prepare(self, commit: Commit) -> Generator[object]: ...
    def commit_transactional(self, commit: Commit, producer: TransactionalProducer, done: Completion) -> None: ...
    def fetch(self, group_id: str, partitions: Iterable[TopicPartition],
              require_stable: bool) -> dict[TopicPartition, FetchedOffset]: ...
    def delete(self, group_id: str, partitions: Sequence[TopicPartition], done: Completion) -> None: ...
    def delete_group(self, group_id: str, done: Completion) -> None: ...
    def forget_topic(self, topic: str, done: Completion) -> None: ...
    def forget_deleted_topics(self, is_known: Callable[[bytes], bool], done: Completion) -> None: ...
    def expire(self, done: Completion) -> Generator[object]: ...

"""Types of shard.pyx; the documentation stands there."""
from collections.abc import Callable, Sequence
from typing import Any

from kbroker.clock import Clock
from kbroker.completion import Completion
from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.classic import ClassicGroup
from kbroker.group.offset_table import OffsetTable
from kbroker.group.records import CommittedOffset, OffsetKey, Row
from kbroker.record.batch import BatchHeader
from kbroker.topics.partition import Partition

COORDINATOR_ERRORS: dict[ErrorCode, ErrorCode]

def coordinator_error(error: KafkaError) -> KafkaError: ...

class TransactionalProducer:
    producer_id: int
    producer_epoch: int
    guard: Any
    def __init__(self, producer_id: int, producer_epoch: int, guard: Any = None) -> None: ...

class Shard:
    partition: Partition
    groups: dict[str, ClassicGroup]
    offsets: OffsetTable
    on_group_row: Callable[[ClassicGroup, Any], None]
    def __init__(self, partition: Partition, clock: Clock, max_batch_bytes: int) -> None: ...
    def load(self) -> None: ...
    def append(self, rows: Sequence[Row], done: Completion) -> None: ...
    def append_offsets(self, keys: list[OffsetKey], offsets: list[CommittedOffset], done: Completion,
                       producer: TransactionalProducer | None) -> None: ...
    def replay(self, header: BatchHeader, batch: memoryview) -> None: ...

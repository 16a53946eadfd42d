from collections.abc import Callable, Iterable
from typing import Any

from typing_extensions import Buffer

from kbroker.base.clock import Clock
from kbroker.client.accumulator import PartitionQueue, ProducerBatch
from kbroker.client.cluster import TopicMetadata
from kbroker.client.columns_to_send import RowsToSend
from kbroker.client.stream_settings import ProducerSettings

def record_bytes(key: Buffer | None, value: Buffer | None, headers: object) -> int: ...

class TopicQueues:
    def __init__(self, topic: str, metadata: TopicMetadata, batch_bytes: int) -> None: ...

class RecordAppender:
    @property
    def queues(self) -> list[PartitionQueue]: ...
    @property
    def buffered_bytes(self) -> int: ...
    def __init__(
        self,
        settings: ProducerSettings,
        clock: Clock,
        find_topic: Callable[[str], TopicMetadata],
        await_room: Callable[[int], None],
    ) -> None: ...
    def append(
        self,
        topic: str,
        value: object,
        key: object,
        headers: object,
        partition: int | None,
        timestamp_ms: int | None,
        context: Any,
    ) -> bool: ...
    def append_rows(self, rows: RowsToSend) -> bool: ...
    def release(self, batch: ProducerBatch) -> None: ...
    def topic_names(self) -> list[str]: ...
    def adopt(self, topic: str, metadata: TopicMetadata | None) -> None: ...
    def idle_queues(self, idle_ms: int) -> dict[str, list[PartitionQueue]]: ...
    def forget(self, topics: Iterable[str]) -> None: ...

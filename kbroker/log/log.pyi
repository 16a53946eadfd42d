from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kbroker.clock import Clock
from kbroker.config import LogConfig
from kbroker.errors import KafkaError
from kbroker.log.fs import File, FileSystem
from kbroker.log.leader_epochs import LeaderEpochs
from kbroker.log.producer_state import ProducerStateTable, Verification
from kbroker.log.removals import Removals
from kbroker.log.segment import Segment
from kbroker.log.snapshots import ProducerSnapshots
from kbroker.record.batch import BatchHeader

class AppendResult:
    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    is_duplicate: bool
    def __init__(self, base_offset: int, last_offset: int, append_time_ms: int = -1, log_start_offset: int = 0,
                 is_duplicate: bool = False) -> None: ...

class LogSlice:
    file: File
    position: int
    size_bytes: int
    start_offset: int
    end_offset: int
    def read(self) -> bytes: ...

class Log:
    fs: FileSystem
    directory: str
    topic: str
    partition: int
    config: LogConfig
    clock: Clock
    removals: Removals | None
    log_start_offset: int
    log_end_offset: int
    flushed_offset: int
    producer_state: ProducerStateTable
    leader_epochs: LeaderEpochs
    snapshots: ProducerSnapshots
    segments: list[Segment]
    failure: KafkaError | None
    @property
    def recovery_point(self) -> int: ...
    size_bytes: int
    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        clock: Clock,
        *,
        log_start_offset: int = 0,
        recovery_point: int = 0,
        clean_shutdown: bool = True,
        removals: Removals | None = None,
        refuse_damage: bool = False,
        producer_expiration_ms: int = ...,
        maker: Callable[[], Iterable[str]] | None = None,
        sync_later: bool = False,
        on_failure: Callable[[KafkaError], object] | None = None,
    ) -> None: ...
    awaits_sync: bool
    @property
    def is_made(self) -> bool: ...
    @property
    def awaits_recovery(self) -> bool: ...
    def make(self) -> None: ...
    def put_off_sync(self) -> bool: ...
    def finish_recovery(self, is_synced: bool) -> None: ...
    def update_config(self, config: LogConfig) -> None: ...
    def append(
        self,
        batch: Any,
        origin: int,
        leader_epoch: int,
        guard: Verification | None = None,
        transaction_version: int = 0,
        verification_required: bool = False,
    ) -> AppendResult: ...
    def roll(self) -> None: ...
    def files_to_sync(self) -> tuple[list[File], int]: ...
    def mark_flushed(self, offset: int) -> None: ...
    def take_offline(self, failure: KafkaError) -> None: ...
    def fail_sync(self, error: OSError) -> None: ...
    def flush(self) -> None: ...
    def read(self, offset: int, max_bytes: int, upper_bound_offset: int, min_one_batch: bool) -> LogSlice | None: ...
    def batches(self, start_offset: int = 0) -> Iterator[tuple[BatchHeader, memoryview]]: ...
    def aborted_transactions(self, fetch_offset: int, upper_bound_offset: int) -> list[tuple[int, int]]: ...
    def first_unstable_offset(self) -> int | None: ...
    def on_high_watermark(self, high_watermark: int) -> None: ...
    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int, int] | None: ...
    def max_timestamp(self) -> tuple[int, int, int] | None: ...
    def delete_records(self, offset: int) -> None: ...
    def apply_retention(self, high_watermark: int) -> list[Segment]: ...
    def replace_segments(self, old: list[Segment], new: list[Segment]) -> None: ...
    @property
    def is_touched(self) -> bool: ...
    def seal(self) -> None: ...
    def close(self, clean: bool = True, is_synced: bool = False) -> None: ...

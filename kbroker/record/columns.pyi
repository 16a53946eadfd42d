from collections.abc import Collection
from typing import Any

from typing_extensions import Buffer as ReadableBuffer

from kbroker.record.batch_filter import BatchFilter

COLUMNS: tuple[str, ...]
WIDE: frozenset[str]

class Buffer:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Blobs: ...

class ColumnDecoder:
    @property
    def rows(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def hidden_batches(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    def __init__(
        self,
        columns: Collection[str],
        *,
        check_crcs: bool = True,
        batch_rows: int = 10_000,
        batch_bytes: int = ...,
        max_decompressed_bytes: int = ...,
    ) -> None: ...
    def feed(
        self,
        data: ReadableBuffer,
        batch_filter: BatchFilter,
        *,
        position: int = 0,
        start_offset: int = 0,
        end_offset: int = 0x7FFFFFFFFFFFFFFF,
    ) -> int: ...
    def take(self) -> tuple[int, dict[str, Any]]: ...

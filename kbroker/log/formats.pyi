"""Types of formats.pyx, which has the documentation."""
from array import array
from collections.abc import Iterator
from struct import Struct
from typing import Any

INDEX_VALUE_BYTES: int
SNAPSHOT_VERSION: int
OFFSET_ENTRY: Struct
TIME_ENTRY: Struct
TRANSACTION_ENTRY: Struct
TRANSACTION_ENTRY_VERSION: int
SNAPSHOT_HEAD_BYTES: int
SNAPSHOT_CRC_FROM: int
SNAPSHOT_ENTRY_BYTES: int

def whole_entries(layout: Struct, data: bytes) -> Iterator[tuple[Any, ...]]: ...
def offset_columns(data: bytes) -> tuple[array[int], array[int]]: ...
def snapshot_head(data: bytes) -> dict[str, int]: ...
def snapshot_entry(data: bytes, number: int) -> dict[str, int]: ...

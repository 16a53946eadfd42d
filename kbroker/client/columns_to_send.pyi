from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import Buffer

from kbroker.client.column_kinds import ArrowArray, ArrowChunks, Column

class BlobColumn:
    @property
    def count(self) -> int: ...
    def __init__(self, source: Column, name: str) -> None: ...

class HeaderColumn:
    @property
    def count(self) -> int: ...
    def __init__(self, source: Iterable[object]) -> None: ...

class RowsToSend:
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int | None: ...
    @property
    def context(self) -> Any: ...
    @property
    def count(self) -> int: ...
    def __init__(
        self,
        topic: str,
        values: Column,
        keys: Column | None,
        headers: Iterable[object] | None,
        partition: int | None,
        timestamps: Sequence[int] | Buffer | ArrowArray | ArrowChunks | None,
        context: Any,
    ) -> None: ...

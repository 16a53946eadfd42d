from collections.abc import Iterable

from typing_extensions import Buffer

from kbroker.record.batch import BatchHeader

class AbortFilter:
    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None: ...
    def admits(self, header: BatchHeader, batch: Buffer) -> bool: ...

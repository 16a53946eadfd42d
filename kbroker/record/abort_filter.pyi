from collections.abc import Iterable

from typing_extensions import Buffer

from kbroker.record.batch import BatchHeader
from kbroker.record.batch_filter import BatchFilter

class AbortFilter(BatchFilter):
    def __init__(self, aborted: Iterable[tuple[int, int]], *, is_committed_only: bool = True) -> None: ...
    def admits(self, header: BatchHeader, batch: Buffer) -> bool: ...

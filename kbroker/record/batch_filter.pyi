from collections.abc import Iterable, Mapping

from kbroker.record.batch import BatchHeader

class Outcome(int):
    NO_TRANSACTION: Outcome
    COMMITTED: Outcome
    ABORTED: Outcome
    OPEN: Outcome

class BatchFilter: ...

class TransactionRanges(BatchFilter):
    def __init__(
        self,
        aborted: Iterable[tuple[int, int, int]],
        open: Mapping[int, int] | None = None,
        *,
        is_committed_only: bool = True,
    ) -> None: ...
    def admits(self, header: BatchHeader) -> bool: ...

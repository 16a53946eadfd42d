from typing import NamedTuple

from kbroker.log.cleaned_transactions import CleanedTransactions
from kbroker.log.fs import File
from kbroker.log.offset_map import OffsetMap
from kbroker.log.segment import Segment

NO_LAST_OFFSET: int

class LastRecord(NamedTuple):
    last_offset: int
    producer_epoch: int

class Retention(NamedTuple):
    now_ms: int
    delete_retention_ms: int
    high_watermark: int
    last_records: dict[int, LastRecord]

class SegmentWriter:
    target: Segment
    def __init__(self, target: Segment, keys: OffsetMap, transactions: CleanedTransactions, retention: Retention,
                 window_bytes: int) -> None: ...
    def copy(self, file: File, position: int, end: int, budget_bytes: int) -> int: ...
    def finish(self) -> None: ...

def index_batches(keys: OffsetMap, transactions: CleanedTransactions, file: File, position: int, end: int,
                  start_offset: int, budget_bytes: int, window_bytes: int) -> tuple[int, bool]: ...

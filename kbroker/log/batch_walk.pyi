from collections.abc import Iterator

from kbroker.log.fs import File
from kbroker.record.batch import BatchHeader

class BatchWalk:
    position: int
    next_position: int
    end: int
    def __iter__(self) -> Iterator[tuple[BatchHeader, memoryview]]: ...

def read_batches(file: File, position: int, end: int) -> BatchWalk: ...

"""Types of timestamp_scan.pyx, which has the documentation."""
from typing_extensions import Buffer

from kbroker.base.errors import KafkaError

class Found(KafkaError):
    def __init__(self) -> None: ...

class TimestampScan:
    found_timestamp_ms: int
    found_offset: int
    def expect(self, size_bytes: int) -> None: ...
    def add(self, piece: Buffer) -> None: ...
    def decompress(self, data: memoryview) -> bool: ...

def find_in_batch(batch: Buffer, timestamp_ms: int, start_offset: int = 0,
                  piece_bytes: int = 65536) -> tuple[int, int] | None: ...

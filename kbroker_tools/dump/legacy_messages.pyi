from collections.abc import Iterator

from kbroker.record.records import Record

class LegacyMessages:
    @property
    def attributes(self) -> int: ...
    def __init__(self, message: bytes, max_decompressed_bytes: int) -> None: ...

def iter_messages(message: bytes, max_decompressed_bytes: int) -> Iterator[Record]: ...

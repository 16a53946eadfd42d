from collections.abc import Iterable, Iterator

from typing_extensions import Buffer

MAX_DECOMPRESSED_BYTES: int

class Record:
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> list[tuple[str, bytes | None]]: ...
    @property
    def sequence(self) -> int: ...
    def __init__(
        self,
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        sequence: int = -1,
    ) -> None: ...

def iter_records(batch: Buffer, *, max_decompressed_bytes: int = ...) -> Iterator[Record]: ...
def decode_records(batch: Buffer, *, max_decompressed_bytes: int = ...) -> list[Record]: ...

from collections.abc import Callable
from typing import Protocol

from kbroker_tools.dump.segment_reader import SegmentReader
from kbroker_tools.dump.selection import Selection
from kbroker_tools.dump.sink import Sink

MAX_DECOMPRESSED_BYTES: int

class _Decoder(Protocol):
    def decode(self, offset: int, key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]: ...

class DumpText:
    def __init__(
        self,
        sink: Sink,
        *,
        deep: bool = False,
        contents: bool = False,
        skip_record_metadata: bool = False,
        decoder: _Decoder | None = None,
        control_text: Callable[[int, bytes | None], str] | None = None,
        on_gap: Callable[[int, int], None] | None = None,
        on_damage: Callable[[str], None] | None = None,
        selection: Selection | None = None,
    ) -> None: ...
    def begin(self, last_offset: int | None = None) -> None: ...
    def dump(self, reader: SegmentReader, most_bytes: int = ...) -> bool: ...

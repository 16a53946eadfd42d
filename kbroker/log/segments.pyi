"""Types of segments.pyx, which has the documentation."""
from collections.abc import Iterator
from typing import overload

from kbroker.base.clock import Clock
from kbroker.log.fs import File, FileSystem
from kbroker.log.segment import Segment
from kbroker.log.time_search import TimeSearch
from kbroker.settings.topic_config import LogConfig

class LogSlice:
    file: File
    position: int
    size_bytes: int
    start_offset: int
    end_offset: int
    def read(self) -> bytes: ...

class Segments:
    active: Segment
    @property
    def size_bytes(self) -> int: ...
    def __init__(
        self, fs: FileSystem, directory: str, config: LogConfig, clock: Clock, segments: list[Segment]
    ) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Segment]: ...
    @overload
    def __getitem__(self, key: int) -> Segment: ...
    @overload
    def __getitem__(self, key: slice) -> list[Segment]: ...
    def search_time(self, timestamp_ms: int, start_offset: int, end_offset: int) -> TimeSearch | None: ...
    def search_greatest(self) -> TimeSearch | None: ...

from collections.abc import Callable
from typing import Any

class TailWalk:
    next_offset: int
    replayed_to: int
    sound_bytes: int
    def __init__(self, next_offset: int, replay_from: int, replay: Callable[[memoryview], Any]) -> None: ...
    def feed(self, data: bytes | memoryview) -> int: ...

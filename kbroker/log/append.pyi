"""Types of append.pyx, which has the documentation."""
import enum
from typing import Any

from kbroker.log.producer_state import Verification

class Origin(enum.IntEnum):
    CLIENT = 0
    COORDINATOR = 1
    REPLICATION = 2

class AppendResult:
    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def append_time_ms(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def is_duplicate(self) -> bool: ...

class Appender:
    def append_batch(self, batch: Any, origin: int = ..., leader_epoch: int = 0, *, guard: Verification | None = None,
                     transaction_version: int = 0) -> AppendResult: ...

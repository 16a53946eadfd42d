"""Types of append_result.pyx; the documentation stands there."""

class AppendResult:
    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    is_duplicate: bool
    def __init__(self, base_offset: int, last_offset: int, append_time_ms: int = -1, log_start_offset: int = 0,
                 is_duplicate: bool = False) -> None: ...

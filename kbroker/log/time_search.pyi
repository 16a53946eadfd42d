"""Types of time_search.pyx, which has the documentation."""

class TimeSearch:
    end_offset: int
    is_over: bool
    found: tuple[int, int, int] | None
    def start(self) -> bool: ...
    def advance(self) -> None: ...

"""Types of turn_watch.pyx, which has the documentation."""

class TurnWatch:
    measures_cpu: bool
    turns: int
    long_turns: int
    longest_turn_us: int
    longest_turn: str | None
    longest_tick_us: int
    def __init__(self, measures_cpu: bool = False) -> None: ...
    def watch_collections(self) -> None: ...
    def log_longest(self) -> None: ...

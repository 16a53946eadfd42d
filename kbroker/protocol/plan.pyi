"""Types of plan.pyx, which has the documentation."""
from typing import Any

class Message:
    def __init__(self, **values: Any) -> None: ...
    def __getattr__(self, name: str) -> Any: ...  # the fields, and the class attributes from messages.py

class Layout:
    names: list[str]
    def __init__(self, cls: type[Message], names: list[str], defaults: list[Any]) -> None: ...

class Plan:
    cls: type[Message]
    flexible: bool
    has_records: bool
    has_arrays: bool
    least_bytes: int
    def __init__(
        self,
        cls: type[Message],
        flexible: bool,
        steps: list[tuple[Any, ...]],
        tagged: list[tuple[Any, ...]],
        absent: list[int],
    ) -> None: ...

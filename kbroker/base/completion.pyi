"""Types of completion.pyx, which has the documentation."""
from collections.abc import Callable
from typing import Any

from kbroker.base.errors import KafkaError

class Completion: ...

class Callback(Completion):
    function: Callable[[KafkaError | None, Any], object]
    overdue_ms: int
    def __init__(self, function: Callable[[KafkaError | None, Any], object]) -> None: ...

def complete(done: Completion, error: KafkaError | None, result: Any) -> None: ...

"""Types of dispatch.pyx; the documentation stands there."""
from collections.abc import Iterable
from typing import Any, Protocol

from kbroker.apis.context import Api
from kbroker.topics.gathering import Gathering
from kbroker.wire.frames import FrameServer

FILES: tuple[str, ...]

class _Connection(Protocol):
    """What dispatch needs of a connection."""

    connection_id: int
    client_host: str
    listener_name: str

    def reply(self, sequence: int, segments: list[Any] | None) -> None: ...
    def let_next_pass(self, sequence: int) -> None: ...
    def close(self, reason: str) -> None: ...

def served_apis() -> list[Api]: ...

class Served:
    def __init__(self, api: Api) -> None: ...

class Dispatcher(FrameServer):
    def __init__(self, broker: Any, apis: Iterable[Api], gathering: Gathering | None = None) -> None: ...
    def handle(self, connection: _Connection, sequence: int, frame: memoryview) -> None: ...

"""Types of frames.pyx; the documentation stands there."""
from typing import Any, Protocol

class _Connection(Protocol):
    """The part of a connection that servers use."""

    connection_id: int
    client_host: str
    listener_name: str

    def reply(self, sequence: int, segments: Any) -> None: ...
    def let_next_pass(self, sequence: int) -> None: ...
    def keep_frame(self) -> KeptFrame | None: ...
    def close(self, reason: str) -> None: ...

class KeptFrame:
    buffer: bytearray | None

class FrameServer:
    def handle(self, connection: _Connection, sequence: int, frame: memoryview) -> None: ...

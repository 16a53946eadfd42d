"""Types of frames.pyx, which has the documentation."""
from typing import Any, Protocol

class _Connection(Protocol):
    """The methods and attributes of a connection that servers use."""

    connection_id: int
    client_host: str
    listener_name: str
    session: Any

    def reply(self, sequence: int, segments: Any) -> None: ...
    def let_next_pass(self, sequence: int) -> None: ...
    def mute(self, time_ms: int) -> None: ...
    def take_network_us(self) -> int: ...
    def keep_frame(self) -> KeptFrame | None: ...
    def close(self, reason: str) -> None: ...

class KeptFrame:
    buffer: bytearray | None

class FrameServer:
    arrived_us: int
    def handle(self, connection: _Connection, sequence: int, frame: memoryview) -> None: ...

from kbroker.base.ledger import Line
from kbroker.network.reactor import EventHandler, Reactor
from kbroker.wire.frames import KeptFrame

SMALL_BYTES: int
RELIEF_INTERVAL_MS: int

class MemoryHolder(EventHandler):
    framed_bytes: int

class ConnectionMemory:
    def ledger(self) -> list[Line]: ...
    held_bytes: int
    max_held_bytes: int
    def __init__(self, reactor: Reactor, max_held_bytes: int) -> None: ...

class LeavingBuffer: ...

class ChargedFrame(KeptFrame): ...

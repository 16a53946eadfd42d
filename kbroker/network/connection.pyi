from collections.abc import Callable, Iterable
from typing import Any

from kbroker.network.framing import Framer
from kbroker.network.limits import Limits
from kbroker.network.memory import ConnectionMemory, MemoryHolder
from kbroker.network.newcomers import Newcomers
from kbroker.network.reactor import Reactor
from kbroker.network.replies import ReplyQueue
from kbroker.network.transport import Transport
from kbroker.network.worker import Submit
from kbroker.wire.frames import FrameServer, KeptFrame

MAX_UNANSWERED: int
MAX_QUEUED_BYTES: int
FRAMES_OF_A_TURN: int

class Commons:
    reactor: Reactor
    max_request_bytes: int
    memory: ConnectionMemory
    newcomers: Newcomers
    submit: Submit | None
    on_close: Callable[[Connection], Any] | None
    measures_time: bool
    opened: int
    closed: int
    requests: int
    failed_handshakes: int
    traffic: dict[str, ListenerTraffic]
    cold_reads: int
    cold_bytes: int
    @property
    def received_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    def __init__(self, reactor: Reactor, server: FrameServer, limits: Limits,
                 on_close: Callable[[Connection], Any] | None = None, submit: Submit | None = None,
                 receive_buffer_bytes: int = ...) -> None: ...
    def sweep(self, connections: Iterable[Connection]) -> None: ...
    def sent_times(self) -> tuple[tuple[float, ...], list[int], float]: ...
    @staticmethod
    def sweep_interval_ms(max_idle_ms: int) -> int: ...

class ListenerTraffic:
    received_bytes: int
    sent_bytes: int

class Connection(MemoryHolder):
    connection_id: int
    client_host: str
    client_port: int
    listener_name: str
    session: Any
    framer: Framer
    replies: ReplyQueue
    def __init__(self, commons: Commons, fd: int, client_host: str = '', client_port: int = -1,
                 listener_name: str = '', make_transport: Callable[[int], Transport] = ...) -> None: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def is_reading(self) -> bool: ...
    @property
    def peer_certificate(self) -> bytes | None: ...
    def reply(self, sequence: int, segments: bytes | list[Any] | None) -> None: ...
    def await_login(self, largest_frame_bytes: int) -> None: ...
    def end_login(self) -> None: ...
    def keep_frame(self) -> KeptFrame | None: ...
    def let_next_pass(self, sequence: int) -> None: ...
    def mute(self, time_ms: int) -> None: ...
    def take_network_us(self) -> int: ...
    def close_after_flush(self) -> None: ...
    def close(self, reason: str, level: int = ...) -> None: ...
    def close_if_idle(self) -> None: ...

"""Types of dispatch.pyx, which has the documentation."""
from collections.abc import Iterable
from typing import Any

from kbroker.apis.serving.request import Api
from kbroker.base.completion import Steps
from kbroker.base.errors import ErrorCode
from kbroker.base.turn_watch import TurnWatch
from kbroker.security.quotas import ClientQuotas
from kbroker.topics.partition import Tick
from kbroker.wire.frames import FrameServer

class HeldRequest:
    @property
    def connection_id(self) -> int: ...
    def __call__(self) -> None: ...
    def fail(self, code: ErrorCode, message: str) -> None: ...
    def drop(self, reason: str) -> None: ...

class Dispatcher(FrameServer):
    def __init__(self, node: Any, apis: Iterable[Api], tick: Tick | None = None,
                 watch: TurnWatch | None = None, steps: Steps | None = None) -> None: ...
    def apply_quotas(self, quotas: ClientQuotas | None) -> None: ...
    def handle(self, connection: Any, sequence: int, frame: memoryview) -> None: ...

"""Types of idle_heartbeat.pyx; the documentation stands there."""
from collections.abc import Callable
from typing import Any

from kbroker.apis.serving.request import Handler

class IdleHeartbeatHandler(Handler):
    def __init__(self, kind: str, handle: Callable[..., Any], request_name: str) -> None: ...

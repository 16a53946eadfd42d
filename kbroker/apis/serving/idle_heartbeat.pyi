"""Types of idle_heartbeat.pyx; the documentation stands there."""
from kbroker.apis.serving.heartbeat_calls import HeartbeatKind
from kbroker.apis.serving.request import Handler

class HeartbeatHandler(Handler):
    def __init__(self, kind: HeartbeatKind, request_name: str) -> None: ...

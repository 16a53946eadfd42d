"""Types of idle_heartbeat.pyx; see idle_heartbeat.pyx for the documentation."""
from kbroker.apis.serving.heartbeat_calls import HeartbeatKind
from kbroker.apis.serving.request import Handler

class HeartbeatHandler(Handler):
    def __init__(self, kind: HeartbeatKind, request_name: str) -> None: ...

from typing import Any

class ReplyQueue:
    next_reply: int
    unanswered: int
    queued_bytes: int
    def put(self, sequence: int, segments: list[Any] | None) -> None: ...

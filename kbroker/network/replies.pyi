class Reply: ...

class ReplyQueue:
    next_reply: int
    unanswered: int
    queued_bytes: int
    memory_bytes: int

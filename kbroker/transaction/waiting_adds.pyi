"""Types of waiting_adds.pyx; the documentation stands there."""
from kbroker.base.clock import Timers

ADD_RETRY_BACKOFF_MS: int

class WaitingAdds:
    def __init__(self, timers: Timers) -> None: ...

"""No file descriptor left: no fault of the disk, and it passes. A request is refused; that is said once a minute."""
import logging

from kbroker.clock import Clock
from kbroker.errors import ErrorCode, KafkaError

SILENCE_MS = 60_000
SHORTAGE_PAUSE_MS = 1_000
"""After that what could not be done is tried again."""

logger = logging.getLogger(__name__)


class Shortage:
    """What was said of it."""

    def __init__(self) -> None:
        self._silent_until_ms = 0

    def refusal(self, clock: Clock, what: str, error: OSError) -> KafkaError:
        """The error for clients, which they retry: KAFKA_STORAGE_ERROR. The log directory stays online."""
        now_ms = clock.wall_ms()
        if now_ms >= self._silent_until_ms:
            self._silent_until_ms = now_ms + SILENCE_MS
            logger.error('%s: %s. Requests that need a file are refused until one is closed: raise the limit of open '
                         'files (LimitNOFILE), or have fewer connections', what, error.strerror)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f'{what}: {error.strerror}')


shortage = Shortage()
"""Of this process, as descriptors are."""

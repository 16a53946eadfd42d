"""Handles a shortage of file descriptors, which is temporary and not a failure of the disk.

During a shortage, the broker refuses requests that need a file, and logs the shortage once a minute.
"""
import logging

from kbroker.base.clock import Clock, is_over
from kbroker.base.errors import ErrorCode, KafkaError

SILENCE_MS = 60_000
SHORTAGE_PAUSE_MS = 1_000
"""The delay in ms before a refused operation is retried."""

logger = logging.getLogger(__name__)


class Shortage:
    """Logs the shortage, and remembers when it was last logged."""

    def __init__(self) -> None:
        self._logged_at_ms = 0

    def refusal(self, clock: Clock, what: str, error: OSError) -> KafkaError:
        """Log the shortage if it was not logged recently. Return the error for clients, KAFKA_STORAGE_ERROR, after
        which they retry. The log directory stays online.
        """
        now_ms = clock.wall_ms()
        if is_over(SILENCE_MS, self._logged_at_ms, now_ms):
            self._logged_at_ms = now_ms
            logger.error('%s: %s. Requests that need a file are refused until one is closed: raise the limit of open '
                         'files (LimitNOFILE), or reduce the connections', what, error.strerror)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f'{what}: {error.strerror}')


shortage = Shortage()
"""The single instance: all parts of a process share its file descriptors."""

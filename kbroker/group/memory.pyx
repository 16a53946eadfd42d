"""The memory that all groups take, and its bound."""
import logging

from libc.stdint cimport int64_t

from kbroker.base.clock cimport Clock

from kbroker.base.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

REPORT_INTERVAL_MS = 60_000

cdef enum:
    MARGIN_BYTES = 16 * 1024 * 1024         # more than a single request can add


cdef class GroupMemory:
    """The memory of all groups with their members and offsets in bytes, estimated from measured sizes.

    Beyond the bound `most_bytes`, requests that need more memory are refused. Existing members stay, an existing offset
    can be replaced by a new commit, and a restart loads all rows of the log.
    """

    def __init__(self, int64_t most_bytes, Clock clock not None):
        self.most_bytes = most_bytes
        self._clock = clock

    cpdef hold(self, int64_t more_bytes):
        """Add `more_bytes`, which may be negative, to the memory."""
        self.held_bytes += more_bytes

    cdef bint is_nearly_full(self) noexcept:
        """Return False if there is so much memory left that no single request can exceed the bound."""
        return self.held_bytes + MARGIN_BYTES > self.most_bytes

    cpdef bint has_room_for(self, int64_t more_bytes):
        return self.held_bytes + more_bytes <= self.most_bytes

    cpdef check(self, int64_t more_bytes):
        """Raise COORDINATOR_LOAD_IN_PROGRESS if `more_bytes` more would exceed the bound. After this error, clients
        pause and try again."""
        cdef int64_t now_ms
        if self.has_room_for(more_bytes):
            return
        message = (f'groups hold {self.held_bytes} bytes of memory, and {more_bytes} more would exceed '
                   f'kbroker.group.memory.max.bytes={self.most_bytes}')
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_report_ms:
            self._next_report_ms = now_ms + REPORT_INTERVAL_MS
            log.warning('refused, and not reported again for a minute: %s', message)
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)

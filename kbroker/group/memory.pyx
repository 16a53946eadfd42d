"""The memory of all groups, and its bound."""
import logging

from libc.stdint cimport int64_t

from kbroker.base.clock cimport Clock

from kbroker.base.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

REPORT_INTERVAL_MS = 60_000

cdef enum:
    MARGIN_BYTES = 16 * 1024 * 1024         # more than a single request can add


cdef class GroupMemory:
    """The memory of all groups with their members and offsets: an estimate in bytes, from measured sizes.

    Only growth beyond the bound `most_bytes` is refused. Members of existing groups stay, an offset that was committed
    before can be committed again, and all rows of the log are loaded.
    """

    def __init__(self, int64_t most_bytes, Clock clock not None):
        self.most_bytes = most_bytes
        self._clock = clock

    cpdef hold(self, int64_t more_bytes):
        """Count `more_bytes` as held. A negative number counts them as released."""
        self.held_bytes += more_bytes

    cdef bint is_nearly_full(self) noexcept:
        """Return False if no single request can exceed the bound."""
        return self.held_bytes + MARGIN_BYTES > self.most_bytes

    cpdef bint has_room_for(self, int64_t more_bytes):
        return self.held_bytes + more_bytes <= self.most_bytes

    cpdef check(self, int64_t more_bytes):
        """Raise COORDINATOR_LOAD_IN_PROGRESS if `more_bytes` would exceed the bound. Clients pause and try again after
        this error."""
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

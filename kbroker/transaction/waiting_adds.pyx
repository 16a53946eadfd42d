"""Requests to add partitions that wait until the previous transaction of their id is complete."""
from kbroker.base.clock cimport Timer, Timers

ADD_RETRY_BACKOFF_MS = 20
"""Kafka's add.partitions.to.txn.retry.backoff.ms."""


cdef class WaitingAdds:
    """The attempts that wait, by transactional.id. Each is repeated after a backoff, or as soon as `wake` is called."""

    def __init__(self, Timers timers):
        self.timers = timers
        self.by_id = {}

    cdef int wait(self, str transactional_id, attempt) except -1:
        waiting = [timer for timer in self.by_id.get(transactional_id, ()) if timer.callback is not None]
        self.by_id[transactional_id] = [*waiting, self.timers.after(ADD_RETRY_BACKOFF_MS, attempt)]
        return 0

    cdef int wake(self, str transactional_id) except -1:
        """Repeat the attempts of an id whose transaction is complete."""
        cdef Timer timer
        if not self.by_id:
            return 0
        for timer in self.by_id.pop(transactional_id, ()):
            attempt = timer.callback
            if attempt is not None:
                timer.cancel()
                attempt()
        return 0

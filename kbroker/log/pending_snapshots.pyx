"""Encodes and writes the producer snapshots of a log. A snapshot may be written only after the log is synced up to its
offset.
"""
import logging

from libc.stdint cimport int64_t

from kbroker.log.producer_state cimport ProducerSnapshot, ProducerStateTable

logger = logging.getLogger(__name__)

cdef enum:
    MOST_SNAPSHOT_BYTES = 8 * 1024 * 1024       # for unwritten snapshots of a log, besides two


cdef class PendingSnapshot:
    """A snapshot that is not completely written. It is being encoded, is waiting for the sync of the log below its
    offset, or is being written.
    """


cdef class PendingSnapshots:
    """Begins a snapshot at each roll, encodes it as long work, and writes it when the log is synced up to its offset.
    """

    def __init__(self, str directory, snapshots, start_work):
        """Create. `snapshots` writes the files. `start_work` runs a generator to its end, either immediately or in
        slices.
        """
        self.directory = directory
        self.snapshots = snapshots
        self.start_work = start_work
        self.pending = []

    cdef int add(self, int64_t offset, ProducerStateTable producers) except -1:
        """Begin a snapshot of `producers` at `offset`. Do nothing while an earlier snapshot is being encoded."""
        cdef ProducerSnapshot snapshot = producers.begin_snapshot(offset)
        cdef PendingSnapshot pending
        if snapshot is not None:
            pending = PendingSnapshot.__new__(PendingSnapshot)
            pending.snapshot, pending.producers = snapshot, producers
            self.limit(len(snapshot.content))
            self.pending.append(pending)
            self.start(pending, self.encode(pending))
        return 0

    cdef int mark_synced(self, int64_t offset) except -1:
        """Write the snapshots at or below `offset`, because the log is now synced up to `offset`."""
        for pending in list(self.pending):
            if (<PendingSnapshot>pending).snapshot.offset <= offset:
                self.write_synced(pending)
        return 0

    cdef int start(self, PendingSnapshot pending, work) except -1:
        pending.work = work
        self.start_work(work)
        return 0

    def encode(self, PendingSnapshot pending):
        """Encode a snapshot, then write it if the log is synced up to its offset. A generator for long work."""
        yield from pending.snapshot.encode()
        pending.producers.end_snapshot(pending.snapshot)
        if pending.is_synced:
            self.start(pending, self.write(pending))

    cdef int write_synced(self, PendingSnapshot pending) except -1:
        """Note that the log is synced up to the offset of a snapshot. Write the snapshot now if it is encoded,
        otherwise after it is encoded.
        """
        if not pending.is_synced:
            pending.is_synced = True
            if pending.snapshot.is_encoded:
                self.start(pending, self.write(pending))
        return 0

    def write(self, PendingSnapshot pending):
        """Write a snapshot. A generator for long work. An error is only logged, because a lost snapshot only makes the
        next opening slower.
        """
        cdef ProducerSnapshot snapshot = pending.snapshot
        try:
            yield from self.snapshots.write_in_parts(snapshot.offset, snapshot.content)
        except OSError as error:
            logger.warning('%s: cannot write the snapshot of offset %d: %s', self.directory, snapshot.offset, error)
        self.pending.remove(pending)

    cdef int limit(self, int64_t more_bytes) except -1:
        """Give up snapshots if all together, with `more_bytes`, have more than MOST_SNAPSHOT_BYTES. Keep the oldest
        snapshot, which is written next, and the newest one, which is the most useful.
        """
        for pending in self.pending:
            more_bytes += len((<PendingSnapshot>pending).snapshot.content)
        while len(self.pending) > 1 and more_bytes > MOST_SNAPSHOT_BYTES:
            more_bytes -= len((<PendingSnapshot>self.pending[1]).snapshot.content)
            self.give_up(self.pending[1])
        return 0

    cdef int give_up(self, PendingSnapshot pending) except -1:
        self.pending.remove(pending)
        pending.producers.end_snapshot(pending.snapshot)
        pending.work.close()
        return 0

    cdef int drop_all(self) except -1:
        """Give up all snapshots, because the log is closed or has failed."""
        for pending in list(self.pending):
            self.give_up(pending)
        return 0

    cdef int drop_at(self, set offsets) except -1:
        """Give up the snapshots at the given offsets."""
        for pending in list(self.pending):
            if (<PendingSnapshot>pending).snapshot.offset in offsets:
                self.give_up(pending)
        return 0

    cdef int drop_below(self, int64_t offset) except -1:
        """Give up the snapshots below `offset`, because compaction has replaced the segments there."""
        for pending in list(self.pending):
            if (<PendingSnapshot>pending).snapshot.offset < offset:
                self.give_up(pending)
        return 0

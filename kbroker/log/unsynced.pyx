"""The changes of a log that its next sync must cover, in addition to the end of its active segment."""
import logging
import os

from libc.stdint cimport int64_t

from kbroker.log.producer_state cimport ProducerSnapshot, ProducerStateTable
from kbroker.log.segment cimport Segment

logger = logging.getLogger(__name__)

cdef enum:
    MOST_SNAPSHOT_BYTES = 8 * 1024 * 1024       # of the snapshots of a log that are not written, besides two


cdef class PendingSnapshot:
    """A snapshot that is being encoded, or waits for the sync of the log below its offset, or is being written."""


cdef class Unsynced:
    """The closed segments, the snapshots and the changed names in the directory that are not synced. No snapshot may be
    written ahead of the synced log."""

    def __init__(self, fs, str directory, leader_epochs, snapshots, int64_t names_changed_at, start_work):
        """Create; `start_work` runs a generator to its end, at once or in slices."""
        self.start_work = start_work
        self.fs = fs
        self.directory = directory
        self.leader_epochs = leader_epochs
        self.snapshots = snapshots
        self.names_changed_at = names_changed_at
        self.rolled = []
        self.pending = []
        self.paths = ()

    cdef int add_rolled(self, object segment, int64_t end_offset, ProducerStateTable producers) except -1:
        """Add a segment that was closed at `end_offset`, and begin a snapshot of the producers there.

        If an earlier snapshot is still being encoded, this segment gets none.
        """
        cdef ProducerSnapshot snapshot = producers.begin_snapshot(end_offset)
        cdef PendingSnapshot pending
        self.rolled.append(segment)
        self.names_changed_at = end_offset
        if snapshot is not None:
            pending = PendingSnapshot.__new__(PendingSnapshot)
            pending.snapshot, pending.producers = snapshot, producers
            self.limit_snapshots(len(snapshot.content))
            self.pending.append(pending)
            self.start(pending, self.encode(pending))
        return 0

    cdef list files_of_rolled(self):
        """Return the files to sync before those of the active segment."""
        files = []
        for segment in self.rolled:
            files += segment.files_to_sync(sealed=True)
        return files

    cdef list files_of_names(self):
        """Return the files to sync after those of the active segment, directories last."""
        if self.names_changed_at < 0:
            return []
        files = [self.leader_epochs.sync_file()] if self.leader_epochs.is_unsynced else []
        files.append(self.fs.open_directory(self.directory))
        if self.paths:
            files += [self.fs.open(path) for path in self.paths]
            files.append(self.fs.open_directory(os.path.dirname(self.directory)))
        return files

    cdef int mark_flushed(self, int64_t offset) except -1:
        """Note that the returned files are synced, which were requested when the log ended at `offset`.

        A segment or a name that was created since then begins at `offset` or above, and waits for the next sync.
        """
        cdef Segment segment
        if self.rolled:
            waiting = []
            for segment in self.rolled:
                if segment.next_offset >= offset:
                    waiting.append(segment)
                else:
                    segment.was_synced()
            self.rolled = waiting
        if self.names_changed_at < offset:
            self.names_changed_at = -1
            self.leader_epochs.is_unsynced = False
            self.paths = ()
        for pending in list(self.pending):
            if (<PendingSnapshot>pending).snapshot.offset <= offset:
                self.write_synced(pending)
        return 0

    # ---- snapshots ----

    cdef int start(self, PendingSnapshot pending, work) except -1:
        pending.work = work
        self.start_work(work)
        return 0

    def encode(self, PendingSnapshot pending):
        """Encode a snapshot as a generator, and then write it if the log is synced up to its offset."""
        yield from pending.snapshot.encode()
        pending.producers.end_snapshot(pending.snapshot)
        if pending.is_synced:
            self.start(pending, self.write(pending))

    cdef int write_synced(self, PendingSnapshot pending) except -1:
        """Write a snapshot as soon as it is encoded, because the log is synced up to its offset."""
        if not pending.is_synced:
            pending.is_synced = True
            if pending.snapshot.is_encoded:
                self.start(pending, self.write(pending))
        return 0

    def write(self, PendingSnapshot pending):
        """Write a snapshot as a generator.

        A failure is only logged, because a lost snapshot only makes the next opening slower.
        """
        cdef ProducerSnapshot snapshot = pending.snapshot
        try:
            yield from self.snapshots.write_in_parts(snapshot.offset, snapshot.content)
        except OSError as error:
            logger.warning('%s: cannot write the snapshot of offset %d: %s', self.directory, snapshot.offset, error)
        self.pending.remove(pending)

    cdef int limit_snapshots(self, int64_t more_bytes) except -1:
        """Give up snapshots if they have too many bytes. Keep the oldest, which is written next, and the newest, which
        is the most useful."""
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

    cdef int drop_snapshots(self) except -1:
        """Give up all snapshots, because the log is closed or has failed."""
        for pending in list(self.pending):
            self.give_up(pending)
        return 0

    cdef int drop_segments(self, list segments) except -1:
        """Forget segments that left the log, and the snapshots at their base offsets."""
        self.rolled = [segment for segment in self.rolled if segment not in segments]
        bases = {segment.base_offset for segment in segments}
        for pending in list(self.pending):
            if (<PendingSnapshot>pending).snapshot.offset in bases:
                self.give_up(pending)
        return 0

    cdef int drop_snapshots_below(self, int64_t offset) except -1:
        """Forget the snapshots below `offset`, which describe segments that were replaced."""
        for pending in list(self.pending):
            if (<PendingSnapshot>pending).snapshot.offset < offset:
                self.give_up(pending)
        return 0

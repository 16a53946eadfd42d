"""The changes of a log that its next sync has to cover, besides the end of its active segment."""
import logging
import os

from libc.stdint cimport int64_t

from kbroker.log.segment cimport Segment

logger = logging.getLogger(__name__)


cdef class Unsynced:
    """Closed segments, snapshots that must not get ahead of the synced log, and names in the directory."""

    def __init__(self, fs, str directory, leader_epochs, snapshots, int64_t names_changed_at):
        self.fs = fs
        self.directory = directory
        self.leader_epochs = leader_epochs
        self.snapshots = snapshots
        self.names_changed_at = names_changed_at
        self.rolled = []
        self.pending_snapshots = []
        self.paths = ()

    cdef int add_rolled(self, object segment, int64_t end_offset, bytes snapshot) except -1:
        """Add a segment that was closed at `end_offset`, and the producer state there."""
        self.rolled.append(segment)
        self.pending_snapshots.append((end_offset, snapshot))
        self.names_changed_at = end_offset
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
        """Adopt that the files are synced that were returned when the log ended at `offset`.

        A segment or a name created since begins at `offset` or above, and waits for the next sync.
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
        while self.pending_snapshots and self.pending_snapshots[0][0] <= offset:
            self.write_snapshot(*self.pending_snapshots.pop(0))
        return 0

    def write_snapshot(self, int64_t offset, bytes content):
        """Write a snapshot. A failure is only logged: the lost snapshot makes the next opening slower, no more."""
        try:
            self.snapshots.write(offset, content)
        except OSError as error:
            logger.warning('%s: cannot write the snapshot of offset %d: %s', self.directory, offset, error)

    cdef int drop_segments(self, list segments) except -1:
        """Forget segments that left the log."""
        self.rolled = [segment for segment in self.rolled if segment not in segments]
        return 0

    cdef int drop_snapshots_below(self, int64_t offset) except -1:
        """Forget the snapshots below `offset`, which describe segments that were replaced."""
        self.pending_snapshots = [pending for pending in self.pending_snapshots if pending[0] >= offset]
        return 0

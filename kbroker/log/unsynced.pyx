"""Tracks the changes of a log that its next sync must cover, in addition to the end of the active segment."""
import os

from libc.stdint cimport int64_t

from kbroker.log.pending_snapshots cimport PendingSnapshots
from kbroker.log.producer_state cimport ProducerStateTable
from kbroker.log.segment cimport Segment


cdef class Unsynced:
    """The closed segments that are not synced, the changes of file names that are not synced, and the snapshots that
    wait for the sync.
    """

    def __init__(self, fs, str directory, leader_epochs, PendingSnapshots snapshots, int64_t names_changed_at):
        self.fs = fs
        self.directory = directory
        self.leader_epochs = leader_epochs
        self.snapshots = snapshots
        self.names_changed_at = names_changed_at
        self.rolled = []
        self.paths = ()

    cdef int add_rolled(self, object segment, int64_t end_offset, ProducerStateTable producers) except -1:
        """Add a segment that was closed at `end_offset`, and begin a snapshot of the producers at this offset."""
        self.rolled.append(segment)
        self.names_changed_at = end_offset
        return self.snapshots.add(end_offset, producers)

    cdef list files_of_rolled(self):
        """Return the files that must be synced before the files of the active segment."""
        files = []
        for segment in self.rolled:
            files += segment.files_to_sync(sealed=True)
        return files

    cdef list files_of_names(self):
        """Return the files that must be synced after the files of the active segment. Directories are last."""
        if self.names_changed_at < 0:
            return []
        files = [self.leader_epochs.sync_file()] if self.leader_epochs.is_unsynced else []
        files.append(self.fs.open_directory(self.directory))
        if self.paths:
            files += [self.fs.open(path) for path in self.paths]
            files.append(self.fs.open_directory(os.path.dirname(self.directory)))
        return files

    cdef int mark_flushed(self, int64_t offset) except -1:
        """Note that the files are synced that were returned when the log ended at `offset`.

        A segment that was closed later ends at or above `offset`, and waits for the next sync. So does a file name that
        was changed at or above `offset`.
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
        return self.snapshots.mark_synced(offset)

    cdef int drop_segments(self, list segments) except -1:
        """Forget segments that were removed from the log, and the snapshots at their base offsets."""
        self.rolled = [segment for segment in self.rolled if segment not in segments]
        return self.snapshots.drop_at({segment.base_offset for segment in segments})

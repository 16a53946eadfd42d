"""Group commit: one sync of a partition serves everyone who appended there since the last one began."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kbroker.base.clock import Clock, Timers
from kbroker.log.fs import is_shortage, sync_inline
from kbroker.log.jobs import Sync

if TYPE_CHECKING:
    from kbroker.topics.partition import Partition

EXPIRY_INTERVAL_MS = 100
PARTITIONS_AT_ONCE = 8
"""The most syncs in progress. More would only wait in the queue of the threads, and later appends would have
to wait for the sync after that."""


class Flusher:
    """Collects partitions with unflushed appends. `kick`, called at the end of each tick, begins to sync them.

    Each partition has a sync of its own, so its waiters do not wait for other partitions. Appends made while it runs
    wait for the next one: the busier the disk, the larger the group.
    """

    def __init__(self, sync: Sync = sync_inline, on_failure: Callable[[BaseException], object] = lambda error: None,
                 on_shortage: Callable[[OSError], object] = lambda error: None,
                 clock: Clock | None = None, timers: Timers | None = None):
        """`on_failure` is called after a failed sync, and the flusher halts. `on_shortage` is called when no file
        descriptor is left to open the files: the caller then has to `kick` again a little later. Without `clock` and
        `timers`, waiters wait for as long as it takes."""
        self._sync = sync
        self._on_failure = on_failure
        self._on_shortage = on_shortage
        self._dirty: dict[Partition, None] = {}
        self._under_way: set[Partition] = set()
        self._halted = False
        self._clock = clock
        self._timers = timers
        self._watches_waiters = False

    def halt(self) -> None:
        """Flush no more: the directory is offline, and unflushed appends are lost."""
        self._halted = True
        self._dirty = {}

    def sync_inline(self) -> None:
        """Sync in the thread that calls `kick` from now on. A stop is about to close the sync threads, and a sync
        under way may complete something that appends again."""
        self._sync = sync_inline

    def request(self, partition: Partition) -> None:
        """Sync `partition`, which has unflushed appends, at the next `kick`."""
        self._dirty[partition] = None

    def kick(self) -> None:
        """Begin the syncs of up to PARTITIONS_AT_ONCE partitions, the longest waiting one first."""
        while self._dirty and len(self._under_way) < PARTITIONS_AT_ONCE:
            partition = next((each for each in self._dirty if each not in self._under_way), None)
            if partition is None:
                return
            del self._dirty[partition]
            if not partition.is_deleted and not self._begin(partition):
                return

    def _begin(self, partition: Partition) -> bool:
        """Begin a sync and return whether that worked. Without a file descriptor nothing is lost: the partition
        waits."""
        if not self._watches_waiters and self._timers is not None:
            self._watches_waiters = True
            self._timers.after(EXPIRY_INTERVAL_MS, self._expire_waiters)
        try:
            files, offset = partition.files_to_sync()
        except OSError as error:
            if is_shortage(error):
                self._dirty[partition] = None
                self._on_shortage(error)
            else:
                self._fail(error)
            return False
        self._under_way.add(partition)
        self._sync(files, partial(self._finished, partition, offset))
        return True

    def _expire_waiters(self) -> None:
        """Answer the waiters that are overdue, and continue while anything waits for a sync."""
        assert self._timers is not None and self._clock is not None
        waiting = [*self._under_way, *self._dirty]
        self._watches_waiters = bool(waiting)
        if waiting:
            monotonic_ms = self._clock.monotonic_ms()
            for partition in waiting:
                partition.expire_waiters(monotonic_ms)
            self._timers.after(EXPIRY_INTERVAL_MS, self._expire_waiters)

    def _finished(self, partition: Partition, offset: int, error: OSError | None) -> None:
        self._under_way.discard(partition)
        if self._halted:        # the directory is offline, and its waiters get or got the failure
            return
        if error is not None:
            # After a failed fdatasync the page cache may have dropped the pages. A second one would report a success
            # that never happened.
            self._fail(error)
            return
        partition.flushed(offset)

    def _fail(self, error: BaseException) -> None:
        self.halt()
        self._on_failure(error)

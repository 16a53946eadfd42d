"""Group commit: one sync of a partition covers all appends that were made before this sync began."""
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
"""The most syncs in progress. Further syncs would only wait for a free thread.

Appends made while they wait would need yet another sync.
"""


class Flusher:
    """Collects partitions with unflushed appends. `kick`, called at the end of each tick, begins to sync them.

    Each partition has a separate sync, so its waiters do not wait for other partitions. Appends that are made during a
    sync wait for the next sync of their partition. So the busier the disk is, the more appends share a sync.
    """

    def __init__(self, sync: Sync = sync_inline, on_failure: Callable[[BaseException], object] = lambda error: None,
                 on_shortage: Callable[[OSError], object] = lambda error: None,
                 clock: Clock | None = None, timers: Timers | None = None):
        """`on_failure` is called after a failed sync, and the flusher halts.

        `on_shortage` is called if no file descriptor is free to open the files. The caller must then call `kick` a
        little later. Without `clock` and `timers`, waiters never expire.
        """
        self._sync = sync
        self._on_failure = on_failure
        self._on_shortage = on_shortage
        self._dirty: dict[Partition, None] = {}
        self._syncing: set[Partition] = set()
        self._halted = False
        self._clock = clock
        self._timers = timers
        self._watches_waiters = False

    def halt(self) -> None:
        """Begin no more syncs: the directory is offline, and unflushed appends are lost."""
        self._halted = True
        self._dirty = {}

    def sync_inline(self) -> None:
        """From now on, sync in the thread that calls `kick`.

        A clean stop calls this before it ends the sync threads: the end of a sync in progress may complete an operation
        that appends again.
        """
        self._sync = sync_inline

    def request(self, partition: Partition) -> None:
        """Sync `partition`, which has unflushed appends, at the next `kick`."""
        self._dirty[partition] = None

    def kick(self) -> None:
        """Begin to sync partitions until PARTITIONS_AT_ONCE syncs are in progress.

        The partition that has waited longest is first.
        """
        while self._dirty and len(self._syncing) < PARTITIONS_AT_ONCE:
            partition = next((each for each in self._dirty if each not in self._syncing), None)
            if partition is None:
                return
            del self._dirty[partition]
            if not partition.is_deleted and not self._begin(partition):
                return

    def _begin(self, partition: Partition) -> bool:
        """Begin a sync. Return whether it has begun.

        If no file descriptor is free to open the files, the partition waits for the next `kick`.
        """
        self._watch_waiters()
        try:
            files, offset = partition.files_to_sync()
        except OSError as error:
            if is_shortage(error):
                self._dirty[partition] = None
                self._on_shortage(error)
            else:
                self._fail(error)
            return False
        self._syncing.add(partition)
        self._sync(files, partial(self._finished, partition, offset))
        return True

    def _watch_waiters(self) -> None:
        """Look for overdue waiters from now on, because a partition waits for a sync."""
        if not self._watches_waiters and self._timers is not None:
            self._watches_waiters = True
            self._timers.after(EXPIRY_INTERVAL_MS, self._expire_waiters)

    def _expire_waiters(self) -> None:
        """Complete the overdue waiters with an error. Schedule the next check while partitions wait for a sync."""
        assert self._timers is not None and self._clock is not None
        waiting = self._waiting()
        self._watches_waiters = bool(waiting)
        if waiting:
            monotonic_ms = self._clock.monotonic_ms()
            for partition in waiting:
                partition.expire_waiters(monotonic_ms)
            self._timers.after(EXPIRY_INTERVAL_MS, self._expire_waiters)

    def _waiting(self) -> list[Partition]:
        """Return the partitions whose appends are not synced."""
        return [*self._syncing, *self._dirty]

    def _finished(self, partition: Partition, offset: int, error: OSError | None) -> None:
        self._syncing.discard(partition)
        if self._halted:        # the directory is offline, and its waiters get or got the failure
            return
        if error is not None:
            # After a failed fdatasync, the page cache may have dropped the pages that were not written. A second
            # fdatasync would then report success although the data are lost.
            self._fail(error)
            return
        partition.flushed(offset)

    def _fail(self, error: BaseException) -> None:
        self.halt()
        self._on_failure(error)

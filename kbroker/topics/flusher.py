"""Group commit: one sync of a partition serves everyone who appended there since the last one began."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kbroker.log.fs import is_shortage, sync_inline
from kbroker.log.jobs import Sync

if TYPE_CHECKING:
    from kbroker.topics.partition import Partition

PARTITIONS_AT_ONCE = 8
"""How many are handed over before one is back. More would only wait in the threads' queue, and what is appended to them
meanwhile would have to wait for the sync after that."""


class Flusher:
    """Collects partitions with unflushed appends; `kick`, called when the loop would sleep, begins to sync them.

    Each partition is on its own: its waiters do not wait for the disk to be through with the others. While its sync
    runs, appends gather for its next one: the busier the disk, the larger the group.
    """

    def __init__(self, sync: Sync = sync_inline, on_failure: Callable[[BaseException], object] = lambda error: None,
                 on_shortage: Callable[[OSError], object] = lambda error: None):
        """`on_failure` is called when a sync has failed, and the flusher halts; `on_shortage` when no file descriptor
        is left to open what is to be synced: to `kick` again a little later is then the caller's part."""
        self._sync = sync
        self._on_failure = on_failure
        self._on_shortage = on_shortage
        self._dirty: dict[Partition, None] = {}
        self._under_way: set[Partition] = set()
        self._halted = False

    def halt(self) -> None:
        """Flush nothing any more: the directory is offline, and what was not flushed yet never will be."""
        self._halted = True
        self._dirty = {}

    def sync_inline(self) -> None:
        """From here on sync where `kick` is called: a stop is about to close the threads, and what the sync under way
        completes may append once more."""
        self._sync = sync_inline

    def request(self, partition: Partition) -> None:
        """`partition` has bytes that are not on the disk."""
        self._dirty[partition] = None

    def kick(self) -> None:
        """Begin to sync what was appended, the longest waiting partition first, as far as the disk should have it."""
        while self._dirty and len(self._under_way) < PARTITIONS_AT_ONCE:
            partition = next((each for each in self._dirty if each not in self._under_way), None)
            if partition is None:
                return
            del self._dirty[partition]
            if not partition.is_deleted and not self._begin(partition):
                return

    def _begin(self, partition: Partition) -> bool:
        """Whether it could: where no file descriptor is left, nothing is lost yet, and it waits on."""
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

    def _finished(self, partition: Partition, offset: int, error: OSError | None) -> None:
        self._under_way.discard(partition)
        if self._halted:        # the directory is offline: everyone is told that it failed, or was already
            return
        if error is not None:
            # After a failed fdatasync the page cache may have dropped the pages: trying again would report a success
            # that never happened.
            self._fail(error)
            return
        partition.flushed(offset)

    def _fail(self, error: BaseException) -> None:
        self.halt()
        self._on_failure(error)

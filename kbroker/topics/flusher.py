"""Group commit: one flush at a time serves everyone who appended since the last one began."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.log.fs import File
    from kbroker.topics.partition import Partition

Submit = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""(job, done): run `job` somewhere, then `done(result or exception)` on the loop."""


def run_inline(job: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """Run the job where it stands: for tests, and for a shutdown that has no loop any more."""
    try:
        result = job()
    except OSError as error:
        result = error
    done(result)


class Flusher:
    """Collects partitions with unflushed appends; `kick`, called when the loop would sleep, flushes them.

    While a flush runs, appends gather for the next one: the busier the disk, the larger the group.
    """

    def __init__(self, submit: Submit = run_inline, on_failure: Callable[[BaseException], object] = lambda error: None):
        """`on_failure` is called when a sync has failed, and the flusher halts."""
        self._submit = submit
        self._on_failure = on_failure
        self._dirty: dict[Partition, None] = {}
        self._busy = False
        self._halted = False

    def halt(self) -> None:
        """Flush nothing any more: the directory is offline, and what was not flushed yet never will be."""
        self._halted = True
        self._dirty = {}

    def sync_inline(self) -> None:
        """From here on sync where `kick` is called: a stop is about to close the worker, and what the flush under way
        completes may append once more."""
        self._submit = run_inline

    def request(self, partition: Partition) -> None:
        """`partition` has bytes that are not on the disk."""
        self._dirty[partition] = None

    def kick(self) -> None:
        """Begin a flush if there is something to flush and none is under way."""
        if self._busy or self._halted or not self._dirty:
            return
        dirty, self._dirty = self._dirty, {}
        plan = []
        files: list[File] = []
        try:
            for partition in dirty:
                if not partition.is_deleted:
                    partition_files, offset = partition.log.files_to_sync()
                    plan.append((partition, offset))
                    files += partition_files
        except OSError as error:
            self._fail(error)
            return
        self._busy = True

        def sync() -> None:
            for file in files:
                file.sync()

        self._submit(sync, lambda result: self._finished(plan, result))

    def _finished(self, plan: list[tuple[Partition, int]], result: Any) -> None:
        self._busy = False
        if isinstance(result, BaseException):
            # After a failed fdatasync the page cache may have dropped the pages: trying again would report a success
            # that never happened.
            self._fail(result)
            return
        for partition, offset in plan:
            partition.log.mark_flushed(offset)
            partition.flushed(offset)
        self.kick()

    def _fail(self, error: BaseException) -> None:
        self.halt()
        self._on_failure(error)

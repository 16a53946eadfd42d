"""A disk whose syncs end when the test ends them."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.log.fs import sync_inline


class HeldDisk:
    """A disk that receives the syncs of a flusher. While the disk is held, a sync waits until the test finishes it.
    Otherwise it finishes at once.
    """

    def __init__(self, *, is_held: bool) -> None:
        self.is_held = is_held
        self.jobs: list[tuple[Any, Callable[[OSError | None], None]]] = []
        """The waiting syncs, oldest first, each as its files and its callback."""
        self.kick: Callable[[], None] = lambda: None
        """`Flusher.kick`, which starts the syncs for the appends that were made during the last sync."""

    def sync(self, files: Any, done: Callable[[OSError | None], None]) -> None:
        self.jobs.append((files, done))
        if not self.is_held:
            self.release()

    def finish(self, error: OSError | None = None) -> None:
        """Sync the files of the oldest job and report success, or report `error` instead."""
        files, done = self.jobs.pop(0)
        if error is None:
            sync_inline(files, done)
        else:
            done(error)

    def finish_all(self) -> None:
        """Finish the waiting syncs, and the syncs that the flusher starts when these end."""
        while self.jobs:
            self.finish()
            if not self.jobs:
                self.kick()

    def release(self) -> None:
        """Stop holding syncs, and finish all waiting ones."""
        self.is_held = False
        self.finish_all()

"""Threads for blocking work: fdatasync, reads from the disk, compaction. They share no state with the loop."""
from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from kbroker.network.reactor import Reactor

Job = tuple[Callable[[], Any], Callable[[Any], None]]
Submit = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""Worker.submit."""


class Worker:
    """Threads that start jobs in the order of `submit`. The completions run on the loop.

    A job should spend its time in system calls or in C code without the GIL. While a thread runs Python code, the loop
    waits up to 5 ms for the GIL.
    """

    def __init__(self, reactor: Reactor, threads: int = 1, name: str = 'worker'):
        self._reactor = reactor
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # The threads are daemons: after a failure that bypasses `close`, the process must end, and not wait for their
        # work.
        self._threads = [threading.Thread(target=self._work, name=f'{name}-{index}', daemon=True)
                         for index in range(threads)]
        self._closed = False
        self._drops_jobs = False
        self.submitted = 0
        """The number of jobs that were submitted. They finish in the order of `submit` if there is one thread."""
        self._completed = 0
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `job()` in a thread, then call `done(result)` on the loop.

        If the job raises an exception, `result` is the exception.
        """
        if self._drops_jobs:
            return
        if self._closed:
            raise RuntimeError('submit to a worker that is closed')
        self.submitted += 1
        self._jobs.put((job, done))

    def completed(self) -> int:
        """Return the number of jobs whose completions have run."""
        return self._completed

    def close(self, *, drop_jobs: bool = False) -> None:
        """Finish the submitted jobs and join the threads. The last completions run in the next tick.

        If `drop_jobs` is true, do not run jobs that have not begun, nor jobs that are submitted later.
        """
        if self._closed:
            return
        self._closed = True
        self._drops_jobs = drop_jobs
        while drop_jobs:
            try:
                self._jobs.get_nowait()
            except Empty:
                break
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _count_completion(self) -> None:
        self._completed += 1

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, done = entry
            try:
                result: Any = job()
            except BaseException as error:  # `done` must be called in any case, because a caller waits
                result = error
            self._reactor.call_soon_threadsafe(partial(done, result))
            self._reactor.call_soon_threadsafe(self._count_completion)

"""Threads for work that blocks: fdatasync, cold reads, compaction. They get work, not state."""
from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from kbroker.network.reactor import Reactor

Job = tuple[Callable[[], Any], Callable[[Any], None]]
Submit = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""Worker.submit."""


class Worker:
    """Runs jobs in the order of `submit`, up to `threads` at once; completions come back on the loop.

    A job should spend its time in system calls or C code without the GIL: a thread that computes in Python makes the
    loop wait up to 5 ms for each turn.
    """

    def __init__(self, reactor: Reactor, threads: int = 1, name: str = 'worker'):
        self._reactor = reactor
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        # Daemons: a failure that passes `close` by must end the process, not leave it waiting for a queue.
        self._threads = [threading.Thread(target=self._work, name=f'{name}-{index}', daemon=True)
                         for index in range(threads)]
        self._closed = False
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `job()` in a thread, then `done(result)` on the loop. What the job raises is its result."""
        if self._closed:
            raise RuntimeError('submit to a worker that is closed')
        self._jobs.put((job, done))

    def close(self) -> None:
        """Finish what was submitted and join the threads. The last completions run in the next tick of the loop."""
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, done = entry
            try:
                result: Any = job()
            except BaseException as error:  # whatever it is, `done` must hear of it: somebody waits
                result = error
            self._reactor.call_soon_threadsafe(partial(done, result))

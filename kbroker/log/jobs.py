"""The interfaces through which the event loop passes blocking work to a thread."""
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from kbroker.base.long_work import result_of
from kbroker.log.fs import File

Job = Callable[[], Any]
Submit = Callable[[Job, Callable[[Any], None]], None]
"""A function (job, done) that runs `job` in any thread, then calls `done(result or exception)` on the loop."""
Sync = Callable[[list[File], Callable[[OSError | None], None]], None]
"""A function (files, done) that syncs all files in any thread, then calls `done(None or the first error)` on the
loop."""


def run_inline(job: Job, done: Callable[[Any], None]) -> None:
    """Run the job in the calling thread. Tests use this function. A shutdown uses it after the event loop has ended."""
    try:
        result = job()
    except Exception as error:
        result = error
    done(result)


def synced(sync: Sync, files: list[File]) -> Generator[object, None, None]:
    """Wait until `sync` has synced the files, as a generator for long work. Raise OSError."""
    error = yield from result_of(partial(sync, files))
    if error is not None:
        raise error

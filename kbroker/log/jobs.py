"""Work for a thread: whoever has some is given a `Submit` and need not know where it runs."""
from collections.abc import Callable
from typing import Any

from kbroker.log.fs import File

Job = Callable[[], Any]
Submit = Callable[[Job, Callable[[Any], None]], None]
"""(job, done): run `job` somewhere, then `done(result or exception)` on the loop."""
Sync = Callable[[list[File], Callable[[OSError | None], None]], None]
"""(files, done): sync all files somewhere, then `done(None or the first error)` on the loop."""


def run_inline(job: Job, done: Callable[[Any], None]) -> None:
    """Run the job where it stands: for tests, and for a shutdown that has no loop any more."""
    try:
        result = job()
    except OSError as error:
        result = error
    done(result)

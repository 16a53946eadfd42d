"""Runs periodic work on all logs of a log directory."""
from collections.abc import Callable, Generator

from kbroker.base.clock import Timers
from kbroker.base.long_work import LongWork
from kbroker.base.topic_partition import TopicPartition
from kbroker.log.log import Log

Visit = Callable[[Log], Generator[None, None, object] | None]
"""A function that does periodic work on a log. It does all work in the call, or returns a generator that does the work
in parts.
"""


class Periodic:
    """Runs the periodic work of a log directory. Each kind of work has a timer, and visits all logs in rounds."""

    def __init__(self, logs: dict[TopicPartition, Log], timers: Timers, long_work: LongWork):
        self._logs = logs
        self._timers = timers
        self._long_work = long_work
        self._stop_timers: list[Callable[[], None]] = []
        self._in_progress: set[Visit] = set()
        self._is_over = False

    def every(self, interval_ms: int, callback: Callable[[], object]) -> None:
        """Call `callback` every `interval_ms` until `stop` is called."""
        self._stop_timers.append(self._timers.every(interval_ms, callback))

    def visit_all(self, visit: Visit) -> None:
        """Call `visit` for each log that is online, as long work. Do nothing while the previous round of `visit` is
        running.
        """
        if visit not in self._in_progress:
            self._in_progress.add(visit)
            self._long_work.start(self._visit_each(visit))

    def stop(self) -> None:
        """Stop all timers, and end each running round before it visits the next log."""
        self._is_over = True
        for stop in self._stop_timers:
            stop()
        self._stop_timers = []

    def _visit_each(self, visit: Visit) -> Generator[None, None, None]:
        for log in list(self._logs.values()):
            if self._is_over:
                break
            if log.failure is None:
                steps = visit(log)
                if steps is not None:
                    yield from steps
            yield
        self._in_progress.discard(visit)

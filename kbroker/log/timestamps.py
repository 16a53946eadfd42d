"""Searches the segments of a log for a timestamp. ListOffsets uses this, and share groups use it to choose their start
offset.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker.base.long_work import Pause, result_of
from kbroker.log.jobs import Submit, run_inline
from kbroker.log.time_search import TimeSearch

if TYPE_CHECKING:
    from kbroker.log.log import Log

Position = tuple[int, int, int]
"""The timestamp in ms, the offset and the leader epoch of a record."""
Steps = Generator[Any, None, Position | None]
"""A generator for long work. It returns the Position of the found record, or None."""
Begin = Callable[[], TimeSearch | None]
Result = TypeVar('Result')


class Searches:
    """The queue of searches that a worker thread executes one after another, in the order of arrival.

    A search is created only when its turn comes, so a waiting search uses no open file and little memory.
    """

    def __init__(self, submit: Submit = run_inline):
        self._submit = submit
        self._is_busy = False
        self._waiting: deque[Pause] = deque()

    def __len__(self) -> int:
        """Return the number of searches in the queue, including the one that is running."""
        return self._is_busy + len(self._waiting)

    def run(self, begin: Begin) -> Generator[Any, None, TimeSearch | None]:
        """Search a log on the event loop if the search is short. Otherwise wait for a turn, and begin the search again
        on the worker thread.

        `begin` returns a new search of the log, or None if there is nothing to search.
        """
        search = begin()
        if search is None or search.start():
            return search
        search = None
        yield from self._take_turn()
        try:
            search = begin()
            while search is not None and not search.is_over:
                yield from self._submitted(search.advance)
            return search
        finally:
            self._end_turn()

    def call(self, job: Callable[[], Result]) -> Generator[Any, None, Result]:
        """Wait for a turn, call `job` on the worker thread, and return its result. Raise the exception that it raises.

        `job` must only use its arguments and files, because the event loop owns all other state.
        """
        yield from self._take_turn()
        try:
            return (yield from self._submitted(job))
        finally:
            self._end_turn()

    def _submitted(self, job: Callable[[], Result]) -> Generator[Any, None, Result]:
        result = yield from result_of(partial(self._submit, job))
        if isinstance(result, BaseException):
            raise result
        return result       # type: ignore[no-any-return]

    def _take_turn(self) -> Generator[Any, None, None]:
        if self._is_busy:
            pause = Pause()
            self._waiting.append(pause)
            yield from pause.wait()
        self._is_busy = True

    def _end_turn(self) -> None:
        """Pass the turn to the next waiting search. `_is_busy` stays True, so a search that arrives now cannot take the
        turn.
        """
        if self._waiting:
            self._waiting.popleft().end()
        else:
            self._is_busy = False


INLINE = Searches()
"""A queue that runs each search in the calling thread."""


def first_at_or_after(log: Log, timestamp_ms: int, searches: Searches) -> Steps:
    """Return the Position of the first record whose timestamp is at or after `timestamp_ms`, None if there is none.
    Ignore records that are appended during the search.
    """
    start_offset, end_offset = log.log_start_offset, log.log_end_offset
    while True:
        search = yield from searches.run(partial(_search_time, log, timestamp_ms, start_offset, end_offset))
        if search is None:
            return None
        if search.found is None:
            start_offset = search.end_offset
        elif search.found[1] >= log.log_start_offset:
            return search.found
        else:       # records were deleted during the search
            start_offset = log.log_start_offset
        yield None


def greatest(log: Log, searches: Searches) -> Steps:
    """Return the Position of the first record with the greatest timestamp of the log, None if no record has a
    timestamp.
    """
    search = yield from searches.run(partial(_search_greatest, log))
    return None if search is None else search.found


def _search_time(log: Log, timestamp_ms: int, start_offset: int, end_offset: int) -> TimeSearch | None:
    return log.written_segments().search_time(timestamp_ms, start_offset, end_offset)


def _search_greatest(log: Log) -> TimeSearch | None:
    return log.written_segments().search_greatest()

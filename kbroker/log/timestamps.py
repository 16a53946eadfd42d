"""Search by time in the segments of a log, for ListOffsets and for the starts of share groups."""
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.base.long_work import Pause, result_of
from kbroker.log.jobs import Submit, run_inline
from kbroker.log.time_search import TimeSearch

if TYPE_CHECKING:
    from kbroker.log.log import Log

Position = tuple[int, int, int]
"""The timestamp in ms, the offset and the leader epoch of a record."""
Steps = Generator[Any, None, Position | None]
"""A search as long work."""
Begin = Callable[[], TimeSearch | None]


class Searches:
    """The searches that a worker does, one at a time and in the order of their arrival.

    A search begins when its turn comes, so a waiting search holds no open file and few bytes.
    """

    def __init__(self, submit: Submit = run_inline):
        self._submit = submit
        self._is_busy = False
        self._waiting: deque[Pause] = deque()

    def __len__(self) -> int:
        """Return the number of searches that run or wait."""
        return self._is_busy + len(self._waiting)

    def run(self, begin: Begin) -> Generator[Any, None, TimeSearch | None]:
        """Search a log on the loop if that is short. Otherwise begin again on the worker, when its turn comes.

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
                result = yield from result_of(partial(self._submit, search.advance))
                if isinstance(result, BaseException):
                    raise result
            return search
        finally:
            self._end_turn()

    def _take_turn(self) -> Generator[Any, None, None]:
        if self._is_busy:
            pause = Pause()
            self._waiting.append(pause)
            yield from pause.wait()
        self._is_busy = True

    def _end_turn(self) -> None:
        """Pass the turn to the next waiting search. No search that arrives before that one runs can take the turn."""
        if self._waiting:
            self._waiting.popleft().end()
        else:
            self._is_busy = False


INLINE = Searches()
"""Runs each search in the calling thread."""


def first_at_or_after(log: Log, timestamp_ms: int, searches: Searches) -> Steps:
    """Return the position of the first record at or after `timestamp_ms`, None if there is none. Ignore records that
    are appended during the search."""
    start_offset, end_offset = log.log_start_offset, log.log_end_offset
    while True:
        search = yield from searches.run(partial(_search_time, log, timestamp_ms, start_offset, end_offset))
        if search is None:
            return None
        if search.found is None:
            start_offset = search.end_offset
        elif search.found[1] >= log.log_start_offset:
            return search.found
        else:       # records were deleted meanwhile
            start_offset = log.log_start_offset
        yield None


def greatest(log: Log, searches: Searches) -> Steps:
    """Return the position of the first record with the greatest timestamp, None if no record has one."""
    search = yield from searches.run(partial(_search_greatest, log))
    return None if search is None else search.found


def _search_time(log: Log, timestamp_ms: int, start_offset: int, end_offset: int) -> TimeSearch | None:
    return log.written_segments().search_time(timestamp_ms, start_offset, end_offset)


def _search_greatest(log: Log) -> TimeSearch | None:
    return log.written_segments().search_greatest()

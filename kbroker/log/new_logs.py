"""Creates the directories of new logs."""
from collections import deque
from collections.abc import Callable, Generator

from kbroker.base.clock import Clock, Timers
from kbroker.base.long_work import LongWork
from kbroker.log.fs import is_shortage
from kbroker.log.log import Log
from kbroker.log.shortage import SHORTAGE_PAUSE_MS, shortage


class NewLogs:
    """The new logs that have no directory yet. Their directories are created one after another, as long work."""

    def __init__(self, clock: Clock, timers: Timers, long_work: LongWork, fail: Callable[[str], object]):
        """Create; `fail` takes the log directory offline."""
        self._clock = clock
        self._timers = timers
        self._long_work = long_work
        self._fail = fail
        self.waiting: deque[Log] = deque()
        self._is_making = False
        self._is_given_up = False

    def make_soon(self, log: Log) -> None:
        """Create the directory of a log when the directories of all waiting logs are created. If no log is waiting,
        create it immediately.
        """
        self.waiting.append(log)
        if not self._is_making:
            self._is_making = True
            self._long_work.start(self._make_all())

    def make_next(self) -> None:
        """Create the directory of the log that has waited longest. Do nothing if the log was deleted or an append has
        created the directory. Raise OSError.
        """
        if self.waiting[0].failure is None:
            self.waiting[0].make()
        self.waiting.popleft()

    def give_up(self) -> None:
        """Create no further directory, because the disk has failed."""
        self._is_given_up = True

    def _make_all(self) -> Generator[None, None, None]:
        while self.waiting and not self._is_given_up:
            try:
                self.make_next()
            except OSError as error:
                if not is_shortage(error):
                    self._fail(f'cannot make {self.waiting[0].directory}: {error}')
                    break
                shortage.refusal(self._clock, f'{self.waiting[0].directory}: cannot be made yet', error)
                self._timers.after(SHORTAGE_PAUSE_MS, lambda: self._long_work.start(self._make_all()))
                return
            yield
        self._is_making = False

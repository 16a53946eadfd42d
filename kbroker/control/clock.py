"""The clock of a broker, under the control of a test.

All timers of the broker and all times in its records follow `ControlledClock`. To advance the clock, `ClockControl`
stops it, and moves it from deadline to deadline. At each deadline, the timers fire. The clock goes on only after
everything that follows from them is done: syncs, jobs of the workers, long work, and the replies that they complete.
So a transaction whose time-out passes in an advance is aborted, and its markers are durable, before a later deadline.

An advance is a check at the end of each tick of the loop, so the broker serves clients and the control port meanwhile.
A deadline takes one tick if only timers follow from it.

These follow the machine's time, whatever the clock says:

* budgets of the loop, and the measured times of requests: they say how long work took
* the HTTP ports: a stopped clock must not stop the control port
* limits for a login and for clients that fill the memory: they judge how fast a peer and the network are
* requests to an identity provider, and the validity of certificates in a TLS handshake: OpenSSL reads the machine's
  time
* the times of change of files, by which segments without any timestamp and old snapshots of the metadata are judged:
  the kernel sets them
* the limits of a stop, and the watchdog of the service manager: they judge whether the process hangs
* the times of the lines of the log, which are compared with the logs of the application
"""
from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.base.clock import ControlledClock
from kbroker.base.errors import ConfigError
from kbroker.base.long_work import Pause

if TYPE_CHECKING:
    from kbroker.base.clock import Timers
    from kbroker.log.fs import File, FileSystem
    from kbroker.metadata.changes import Steps
    from kbroker.network.reactor import Reactor

CLOCK_FILE = '.kbroker_clock'
"""The file in the log directory that has the time of a clock that was stopped or moved."""
FILE_BYTES = 64
LATEST_MS = 32_503_680_000_000
"""The latest time of a clock: the begin of the year 3000."""
MOST_ROUNDS = 32
"""The most rounds of jobs for which an advance waits at a deadline while clients send requests.

Such requests start new jobs again and again, so the jobs may never all be done.
"""
PROGRESS_S = 10
"""The seconds between two lines of the log about an advance in progress."""

logger = logging.getLogger(__name__)


class ClockError(ValueError):
    """A change of the clock that is not possible."""


class Jobs(Protocol):
    """Threads that work for the loop: a Worker, or SyncThreads."""

    @property
    def submitted(self) -> int:
        """The number of the last job."""

    def completed(self) -> int:
        """Return the number up to which all jobs have been completed on the loop."""


class ClockFile:
    """The file with the time of a clock. The next process on the directory continues from it.

    It is written before the clock moves, and not synced: a killed process leaves it, and a crash of the machine ends
    the test.
    """

    def __init__(self, fs: FileSystem, directory: str):
        self._fs = fs
        self._path = os.path.join(directory, CLOCK_FILE)
        self._file: File | None = None

    def write(self, clock: ControlledClock, step_ms: int, *, is_stopped: bool) -> None:
        """Write the time that the clock will have after a step. Raise OSError if that is not possible."""
        text = (f'{{"stopped_at_ms": {clock.wall_ms() + step_ms}}}' if is_stopped else
                f'{{"ahead_ms": {clock.ahead_ms() + step_ms}}}')
        if self._file is None:
            self._file = self._fs.open(self._path, create=True)
        # The content always has the same size, so a single write replaces it.
        self._file.write_at(text.ljust(FILE_BYTES - 1).encode() + b'\n', 0)

    def read(self, clock: ControlledClock) -> None:
        """Let the clock continue from the file, if there is one. Raise ConfigError if the file has another content.

        A file whose first write failed is empty. After a crash of the machine, it may also have zeros.
        """
        text = self._fs.read_file(self._path).decode(errors='replace') if self._fs.exists(self._path) else ''
        if not text.strip('\0'):
            return
        try:
            ((name, value_ms),) = json.loads(text).items()
            if name not in ('stopped_at_ms', 'ahead_ms') or type(value_ms) is not int or abs(value_ms) > LATEST_MS:
                raise ValueError
        except (ValueError, AttributeError):
            raise ConfigError('log.dirs', f'{self._path}: found {text[:80]!r}, expected the time of a clock as a '
                              'broker with a control port writes it. Remove the file: the broker then starts with the '
                              "machine's time") from None
        if name == 'stopped_at_ms':
            clock.continue_from(value_ms, is_stopped=True)
            logger.warning('the clock is stopped at %s, as an earlier process left it', moment(value_ms))
        elif value_ms:
            clock.continue_from(clock.wall_ms() + value_ms, is_stopped=False)
            logger.warning("the clock is %s the machine's, as an earlier process left it", lead_of(value_ms))


def open_clock(fs: FileSystem, directory: str) -> ControlledClock:
    """Return the clock for a broker with a control port. It continues from that of an earlier process."""
    clock = ControlledClock()
    ClockFile(fs, directory).read(clock)
    return clock


def moment(wall_ms: int) -> str:
    """Return a time of the wall clock as text, in UTC. A time that no calendar has stays a number."""
    if abs(wall_ms) > LATEST_MS:
        return f'{wall_ms} ms'
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec='milliseconds').replace('+00:00', 'Z')


def lead_of(ahead_ms: int) -> str:
    return f'{timedelta(milliseconds=abs(ahead_ms))} {"ahead of" if ahead_ms >= 0 else "behind"}'


class Advance:
    """An advance in progress."""

    def __init__(self, target_ms: int, *, runs_after: bool):
        self.target_ms = target_ms
        """The time of the monotonic clock at which the advance ends."""
        self.runs_after = runs_after
        """True if the clock runs when the advance has ended."""
        self.over = Pause()
        self.deadlines = 0
        self.error: Exception | None = None
        self.noted_s = time.monotonic()


class ClockControl:
    """Stops, runs, sets and advances the clock of a broker.

    Call `end_tick` when a tick of the loop ends, after the node has written its appends. `jobs` are all threads that
    work for the loop. `received_bytes()` grows with each request of a client.
    """

    def __init__(self, clock: ControlledClock, reactor: Reactor, jobs: Iterable[Jobs],
                 received_bytes: Callable[[], int], file: ClockFile):
        self._clock = clock
        self._reactor = reactor
        self._timers: Timers = reactor.timers
        self._jobs = tuple(jobs)
        self._received_bytes = received_bytes
        self._file = file
        self._advance: Advance | None = None
        self._received_at_deadline = 0
        self._rounds = 0
        self._marks = [0 for _ in self._jobs]

    def state(self) -> dict[str, Any]:
        """Return the time of the wall clock, and whether the clock is stopped."""
        advance = self._advance
        return {'wall_ms': self._clock.wall_ms(),
                'is_stopped': self._clock.is_stopped if advance is None else not advance.runs_after}

    def stop(self) -> None:
        """Stop the clock. An advance in progress goes on."""
        was_stopped = self._clock.is_stopped
        self._clock.stop()      # first, so that the file has exactly the time of the stopped clock
        try:
            self._note(0, is_stopped=True)
        except OSError:
            if not was_stopped:
                self._clock.run()
            raise
        if self._advance is not None:
            self._advance.runs_after = False

    def run(self) -> None:
        """Let the clock run from its present time, as fast as the machine's. An advance in progress goes on."""
        self._note(0, is_stopped=False)
        if self._advance is None:
            self._clock.run()
        else:
            self._advance.runs_after = True

    def set_ms(self, wall_ms: int) -> Steps[int]:
        """Advance the wall clock to a time. Return the number of deadlines that have passed.

        Raise ClockError if the clock has passed that time.
        """
        yield from self._await_turn()
        now_ms = self._clock.wall_ms()
        if wall_ms < now_ms:
            raise ClockError(f'set_ms: found {wall_ms} ({moment(wall_ms)}), expected {now_ms} '
                             f'({moment(now_ms)}) or later: the clock cannot go backwards, because timers have fired '
                             'and records have been written since. Start a fresh broker for an earlier time')
        return (yield from self._begin(wall_ms - now_ms))

    def advance_ms(self, ms: int) -> Steps[int]:
        """Advance the clock. Return the number of deadlines that have passed.

        Raise ClockError if `ms` is negative, OSError if the time cannot be written to the log directory.
        """
        yield from self._await_turn()
        if ms < 0:
            raise ClockError(f'advance_ms: found {ms}, expected 0 or more: the clock cannot go backwards')
        return (yield from self._begin(ms))

    def end_tick(self) -> None:
        """Move the clock to the next deadline if all that follows from the last one is done."""
        advance = self._advance
        if advance is None:
            return
        self._note_progress(advance)
        if not self._is_settled():
            return
        left_ms, delay_ms = advance.target_ms - self._clock.monotonic_ms(), self._timers.next_delay_ms()
        step_ms = left_ms if delay_ms is None else min(left_ms, delay_ms)
        try:
            self._note(step_ms, is_stopped=not advance.runs_after)
        except OSError as error:
            self._end(advance, error)
            return
        self._clock.advance(step_ms)
        if step_ms == delay_ms:
            advance.deadlines += 1
            self._received_at_deadline = self._received_bytes()
            self._begin_round(0)
        else:
            self._end(advance)

    def close(self) -> None:
        """Let the clock run, because the broker stops. An advance in progress fails."""
        if self._advance is not None:
            self._end(self._advance, ClockError('the broker stops, so the advance has ended before its time'))
        self._clock.run()

    def _await_turn(self) -> Steps[None]:
        while self._advance is not None:
            yield from self._advance.over.wait()

    def _begin(self, ms: int) -> Steps[int]:
        clock, runs_after = self._clock, not self._clock.is_stopped
        most_ms = LATEST_MS - clock.wall_ms()
        if ms > most_ms:
            raise ClockError(f'found a step of {ms} ms, expected at most {most_ms} ms: the last time of the clock is '
                             f'{moment(LATEST_MS)}')
        clock.stop()
        self._advance = advance = Advance(clock.monotonic_ms() + ms, runs_after=runs_after)
        self._received_at_deadline = self._received_bytes()
        self._begin_round(0)
        self._let_tick()
        yield from advance.over.wait()
        if advance.error is not None:
            raise advance.error
        logger.info('the clock was advanced by %d ms to %s; deadlines: %d', ms, moment(clock.wall_ms()),
                    advance.deadlines)
        return advance.deadlines

    def _end(self, advance: Advance, error: Exception | None = None) -> None:
        advance.error = error
        self._advance = None
        if advance.runs_after:
            self._clock.run()
        advance.over.end()

    def _is_settled(self) -> bool:
        """Return whether everything that follows from the last deadline is done."""
        if self._timers.next_delay_ms() == 0:       # the next tick runs them, and long work among them
            return False
        is_idle = self._reactor.is_idle()
        if is_idle and all(jobs.completed() == jobs.submitted for jobs in self._jobs):
            return True
        if not is_idle:
            self._let_tick()
        if self._received_bytes() == self._received_at_deadline:
            return False
        if all(jobs.completed() >= mark for jobs, mark in zip(self._jobs, self._marks, strict=True)):
            self._begin_round(self._rounds + 1)
        return self._rounds > MOST_ROUNDS

    def _let_tick(self) -> None:
        """Let a tick follow this one without a wait for an event."""
        self._reactor.call_soon_threadsafe(lambda: None)

    def _begin_round(self, rounds: int) -> None:
        self._rounds = rounds
        self._marks = [jobs.submitted for jobs in self._jobs]

    def _note(self, step_ms: int, *, is_stopped: bool) -> None:
        self._file.write(self._clock, step_ms, is_stopped=is_stopped)

    def _note_progress(self, advance: Advance) -> None:
        now_s = time.monotonic()
        if now_s - advance.noted_s >= PROGRESS_S:
            advance.noted_s = now_s
            logger.info('the clock advances: it is %s, %d deadlines have passed, %d ms are left',
                        moment(self._clock.wall_ms()), advance.deadlines,
                        advance.target_ms - self._clock.monotonic_ms())

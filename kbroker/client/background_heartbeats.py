"""A thread for the heartbeats of a group member whose program does not poll.

The thread also continues a join, so that the group does not wait for a busy program. The thread uses only the member
and the member's own connections. It never uses the fetcher or the positions of the consumer. The thread and the program
use the member only under `lock`. `poll` sends heartbeats when they are due, and the thread sends those that `poll` has
not sent in time. While the thread awaits an answer, `poll` returns records without using the member, but a commit waits
for the thread. A consumer that does not poll for max.poll.interval.ms leaves its group.
"""
from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from kbroker.base.clock import Clock
from kbroker.client.group_member import GroupMember
from kbroker.client.time_limit import OutOfTime, TimeLimit

LATE_MS = 500
"""The time for which a heartbeat is overdue when the thread sends it. A program that polls has sent it by then."""
IDLE_MS = 1000
"""The interval at which the thread checks a member that sends no heartbeats at present, for example after it left."""
END_MS = 5000
"""The longest time for which `stop` waits for the end of a thread that no longer uses the member.

On a machine that is not busy, the thread ends immediately.
"""


class BackgroundHeartbeats:
    """The heartbeat thread of one member. The thread ends after `stop`, or when its consumer has been freed."""

    def __init__(self, member: GroupMember, max_poll_interval_ms: int, clock: Clock):
        self.lock = threading.RLock()
        self._member = member
        self._max_poll_interval_ms = max_poll_interval_ms
        self._clock = clock
        self._polled_ms = 0
        self._failure: Exception | None = None
        """The error that the next poll raises.

        The thread sets it only while it is None; the consumer clears it only while it is not None.
        """
        self._stopped = threading.Event()
        self._is_free = threading.Event()
        """An event that is set while the thread does not use the member."""
        self._is_free.set()
        self._thread: threading.Thread | None = None

    def note_poll(self) -> None:
        """Restart the time that max.poll.interval.ms limits. If the thread has failed, raise its error.
        """
        self._polled_ms = self._clock.monotonic_ms()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    @contextmanager
    def using_member(self, limit: TimeLimit, limit_ms: int) -> Iterator[GroupMember]:
        """Reserve the member for the calling thread within the block.

        All calls in the block together take at most `limit_ms`, and end with `limit`, the consumer's time limit. Raise
        OutOfTime at the end of this time, or ClientError if no call with a time-out is in progress.
        """
        with limit.call(limit_ms):
            if not self.lock.acquire(timeout=limit.left_ms(limit_ms) / 1000):
                raise OutOfTime(f'the coordinator of group {self._member.group_id!r} has not answered a heartbeat')
            try:
                with self._member.within(limit.left_ms(limit_ms)):
                    yield self._member
            finally:
                self.lock.release()

    def note_join(self) -> None:
        """Restart the time that max.poll.interval.ms limits, because a join may have waited long for other members."""
        self._polled_ms = self._clock.monotonic_ms()

    def start(self) -> None:
        """Start the thread, unless it was already started."""
        if self._thread is None:
            # The thread keeps only a weak reference to this object, so that the thread ends when the consumer is freed.
            self._thread = threading.Thread(target=_run, args=(weakref.ref(self), self._stopped), daemon=True,
                                            name=f'heartbeats of group {self._member.group_id}')
            self._thread.start()

    @property
    def uses_member(self) -> bool:
        """Return whether the thread uses the member: even after `stop`, while the thread waits for an answer."""
        return self._thread is not None and self._thread.is_alive() and not self._is_free.is_set()

    def stop(self, timeout_ms: int) -> bool:
        """End the thread. Return False if the thread still waits for the answer to a heartbeat after `timeout_ms`.

        This method does not acquire `lock`: a Ctrl-C before the release would leave the lock acquired forever.
        """
        self._stopped.set()
        if self._thread is None:
            return True
        if not self._is_free.wait(timeout_ms / 1000):
            return False
        self._thread.join(END_MS / 1000)
        return True

    def step(self) -> int:
        """Send a heartbeat, or continue a join, if the program is late. Return the time in ms until the next step."""
        with self.lock:
            self._is_free.clear()
            try:
                return self._send_if_late()
            finally:
                self._is_free.set()

    def _send_if_late(self) -> int:
        member, now_ms = self._member, self._clock.monotonic_ms()
        if self._stopped.is_set() or self._failure is not None:
            return IDLE_MS
        if not member.sends_heartbeats and not member.is_joining:
            return IDLE_MS
        try:
            if now_ms - self._polled_ms > self._max_poll_interval_ms:
                member.give_up()
                return IDLE_MS
            if member.is_joining:       # the group must not wait for a member whose program is busy
                if now_ms - self._polled_ms >= LATE_MS:
                    member.continue_joining()
                return LATE_MS
            if now_ms >= member.next_heartbeat_ms() + LATE_MS:
                member.heartbeat_if_due()
        except Exception as error:      # even an error of the client itself: the next poll raises it
            self._failure = error
            return IDLE_MS
        return max(member.next_heartbeat_ms() + LATE_MS - self._clock.monotonic_ms(), 1)


def _run(of: weakref.ref[BackgroundHeartbeats], stopped: threading.Event) -> None:
    wait_ms = 0
    while not stopped.wait(wait_ms / 1000):
        heartbeats = of()
        if heartbeats is None:
            return
        wait_ms = heartbeats.step()
        del heartbeats

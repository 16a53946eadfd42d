"""The heartbeats of a group member while its consumer is busy with something else than `poll`.

The thread goes on with a join, too, so that a group does not wait for a busy program. The thread uses the member and
the member's own cluster, and nothing else: no fetcher, no position, no other connection. Both threads use the member
only under `lock`. `poll` sends heartbeats when they are due; the thread sends late ones. While the thread awaits an
answer, `poll` returns records without visiting the member; a commit waits for the thread. A consumer that does not poll
for max.poll.interval.ms leaves its group.
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
"""How late a heartbeat is when the thread sends it. A consumer that polls is never that late."""
IDLE_MS = 1000
"""How often the thread checks a member that sends no heartbeats."""
END_MS = 5000
"""How long `stop` waits for a thread that no longer uses the member. It ends at once, but the machine may be busy."""


class BackgroundHeartbeats:
    """The thread of one member. It ends with `stop`, or when the consumer is gone."""

    def __init__(self, member: GroupMember, max_poll_interval_ms: int, clock: Clock):
        self.lock = threading.RLock()
        self._member = member
        self._max_poll_interval_ms = max_poll_interval_ms
        self._clock = clock
        self._polled_ms = 0
        self._failure: Exception | None = None
        """Set by the thread only while it is None, and cleared by the consumer only while it is not."""
        self._stopped = threading.Event()
        self._is_free = threading.Event()
        """Set while the thread does not use the member."""
        self._is_free.set()
        self._thread: threading.Thread | None = None

    def note_poll(self) -> None:
        """Restart max.poll.interval.ms. Raises the error that ended the thread's work for the member."""
        self._polled_ms = self._clock.monotonic_ms()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    @contextmanager
    def using_member(self, limit: TimeLimit, limit_ms: int) -> Iterator[GroupMember]:
        """Use the member while the thread does not, for at most `limit_ms`, and within `limit`, that of the consumer.

        Raises OutOfTime, or ClientError if no call with a time-out is in progress.
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
        """Restart max.poll.interval.ms: a join may have waited long for the other members."""
        self._polled_ms = self._clock.monotonic_ms()

    def start(self) -> None:
        """Start the thread, if it does not run."""
        if self._thread is None:
            # The thread keeps no reference to this object, which ends it when the consumer is dropped.
            self._thread = threading.Thread(target=_run, args=(weakref.ref(self), self._stopped), daemon=True,
                                            name=f'heartbeats of group {self._member.group_id}')
            self._thread.start()

    @property
    def uses_member(self) -> bool:
        """Return whether the thread uses the member: after `stop`, it still waits for an answer."""
        return self._thread is not None and self._thread.is_alive() and not self._is_free.is_set()

    def stop(self, timeout_ms: int) -> bool:
        """End the thread. Return False if it still waits for the answer to its last heartbeat: it uses the member.

        The lock stays out of this: a Ctrl-C between its acquisition and its release would leave it locked.
        """
        self._stopped.set()
        if self._thread is None:
            return True
        if not self._is_free.wait(timeout_ms / 1000):
            return False
        self._thread.join(END_MS / 1000)
        return True

    def step(self) -> int:
        """Send a heartbeat if one is late. Return the time in ms until the next step."""
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
            if member.is_joining:       # no program waits for the join: the group must not wait for this member
                if now_ms - self._polled_ms >= LATE_MS:
                    member.go_on_joining()
                return LATE_MS
            if now_ms >= member.next_heartbeat_ms() + LATE_MS:
                member.heartbeat_if_due()
        except Exception as error:      # also one of the client itself: the next poll raises it
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

"""A thread sends the heartbeats of a member whose program is busy. The tests check when it sends them and when it gives
up."""
import gc
import threading

import pytest

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client import background_heartbeats
from kbroker.client.background_heartbeats import IDLE_MS, LATE_MS, BackgroundHeartbeats
from kbroker.client.errors import ClientError

INTERVAL_MS = 3000


class Member:
    """A member that records the times of its heartbeats."""

    group_id = 'g'

    def __init__(self, clock):
        self.clock = clock
        self.sends_heartbeats = True
        self.is_joining = False
        self.steps_ms = []
        self.sent_ms = []
        self.error = None
        self.gave_up = False
        self._began_ms = clock.monotonic_ms()
        self._due_ms = self._began_ms + INTERVAL_MS

    def next_heartbeat_ms(self):
        return self._due_ms

    def heartbeat_if_due(self):
        if self.error is not None:
            raise self.error
        self.sent_ms.append(self.clock.monotonic_ms() - self._began_ms)
        self._due_ms = self.clock.monotonic_ms() + INTERVAL_MS

    def continue_joining(self):
        self.steps_ms.append(self.clock.monotonic_ms() - self._began_ms)

    def give_up(self):
        self.gave_up, self.sends_heartbeats = True, False


def made(clock, max_poll_interval_ms=300_000):
    member = Member(clock)
    heartbeats = BackgroundHeartbeats(member, max_poll_interval_ms, clock)
    heartbeats.note_poll()
    return member, heartbeats


def test_only_a_late_heartbeat_is_sent(clock):
    member, heartbeats = made(clock)
    assert heartbeats.step() == INTERVAL_MS + LATE_MS
    clock.advance(INTERVAL_MS)
    assert heartbeats.step() == LATE_MS, 'a consumer that polls sends this heartbeat'
    clock.advance(LATE_MS)
    assert heartbeats.step() == INTERVAL_MS + LATE_MS
    assert member.sent_ms == [INTERVAL_MS + LATE_MS]


def test_a_consumer_that_is_no_member_has_no_heartbeats(clock):
    member, heartbeats = made(clock)
    member.sends_heartbeats = False
    clock.advance(60_000)
    assert heartbeats.step() == IDLE_MS
    assert member.sent_ms == []


def test_a_consumer_that_does_not_poll_leaves_its_group(clock):
    member, heartbeats = made(clock, max_poll_interval_ms=10_000)
    for _ in range(10):
        heartbeats.note_poll()
        clock.advance(9000)
        heartbeats.step()
    assert (len(member.sent_ms), member.gave_up) == (10, False)
    clock.advance(9000)
    heartbeats.step()
    assert member.gave_up


@pytest.mark.parametrize('error', [KafkaError(ErrorCode.FENCED_INSTANCE_ID, 'fenced'), ClientError('fenced'),
                                   ValueError('fenced')])
def test_an_error_is_raised_by_the_next_poll_and_ends_the_heartbeats(clock, error):
    """A ValueError here is a defect of the client. The thread must report it rather than end silently."""
    member, heartbeats = made(clock)
    member.error = error
    clock.advance(60_000)
    assert heartbeats.step() == IDLE_MS
    member.error = None
    assert heartbeats.step() == IDLE_MS
    with pytest.raises(type(error), match='fenced'):
        heartbeats.note_poll()
    heartbeats.note_poll()
    heartbeats.step()
    assert len(member.sent_ms) == 1


def test_a_thread_that_waits_for_an_answer_is_left_to_itself(clock):
    member, heartbeats = made(clock)
    sends, may_end = threading.Event(), threading.Event()

    def heartbeat_if_due():
        sends.set()
        may_end.wait(60)

    member.heartbeat_if_due = heartbeat_if_due
    clock.advance(INTERVAL_MS + LATE_MS)
    heartbeats.start()
    assert sends.wait(60)
    assert not heartbeats.stop(0)
    assert heartbeats.uses_member
    may_end.set()
    assert heartbeats.stop(60_000)
    assert not heartbeats.uses_member


def test_a_stop_ends_though_the_lock_is_held_for_good(clock, monkeypatch):
    """A Ctrl-C right after the program's thread has acquired the lock leaves it locked."""
    monkeypatch.setattr(background_heartbeats, 'END_MS', 1)
    _, heartbeats = made(clock)
    with heartbeats.lock:
        heartbeats.start()
        assert heartbeats.stop(60_000)
        assert not heartbeats.uses_member
    heartbeats._thread.join(60)


def test_a_stop_does_not_take_the_lock(clock):
    """A stop that acquired the lock would leave it locked if a Ctrl-C came before the release."""
    _, heartbeats = made(clock)
    is_held, may_end = threading.Event(), threading.Event()

    def hold():
        with heartbeats.lock:
            is_held.set()
            may_end.wait(60)

    heartbeats.start()
    assert heartbeats.stop(60_000)
    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(60)
    assert heartbeats.stop(0)
    may_end.set()
    holder.join()


def test_a_thread_between_two_heartbeats_ends_without_time_and_sends_none(clock):
    member, heartbeats = made(clock)
    heartbeats.start()
    assert heartbeats.stop(0)
    clock.advance(60_000)
    heartbeats.step()
    assert member.sent_ms == []


def names():
    return [thread.name for thread in threading.enumerate()]


def test_the_thread_ends_when_it_is_stopped_or_forgotten(clock):
    _, heartbeats = made(clock)
    heartbeats.start()
    heartbeats.start()
    assert names().count('heartbeats of group g') == 1
    assert heartbeats.stop(30_000)
    assert 'heartbeats of group g' not in names()
    member, heartbeats = made(clock)
    member.sends_heartbeats = False
    heartbeats.start()
    thread, = (thread for thread in threading.enumerate() if thread.name == 'heartbeats of group g')
    del heartbeats
    gc.collect()
    thread.join(120)
    assert not thread.is_alive()

"""Parked requests: several wake-ups in a tick cause one check."""
from kbroker.apis.serving.waiting import Waiter, WaitingRoom


class RecordingWaiter(Waiter):
    def __init__(self):
        self.looked = 0
        self.gave_up = False
        self.answered = False

    def look_again(self):
        self.looked += 1

    def answer_now(self):
        self.answered = True

    def give_up(self):
        self.gave_up = True


def test_a_waiter_that_is_woken_twice_in_a_turn_looks_once():
    room, waiter = WaitingRoom(), RecordingWaiter()
    room.enter(1, waiter)
    room.wake(waiter)
    room.wake(waiter)
    room.end_tick()
    room.end_tick()
    assert waiter.looked == 1


def test_a_waiter_that_left_is_not_looked_at():
    room, waiter = WaitingRoom(), RecordingWaiter()
    room.enter(1, waiter)
    room.wake(waiter)
    room.leave(1)
    room.end_tick()
    assert waiter.looked == 0 and len(room) == 0


def test_a_closed_connection_makes_its_waiter_give_up_and_no_other():
    room, gone, stays = WaitingRoom(), RecordingWaiter(), RecordingWaiter()
    room.enter(1, gone)
    room.enter(2, stays)
    room.connection_closed(1)
    room.connection_closed(3)
    assert gone.gave_up and not stays.gave_up


def test_a_stop_answers_everyone():
    room, waiters = WaitingRoom(), [RecordingWaiter(), RecordingWaiter()]
    for connection_id, waiter in enumerate(waiters):
        room.enter(connection_id, waiter)
    room.answer_all()
    assert all(waiter.answered for waiter in waiters)

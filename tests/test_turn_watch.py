"""The stopwatch of the loop logs each turn that takes too long, with the work that the turn did."""
import logging
import os
import time

import pytest

from kbroker.base.clock import Clock, Timers
from kbroker.base.long_work import LongWork
from kbroker.base.turn_watch import TurnWatch
from kbroker.network.reactor import Reactor


def work(seconds):
    """Use the processor for `seconds`."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def long_callback():
    work(0.012)


def short_callback():
    work(0.001)


class Loop:
    """A reactor with a stopwatch, and the lines that the stopwatch logs."""

    def __init__(self, measures_cpu, caplog):
        self.watch = TurnWatch(measures_cpu)
        self.timers = Timers(Clock(), self.watch)
        self.reactor = Reactor(Clock(), self.timers)
        self._caplog = caplog
        caplog.set_level(logging.INFO, 'kbroker.turns')

    def run_once(self):
        self._caplog.clear()
        self.reactor.run_once()
        return [record.turn.rpartition('.')[2] for record in self._caplog.records
                if getattr(record, 'event', '') == 'long-turn']


@pytest.fixture
def open_loop(caplog):
    loops = []

    def open_loop(measures_cpu=True):
        loops.append(Loop(measures_cpu, caplog))
        return loops[-1]

    yield open_loop
    for loop in loops:
        loop.reactor.close()


def test_a_long_turn_is_logged_by_the_name_of_what_it_did(open_loop):
    loop = open_loop()
    loop.reactor.call_soon_threadsafe(short_callback)
    loop.reactor.call_soon_threadsafe(long_callback)
    loop.timers.after(0, short_callback)
    assert loop.run_once() == ['long_callback']
    assert loop.watch.longest_turn.endswith('.long_callback')
    assert loop.watch.longest_tick_us > loop.watch.longest_turn_us >= 12_000


@pytest.mark.parametrize('begin', [
    lambda loop: loop.timers.after(0, long_callback),
    lambda loop: loop.timers.every(0, long_callback),
    lambda loop: loop.reactor.at_tick_end.append(long_callback),
])
def test_timers_and_ends_of_ticks_are_turns_too(open_loop, begin):
    loop = open_loop()
    begin(loop)
    assert loop.run_once()[0] == 'long_callback'


def test_a_handler_of_a_descriptor_is_named_by_its_callback(open_loop):
    loop = open_loop()
    receiver, sender = os.pipe()
    try:
        handler = loop.reactor.watch(receiver, long_callback)
        os.write(sender, b'.')
        assert loop.run_once() == ['long_callback']
        loop.reactor.unregister(handler)
    finally:
        os.close(receiver)
        os.close(sender)


def test_a_part_of_long_work_is_a_turn_of_its_own(open_loop):
    loop = open_loop()

    def dawdle():
        yield
        long_callback()
        yield
        short_callback()

    LongWork(loop.timers).start(dawdle())
    (turn,) = loop.run_once()
    assert turn.endswith('dawdle')


def test_in_production_one_turn_is_logged_in_an_interval(open_loop):
    loop = open_loop(measures_cpu=False)
    for _ in range(3):
        loop.reactor.call_soon_threadsafe(lambda: work(0.11))
    assert len(loop.run_once()) == 1
    assert loop.watch.long_turns == 3


def test_many_turns_that_are_long_together_are_logged(open_loop):
    loop = open_loop()
    for _ in range(60):
        loop.reactor.call_soon_threadsafe(short_callback)
    assert loop.run_once() == ['the whole tick']
    assert loop.watch.long_turns == 0


def test_the_longest_turn_is_reported_and_forgotten(open_loop, caplog):
    loop = open_loop()
    loop.reactor.call_soon_threadsafe(long_callback)
    loop.run_once()
    loop.watch.log_longest()
    report = caplog.records[-1]
    assert (report.event, report.long_turns, report.longest_turn) == ('turns', 1, f'{__name__}.long_callback')
    assert (loop.watch.turns, loop.watch.longest_turn) == (0, None)

import os
import signal
import socket
import threading
import time

import pytest

from kbroker.base.clock import Clock, Timers
from kbroker.network.reactor import Reactor


def test_a_readable_descriptor_calls_its_handler_until_it_is_unregistered(reactor):
    ours, theirs = socket.socketpair()
    calls = []
    handler = reactor.watch(ours.fileno(), lambda: calls.append(ours.recv(10)))
    assert reactor.run_once() == 0
    theirs.send(b'x')
    assert reactor.run_once() == 1
    reactor.unregister(handler)
    theirs.send(b'y')
    assert reactor.run_once() == 0
    assert calls == [b'x']


def test_a_paused_handler_is_called_after_its_resumption(reactor):
    ours, theirs = socket.socketpair()
    calls = []
    handler = reactor.watch(ours.fileno(), lambda: calls.append(ours.recv(10)))
    reactor.pause(handler)
    theirs.send(b'x')
    assert reactor.run_once() == 0
    reactor.resume(handler)
    reactor.run_once()
    assert calls == [b'x']


def test_a_handler_unregistered_by_another_one_of_the_same_tick_is_not_called(reactor):
    pairs = [socket.socketpair() for _ in range(2)]
    calls = []
    handlers = []

    def end_both():
        calls.append(1)
        for handler in handlers:
            reactor.unregister(handler)
        handlers.clear()

    for ours, theirs in pairs:
        handlers.append(reactor.watch(ours.fileno(), end_both))
        theirs.send(b'x')
    assert reactor.run_once() == 2
    assert calls == [1]


def test_a_timer_runs_when_it_is_due_and_shortens_the_wait(reactor, clock):
    calls = []
    reactor.timers.after(10, lambda: calls.append('timer'))
    clock.advance(9)
    reactor.run_once()
    assert calls == []
    clock.advance(1)
    reactor.run_once(timeout_ms=3_600_000)
    assert calls == ['timer']


def test_a_tick_ends_with_its_callbacks_after_timers_and_calls(reactor, clock):
    order = []
    reactor.timers.after(0, lambda: order.append('timer'))
    reactor.call_soon_threadsafe(lambda: order.append('call'))
    reactor.at_tick_end.append(lambda: order.append('end'))
    reactor.run_once()
    assert order == ['call', 'timer', 'end']


def test_calls_from_threads_all_arrive_in_the_order_of_each_thread(reactor):
    arrived = []
    start = threading.Barrier(4)

    def call(name):
        start.wait()
        for index in range(500):
            reactor.call_soon_threadsafe(lambda index=index: arrived.append((name, index)))

    threads = [threading.Thread(target=call, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    while len(arrived) < 2000:
        reactor.run_once(timeout_ms=60_000)
    for thread in threads:
        thread.join()
    for name in range(4):
        assert [index for other, index in arrived if other == name] == list(range(500))


def test_a_call_that_asks_for_another_does_not_hold_up_the_tick(reactor):
    calls = []

    def again():
        calls.append(1)
        reactor.call_soon_threadsafe(again)

    reactor.call_soon_threadsafe(again)
    reactor.run_once(timeout_ms=60_000)
    assert len(calls) == 1
    reactor.run_once(timeout_ms=60_000)
    assert len(calls) == 2


def test_calls_behind_one_that_raised_are_not_lost(reactor):
    calls = []
    reactor.call_soon_threadsafe(lambda: 1 / 0)
    reactor.call_soon_threadsafe(lambda: calls.append(1))
    with pytest.raises(ZeroDivisionError):
        reactor.run_once()
    reactor.run_once(timeout_ms=60_000)
    assert calls == [1]


def test_a_thread_stops_the_loop(reactor):
    thread = threading.Thread(target=reactor.stop)
    reactor.call_soon_threadsafe(thread.start)
    reactor.run()
    thread.join()


def test_a_stop_that_comes_before_the_run_counts(reactor):
    reactor.stop()
    reactor.run()


def test_a_signal_is_a_call_on_the_loop():
    clock = Clock()
    reactor = Reactor(clock, Timers(clock))
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def on_signal():
        seen.append('stop')
        reactor.stop()

    reactor.on_signal(signal.SIGTERM, on_signal)
    # The kernel may deliver the signal to any thread. The loop must wake up even if another thread gets the signal.
    reactor.call_soon_threadsafe(lambda: threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM)).start())
    reactor.run()
    assert seen == ['stop']
    reactor.close()
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_handler_of_python_runs_while_the_loop_waits():
    clock = Clock()
    reactor = Reactor(clock, Timers(clock))
    before = signal.signal(signal.SIGALRM, lambda number, stack: reactor.stop())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        reactor.run()
    finally:
        signal.signal(signal.SIGALRM, before)
        reactor.close()


def test_closing_gives_the_descriptors_back():
    before = len(os.listdir('/proc/self/fd'))
    clock = Clock()
    for _ in range(100):
        reactor = Reactor(clock, Timers(clock))
        reactor.on_signal(signal.SIGUSR1, lambda: None)
        reactor.close()
        reactor.close()
    assert len(os.listdir('/proc/self/fd')) < before + 100      # other threads of this process open some


def test_timers_that_are_due_at_one_time_share_the_tick_with_others(reactor):
    def spend_a_while():
        end = time.monotonic() + 0.0002
        while time.monotonic() < end:
            pass
        ran.append('timer')

    ran = []
    for _ in range(100):
        reactor.timers.after(0, spend_a_while)
    reactor.run_once()
    assert 0 < len(ran) < 100
    while len(ran) < 100:
        reactor.run_once()

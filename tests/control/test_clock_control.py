"""The clock of a broker with a control port: it stops, and is set and advanced; the next process continues it."""
import json
import logging
import threading

import pytest
from support.brokers.clocked_broker import ClockedBroker
from support.messages.message_builder import batch_of

from kbroker.base.clock import Clock, ControlledClock, Timers
from kbroker.base.errors import ConfigError
from kbroker.control.clock import CLOCK_FILE, LATEST_MS, ClockError, open_clock
from kbroker.log.append import Origin
from kbroker.log.fs import FileSystem
from kbroker.network.reactor import Reactor

DAY_MS = 86_400_000


@pytest.fixture
def broker(tmp_path):
    with ClockedBroker(tmp_path / 'data') as broker:
        yield broker


def between(low, value, high):
    assert low <= value <= high, value


def test_a_controlled_clock_has_the_time_of_the_machine_until_it_is_moved():
    clock, machine = ControlledClock(), Clock()
    between(machine.wall_ms(), clock.wall_ms(), machine.wall_ms())
    between(machine.monotonic_ms(), clock.monotonic_ms(), machine.monotonic_ms())
    clock.advance(DAY_MS)
    between(machine.wall_ms() + DAY_MS, clock.wall_ms(), machine.wall_ms() + DAY_MS)
    between(machine.monotonic_ms() + DAY_MS, clock.monotonic_ms(), machine.monotonic_ms() + DAY_MS)


def test_a_stopped_clock_moves_only_by_advance_and_runs_on_from_where_it_was():
    clock, machine = ControlledClock(), Clock()
    clock.stop()
    wall_ms, monotonic_ms = clock.wall_ms(), clock.monotonic_ms()
    clock.stop()
    clock.advance(5)
    while machine.wall_ms() < wall_ms + 20:
        assert (clock.wall_ms(), clock.monotonic_ms()) == (wall_ms + 5, monotonic_ms + 5)
    clock.run()
    clock.run()
    lag_ms = machine.wall_ms() - clock.wall_ms()
    between(10, lag_ms, machine.wall_ms() - wall_ms)
    assert clock.monotonic_ms() < machine.monotonic_ms()
    assert not clock.is_stopped


def test_a_clock_never_goes_backwards():
    with pytest.raises(ValueError, match='found -1 ms, expected 0 or more'):
        ControlledClock().advance(-1)


def test_a_loop_does_not_wait_for_a_deadline_that_a_stopped_clock_cannot_reach():
    clock = ControlledClock()
    clock.stop()
    timers, machine_timers, fired = Timers(clock), Timers(Clock()), []
    reactor = Reactor(clock, timers, machine_timers)
    timers.after(1, lambda: fired.append('broker'))
    machine_timers.after(20, lambda: (fired.append('machine'), reactor.stop()))
    reactor.run()
    assert fired == ['machine']
    clock.advance(1)
    reactor.run_once(-1)
    assert fired == ['machine', 'broker']
    reactor.close()


def test_three_deadlines_fire_in_order_each_with_what_follows_from_it(broker):
    timers, clock, events = broker.node.timers, broker.clock, []
    began_ms = clock.monotonic_ms()

    def note(what):
        events.append((what, clock.monotonic_ms() - began_ms))

    def deadline(number):
        """Note a deadline, then what follows from it: a job of a worker, a sync of an append, and long work."""
        note(f'deadline {number}')
        broker.broker.searching_worker.submit(lambda: None, lambda _: follow(number))

    def follow(number):
        note(f'job {number}')
        (partition,) = broker.node.topics.topic('orders').partitions
        partition.append_batch(bytearray(batch_of(clock.wall_ms(), b'value')), Origin.CLIENT)
        partition.when_durable(number, lambda error: broker.node.long_work.start(work(number)))

    def work(number):
        for _ in range(100):
            yield
        note(f'work {number}')
        timers.after(0, lambda: note(f'end {number}'))

    def begin():
        broker.node.topics.create('orders', 1, {})
        for number, delay_ms in ((3, 3000), (1, 1000), (2, 2000)):
            timers.after(delay_ms, lambda number=number: deadline(number))

    broker.on_loop(begin)
    broker.advance(2500)
    assert events == [(f'{what} {number}', 1000 * number)
                      for number in (1, 2) for what in ('deadline', 'job', 'work', 'end')]
    assert clock.monotonic_ms() == began_ms + 2500
    broker.advance(500)
    assert [what for what, _ in events[8:]] == ['deadline 3', 'job 3', 'work 3', 'end 3']


def test_an_advance_of_a_running_clock_ends_with_a_running_clock(broker):
    broker.on_loop(broker.control.run)
    before_ms = broker.on_loop(broker.clock.ahead_ms)
    broker.advance(900_000)
    assert not broker.on_loop(broker.control.state)['is_stopped']
    # The clock stands still during an advance.
    between(before_ms + 890_000, broker.on_loop(broker.clock.ahead_ms), before_ms + 900_000)


def test_the_clock_can_be_set_to_a_later_time_but_not_to_an_earlier_one(broker):
    now_ms = broker.clock.wall_ms()
    broker.work(broker.control.set_ms(now_ms + DAY_MS))
    assert broker.on_loop(broker.control.state) == {'wall_ms': now_ms + DAY_MS, 'is_stopped': True}
    with pytest.raises(ClockError, match=rf'set_ms: found {now_ms} \(.*Z\), expected {now_ms + DAY_MS} .* or later: '
                       'the clock cannot go backwards, because timers have fired .* Start a fresh broker'):
        broker.work(broker.control.set_ms(now_ms))
    with pytest.raises(ClockError, match='advance_ms: found -5, expected 0 or more'):
        broker.advance(-5)
    with pytest.raises(ClockError, match=r'expected at most \d+ ms: the last time of the clock is 3000-01-01'):
        broker.advance(LATEST_MS)
    assert broker.clock.wall_ms() == now_ms + DAY_MS


def test_an_advance_waits_for_the_one_before_it(broker):
    began_ms, ended = broker.clock.monotonic_ms(), []

    def begin():
        for ms in (700, 300):
            broker.node.long_work.start(
                broker.control.advance_ms(ms),
                lambda error, result: ended.append((error, broker.clock.monotonic_ms() - began_ms)))

    broker.on_loop(begin)
    while len(ended) < 2:
        broker.advance(0)
    assert ended == [(None, 700), (None, 1000)]


def test_an_advance_over_thousands_of_deadlines_holds_the_loop_for_no_long_turn(broker, caplog):
    with caplog.at_level(logging.WARNING):
        assert broker.advance(DAY_MS) > 10_000
    assert [record for record in caplog.records if getattr(record, 'event', '') == 'long-turn'] == []


def test_the_next_process_continues_from_a_moved_clock(tmp_path):
    directory = tmp_path / 'data'
    with ClockedBroker(directory) as broker:
        broker.advance(DAY_MS)
        wall_ms = broker.clock.wall_ms()
        assert json.loads((directory / CLOCK_FILE).read_text()) == {'stopped_at_ms': wall_ms}
    clock = open_clock(FileSystem(), str(directory))
    assert (clock.wall_ms(), clock.is_stopped) == (wall_ms, True)
    with ClockedBroker(directory) as broker:
        assert broker.clock.wall_ms() == wall_ms
        broker.on_loop(broker.control.run)
        broker.advance(DAY_MS)
        ahead_ms = broker.on_loop(broker.clock.ahead_ms)
    clock = open_clock(FileSystem(), str(directory))
    assert not clock.is_stopped
    between(ahead_ms - 5, clock.ahead_ms(), ahead_ms + 5)


def test_a_clock_that_was_never_moved_leaves_no_file(tmp_path):
    with ClockedBroker(tmp_path / 'data'):
        pass
    assert not (tmp_path / 'data' / CLOCK_FILE).exists()


@pytest.mark.parametrize('content', [b'{}', b'[]', b'7', b'{"ahead_ms": true}', b'{"ahead_ms": 1e99}',
                                     b'{"ahead_ms": 99999999999999}', b'{"ahead": 1}', b'\xff'])
def test_a_clock_file_with_another_content_is_refused_by_name(tmp_path, content):
    (tmp_path / CLOCK_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=r'\.kbroker_clock: found .*, expected the time of a .* Remove the file'):
        open_clock(FileSystem(), str(tmp_path))


@pytest.mark.parametrize('content', [b'', bytes(64)])
def test_a_clock_file_that_was_never_written_counts_as_none(tmp_path, content):
    (tmp_path / CLOCK_FILE).write_bytes(content)
    clock = open_clock(FileSystem(), str(tmp_path))
    between(-5, clock.ahead_ms(), 5)
    assert not clock.is_stopped


def test_a_clock_whose_time_cannot_be_written_does_not_move(broker, monkeypatch):
    broker.advance(1000)
    wall_ms = broker.clock.wall_ms()
    fail_writes(broker)
    with pytest.raises(OSError, match='No space left'):
        broker.advance(60_000)
    for call in (broker.control.run, broker.control.stop):
        with pytest.raises(OSError, match='No space left'):
            broker.work(called(call))
    assert broker.on_loop(broker.control.state) == {'wall_ms': wall_ms, 'is_stopped': True}
    broker.clock.run()
    with pytest.raises(OSError, match='No space left'):
        broker.work(called(broker.control.stop))
    assert not broker.on_loop(broker.control.state)['is_stopped']


def called(call):
    call()
    return
    yield


def fail_writes(broker):
    class FullFile:
        def write_at(self, data, position):
            raise OSError(28, 'No space left on device')

    class FullFileSystem:
        def open(self, path, create=False):
            return FullFile()

    broker.control._file._fs, broker.control._file._file = FullFileSystem(), None


def test_a_broker_that_stops_ends_an_advance_that_cannot_finish(tmp_path):
    with ClockedBroker(tmp_path / 'data') as broker:
        ended, event = [], threading.Event()

        def wait():
            broker.broker.searching_worker.submit(event.wait, lambda _: None)
            broker.node.long_work.start(broker.control.advance_ms(1000), lambda error, _: ended.append(error))

        broker.on_loop(wait)
        broker.on_loop(lambda: (broker.control.close(), event.set()))
    assert [str(error) for error in ended] == ['the broker stops, so the advance has ended before its time']

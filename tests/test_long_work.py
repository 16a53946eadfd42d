"""The loop does long work in slices, and serves requests between two slices."""
import gc

import pytest

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.long_work import Line, LongWork, Pause, result_of, run_to_end


@pytest.fixture
def timers():
    return Timers(ManualClock())


@pytest.fixture
def long_work(timers):
    return LongWork(timers)


def write_letters(text, seen):
    for letter in text:
        seen.append(letter)
        yield
    return len(seen)


def test_works_advance_in_turn_and_give_their_results(long_work, timers):
    seen, results = [], []
    long_work.start(write_letters('abc', seen), lambda *result: results.append(result))
    long_work.start(write_letters('xyz', seen), lambda *result: results.append(result))
    assert (seen, results, len(long_work)) == (['a', 'x'], [], 2)
    timers.run_due()
    assert (seen, results, len(long_work)) == (['a', 'x', 'b', 'y', 'c', 'z'], [(None, 6), (None, 6)], 0)
    assert timers.next_delay_ms() is None


def test_work_of_one_part_is_done_at_once(long_work, timers):
    results = []
    long_work.start(write_letters('', []), lambda *result: results.append(result))
    assert results == [(None, 0)]
    assert timers.next_delay_ms() is None


def test_a_slice_ends_although_work_is_left(long_work):
    parts = 0

    def work_without_end():
        nonlocal parts
        while True:
            parts += 1
            yield

    long_work.start(work_without_end())
    long_work.run_slice()
    assert (parts > 1, len(long_work)) == (True, 1)


def test_an_error_is_a_result_and_without_a_caller_it_ends_the_loop(long_work, timers):
    def failing():
        yield
        raise ValueError('no')

    results = []
    long_work.start(failing(), lambda *result: results.append(result))
    timers.run_due()
    assert [(str(error), result) for error, result in results] == [('no', None)]
    long_work.start(failing())
    with pytest.raises(ValueError, match='no'):
        timers.run_due()


def test_a_stop_finishes_what_was_begun(long_work):
    seen = []
    long_work.start(write_letters('abc', seen))
    long_work.finish()
    assert (seen, len(long_work)) == (['a', 'b', 'c'], 0)


class Client:
    """A client that wants the result of its long work until it disconnects."""

    def __init__(self):
        self.is_here = True

    def is_wanted(self):
        return self.is_here


@pytest.fixture
def line(long_work):
    return Line(long_work, 2)


def test_few_works_of_a_line_are_in_progress_at_a_time(line, long_work, timers):
    seen = []
    for letters in ('ab', 'cd', 'ef', 'gh'):
        line.start(write_letters(letters, seen), Client().is_wanted)
    assert (seen, len(line), len(long_work)) == (['a', 'c'], 2, 2)
    timers.run_due()
    assert (seen, len(line), len(long_work)) == (['a', 'c', 'b', 'd', 'e', 'g', 'f', 'h'], 0, 0)


def test_a_work_that_begins_at_once_waits_for_a_place_only_if_it_is_long(line, timers):
    seen = []
    for letters in ('ab', 'cd', '', 'ef'):
        line.begin(write_letters(letters, seen), Client().is_wanted)
    assert (seen, len(line)) == (['a', 'c', 'e'], 1)
    timers.run_due()
    assert (seen, len(line)) == (['a', 'c', 'e', 'b', 'd', 'f'], 0)


def test_a_work_that_has_not_begun_is_dropped_if_its_client_has_left(line, timers):
    seen, client = [], Client()
    for letters in ('ab', 'cd'):
        line.start(write_letters(letters, seen), client.is_wanted)
    line.start(write_letters('no', seen), client.is_wanted)
    line.start(write_letters('yes', seen), Client().is_wanted)
    client.is_here = False
    timers.run_due()
    assert seen == ['a', 'c', 'b', 'd', 'y', 'e', 's']


def test_works_of_clients_that_come_and_go_do_not_pile_up(line):
    for _ in range(2):
        line.start(write_letters('ab', []), Client().is_wanted)
    longest = 0
    for _ in range(10_000):
        client = Client()
        line.start(write_letters('x', []), client.is_wanted)
        client.is_here = False
        longest = max(longest, len(line))
    assert longest < 100


def test_few_works_begin_before_they_have_a_place(line):
    seen = []
    for _ in range(1_000):
        line.begin(write_letters('ab', seen), Client().is_wanted)
    assert len(seen) == 502 and len(line) == 998


def test_a_stop_finishes_the_works_that_wait(line, long_work):
    seen = []
    for letters in ('ab', 'cd', 'ef'):
        line.start(write_letters(letters, seen), Client().is_wanted)
    long_work.finish()
    assert sorted(seen) == list('abcdef')


def test_a_work_that_waits_for_another_one_gives_its_place_away(line, timers):
    """Otherwise works that wait for one last work could occupy all places, and the last work would never get a place.
    """
    ended = []

    last = Pause()

    def wait_for_the_last():
        yield
        yield from last.wait()
        ended.append('waiting')

    def be_the_last():
        yield
        yield
        ended.append('last')
        last.end()

    for _ in range(2):
        line.begin(wait_for_the_last(), Client().is_wanted)
    line.begin(be_the_last(), Client().is_wanted)
    assert len(line) == 1
    timers.run_due()
    assert ended == ['last', 'waiting', 'waiting']


def test_a_work_that_waits_costs_nothing_until_its_pause_is_over(long_work, timers):
    pause, seen = Pause(), []

    def waiting(name):
        seen.append(f'{name} began')
        yield from pause.wait()
        seen.append(f'{name} goes on')

    for name in ('first', 'second'):
        long_work.start(waiting(name))
    timers.run_due()
    assert (seen, len(long_work), long_work.paused) == (['first began', 'second began'], 0, 2)
    assert timers.next_delay_ms() is None
    pause.end()
    assert (len(long_work), long_work.paused) == (2, 0)
    timers.run_due()
    assert seen[2:] == ['first goes on', 'second goes on']


def test_a_pause_that_is_over_holds_no_work(long_work):
    pause, results = Pause(), []
    pause.end()
    long_work.start(pause.wait(), lambda *result: results.append(result))
    assert results == [(None, None)]
    assert run_to_end(pause.wait()) is None


def test_work_that_is_run_at_once_must_not_wait():
    with pytest.raises(RuntimeError, match='waits, and it is run at once'):
        run_to_end(Pause().wait())


def test_a_call_that_was_awaited_leaves_no_garbage(long_work, timers):
    """In an earlier version, the callback kept its generator alive in a reference cycle, and the broker's garbage
    collector does not traverse old cycles.
    """
    callbacks, results = [], []
    gc.collect()
    gc.disable()
    try:
        long_work.start(result_of(callbacks.append), lambda *result: results.append(result))
        timers.run_due()
        assert (long_work.paused, len(long_work)) == (1, 0)     # it costs nothing while it waits
        callbacks.pop()('an error', 'a result')
        timers.run_due()
        assert results == [(None, ('an error', 'a result'))]
        assert gc.collect() == 0
    finally:
        gc.enable()

"""Long work in slices."""
import pytest

from kbroker.clock import ManualClock, Timers
from kbroker.long_work import LongWork


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

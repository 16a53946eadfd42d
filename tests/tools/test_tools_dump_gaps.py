"""Gaps between offsets are reported in order, without keeping all of them in memory."""
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from kbroker_tools.dump import gaps as dump_gaps
from kbroker_tools.dump.gaps import Gaps

OFFSETS = st.integers(-1, 1 << 40)


@given(st.lists(st.tuples(OFFSETS, OFFSETS)), st.booleans())
def test_they_come_in_order_and_the_last_of_a_kind_counts(pairs, sort):
    gaps = Gaps()
    for first, second in sorted(dict(pairs).items()) if sort else pairs:
        gaps.add(first, second)
    assert list(gaps) == sorted(dict(pairs).items())
    assert list(gaps) == sorted(dict(pairs).items())


def test_many_do_not_stay_in_memory():
    gaps, count = Gaps(), 20 * dump_gaps.PAIRS_IN_MEMORY
    tracemalloc.start()
    for number in range(count):
        gaps.add(3 * number, 3 * number + 2)
    assert all(pair == (3 * number, 3 * number + 2) for number, pair in enumerate(gaps))
    assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    tracemalloc.stop()
    assert sum(1 for _ in gaps) == count

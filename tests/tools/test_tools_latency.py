"""The histogram of latencies keeps percentiles within 1.6 % of the exact ones."""
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker_tools.base.latency import PERCENTILES, Latencies, bucket_of, highest_in


@given(st.integers(0, 2**50))
def test_a_bucket_holds_its_value_and_is_narrow(value):
    bucket = bucket_of(value)
    assert value <= highest_in(bucket) <= value + value // 64
    assert bucket_of(highest_in(bucket)) == bucket and bucket_of(highest_in(bucket) + 1) == bucket + 1


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=200))
def test_percentiles_are_close_to_those_of_the_sorted_values(values):
    found = Latencies()
    for value in values:
        found.add(value)
    for percent in PERCENTILES:
        exact = sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]
        assert exact <= found.percentile(percent) <= exact + exact // 64
    assert (found.count, found.max_us, found.mean_us) == (len(values), max(values), sum(values) / len(values))
    assert sum(count for _, count in found.by_power_of_two()) == len(values)


def test_no_values_and_a_clock_that_steps_back():
    found = Latencies()
    assert (found.percentile(99), found.mean_us, list(found.by_power_of_two())) == (0, 0.0, [])
    assert list(found.lines('x')) == ['x: 0 values, mean 0.000 ms, max 0.000 ms']
    found.add(-5)
    assert (found.count, found.max_us) == (1, 0)


def test_the_picture_has_a_row_for_each_power_of_two():
    found = Latencies()
    for value in [300] * 4 + [3000]:
        found.add(value)
    assert list(found.lines('polls'))[2:] == [
        '  <       0.512 ms           4 ' + '#' * 40, '  <       1.024 ms           0',
        '  <       2.048 ms           0',
        '  <       4.096 ms           1 ' + '#' * 10]


@pytest.mark.parametrize(('value', 'bucket'), [(0, 0), (127, 127), (128, 128), (129, 128), (255, 191), (256, 192)])
def test_the_first_buckets(value, bucket):
    assert bucket_of(value) == bucket

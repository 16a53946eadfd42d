"""A soak with a share runs a part of each test, and omits no test function."""
from argparse import ArgumentTypeError

import pytest
from support.runner.soak_share import left_out, sample, share_of, soak_share_of_text

CASES = ['crash.py::test_cut[a]', 'crash.py::test_cut[b]', 'crash.py::test_cut[c]', 'crash.py::test_cut[d]',
         'crash.py::test_kill', 'late.py::test_cut[a]']


def test_a_share_of_a_count_is_at_least_what_a_test_needs_and_at_most_the_count():
    assert share_of(500, 0.1) == 50
    assert share_of(500, 0.01, 25) == 25
    assert share_of(3, 0.01) == 1
    assert share_of(10, 0.01, 25) == 10


@pytest.mark.parametrize('share', [0.01, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize('seed', [0, 1, 7, 1000])
def test_a_sample_has_as_many_values_as_the_share_in_their_order(share, seed):
    values = list(range(69))
    found = sample(values, share, seed)
    assert found == sorted(set(found))
    assert len(found) == share_of(len(values), share)


def test_the_whole_share_leaves_nothing_out():
    assert sample('abcd', 1, 3) == list('abcd')
    assert left_out(CASES, 1, 3) == set()


def test_a_small_share_keeps_one_case_of_each_function_and_the_seed_chooses_it():
    kept = [set(CASES) - left_out(CASES, 0.01, seed) for seed in range(4)]
    assert kept[1] == {'crash.py::test_cut[b]', 'crash.py::test_kill', 'late.py::test_cut[a]'}
    assert set.union(*kept) == set(CASES)


@pytest.mark.parametrize('text', ['0', '-0.1', '1.5', 'nan', 'half'])
def test_a_share_that_is_none_is_refused(text):
    with pytest.raises(ArgumentTypeError, match=f'found {text}, expected a number above 0'):
        soak_share_of_text(text)

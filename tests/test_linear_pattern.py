"""Patterns from clients match as in Python's backtracking `re`, but in linear time."""
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.linear_pattern import LinearPattern, PatternError

ATOMS = st.sampled_from(['a', 'b', '.', '[ab]', '[^a]', r'\d', r'\W', '^', '$', '-', '[a-c-]', '[]x]', r'\.', '1'])


def repeated(pattern):
    return st.builds('(?:{}){}'.format, pattern, st.sampled_from(['*', '+', '?', '{2}', '{0,2}', '{1,}', '*?']))


PATTERNS = st.recursive(ATOMS, lambda inner: st.one_of(
    repeated(inner), st.lists(inner, max_size=3).map(''.join), st.lists(inner, min_size=2, max_size=3).map('|'.join),
    inner.map('({})'.format), inner.map('(?P<name>{})'.format)), max_leaves=8)


@given(PATTERNS, st.lists(st.text('ab1-.c]x', max_size=6), min_size=3, max_size=3))
def test_a_text_matches_as_it_does_in_python(pattern, texts):
    try:
        expected = re.compile(pattern.replace('$', r'\Z'), re.ASCII)
    except re.error:
        return                                               # a duplicate group name
    linear = LinearPattern(pattern)
    assert [linear.matches(text) for text in texts] == [expected.fullmatch(text) is not None for text in texts]


@pytest.mark.parametrize(('pattern', 'matching', 'other'), [
    ('tx-[12]', 'tx-1', 'tx-3'),
    ('orders-.*', 'orders-', 'order-1'),
    (r'\w+\.v\d{1,3}', 'app.v12', 'app.v1234'),
    ('a{,2}', 'a{,2}', 'aa'),
    (r'\x41\t', 'A\t', 'A'),
    ('', '', 'a'),
    ('a||b', '', 'c'),
    ('[a\\]^-]+', ']a^-', 'b'),
    (r'[^\d]', 'x', '5'),
    ('^tx$', 'tx', 'tx1'),
    ('.', 'é', '\n'),
])
def test_what_a_pattern_matches(pattern, matching, other):
    assert LinearPattern(pattern).matches(matching)
    assert not LinearPattern(pattern).matches(other)


@pytest.mark.parametrize('pattern', [
    '(', ')', 'a)', '(a', '[', '[a', '[z-a]', '*a', 'a**', '\\', r'\q', r'\xzz', r'\x4', '(?i)a', '(?=a)', '(?P<>a)',
    '[[:alpha:]]', 'a{1001}', 'a{3,2}', '(?P<a', '(' * 101 + ')' * 101, r'\1', '(a{1000}){1000}', '((){1000}){1000}',
    '[a-'])
def test_a_pattern_that_is_not_valid_or_too_large_is_refused(pattern):
    with pytest.raises(PatternError):
        LinearPattern(pattern)


@pytest.mark.parametrize('pattern', ['(a+)+b', '(a|a)*b', '(a*)*b', '(.*)*(.*)*(.*)*b', 'a?' * 50 + 'a' * 50 + 'b'])
def test_a_hostile_pattern_ends(pattern):
    assert not LinearPattern(pattern).matches('a' * 300)

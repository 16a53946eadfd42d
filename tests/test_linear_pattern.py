"""Patterns from clients match as in RE2, and as in Python's backtracking `re` where both agree, but in linear time."""
import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kbroker.base.linear_pattern import MAX_LENGTH, MAX_REMEMBERED, LinearPattern, PatternError

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
    if pattern.count('(?<n>') > 1:
        return                                               # refused, as by RE2/J
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
    ('(?i)Orders', 'oRDERS', 'order'),
    ('(?i:o)rders', 'Orders', 'ORDERS'),
    ('(?i)a(?-i)b|c', 'Ab', 'AB'),
    ('(?i)k', '\u212a', 'j'),
    ('((?i)a)b', 'Ab', 'AB'),
    ('(?i)[^a-c]', 'D', 'B'),
    ('(?s).', '\n', ''),
    ('(?m)a$\n^b', 'a\nb', 'ab'),
    ('(?U)a+', 'aa', ''),
    (r'\Aa.*\z', 'ab', 'ba'),
    (r'.*\bb.*', 'a-b', 'ab'),
    (r'a\Bb.*', 'abc', 'a-b'),
    (r'\Qa.b\E+', 'a.bb', 'axb'),
    (r'\Qa.b', 'a.b', 'axb'),
    (r'\x{e9}\07', 'é\a', 'e'),
    ('[[:alpha:]_]+', 'a_B', 'a1'),
    ('[[:^digit:]]', 'a', '1'),
    (r'\pL+\p{Nd}', 'éa1', 'é'),
    (r'[\PL]', '1', 'a'),
    (r'\p{^Lu}', 'a', 'A'),
    ('(?P<a>x)(?<b>y)', 'xy', 'x'),
    ('a{01}', 'a{01}', 'a'),
    ('a{', 'a{', 'a'),
    ('[[:a]', ':', 'b'),
])
def test_what_a_pattern_matches(pattern, matching, other):
    assert LinearPattern(pattern).matches(matching)
    assert not LinearPattern(pattern).matches(other)


@pytest.mark.parametrize('pattern', [
    '(', ')', 'a)', '(a', '[', '[a', '[z-a]', '*a', 'a**', '\\', r'\q', r'\xzz', r'\x4', '(?=a)', '(?P<>a)',
    '[[:letter:]]', 'a{1001}', 'a{3,2}', '(?P<a', '(' * 101 + ')' * 101, r'\1', '(a{1000}){1000}', '((){1000}){1000}',
    '[a-', '(?i', '(?-)a', '(?x)a', 'a{2}{3}', '{2}', 'a**', 'a*{2}', r'\p{Latin}', r'\pX', r'\p', r'\C', r'\Z',
    r'\8', r'\x{110000}', '(?P<a>x)(?P<a>y)', '[a-\\d]', 'a{99999999999}', 'a' * (MAX_LENGTH + 1)])
def test_a_pattern_that_is_not_valid_or_too_large_is_refused(pattern):
    with pytest.raises(PatternError):
        LinearPattern(pattern)


@pytest.mark.parametrize('pattern', ['(a+)+b', '(a|a)*b', '(a*)*b', '(.*)*(.*)*(.*)*b', 'a?' * 50 + 'a' * 50 + 'b'])
def test_a_hostile_pattern_ends(pattern):
    assert not LinearPattern(pattern).matches('a' * 300)


RE2_ATOMS = st.sampled_from([
    'a', 'b', 'B', '.', '[ab]', '[^a]', r'\d', r'\W', '^', '$', '-', '[a-c-]', '[]x]', r'\.', '1', r'\b', r'\B', r'\A',
    r'\z', '[[:alpha:]]', r'[^[:digit:]\s]', r'\Qa.\E', r'\x61', r'\x{62}', r'\141', r'\pL', r'\P{Lu}', r'[\pN_]',
    '(?i)', '(?-i)', '(?s)', '(?m)', '\n', '{', '{2}', '*', '(?i:b)', r'\8', '[b-a]', '(?<n>a)', ']', ')'])
RE2_PATTERNS = st.recursive(RE2_ATOMS, lambda inner: st.one_of(
    repeated(inner), st.lists(inner, max_size=3).map(''.join), st.lists(inner, min_size=2, max_size=3).map('|'.join),
    inner.map('({})'.format), inner.map('(?i:{})'.format)), max_leaves=8)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=300)
@given(RE2_PATTERNS, st.lists(st.text('abAB1-.\n{2} é', max_size=6), min_size=3, max_size=3))
@example('(a{2}){3}', ['aaaaaa', 'a', ''])
@example('(?i)[^b]', ['B', 'a', ''])
def test_a_text_matches_as_it_does_in_re2(pattern, texts):
    import re2
    options = re2.Options()
    options.log_errors = False
    try:
        expected = re2.compile(pattern, options)
    except re2.error:
        with pytest.raises(PatternError):
            LinearPattern(pattern)
        return
    if pattern.count('(?<n>') > 1:
        return                                               # refused, as by RE2/J
    linear = LinearPattern(pattern)
    assert [linear.matches(text) for text in texts] == [expected.fullmatch(text) is not None for text in texts]


def test_the_memory_for_sets_of_states_is_bounded():
    """Each text of these letters leads to a different set of states."""
    linear = LinearPattern('(a|b)*a(a|b){300}x')
    for number in range(200):
        linear.matches(f'{number * 7919:0200b}'.replace('0', 'a').replace('1', 'b'))
        assert linear.remembered <= MAX_REMEMBERED + 1000


def test_a_remembered_set_gives_the_same_answer():
    linear = LinearPattern('a(b|c)+')
    assert [linear.matches(text) for text in ['abc', 'ab', 'a', 'abc', 'abd', 'acb']] == [
        True, True, False, True, False, True]

"""Java's properties syntax."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.settings.properties import read_properties


@pytest.mark.parametrize(('text', 'expected'), [
    ('a=1\nb:2\nc 3\n', {'a': '1', 'b': '2', 'c': '3'}),
    ('  a =  1 \n\tb\t:\t2', {'a': '1 ', 'b': '2'}),
    ('# a=1\n ! b=2\n\n   \nc=#3', {'c': '#3'}),
    ('a=one, \\\n    two\nb=3', {'a': 'one, two', 'b': '3'}),
    ('a=ends in a backslash\\\\\nb=2', {'a': 'ends in a backslash\\', 'b': '2'}),
    ('a=1\\\n# no comment\nb=2', {'a': '1# no comment', 'b': '2'}),
    ('a\\ b\\=c=1', {'a b=c': '1'}),
    ('a=\\u00e9\\t\\n\\x', {'a': 'é\t\nx'}),
    ('a=\\ud83d\\ude00', {'a': '\N{GRINNING FACE}'}),
    ('a', {'a': ''}),
    ('a=', {'a': ''}),
    ('a==b', {'a': '=b'}),
    ('a=1\r\nb=2\rc=3', {'a': '1', 'b': '2', 'c': '3'}),
    ('a=1\\', {'a': '1'}),
])
def test_a_file_is_read_as_java_reads_it(text, expected):
    assert read_properties(text) == (expected, [])


def test_the_last_of_two_values_holds_with_a_warning():
    found, warnings = read_properties('a=1\nb=2\na=3\n')
    assert found == {'a': '3', 'b': '2'}
    assert warnings == ['line 3: a is given again; the last value holds']


@pytest.mark.parametrize('text', ['a=\\u12', 'a=\\uzzzz', '\n\na=\\ud83d'])
def test_a_broken_escape_names_its_line(text):
    with pytest.raises(ValueError, match=rf'^line {text.count(chr(10)) + 1}: '):
        read_properties(text)


def escaped(text: str) -> str:
    return ''.join(f'\\u{unit:04x}' for unit in memoryview(text.encode('utf-16-le')).cast('H'))


@given(st.dictionaries(st.text(), st.text()))
def test_whatever_is_escaped_comes_back(settings):
    assert read_properties(''.join(f'{escaped(k)}={escaped(v)}\n' for k, v in settings.items())) == (settings, [])

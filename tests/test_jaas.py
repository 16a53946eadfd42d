"""The parser of `sasl.jaas.config` reads valid values and refuses others. No error shows a part of the value."""
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.settings.jaas import FLAGS, JaasError, parse_jaas

MODULE = 'org.apache.kafka.common.security.plain.PlainLoginModule'


def options_of(text):
    return parse_jaas(f'{MODULE} required {text};').options


def complaint(text):
    with pytest.raises(JaasError) as caught:
        parse_jaas(text)
    assert 'horse' not in str(caught.value) and '\n' not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(('text', 'options'), [
    ('', {}),
    ('user_alice="alice-secret" user_bob="x"', {'user_alice': 'alice-secret', 'user_bob': 'x'}),
    ('a = "1"  b\t=\n\'2\'', {'a': '1', 'b': '2'}),
    ('a=b-c.d_e$f', {'a': 'b-c.d_e$f'}),
    ('a=b1', {'a': 'b1'}),
    ('ä=ö', {'ä': 'ö'}),
    ('"user_a@b"="pw"', {'user_a@b': 'pw'}),
    ('a=""', {'a': ''}),
    ('a="#;//"', {'a': '#;//'}),
    ('a="1" a="2"', {'a': '2'}),
    ('a="1" // b="2"\nc="3"', {'a': '1', 'c': '3'}),
    ('a="1" / b="2"\nc="3"', {'a': '1', 'c': '3'}),
    ('a="1" /* b="2"\n*/ c="3"', {'a': '1', 'c': '3'}),
    (r'a="\n\t\b\f\r\a\v\"\\\q"', {'a': '\n\t\b\f\r\a\v"\\q'}),
    (r'a="\012\7\1234\477"', {'a': '\n\x07S4\'7'}),
    ("a='\"'", {'a': '"'}),
])
def test_options_are_read_as_java_reads_them(text, options):
    assert options_of(text) == options


@pytest.mark.parametrize('flag', [*FLAGS, 'Required', 'OPTIONAL'])
def test_a_flag_may_have_any_case(flag):
    module = parse_jaas(f'a.b.C {flag} ;')
    assert (module.name, module.short_name, module.flag) == ('a.b.C', 'C', flag.lower())


@pytest.mark.parametrize(('text', 'words'), [
    ('', 'found the end at character 1, expected the class name'),
    ('horse', 'found the end at character 6, expected one of required'),
    ('horse battery;', 'found another word at character 7, expected one of required'),
    ('a required', 'found the end at character 11, expected option 1 as KEY=VALUE'),
    ('a required horse;', 'found ; at character 17, expected = after the key of option 1'),
    ('a required b=;', 'found ; at character 14, expected the value of option 1'),
    ('a required b=1horse;', 'found a number at character 14, expected the value of option 1, in quotes'),
    ('a required b=-horse;', 'found a character outside quotes at character 14'),
    ('a required b=.5;', 'found a number at character 14'),
    ('a required b=c d="horse', 'found the end within the quotes that open at character 18, expected "'),
    ('a required b="horse\n";', 'found the line end within the quotes that open at character 14'),
    ('a required b="horse\\', 'found the end within the quotes'),
    ('a required b=horse battery;', 'found ; at character 27, expected = after the key of option 2'),
    ('a required b=c#;', 'found a character outside quotes at character 15'),
    ('a required; b required;', 'found a word at character 13, expected the end: one login module only'),
    ('a required b="c" // ;', 'found the end'),
    ('a required b="c" /* ;', 'found the end'),
    ('123 required;', 'found a number at character 1'),
])
def test_a_mistake_is_named_by_its_position(text, words):
    assert words in complaint(text)


def test_the_text_of_a_module_shows_no_value():
    assert 'horse' not in repr(parse_jaas('a required b=horse;'))


@given(st.text(max_size=40) | st.text(alphabet='ab1-./*"\'\\;= \n\t#', max_size=30))
def test_any_text_is_a_module_or_an_error(text):
    for whole in (text, f'a required {text};', f'a required b="{text}";'):
        with contextlib.suppress(JaasError):
            parse_jaas(whole)


@settings(max_examples=200)
@given(st.dictionaries(st.text(st.characters(exclude_categories=['Cs']), min_size=1),
                       st.text(st.characters(exclude_categories=['Cs']))))
def test_every_value_can_be_written(options):
    def quoted(text):
        escaped = text.replace('\\', '\\\\').replace('"', '\\"').replace('\n', '\\n').replace('\r', '\\r')
        return f'"{escaped}"'
    assert options_of(' '.join(f'{quoted(key)}={quoted(value)}' for key, value in options.items())) == options

"""A text that a client sends cannot break a log line in two, and the line shows each character of the text."""
import json
import logging
import sys

import pytest

from kbroker.base.errors import KafkaError
from kbroker.daemon.logs import HumanFormatter, JournalFormatter, JsonFormatter
from kbroker.security.escape import MOST_OF_A_LINE, MOST_SHOWN, escaped, json_line, shown

FORGED = 'app\n2026-01-01 00:00:00.000 kbroker: ready on 0.0.0.0:9092'
HOSTILE = {
    'line feed': 'a\nb', 'carriage return': 'a\rb', 'NUL': 'a\0b', 'escape sequence': 'a\x1b[2Jb', 'delete': 'a\x7fb',
    'C1 control': 'a\x9bb', 'right-to-left override': 'a\u202eb', 'isolate': 'a\u2067b', 'Arabic mark': 'a\u061cb',
    'line separator': 'a\u2028b', 'paragraph separator': 'a\u2029b', 'next line': 'a\x85b', 'zero width': 'a\u200bb',
    'byte order mark': 'a\ufeffb', 'tag': 'a\U000e0041b', 'surrogate': 'a\ud800b', 'no-break space': 'a\u00a0b'}


@pytest.mark.parametrize('text', HOSTILE.values(), ids=HOSTILE)
def test_what_is_not_visible_is_escaped(text):
    assert escaped(text).isprintable()
    assert escaped(text).startswith('a\\')
    line = json_line({'client_id': text})
    assert line.isprintable()
    assert json.loads(line) == {'client_id': text}


@pytest.mark.parametrize('text', ['', 'app-1', 'Zürich ÄÖ', '注文', 'it\'s "quoted"', 'C:\\temp'])
def test_what_is_visible_stays(text):
    assert escaped(text) == shown(text) == text


def test_a_long_name_is_cut_and_says_how_long_it_was():
    text = shown('x' * 32767)
    assert text == 'x' * MOST_SHOWN + f'... ({32767 - MOST_SHOWN} more characters)'
    assert shown(None) == 'none'


def record_of(message, *arguments, error=None):
    found = None
    if error is not None:
        try:
            raise error
        except type(error):
            found = sys.exc_info()
    return logging.LogRecord('kbroker.apis', logging.WARNING, __file__, 1, message, arguments, found)


@pytest.mark.parametrize('formatter', [HumanFormatter(), JournalFormatter(), JsonFormatter()], ids=type)
@pytest.mark.parametrize('text', [FORGED, *HOSTILE.values()], ids=['forged', *HOSTILE])
def test_a_message_is_one_line(formatter, text):
    line = formatter.format(record_of('request of %s failed', text))
    assert line.isprintable()


@pytest.mark.parametrize('formatter', [HumanFormatter(), JournalFormatter()], ids=type)
def test_no_line_of_an_exception_looks_like_a_line_of_the_broker(formatter):
    lines = formatter.format(record_of('failed', error=KafkaError(42, FORGED))).split('\n')
    assert all(line.removeprefix('<4>').startswith('  ') for line in lines[1:])
    assert all(line.isprintable() for line in lines)
    assert 'ready on' in lines[-1]


@pytest.mark.parametrize('formatter', [HumanFormatter(), JournalFormatter(), JsonFormatter()], ids=type)
def test_a_message_has_a_bound(formatter):
    assert len(formatter.format(record_of('%s', 'x' * 1_000_000))) < MOST_OF_A_LINE + 500

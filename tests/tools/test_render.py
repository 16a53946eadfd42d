"""Rendering of results: tab-separated in a pipe, JSON rows on request, and words on a terminal."""
import io
import json
import re

import pytest

from kbroker_tools.base.render import Column, Output, words_for_age, words_for_time

COLUMNS = [Column('topic', 'Topic'), Column('first_offset', 'FirstOffset', 'right')]


def shown(rows, **options):
    stream = io.StringIO()
    Output(stream=stream, **options).table(COLUMNS, rows)
    return stream.getvalue()


def test_a_piped_table_is_that_of_kafkas_tools_with_a_tab_after_every_column():
    assert shown([('orders', 7), ('t', None)]).splitlines() == [
        'Topic \tFirstOffset\t',
        'orders\t7          \t',
        't     \tNone       \t']


def test_json_rows_keep_types():
    lines = shown([('orders', 7), ('t', None)], as_json=True).splitlines()
    assert [json.loads(line) for line in lines] == [{'topic': 'orders', 'first_offset': 7},
                                                    {'topic': 't', 'first_offset': None}]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def on_terminal(monkeypatch):
    """Return a function that shows results on a terminal of a given width, and returns the printed text without style
    sequences."""
    def shown_on(columns, show):
        monkeypatch.setenv('COLUMNS', str(columns))
        terminal = Terminal()
        show(Output(stream=terminal))
        return re.sub(r'\x1b\[[0-9;]*m', '', terminal.getvalue()).splitlines()
    return shown_on


def test_a_table_breaks_its_titles_and_then_itself_before_a_number(on_terminal):
    columns = [Column('start_timestamp_ms', 'CurrentTransactionStartTimeMs'), Column('id', 'Id')]

    def lines(width):
        shown = on_terminal(width, lambda output: output.table(columns, [(1795192879448, 'x' * 40), (7, None)]))
        return [line.rstrip() for line in shown]

    assert lines(80)[0] == 'CurrentTransactionStartTimeMs   Id'
    assert [line.split()[0] for line in lines(50)[:3]] == ['Current', 'Transaction', 'Start']
    assert lines(50)[-3:] == ['1795192879448   ' + 'x' * 34, '                ' + 'x' * 6, '7               -']
    assert lines(36) == ['CurrentTransactionStartTimeMs  1795192879448', 'Id' + ' ' * 29 + 'x' * 40, '',
                         'CurrentTransactionStartTimeMs  7', 'Id' + ' ' * 29 + '-']


EVIL = 'a\x1b]0;b\x07\r\x9b2J\u202e[bold]:+1:'
TAMED = r'a\x1b]0;b\x07\r\x9b2J\u202e[bold]:+1:'


@pytest.mark.parametrize('show', [
    lambda output: output.line(EVIL), lambda output: output.line(EVIL, 'bold'),
    lambda output: output.labelled('id ', EVIL), lambda output: output.table([Column('id', 'Id')], [(EVIL,)])])
def test_a_terminal_is_not_sent_what_it_would_obey(on_terminal, show):
    assert TAMED in on_terminal(80, show)[-1]


def test_json_has_no_character_that_a_terminal_obeys_and_says_the_same():
    text = shown([(EVIL, 7)], as_json=True)
    assert text[:-1].isprintable() and json.loads(text)['topic'] == EVIL


NOT_UTF8 = 'a\udcffb\ud83d'


@pytest.mark.parametrize('show', [
    lambda output: output.line(EVIL + '\n' + NOT_UTF8),
    lambda output: output.table(COLUMNS, [(EVIL + '\n' + NOT_UTF8, 7)]),
    lambda output: output.labelled('id ', EVIL + NOT_UTF8)])
def test_a_line_for_a_pipe_is_one_line_that_a_terminal_may_show(show):
    """A line feed in a name must not begin a line, neither for the next command of a pipe nor for a reader of a
    file."""
    stream = io.StringIO()
    show(Output(stream=stream))
    *_, last = stream.getvalue().splitlines()
    assert TAMED in last and 'a\ufffdb\ufffd' in last
    assert stream.getvalue().replace('\t', '').replace('\n', '').isprintable()


def test_json_is_valid_utf8_whatever_a_name_consists_of():
    text = shown([(NOT_UTF8, 7)], as_json=True)
    assert json.loads(text.encode())['topic'] == 'a\ufffdb\ufffd'


def test_a_pipe_gets_names_as_they_are_on_request(monkeypatch):
    monkeypatch.setattr(Output, 'is_raw', True)
    assert EVIL + NOT_UTF8 in shown([(EVIL + NOT_UTF8, 7)])


def test_times_in_words():
    assert words_for_time(1_700_000_000_005) == '2023-11-14 22:13:20.005Z'
    assert words_for_time(1 << 62) == f'{1 << 62} ms since 1970'


@pytest.mark.parametrize(('timestamp_ms', 'words'), [
    (-1, 'no timestamp'), (-2, '1969-12-31 23:59:59.998Z'), (-62_135_596_800_000, '0001-01-01 00:00:00.000Z'),
    (-62_135_596_800_001, '-62135596800001 ms since 1970'), (253_402_300_799_999, '9999-12-31 23:59:59.999Z'),
    (253_402_300_800_000, '253402300800000 ms since 1970'), (2**63 - 1, f'{2**63 - 1} ms since 1970'),
    (-2**63, f'{-2**63} ms since 1970')])
def test_times_out_of_the_calendar_stay_numbers(timestamp_ms, words):
    assert words_for_time(timestamp_ms) == words


@pytest.mark.parametrize(('since_ms', 'words'), [
    (40, 'for 60 ms'), (-1, 'without a timestamp'), (160, 'dated 60 ms ahead'), (-2**63, 'for 106751991167 d 7 h')])
def test_an_age_is_never_negative(since_ms, words):
    assert words_for_age(100, since_ms) == words

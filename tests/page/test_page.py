import html.parser
import re

import pytest

from kbroker.page.facts import (
    Certificate,
    Disk,
    GroupLag,
    HeldPartition,
    Offline,
    OpenTransaction,
    PageFacts,
    Series,
)
from kbroker.page.markup import Markup, element, joined, visible
from kbroker.page.render import FILES, HEADERS, as_argument, command_line, file_of_page, page, text_page
from kbroker.page.tables import ROWS_OF_A_PAGE

NOW_MS = 1_795_845_000_000
HOSTILE = ['<script>alert(1)</script>', '"\' onmouseover=alert(1) x="', '\u202egnihton', 'a\x1b[31m\nb', '\u2066x',
           '&lt;b&gt;', '--help', '\u0000', '日本語', "</bdi></a><img src=x onerror=alert(1)>"]
SAFE_TAGS = {'a', 'bdi', 'body', 'button', 'caption', 'code', 'dd', 'div', 'dl', 'dt', 'figcaption', 'figure', 'footer',
             'form', 'h1', 'h2', 'head', 'header', 'html', 'input', 'label', 'li', 'link', 'main',
             'meta', 'nav', 'p', 'polygon', 'polyline', 'pre', 'script', 'small', 'span', 'strong',
             'svg', 'table', 'tbody', 'td', 'th', 'thead', 'time', 'title', 'tr', 'ul'}
VOID = {'input', 'link', 'meta'}


class Reader(html.parser.HTMLParser):
    """Reads a page: its elements, which have to be nested, and its text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.links = [], [], '', []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == 'a':
            self.links.append(dict(attributes)['href'])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def facts_of(names, count=None, **more):
    """Return facts with a transaction, a held partition and a group for each name."""
    count = count or len(names)
    named = [names[number % len(names)] for number in range(count)]
    return PageFacts(
        'localhost:9092', 'kbroker 1.0', 'eJYaUUa5Sp6Z', NOW_MS, NOW_MS - 60_000,
        [OpenTransaction(name, 'Ongoing', number, NOW_MS - number * 1000, NOW_MS + 1000, ((name, 0), (name, 1)), 9, 5)
         for number, name in enumerate(named)],
        [HeldPartition(name, number, 10, 10 + number, name if number % 2 else None, NOW_MS)
         for number, name in enumerate(named)],
        [GroupLag(name, 'consumer', 'Stable', 1, 2, number, number) for number, name in enumerate(named)],
        **{'has_pages_of_commands': True} | more)


def read(facts, **query):
    return Reader(b''.join(part for part in page(facts, query) if part is not None).decode())


@pytest.mark.parametrize('has_pages', [True, False])
def test_hostile_names_make_no_element_and_stay_visible(has_pages):
    found = read(facts_of(HOSTILE, has_pages_of_commands=has_pages, problems=HOSTILE,
                          offline=[Offline(name, 0, name) for name in HOSTILE], offline_count=99,
                          disks=[Disk(name, 1, 100, name) for name in HOSTILE],
                          certificates=[Certificate('SSL', name, NOW_MS) for name in HOSTILE]))
    assert {tag for tag, _ in found.tags} <= SAFE_TAGS
    assert [attributes for tag, attributes in found.tags if tag == 'script'] == [{'src': 'page.js', 'defer': None}]
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith('on')]
    assert '<script>alert(1)</script>' in found.text
    assert not re.search('[\x00-\x09\x0b-\x1f\u202e\u2066]', found.text)
    assert '\\u{202e}gnihton' in found.text


def test_a_query_is_as_harmless_as_a_name():
    for name in HOSTILE:
        found = read(facts_of(['x'], 200), q=name, ts=name, tp=name, **{name: name})
        assert {tag for tag, _ in found.tags} <= SAFE_TAGS


def test_every_row_is_on_one_page_of_its_table():
    names = [f'app-{number:05}' for number in range(3 * ROWS_OF_A_PAGE + 1)]
    facts = facts_of(names)
    seen = []
    for number in range(1, 5):
        found = read(facts, gp=str(number), gs='group')
        table = found.text.partition('Lags of groups')[2]
        seen += re.findall(r'app-\d{5}', table)
    assert seen == names


@pytest.mark.parametrize('wanted', ['0', '-1', '99999', 'x', '9' * 50, '²'])
def test_a_page_that_is_none_shows_an_existing_one(wanted):
    assert 'app' in read(facts_of(['app'], 120), tp=wanted).text


def test_the_filter_looks_at_all_names_of_a_row():
    facts = facts_of(['payments-app', 'orders-app'])
    text = read(facts, q='PAY').text
    assert 'payments-app' in text
    assert 'orders-app' not in text
    assert 'no name contains the filter' in read(facts, q='nothing').text


def test_the_oldest_transaction_is_the_first_and_a_heading_turns_the_order():
    facts = facts_of(['young', 'elder'])
    first = re.compile('young|elder')
    assert first.search(read(facts).text.partition('Open transactions')[2])[0] == 'elder'
    assert first.search(read(facts, ts='open for').text.partition('Open transactions')[2])[0] == 'young'
    sorts = [attributes['aria-sort'] for _, attributes in read(facts).tags if 'aria-sort' in attributes]
    assert sorts == ['descending'] * 3


def test_ten_thousand_rows_are_rendered_in_short_parts_and_one_page_of_them_is_sent():
    parts = list(page(facts_of([f'app-{number}' for number in range(10_000)]), {'q': 'app', 'tp': '200'}))
    assert parts.count(None) > 100
    assert max(len(part) for part in parts if part is not None) < 20_000
    assert sum(len(part) for part in parts if part is not None) < 200_000


def test_an_empty_cluster_says_that_nothing_is_open():
    text = read(PageFacts('localhost:9092', 'kbroker 1.0', 'id', NOW_MS)).text
    for expected in 'No transaction is open.', 'Every partition is readable to its end.', 'No group has committed':
        assert expected in text


def test_the_tiles_warn_of_what_needs_somebody():
    facts = facts_of(['x'], disks=[Disk('/data', 5, 100)], certificates=[Certificate('SSL', 'CN=x', NOW_MS - 1000)],
                     offline=[Offline('t', 1, 'damaged')], offline_count=30)
    found = read(facts)
    classes = [attributes.get('class') for tag, attributes in found.tags if tag == 'dd']
    assert classes[-4:] == ['bad', 'bad', 'more', 'bad']
    assert 'and 29 more' in found.text
    assert '1.0 s ago' in found.text


def test_a_sparkline_says_its_values_in_words():
    found = read(PageFacts('x', 'kbroker', 'id', NOW_MS, series=[Series('bytes in', 'bytes', [0, 1024, 512], 10)]))
    [label] = [attributes['aria-label'] for tag, attributes in found.tags if tag == 'svg']
    assert label == 'bytes in: 512 B/s now, peak 1.0 KiB/s'
    assert read(PageFacts('x', 'kbroker', 'id', NOW_MS, series=[Series('bytes in', 'bytes', [], 10)])).tags


def test_a_single_value_is_a_level_line_and_a_small_rate_has_a_decimal():
    found = read(PageFacts('x', 'kbroker', 'id', NOW_MS, series=[Series('records in', 'records', [0.3], 10)]))
    assert [attributes['points'] for tag, attributes in found.tags if tag == 'polyline'] == ['0.0,2.0 200.0,2.0']
    assert '0.3 /s' in found.text


def test_a_command_to_copy_reaches_the_same_cluster_and_is_quoted():
    facts = PageFacts('x', 'kbroker', 'id', NOW_MS, place_options=('--data-dir', '/my data'))
    command = ('kbroker-transactions', 'history', *as_argument('a;b'))
    assert command_line(facts, command) == "kbroker-transactions history --data-dir '/my data' 'a;b'"
    command = ('kbroker-transactions', 'why-stuck', *as_argument('--help:0'))
    assert command_line(facts, command) == "kbroker-transactions why-stuck --data-dir '/my data' -- --help:0"


def test_the_output_of_a_command_keeps_its_lines_and_is_escaped():
    text = '<b>stuck</b>\nsince\x1b \u202e'
    page = text_page(PageFacts('x', 'kbroker', 'id', NOW_MS), '<i>', ('p', 's'), text).decode()
    found = Reader(page)
    assert '<b>stuck</b>\nsince\\u{1b} \\u{202e}' in found.text
    assert 'refreshes' not in page


def test_the_files_of_the_page_are_small_and_nothing_else_is_allowed():
    assert all(len(file_of_page(path)) < 10_000 for path in FILES)
    policy = dict(HEADERS)['content-security-policy']
    assert "default-src 'none'" in policy
    assert 'unsafe' not in policy
    assert b'style=' not in b''.join(part or b'' for part in page(facts_of(['x']), {}))


def test_elements_escape_their_children_and_attributes():
    assert element('p', '<b>', element('i', 'x'), title='"') == '<p title="&quot;">&lt;b&gt;<i>x</i></p>'
    assert joined('a', None, Markup('<br>')) == 'a<br>'
    assert visible('a\tb') == 'a\\u{9}b'

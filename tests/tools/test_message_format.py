"""--format and --filter of kbroker-consume: fields, expressions on fields, and bytes that are not UTF-8."""
import pytest
from support.runner.command_runner import run_command

from kbroker.client import Producer
from kbroker.client.consumed import DeliveredRecords
from kbroker.record.records import Record
from kbroker_tools.base.command import ToolError
from kbroker_tools.console.message_text import make_formatter
from kbroker_tools.console.record_filter import filter_of

WHEN_MS = 1_700_000_000_000
NOT_UTF8 = b'\xff\xfe'
ODD_NAME = NOT_UTF8.decode('utf-8', 'surrogateescape')


def shown(template, key=b'k', value=b'val', headers=(('a', b'1'), ('b', None)), **properties):
    batch = DeliveredRecords('t', 2, [Record(7, WHEN_MS, key, value, headers)])
    return make_formatter('default', properties, False, template).text(batch, batch.records[0])


@pytest.mark.parametrize(('template', 'text'), [
    (r'%t/%p@%o %T %k=%s\n', b't/2@7 1700000000000 k=val\n'),
    ('%K %S', b'1 3'),
    ('%h', b'a=1,b=null'),
    (r'100%%\t\\\x00\0\xe9', b'100%\t\\\0\0\xe9'),
    ('é', 'é'.encode()),
])
def test_a_format_has_the_letters_of_kcat_and_adds_nothing(template, text):
    assert shown(template) == text


def test_a_null_has_the_length_minus_one_and_the_text_that_the_property_says():
    assert shown('%K%k %S%s', key=None, value=None) == b'-1null -1null'
    assert shown('[%k]', key=None, **{'null.literal': ''}) == b'[]'


def test_bytes_that_are_not_utf8_are_written_as_they_are():
    assert shown('%k %s %h', NOT_UTF8, NOT_UTF8, [(ODD_NAME, NOT_UTF8)]) == (
        NOT_UTF8 + b' ' + NOT_UTF8 + b' ' + NOT_UTF8 + b'=' + NOT_UTF8)


@pytest.mark.parametrize(('template', 'message'), [
    ('%v', '--format: found %v, expected one of %t'), ('%', '--format: found %, expected one of %t'),
    (r'\q', r'--format: found \q, expected one of \n')])
def test_a_letter_that_does_not_exist_is_refused_with_those_that_do(template, message):
    with pytest.raises(ToolError) as raised:
        shown(template)
    assert message in str(raised.value)


@pytest.mark.parametrize(('texts', 'passes'), [
    (['key=^ord'], True), (['key=^rd'], False), (['key=er$'], True), (['key=^(a|order)$'], True),
    (['value=x'], False), (['value!=x'], True), (['value=(?is)HELLO.world'], True),
    (['header.trace=^7'], True), (['header.trace=8'], True), (['header.none=.*'], False), (['header.none!=.*'], True),
    (['header.null='], False), (['key=order', 'value=nothing'], False), (['key=order', 'value=hello'], True),
    ([f'header.{ODD_NAME}=.'], True),
])
def test_a_filter_passes_records_with_a_match_in_the_field(texts, passes):
    headers = [('trace', b'7'), ('trace', b'8'), ('null', None), (ODD_NAME, NOT_UTF8)]
    assert filter_of(texts)(Record(0, 0, b'order', b'hello\nworld' + NOT_UTF8, headers)) is passes
    assert filter_of([]) is None


@pytest.mark.parametrize(('text', 'message'), [
    ('topic=x', "--filter: found 'topic=x', expected key=REGEX"), ('key', "--filter: found 'key', expected key=REGEX"),
    ('key=a)(b', '--filter: found an unmatched )'), ('key=(x{1000}){1000}', '--filter: ')])
def test_a_filter_that_cannot_be_understood_is_refused(text, message):
    with pytest.raises(ToolError) as raised:
        filter_of([text])
    assert message in str(raised.value)


def test_the_command_filters_and_formats_records_whose_headers_are_not_utf8(shared_broker):
    with Producer(shared_broker.address) as producer:
        for number in range(6):
            producer.send('filtered', b'%d' % number, b'even' if number % 2 == 0 else b'odd',
                          headers=[(ODD_NAME, NOT_UTF8)], partition=0)
    done = run_command('consume', '--bootstrap-server', shared_broker.address, '--topic', 'filtered',
                       '--from-beginning', '--max-messages', '2', '--filter', 'key=^odd', '--filter', 'value!=1',
                       '--format', r'%o:%s %K\n')
    assert (done.returncode, done.stdout) == (0, '3:3 3\n5:5 3\n')
    both = run_command('consume', '--bootstrap-server', shared_broker.address, '--topic', 'filtered', '--json',
                       '--format', '%s')
    assert (both.returncode, both.stderr.splitlines()[-1].partition(': ')[2]) == (
        1, '--format and --json cannot be given together')

"""The parser of message tables, and rules that all tables must follow."""
import subprocess
import sys

import pytest

from kbroker.protocol import messages, schema
from kbroker.protocol.api_keys import ApiKey, request_header_version, response_header_version


def read(text):
    found = {each.name: schema.parse(each) for each in schema._split('test.txt', text)}
    return found


def test_a_field_line_says_all():
    table = read('''
api 7 Thing  versions 1-4  flexible 3+     # what it is

request
  plain        int32
  later        string    2+  = text          # comment
  between      []string  1-2  null 2-2
  nothing      bytes?             = null
  hexadecimal  int64     = 0x10
  inner        []Inner   3+  tag 7
    deep       uuid
  again        Inner     4+
  client_id    string?   inflexible

response
''')
    assert list(table) == ['ThingRequest', 'ThingResponse']
    request = table['ThingRequest']
    fields = {field.name: field for field in request.struct.fields}
    assert list(fields) == ['plain', 'later', 'between', 'nothing', 'hexadecimal', 'inner', 'again', 'client_id']
    assert fields['plain'].versions == schema.Versions(0, schema.NEVER) and fields['plain'].default == 0
    assert (fields['later'].default, 1 in fields['later'].versions, 2 in fields['later'].versions) == (
        'text',
        False,
        True,
    )
    assert fields['between'].is_array and fields['between'].may_be_null(2) and not fields['between'].may_be_null(1)
    assert fields['nothing'].default is None and fields['hexadecimal'].default == 16
    assert fields['inner'].tag == 7 and fields['again'].struct is fields['inner'].struct is request.structs['Inner']
    assert fields['client_id'].inflexible
    assert request.declaration.flexible_from == 3 and table['ThingResponse'].struct.fields == []


def test_a_row_has_a_key_that_is_never_flexible():
    table = read(
        'row Thing  topic __things  type 4  versions 0-2  flexible 1+\nkey\n  name  string\nvalue\n  size  int32\n'
    )
    key, value = table['ThingKey'].declaration, table['ThingValue'].declaration
    assert (key.versions, key.flexible_from, key.key, key.topic) == (schema.Versions(0, 0), schema.NEVER, 4, '__things')
    assert (value.versions, value.flexible_from) == (schema.Versions(0, 2), 1)


@pytest.mark.parametrize(('text', 'complaint'), [
    ('  name  string', r'test.txt:1: name  string: a field outside a message'),
    ('api 1 Thing  versions 0  flexible never\n  name  string', 'outside a message'),
    ('thing', 'neither a header nor a section'),
    ('message Thing  versions 0  flexible 0+\nrequest', 'neither a header nor a section'),
    ('message Thing  versions 0  flexible 0+\n  name', 'not a field'),
    ('message Thing  versions 0  flexible 0+\n  name  string  tag x', 'not a field'),
    ('message Thing  versions 0  flexible 0+\n    name  string', 'indented by 4, expected 2'),
    ('message Thing  versions 0  flexible 0+\n  name  string\n    more  int8', 'indented by 4, expected 2'),
    ('message Thing  versions 0  flexible 0+\n  name  string\n  name  int8', 'named twice in Thing'),
    ('message Thing  versions 0  flexible 0+\n  inner  Inner', 'Inner has no fields'),
    ('message Thing  versions 0  flexible 0+\n  a  Inner\n    b  []Inner', 'Inner within itself'),
    ('message Thing  versions 0  flexible 0+\n  name  string  = null', 'null by default, but never null'),
    ('message Thing  versions 0  flexible 0+\n  name  uuid  = 7', 'no default for uuid'),
])
def test_a_wrong_table_is_refused_with_its_line(text, complaint):
    with pytest.raises(schema.TableError, match=complaint):
        read(text)


def test_every_table_parses_and_every_class_can_be_made():
    for name in schema.declarations():
        message_class = getattr(messages, name)
        assert message_class.__name__ == name and message_class() == message_class()
    assert dir(messages) == sorted(schema.declarations())


def test_a_name_that_no_table_has_is_an_attribute_error():
    with pytest.raises(AttributeError, match='no table has a message EndTxn'):
        messages.EndTxn  # noqa: B018
    with pytest.raises(ImportError):
        from kbroker.protocol.messages import NoSuchRequest  # noqa: F401


def test_messages_are_parsed_when_they_are_asked_for():
    program = (
        'from kbroker.protocol import schema\n'
        'parsed = []\n'
        'original = schema.parse\n'
        'schema.parse = lambda declaration: parsed.append(declaration.name) or original(declaration)\n'
        'from kbroker.protocol import messages\n'
        'assert parsed == [] and not schema.declarations.cache_info().currsize\n'
        'messages.EndTxnRequest, messages.EndTxnRequest\n'
        "assert parsed == ['EndTxnRequest'], parsed\n"
    )
    subprocess.run([sys.executable, '-c', program], check=True)


def test_nested_structs_hang_on_their_message_however_deep():
    assert (
        messages.ProduceResponse.BatchIndexAndErrorMessage.__qualname__ == 'ProduceResponse.BatchIndexAndErrorMessage'
    )
    assert messages.ProduceResponse.PartitionProduceResponse is not messages.FetchResponse.PartitionData


def test_no_nested_struct_takes_the_name_of_a_class_attribute():
    for name in schema.declarations():
        for struct in schema.load(name).structs:
            assert struct[0].isupper(), (name, struct)


def test_a_message_knows_its_key_versions_and_flexibility():
    assert (
        messages.EndTxnRequest.api_key,
        messages.EndTxnRequest.versions,
        messages.EndTxnRequest.flexible_from,
    ) == (26, (0, 5), 3)
    assert messages.SaslHandshakeRequest.flexible_from == schema.NEVER
    assert (
        messages.OffsetCommitKey.row_type,
        messages.OffsetCommitKey.row_topic,
        messages.OffsetCommitKey.api_key,
    ) == (1, '__consumer_offsets', None)
    assert (messages.FeatureLevelRecord.api_key, messages.FeatureLevelRecord.row_type) == (12, None)


def test_the_api_keys_are_those_of_the_tables():
    declared = {
        each.name.removesuffix('Request'): each.key
        for each in schema.declarations().values()
        if each.name.endswith('Request')
    }
    assert {key.name.replace('_', ''): key.value for key in ApiKey} == {
        name.upper(): key for name, key in declared.items()
    }


def test_request_and_response_of_an_api_share_versions():
    declared = schema.declarations()
    for name, request in declared.items():
        if name.endswith('Request'):
            response = declared[name.removesuffix('Request') + 'Response']
            assert (request.key, request.versions, request.flexible_from) == (
                response.key,
                response.versions,
                response.flexible_from,
            )


@pytest.mark.parametrize(
    ('key', 'version', 'request_header', 'response_header'),
    [
        (ApiKey.PRODUCE, 8, 1, 0),
        (ApiKey.PRODUCE, 9, 2, 1),
        (ApiKey.API_VERSIONS, 2, 1, 0),
        (ApiKey.API_VERSIONS, 4, 2, 0),
        (ApiKey.SASL_HANDSHAKE, 1, 1, 0),
        (ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 2, 1),
    ],
)
def test_the_header_of_a_flexible_version_has_tags(key, version, request_header, response_header):
    assert (request_header_version(key, version), response_header_version(key, version)) == (
        request_header,
        response_header,
    )


def test_a_key_without_a_table_has_no_header():
    for ask in (request_header_version, response_header_version):
        with pytest.raises(KeyError):
            ask(4, 0)


@pytest.mark.parametrize(
    ('message', 'path', 'version'),
    [
        ('FetchRequest', 'session_id', 7),
        ('FetchRequest', 'topics.partitions.high_watermark', 18),
        ('ProduceRequest', 'acks', 0),
    ],
)
def test_the_first_version_of_a_field_comes_from_its_table(message, path, version):
    assert schema.first_version(message, path) == version


@pytest.mark.parametrize('path', ['nothing', 'session_id.nothing', 'topics.nothing'])
def test_a_field_that_a_message_lacks_has_no_first_version(path):
    with pytest.raises(KeyError):
        schema.first_version('FetchRequest', path)

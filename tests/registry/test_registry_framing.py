"""The id of a schema in the prefix of a value and in a header. Confluent's client is the judge of the bytes."""
import uuid

import pytest

from kbroker_tools.registry.framing import (
    KEY_HEADER,
    VALUE_HEADER,
    Frame,
    FramingError,
    prefix_of,
    read_header,
    read_prefix,
)

GUID = uuid.UUID('89791762-2336-4186-9674-299b90a802e2')


def confluent_prefix(key, indexes=None):
    from confluent_kafka.schema_registry.serde import SchemaId
    if isinstance(key, int):
        return SchemaId('PROTOBUF', key, None, indexes and list(indexes)).id_to_bytes()
    return SchemaId('PROTOBUF', None, str(key), indexes and list(indexes)).guid_to_bytes()


@pytest.mark.parametrize('key', [1, 0xFFFFFFFF, GUID], ids=str)
@pytest.mark.parametrize('indexes', [(), (0,), (1,), (0, 0), (2, 300, 1)], ids=str)
def test_the_bytes_are_those_of_confluent_s_client(key, indexes):
    found = prefix_of(key, indexes)
    assert found == confluent_prefix(key, indexes or None)
    assert read_prefix(found + b'data', bool(indexes)) == Frame(key, indexes, len(found))
    assert read_header(found, bool(indexes)) == Frame(key, indexes, 0)


def test_the_headers_have_the_names_of_confluent_s_client():
    from confluent_kafka.schema_registry import _KEY_SCHEMA_ID, _VALUE_SCHEMA_ID
    assert (KEY_HEADER, VALUE_HEADER) == (_KEY_SCHEMA_ID, _VALUE_SCHEMA_ID)


def test_the_first_message_may_be_written_in_full():
    assert read_prefix(b'\0\0\0\0\1\2\0', True) == Frame(1, (0,), 7)


@pytest.mark.parametrize(
    ('data', 'message'),
    [
        (b'', 'found an empty value'),
        (b'\0\0\0\0', 'found 4 bytes that begin with 0'),
        (b'\1' + b'x' * 15, 'found 16 bytes that begin with 1'),
        (b'{"id": 1}', 'found 9 bytes that begin with 123, expected 0 and a schema id of 4 bytes'),
        (b'\0\0\0\0\1', 'found the end of the bytes in the message indexes'),
        (b'\0\0\0\0\1\4\0', 'found the end of the bytes'),
        (b'\0\0\0\0\1\1', 'found -1 message indexes'),
        (b'\0\0\0\0\1\xfe\xff\xff\xff\x0f', 'found 2147483647 message indexes, expected 0 to 64'),
        (b'\0\0\0\0\1' + b'\xff' * 9, 'more than 5 bytes'),
    ],
)
def test_bytes_without_a_schema_id_are_refused(data, message):
    with pytest.raises(FramingError, match=message):
        read_prefix(data, True)


def test_a_header_with_more_bytes_is_refused():
    with pytest.raises(FramingError, match='found 6 bytes in the header, expected 5'):
        read_header(b'\0\0\0\0\1\2')

"""In all versions, the reader of request fields finds the same values as the codec, and skips the fields that no
handler names.
"""
import pytest
from apis.later_versions import later_versions_are_served
from hypothesis import given, settings
from hypothesis import strategies as st
from support.apis.compiled_readers import readers
from support.messages.filled_messages import filled
from support.runner.alone import run_alone

from kbroker.apis.serving.request_fields import BoundError, RequestFields
from kbroker.base.errors import ProtocolError
from kbroker.protocol import messages, schema
from kbroker.protocol.codec import decode, decode_prefix, encode
from kbroker.protocol.messages import EndTxnRequest, ProduceRequest

REQUESTS = sorted(name for name, each in schema.declarations().items()
                  if each.kind == 'api' and name.endswith('Request'))
PULLED_TYPES = {'bool', 'int8', 'int16', 'int32', 'int64', 'string', 'uuid', 'records', 'struct'}


def can_be_pulled(field):
    if field.is_array:
        return field.null_versions is None and field.type in ('struct', 'int32', 'int64')
    return field.type in PULLED_TYPES and (field.struct is None or (field.tag is not None and not field.null_versions))


@st.composite
def choices(draw, struct, before=''):
    """Choose paths of fields: of fields of `struct`, and of fields in a chosen field that is itself a struct. At most
    one field is tagged."""
    paths, has_tagged = [], bool(before)
    for field in struct.fields:
        if not can_be_pulled(field) or (field.tag is not None and has_tagged) or draw(st.booleans()):
            continue
        has_tagged = has_tagged or field.tag is not None
        paths.append(before + field.name)
        if field.struct is not None:
            paths += draw(choices(field.struct, f'{before}{field.name}.'))
    return paths


@st.composite
def readings(draw):
    """Generate (the name of a request, a version, the encoded request, the paths of some of its fields)."""
    name = draw(st.sampled_from(REQUESTS))
    message_class = getattr(messages, name)
    version = draw(st.integers(*message_class.versions))
    message = filled(message_class, version, draw(st.randoms(use_true_random=False)))
    return name, version, encode(message, version), draw(choices(message_class.schema.struct))


def pulled_from(message, struct, paths, before=''):
    """Return the values of the fields at `paths` in a decoded message, in the form of `readers.pull`."""
    found = {}
    for field in struct.fields:
        path = before + field.name
        if path not in paths:
            continue
        value = getattr(message, field.name)
        if field.tag is not None and value == getattr(type(message)(), field.name):
            value = None
        elif field.struct is not None:
            value = ([pulled_from(each, field.struct, paths, f'{path}.') for each in value] if field.is_array
                     else pulled_from(value, field.struct, paths, f'{path}.'))
        found[field.name] = bytes(value) if isinstance(value, memoryview) else value
    return found


@settings(deadline=None, max_examples=400)
@given(readings())
def test_some_of_the_fields_are_read_and_the_others_skipped(reading):
    name, version, frame, paths = reading
    message = decode(getattr(messages, name), frame, version)
    assert readers.pull(name, paths, frame, version) == pulled_from(message, type(message).schema.struct, paths)


@settings(deadline=None, max_examples=400)
@given(readings(), st.data())
def test_the_reader_refuses_what_the_codec_refuses(reading, data):
    name, version, frame, paths = reading
    changed = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        if changed:
            at = data.draw(st.integers(0, len(changed) - 1))
            changed[at:at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    try:
        message = decode_prefix(getattr(messages, name), bytes(changed), version)[0]
    except ProtocolError:
        with pytest.raises(ProtocolError):
            readers.pull(name, paths, bytes(changed), version)
    else:
        found = readers.pull(name, paths, bytes(changed), version)
        assert {key: value for key, value in found.items() if not is_tagged(name, key)} == {
            key: value for key, value in pulled_from(message, type(message).schema.struct, paths).items()
            if not is_tagged(name, key)}


def is_tagged(name, field_name):
    return any(field.name == field_name and field.tag is not None for field in schema.load(name).struct.fields)


def test_a_request_with_too_many_elements_is_refused():
    topics = [ProduceRequest.TopicProduceData(name='t')] * 1_000_001
    with pytest.raises(BoundError, match='found 1000001 elements or more, expected 1000000 at most'):
        readers.pull('ProduceRequest', ['topic_data'], encode(ProduceRequest(topic_data=topics), 9), 9)


@pytest.mark.parametrize('count', [10_001, 1 << 30])
def test_a_struct_with_too_many_tagged_fields_is_refused(count):
    frame = encode(EndTxnRequest(transactional_id='t'), 5)[:-1]
    varint = bytes([count & 0x7f | 0x80, count >> 7 & 0x7f | 0x80, count >> 14 & 0x7f | 0x80,
                    count >> 21 & 0x7f | 0x80, count >> 28])
    with pytest.raises(ProtocolError, match=f'{count} tagged fields, at most 10000 expected'):
        readers.pull('EndTxnRequest', ['committed'], frame + varint, 5)


@pytest.mark.parametrize(('path', 'type_name', 'complaint'), [
    ('acks', 'int32', 'acks is int16, int32 expected'),
    ('topic_data', 'struct', r'topic_data is \[\]struct, struct expected'),
])
def test_a_field_of_another_type_is_refused_when_a_module_names_it(path, type_name, complaint):
    with pytest.raises(TypeError, match=complaint):
        RequestFields('ProduceRequest').field(path, type_name)


def test_a_request_has_no_field_that_its_table_lacks():
    with pytest.raises(KeyError):
        RequestFields('ProduceRequest').field('absent', 'int32')


def test_a_request_has_few_bounds():
    fields = RequestFields('ProduceRequest')
    with pytest.raises(TypeError, match='3 bounds, 2 expected at most'):
        fields.set_bounds({'a': (1, 'topic_data'), 'b': (1, 'topic_data.partition_data'), 'c': (1, 'topic_data')})


def test_no_field_is_named_once_a_request_was_read():
    fields = readers.fields_that_were_used('EndTxnRequest', encode(EndTxnRequest(), 5), 5)
    with pytest.raises(TypeError, match='EndTxnRequest: requests of version 5 are read already'):
        fields.field('committed', 'bool')


def test_an_array_without_a_bound_is_not_read():
    with pytest.raises(TypeError, match='ProduceRequest: topic_data has no bound in the declaration of its API'):
        readers.fields_that_were_used('ProduceRequest', encode(ProduceRequest(), 9), 9, 'topic_data', '[]struct')


def test_later_versions_of_the_tables_are_served_by_the_same_handlers(tmp_path):
    run_alone(later_versions_are_served, tmp_path)

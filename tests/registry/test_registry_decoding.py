"""Columns of values with schema ids, written by Confluent's serializers, and the choice of the reader's schema."""
import json
import pickle
import sys

import pyarrow as pa
import pytest

from kbroker_tools.registry import decoding
from kbroker_tools.registry.decoding import ValueSchema
from kbroker_tools.registry.errors import RegistryError, RegistryUnavailable

HEADERS = pa.list_(pa.field('element', pa.struct([('key', pa.string()), ('value', pa.binary())])))
V1 = {'type': 'record', 'name': 'Order', 'fields': [{'name': 'id', 'type': 'long'}, {'name': 'who', 'type': 'string'}]}
V2 = {**V1, 'fields': [*V1['fields'], {'name': 'cents', 'type': 'long', 'default': -1}]}
RETYPED = {**V1, 'fields': [{'name': 'id', 'type': 'string'}, V1['fields'][1]]}


def schema_of(registry, place='registry:', kind='avro', **settings):
    return ValueSchema(kind, place, {'schema.registry.url': registry.url, 'max.retries': '0', **settings})


def confluent_writer(registry, schema, **more):
    """Return a function that returns the value and the headers which Confluent's serializer makes of a row."""
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext
    serializer = AvroSerializer(SchemaRegistryClient({'url': registry.url}), json.dumps(schema),
                                conf={'subject.name.strategy.type': 'TOPIC', **more})

    def write(row):
        where = SerializationContext('t', MessageField.VALUE, [])
        return serializer(row, where), where.headers
    return write


def decoded(decoder, values, headers=None):
    column, undecoded = decoder.decode(pa.array(values, pa.binary()),
                                       None if headers is None else pa.array(headers, HEADERS))
    assert column.type == decoder.type
    assert undecoded.type == pa.binary()
    return column.to_pylist(), undecoded.to_pylist()


def test_values_of_two_versions_are_read_by_the_newest(registry):
    old, new = confluent_writer(registry, V1), confluent_writer(registry, V2)
    values = [old({'id': 1, 'who': 'a'})[0], new({'id': 2, 'who': 'b', 'cents': 5})[0]]
    decoder = schema_of(registry).decoder(['t'])
    assert decoder.needs_headers
    assert decoder.shape == ['avro', json.dumps(V2)]
    assert decoded(pickle.loads(pickle.dumps(decoder)), values) == (
        [{'id': 1, 'who': 'a', 'cents': -1}, {'id': 2, 'who': 'b', 'cents': 5}], [None, None])


def test_the_id_may_be_in_a_header(registry):
    from confluent_kafka.schema_registry import header_schema_id_serializer
    write = confluent_writer(registry, V1, **{'schema.id.serializer': header_schema_id_serializer})
    value, headers = write({'id': 1, 'who': 'a'})
    prefixed, _ = confluent_writer(registry, V1)({'id': 2, 'who': 'b'})
    (name, content), = headers
    rows = [[('other', b'x'), (name, content)], [], None, [(name, None)], [('__key_schema_id', b'bad')],
            [(name, content), (name, b'bad')], [(name, b'bad')], [(name, content + b'x')]]
    values = [value, prefixed, prefixed, prefixed, prefixed, value, value, value]
    one, two = {'id': 1, 'who': 'a'}, {'id': 2, 'who': 'b'}
    decoder = schema_of(registry).decoder(['t'])
    assert decoded(decoder, values, rows) == ([one, two, two, two, two, one, None, None], [None] * 6 + [value] * 2)
    sliced = decoder.decode(pa.array([b'', *values], pa.binary())[1:], pa.array([[], *rows], HEADERS)[1:])
    assert sliced[0].to_pylist() == [one, two, two, two, two, one, None, None]


def test_values_that_do_not_match_keep_their_bytes(registry):
    good, _ = confluent_writer(registry, V1)({'id': 1, 'who': 'a'})
    other_kind = registry.add('other', '{"type": "object"}', 'JSON')
    wrong_type, _ = confluent_writer(registry, {'type': 'record', 'name': 'X', 'fields': [
        {'name': 'id', 'type': 'string'}]}, **{'subject.name.strategy.type': 'RECORD'})({'id': 'x'})
    bad = [b'', b'\0', b'\0\0\0\0', b'{"id": 1}', good[:-1], good + b'x', good[5:], b'\0\0\0\x03\xe7' + good[5:],
           b'\0' + other_kind.to_bytes(4, 'big') + good[5:], wrong_type, b'\1' + good]
    assert decoded(schema_of(registry).decoder(['t']), [good, None, *bad]) == (
        [{'id': 1, 'who': 'a'}, None] + [None] * len(bad), [None, None, *bad])


def test_a_schema_that_is_registered_later_is_fetched(registry):
    write = confluent_writer(registry, V1)
    first, _ = write({'id': 1, 'who': 'a'})
    decoder = schema_of(registry).decoder(['t'])
    second, _ = confluent_writer(registry, V2)({'id': 2, 'who': 'b', 'cents': 5})
    assert decoded(decoder, [first, second])[0] == [{'id': 1, 'who': 'a'}, {'id': 2, 'who': 'b'}]


def test_an_outage_is_no_undecodable_value(registry):
    value, _ = confluent_writer(registry, V1)({'id': 1, 'who': 'a'})
    decoder = schema_of(registry).decoder(['t'])
    registry.failures = 99
    with pytest.raises(RegistryUnavailable, match='status 503'):
        decoded(decoder, [value])
    registry.failures = 0
    assert decoded(decoder, [value])[0] == [{'id': 1, 'who': 'a'}]
    registry.failures = 99
    assert decoded(decoder, [value])[0] == [{'id': 1, 'who': 'a'}], 'a known schema needs no registry'


def test_many_unknown_ids_are_each_asked_once(registry):
    confluent_writer(registry, V1)({'id': 1, 'who': 'a'})
    decoder = schema_of(registry).decoder(['t'])
    before = len(registry.requests)
    values = [b'\0\0\0\1' + bytes([each % 5]) + b'x' for each in range(50)]
    assert decoded(decoder, values) == ([None] * 50, values)
    assert len(registry.requests) == before + 5


def test_the_recorded_schema_stays_in_use(registry):
    registry.add('t-value', json.dumps(V1))
    recorded = schema_of(registry).decoder(['t']).shape
    registry.add('t-value', json.dumps(V2))
    decoder = schema_of(registry).decoder(['t'], recorded)
    assert (decoder.shape, decoder.added) == (recorded, [])


def test_a_version_that_only_adds_fields_is_used_if_the_job_evolves(registry):
    registry.add('t-value', json.dumps(V1))
    recorded = schema_of(registry).decoder(['t']).shape
    assert schema_of(registry).decoder(['t'], recorded, True).added == []
    registry.add('t-value', json.dumps(V2))
    decoder = schema_of(registry).decoder(['t'], recorded, True)
    assert decoder.added == ['cents']
    assert decoder.shape == ['avro', json.dumps(V2)]
    assert pickle.loads(pickle.dumps(decoder)).added == ['cents']


def test_a_version_that_changes_fields_is_not_used(registry):
    registry.add('t-value', json.dumps(V1))
    recorded = schema_of(registry).decoder(['t']).shape
    registry.add('t-value', json.dumps(RETYPED))
    decoder = schema_of(registry).decoder(['t'], recorded, True)
    assert (decoder.shape, decoder.added) == (recorded, [])


def test_topics_with_different_schemas_need_a_named_subject(registry):
    registry.add('a-value', json.dumps(V1))
    registry.add('b-value', json.dumps(V1))
    assert schema_of(registry).decoder(['a', 'b']).shape == ['avro', json.dumps(V1)]
    registry.add('b-value', json.dumps(V2))
    with pytest.raises(RegistryError, match=r'a-value and b-value differ, .* --value-schema registry:#SUBJECT'):
        schema_of(registry).decoder(['a', 'b'])
    assert schema_of(registry, 'registry:#b-value').decoder(['a', 'b']).shape[1] == json.dumps(V2)


def test_topics_whose_schemas_grow_one_after_the_other_keep_the_recorded_one_until_the_last_has_grown(registry):
    for topic in 'ab':
        registry.add(f'{topic}-value', json.dumps(V1))
    recorded = schema_of(registry).decoder(['a', 'b']).shape
    registry.add('a-value', json.dumps(V2))
    assert schema_of(registry).decoder(['a', 'b'], recorded, True).shape == recorded
    registry.add('b-value', json.dumps(V2))
    assert schema_of(registry).decoder(['a', 'b'], recorded, True).added == ['cents']


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, 'fastavro', None)
    with pytest.raises(RegistryError, match=r'need the package fastavro, .* pip install "kbroker\[registry\]"'):
        ValueSchema('avro', json.dumps(V1)).decoder(['t'])


def test_references_are_resolved(registry):
    registry.add('street', json.dumps({'type': 'record', 'name': 'n.Street', 'fields': [
        {'name': 's', 'type': 'string'}]}))
    registry.add('t-value', json.dumps({'type': 'record', 'name': 'n.Home', 'fields': [
        {'name': 'street', 'type': 'n.Street'}]}), references=[
            {'name': 'n.Street', 'subject': 'street', 'version': 1}])
    decoder = schema_of(registry).decoder(['t'])
    expected = [{'street': {'s': 'x'}}], [None]
    assert decoded(decoder, [b'\0\0\0\0\2\2x']) == expected
    assert decoded(schema_of(registry).decoder(['t'], decoder.shape), [b'\0\0\0\0\2\2x']) == expected


def test_the_url_may_be_given_with_the_schema(registry):
    registry.add('t-value', json.dumps(V1))
    assert ValueSchema('avro', f'registry:{registry.url}#t-value').decoder(['x']).shape == ['avro', json.dumps(V1)]


def test_a_plain_schema_needs_no_registry():
    from test_registry_avro import written
    value = written(V1, {'id': 1, 'who': 'a'})
    decoder = pickle.loads(pickle.dumps(ValueSchema('avro', json.dumps(V1)).decoder(['t'])))
    assert not decoder.needs_headers
    bad = [b'', value[:-1], value + b'x', b'\0\0\0\0\1' + value]
    assert decoded(decoder, [value, None, *bad], [[('__value_schema_id', b'\0\0\0\0\1')]] * 6) == (
        [{'id': 1, 'who': 'a'}] + [None] * 5, [None, None, *bad])


@pytest.mark.parametrize(
    ('schema', 'recorded', 'message'),
    [
        (ValueSchema('xml', 'registry:'), None, "--value-format: found 'xml'"),
        (ValueSchema('avro', 'registry:'), None, 'schema.registry.url: found none'),
        (ValueSchema('avro', '"int"'), None, '--value-schema: found an Avro schema of type int'),
        (ValueSchema('avro', 'registry:http://u:secret@h/#s', {'basic.auth.user.info': 'u:secret'}), None,
         'expected one of them'),
        (ValueSchema('avro', 'registry:http://localhost'), ['json', 'x int'], 'but the job has values in json'),
    ],
)
def test_a_wrong_option_is_named(schema, recorded, message):
    with pytest.raises(RegistryError) as raised:
        schema.decoder(['t'], recorded)
    assert message in str(raised.value)
    assert 'secret' not in repr(schema) + str(raised.value)


@pytest.mark.parametrize(
    ('text', 'kind', 'message'),
    [
        (None, 'AVRO', 'found no subject t-value, expected the schema of the values'),
        ('{"type": "object"}', 'JSON', 'subject t-value has a schema in json, expected --value-format avro'),
        ('"int"', 'AVRO', 'subject t-value: found an Avro schema of type int'),
    ],
)
def test_a_subject_without_a_usable_schema_is_named(registry, text, kind, message):
    if text is not None:
        registry.add('t-value', text, kind)
    with pytest.raises(RegistryError, match=message):
        schema_of(registry).decoder(['t'])


def test_a_decoder_keeps_a_bounded_number_of_schemas(registry, monkeypatch):
    monkeypatch.setattr(decoding, 'MOST_READERS', 2)
    values = [confluent_writer(registry, {**V1, 'doc': str(each)})({'id': each, 'who': 'a'})[0] for each in range(5)]
    decoder = schema_of(registry).decoder(['t'])
    assert decoded(decoder, values)[0] == [{'id': each, 'who': 'a'} for each in range(5)]
    assert len(decoder._readers) <= 2

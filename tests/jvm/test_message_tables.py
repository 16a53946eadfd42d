"""The tables of messages, rows and records agree, field for field, with the definitions in Kafka's jars."""
import json
import re
import zipfile

import pytest
from support.kafka.apache_kafka import classpath

from kbroker.protocol import schema
from kbroker.protocol.json import kafka_name

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

PATHS = re.compile(r'(common/)?(message|metadata)/\w+\.json')


@pytest.fixture(scope='module')
def definitions():
    """Maps the names of messages to their definitions in Kafka's jars, except those for the state of Kafka Streams."""
    found = {}
    for jar in classpath().split(':'):
        if jar.endswith('.jar') and '/org/apache/kafka/' in jar and '/kafka-streams/' not in jar:
            with zipfile.ZipFile(jar) as files:
                for path in files.namelist():
                    if PATHS.fullmatch(path):
                        definition = json.loads(re.sub(r'(?m)(^|\s)//.*$', '', files.read(path).decode()))
                        found[definition['name']] = definition
    return found


def versions_of(text):
    return schema._versions(text)


def versions_of_field(field):
    return versions_of(field.get('versions', field.get('taggedVersions')))


def default_of(field):
    """Return Kafka's default of a field. If the definition has no default, or null, return the default of the type."""
    text, kind = field.get('default'), field['type']
    if text == 'null' and text is not None:
        return None
    if kind.startswith('[]'):
        return []
    if kind not in schema.PRIMITIVES:
        return 'struct'
    if text is None:
        return schema.PRIMITIVES[kind]
    return {'bool': lambda: str(text).lower() == 'true', 'string': lambda: text}.get(kind, lambda: int(text))()


def assert_same(ours, theirs, structs, known):
    """Compare the fields of a struct, in their order. Skip kbroker's own fields, and fields that occur in no version of
    the range `known`."""
    ours = [field for field in ours if any(version in field.versions for version in known) and not field.is_private]
    theirs = [field for field in theirs if any(version in versions_of_field(field) for version in known)]
    assert [kafka_name(field.name).lower() for field in ours] == [field['name'].lower() for field in theirs]
    for field, their in zip(ours, theirs, strict=True):
        name = their['name']
        assert kafka_name(field.name) == name[0].lower() + name[1:]
        kind = their['type'].removeprefix('[]')
        assert field.is_array == their['type'].startswith('[]'), name
        assert field.tag == their.get('tag'), name
        their_versions = versions_of_field(their)
        for version in known:
            assert (version in field.versions) == (version in their_versions), name
            if version in field.versions:
                may_be_null = 'nullableVersions' in their and version in versions_of(their['nullableVersions'])
                assert field.may_be_null(version) == may_be_null, name
        if field.tag is not None:               # only the defaults of tagged fields show in files
            default = 'struct' if isinstance(field.default, schema.Struct) else field.default
            assert default == default_of(their), name
        if field.struct is None:
            assert field.type == kind, name
        else:
            assert_same(field.struct.fields, their.get('fields') or structs[kind], structs, known)


def names_of(*kinds):
    return [name for name, declaration in sorted(schema.declarations().items()) if declaration.kind in kinds]


def assert_same_message(name, definitions):
    """Compare the header and the fields of a message for the versions in kbroker's table."""
    message, theirs = schema.load(name), definitions[name]
    declaration = message.declaration
    assert declaration.key == theirs['apiKey']
    flexible = theirs['flexibleVersions']
    assert declaration.flexible_from == (schema.NEVER if flexible == 'none' else int(flexible.removesuffix('+')))
    structs = {struct['name']: struct['fields'] for struct in theirs.get('commonStructs', [])}
    assert_same(message.struct.fields, theirs['fields'], structs,
                range(declaration.versions.first, declaration.versions.last + 1))


@pytest.mark.parametrize('name', names_of('row', 'record'))
def test_a_table_is_kafkas(definitions, name):
    assert_same_message(name, definitions)
    assert schema.declarations()[name].versions == versions_of(definitions[name]['validVersions'])


@pytest.mark.parametrize('name', names_of('api'))
def test_a_message_is_kafkas(definitions, name):
    assert_same_message(name, definitions)
    ours, theirs = schema.declarations()[name].versions, versions_of(definitions[name]['validVersions'])
    assert ours.first in theirs and ours.last in theirs


def test_no_row_or_record_of_kafka_is_missing(definitions):
    kinds = ('coordinator-key', 'coordinator-value', 'metadata')
    theirs = {name for name, definition in definitions.items() if definition['type'] in kinds}
    ours = {name for name, declaration in schema.declarations().items() if declaration.kind in ('row', 'record')}
    assert ours == theirs

"""Every message in every version agrees byte for byte with two other implementations of Kafka's schemas.

kafka-python and kio each read the codec's bytes, have the same fields with the same values, and write the same bytes.
For kio, only names and order are compared, because it wraps the values in types. kafka-python's default messages are
compared, too. DIFFERENT_DEFAULTS, PRESENTED_DIFFERENTLY and VERSION_PREFIXED list the differences with their reasons.
NEW_IN_KAFKA_4_4 lists the versions that the libraries do not know.
"""
import dataclasses
import importlib
import io
import random
import re

import kio.index
import pytest
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from support.messages.filled_messages import filled

from kbroker.protocol import messages, schema
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.codec import encode
from kbroker.protocol.plan import Message

SEEDS = range(4)

# Neither library has the coordinators' rows or the metadata records. tests/protocol/test_rows.py and
# test_metadata_records.py compare them with golden vectors, and tests/jvm/test_message_tables.py with Kafka's jars.
UNJUDGED_KINDS = {'row', 'record'}

# Maps each API to its version that Kafka 4.4 added. The libraries know the messages of Kafka 4.3.
# tests/jvm/test_message_tables.py compares these versions with Kafka's jars.
NEW_IN_KAFKA_4_4 = {
    'ApiVersions': 5, 'DeleteGroups': 3, 'StreamsGroupDescribe': 1, 'StreamsGroupHeartbeat': 1,
    'StreamsGroupTopologyDescriptionUpdate': 0, 'TxnOffsetCommit': 6, 'UnregisterController': 0,
}

# Maps the fields that Kafka 4.4 renamed to their names in the libraries.
RENAMED = {
    ('TxnOffsetCommitRequest', 'generation_id_or_member_epoch'): 'generation_id',
    ('StreamsGroupHeartbeatResponse', 'acceptable_recovery_lag_legacy'): 'acceptable_recovery_lag',
}

# Maps each message whose default in kafka-python differs from Kafka's to the reason.
DIFFERENT_DEFAULTS = {
    'ListOffsetsRequest': 'kafka-python sets replica_id to -1, as consumers must; Kafka\'s schema leaves it 0',
}

# Fields that kafka-python presents in its own way, though it reads and writes the same bytes.
PRESENTED_DIFFERENTLY = {
    'authorized_operations': 'a set of operations; None for -2147483648, if they were not requested',
    'cluster_authorized_operations': 'the same, and named authorized_operations',
    'topic_authorized_operations': 'the same, and named authorized_operations',
    'replica_state': 'None, not the default struct, when the tag is absent',
}

# Messages that kafka-python prefixes with an int16 version, as JoinGroup and SyncGroup do.
VERSION_PREFIXED = {'ConsumerProtocolSubscription', 'ConsumerProtocolAssignment'}


def names_judged_by(find) -> list[str]:
    return [name for name in sorted(schema.declarations()) if find(name) is not None]


def versions_of(name: str) -> range:
    """Return the versions of a message that the libraries know."""
    first, last = getattr(messages, name).versions
    return range(first, NEW_IN_KAFKA_4_4.get(api_of(name), last + 1))


def api_of(name: str) -> str:
    return name.removesuffix('Request').removesuffix('Response')


def instances(name: str):
    """Yield (message, version) for the default message and for random messages."""
    message_class = getattr(messages, name)
    for version in versions_of(name):
        yield message_class(), version
        for seed in SEEDS:
            yield filled(message_class, version, random.Random(f'{name} {version} {seed}')), version


def in_version(value, message_class: type[Message], struct: schema.Struct, version: int) -> dict:
    """Return the fields that the version has, with structs as dicts."""
    def plain(field: schema.Field, each):
        if isinstance(each, Message):
            return in_version(each, message_class, field.struct, version)
        return [plain(field, one) for one in each] if isinstance(each, list) else each

    return {
        RENAMED.get((message_class.__name__, field.name), field.name): plain(field, getattr(value, field.name))
        for field in struct.fields if version in field.versions
    }


# ---- kafka-python

def kafka_python_class(name: str):
    """Return kafka-python's class for a message, or None if it has no class. It has none for headers and control
    records. The last test lists the messages without a class.
    """
    for module_name in ('admin', 'consumer', 'metadata', 'producer', 'sasl'):
        found = getattr(importlib.import_module(f'kafka.protocol.{module_name}'), name, None)
        if found is not None and schema.declarations()[name].kind not in UNJUDGED_KINDS:
            return found
    return None


@pytest.mark.parametrize('name', names_judged_by(kafka_python_class))
def test_kafka_python_reads_and_writes_the_same(name):
    message_class, their_class = getattr(messages, name), kafka_python_class(name)
    for message, version in instances(name):
        data = encode(message, version)
        if name in VERSION_PREFIXED:
            data = version.to_bytes(2, 'big') + data
        theirs = their_class.decode(data, version=version)
        if hasattr(their_class, 'with_header'):
            theirs._header = None
        expected = in_version(message, message_class, message_class.schema.struct, version)
        assert normalised(theirs.to_dict(json=False)) == normalised(expected), (name, version)
        assert bytes(theirs.encode(version=version)) == data, (name, version)


@pytest.mark.parametrize('name', names_judged_by(kafka_python_class))
def test_kafka_python_has_the_same_defaults(name):
    their_class = kafka_python_class(name)
    for version in versions_of(name):
        data = encode(getattr(messages, name)(), version)
        if name in VERSION_PREFIXED:
            data = version.to_bytes(2, 'big') + data
        same = bytes(their_class(version=version).encode(version=version)) == data
        assert same != (name in DIFFERENT_DEFAULTS), (name, version)


def normalised(value):
    """Return a value of kafka-python with its uuid objects and views replaced by bytes, and its tuples by lists."""
    if isinstance(value, dict):
        return {key: normalised(each) for key, each in value.items() if key not in PRESENTED_DIFFERENTLY}
    if isinstance(value, (list, tuple)):
        return [normalised(each) for each in value]
    if hasattr(value, 'hex') and hasattr(value, 'int'):
        return value.bytes
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


# ---- kio

def kio_location(name: str):
    """Return (schema name, entity type), or None if kio has no entity."""
    for suffix, entity_type in (('Request', EntityType.request), ('Response', EntityType.response)):
        if name.endswith(suffix):
            return snake(name.removesuffix(suffix)), entity_type
    if schema.declarations()[name].kind in UNJUDGED_KINDS:
        return None
    return snake(name), EntityType.header if name in ('RequestHeader', 'ResponseHeader') else EntityType.data


def snake(name: str) -> str:
    return re.sub(r'(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])', '_', name).lower()


@pytest.mark.parametrize('name', names_judged_by(kio_location))
def test_kio_reads_and_writes_the_same(name):
    schema_name, entity_type = kio_location(name)
    for message, version in instances(name):
        entity = kio.index.load_entity_schema(schema_name, version, entity_type)
        data = encode(message, version)
        theirs, size = entity_reader(entity)(data, 0)
        assert size == len(data), (name, version)
        out = io.BytesIO()
        entity_writer(entity)(out, theirs)
        assert out.getvalue() == data, (name, version)
        assert_same_names(theirs, message, message.schema.struct, version)


def assert_same_names(theirs, message: Message, struct: schema.Struct, version: int) -> None:
    fields = [field for field in struct.fields if version in field.versions]
    their_names = [field.name for field in dataclasses.fields(theirs)]
    ours = [RENAMED.get((type(message).__name__, field.name), field.name) for field in fields]
    assert [bare(name) for name in their_names] == [bare(name) for name in ours], (
        type(theirs).__module__,
        version,
    )
    for field in fields:
        if field.struct is not None:
            name = next(each for each in their_names if bare(each) == bare(field.name))
            inner_theirs, inner = getattr(theirs, name), getattr(message, field.name)
            if not field.is_array:
                inner_theirs, inner = (inner_theirs,), (inner,)
            for one_of_theirs, one in zip(inner_theirs or (), inner or (), strict=True):
                if one is not None:
                    assert_same_names(one_of_theirs, one, field.struct, version)


def bare(name: str) -> str:
    """Convert the name of a field to kio's spelling, which omits the unit of durations and spells KRaft as k_raft."""
    return name.removesuffix('_ms').replace('k_raft', 'kraft')


def test_both_libraries_know_every_message_but_rows_and_records():
    for name, declaration in schema.declarations().items():
        if declaration.kind not in UNJUDGED_KINDS and versions_of(name):
            assert kio_location(name)[0] in schema_name_map, name
    by_kafka_python = {name for name, declaration in schema.declarations().items() if declaration.kind == 'api'}
    unknown = {declaration.key for name, declaration in schema.declarations().items()
               if name in by_kafka_python - set(names_judged_by(kafka_python_class)) and versions_of(name)}
    assert unknown == {
        ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE,
        *range(ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.SHARE_ACKNOWLEDGE + 1),
        *range(ApiKey.INITIALIZE_SHARE_GROUP_STATE, ApiKey.DELETE_SHARE_GROUP_OFFSETS + 1),
    }


def test_the_versions_are_those_of_kafka_4_3_and_the_new_ones_of_4_4():
    """kio is generated from the schemas of Kafka 4.3. Its entities show the range of versions of each message."""
    for name, declaration in schema.declarations().items():
        if declaration.kind not in UNJUDGED_KINDS:
            schema_name, entity_type = kio_location(name)
            theirs = [version for version, entities in schema_name_map.get(schema_name, {}).items()
                      if entity_type in entities]
            assert sorted(theirs) == list(versions_of(name)), name
            assert declaration.versions.last == NEW_IN_KAFKA_4_4.get(api_of(name), declaration.versions.last), name

"""Avro values as Arrow columns: types, two schemas, defaults, unions, and damaged values. Apache Avro is a judge."""
import contextlib
import datetime
import io
import json
import tracemalloc
import uuid
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest

from kbroker_tools.registry.avro import AvroFormat
from kbroker_tools.registry.columns import to_column
from kbroker_tools.registry.errors import RegistryError
from kbroker_tools.registry.formats import Undecodable

UTC = datetime.UTC


def record(*fields, name='R', **more):
    return {'type': 'record', 'name': name, 'fields': [dict(zip(('name', 'type', 'default'), each, strict=False))
                                                       for each in fields], **more}


def logical(kind, what, **more):
    return {'type': kind, 'logicalType': what, **more}


def fixed(size):
    return {'type': 'fixed', 'name': 'F', 'size': size}


def written(schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def read_as(reader, writer, data):
    """Return the value of the column."""
    chosen = AvroFormat(json.dumps(reader))
    value = chosen.values_of(json.dumps(writer), {}, ())(data, 0)
    column, unfit = to_column([value], chosen.type)
    assert unfit == []
    return column.to_pylist()[0]


def is_undecodable(reader, writer, data):
    chosen = AvroFormat(json.dumps(reader))
    read = chosen.values_of(json.dumps(writer), {}, ())
    try:
        value = read(data, 0)
    except Exception:
        return True
    return to_column([value], chosen.type)[1] == [0]


@pytest.mark.parametrize(
    ('kind', 'arrow', 'value', 'expected'),
    [
        ('boolean', pa.bool_(), True, True),
        ('int', pa.int32(), -5, -5),
        ('long', pa.int64(), 2**62, 2**62),
        ('float', pa.float32(), 1.5, 1.5),
        ('double', pa.float64(), 1e300, 1e300),
        ('bytes', pa.binary(), b'\xff\0', b'\xff\0'),
        ('string', pa.string(), 'gr\u00fcn', 'gr\u00fcn'),
        (fixed(2), pa.binary(), b'ab', b'ab'),
        ({'type': 'enum', 'name': 'E', 'symbols': ['A', 'B']}, pa.string(), 'B', 'B'),
        ({'type': 'array', 'items': 'int'}, pa.list_(pa.field('element', pa.int32())), [1, 2], [1, 2]),
        ({'type': 'map', 'values': 'int'}, pa.map_(pa.string(), pa.int32()), {'a': 1}, [('a', 1)]),
        (record(('x', 'int'), name='In'), pa.struct([('x', pa.int32())]), {'x': 1}, {'x': 1}),
        (['null', 'int'], pa.int32(), None, None),
        (['int', 'null'], pa.int32(), 4, 4),
        (['int', 'long'], pa.int64(), 2**40, 2**40),
        (['null', 'float', 'double'], pa.float64(), 1.5, 1.5),
        (['string'], pa.string(), 'x', 'x'),
        (logical('int', 'date'), pa.date32(), datetime.date(2020, 2, 29), datetime.date(2020, 2, 29)),
        (logical('long', 'timestamp-millis'), pa.timestamp('us', 'UTC'),
         *[datetime.datetime(1960, 1, 1, 1, 2, 3, 4000, UTC)] * 2),
        (logical('long', 'timestamp-micros'), pa.timestamp('us', 'UTC'),
         *[datetime.datetime(2020, 1, 1, 1, 2, 3, 4, UTC)] * 2),
        (logical('long', 'local-timestamp-millis'), pa.timestamp('us'), *[datetime.datetime(2020, 1, 1, 1, 2)] * 2),
        (logical('long', 'local-timestamp-micros'), pa.timestamp('us'), *[datetime.datetime(2020, 1, 1, 1, 2)] * 2),
        (logical('int', 'time-millis'), pa.int32(), datetime.time(0, 0, 1), 1000),
        (logical('long', 'time-micros'), pa.int64(), datetime.time(0, 0, 1), 1_000_000),
        (logical('string', 'uuid'), pa.string(), uuid.UUID(int=1), '00000000-0000-0000-0000-000000000001'),
        (logical('string', 'unknown'), pa.string(), 'x', 'x'),
        (logical('bytes', 'decimal', precision=9, scale=2), pa.decimal128(9, 2), *[Decimal('-12.34')] * 2),
        (logical('bytes', 'decimal', precision=38, scale=0), pa.decimal128(38, 0), *[Decimal(10**38 - 1)] * 2),
        ({**fixed(3), **logical('fixed', 'decimal', precision=4, scale=4)}, pa.decimal128(4, 4),
         *[Decimal('.0001')] * 2),
    ],
)
def test_each_type_has_its_column(kind, arrow, value, expected):
    schema = record(('x', kind))
    assert AvroFormat(json.dumps(schema)).type == pa.struct([('x', arrow)])
    assert read_as(schema, schema, written(schema, {'x': value})) == {'x': expected}


@pytest.mark.parametrize(
    ('writer', 'reader', 'value', 'expected'),
    [
        ('int', 'double', 3, 3.0),
        ('int', ['null', 'long'], 3, 3),
        (['null', 'int'], 'long', 3, 3),
        ('string', 'bytes', 'x', b'x'),
        ('bytes', 'string', b'x', 'x'),
        ('int', logical('long', 'timestamp-millis'), 1, datetime.datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        (['int', 'string'], ['string', 'null', 'boolean', 'long'], 3, {'member0': None, 'member1': None, 'member2': 3}),
        (['int', 'string'], ['string', 'null', 'int'], 'x', {'member0': 'x', 'member1': None}),
        ('int', ['string', 'int'], 7, {'member0': None, 'member1': 7}),
        ({'type': 'enum', 'name': 'E', 'symbols': ['A', 'B']},
         {'type': 'enum', 'name': 'E2', 'symbols': ['A', 'X'], 'default': 'X'}, 'B', 'X'),
        (record(('a', 'int'), ('gone', {'type': 'array', 'items': ['null', 'string', record(('q', 'int'), name='Q')]}),
                name='In1'),
         record(('b', 'long'), ('a', 'int'), name='In2') | {'fields': [
             {'name': 'b', 'type': 'long', 'default': 5}, {'name': 'c', 'aliases': ['a'], 'type': 'int'}]},
         {'a': 1, 'gone': [None, 's', {'q': 1}]}, {'b': 5, 'c': 1}),
    ],
)
def test_values_of_another_version_are_read(writer, reader, value, expected):
    data = written(record(('x', writer), ('end', 'int')), {'x': value, 'end': 9})
    assert read_as(record(('end', 'int'), ('x', reader)), record(('x', writer), ('end', 'int')), data) == {
        'end': 9, 'x': expected}


@pytest.mark.parametrize(
    ('kind', 'default', 'expected'),
    [
        ('bytes', '\u00ff', b'\xff'),
        (logical('bytes', 'decimal', precision=4, scale=1), '\u0010', Decimal('1.6')),
        (logical('long', 'timestamp-millis'), 1, datetime.datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)),
        (['null', 'int'], None, None),
        (['string', 'int'], 'x', {'member0': 'x', 'member1': None}),
        (record(('a', 'bytes'), ('b', 'int', 3), name='In'), {'a': 'z'}, {'a': b'z', 'b': 3}),
        ({'type': 'array', 'items': 'bytes'}, ['\u00e9'], [b'\xe9']),
        ({'type': 'map', 'values': ['null', 'int']}, {'k': None}, [('k', None)]),
    ],
)
def test_a_field_that_the_writer_lacks_has_its_default(kind, default, expected):
    writer = record(('a', 'int'))
    assert read_as(record(('a', 'int'), ('x', kind, default)), writer, written(writer, {'a': 1})) == {
        'a': 1, 'x': expected}


def test_a_top_level_union_of_records_is_a_struct_of_its_members():
    one, other = record(('a', 'int'), name='A'), record(('b', 'string'), name='B')
    data = fastavro.parse_schema([one, other])
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, data, ('B', {'b': 'x'}))
    assert read_as([one, other], [other, one], stream.getvalue()[:0] + b'\0' + stream.getvalue()[1:]) == {
        'member0': None, 'member1': {'b': 'x'}}


def test_a_named_type_may_be_used_several_times():
    inner = record(('v', 'int'), name='In')
    schema = record(('a', inner), ('b', 'In'), ('c', ['null', 'In']), ('d', {'type': 'array', 'items': 'In'}))
    value = {'a': {'v': 1}, 'b': {'v': 2}, 'c': {'v': 3}, 'd': [{'v': 4}]}
    assert read_as(schema, schema, written(schema, value)) == value


def test_references_are_written_into_the_text_of_the_schema():
    street = record(('s', 'string'), name='n.Street')
    address = record(('street', 'n.Street'), name='n.Address')
    top = record(('home', 'n.Address'), ('work', 'n.Street'))
    chosen = AvroFormat(json.dumps(top), {'n.Street': json.dumps(street), 'n.Address': json.dumps(address)})
    alone = AvroFormat(chosen.text)
    assert alone.type == chosen.type == pa.struct([
        ('home', pa.struct([('street', pa.struct([('s', pa.string())]))])), ('work', pa.struct([('s', pa.string())]))])


@pytest.mark.parametrize(
    ('schema', 'message'),
    [
        ('{', 'which is not an Avro schema'),
        ('nonsense', 'which is not an Avro schema'),
        ('{"type": "record", "fields": []}', 'which is not an Avro schema'),
        ('{"type": "record", "name": "R", "fields": [{"name": "x", "type": "Other"}]}', 'which is not an Avro schema'),
        ('[' * 100_000, 'which is not an Avro schema'),
        ('"int"', 'found an Avro schema of type int, expected a record'),
        (json.dumps(record(('x', 'null'))), 'found the Avro field x of type null'),
        (json.dumps(record()), 'without fields'),
        (json.dumps(record(('x', 'int'), ('x', 'long'))), 'found the field x of the Avro record R again'),
        (json.dumps(record(('x', ['null', 'R']))), 'R contains itself: a column cannot have a recursive type'),
        (json.dumps(record(('x', {'type': 'array', 'items': 'R'}))), 'R contains itself'),
        (json.dumps(record(('x', logical('bytes', 'decimal', precision=39)))), 'expected a precision of 1 to 38'),
    ],
)
def test_a_schema_that_cannot_be_columns_is_refused(schema, message):
    with pytest.raises(RegistryError) as raised:
        AvroFormat(schema)
    assert message in str(raised.value)
    assert '\n' not in str(raised.value)


def test_a_schema_that_doubles_at_each_level_is_refused():
    """Each record names the one before it twice, so a text of 3 KB has 2^40 columns."""
    schema = record(('x', 'int'), name='R0')
    for each in range(1, 40):
        schema = record(('a', schema), ('b', f'R{each - 1}'), name=f'R{each}')
    with pytest.raises(RegistryError, match='more than 10000 types'):
        AvroFormat(json.dumps(schema))


@pytest.mark.parametrize(
    ('writer', 'reader'),
    [
        (record(('x', 'string')), record(('x', 'int'))),
        (record(('x', 'long')), record(('x', 'int'))),
        (record(('x', 'int')), record(('x', 'int'), ('y', 'int'))),
        (record(('x', fixed(2))), record(('x', fixed(3)))),
        (record(('x', logical('bytes', 'decimal', precision=9, scale=2))),
         record(('x', logical('bytes', 'decimal', precision=9, scale=3)))),
        (record(('x', logical('long', 'timestamp-micros'))), record(('x', logical('long', 'timestamp-millis')))),
        (record(('x', 'boolean')), record(('x', ['int', 'string']))),
        (record(('x', 'int'), ('more', ['null', 'R'])), record(('x', 'int'))),
        (record(('x', 'int'), ('more', {'type': 'array', 'items': 'null'})), record(('x', 'int'))),
        (record(('x', {'type': 'array', 'items': record(name='Empty')})),
         record(('x', {'type': 'array', 'items': record(('y', 'int', 0), name='Empty')}))),
    ],
)
def test_a_schema_that_does_not_fit_makes_its_values_undecodable(writer, reader):
    with pytest.raises(Undecodable):
        AvroFormat(json.dumps(reader)).values_of(json.dumps(writer), {}, ())


@contextlib.contextmanager
def at_most_mib(limit):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit << 20
    finally:
        tracemalloc.stop()


def zigzag(number):
    rest, found = number << 1, bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*found, rest])


@pytest.mark.parametrize(
    ('kind', 'data'),
    [
        ('bytes', zigzag(2 << 30) + b'abc'),
        ('string', zigzag(2**62) + b'abc'),
        ('bytes', b'\1abc'),
        ('string', zigzag(2) + b'\xff\xff'),
        ({'type': 'array', 'items': 'int'}, zigzag(2**62) + b'abc'),
        ({'type': 'map', 'values': 'int'}, zigzag(2**62) + b'\2a\2'),
        (['null', 'int'], zigzag(7)),
        ({'type': 'enum', 'name': 'E', 'symbols': ['A']}, zigzag(1)),
        ('int', zigzag(2**40)),
        ('int', b''),
        ('int', zigzag(1) + b'more'),
        ('double', b'1234567'),
        (logical('int', 'date'), zigzag(2**31)),
        (logical('long', 'timestamp-millis'), zigzag(2**62)),
        (logical('bytes', 'decimal', precision=2, scale=0), zigzag(1) + b'\x64'),
        (logical('bytes', 'decimal', precision=38, scale=0), zigzag(100_000) + b'\x7f' * 100_000),
    ],
)
def test_a_damaged_value_is_undecodable(kind, data):
    assert is_undecodable(record(('x', kind)), record(('x', kind)), data)


@pytest.mark.parametrize(
    ('kind', 'data'),
    [
        ('bytes', zigzag(2 << 30) + b'abc'),
        ({'type': 'array', 'items': 'int'}, zigzag(2**62) + b'abc'),
        ({'type': 'array', 'items': 'int'}, b'\1' + zigzag(2**62) + b'abc'),
        ({'type': 'map', 'values': 'int'}, zigzag(2**62) + b'\2a\2'),
        (['null', 'int'], zigzag(7)),
        (fixed(2**31 - 1), b'abc'),
    ],
)
def test_a_length_that_the_value_states_allocates_nothing(kind, data):
    """One of the readers does not have the field."""
    with at_most_mib(8):
        for reader in (record(('y', 'int', 1)), record(('x', kind))):
            assert is_undecodable(reader, record(('x', kind)), data)


def test_a_member_that_the_reader_lacks_makes_only_its_values_undecodable():
    writer, reader = record(('x', ['null', 'int', 'string'])), record(('x', 'string'))
    assert read_as(reader, writer, written(writer, {'x': 'a'})) == {'x': 'a'}
    assert is_undecodable(reader, writer, written(writer, {'x': None}))
    assert is_undecodable(reader, writer, written(writer, {'x': 1}))


def test_the_member_of_a_union_with_the_reader_s_name_is_the_one_that_is_read():
    one, other = record(('a', 'int'), name='x.A'), record(('a', 'int'), name='x.B')
    writer, reader = record(('x', [one, other])), record(('x', {**other, 'name': 'B'}))
    assert read_as(reader, writer, written(writer, {'x': ('x.B', {'a': 2})})) == {'x': {'a': 2}}
    assert is_undecodable(reader, writer, written(writer, {'x': ('x.A', {'a': 1})}))
    without = record(('x', record(('a', 'int'), name='C')))
    assert read_as(without, writer, written(writer, {'x': ('x.A', {'a': 1})})) == {'x': {'a': 1}}


def test_a_decimal_with_too_many_digits_is_not_rounded():
    """fastavro's own reader rounds it to the precision of the schema."""
    writer = record(('x', logical('bytes', 'decimal', precision=9, scale=2)))
    reader = record(('x', logical('bytes', 'decimal', precision=4, scale=2)))
    assert read_as(reader, writer, written(writer, {'x': Decimal('12.34')})) == {'x': Decimal('12.34')}
    assert is_undecodable(reader, writer, written(writer, {'x': Decimal('123.45')}))


def test_apache_avro_reads_the_same_values():
    from avro.io import BinaryDecoder, DatumReader
    from avro.schema import parse
    writer = record(('a', 'int'), ('s', 'string'), ('l', {'type': 'array', 'items': 'long'}), ('u', ['null', 'double']))
    reader = record(('u', ['null', 'double']), ('a', 'double'), ('n', 'string', 'none'),
                    ('l', {'type': 'array', 'items': 'long'}))
    for number in range(20):
        data = written(writer, {'a': number, 's': 'x' * number, 'l': list(range(number)), 'u': number / 2 or None})
        judged = DatumReader(parse(json.dumps(writer)), parse(json.dumps(reader))).read(BinaryDecoder(io.BytesIO(data)))
        assert read_as(reader, writer, data) == judged

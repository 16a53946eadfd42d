"""The conversion of batches to columns, also of batches with damaged fields."""
import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from kbroker.base.errors import KafkaError
from kbroker.record.batch import CorruptBatchError, encode_batch
from kbroker.record.batch_filter import BatchFilter, TransactionRanges
from kbroker.record.columns import COLUMNS, RECORD_COLUMNS, ColumnDecoder, RecordColumns
from kbroker.record.records import decode_records
from kbroker.wire.crc32c import crc32c
from kbroker_tools.spark.schema import FIELDS, Assembler

T = 1_700_000_000_000
MUTATIONS = 6_000


def batch_of(rows, base_offset=0, **options):
    return bytearray(encode_batch(rows, base_offset=base_offset, **options))


def random_rows(chance):
    return [(T + number, chance.choice([None, b'', b'key' * number]), chance.choice([None, b'', b'v' * 40 * number]),
             [('h', chance.choice([None, b'x'])), ('', b'')][:chance.randrange(3)]) for number in range(20)]


def taken(decoder, assembler):
    count, columns = decoder.take()
    found = assembler.batch(count, columns)
    try:
        found.validate(full=True)
    except pa.ArrowInvalid as error:  # a header's name may not be UTF-8; Spark gets it unchanged
        assert 'Invalid UTF8' in str(error)
    return found


def with_right_crc(batch):
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, 'big')
    return batch


def test_nothing_is_kept_of_a_batch_whose_damage_shows_after_some_records():
    sound = batch_of([(T, b'a', b'1', [('h', b'x')]), (T, None, None)], producer_id=5, producer_epoch=0,
                     base_sequence=0)
    torn = batch_of([(T, b'c', b'3', [('h', b'y'), ('i', None)]), (T, b'd', b'4'), (T, b'e', b'5')], base_offset=2)
    torn[-9] = 0x7f  # a length in the last record
    last = batch_of([(T, None, b'6', [('j', b'z')])], base_offset=5)
    assembler = Assembler(list(FIELDS), 'topic', 0)
    decoder = ColumnDecoder(assembler.columns)
    decoder.feed(sound, BatchFilter())
    with pytest.raises(CorruptBatchError, match='batch at offset 2'):
        decoder.feed(with_right_crc(torn), BatchFilter())
    decoder.feed(last, BatchFilter())
    found = taken(decoder, assembler).to_pylist()
    assert [(row['offset'], row['key'], row['value'], row['producer_id']) for row in found] == [
        (0, b'a', b'1', 5), (1, None, None, 5), (5, None, b'6', -1)]
    assert [row['headers'] for row in found] == [
        [{'key': 'h', 'value': b'x'}], None, [{'key': 'j', 'value': b'z'}]]


def test_bytes_behind_the_last_record_are_damage():
    batch = batch_of([(T, b'a', b'1'), (T, b'b', b'2')])
    batch[57:61] = (1).to_bytes(4, 'big')
    with pytest.raises(CorruptBatchError, match='bytes after the last of 1 records'):
        ColumnDecoder(['key']).feed(with_right_crc(batch), BatchFilter())


def test_offsets_that_go_back_are_damage():
    decoder = ColumnDecoder(['offset'])
    decoder.feed(batch_of([(T, b'a', b'1')], base_offset=7), BatchFilter())
    with pytest.raises(CorruptBatchError, match='found a batch at offset 3, expected 8 or above'):
        decoder.feed(batch_of([(T, b'a', b'1')], base_offset=3), BatchFilter())


@pytest.mark.parametrize('codec', range(5))
def test_columns_say_what_the_records_say(codec):
    batch = batch_of(random_rows(random.Random(codec)), base_offset=100, compression=codec, producer_id=1,
                     producer_epoch=2, base_sequence=30, transactional=True)
    assembler = Assembler(list(FIELDS), 'topic', 3)
    decoder = ColumnDecoder(assembler.columns)
    assert decoder.feed(batch, TransactionRanges([], {}), start_offset=103, end_offset=117) == len(batch)
    found = taken(decoder, assembler).to_pylist()
    expected = decode_records(batch)[3:17]
    assert [(row['offset'], row['key'], row['value'], row['sequence']) for row in found] == [
        (record.offset, record.key, record.value, record.sequence) for record in expected]
    assert [[(header['key'], header['value']) for header in row['headers'] or ()] for row in found] == [
        record.headers for record in expected]
    assert {(row['topic'], row['partition'], row['outcome'], row['batch_base_offset']) for row in found} == {
        ('topic', 3, 'committed', 100)}


@pytest.mark.parametrize('columns', [COLUMNS, ('value',), ()])
def test_a_damaged_batch_is_refused_or_decoded_and_never_more(columns):
    """The checksum of the batch is valid, so the later checks must detect the damage without it."""
    chance, refused = random.Random(4711), 0
    fields = [field for field in FIELDS if field.decoded in columns]
    for number in range(MUTATIONS // (1 if columns == COLUMNS else 4)):
        codec = chance.choice([0, 0, 0, 1, 2, 3, 4])
        batch = batch_of(random_rows(chance), base_offset=1, compression=codec, producer_id=1, producer_epoch=0,
                         base_sequence=0, transactional=True)
        for _ in range(chance.randrange(1, 4)):
            batch[chance.randrange(len(batch))] = chance.randrange(256)
        if number % 2:
            batch = with_right_crc(batch)
        assembler = Assembler(fields, 'topic', 0, 'null')    # some damaged timestamps exceed Spark's range
        decoder = ColumnDecoder(assembler.columns, check_crcs=number % 3 != 0, batch_rows=7)
        decoder.feed(batch_of([(T, b'k', b'v', [('h', b'x')])]), BatchFilter())
        try:
            decoder.feed(batch, BatchFilter())
        except KafkaError:
            refused += 1
            assert decoder.rows == 1
        assert taken(decoder, assembler).num_rows in range(1, 22)
    assert 0.2 < refused / number < 0.9


def test_a_column_that_is_not_requested_is_absent():
    decoder = ColumnDecoder(['value'])
    decoder.feed(batch_of([(T, b'k', b'v', [('h', b'x')])]), BatchFilter())
    assert decoder.take()[1].keys() == {'value'}
    with pytest.raises(ValueError, match="found columns \\['keys'\\]"):
        ColumnDecoder(['keys'])


def test_a_column_of_values_is_searched_like_any_sequence():
    decoder = ColumnDecoder(RECORD_COLUMNS)
    decoder.feed(batch_of([(T, None, value, []) for value in (b'a', None, b'b', b'a')]), BatchFilter())
    values = RecordColumns(decoder).values
    assert isinstance(values, Sequence)
    assert (values.index(b'a'), values.index(b'a', 1), values.index(None, 0, 2)) == (0, 3, 1)
    assert [values.count(value) for value in (b'a', None, b'b', b'c')] == [2, 1, 1, 0]
    with pytest.raises(ValueError):
        values.index(b'b', -1)


def test_arrow_takes_over_the_buffers_as_they_are():
    decoder = ColumnDecoder(['value'])
    decoder.feed(batch_of([(T, b'k', b'v')]), BatchFilter())
    _, columns = decoder.take()
    _, _, _, _, data = columns['value']
    before = pa.py_buffer(data).to_pybytes()
    decoder.feed(batch_of([(T, b'k', b'other')], base_offset=1), BatchFilter())
    assert pa.py_buffer(data).to_pybytes() == before == b'v'


def test_a_returned_buffer_stays_unchanged_while_it_is_referenced():
    """A `take` reuses the buffers of the second-to-last `take`, but only if nothing refers to them."""
    assembler = Assembler(list(FIELDS), 'topic', 0)
    for keeps in (True, False):
        decoder = ColumnDecoder(assembler.columns)
        kept = []
        for number in range(12):
            text = str(number).encode() * 50
            rows = [(T + number, text if row % 2 else None, text, [('h', text)]) for row in range(9)]
            decoder.feed(batch_of(rows, base_offset=number * 9), BatchFilter())
            found = taken(decoder, assembler)
            assert found.column('value').to_pylist() == [text] * 9
            assert found.column('key').to_pylist() == [None, text] * 4 + [None]
            assert found.column('offset').to_pylist() == list(range(number * 9, number * 9 + 9))
            if keeps:
                kept.append((found, found.to_pylist()))
        assert all(found.to_pylist() == rows for found, rows in kept)


def test_nothing_is_taken_twice():
    assembler = Assembler(list(FIELDS), 'topic', 0)
    decoder = ColumnDecoder(assembler.columns)
    decoder.feed(batch_of([(T, b'a', b'1')]), BatchFilter())
    assert [taken(decoder, assembler).num_rows for _ in range(3)] == [1, 0, 0]

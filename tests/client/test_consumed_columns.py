"""A consumer turns answers to Fetch into columns of records, and reports damaged ones."""
from types import SimpleNamespace

import pyarrow as pa
import pytest
from support.brokers.scripted_broker import ScriptedBroker, running

from kbroker.base.errors import ErrorCode
from kbroker.client import ConsumedBatch, Consumer, KafkaError, Record
from kbroker.client.consumed import FetchedPartition, FetchedRecords, next_offset
from kbroker.protocol import messages
from kbroker.record.batch import encode_batch, set_base_offset
from kbroker.record.compression import Compression
from kbroker.record.control import encode_end_txn_marker
from kbroker.wire.crc32c import crc32c

T = 1_700_000_000_000
LIMIT_MS = 120_000


def answer(*batches, fetch_offset=0, aborted=()):
    row = SimpleNamespace(records=b''.join(batches), aborted_transactions=[
        SimpleNamespace(producer_id=producer_id, first_offset=offset) for producer_id, offset in aborted])
    return FetchedPartition('t', 3, fetch_offset, row)


def all_of(fetched, batch_records=500, check_crcs=True):
    records, found = FetchedRecords(fetched, check_crcs, batch_records), []
    while not records.is_finished:
        batch = records.take()
        if batch is not None:
            found.append(batch)
    assert records.offset == next_offset(fetched)
    return found


def values_of(batches):
    return [value for batch in batches for value in batch.values]


def batch_at(offset, *values, **options):
    return bytes(encode_batch([(T + offset + place, None, value) for place, value in enumerate(values)],
                              base_offset=offset, **options))


def with_right_crc(batch):
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, 'big')
    return bytes(batch)


ROWS = [(T, b'k', b'v', [('h', b'1'), ('', None)]), (T + 7, None, b''), (T - 3, b'', None, [('h', b'2')]),
        (T, b'key', b'value' * 100)]


@pytest.mark.parametrize('compression', list(Compression))
def test_columns_and_records_have_what_was_written(compression):
    written = encode_batch(ROWS, base_offset=70, compression=compression, partition_leader_epoch=4, producer_id=1,
                           producer_epoch=0, base_sequence=9)
    batch, = all_of(answer(written))
    assert isinstance(batch, ConsumedBatch)
    assert (batch.topic, batch.partition, len(batch)) == ('t', 3, 4)
    assert list(batch.keys) == [b'k', None, b'', b'key']
    assert list(batch.values) == [b'v', b'', None, b'value' * 100]
    assert list(batch.offsets) == [70, 71, 72, 73]
    assert list(batch.timestamps) == [T, T + 7, T - 3, T]
    records = batch.records()
    assert records == [Record(70 + place, row[0], row[1], row[2], row[3] if len(row) > 3 else (), 9 + place)
                       for place, row in enumerate(ROWS)]
    assert {(record.leader_epoch, record.timestamp_type) for record in records} == {(4, 'CreateTime')}
    assert repr(batch) == '<4 records of t-3, offsets 70 to 73>'


def test_the_times_of_the_broker_replace_those_of_the_producer():
    batch, = all_of(answer(encode_batch(ROWS, log_append_time_ms=T + 99)))
    assert list(batch.timestamps) == [T + 99] * 4
    assert {(record.timestamp_ms, record.timestamp_type, record.leader_epoch) for record in batch.records()} == {
        (T + 99, 'LogAppendTime', -1)}


def test_a_column_of_bytes_is_a_sequence_and_an_arrow_array():
    batch, = all_of(answer(batch_at(0, b'a', None, b'', b'dd')))
    values = batch.values
    assert (values[0], values[-1], values[1:3], len(values)) == (b'a', b'dd', [None, b''], 4)
    assert b'dd' in values
    for wrong in (4, -5):
        with pytest.raises(IndexError, match=f'found index {wrong}, expected one within 4 values'):
            values[wrong]
    array = pa.array(values)
    del batch, values
    array.validate(full=True)
    assert (array.type, array.null_count, array.to_pylist()) == (pa.binary(), 1, [b'a', None, b'', b'dd'])


def test_an_arrow_array_shares_the_memory_of_its_column():
    batch, = all_of(answer(batch_at(0, b'abc')))
    array = pa.array(batch.values)
    assert array.buffers()[2].address == pa.py_buffer(batch.values.data).address
    assert array.buffers()[1].address == pa.py_buffer(batch.values.ends).address
    batch.values.__arrow_c_array__()    # capsules that nothing takes release the column


def test_columns_stay_as_they_are_while_later_ones_are_decoded():
    found = all_of(answer(*(batch_at(place, b'%d' % place * 5000) for place in range(20))), batch_records=1)
    assert [list(batch.values) for batch in found] == [[b'%d' % place * 5000] for place in range(20)]
    assert [list(batch.offsets) for batch in found] == [[place] for place in range(20)]


def test_batches_of_the_partition_are_joined_up_to_the_wanted_number_and_never_split():
    pieces = [batch_at(0, b'a', b'b'), batch_at(2, b'c'), batch_at(3, b'd', b'e', b'f'), batch_at(6, b'g')]
    assert [len(batch) for batch in all_of(answer(*pieces))] == [7]
    assert [len(batch) for batch in all_of(answer(*pieces), batch_records=3)] == [3, 3, 1]
    assert [len(batch) for batch in all_of(answer(*pieces), batch_records=1)] == [2, 1, 3, 1]


def test_offsets_below_the_position_and_gaps_are_left_out():
    fetched = answer(batch_at(0, b'a', b'b'), batch_at(7, b'c'), batch_at(20, b'd'), fetch_offset=1)
    batch, = all_of(fetched)
    assert (list(batch.values), list(batch.offsets)) == ([b'b', b'c', b'd'], [1, 7, 20])
    assert next_offset(fetched) == 21


def test_records_of_aborted_transactions_and_markers_are_left_out():
    def marker(offset, producer_id, commits):
        marker = encode_end_txn_marker(commit=commits, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0,
                                       timestamp_ms=T)
        set_base_offset(marker, offset)
        return bytes(marker)

    def data(offset, producer_id):
        return batch_at(offset, b'%d' % offset, producer_id=producer_id, producer_epoch=0, base_sequence=0,
                        transactional=True)

    log = [data(0, 1), data(1, 2), marker(2, 1, False), data(3, 1), marker(4, 2, True),
           marker(5, 1, True)]
    assert values_of(all_of(answer(*log, aborted=[(1, 0)]))) == [b'1', b'3']
    assert values_of(all_of(answer(*log, aborted=[(1, 0)]), batch_records=1)) == [b'1', b'3']
    assert values_of(all_of(answer(*log))) == [b'0', b'1', b'3']
    assert all_of(answer(*log[4:])) == []


def test_an_unfinished_batch_at_the_end_is_left_for_the_next_answer():
    fetched = answer(batch_at(0, b'a'), batch_at(1, b'b')[:-1])
    assert (values_of(all_of(fetched)), next_offset(fetched)) == ([b'a'], 1)


def damaged_record():
    """Return a batch with the offsets 2 and 3 whose CRC is right, and whose second record is cut short."""
    batch = encode_batch([(T, None, b'c'), (T, None, b'd')], base_offset=2)
    batch[-3] = 0x7f
    return with_right_crc(batch)


def other_byte():
    batch = bytearray(batch_at(2, b'c', b'd'))
    batch[-2] ^= 1
    return bytes(batch)


@pytest.mark.parametrize('damaged', [damaged_record, other_byte])
def test_a_damaged_batch_is_an_error_with_its_place_after_the_records_before_it(damaged):
    records = FetchedRecords(answer(batch_at(0, b'a', b'b'), damaged(), batch_at(4, b'e')), True, 500)
    assert list(records.take().values) == [b'a', b'b']
    for _ in range(2):
        with pytest.raises(KafkaError, match=r'^t-3, offset 2: .*; the records after the batch begin at offset 4'
                           ) as caught:
            records.take()
        assert (caught.value.code, records.offset, records.is_finished) == (ErrorCode.CORRUPT_MESSAGE, 2, False)


def test_without_the_check_of_checksums_a_changed_value_is_read():
    assert values_of(all_of(answer(batch_at(0, b'a', b'b'), other_byte()), check_crcs=False)) == [
        b'a', b'b', b'c', b'e']


def test_a_header_that_cannot_be_read_is_an_error_at_the_position():
    records = FetchedRecords(answer(batch_at(5, b'a'), bytes(100), fetch_offset=5), True, 500)
    assert list(records.take().values) == [b'a']
    with pytest.raises(KafkaError, match=r'^t-3, offset 6: '):
        records.take()


def test_a_batch_that_expands_too_far_is_an_error_at_its_offset(monkeypatch):
    monkeypatch.setattr('kbroker.client.consumed.MAX_DECOMPRESSED_BYTES', 1000)
    records = FetchedRecords(answer(batch_at(4, bytes(10_000), compression=Compression.GZIP)), True, 500)
    with pytest.raises(KafkaError, match=r'^t-3, offset 4: ') as caught:
        records.take()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


class DamagedLog(ScriptedBroker):
    """A broker of one partition whose offsets 2 and 3 are damaged."""

    def __init__(self):
        super().__init__()
        self.batches = {0: batch_at(0, b'a', b'b'), 2: other_byte(), 4: batch_at(4, b'e')}
        self.answers |= {'Fetch': self.fetch}

    def fetch(self, request):
        offset = request.topics[0].partitions[0].fetch_offset
        response = messages.FetchResponse
        return response(responses=[response.FetchableTopicResponse(topic='orders', partitions=[response.PartitionData(
            partition_index=0, high_watermark=5,
            records=b''.join(batch for base, batch in self.batches.items() if base >= offset))])])


def test_records_are_returned_before_the_error_of_another_topic():
    """The answer has records of one topic, and an error for another topic, which was deleted."""
    broker = DamagedLog()
    fetch, metadata, missing = broker.fetch, broker.metadata, []

    def fetch_and_delete(request):
        answer, response = fetch(request), messages.FetchResponse
        missing.append('gone')
        answer.responses.append(response.FetchableTopicResponse(topic='gone', partitions=[response.PartitionData(
            partition_index=0, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]))
        return answer

    def metadata_of_the_rest(request):
        answer = metadata(request)
        for topic in answer.topics:
            if topic.name in missing:
                topic.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return answer

    broker.answers |= {'Fetch': fetch_and_delete, 'Metadata': metadata_of_the_rest}
    with running(broker), Consumer(f'127.0.0.1:{broker.port}', check_crcs=False) as consumer:
        consumer.assign([('orders', 0), ('gone', 0)])
        for partition in consumer.assignment:
            consumer.seek(*partition, 0)
        assert values_of(consumer.poll(LIMIT_MS)) == [b'a', b'b', b'c', b'e', b'e']
        with pytest.raises(KafkaError, match='topic gone: UNKNOWN_TOPIC_OR_PARTITION'):
            consumer.poll(LIMIT_MS)


def test_what_an_interrupted_poll_has_not_returned_is_not_read(monkeypatch):
    take, taken = FetchedRecords.take, []

    def interrupted(records):
        if taken:
            raise KeyboardInterrupt
        taken.append(take(records))
        return taken[-1]

    with running(DamagedLog()) as broker, Consumer(f'127.0.0.1:{broker.port}', max_poll_records=1,
                                                   check_crcs=False) as consumer:
        consumer.assign([('orders', 0)])
        consumer.seek('orders', 0, 0)
        monkeypatch.setattr(FetchedRecords, 'take', interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(LIMIT_MS)
        assert consumer.position('orders', 0) == 0
        monkeypatch.setattr(FetchedRecords, 'take', take)
        assert values_of(consumer.poll(LIMIT_MS)) == [b'a', b'b', b'c', b'e', b'e']


def test_the_position_stays_at_a_damaged_batch_until_the_program_seeks():
    with running(DamagedLog()) as broker, Consumer(f'127.0.0.1:{broker.port}', max_poll_records=1) as consumer:
        consumer.assign([('orders', 0)])
        consumer.seek('orders', 0, 0)
        assert values_of(consumer.poll(LIMIT_MS)) == [b'a', b'b']
        for _ in range(2):
            with pytest.raises(KafkaError, match=r'^orders-0, offset 2: '):
                consumer.poll(LIMIT_MS)
            assert consumer.position('orders', 0) == 2
        consumer.seek('orders', 0, 4)
        assert list(next(iter(consumer)).values) == [b'e']
        consumer.seek('orders', 0, 0)
        found = iter(consumer)
        assert list(next(found).values) == [b'a', b'b']
        with pytest.raises(KafkaError, match=r'^orders-0, offset 2: '):
            next(found)
        assert consumer.position('orders', 0) == 2
        assert consumer.stats()['records_consumed_total'] == 5

"""A queue that encodes records one by one makes the same batch as the encoder that gets all records at once."""
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.base.clock import ManualClock
from kbroker.client.accumulator import PartitionQueue
from kbroker.client.partition_buffer import SpareBuffers
from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker.client.record_appender import record_bytes
from kbroker.record.batch import HEADER_BYTES, encode_batch
from kbroker.record.compression import Compression
from kbroker.record.records import decode_records

BLOBS = st.none() | st.binary(max_size=200)
RECORDS = st.lists(st.tuples(
    st.integers(0, 1 << 42), BLOBS, BLOBS, st.lists(st.tuples(st.text(max_size=8), BLOBS), max_size=3)), min_size=1)


def closed_batch(records, codec=Compression.NONE, contexts=None):
    """Return the one batch of a queue that got these records."""
    queue = PartitionQueue('t', 0, 1 << 20, codec)
    for number, (timestamp_ms, key, value, headers) in enumerate(records):
        queue.append(timestamp_ms, key, value, headers, contexts[number] if contexts else None, ManualClock())
    queue.close_open()
    return queue.take(ProducerIdAndEpoch())


@settings(max_examples=60)
@given(RECORDS, st.sampled_from(Compression), st.booleans())
def test_a_batch_that_grew_is_equal_to_one_that_was_encoded_at_once(records, codec, transactional):
    batch = closed_batch(records, codec)
    batch.number(ProducerIdAndEpoch(1 << 40, 12), 77)
    assert batch.encoded(transactional) == encode_batch(
        records, compression=codec, producer_id=1 << 40, producer_epoch=12, base_sequence=77,
        transactional=transactional)


@settings(max_examples=40)
@given(RECORDS, st.integers(0, 600))
def test_full_batches_hold_every_record_in_order_and_stay_within_their_size(records, batch_bytes):
    queue, size = PartitionQueue('t', 0, batch_bytes), 0
    for record in records:
        size += queue.append(*record, None, ManualClock())
    queue.close_open()
    found = []
    for batch in queue.waiting:
        encoded = batch.encoded(False)
        assert batch.records_count == 1 or len(encoded) <= batch_bytes
        assert len(encoded) == batch.size_bytes == HEADER_BYTES + batch.reserved_bytes
        found += [(each.timestamp_ms, each.key, each.value, each.headers) for each in decode_records(encoded)]
    assert found == records
    assert size == sum(batch.reserved_bytes for batch in queue.waiting)


@pytest.mark.parametrize('codec', [Compression.NONE, Compression.LZ4])
def test_halves_are_the_batches_of_their_records_and_release_what_the_whole_reserved(codec):
    records = [(number << 40, b'k', b'v' * number, [('h', None)]) for number in range(5)]
    whole = closed_batch(records, codec, list('abcde'))
    whole.number(ProducerIdAndEpoch(7, 0), 10)
    halves = whole.halves(None)
    assert [half.contexts for half in halves] == [['a', 'b'], ['c', 'd', 'e']]
    for half, part, sequence in zip(halves, (records[:2], records[2:]), (10, 12), strict=True):
        assert half.encoded(False) == encode_batch(part, compression=codec, producer_id=7, producer_epoch=0,
                                                   base_sequence=sequence)
    assert sum(half.reserved_bytes for half in halves) == whole.reserved_bytes


def test_other_numbers_change_only_the_header_and_its_checksum():
    records = [(5, None, b'value', []), (3, None, b'other', [])]
    batch = closed_batch(records)
    before = bytes(batch.encoded(False))
    batch.number(ProducerIdAndEpoch(9, 1), 4)
    after = batch.encoded(False)
    assert after[HEADER_BYTES:] == before[HEADER_BYTES:]
    assert after == encode_batch(records, producer_id=9, producer_epoch=1, base_sequence=4)


@given(RECORDS)
def test_a_record_is_never_larger_than_estimated(records):
    for timestamp_ms, key, value, headers in records:
        batch = closed_batch([(0, None, None, []), (timestamp_ms, key, value, headers)])
        assert batch.reserved_bytes <= record_bytes(None, None, []) + record_bytes(key, value, headers)


def test_contexts_are_kept_from_the_first_record_that_has_one():
    records = [(0, None, b'', [])] * 3
    assert closed_batch(records).contexts == []
    assert closed_batch(records, contexts=[None, 'x', None]).contexts == [None, 'x', None]


def test_a_batch_whose_compression_fails_stays_open_and_whole():
    queue = PartitionQueue('t', 0, 1000, Compression.GZIP, 99)
    queue.append(0, None, b'a', (), None, ManualClock())
    with pytest.raises(zlib.error, match='compression level'):
        queue.close_open()
    queue.append(0, None, b'b', (), None, ManualClock())
    assert queue.open.records_count == 2


@pytest.mark.parametrize('value', ['text', 5])
def test_a_value_that_is_no_bytes_is_refused(value):
    queue = PartitionQueue('t', 0, 1000)
    with pytest.raises(TypeError):
        queue.append(0, None, value, (), None, ManualClock())
    assert queue.is_empty


def next_batch(queue, letter):
    """Return a batch of the queue that is three quarters full of values of one letter."""
    for _ in range(30):
        queue.append(1000, None, letter * 100, None, None, ManualClock())
    queue.close_open()
    return queue.take(ProducerIdAndEpoch())


@pytest.mark.parametrize('codec', [Compression.NONE, Compression.LZ4])
def test_a_batch_is_written_to_the_memory_of_one_that_is_done_and_has_nothing_of_it(codec):
    queue = PartitionQueue('t', 0, 4096, codec, None, SpareBuffers(4096))
    before = next_batch(queue, b'a')
    address = id(before.encoded(False))
    before.buffer.release()
    found = next_batch(queue, b'b').encoded(False)
    assert found == next_batch(PartitionQueue('t', 0, 4096, codec), b'b').encoded(False)
    assert codec or id(found) == address


def test_memory_is_used_again_only_after_its_last_reader():
    queue = PartitionQueue('t', 0, 4096, 0, None, SpareBuffers(4096))
    gave_up = next_batch(queue, b'a')
    unsent = memoryview(gave_up.encoded(False))     # the connection has not sent all of it
    before = bytes(unsent)
    gave_up.buffer.release()
    next_batch(queue, b'b')
    assert unsent == before


BATCH_BYTES = 64 * 1024
SPARE_BYTES = 4 << 20
"""The most memory of finished batches that is retained for reuse. Open batches may hold as much again."""


@pytest.fixture
def allocated_bytes():
    """Yield a function that returns the number of bytes that were allocated since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()


def send_full_batch(queue):
    """Fill a batch, remove it from the queue and finish it. The first record that did not fit into it remains in an
    open batch."""
    for _ in range(BATCH_BYTES // 1024):
        queue.append(0, None, bytes(1024), None, None, ManualClock())
    batch = queue.take(ProducerIdAndEpoch())
    queue.finish(batch)
    batch.buffer.release()


def test_small_batches_beside_full_ones_hold_the_memory_of_their_records(allocated_bytes):
    spares = SpareBuffers(BATCH_BYTES)
    busy = PartitionQueue('t', 0, BATCH_BYTES, spares=spares)
    quiet = [PartitionQueue('t', index, BATCH_BYTES, spares=spares) for index in range(1, 101)]
    for queue in quiet:
        send_full_batch(busy)
        queue.append(0, None, b'x', None, None, ManualClock())
    assert allocated_bytes() < 100 * 2048 + 4 * BATCH_BYTES


def test_small_batches_behind_full_ones_share_a_bounded_memory(allocated_bytes):
    spares = SpareBuffers(BATCH_BYTES)
    queues = [PartitionQueue('t', index, BATCH_BYTES, spares=spares) for index in range(300)]
    for _ in range(2):
        for queue in queues:
            send_full_batch(queue)
            queue.close_open()
            queue.finish(queue.take(ProducerIdAndEpoch()))
            queue.append(0, None, bytes(1024), None, None, ManualClock())
    assert allocated_bytes() < 300 * 4096 + 2 * SPARE_BYTES


def test_the_next_batches_behind_full_ones_share_a_bounded_memory_while_they_are_open(allocated_bytes):
    spares = SpareBuffers(BATCH_BYTES)
    queues = [PartitionQueue('t', index, BATCH_BYTES, spares=spares) for index in range(300)]
    for queue in queues:
        send_full_batch(queue)
    assert allocated_bytes() < 300 * 8192 + 2 * SPARE_BYTES


def test_memory_is_used_again_however_many_batches_had_it():
    queue = PartitionQueue('t', 0, 1 << 20, spares=SpareBuffers(1 << 20))
    addresses = []
    others = []
    for _ in range(3 * SPARE_BYTES >> 20):
        queue.append(0, None, bytes(900_000), None, None, ManualClock())
        queue.close_open()
        batch = queue.take(ProducerIdAndEpoch())
        addresses.append(id(batch.encoded(False)))
        queue.finish(batch)
        batch.buffer.release()
        others += [bytearray() for _ in range(9)]       # they get the address of a buffer that was freed
    assert len(set(addresses[1:])) == 1


def test_a_batch_that_was_released_is_not_sent():
    queue = PartitionQueue('t', 0, 4096, 0, None, SpareBuffers(4096))
    batch = next_batch(queue, b'a')
    batch.buffer.release()
    with pytest.raises(AssertionError, match='released'):
        batch.encoded(False)

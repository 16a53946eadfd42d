"""`send_batch` makes the same batches from columns as a call of `send` for each row."""
from array import array
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.brokers.fake_cluster import FakeCluster

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client import Slices
from kbroker.client.partitioner import partition_for_key
from kbroker.client.producer import Producer
from kbroker.client.stream_settings import ProducerSettings
from kbroker.record.records import decode_records

HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3)
BLOBS = st.none() | st.binary(max_size=60)


def started(cluster, reports=None, **options):
    report = None if reports is None else reports.append
    return Producer(cluster, ProducerSettings(**options), report, ManualClock())


def sliced(values):
    offsets = [0]
    for value in values:
        offsets.append(offsets[-1] + len(value))
    return Slices(b''.join(values), array('q', offsets))


def chunked(values, kind):
    return pa.chunked_array([pa.array(part, kind) for part in ([], values[:3], values[3:])])


KINDS = {
    'list': list,
    'tuple of buffers': lambda values: tuple(value and bytearray(value) for value in values),
    'arrow binary': lambda values: pa.array(values, pa.binary()),
    'arrow large binary': lambda values: pa.array(values, pa.large_binary()),
    'arrow chunks': lambda values: chunked(values, pa.binary()),
    'arrow slice': lambda values: pa.array([b'before', None, *values], pa.binary())[2:],
}


@pytest.mark.parametrize('kind', KINDS)
@settings(max_examples=25)
@given(rows=st.lists(st.tuples(BLOBS, BLOBS, st.integers(0, 1 << 41)), max_size=30), batch_bytes=st.integers(0, 400))
def test_rows_of_a_partition_make_the_batches_of_single_sends(kind, rows, batch_bytes):
    each, together = FakeCluster(), FakeCluster()
    with started(each, batch_size_bytes=batch_bytes) as producer:
        for value, key, timestamp_ms in rows:
            producer.send('t', value, key, partition=0, timestamp_ms=timestamp_ms)
    with started(together, batch_size_bytes=batch_bytes) as producer:
        producer.send_batch('t', KINDS[kind]([row[0] for row in rows]), KINDS[kind]([row[1] for row in rows]),
                            partition=0, timestamps=array('q', [row[2] for row in rows]))
    assert together.broker.sent_bytes == each.broker.sent_bytes


@settings(max_examples=40)
@given(st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=40)), max_size=60), st.integers(1, 7))
def test_keyed_rows_go_to_the_partitions_of_their_keys_in_order(rows, partitions):
    cluster = FakeCluster(partitions)
    with started(cluster, batch_size_bytes=200) as producer:
        producer.send_batch('t', [value for _, value in rows], sliced([key for key, _ in rows]))
    found = {index: [] for index in range(partitions)}
    for partition, _, _, values in cluster.broker.sent:
        found[partition] += values
    assert found == {index: [value for key, value in rows if partition_for_key(key, partitions) == index]
                     for index in range(partitions)}


def test_rows_without_keys_fill_one_batch_after_the_other():
    cluster, reports = FakeCluster(3), []
    rows = [b'%02d' % number * 45 for number in range(40)]
    with started(cluster, reports, batch_size_bytes=1000) as producer:
        producer.send_batch('t', rows)
    batches = sorted((values, partition) for partition, _, _, values in cluster.broker.sent)
    assert [value for values, _ in batches for value in values] == rows
    assert [len(values) for values, _ in batches] == [9, 9, 9, 9, 4]
    assert all(before != after for (_, before), (_, after) in pairwise(batches))
    assert sum(delivery.records_count for delivery in reports) == 40


def test_rows_with_headers_and_a_context_come_back_with_it():
    cluster, reports = FakeCluster(), []
    with started(cluster, reports) as producer:
        producer.send_batch('t', pa.array(['a', None]), headers=[[('h', b'1')], []], timestamps=[5, 6], context='c')
    each = FakeCluster()
    with started(each) as producer:
        producer.send('t', b'a', headers=[('h', b'1')], timestamp_ms=5)
        producer.send('t', None, timestamp_ms=6)
    assert cluster.broker.sent_bytes == each.broker.sent_bytes
    assert [delivery.contexts for delivery in reports] == [['c', 'c']]


@settings(max_examples=40)
@given(st.lists(st.tuples(BLOBS, HEADERS | st.none()), max_size=30), st.integers(0, 400))
def test_headers_are_written_as_single_sends_write_them(rows, batch_bytes):
    each, together = FakeCluster(), FakeCluster()
    with started(each, batch_size_bytes=batch_bytes) as producer:
        for value, headers in rows:
            producer.send('t', value, headers=headers or ())
    with started(together, batch_size_bytes=batch_bytes) as producer:
        producer.send_batch('t', [value for value, _ in rows], headers=[headers for _, headers in rows])
    assert together.broker.sent_bytes == each.broker.sent_bytes


def test_the_bytes_of_a_header_name_that_is_not_utf_8_are_kept():
    cluster = FakeCluster()
    with started(cluster) as producer:
        producer.send_batch('t', [b'a'], headers=[[('h\udcff', bytearray(b'1'))]])
    record, = decode_records(cluster.broker.sent_bytes[0])
    assert record.headers == [('h\udcff', b'1')]


@pytest.mark.parametrize('timestamps', [
    pa.array([1, 2_000, 3]), pa.chunked_array([[1], [], [2_000, 3]]), pa.array([0, 1, 2_000, 3])[1:],
    pa.array([1, 2_000, 3], pa.timestamp('ms', 'UTC')), pa.array([1_999, 2_000_000, 3_000], pa.timestamp('us')),
    pa.array([1_000_000, 2_000_999_999, 3_000_000], pa.timestamp('ns', 'Europe/Berlin')),
], ids=['int64', 'chunks', 'slice', 'ms', 'us', 'ns'])
def test_arrow_arrays_of_times_are_timestamps(timestamps):
    cluster = FakeCluster()
    with started(cluster) as producer:
        producer.send_batch('t', [b'a', b'b', b'c'], timestamps=timestamps)
    assert [record.timestamp_ms for record in decode_records(cluster.broker.sent_bytes[0])] == [1, 2_000, 3]


def test_arrow_seconds_are_timestamps():
    cluster = FakeCluster()
    with started(cluster) as producer:
        producer.send_batch('t', [b'a'], timestamps=pa.array([7], pa.timestamp('s')))
    assert decode_records(cluster.broker.sent_bytes[0])[0].timestamp_ms == 7000


class BrokenStream:
    """A reader of Arrow batches whose source fails after the first."""

    def __arrow_c_stream__(self, requested_schema=None):
        def batches():
            yield pa.record_batch({'a': [b'1']})
            raise OSError('the source is gone')
        return pa.RecordBatchReader.from_batches(pa.schema({'a': pa.binary()}), batches()).__arrow_c_stream__()


@pytest.mark.parametrize(('columns', 'kind', 'message'), [
    ({'values': BrokenStream()}, ValueError, 'an Arrow stream failed with code .*the source is gone'),
    ({'values': pa.chunked_array([[1]])}, TypeError, "found an Arrow array of format 'l' as values"),
    ({'values': [b'a'], 'timestamps': pa.array(['x'])}, TypeError, "format 'u' as timestamps, expected int64"),
    ({'values': [b'a'], 'timestamps': pa.array([1, 2])}, ValueError, 'found 2 timestamps for 1 values'),
    ({'values': [b'a', b'b'], 'timestamps': pa.array([1, None])}, ValueError, 'found no timestamp in row 1'),
    ({'values': [b'a'], 'timestamps': pa.array([-1])}, ValueError, 'found timestamp -1, expected milli'),
    ({'values': [b'a'], 'timestamps': pa.array([1 << 62], pa.timestamp('s'))}, ValueError, 'found timestamp 46116'),
    ({'values': [b'a'], 'headers': [[(7, b'')]]}, TypeError, 'found int as the name of a header, expected str'),
    ({'values': [b'a'], 'headers': [[('h', 'text')]]}, TypeError, 'found str as the value of a header'),
    ({'values': b'bytes'}, TypeError, 'found bytes as values, expected a sequence'),
    ({'values': pa.array([1])}, TypeError, "found an Arrow array of format 'l' as values"),
    ({'values': ['text']}, TypeError, 'found str as a key or value, expected bytes'),
    ({'values': [b'a'], 'keys': []}, ValueError, 'found 0 keys for 1 values'),
    ({'values': [b'a'], 'headers': []}, ValueError, 'found 0 headers for 1 values'),
    ({'values': [b'a'], 'timestamps': [1, 2]}, ValueError, 'found 2 timestamps for 1 values'),
    ({'values': [b'a'], 'timestamps': array('i', [1])}, TypeError, "timestamps of format 'i'"),
    ({'values': [b'a'], 'timestamps': [1.5]}, TypeError, 'float'),
    ({'values': [b'a'], 'timestamps': [2**63]}, ValueError, 'found timestamp 9223372036854775808'),
    ({'values': [b'a', b'b'], 'timestamps': [0, -1]}, ValueError, 'found timestamp -1, expected milliseconds'),
    ({'values': [b'a', b'b'], 'timestamps': array('q', [0, -1])}, ValueError, 'found timestamp -1, expected milli'),
    ({'values': [b'a'], 'partition': 2**31}, ValueError, 'found partition 2147483648, expected 0 to 2147483647'),
    ({'values': [b'a'], 'partition': -1}, ValueError, 'found partition -1, expected 0 to 2147483647'),
    ({'values': [b'a'], 'partition': '0'}, TypeError, 'int'),
    ({'values': Slices(b'abc', array('q', [0, 4]))}, ValueError, 'found value 0 from 0 to 4'),
    ({'values': Slices(b'abc', array('q', [0, 2, 1]))}, ValueError, 'found value 1 from 2 to 1'),
    ({'values': Slices(b'abc', array('q', [-1, 2]))}, ValueError, 'found value 0 from -1 to 2'),
    ({'values': Slices(b'abc', array('d', [0]))}, TypeError, "offsets of format 'd'"),
    ({'values': Slices(b'abc', array('q'))}, ValueError, 'found no offsets'),
])
def test_columns_that_do_not_fit_are_refused_before_anything_is_queued(columns, kind, message):
    cluster = FakeCluster()
    with started(cluster) as producer:
        with pytest.raises(kind, match=message):
            producer.send_batch('t', **columns)
        producer.flush()
    assert cluster.broker.sent == []


def test_a_row_over_the_limit_and_a_partition_that_does_not_exist_are_refused_before_anything_is_queued():
    cluster = FakeCluster()
    with started(cluster, max_request_size_bytes=1000) as producer:
        with pytest.raises(KafkaError) as too_large:
            producer.send_batch('t', [b'a', bytes(2000)])
        with pytest.raises(KafkaError) as unknown:
            producer.send_batch('t', [b'a'], partition=5)
    assert [too_large.value.code, unknown.value.code] == [
        ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert cluster.broker.sent == []


def test_values_that_their_list_loses_during_the_call_are_sent():
    cluster, values = FakeCluster(), [b'%d' % number * 30 for number in range(300)]
    expected = list(values)
    with Producer(cluster, ProducerSettings(batch_size_bytes=300), lambda delivery: values.clear(),
                  ManualClock()) as producer:
        producer.send_batch('t', values)
    assert values == []
    assert [value for *_, found in cluster.broker.sent for value in found] == expected

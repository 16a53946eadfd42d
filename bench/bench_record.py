"""Batches of 1, 140 and 1000 records: written, read, validated, against kafka-python, aiokafka and the reference."""
from types import SimpleNamespace

import aiokafka.record.default_records
import kafka.record.default_records
import pytest
from reference import record as reference

from kbroker.record.batch import check_crc, encode_batch, read_header
from kbroker.record.produced import ProduceRules, prepare_produced
from kbroker.record.records import decode_records

T = 1_700_000_000_000
COUNTS = [1, 140, 1000]
MAGIC_AT = 16  # the fields before it, offset and leader epoch, are set by the log
RULES = ProduceRules(
    SimpleNamespace(
        max_message_bytes=1_048_588,
        segment_bytes=2**30,
        cleanup_policy=frozenset({'delete'}),
        message_timestamp_type='CreateTime',
        message_timestamp_before_max_ms=2**63 - 1,
        message_timestamp_after_max_ms=3_600_000,
        compression_type='producer',
    )
)


def rows(count: int) -> list[tuple[int, bytes, bytes]]:
    return [(T + i, b'key %d' % i, b'v' * 100) for i in range(count)]


def build_with(library, records) -> bytes:
    builder = library.record.default_records.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2**30,
    )
    for i, (timestamp_ms, key, value) in enumerate(records):
        builder.append(i, timestamp=timestamp_ms, key=key, value=value, headers=[])
    return bytes(builder.build())


def build_by_reference(records) -> bytes:
    encoded = [
        reference.encode_record(reference.Record(i, timestamp_ms - T, key, value))
        for i, (timestamp_ms, key, value) in enumerate(records)
    ]
    return reference.Batch(
        last_offset_delta=len(records) - 1,
        base_timestamp_ms=T,
        max_timestamp_ms=records[-1][0],
        records_count=len(records),
        records=b''.join(encoded),
    ).encode()


def read_with(library, data: bytes) -> list:
    return list(library.record.default_records.DefaultRecordBatch(bytearray(data)))


def read_by_reference(data: bytes) -> list:
    batch = reference.decode_batch(data)
    return reference.decode_records(batch.records, batch.records_count)


WRITERS = {
    'kbroker': encode_batch,
    'kafka-python': lambda records: build_with(kafka, records),
    'aiokafka': lambda records: build_with(aiokafka, records),
    'reference': build_by_reference,
}
READERS = {
    'kbroker': decode_records,
    'kafka-python': lambda data: read_with(kafka, data),
    'aiokafka': lambda data: read_with(aiokafka, data),
    'reference': read_by_reference,
}


@pytest.mark.parametrize('count', COUNTS)
@pytest.mark.parametrize('name', WRITERS)
def test_write(benchmark, name, count):
    benchmark.group = f'write a batch of {count} records'
    batch = benchmark(WRITERS[name], rows(count))
    assert batch[MAGIC_AT:] == encode_batch(rows(count))[MAGIC_AT:]


@pytest.mark.parametrize('count', COUNTS)
@pytest.mark.parametrize('name', READERS)
def test_read(benchmark, name, count):
    benchmark.group = f'read a batch of {count} records'
    assert len(benchmark(READERS[name], bytes(encode_batch(rows(count))))) == count


@pytest.mark.parametrize('count', COUNTS)
@pytest.mark.parametrize('name', ['kbroker', 'reference'])
def test_validate(benchmark, name, count):
    """The validation in a Produce request; the reference only reads the records and their CRC."""
    benchmark.group = f'validate a batch of {count} records'
    batch = encode_batch(rows(count))
    if name == 'kbroker':
        assert benchmark(prepare_produced, batch, RULES, T) is batch
    else:
        assert len(benchmark(read_by_reference, bytes(batch))) == count


@pytest.mark.parametrize('name', ['header', 'header and CRC'])
def test_header(benchmark, name):
    benchmark.group = 'header of a batch of 140 records'
    batch = encode_batch(rows(140))
    if name == 'header':
        assert benchmark(read_header, batch).records_count == 140
    else:
        benchmark(lambda: check_crc(batch, read_header(batch)))

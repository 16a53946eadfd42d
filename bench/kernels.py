"""The compiled functions that are measured, each with a reference that does the same work in the same run.
`bench_kernels.py` shows the times of both. `tests/gates` bounds their ratio: the CPU time of the reference divided by
that of the compiled function. A bound is the least ratio that passes. It is about half of the ratio that was measured
when the bound was set, which is in the comment next to the bound. Ratios on other machines, and with other versions of
Python and of the references, differ by far less than half.
"""
from __future__ import annotations

import bisect
import pathlib
import sys
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'tests'))

import aiokafka.record.default_records
import crcmod.predefined
import kafka.record.default_records
import pyarrow as pa
from kafka.protocol.consumer.fetch import FetchRequest as KafkaPythonFetchRequest
from kafka.protocol.metadata.metadata import MetadataResponse as KafkaPythonMetadataResponse
from kafka.protocol.producer.produce import ProduceRequest as KafkaPythonProduceRequest
from kafka.protocol.producer.transaction import EndTxnRequest as KafkaPythonEndTxnRequest
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from reference import codec as reference_codec
from reference import record as reference
from reference.log import Batch as ReferenceBatch
from reference.log import ReferenceLog
from support.messages.message_strategies import as_values

from kbroker.base.clock import Clock
from kbroker.log.append import Origin
from kbroker.log.fs import FileSystem
from kbroker.log.index import OffsetIndex
from kbroker.log.log import Log
from kbroker.log.producer_state import ProducerStateTable
from kbroker.protocol.codec import decode, encode
from kbroker.protocol.messages import (
    AccessControlEntryRecord,
    EndTxnRequest,
    FetchRequest,
    MetadataResponse,
    ProduceRequest,
)
from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import check_crc, encode_batch, read_header, set_base_offset
from kbroker.record.batch_filter import BatchFilter
from kbroker.record.columns import COLUMNS, ColumnDecoder
from kbroker.record.control import encode_end_txn_marker
from kbroker.record.produced import prepare_produced
from kbroker.record.produced_records import ProduceRules
from kbroker.record.records import decode_records
from kbroker.security.acl_codes import Operation, PatternType, Permission, ResourceType
from kbroker.security.authorizer import Authorizer
from kbroker.security.principal import parse_principal
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig
from kbroker.wire.crc32c import crc32c, crc32c_by, implementations

T = 1_700_000_000_000


class Kernel(NamedTuple):
    """A compiled function and its reference, which does the same work."""

    ours: Callable[[], Any]
    reference: Callable[[], Any]


class Case(NamedTuple):
    """A kernel and its bound. `make` gets an empty directory and returns the kernel."""

    make: Callable[[pathlib.Path], Kernel]
    bound: float


# ---- checksums

CRCMOD = crcmod.predefined.mkCrcFun('crc-32c')


def crc(size_bytes: int, function: Callable[[bytes], int] = crc32c) -> Kernel:
    data = bytes(i & 255 for i in range(size_bytes))
    return Kernel(lambda: function(data), lambda: CRCMOD(data))


# ---- batches and records

RULES = ProduceRules(SimpleNamespace(
    max_message_bytes=1_048_588, segment_bytes=2**30, cleanup_policy=frozenset({'delete'}),
    message_timestamp_type='CreateTime', message_timestamp_before_max_ms=2**63 - 1,
    message_timestamp_after_max_ms=3_600_000, compression_type='producer',
    max_decompressed_message_bytes=2_147_483_639))


def rows(records_count: int) -> list[tuple[int, bytes, bytes]]:
    return [(T + i, b'key %d' % i, b'v' * 100) for i in range(records_count)]


def header() -> Kernel:
    batch = bytes(encode_batch(rows(140)))
    return Kernel(lambda: read_header(batch), lambda: KafkaPythonBatch(batch))


def header_and_crc() -> Kernel:
    batch = bytes(encode_batch(rows(140)))
    return Kernel(lambda: check_crc(batch, read_header(batch)), lambda: KafkaPythonBatch(batch).validate_crc())


def validate(library: Any, records_count: int) -> Kernel:
    """Return the kernel that validates a Produce request completely. The reference only checks the CRC and reads the
    records."""
    batch = encode_batch(rows(records_count))
    data = bytearray(batch)

    def theirs() -> list[Any]:
        found = library.record.default_records.DefaultRecordBatch(data)
        assert found.validate_crc()
        return list(found)

    return Kernel(lambda: prepare_produced(batch, RULES, T), theirs)


def write(library: Any, records_count: int) -> Kernel:
    records = rows(records_count)

    def theirs() -> bytes:
        builder = library.record.default_records.DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=False, producer_id=-1, producer_epoch=-1, base_sequence=-1,
            batch_size=2**30)
        for i, (timestamp_ms, key, value) in enumerate(records):
            builder.append(i, timestamp=timestamp_ms, key=key, value=value, headers=[])
        return bytes(builder.build())

    return Kernel(lambda: encode_batch(records), theirs)


def read(library: Any, records_count: int) -> Kernel:
    data = bytes(encode_batch(rows(records_count)))
    return Kernel(lambda: decode_records(data),
                  lambda: list(library.record.default_records.DefaultRecordBatch(bytearray(data))))


def read_by_the_slow_reader() -> Kernel:
    """Return the kernel that reads records. The reference, the slow reader, omits its CRC check, which would dominate
    its time."""
    data = bytes(encode_batch(rows(140)))
    records = data[reference.HEADER.size:]
    return Kernel(lambda: decode_records(data), lambda: reference.decode_records(records, 140))


def columns() -> Kernel:
    """Return the kernel that reads a batch as Arrow arrays. The reference builds the arrays from the slow reader's
    records."""
    data = bytes(encode_batch(rows(1000)))
    encoded = data[reference.HEADER.size:]

    def slowly() -> list[pa.Array]:
        records = reference.decode_records(encoded, 1000)
        return [pa.array([record.offset_delta for record in records], pa.int64()),
                pa.array([record.timestamp_delta_ms for record in records], pa.int64()),
                pa.array([record.key for record in records], pa.large_binary()),
                pa.array([record.value for record in records], pa.large_binary())]

    def ours() -> Any:
        decoder = ColumnDecoder(COLUMNS)
        decoder.feed(data, BatchFilter())
        return decoder.take()

    return Kernel(ours, slowly)


# ---- the abort filter

FETCHED_PRODUCERS, FETCHED_TRANSACTIONS = 50, 10


def fetched() -> tuple[list[bytes], list[tuple[int, int]]]:
    """Return (1000 batches of 50 producers, the list of aborted transactions). Every second transaction is aborted."""
    batches, aborted, offset = [], [], 0
    for transaction in range(FETCHED_TRANSACTIONS):
        commit = transaction % 2 == 0
        for producer_id in range(FETCHED_PRODUCERS):
            if not commit:
                aborted.append((producer_id, offset))
            batches.append(encode_batch([(T, b'k', b'v')], base_offset=offset, producer_id=producer_id,
                                        producer_epoch=0, base_sequence=transaction, transactional=True))
            offset += 1
        for producer_id in range(FETCHED_PRODUCERS):
            marker = encode_end_txn_marker(commit=commit, producer_id=producer_id, producer_epoch=0,
                                           coordinator_epoch=0, timestamp_ms=T)
            set_base_offset(marker, offset)
            batches.append(marker)
            offset += 1
    return [bytes(batch) for batch in batches], aborted


def abort_filter() -> Kernel:
    """Return the kernel of the abort filter. The kernel and its reference both get parsed headers."""
    batches, aborted = fetched()
    headers = [(read_header(batch), batch) for batch in batches]
    decoded = [reference.decode_batch(batch) for batch in batches]

    def ours() -> list[int]:
        admits = AbortFilter(aborted).admits
        return [header.base_offset for header, batch in headers if admits(header, batch)]

    return Kernel(ours, lambda: reference.delivered(decoded, aborted))


# ---- messages

def produce_request() -> ProduceRequest:
    partition = ProduceRequest.PartitionProduceData(index=0, records=bytes(16_384))
    topic = ProduceRequest.TopicProduceData(name='orders', partition_data=[partition])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def fetch_request() -> FetchRequest:
    partitions = [FetchRequest.FetchPartition(partition=i, fetch_offset=1000 * i, partition_max_bytes=1 << 20)
                  for i in range(50)]
    topic = FetchRequest.FetchTopic(topic='orders', partitions=partitions)
    return FetchRequest(max_wait_ms=500, min_bytes=1, isolation_level=1, topics=[topic])


def metadata_response() -> MetadataResponse:
    topics = [MetadataResponse.MetadataResponseTopic(
        name=f'topic-{i}', topic_id=bytes([i]) * 16, partitions=[MetadataResponse.MetadataResponsePartition(
            partition_index=j, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]) for j in range(3)])
        for i in range(100)]
    brokers = [MetadataResponse.MetadataResponseBroker(node_id=1, host='localhost', port=9092)]
    return MetadataResponse(brokers=brokers, cluster_id='cluster', controller_id=1, topics=topics)


def end_txn_request() -> EndTxnRequest:
    return EndTxnRequest(transactional_id='my-txn', producer_id=4711, producer_epoch=3)


def decoding(message: Any, version: int, their_class: Any) -> Kernel:
    data = encode(message, version)
    return Kernel(lambda: decode(type(message), data, version), lambda: their_class.decode(data, version=version))


def encoding(message: Any, version: int, their_class: Any) -> Kernel:
    theirs = their_class.decode(encode(message, version), version=version)
    theirs._header = None
    return Kernel(lambda: encode(message, version), lambda: theirs.encode(version=version))


def slow_decoding(message: Any, version: int) -> Kernel:
    data = encode(message, version)
    return Kernel(lambda: decode(type(message), data, version),
                  lambda: reference_codec.decode(message.schema, version, data))


def slow_encoding(message: Any, version: int) -> Kernel:
    values = as_values(message)
    return Kernel(lambda: encode(message, version), lambda: reference_codec.encode(message.schema, version, values))


# ---- the log

PRODUCERS, TRANSACTIONS = 20, 10
BASE_SEQUENCE = slice(53, 57)


def producer_state() -> Kernel:
    """Return the kernel that replays producer state, from 200 transactional batches of 20 producers."""
    batches = [encode_batch([(T, None, b'v')], base_offset=number, producer_id=number % PRODUCERS, producer_epoch=0,
                            base_sequence=number // PRODUCERS, transactional=True)
               for number in range(PRODUCERS * TRANSACTIONS)]
    log = ReferenceLog()
    log.batches = [ReferenceBatch(bytes(batch), 1, number % PRODUCERS, 0, number // PRODUCERS, True, base_offset=number)
                   for number, batch in enumerate(batches)]

    def ours() -> ProducerStateTable:
        table = ProducerStateTable()
        for batch in batches:
            table.replay_batch(batch)
        return table

    return Kernel(ours, log.producers)


def index_search(directory: pathlib.Path) -> Kernel:
    """Return the kernel that searches 100,000 index entries. The reference searches for the same offsets in a list."""
    index = OffsetIndex(FileSystem(), str(directory / 'x.index'), 0, 10_485_760)
    for number in range(1, 100_001):
        index.add(number * 7, number * 4096)
    entries = [offset for offset, _ in index]
    return Kernel(lambda: index.lookup(350_003), lambda: bisect.bisect_right(entries, 350_003))


def checked_append(directory: pathlib.Path) -> Kernel:
    """Return the kernel that appends a batch whose sequence number is checked. The reference appends a batch without a
    producer."""
    log = Log(FileSystem(), str(directory / 'gate-0'), 'gate', 0, LogConfig(Config({}), {}), Clock())
    plain = encode_batch([(T, None, b'x' * 225)])
    checked = encode_batch([(T, None, b'x' * 225)], producer_id=1, producer_epoch=0, base_sequence=0)
    sequences = {id(batch): count() for batch in (plain, checked)}

    def append(batch: bytearray) -> None:
        batch[BASE_SEQUENCE] = next(sequences[id(batch)]).to_bytes(4, 'big')
        log.append_batch(batch, Origin.CLIENT, 0)

    return Kernel(lambda: append(checked), lambda: append(plain))


# ---- rights

def rights() -> Kernel:
    """Return the kernel that finds a remembered decision about a right, with 10,000 ACLs in force. The reference finds
    the same name in a dict."""
    authorizer = Authorizer()
    for number in range(10_000):
        authorizer.put(AccessControlEntryRecord(
            id=number.to_bytes(16, 'big'), resource_type=ResourceType.TOPIC, resource_name=f'topic-{number}',
            pattern_type=PatternType.LITERAL, principal='User:alice', host='*', operation=Operation.READ,
            permission_type=Permission.ALLOW))
    may = authorizer.access_of(parse_principal('User:alice'), '127.0.0.1').may
    names = [f'topic-{number}' for number in range(1000)]
    known = dict.fromkeys(names, True)
    operation, resource_type = int(Operation.READ), int(ResourceType.TOPIC)

    def ours() -> None:
        for name in names:
            may(operation, resource_type, name)

    def in_a_dict() -> None:
        for name in names:
            known.get(name)

    ours()
    return Kernel(ours, in_a_dict)


# ---- the cases

CRC_BOUNDS = {
    'portable': 2.5,  # 5.6
    'sse42': 10,  # 20
    'sse42x3': 22,  # 36 to 49
    'pclmul': 13,  # 27
    'vpclmul512': 35,  # 69 to 83
}


def case(bound: float, make: Callable[..., Kernel], *arguments: Any) -> Case:
    """Return a Case whose kernel needs no directory. `make` gets `arguments` instead."""
    return Case(lambda directory: make(*arguments), bound)


CASES = {
    'CRC-32C of 300 bytes, crcmod': case(2, crc, 300),  # 10 with CRC instructions, 4 without
    **{f'CRC-32C of 16 KiB by {name}, crcmod': case(
        CRC_BOUNDS[name], crc, 16_384, lambda data, name=name: crc32c_by(name, data)) for name in implementations()},
    'batch header, kafka-python': case(5, header),  # 10
    'batch header and CRC, kafka-python': case(2.2, header_and_crc),  # 4.5
    'validate 1 record, aiokafka': case(2.8, validate, aiokafka, 1),  # 5.6
    'validate 140 records, aiokafka': case(6.8, validate, aiokafka, 140),  # 14
    'validate 140 records, kafka-python': case(110, validate, kafka, 140),  # 225
    'write 1 record, aiokafka': case(0.5, write, aiokafka, 1),  # 1.1
    'write 140 records, aiokafka': case(0.5, write, aiokafka, 140),  # 1.1
    'write 140 records, kafka-python': case(4.4, write, kafka, 140),  # 8.8
    'read 1 record, aiokafka': case(0.6, read, aiokafka, 1),  # 1.3
    'read 140 records, aiokafka': case(0.5, read, aiokafka, 140),  # 1.0
    'read 140 records, kafka-python': case(15, read, kafka, 140),  # 30
    'read 140 records, tests/reference': case(25, read_by_the_slow_reader),  # 51
    'columns of 1000 records, tests/reference': case(55, columns),  # 112
    'abort filter over 1000 batches, tests/reference': case(20, abort_filter),  # 40
    'decode Produce v9, 16 KiB, kafka-python': case(
        3.4, decoding, produce_request(), 9, KafkaPythonProduceRequest),  # 6.9
    'decode Fetch v12, 50 partitions, kafka-python': case(
        1.8, decoding, fetch_request(), 12, KafkaPythonFetchRequest),  # 3.7
    'decode EndTxn v3, kafka-python': case(4.5, decoding, end_txn_request(), 3, KafkaPythonEndTxnRequest),  # 9.1
    'decode EndTxn v3, tests/reference': case(12, slow_decoding, end_txn_request(), 3),  # 24
    'decode Metadata v12, 100 topics of 3, kafka-python': case(
        6.6, decoding, metadata_response(), 12, KafkaPythonMetadataResponse),  # 13
    'decode Metadata v12, 100 topics of 3, tests/reference': case(25, slow_decoding, metadata_response(), 12),  # 51
    'encode Fetch v12, 50 partitions, kafka-python': case(
        13, encoding, fetch_request(), 12, KafkaPythonFetchRequest),  # 27
    'encode Metadata v12, 100 topics of 3, kafka-python': case(
        18, encoding, metadata_response(), 12, KafkaPythonMetadataResponse),  # 37
    'encode Metadata v12, 100 topics of 3, tests/reference': case(49, slow_encoding, metadata_response(), 12),  # 98
    'encode EndTxn v3, kafka-python': case(12, encoding, end_txn_request(), 3, KafkaPythonEndTxnRequest),  # 24
    'producer state of 200 batches, tests/reference': case(1.6, producer_state),  # 3.2
    'index search, bisect': Case(index_search, 1),  # 2
    'append with a producer, without': Case(checked_append, 0.5),  # 0.95
    'remembered right, dict': case(0.2, rights),  # 0.4
}
"""Maps names to cases. A name says what the kernel does, and what its reference is."""

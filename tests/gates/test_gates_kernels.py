"""The hot kernels keep their speed relative to references that run in the same minute on the same processor.

A bound is about half of the ratio measured when it was set, which is in the comment next to it. Differences between
machines and between versions of Python and of the references are far smaller. To set a bound again, print the ratios:

    python -m pytest tests/gates/test_gates_kernels.py -s
"""
import bisect
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import aiokafka
import bench_abort_filter
import bench_codec
import crcmod.predefined
import kafka
import pyarrow as pa
import pytest
from bench_log import batch_of
from bench_record import RULES, T, build_with, read_with, rows
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from paired import cpu_ratio
from reference import record as reference
from reference.log import Batch as ReferenceBatch
from reference.log import ReferenceLog
from support.runner.attempts import TooSlow

from kbroker.base.clock import Clock
from kbroker.log.fs import FileSystem
from kbroker.log.index import OffsetIndex
from kbroker.log.log import Log
from kbroker.log.origin import Origin
from kbroker.log.producer_state import ProducerStateTable
from kbroker.protocol.codec import decode, encode
from kbroker.protocol.messages import AccessControlEntryRecord
from kbroker.record.batch import check_crc, encode_batch, read_header
from kbroker.record.batch_filter import BatchFilter
from kbroker.record.columns import COLUMNS, ColumnDecoder
from kbroker.record.produced import prepare_produced
from kbroker.record.records import decode_records
from kbroker.security.acl_codes import Operation, PatternType, Permission, ResourceType
from kbroker.security.authorizer import Authorizer
from kbroker.security.principal import parse_principal
from kbroker.settings.config import Config, LogConfig
from kbroker.wire.crc32c import crc32c, crc32c_by, implementations


class Kernel(NamedTuple):
    """Two functions that do the same work. The bound is on the reference's CPU time divided by ours."""

    ours: Callable[[], Any]
    reference: Callable[[], Any]


CRCMOD = crcmod.predefined.mkCrcFun('crc-32c')


def crc(size_bytes, function=crc32c):
    data = bytes(i & 255 for i in range(size_bytes))
    return Kernel(lambda: function(data), lambda: CRCMOD(data))


def header():
    batch = bytes(encode_batch(rows(140)))
    return Kernel(lambda: read_header(batch), lambda: KafkaPythonBatch(batch))


def header_and_crc():
    batch = bytes(encode_batch(rows(140)))
    return Kernel(lambda: check_crc(batch, read_header(batch)), lambda: KafkaPythonBatch(batch).validate_crc())


def validate(library, records_count):
    """Full validation of a Produce request. The reference only checks the CRC and reads the records."""
    batch = encode_batch(rows(records_count))
    data = bytearray(batch)

    def theirs():
        found = library.record.default_records.DefaultRecordBatch(data)
        assert found.validate_crc()
        return list(found)

    return Kernel(lambda: prepare_produced(batch, RULES, T), theirs)


def write(library, records_count):
    records = rows(records_count)
    return Kernel(lambda: encode_batch(records), lambda: build_with(library, records))


def read(library, records_count):
    data = bytes(encode_batch(rows(records_count)))
    return Kernel(lambda: decode_records(data), lambda: read_with(library, data))


def read_beside_reference():
    """Return the slow reader without its CRC check, which dominates its time."""
    data = bytes(encode_batch(rows(140)))
    records = data[reference.HEADER.size:]
    return Kernel(lambda: decode_records(data), lambda: reference.decode_records(records, 140))


def columns():
    """The rows of a batch as Arrow arrays. The reference builds them from the slow reader's records."""
    data = bytes(encode_batch(rows(1000)))
    encoded = data[reference.HEADER.size:]

    def slowly():
        records = reference.decode_records(encoded, 1000)
        return [pa.array([record.offset_delta for record in records], pa.int64()),
                pa.array([record.timestamp_delta_ms for record in records], pa.int64()),
                pa.array([record.key for record in records], pa.large_binary()),
                pa.array([record.value for record in records], pa.large_binary())]

    def ours():
        decoder = ColumnDecoder(COLUMNS)
        decoder.feed(data, BatchFilter())
        return decoder.take()

    return Kernel(ours, slowly)


def abort_filter():
    batches, aborted = bench_abort_filter.fetched()
    headers = [(read_header(batch), batch) for batch in batches]
    decoded = [reference.decode_batch(batch) for batch in batches]
    return Kernel(lambda: bench_abort_filter.filter_with_kbroker(headers, aborted),
                  lambda: reference.delivered(decoded, aborted))


def read_message(what):
    message, version, their_class = bench_codec.DECODED[what]
    data = encode(message, version)
    return Kernel(lambda: decode(type(message), data, version), lambda: their_class.decode(data, version=version))


def write_message(what):
    message, version, their_class = bench_codec.ENCODED[what]
    theirs = their_class.decode(encode(message, version), version=version)
    theirs._header = None
    return Kernel(lambda: encode(message, version), lambda: theirs.encode(version=version))


PRODUCERS, TRANSACTIONS = 20, 10
BASE_SEQUENCE = slice(53, 57)


def producer_state():
    """Replay of producer state: 200 transactional batches of 20 producers."""
    batches = [encode_batch([(T, None, b'v')], base_offset=number, producer_id=number % PRODUCERS, producer_epoch=0,
                            base_sequence=number // PRODUCERS, transactional=True)
               for number in range(PRODUCERS * TRANSACTIONS)]
    log = ReferenceLog()
    log.batches = [ReferenceBatch(bytes(batch), 1, number % PRODUCERS, 0, number // PRODUCERS, True, base_offset=number)
                   for number, batch in enumerate(batches)]

    def ours():
        table = ProducerStateTable()
        for batch in batches:
            table.replay_batch(batch)
        return table

    return Kernel(ours, log.producers)


def rights():
    """Remembered rights, with 10,000 ACLs in force. The reference looks the names up in a dict."""
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

    def ours():
        for name in names:
            may(operation, resource_type, name)

    def in_a_dict():
        for name in names:
            known.get(name)

    ours()
    return Kernel(ours, in_a_dict)


CRC_IMPLEMENTATIONS = {
    'portable': 2.5,  # 5.6
    'sse42': 10,  # 20
    'sse42x3': 22,  # 36 to 49
    'pclmul': 13,  # 27
    'vpclmul512': 35,  # 69 to 83
}
KERNELS = {
    'CRC-32C of 300 bytes, crcmod': (lambda: crc(300), 2),  # 10 with CRC instructions, 4 without
    'batch header, kafka-python': (header, 5),  # 10
    'batch header and CRC, kafka-python': (header_and_crc, 2.2),  # 4.5
    'validate 1 record, aiokafka': (lambda: validate(aiokafka, 1), 2.8),  # 5.6
    'validate 140 records, aiokafka': (lambda: validate(aiokafka, 140), 6.8),  # 14
    'validate 140 records, kafka-python': (lambda: validate(kafka, 140), 110),  # 225
    'write 1 record, aiokafka': (lambda: write(aiokafka, 1), 0.5),  # 1.1
    'write 140 records, aiokafka': (lambda: write(aiokafka, 140), 0.5),  # 1.1
    'write 140 records, kafka-python': (lambda: write(kafka, 140), 4.4),  # 8.8
    'read 1 record, aiokafka': (lambda: read(aiokafka, 1), 0.6),  # 1.3
    'read 140 records, aiokafka': (lambda: read(aiokafka, 140), 0.5),  # 1.0
    'read 140 records, kafka-python': (lambda: read(kafka, 140), 15),  # 30
    'read 140 records, tests/reference': (read_beside_reference, 25),  # 51
    'columns of 1000 records, tests/reference': (columns, 55),  # 112
    'abort filter over 1000 batches, tests/reference': (abort_filter, 20),  # 40
    'producer state of 200 batches, tests/reference': (producer_state, 1.6),  # 3.2
    'decode Produce v9, 16 KiB, kafka-python': (lambda: read_message('decode Produce v9, 16 KiB'), 3.4),  # 6.9
    'decode Fetch v12, 50 partitions, kafka-python': (
        lambda: read_message('decode Fetch v12, 50 partitions'), 1.8),  # 3.7
    'decode EndTxn v3, kafka-python': (lambda: read_message('decode EndTxn v3'), 4.5),  # 9.1
    'decode Metadata v12, 100 topics of 3, kafka-python': (
        lambda: read_message('decode Metadata v12, 100 topics of 3'), 6.6),  # 13
    'encode Fetch v12, 50 partitions, kafka-python': (
        lambda: write_message('encode Fetch v12, 50 partitions'), 13),  # 27
    'encode Metadata v12, 100 topics of 3, kafka-python': (
        lambda: write_message('encode Metadata v12, 100 topics of 3'), 18),  # 37
    'encode EndTxn v3, kafka-python': (lambda: write_message('encode EndTxn v3'), 12),  # 24
    'remembered right, dict': (rights, 0.2),  # 0.4
}
"""The kernels and their bounds."""


def judge(name, kernel, bound):
    ratio = cpu_ratio(kernel.reference, kernel.ours)
    print(f'{name}: {ratio:.3g} times our CPU time, at least {bound} expected')
    if ratio < bound:
        raise TooSlow(f'{name}: the reference took {ratio:.3g} times our CPU time, at least {bound} expected')


def test_work_done_twice_shows_as_a_ratio_of_a_half():
    data = bytes(16_384)
    assert 0.4 < cpu_ratio(lambda: CRCMOD(data), lambda: (CRCMOD(data), CRCMOD(data))) < 0.6


@pytest.mark.parametrize('name', KERNELS)
def test_a_kernel_keeps_its_distance_to_the_reference(name):
    make, bound = KERNELS[name]
    judge(name, make(), bound)


@pytest.mark.parametrize('name', implementations())
def test_every_crc_of_this_processor_keeps_its_distance_to_crcmod(name):
    judge(f'CRC-32C of 16 KiB by {name}', crc(16_384, lambda data: crc32c_by(name, data)), CRC_IMPLEMENTATIONS[name])


def test_a_search_in_an_index_stays_near_that_in_a_list(tmp_path):
    index = OffsetIndex(FileSystem(), str(tmp_path / 'x.index'), 0, 10_485_760)
    for number in range(1, 100_001):
        index.add(number * 7, number * 4096)
    entries = [offset for offset, _ in index]
    kernel = Kernel(lambda: index.lookup(350_003), lambda: bisect.bisect_right(entries, 350_003))
    judge('index search, bisect', kernel, 1)  # 2


def test_the_check_of_a_producer_adds_little_to_an_append(tmp_path):
    """The same log appends batches without a producer, and batches with checked sequence numbers."""
    log = Log(FileSystem(), str(tmp_path / 'gate-0'), 'gate', 0, LogConfig(Config({}), {}), Clock())
    plain, checked = batch_of(300), batch_of(300, producer_id=1, producer_epoch=0, base_sequence=0)
    sequences = {id(batch): count() for batch in (plain, checked)}

    def append(batch):
        batch[BASE_SEQUENCE] = next(sequences[id(batch)]).to_bytes(4, 'big')
        log.append_batch(batch, Origin.CLIENT, 0)

    judge('append with a producer, without', Kernel(lambda: append(checked), lambda: append(plain)), 0.5)  # 0.95

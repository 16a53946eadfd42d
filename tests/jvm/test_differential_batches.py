"""Apache Kafka and kbroker get the same batches with odd framings and odd records. Both answer with the same error
code, except for DIFFERENCES, which docs/protocol.md lists. Kafka's Java consumer can read all batches that kbroker
accepts.
"""
from __future__ import annotations

import base64
import hashlib
import re

import pytest
from cases_records import fetch, produce
from raw_peer import CLOSED, NOW_MS, RawPeer
from support.kafka.apache_kafka import run_tool
from support.kafka.beside_kafka import both_brokers
from support.messages.framings import CODECS, GZIP, LZ4, SNAPPY, damaged_framings, framings
from support.messages.odd_records import batch_of_records, finished, framed, null_record, odd_records, record, varint

from kbroker.base.errors import ErrorCode
from kbroker.record.batch import iter_batches

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

PAYLOADS = {
    'small': [record(), record(offset=1)],
    'medium': [record(offset=number, value=varint(10_001) + b'%05d' % number * 2000) for number in range(4)],
    'large': [record(offset=number, value=varint(10_001) + b'%05d' % number * 2000) for number in range(40)],
}
"""Records smaller and larger than the buffers of Kafka's decoders, and a batch that is too large for validation in the
loop.

The value of a large record has 10,000 bytes before its `v`.
"""

BEHIND = 'bytes that no reader takes for records have no place behind a block; librdkafka fails at them, but for gzip'
DIFFERENCES = {
    'gzip: reserved flag .*: Kafka NONE': 'zlib, and so librdkafka, fails at them',
    'gzip: .* behind: Kafka NONE': BEHIND,
    'gzip: .* behind: Kafka INVALID_RECORD, kbroker UNKNOWN_SERVER_ERROR': 'the records and the bytes are at fault',
    'snappy: .* behind: Kafka NONE': BEHIND,
    'lz4: (the frame twice|a byte behind|zeros behind): Kafka NONE': BEHIND,
    'lz4: an empty stored block as end: Kafka NONE': 'to other readers, the frame has no end',
    'lz4: an empty compressed block in front: Kafka NONE': "Kafka's own consumer fails at it",
    'lz4: too (small|large) a content size: Kafka NONE': 'the library, and so librdkafka, fails at it',
    'lz4: wrong content checksum: Kafka NONE': 'the library, and so librdkafka, fails at it',
    'zstd: .* (frame cut|head cut|head of a frame) behind: Kafka NONE': BEHIND,
    'zstd: window of .* and a content size: Kafka NONE': "its content has to fit a buffer of Kafka's decoder",
    '(snappy|lz4|zstd): damaged: Kafka (NONE|UNKNOWN_SERVER_ERROR), kbroker INVALID_RECORD':
        'the damage is in lengths and offsets of the records, see below',
    'a record .* (long|short|one more|-[128] bytes|2 GiB) .*, compressed: Kafka NONE':
        'Kafka does not compare these lengths with the records; its consumer fails at them',
    'a record of 2 GiB .*: Kafka UNKNOWN_SERVER_ERROR': 'Kafka reserves the memory that the length claims',
    'a length of 6 bytes .*: Kafka UNKNOWN_SERVER_ERROR': 'the record is at fault, not the server',
    '(offsets|a negative offset|a huge offset|the least offset).*: Kafka (NONE|UNKNOWN_SERVER_ERROR)':
        'Kafka writes what is not compressed with these offsets, at which consumers then see the records',
    r'of (-2|-1000) bytes|of the least length': 'to Kafka, each length below 0 is null; librdkafka stops at it',
}


@pytest.fixture(scope='module')
def peers(tmp_path_factory):
    """Connections to Kafka and to kbroker."""
    with both_brokers(tmp_path_factory.mktemp('batches'), {}) as brokers:
        found = [RawPeer(broker.address, 'batches') for broker in brokers]
        yield found
        for peer in found:
            peer.close()


def verdicts(peers, batches, topic, **configs):
    """Return the verdict of each broker on each batch: an error code, and the indexes of the faulty records."""
    found = []
    for peer in peers:
        peer.create_topic(topic, **configs)
        codes = []
        for batch in batches:
            answer = produce(peer, batch, topic=topic)
            assert answer != CLOSED
            partition = answer.responses[0].partition_responses[0]
            errors = [error.batch_index for error in partition.record_errors]
            codes.append(ErrorCode(partition.error_code).name + (f' {errors}' if errors else ''))
        found.append(codes)
    return found


def unexplained(names, kafka, ours):
    lines = [f'{name}: Kafka {of_kafka}, kbroker {of_ours}'
             for name, of_kafka, of_ours in zip(names, kafka, ours, strict=True) if of_kafka != of_ours]
    return [line for line in lines if not any(re.search(pattern, line) for pattern in DIFFERENCES)]


def read_by_java(directory, batches):
    """Return for each batch how many records Kafka's consumer reads, and a digest of their values."""
    file = directory / 'batches'
    file.write_text(''.join(base64.b64encode(batch).decode() + '\n' for batch in batches))
    return run_tool('kbroker.RecordReader', str(file)).splitlines()


@pytest.mark.parametrize('size', PAYLOADS)
@pytest.mark.parametrize('codec', CODECS)
def test_a_framing_gets_the_answer_of_kafka_and_what_is_accepted_is_read_by_its_consumer(peers, tmp_path, codec, size):
    records = PAYLOADS[size]
    chosen = {name: framed(number, block, len(records), NOW_MS)
              for name, (number, block) in framings(b''.join(records)).items() if number == CODECS[codec]}
    kafka, ours = verdicts(peers, chosen.values(), f'{codec}-{size}')
    assert unexplained(chosen, kafka, ours) == []
    values = b''.join(one[-2 if size == 'small' else -10_002:-1] for one in records)
    complete = f'{len(records)} {hashlib.sha256(values).hexdigest()}'
    read = dict(zip(chosen, read_by_java(tmp_path, chosen.values()), strict=True))
    accepted = [name for name, code in zip(chosen, ours, strict=True) if code == 'NONE']
    assert [name for name in accepted if read[name] != complete and not name.endswith('damaged')] == []
    assert len(accepted) >= 5


@pytest.mark.parametrize(('size', 'count'), [('small', 4000), ('medium', 1000)])
def test_of_damaged_framings_only_those_are_accepted_that_kafka_accepts_and_its_consumer_reads(
        peers, tmp_path, size, count):
    records = PAYLOADS[size]
    batches = [framed(codec, block, len(records), NOW_MS)
               for codec, block in damaged_framings(b''.join(records), count, seed=1)]
    kafka, ours = verdicts(peers, batches, f'damaged-{size}')
    read = read_by_java(tmp_path, batches)
    assert [(of_kafka, found, batch.hex()) for batch, of_kafka, of_ours, found in zip(
        batches, kafka, ours, read, strict=True)
        if of_ours == 'NONE' and (of_kafka != 'NONE' or found.startswith('refused'))] == []
    assert ours.count('NONE') >= count // 50
    final = {'NONE', 'UNKNOWN_SERVER_ERROR', 'INVALID_RECORD', 'INVALID_TIMESTAMP'}
    assert {code.split()[0] for code in ours} <= final


@pytest.mark.parametrize('topic_codec', ['producer', 'zstd'])
@pytest.mark.parametrize('codec', [0, GZIP, LZ4])
def test_odd_records_get_the_answer_of_kafka_and_what_is_accepted_is_read_by_its_consumer(
        peers, tmp_path, codec, topic_codec):
    kind = 'plain' if not codec else 'compressed' if topic_codec == 'producer' else 'compressed again'
    batches = [batch_of_records(records, NOW_MS, codec=codec) for records in odd_records().values()]
    names = [f'{name} ({codec}), {kind}' for name in odd_records()]
    kafka, ours = verdicts(peers, batches, f'records-{codec}-{topic_codec}', compression_type=topic_codec)
    assert unexplained(names, kafka, ours) == []
    read = read_by_java(tmp_path, batches)
    assert [name for name, code, found in zip(names, ours, read, strict=True)
            if code == 'NONE' and found.startswith('refused')] == []


CLAIMED = (0x08, 0x48, 0x88)
"""Attributes that claim LogAppendTime: only this bit, also the bit of a delete horizon, and also an unassigned bit."""
OTHERS = (0x40, 0x80)
TOPICS = {
    'plain': {},
    'stamped': {'message_timestamp_type': 'LogAppendTime'},
    'bounded': {'message_timestamp_before_max_ms': '1000000', 'message_timestamp_after_max_ms': '1000000'},
    'compacted': {'cleanup_policy': 'compact'},
    'compressed again': {'compression_type': 'zstd'},
}
CLAIMED_MS = (NOW_MS, NOW_MS + 77, NOW_MS - 5, NOW_MS - 10**9, NOW_MS + 10**9, 0, -1, -7, 2**63 - 1, -(2**63))


@pytest.mark.parametrize('codec', [0, SNAPPY])
@pytest.mark.parametrize('topic', TOPICS)
def test_a_producer_that_claims_log_append_time_gets_the_answer_of_kafka(peers, topic, codec):
    payloads = [[record(), record(offset=1, timestamp=5)], [record(timestamp=10**12)], [record(timestamp=-1 - NOW_MS)],
                [null_record('key', -1)]]
    batches = [finished(batch_of_records(records, NOW_MS, codec=codec, attributes=attributes),
                        {35: claimed_ms.to_bytes(8, 'big', signed=True)})
               for attributes in (OTHERS if topic == 'compressed again' else CLAIMED + OTHERS)
               for claimed_ms in CLAIMED_MS for records in payloads]
    name = f'times-{topic.replace(" ", "-")}-{codec}'
    kafka, ours = verdicts(peers, batches, name, **TOPICS[topic])
    assert ours == kafka
    written = [[(header.base_offset, header.attributes,
                 'now' if header.is_log_append_time else header.max_timestamp_ms)
                for header, _ in iter_batches(fetch(peer, topic=name).responses[0].partitions[0].records)]
               for peer in peers]
    assert written[1] == written[0]

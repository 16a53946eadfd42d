"""kbroker prints rows and records byte for byte as kafka-dump-log does, with each of its decoder options.

The input has every kind of row and record in every version: with random values, truncated, and of unknown types and
versions. It also has rows and records that Kafka itself wrote, from the directories in tests/data.
"""
import pathlib
import random
import tarfile

import pytest
from decoded import kafkas_text, our_text
from support.messages.filled_messages import filled

from kbroker.protocol import messages, schema
from kbroker.protocol.codec import encode
from kbroker.protocol.messages import (
    ClientQuotaRecord,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    GroupMetadataKey,
    GroupMetadataValue,
    TopicRecord,
)
from kbroker.protocol.rows import encode_row_key, encode_row_value, row_classes
from kbroker.record.batch import encode_batch

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

DIRECTORIES = pathlib.Path(__file__).parents[1] / 'data' / 'kafka-directories'
T = 1_700_000_000_000
DOUBLES = (0.0, -0.0, 1e7, 9999999.0, 1e-3, 9.99e-4, 5e-324, 1.5e300, 1048576.0, 123456789.125, -2.5e-7, 4.35,
           float('nan'), float('inf'), float('-inf'))
STRINGS = ('a"b\\c/', '\n\r\t\b\f\0\x1f\x7f\u2028é😀\\u001f\x0b\u0080')


def log_of(directory, records):
    path = directory / f'{0:020d}.log'
    path.write_bytes(encode_batch([(T, key, value) for key, value in records]))
    return path


def rows_of(topic):
    """Yield every type of row in every version, whole and damaged."""
    for row_type, (key_class, value_class) in sorted(row_classes(topic).items()):
        rng = random.Random(row_type)
        key = encode_row_key(filled(key_class, 0, rng))
        first, last = value_class.versions
        for version in range(first, last + 1):
            for message in (value_class(), *(filled(value_class, version, rng) for _ in range(5))):
                yield key, encode_row_value(message, version)
        good = encode_row_value(filled(value_class, last, rng), last)
        yield key, None
        yield key, (last + 1).to_bytes(2, 'big') + good[2:]
        yield key, b'\xff\xff' + good[2:]
        yield key, good + b'more'
        yield key + b'more', good
        yield from ((key, good[:size]) for size in (0, 1, 2, 5))
        yield from ((key[:size], good) for size in (0, 1, 2, 3))
    yield from ((b'\0\x63abc', b'abc'), (b'\0\x63abc', None), (b'\xff\xffabc', None))


def records_of(topic):
    """Yield every kind of record with a frame (its type and version) in every version, whole and damaged."""
    for name, declaration in sorted(schema.declarations().items()):
        if declaration.kind != 'record' or declaration.topic != topic:
            continue
        record_class, rng, kind = getattr(messages, name), random.Random(name), declaration.key
        for version in range(declaration.versions.last + 1):
            for record in (record_class(), *(filled(record_class, version, rng) for _ in range(4))):
                yield None, bytes((1, kind, version)) + encode(record, version)
        good = encode(filled(record_class, version, rng), version)
        yield b'key', bytes((1, kind, version + 1)) + good
        yield None, bytes((1, kind, version)) + good + b'more'
        yield None, bytes((1, kind, version)) + good[:-1]
    yield from ((None, data) for data in (b'', b'\1', b'\1\2', b'\0\2\0', b'\2\2\0', b'\1\x63\0', b'\xff' * 6,
                                          b'\xff\xff\xff\x0f\0', b'\1\xff\xff\7\0', b'\1\xff\xff\1\0'))


def consumer_groups():
    """Yield members of consumer groups with subscriptions and assignments of all versions, and with invalid bytes."""
    rng = random.Random(1)
    key = encode_row_key(GroupMetadataKey(group='g'))
    for version in range(-1, 6):
        known = max(0, min(version, 3))
        subscription, assignment = (
            version.to_bytes(2, 'big', signed=True) + encode(filled(message_class, known, rng), known)
            for message_class in (ConsumerProtocolSubscription, ConsumerProtocolAssignment))
        for changed in (subscription, subscription + b'more', subscription[:-1], subscription[:1], b''):
            member = GroupMetadataValue.MemberMetadata(member_id='m', subscription=changed, assignment=assignment)
            for protocol_type in ('consumer', 'connect'):
                yield key, encode_row_value(GroupMetadataValue(protocol_type=protocol_type, members=[member]), 3)


def remote_segments():
    """Yield records that Kafka's classes refuse. Some have several faults, which show in which order Kafka checks."""
    record_classes = [getattr(messages, f'RemoteLogSegmentMetadata{kind}Record') for kind in ('', 'Snapshot')]
    for record_class in record_classes:
        epochs = [record_class.SegmentLeaderEpochEntry(leader_epoch=epoch, offset=epoch) for epoch in (9, 1, 9)]
        for state in (0, 3, 4, -1):
            for start, end in ((0, 5), (-1, 5), (-2, -3), (5, 4)):
                for found in (epochs, []):
                    record = record_class(remote_log_segment_state=state, start_offset=start, end_offset=end,
                                          segment_leader_epochs=found, txn_index_empty=True)
                    yield None, bytes((1, record.api_key, 0)) + encode(record, 0)
    for kind, field, states in (('RemoteLogSegmentMetadataUpdateRecord', 'remote_log_segment_state', range(-1, 6)),
                                ('RemotePartitionDeleteMetadataRecord', 'remote_partition_delete_state', range(-1, 5))):
        for state in states:
            record = getattr(messages, kind)(**{field: state})
            yield None, bytes((1, record.api_key, 0)) + encode(record, 0)


def quotas_and_names():
    for number in DOUBLES:
        yield None, bytes((1, 14, 0)) + encode(ClientQuotaRecord(key='k', value=number), 0)
    for text in STRINGS:
        yield None, bytes((1, 2, 0)) + encode(TopicRecord(name=text), 0)


BROKEN_UTF_8 = [(b'k', None), (None, b'v'), (b'\xff', b'\xed\xa0\x80|\xed\xa0A|\xed\xa0'), (b'', b''),
                (b'\xe0\x80\x80', b'\xf0\x80\x80\x80|\xf4\x90\x80\x80|\xf5\x80'),
                (b'\xed', b'\xed\xbf\xbf\xed\xa0\x80'),
                (b'\xc0\x80', b'\xe2\x82|\xf0\x9f\x98|\xf0\x9f|\xf0'), ('é😀'.encode(), b'a\0b\tc\r\x7f'),
                (b'\xed\xa0\xed\xa0\x80', b'\xe2\x82'), (b'\x80\x80', b'\xf4\x8f\xbf\xbf\xf4\x8f\xbf')]


@pytest.mark.parametrize(('name', 'records'), [
    ('offsets', lambda: [*rows_of('__consumer_offsets'), *consumer_groups()]),
    ('transaction', lambda: rows_of('__transaction_state')),
    ('share-group-state', lambda: rows_of('__share_group_state')),
    ('cluster-metadata', lambda: [*records_of(None), *quotas_and_names()]),
    ('remote-log-metadata', lambda: [*records_of('__remote_log_metadata'), *remote_segments()]),
    ('string', lambda: BROKEN_UTF_8)], ids=lambda value: value if isinstance(value, str) else '')
def test_every_row_and_record_is_kafkas_text(tmp_path, name, records):
    path = log_of(tmp_path, records())
    expected = kafkas_text(name, [path])
    assert our_text(name, [path]) == expected
    assert len(expected) >= 10


@pytest.fixture(scope='module')
def directories(tmp_path_factory):
    """The unpacked directories of tests/data."""
    root = tmp_path_factory.mktemp('directories')
    for archive in sorted(DIRECTORIES.glob('*.tgz')):
        with tarfile.open(archive) as files:
            files.extractall(root / archive.stem, filter='data')
    return root


@pytest.mark.parametrize(('name', 'topic'), [('offsets', '__consumer_offsets'), ('transaction', '__transaction_state'),
                                             ('cluster-metadata', '__cluster_metadata'), ('string', '')])
def test_what_kafka_wrote_is_shown_as_kafka_shows_it(directories, name, topic):
    files = sorted(path for path in directories.rglob(f'{topic}*-*/*.log') if path.stat().st_size
                   and (topic or not path.parent.name.startswith('__')))
    if name == 'cluster-metadata':
        files += sorted(path for path in directories.rglob('*.checkpoint') if path.stat().st_size)
    expected = kafkas_text(name, files)
    assert our_text(name, files) == expected
    assert len(expected) > 10

"""The exact bytes of rows in `__consumer_offsets`."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.worlds.held_partitions import HeldRegistry

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.completion import Callback
from kbroker.base.errors import CorruptLogError
from kbroker.base.long_work import LongWork
from kbroker.group.classic.encoder import group_row
from kbroker.group.classic.states import GroupState
from kbroker.group.coordinator import KINDS
from kbroker.group.kinds import group_id_of
from kbroker.group.memory import GroupMemory
from kbroker.group.records import (
    CommittedOffset,
    GroupRow,
    OffsetKey,
    OffsetRow,
    offset_tombstone,
    read_row,
    topics_of_subscription,
)
from kbroker.group.shard import Shard, TransactionalProducer
from kbroker.protocol.messages import GroupMetadataKey, OffsetCommitKey, OffsetCommitValue
from kbroker.protocol.rows import encode_row_key, encode_row_value
from kbroker.record.batch import encode_batch
from kbroker.record.records import decode_records

T = 1_700_000_000_000
KEY = OffsetKey('g1', 't', 0)
KEY_BYTES = bytes.fromhex('00010002673100017400000000')
GROUP_KEY = bytes.fromhex('000200026731')
TOPIC_ID = bytes(range(16))


def text(value):
    return struct.pack('>h', -1) if value is None else struct.pack('>h', len(value)) + value.encode()


def blob(value):
    return struct.pack('>i', len(value)) + value


def member_v3(member_id, instance_id, subscription, assignment):
    return (
        text(member_id)
        + text(instance_id)
        + text('client')
        + text('/127.0.0.1')
        + struct.pack('>ii', 60_000, 10_000)
        + blob(subscription)
        + blob(assignment)
    )


GROUP_V3 = (
    struct.pack('>h', 3)
    + text('consumer')
    + struct.pack('>i', 7)
    + text('range')
    + text('m1')
    + struct.pack('>q', T)
    + struct.pack('>i', 2)
    + member_v3('m1', None, b'sub', b'assigned')
    + member_v3('m2', 'i2', b'sub2', b'')
)


def appended(keys, offsets, producer=None):
    """Return the bytes of the batch that a shard appends to commit these offsets."""
    clock = ManualClock()
    clock.set_wall_ms(T + 5)
    registry = HeldRegistry(clock)
    (partition,) = registry.create('__consumer_offsets', 1).partitions
    partition.append_batch(encode_batch([(T, b'', b'')] * 70))
    answers = []
    Shard(partition, clock, GroupMemory(1 << 20, clock), LongWork(Timers(clock)), KINDS).append_offsets(
        keys, offsets, Callback(lambda error, _: answers.append(error)), producer)
    assert answers == [None]
    assert [offset.log_offset for offset in offsets] == list(range(70, 70 + len(offsets)))
    return partition.stored[1]


def rows_of(batch):
    return [(record.key, record.value) for record in decode_records(batch)]


def test_an_offset_is_written_in_version_4_with_the_id_of_its_topic():
    assert rows_of(appended([KEY], [CommittedOffset(5, -1, '', T, topic_id=TOPIC_ID)])) == [(
        KEY_BYTES,
        bytes.fromhex('00040000000000000005ffffffff010000018bcfe56800010010000102030405060708090a0b0c0d0e0f'),
    )]


def test_an_offset_in_a_transaction_has_the_bytes_of_apache_kafka():
    """The bytes were written by Apache Kafka 4.4.0 for a TxnOffsetCommit."""
    topic_id = bytes.fromhex('ebf9819ae4a74fc59c5a42c22209cf85')
    assert rows_of(appended([KEY], [CommittedOffset(7, -1, 'm', 0x1a21cbafb68, topic_id=topic_id)],
                            TransactionalProducer(0, 0, None))) == [(
        KEY_BYTES,
        bytes.fromhex(
            '00040000000000000007ffffffff026d000001a21cbafb68010010ebf9819ae4a74fc59c5a42c22209cf85'),
    )]


def test_an_offset_with_a_retention_of_its_own_is_written_in_version_1():
    assert rows_of(appended([KEY], [CommittedOffset(5, 9, 'm', T, T + 1000)])) == [
        (KEY_BYTES, struct.pack('>hq', 1, 5) + text('m') + struct.pack('>qq', T, T + 1000))]


NAMES = st.text(st.characters(codec='utf-8'), max_size=200)
TIMES = st.integers(-1, 2**62)
OFFSETS = st.integers(-1, 2**63 - 1)
COMMITTED = st.tuples(
    st.builds(OffsetKey, NAMES, NAMES, st.integers(0, 2**31 - 1)),
    st.builds(CommittedOffset, OFFSETS, st.integers(-1, 2**31 - 1), NAMES, TIMES, st.none(),
              st.just(bytes(16)) | st.binary(min_size=16, max_size=16))
    # The row of an offset with an expiry time has no leader epoch and no topic id.
    | st.builds(CommittedOffset, OFFSETS, st.just(-1), NAMES, TIMES, st.integers(0, 2**63 - 1)),
)


def as_messages(key, committed):
    """Return the encoded row of an offset, made by the general codec for messages."""
    key = OffsetCommitKey(group=key.group_id, topic=key.topic, partition=key.partition)
    value = OffsetCommitValue(
        offset=committed.offset, leader_epoch=committed.leader_epoch, metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms, topic_id=committed.topic_id)
    if committed.expire_timestamp_ms is None:
        return encode_row_key(key), encode_row_value(value, 4)
    value.expire_timestamp = committed.expire_timestamp_ms
    return encode_row_key(key), encode_row_value(value, 1)


@given(st.lists(COMMITTED, min_size=1, max_size=70), st.none() | st.tuples(st.integers(0, 2**63 - 1), st.just(3)))
def test_the_batch_of_a_commit_is_what_the_codec_makes_of_its_rows(committed, producer):
    keys, offsets = map(list, zip(*committed, strict=True))
    rows = [(T + 5, *as_messages(*row)) for row in committed]
    if producer is None:
        expected = encode_batch(rows, base_offset=70, partition_leader_epoch=0)
        found = appended(keys, offsets)
    else:
        expected = encode_batch(rows, base_offset=70, partition_leader_epoch=0, producer_id=producer[0],
                                producer_epoch=producer[1], transactional=True)
        found = appended(keys, offsets, TransactionalProducer(*producer))
    assert found == bytes(expected)


@given(COMMITTED)
def test_what_is_appended_is_what_a_load_would_read(committed):
    """When appended offsets are durable, the coordinator uses its own objects, and does not decode the batch. These
    objects must equal the ones that a load decodes from the batch."""
    key, offset = committed
    (record,) = decode_records(appended([key], [offset]))
    assert read_row(record.key, record.value, record.offset) == OffsetRow(key, offset)


@pytest.mark.parametrize(
    ('value', 'expected'),
    [
        (struct.pack('>hq', 0, 5) + text('m') + struct.pack('>q', T), CommittedOffset(5, -1, 'm', T, log_offset=77)),
        (
            struct.pack('>hq', 1, 5) + text('m') + struct.pack('>qq', T, -1),
            CommittedOffset(5, -1, 'm', T, log_offset=77),
        ),
        (
            struct.pack('>hq', 1, 5) + text('m') + struct.pack('>qq', T, T + 1),
            CommittedOffset(5, -1, 'm', T, T + 1, log_offset=77),
        ),
        (struct.pack('>hq', 2, 5) + text('m') + struct.pack('>q', T), CommittedOffset(5, -1, 'm', T, log_offset=77)),
        (
            bytes.fromhex('00030000000000000005ffffffff00000000018bcfe56800'),
            CommittedOffset(5, -1, '', T, log_offset=77),
        ),
        (
            bytes.fromhex('00040000000000000005ffffffff010000018bcfe56800010010000102030405060708090a0b0c0d0e0f'),
            CommittedOffset(5, -1, '', T, None, TOPIC_ID, 77),
        ),
    ],
)
def test_offsets_of_every_version_are_read(value, expected):
    assert read_row(KEY_BYTES, value, 77) == OffsetRow(KEY, expected)


def test_a_legacy_offset_is_read():
    value = struct.pack('>hq', 0, 5) + text('m') + struct.pack('>q', T)
    assert read_row(b'\0\0' + KEY_BYTES[2:], value, 77) == OffsetRow(KEY, CommittedOffset(5, -1, 'm', T, log_offset=77))


def test_tombstones_have_the_key_and_nothing_else():
    assert offset_tombstone(KEY) == (KEY_BYTES, None)
    assert read_row(KEY_BYTES, None, 1) == OffsetRow(KEY, None)
    assert read_row(GROUP_KEY, None, 1) == GroupRow(GroupMetadataKey(group='g1'), None)


def test_a_group_is_restored_from_its_row_and_written_as_it_was():
    row = read_row(GROUP_KEY, GROUP_V3, 1)
    group = KINDS.apply_row(None, row.key, row.value)
    assert group.group_id == group_id_of(row.key) == 'g1'
    assert (group.state, group.generation, group.protocol_name, group.leader_id, group.state_since_ms) == (
        GroupState.STABLE,
        7,
        'range',
        'm1',
        T,
    )
    assert group.static_member_ids == {'i2': 'm2'}
    assignments = {member.member_id: member.assignment for member in group.members.values()}
    assert group_row(group, assignments, 1 << 20) == (GROUP_KEY, GROUP_V3)


@pytest.mark.parametrize(
    ('version', 'since', 'member'),
    [
        (0, b'', text('m') + text('c') + text('h') + struct.pack('>i', 10_000) + blob(b's') + blob(b'a')),
        (1, b'', text('m') + text('c') + text('h') + struct.pack('>ii', 60_000, 10_000) + blob(b's') + blob(b'a')),
        (
            2,
            struct.pack('>q', T),
            text('m') + text('c') + text('h') + struct.pack('>ii', 60_000, 10_000) + blob(b's') + blob(b'a'),
        ),
    ],
)
def test_groups_of_old_versions_are_read(version, since, member):
    value = (
        struct.pack('>h', version)
        + text('consumer')
        + struct.pack('>i', 7)
        + text('range')
        + text('m')
        + since
        + struct.pack('>i', 1)
        + member
    )
    row = read_row(GROUP_KEY, value, 1)
    group = KINDS.apply_row(None, row.key, row.value)
    restored = group.members['m']
    assert (restored.session_timeout_ms, restored.rebalance_timeout_ms) == (10_000, 60_000 if version else 10_000)
    assert (restored.assignment, restored.metadata('range')) == (b'a', b's')
    assert group.state_since_ms == (T if since else None)


@pytest.mark.parametrize('kind', [4096, 9, 18, 24, 99])
def test_rows_of_unknown_types_are_left_alone(kind):
    assert read_row(struct.pack('>h', kind) + text('g1') + text('m'), b'\0\0whatever', 1) is None


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        (b'', b''),
        (b'\0', None),
        (None, None),
        (b'\0\1', b''),
        (KEY_BYTES[:-1], None),
        (KEY_BYTES + b'!', None),
        (KEY_BYTES, b'\0'),
        (KEY_BYTES, b'\0\5' + bytes(40)),
        (KEY_BYTES, b'\0\3\0'),
        (b'\0\2\0\2g1', GROUP_V3 + b'!'),
    ],
)
def test_a_row_that_cannot_be_read_says_where_it_is(key, value):
    with pytest.raises(CorruptLogError, match='offset 12'):
        read_row(key, value, 12)


def test_topics_are_read_from_a_subscription_of_any_version():
    version_0 = struct.pack('>i', 2) + text('a') + text('b') + struct.pack('>i', -1)
    assert list(topics_of_subscription(struct.pack('>h', 0) + version_0)) == ['a', 'b']
    assert list(topics_of_subscription(struct.pack('>h', 9) + version_0 + b'later fields')) == ['a', 'b']


@pytest.mark.parametrize('metadata', [b'', b'\0', b'\0\0', struct.pack('>hi', 0, 2**31 - 1), struct.pack('>hi', 0, -2)])
def test_metadata_that_is_no_subscription_is_distinguished(metadata):
    with pytest.raises(ValueError):
        list(topics_of_subscription(metadata))

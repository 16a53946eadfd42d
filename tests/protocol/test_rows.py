"""Encoding and decoding of rows in the coordinators' topics: fixed examples, framing, and newer or broken rows."""
import pytest

from kbroker.protocol import messages, schema
from kbroker.protocol.codec import EncodeError
from kbroker.protocol.messages import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
)
from kbroker.protocol.rows import (
    RowError,
    decode_row_key,
    decode_row_value,
    encode_row_key,
    encode_row_value,
    encode_row_value_in_slices,
)

T = 1_700_000_000_000
ORDERS = TransactionLogValue.PartitionsSchema(topic='orders', partition_ids=[0, 1])


def transaction(status, epoch, partitions, updated, started=T, **fields):
    return TransactionLogValue(**{
        'producer_id': 1000, 'producer_epoch': epoch, 'transaction_timeout_ms': 60_000, 'transaction_status': status,
        'transaction_partitions': partitions, 'transaction_last_update_timestamp_ms': updated,
        'transaction_start_timestamp_ms': started, **fields,
    })


TV2 = {'previous_producer_id': 1000, 'client_transaction_version': 2}
TRANSACTION_VALUES = [
    (
        'empty',
        0,
        transaction(0, 0, None, T, -1),
        '000000000000000003e800000000ea6000ffffffff0000018bcfe56800ffffffffffffffff',
    ),
    (
        'ongoing',
        0,
        transaction(1, 3, [ORDERS], T + 5),
        '000000000000000003e800030000ea60010000000100066f72646572730000000200000000000000010000018bcfe568050000018bcfe56800',
    ),
    (
        'empty after the first InitProducerId',
        1,
        transaction(0, 0, None, T, -1, previous_producer_id=1000),
        '000100000000000003e800000000ea6000000000018bcfe56800ffffffffffffffff01000800000000000003e8',
    ),
    (
        'ongoing, transaction version 2',
        1,
        transaction(1, 3, [ORDERS], T + 5, **TV2),
        '000100000000000003e800030000ea600102076f7264657273030000000000000001000000018bcfe568050000018bcfe56800'
        '02000800000000000003e802020002',
    ),
    (
        'prepare commit',
        1,
        transaction(2, 4, [ORDERS], T + 9, **TV2),
        '000100000000000003e800040000ea600202076f7264657273030000000000000001000000018bcfe568090000018bcfe56800'
        '02000800000000000003e802020002',
    ),
    (
        'complete commit',
        1,
        transaction(4, 4, [], T + 12, **TV2),
        '000100000000000003e800040000ea6004010000018bcfe5680c0000018bcfe5680002000800000000000003e802020002',
    ),
    (
        'prepare abort at the epoch overflow',
        1,
        transaction(
            3,
            32767,
            [TransactionLogValue.PartitionsSchema(topic='orders', partition_ids=[0])],
            T + 9,
            next_producer_id=2000,
            **TV2,
        ),
        '000100000000000003e87fff0000ea600302076f72646572730200000000000000018bcfe568090000018bcfe56800'
        '03000800000000000003e8010800000000000007d002020002',
    ),
    (
        'complete abort after it',
        1,
        transaction(5, 0, [], T + 12, producer_id=2000, **TV2),
        '000100000000000007d000000000ea6005010000018bcfe5680c0000018bcfe5680002000800000000000003e802020002',
    ),
]


@pytest.mark.parametrize(
    ('version', 'value', 'data'), [row[1:] for row in TRANSACTION_VALUES], ids=[row[0] for row in TRANSACTION_VALUES]
)
def test_a_transaction_row_has_kafkas_bytes(version, value, data):
    assert encode_row_value(value, version).hex() == data
    assert decode_row_value(TransactionLogValue, bytes.fromhex(data)) == value


@pytest.mark.parametrize(
    ('topic', 'key', 'data'),
    [
        ('__transaction_state', TransactionLogKey(transactional_id='tx-1'), '0000000474782d31'),
        ('__consumer_offsets', OffsetCommitKey(group='g1', topic='t', partition=0), '00010002673100017400000000'),
        ('__consumer_offsets', GroupMetadataKey(group='g1'), '000200026731'),
        ('__consumer_offsets', ConsumerGroupMetadataKey(group_id='g1'), '000300026731'),
        (
            '__consumer_offsets',
            messages.ConsumerGroupRegularExpressionKey(group_id='g', regular_expression='a.*'),
            '00100001670003612e2a',
        ),
    ],
)
def test_a_key_starts_with_its_type(topic, key, data):
    assert encode_row_key(key).hex() == data
    assert decode_row_key(topic, bytes.fromhex(data)) == key
    assert decode_row_key(topic, memoryview(bytes.fromhex(data))) == key


@pytest.mark.parametrize(
    ('version', 'value', 'data'),
    [
        (
            3,
            OffsetCommitValue(offset=5, leader_epoch=-1, commit_timestamp=T),
            '00030000000000000005ffffffff00000000018bcfe56800',
        ),
        (
            4,
            OffsetCommitValue(offset=5, leader_epoch=-1, commit_timestamp=T, topic_id=bytes(range(16))),
            '00040000000000000005ffffffff010000018bcfe56800010010000102030405060708090a0b0c0d0e0f',
        ),
        (
            1,
            OffsetCommitValue(offset=5, metadata='m', commit_timestamp=T, expire_timestamp=T + 1),
            '0001000000000000000500016d0000018bcfe568000000018bcfe56801',
        ),
    ],
)
def test_an_offset_row_has_kafkas_bytes(version, value, data):
    assert encode_row_value(value, version).hex() == data
    assert decode_row_value(OffsetCommitValue, bytes.fromhex(data)) == value


def test_a_group_row_has_the_layout_of_version_3():
    """The expected bytes were derived by hand from the list of fields."""
    member = GroupMetadataValue.MemberMetadata(
        member_id='m',
        group_instance_id=None,
        client_id='c',
        client_host='/h',
        rebalance_timeout=300,
        session_timeout=45,
        subscription=b's',
        assignment=b'a',
    )
    value = GroupMetadataValue(
        protocol_type='consumer',
        generation=7,
        protocol='range',
        leader=None,
        current_state_timestamp=T,
        members=[member],
    )
    data = (
        '0003' '0008636f6e73756d6572' '00000007' '000572616e6765' 'ffff' '0000018bcfe56800' '00000001'
        '00016d' 'ffff' '000163' '00022f68' '0000012c' '0000002d' '0000000173' '0000000161'
    )
    assert encode_row_value(value, 3).hex() == data
    assert decode_row_value(GroupMetadataValue, bytes.fromhex(data)) == value


def test_a_current_assignment_row_shares_its_struct_between_two_fields():
    """The expected bytes were derived by hand from the list of fields. Only the first struct has the tagged field
    `assignment_epochs`."""
    partitions = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=5, previous_member_epoch=4, state=1,
        assigned_partitions=[partitions(topic_id=bytes(range(16)), partitions=[2], assignment_epochs=[5])],
        partitions_pending_revocation=[partitions(topic_id=bytes(16), partitions=[])],
    )
    data = (
        '0000' '00000005' '00000004' '01'
        '02' '000102030405060708090a0b0c0d0e0f' '0200000002' '01' '00' '05' '0200000005'
        '02' '00000000000000000000000000000000' '01' '00'
        '00'
    )
    assert encode_row_value(value, 0).hex() == data
    assert decode_row_value(ConsumerGroupCurrentMemberAssignmentValue, bytes.fromhex(data)) == value


@pytest.mark.parametrize(('value', 'is_long'), [
    pytest.param(ConsumerGroupCurrentMemberAssignmentValue(assigned_partitions=[
        ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
            topic_id=bytes(16), partitions=list(range(5_000)), assignment_epochs=[1] * 5_000)]), True, id='long'),
    pytest.param(ConsumerGroupCurrentMemberAssignmentValue(), False, id='empty arrays'),
    pytest.param(ConsumerGroupMetadataValue(epoch=3), False, id='no arrays'),
])
def test_a_value_has_the_same_bytes_in_slices(value, is_long):
    found = []

    def encode():
        found.append((yield from encode_row_value_in_slices(value, 0)))

    yields = len(list(encode()))
    assert found == [encode_row_value(value, 0)]
    assert (yields > 1) == is_long


def test_a_nullable_struct_in_a_tag_has_its_presence_byte():
    metadata = ConsumerGroupMemberMetadataValue.ClassicMemberMetadata(session_timeout_ms=45_000)
    value = ConsumerGroupMemberMetadataValue(client_id='c', client_host='h', classic_member_metadata=metadata)
    data = encode_row_value(value, 0)
    assert data.hex().endswith('01' '00' '07' '01' '0000afc8' '01' '00')
    assert decode_row_value(ConsumerGroupMemberMetadataValue, data) == value


def test_a_null_struct_in_a_tag_is_a_zero_byte():
    """In the row of a member that does not use the classic protocol, Kafka writes a zero byte for the null struct in a
    tagged field.

    Outside of tagged fields, a null struct is the byte -1. The codec once expected -1 in tagged fields, too, and could
    not read these rows.
    """
    value = ConsumerGroupMemberMetadataValue(client_id='c', client_host='h', classic_member_metadata=None)
    data = encode_row_value(value, 0)
    assert data.hex().endswith('01' '00' '01' '00')
    assert decode_row_value(ConsumerGroupMemberMetadataValue, data) == value
    with pytest.raises(RowError):
        decode_row_value(ConsumerGroupMemberMetadataValue, data[:-2] + b'\x02\x00\x00')


def test_a_struct_that_is_absent_from_the_tags_is_empty():
    value = ConsumerGroupMemberMetadataValue(client_id='c', client_host='h')
    assert encode_row_value(value, 0).hex().endswith('00')
    assert value.classic_member_metadata == ConsumerGroupMemberMetadataValue.ClassicMemberMetadata()


def test_a_key_of_an_unknown_type_is_none_so_that_replay_skips_it():
    assert decode_row_key('__consumer_offsets', b'\x00\x63rest') is None
    assert decode_row_key('__transaction_state', b'\x00\x01rest') is None
    assert decode_row_key('__consumer_offsets', b'\xff\xff') is None


@pytest.mark.parametrize(
    'data', [b'', b'\x00', b'\x00\x00\x00\x09short', b'\x00\x00\x00\x01x-and-more', b'\x00\x00\xff\xff']
)
def test_a_key_that_does_not_fit_its_type_is_refused(data):
    with pytest.raises(RowError):
        decode_row_key('__transaction_state', data)


@pytest.mark.parametrize(('data', 'complaint'), [
    ('0002', 'found TransactionLogValue of version 2, expected at most 1'),
    ('ffff', 'TransactionLogValue version -1 found, 0 to 1 expected'),
    ('00', 'TransactionLogValue of 1 bytes, at least 2 expected'),
    ('000100000000', 'TransactionLogValue version 1, near byte 2: truncated: 8 bytes expected, 4 left'),
])
def test_a_value_of_an_unknown_version_or_short_is_refused(data, complaint):
    with pytest.raises(RowError, match=complaint):
        decode_row_value(TransactionLogValue, bytes.fromhex(data))


def test_a_value_is_written_in_a_known_version_only():
    with pytest.raises(EncodeError, match='no version 2'):
        encode_row_value(TransactionLogValue(), 2)
    for message in (messages.EndTxnRequest(), TransactionLogValue()):
        with pytest.raises(TypeError, match='not the key of a row'):
            encode_row_key(message)


def test_every_row_type_of_a_topic_is_declared_once():
    keys = [
        (each.topic, each.key)
        for each in schema.declarations().values()
        if each.kind == 'row' and each.name.endswith('Key')
    ]
    assert len(keys) == len(set(keys))
    retired = {9, 18}
    assert {key for topic, key in keys if topic == '__consumer_offsets'} == set(range(24)) - retired

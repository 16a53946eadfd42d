"""Rows and records as text. tests/jvm/test_decoders.py compares every kind of row with Kafka's own tools."""
import base64
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.filled_messages import filled

from kbroker.base.errors import CorruptLogError
from kbroker.protocol import messages
from kbroker.protocol.codec import encode
from kbroker.protocol.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    SnapshotFooterRecord,
    TopicRecord,
    TransactionLogKey,
    TransactionLogValue,
    UnregisterControllerRecord,
    VotersRecord,
)
from kbroker.protocol.metadata_records import encode_metadata_record
from kbroker.protocol.rows import encode_row_key, encode_row_value
from kbroker.record.batch import encode_batch, iter_batches
from kbroker.record.records import Record
from kbroker_tools.rows.coordinator_replay import replay_groups
from kbroker_tools.rows.decoders import DECODERS, FORMATTERS, decoder, formatter, java_text, quorum_record_text

T = 1_700_000_000_000
KEY = encode_row_key(TransactionLogKey(transactional_id='tx-1'))
ONGOING = TransactionLogValue(
    producer_id=1000, previous_producer_id=1000, producer_epoch=3, transaction_timeout_ms=60_000, transaction_status=1,
    transaction_partitions=[TransactionLogValue.PartitionsSchema(topic='orders', partition_ids=[0, 1])],
    transaction_last_update_timestamp_ms=T + 5, transaction_start_timestamp_ms=T, client_transaction_version=2)
ASSIGNED = b'\0\0' + encode(ConsumerProtocolAssignment(assigned_partitions=[
    ConsumerProtocolAssignment.TopicPartition(topic='t', partitions=[1, 0])]), 0)
DATA = ('{"producerId":1000,"previousProducerId":1000,"producerEpoch":3,"transactionTimeoutMs":60000,'
        '"transactionStatus":%s,"transactionPartitions":[{"topic":"orders","partitionIds":[0,1]}],'
        '"transactionLastUpdateTimestampMs":1700000000005,"transactionStartTimestampMs":1700000000000,'
        '"clientTransactionVersion":2}')


def test_dump_log_shows_type_and_version_of_a_row_as_strings():
    assert decoder('transaction').decode(0, KEY, encode_row_value(ONGOING, 1)) == (
        '{"type":"0","data":{"transactionalId":"tx-1"}}', '{"version":"1","data":' + DATA % '"Ongoing"' + '}')


def test_the_epoch_of_a_client_that_keeps_a_transaction_stands_behind_the_transactions_epoch():
    kept = encode_row_value(TransactionLogValue(producer_id=1000, next_producer_id=1001, producer_epoch=3,
                                                next_producer_epoch=0), 1)
    text = decoder('transaction').decode(0, KEY, kept)[1]
    assert '"nextProducerId":1001,"producerEpoch":3,"nextProducerEpoch":0,"transactionTimeoutMs":' in text


def test_a_formatter_shows_them_as_numbers():
    record = Record(7, T, KEY, encode_row_value(ONGOING, 1))
    assert formatter('transaction').format(record) == (
        '{"key":{"type":0,"data":{"transactionalId":"tx-1"}},"value":{"version":1,"data":' + DATA % '"Ongoing"' + '}}')


def test_the_status_is_a_number_before_4_4():
    value = encode_row_value(ONGOING, 1)
    assert '"transactionStatus":1,' in decoder('transaction', '4.3').decode(0, KEY, value)[1]
    assert DATA % '1' in formatter('transaction', '4.3').format(Record(0, T, KEY, value))
    unknown = encode_row_value(TransactionLogValue(transaction_status=11), 1)
    assert '"transactionStatus":11,' in decoder('transaction', '4.3').decode(0, KEY, unknown)[1]
    assert '"transactionStatus":"11",' in decoder('transaction').decode(0, KEY, unknown)[1]


def test_a_tombstone_is_a_delete():
    assert decoder('transaction').decode(0, KEY, None)[1] == '<DELETE>'
    assert formatter('transaction').format(Record(0, T, KEY, None)).endswith(',"value":null}')


@pytest.mark.parametrize(('key', 'value', 'expected'), [
    (b'\0\x63abc', None, 'Unknown record type 99 at offset 5, skipping.'),
    (b'\0', None, "Error at offset 5, skipping. Could not read version from key's buffer."),
    (KEY, b'\0', "Error at offset 5, skipping. Could not read version from value's buffer."),
    (KEY, b'\0\2', 'Error at offset 5, skipping. Found an unknown record version 2 for 0 type'),
    (KEY[:5], b'\0\1', "Error at offset 5, skipping. Could not read record with version 0 from key's buffer due to: "),
    (KEY, b'\0\1x', "Error at offset 5, skipping. Could not read record with version 1 from value's buffer due to: ")])
def test_a_row_that_cannot_be_read_is_reported_in_place_of_its_key(key, value, expected):
    found, payload = decoder('transaction').decode(5, key, value)
    assert payload is None
    assert found.startswith(expected)


@pytest.mark.parametrize('name', ['transaction', 'offsets', 'share-group-state'])
def test_a_row_without_a_key_ends_the_dump_as_in_kafka(name):
    with pytest.raises(CorruptLogError, match='Failed to decode message at offset 9 using the specified decoder'):
        decoder(name).decode(9, None, b'abc')


def test_a_formatter_raises_for_a_row_that_cannot_be_read():
    with pytest.raises(CorruptLogError, match='Could not read record at offset 7 due to: Found an unknown record vers'):
        formatter('transaction').format(Record(7, T, KEY, b'\0\2'))


def test_a_formatter_shows_rows_of_its_own_types_alone():
    commit = Record(0, T, encode_row_key(OffsetCommitKey(group='g', topic='t')),
                    encode_row_value(OffsetCommitValue(offset=5, topic_id=bytes(15) + b'\1'), 4))
    group = Record(1, T, encode_row_key(GroupMetadataKey(group='g')), encode_row_value(GroupMetadataValue(), 3))
    unknown, keyless = Record(2, T, b'\0\x63', b''), Record(3, T, None, b'x')
    shown = [[name for name in ('offsets', 'group-metadata') if formatter(name).format(record) is not None]
             for record in (commit, group, unknown, keyless)]
    assert shown == [['offsets'], ['group-metadata'], [], []]
    assert formatter('offsets').format(commit) == (
        '{"key":{"type":1,"data":{"group":"g","topic":"t","partition":0}},"value":{"version":4,"data":{"offset":5,'
        '"leaderEpoch":-1,"metadata":"","commitTimestamp":0,"topicId":"AAAAAAAAAAAAAAAAAAAAAQ"}}}')


def group_row(protocol_type, subscription, assignment=b'\0\1\0\0\0\0\xff\xff\xff\xff'):
    member = GroupMetadataValue.MemberMetadata(member_id='m', subscription=subscription, assignment=assignment)
    value = GroupMetadataValue(protocol_type=protocol_type, members=[member])
    return encode_row_key(GroupMetadataKey(group='g')), encode_row_value(value, 3)


def test_dump_log_expands_what_members_of_a_consumer_group_subscribe_to_and_are_assigned():
    subscription = b'\0\1' + encode(ConsumerProtocolSubscription(topics=['t']), 1)
    assignment = b'\0\0' + encode(ConsumerProtocolAssignment(user_data=b'u'), 0)
    text = decoder('offsets').decode(0, *group_row('consumer', subscription, assignment))[1]
    assert '"subscription":{"topics":["t"],"userData":null,"ownedPartitions":[]}' in text
    assert '"assignment":{"assignedPartitions":[],"userData":"dQ=="}' in text


def test_a_damaged_assignment_is_skipped_with_a_warning(caplog):
    for assignment, partitions in ((b'', ()), (b'\0\0\xff\xff', ()), (ASSIGNED, (('t', 0), ('t', 1)))):
        batch = encode_batch([(T, *group_row('consumer', b'', assignment), [])])
        found = replay_groups(iter_batches(batch)).group('g', 1, lambda topic_id: None)
        assert [member.assignment for member in found.members] == [partitions]
    assert len(caplog.messages) == 1 and 'skipped an assignment' in caplog.messages[0]


def test_bytes_of_members_stay_base64_in_other_groups_in_formatters_and_where_they_are_no_subscription():
    subscription = b'\0\1' + encode(ConsumerProtocolSubscription(topics=['t']), 1)
    expected = f'"subscription":"{base64.b64encode(subscription).decode()}"'
    assert expected in decoder('offsets').decode(0, *group_row('connect', subscription))[1]
    assert expected in formatter('group-metadata').format(Record(0, T, *group_row('consumer', subscription)))
    assert '"subscription":"AAEA"' in decoder('offsets').decode(0, *group_row('consumer', b'\0\1\0'))[1]
    assert '"subscription":"AA=="' in decoder('offsets').decode(0, *group_row('consumer', b'\0'))[1]


def test_a_metadata_record_is_shown_with_its_kind_and_no_key():
    data = encode_metadata_record(TopicRecord(name='orders', topic_id=bytes(16)), 0)
    assert decoder('cluster-metadata').decode(3, b'key', data) == (
        None, '{"type":"TOPIC_RECORD","version":0,"data":{"name":"orders","topicId":"AAAAAAAAAAAAAAAAAAAAAA"}}')


@pytest.mark.parametrize('compat', ['4.2', '4.3', '4.4'])
def test_a_record_of_a_later_release_is_shown_as_well(compat):
    data = encode_metadata_record(UnregisterControllerRecord(controller_id=5), 0)
    assert decoder('cluster-metadata', compat).decode(3, None, data)[1] == (
        '{"type":"UNREGISTER_CONTROLLER_RECORD","version":0,"data":{"controllerId":5}}')


@pytest.mark.parametrize(('data', 'expected'), [
    (None, 'Error while reading frame version'), (b'', 'Error while reading frame version'),
    (b'\1', 'Error while reading type'), (b'\1\2', 'Error while reading version'),
    (b'\0\2\0', 'Could not deserialize metadata record with frame version 0.'),
    (b'\2\2\0', 'Could not deserialize metadata record due to unknown frame version 2(only frame version 1 is suppor'),
    (b'\1\x63\0', 'org.apache.kafka.common.errors.UnsupportedVersionException: Unknown metadata id 99'),
    (b'\xff\xff\xff\x0f\0', 'Value for frame version was too large.'),
    (b'\1\2\0\x05', 'Failed to deserialize record with type 2'),
    (b'\1\x14\0\0zz', 'Found 2 byte(s) of garbage after 20')])
def test_a_metadata_record_that_cannot_be_read_is_reported_in_place_of_its_payload(data, expected):
    key, payload = decoder('cluster-metadata').decode(4, None, data)
    assert key is None
    assert payload.startswith(f'Error at 4, skipping. {expected}')


def test_a_remote_segment_is_shown_as_kafkas_class_shows_itself():
    record = filled(messages.RemoteLogSegmentMetadataUpdateRecord, 0, random.Random(1))
    record.remote_log_segment_state, record.custom_metadata, record.broker_id = 1, b'abc', 5
    text = decoder('remote-log-metadata').decode(0, b'k', bytes((1, 1, 0)) + encode(record, 0))[1]
    assert text.startswith('RemoteLogSegmentMetadataUpdate{remoteLogSegmentId=RemoteLogSegmentId{topicIdPartition=')
    assert 'customMetadata=Optional[CustomMetadata{3 bytes}], state=COPY_SEGMENT_FINISHED, eventTimestampMs=' in text
    assert text.endswith(', brokerId=5}')


def test_a_remote_segment_that_kafkas_class_refuses_is_reported():
    record = messages.RemoteLogSegmentMetadataRecord(start_offset=5, end_offset=4)
    assert decoder('remote-log-metadata').decode(6, None, bytes((1, 0, 0)) + encode(record, 0)) == (
        None, 'Error at offset 6, skipping. Unexpected end offset = 4. EndOffset for a remote segment cannot be less '
              'than startOffset = 5')


def test_strings_are_shown_as_they_are_and_nothing_for_null():
    assert decoder('string').decode(0, 'é'.encode(), None) == ('é', None)
    assert decoder('string').decode(0, None, b'') == (None, '')


@pytest.mark.parametrize(('data', 'expected'), [
    (b'\xed\xa0\x80|', '\ufffd|'), (b'\xed\xa0A', '\ufffdA'), (b'\xed\xa0', '\ufffd'), (b'\xed', '\ufffd'),
    (b'\xf0\x9f\x98|', '\ufffd|'), (b'\xe0\x80\x80', '\ufffd' * 3), (b'\xc0\x80', '\ufffd' * 2)])
def test_broken_utf_8_is_replaced_as_java_does(data, expected):
    assert java_text(data) == expected


def test_control_records_of_the_quorum_are_shown_by_their_names():
    assert quorum_record_text(4, encode(SnapshotFooterRecord(), 0)) == 'SnapshotFooter {"version":0}'
    text = quorum_record_text(6, encode(VotersRecord(), 0))
    assert text == 'KRaftVoters {"version":0,"voters":[]}'
    with pytest.raises(KeyError):
        quorum_record_text(0, b'')
    with pytest.raises(CorruptLogError, match='KRaftVoters'):
        quorum_record_text(6, b'\0')


DATA_OF_ANY_KIND = st.one_of(st.binary(max_size=60), st.builds(
    lambda kind, rest: bytes((0, kind)) + rest, st.integers(0, 25), st.binary(max_size=60)))


@given(st.sampled_from(sorted(DECODERS)), DATA_OF_ANY_KIND, st.none() | DATA_OF_ANY_KIND)
def test_whatever_the_bytes_are_a_decoder_has_a_text_for_them(name, key, value):
    for text in decoder(name).decode(5, key, value):
        assert text is None or isinstance(text, str)


@given(st.sampled_from(sorted(FORMATTERS)), DATA_OF_ANY_KIND, st.none() | DATA_OF_ANY_KIND)
def test_whatever_the_bytes_are_a_formatter_shows_them_or_says_that_they_are_corrupt(name, key, value):
    try:
        text = formatter(name).format(Record(7, T, key, value))
    except CorruptLogError as error:
        assert str(error).startswith('Could not read record at offset 7 due to: ')
    else:
        assert text is None or text.startswith('{"key":{"type":')

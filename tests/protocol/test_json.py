"""Messages are printed as JSON in the format of Kafka's converters. tests/jvm/test_decoders.py compares the JSON of all
messages with Kafka's."""
import base64
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.filled_messages import filled

from kbroker.protocol import messages, schema
from kbroker.protocol.json import JsonWriter, double_text, json_text, kafka_name, string_text
from kbroker.protocol.messages import (
    ClientQuotaRecord,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataValue,
    OffsetCommitValue,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    TransactionLogValue,
    UserScramCredentialRecord,
)

ROWS_AND_RECORDS = [name for name, declaration in schema.declarations().items()
                    if declaration.kind in ('row', 'record')]


def test_fields_stand_in_the_order_of_the_table_by_kafkas_names():
    value = TransactionLogValue(
        producer_id=1000, previous_producer_id=1000, producer_epoch=3, transaction_timeout_ms=60_000,
        transaction_status=1, transaction_last_update_timestamp_ms=1_700_000_000_005,
        transaction_start_timestamp_ms=1_700_000_000_000, client_transaction_version=2,
        transaction_partitions=[TransactionLogValue.PartitionsSchema(topic='orders', partition_ids=[0, 1])])
    assert json_text(value, 1) == (
        '{"producerId":1000,"previousProducerId":1000,"producerEpoch":3,"transactionTimeoutMs":60000,'
        '"transactionStatus":1,"transactionPartitions":[{"topic":"orders","partitionIds":[0,1]}],'
        '"transactionLastUpdateTimestampMs":1700000000005,"transactionStartTimestampMs":1700000000000,'
        '"clientTransactionVersion":2}')


def test_a_field_that_the_version_lacks_is_left_out():
    value = OffsetCommitValue(offset=5, metadata='m', commit_timestamp=7)
    assert json_text(value, 0) == '{"offset":5,"metadata":"m","commitTimestamp":7}'
    assert json_text(value, 1) == '{"offset":5,"metadata":"m","commitTimestamp":7,"expireTimestamp":-1}'
    assert json_text(value, 3) == '{"offset":5,"leaderEpoch":-1,"metadata":"m","commitTimestamp":7}'


def test_a_tagged_field_at_its_default_is_left_out():
    change = PartitionChangeRecord(topic_id=bytes(16))
    assert json_text(change, 2) == '{"partitionId":-1,"topicId":"AAAAAAAAAAAAAAAAAAAAAA"}'
    change.isr, change.leader = [], -1
    assert json_text(change, 2).endswith(',"isr":[],"leader":-1}')


def test_a_tagged_struct_is_left_out_when_it_is_empty_and_null_when_it_is_null():
    value = ConsumerGroupMemberMetadataValue()
    assert 'classicMemberMetadata' not in json_text(value, 0)
    value.classic_member_metadata = None
    assert json_text(value, 0).endswith('"classicMemberMetadata":null}')


def test_null_is_null_where_no_tag_hides_it():
    assert '"transactionPartitions":null' in json_text(TransactionLogValue(transaction_partitions=None), 1)
    assert '"protocol":null,"leader":null' in json_text(GroupMetadataValue(), 3)


def test_bytes_are_base64_and_a_uuid_is_base64url_without_padding():
    record = UserScramCredentialRecord(salt=b'\xff\xfe', stored_key=b'')
    assert '"salt":"//4=","storedKey":""' in json_text(record, 0)
    broker = RegisterBrokerRecord(incarnation_id=b'\xff' * 16, log_dirs=[bytes(16)])
    assert '"incarnationId":"_____________________w"' in json_text(broker, 4)
    assert '"logDirs":["AAAAAAAAAAAAAAAAAAAAAA"]' in json_text(broker, 4)


def test_a_field_can_be_printed_in_another_way():
    member = GroupMetadataValue.MemberMetadata(subscription=b'abc')
    writer = JsonWriter(GroupMetadataValue, 3, {'members.subscription': lambda data: str(len(data))})
    assert '"subscription":3,"assignment":""}' in writer.text(GroupMetadataValue(members=[member]))


@pytest.mark.parametrize(('name', 'expected'), [
    ('transactional_id', 'transactionalId'), ('is_migrating_zk_broker', 'isMigratingZkBroker'), ('id', 'id'),
    ('kraft_version', 'kRaftVersion'), ('kraft_version_feature', 'kRaftVersionFeature')])
def test_names_are_those_of_kafka(name, expected):
    assert kafka_name(name) == expected


@pytest.mark.parametrize(('number', 'expected'), [
    (0.0, '0.0'), (-0.0, '-0.0'), (100.0, '100.0'), (1048576.0, '1048576.0'), (9999999.0, '9999999.0'), (1e7, '1.0E7'),
    (12345678.0, '1.2345678E7'), (123456789.125, '1.23456789125E8'), (1e21, '1.0E21'), (0.1, '0.1'), (0.001, '0.001'),
    (9.99e-4, '9.99E-4'), (-2.5e-7, '-2.5E-7'), (5e-324, '4.9E-324'), (2.2250738585072014e-308,
    '2.2250738585072014E-308'), (1.7976931348623157e308, '1.7976931348623157E308'), (float('nan'), '"NaN"'),
    (float('inf'), '"Infinity"'), (float('-inf'), '"-Infinity"')])
def test_doubles_are_those_of_java(number, expected):
    assert double_text(number) == expected


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_can_be_read_back(number):
    assert float(double_text(number)) == number


@given(st.text())
def test_a_string_can_be_read_back(text):
    assert json.loads(string_text(text)) == text


def test_escapes_are_those_of_jackson():
    assert string_text('a"b\\c/\n\r\t\b\f\0\x1f\x7f\u2028é😀\\u001f') == (
        '"a\\"b\\\\c/\\n\\r\\t\\b\\f\\u0000\\u001F\x7f\u2028é😀\\\\u001f"')


@pytest.mark.parametrize('name', ROWS_AND_RECORDS)
def test_every_row_and_record_prints_what_json_can_read(name):
    message_class = getattr(messages, name)
    first, last = message_class.versions
    for version in range(first, last + 1):
        message = filled(message_class, version, random.Random(name))
        found = json.loads(json_text(message, version))
        for field in message_class.schema.struct.fields:
            value = getattr(message, field.name)
            if version in field.versions and field.tag is None and field.struct is None and not field.is_array:
                if field.type == 'bytes':
                    value = None if value is None else base64.b64encode(value).decode()
                elif field.type == 'uuid':
                    value = base64.urlsafe_b64encode(value).rstrip(b'=').decode()
                assert found[kafka_name(field.name)] == value


def test_a_quota_is_a_number():
    assert json_text(ClientQuotaRecord(key='k', value=1e7), 0) == '{"entity":[],"key":"k","value":1.0E7,"remove":false}'


def test_a_field_that_kafka_does_not_have_is_not_printed():
    own, = (field for field in TransactionLogValue.schema.struct.fields if field.is_private)
    assert json_text(TransactionLogValue(**{own.name: 5}), 1) == json_text(TransactionLogValue(), 1)

"""Admin and LiveView against kbroker and against Apache Kafka."""
import itertools
import time
import uuid

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.brokers.broker_process import BrokerProcess
from support.kafka.apache_kafka import KafkaProcess

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.admin import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    AlterOp,
    IsolationLevel,
    NewTopic,
    OffsetAndMetadata,
    ResourceType,
    ScramCredentialUpsertion,
)
from kbroker.client.config import ClientConfig
from kbroker.client.description_rows import config_of, scram_credential_of
from kbroker.client.descriptions import ConfigSynonym, ScramCredentialInfo
from kbroker.client.fetching import fetch_batches
from kbroker.protocol import messages
from kbroker.record.records import decode_records
from kbroker_tools.base.view import GroupOffset, PartitionOffsets
from kbroker_tools.cluster.live_view import LiveView

START_MS = time.time_ns() // 1_000_000 - 10_000
names = (f'{word}_{uuid.uuid4().hex[:6]}' for word in itertools.repeat('thing'))


@pytest.fixture(scope='module', params=[BrokerProcess, pytest.param(KafkaProcess, marks=pytest.mark.jvm)])
def address(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp('administered') / 'data'
    with request.param(directory, {'group.initial.rebalance.delay.ms': '0'}) as broker:
        yield broker.address


@pytest.fixture(scope='module')
def view(address):
    view = LiveView(ClientConfig.load(address))
    yield view
    view.close()


@pytest.fixture
def admin(view):
    return view.admin


def eventually(ask, is_expected):
    """Call `ask` until `is_expected` returns True for its result, for 120 s at most. Return the last result.

    A Kafka broker applies a change after the controller has answered, and markers are written after the answer.
    """
    limit = time.monotonic() + 120
    while not is_expected(found := ask()) and time.monotonic() < limit:
        pass
    return found


@pytest.fixture
def topic(view, admin):
    name = next(names)
    assert admin.create_topics([NewTopic(name, partitions=2, replication_factor=1)]) == {name: None}
    assert name in eventually(view.topics, lambda topics: name in topics)
    return name


def produced(address, topic, values, partition=0, **settings):
    producer = Producer({'bootstrap.servers': address, 'linger.ms': 0} | settings)
    for timestamp_ms, value in enumerate(values, START_MS):
        producer.produce(topic, value, partition=partition, timestamp=timestamp_ms)
        producer.flush()


class OpenTransaction:
    """Opens a transaction with one record in partition 0."""

    def __init__(self, address, topic):
        self.transactional_id = next(names)
        self.producer = Producer({'bootstrap.servers': address, 'transactional.id': self.transactional_id})
        self.producer.init_transactions()
        self.begin(topic)

    def begin(self, topic):
        self.producer.begin_transaction()
        self.producer.produce(topic, b'in doubt', partition=0)
        self.producer.flush()


# ---- topics and configs

def test_topics_are_made_widened_and_deleted_each_with_its_own_answer(view, admin, topic):
    other = next(names)
    answers = admin.create_topics([NewTopic(topic), NewTopic(other, assignments={0: [1]},
                                                             configs={'segment.bytes': '2000000'})])
    assert answers[topic].code == ErrorCode.TOPIC_ALREADY_EXISTS and topic in str(answers[topic])
    assert answers[other] is None
    answers = admin.create_partitions({topic: 3, other: 1})
    assert answers[topic] is None and answers[other].code == ErrorCode.INVALID_PARTITIONS
    found = eventually(view.topics, lambda topics: len(topics[topic].partitions) == 3)[topic]
    assert [(row.topic, row.partition, row.leader) for row in found.partitions] == [(topic, n, 1) for n in range(3)]
    assert len(found.topic_id) == 16 and not found.is_internal
    answers = admin.delete_topics([other, 'no_such_topic'])
    assert answers[other] is None and answers['no_such_topic'].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert other not in eventually(view.topics, lambda topics: other not in topics)


def test_a_topic_is_only_checked_when_asked_so(view, admin):
    name = next(names)
    assert admin.create_topics([NewTopic(name)], validate_only=True) == {name: None}
    assert name not in view.topics()


def test_credentials_are_stored_described_and_deleted(admin):
    assert admin.alter_scram_credentials('ada', upsertions=[
        ScramCredentialUpsertion('SCRAM-SHA-256', 4096, b'salt', bytes(32))]) is None
    found = eventually(lambda: admin.describe_scram_credentials(['ada'])['ada'],
                       lambda found: not isinstance(found, KafkaError))
    assert found == [ScramCredentialInfo('SCRAM-SHA-256', 4096)]
    assert admin.alter_scram_credentials('ada', deletions=['SCRAM-SHA-256']) is None
    gone = eventually(lambda: admin.describe_scram_credentials(['ada'])['ada'],
                      lambda found: isinstance(found, KafkaError))
    assert gone.code == ErrorCode.RESOURCE_NOT_FOUND
    with pytest.raises(ValueError, match="found mechanism 'SCRAM-SHA-1', expected one of SCRAM-SHA-256, SCRAM-SHA-512"):
        admin.alter_scram_credentials('ada', deletions=['SCRAM-SHA-1'])


def test_codes_without_a_name_are_shown_as_such():
    assert scram_credential_of(9, 5000) == ScramCredentialInfo('9', 5000)
    row = messages.DescribeConfigsResponse.DescribeConfigsResourceResult
    assert [(entry.source, entry.type) for entry in map(config_of, [
        row(config_source=-1, config_type=-1), row(config_source=99, config_type=99)])] == [('UNKNOWN', 'UNKNOWN')] * 2


def test_single_settings_are_changed_and_described(admin, topic):
    resource = (ResourceType.TOPIC, topic)
    changes = [('retention.ms', AlterOp.SET, '60000'), ('cleanup.policy', AlterOp.APPEND, 'compact')]
    assert admin.incremental_alter_configs({resource: changes}) == {resource: None}
    values = eventually(lambda: {row.name: row.value for row in admin.describe_configs([resource])[resource]},
                        lambda values: values['retention.ms'] == '60000')
    assert values['retention.ms'] == '60000' and set(values['cleanup.policy'].split(',')) == {'delete', 'compact'}
    wrong = admin.incremental_alter_configs({resource: [('retention.ms', AlterOp.SET, 'soon')]})[resource]
    assert wrong.code == ErrorCode.INVALID_CONFIG and topic in str(wrong)
    broker = (ResourceType.BROKER, '1')
    assert 'log.retention.ms' in {row.name for row in admin.describe_configs([broker])[broker]}
    described = admin.describe_configs([resource], include_synonyms=True, include_documentation=True)[resource]
    found = {row.name: row for row in described}
    entry = found['retention.ms']
    assert (entry.source, entry.type, entry.is_sensitive, entry.is_read_only) == (
        'DYNAMIC_TOPIC_CONFIG', 'LONG', False, False)
    assert entry.synonyms[0] == ConfigSynonym('retention.ms', '60000', 'DYNAMIC_TOPIC_CONFIG')
    assert found['max.message.bytes'].source == found['max.message.bytes'].synonyms[0].source == 'DEFAULT_CONFIG'
    assert entry.documentation
    admin.alter_config('topic', topic, {'retention.ms': 70_000, 'cleanup.policy': None})
    assert eventually(lambda: admin.describe_config('topic', topic)['retention.ms'],
                      lambda value: value == '70000') == '70000'
    with pytest.raises(KafkaError, match='INVALID_CONFIG'):
        admin.alter_config('topic', topic, {'retention.ms': 'soon'})
    with pytest.raises(KafkaError, match='UNKNOWN_TOPIC_OR_PARTITION'):
        admin.describe_config('topic', 'no_such_topic')
    missing = (ResourceType.TOPIC, 'no_such_topic')
    assert admin.describe_configs([missing])[missing].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (ResourceType.TOPIC, topic) in admin.list_config_resources([ResourceType.TOPIC])


# ---- partitions

def test_offsets_are_listed_by_time_and_by_name(admin, address, topic):
    produced(address, topic, [b'a', b'b', b'c'])
    at = (topic, 0)
    listed = {name: admin.list_offsets({at: name})[at].offset for name in (
        EARLIEST, LATEST, MAX_TIMESTAMP, 'earliest', 'latest', 'max_timestamp', 0, START_MS + 1)}
    assert listed == {EARLIEST: 0, LATEST: 3, MAX_TIMESTAMP: 2, 'earliest': 0, 'latest': 3, 'max_timestamp': 2, 0: 0,
                      START_MS + 1: 1}
    assert admin.list_offsets({at: 1 << 60, (topic, 1): LATEST}) == {at: (-1, -1, -1), (topic, 1): (0, -1, 0)}


def test_records_are_deleted_up_to_an_offset(admin, view, address, topic):
    produced(address, topic, [b'a', b'b', b'c'])
    answers = admin.delete_records({(topic, 0): 2, (topic, 1): 9})
    assert answers[topic, 0] == 2 and answers[topic, 1].code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert view.partition_offsets(topic, 0) == PartitionOffsets(2, 3, 3)
    assert [header.base_offset for header, _ in view.batches(topic, 0)] == [2]


def test_a_partition_that_is_not_there_is_reported(view, topic):
    for ask in (view.partition_offsets, view.producers, lambda *at: list(view.batches(*at))):
        with pytest.raises(KafkaError, match=f'{topic}-7 does not exist') as caught:
            ask(topic, 7)
        assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_batches_reach_from_the_first_that_holds_the_start_to_the_last_that_begins_below_the_end(view, address, topic):
    produced(address, topic, [f'{n}'.encode() for n in range(10)])

    def found(*bounds):
        return [(header.base_offset, decode_records(batch)[0].value)
                for header, batch in view.batches(topic, 0, *bounds)]

    assert found() == [(n, f'{n}'.encode()) for n in range(10)]
    assert [offset for offset, _ in found(3, 5)] == [3, 4]
    assert found(10) == found(50) == found(3, 3) == []
    assert len(found(0, 1000)) == 10
    assert len(list(fetch_batches(view.cluster, topic, 0, max_bytes=1))) == 10


# ---- transactions

def test_an_open_transaction_is_seen_from_all_sides(view, address, topic):
    produced(address, topic, [b'before'])
    transaction = OpenTransaction(address, topic)
    assert view.partition_offsets(topic, 0) == PartitionOffsets(0, 2, 1)
    (producer,) = (row for row in view.producers(topic, 0) if row.transaction_first_offset is not None)
    assert (producer.transaction_first_offset, producer.last_sequence, producer.coordinator_epoch) == (1, 0, -1)
    found = view.transaction(transaction.transactional_id)
    assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.producer_epoch)
    assert (found.coordinator_id, found.state, found.timeout_ms) == (1, 'Ongoing', 60_000)
    assert found.partitions == ((topic, 0),) and abs(found.start_timestamp_ms - view.now_ms()) < 60_000
    (listing,) = (row for row in view.transactions() if row.transactional_id == transaction.transactional_id)
    assert (listing.coordinator_id, listing.producer_id, listing.state) == (1, producer.producer_id, 'Ongoing')

    transaction.producer.commit_transaction()
    transaction.begin(topic)
    transaction.producer.abort_transaction()
    found = eventually(lambda: view.transaction(transaction.transactional_id), lambda row: row.state == 'CompleteAbort')
    assert (found.state, found.partitions) == ('CompleteAbort', ())
    # The coordinator writes COMPLETE after the last marker is written.
    assert view.partition_offsets(topic, 0) == PartitionOffsets(0, 5, 5)
    assert [header.is_control for header, _ in view.batches(topic, 0)] == [False, False, True, False, True]
    committed = fetch_batches(view.cluster, topic, 0, isolation_level='read_committed')
    assert [header.base_offset for header, _ in committed if not header.is_control] == [0, 1]


def test_transactions_are_listed_by_state_producer_and_duration(admin, view, address, topic):
    transaction = OpenTransaction(address, topic)
    found = view.transaction(transaction.transactional_id)

    def listed(**filters):
        return transaction.transactional_id in {row.transactional_id for row in admin.list_transactions(**filters)}

    assert listed(state_filters=['Ongoing'], producer_id_filters=[found.producer_id])
    assert not listed(state_filters=['Empty']) and not listed(producer_id_filters=[found.producer_id + 1])
    assert not listed(duration_filter_ms=600_000)
    assert listed(transactional_id_pattern='thing_.*') and not listed(transactional_id_pattern='other')
    with pytest.raises(KafkaError, match='broker 1 knows no transaction state Bored'):
        listed(state_filters=['Bored'])
    transaction.producer.abort_transaction()


def test_a_transaction_is_aborted_on_one_partition_past_its_coordinator(admin, view, address, topic):
    OpenTransaction(address, topic)
    (producer,) = view.producers(topic, 0)
    admin.abort_transaction(topic, 0, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch)
    assert view.producers(topic, 0)[0].transaction_first_offset is None
    assert view.partition_offsets(topic, 0) == PartitionOffsets(0, 2, 2)


def test_a_producer_is_fenced_and_what_it_left_open_is_aborted(admin, view, address, topic):
    transaction = OpenTransaction(address, topic)
    before = view.transaction(transaction.transactional_id)
    producer_id, producer_epoch = admin.fence_producers([transaction.transactional_id])[transaction.transactional_id]
    assert producer_id == before.producer_id and producer_epoch > before.producer_epoch
    offsets = view.partition_offsets(topic, 0)
    assert offsets.last_stable_offset == offsets.high_watermark == 2


def test_an_id_that_no_coordinator_knows_has_no_transaction(view):
    assert view.transaction('nobody') is None


# ---- groups

def joined(address, group, topic, **settings):
    consumer = Consumer({'bootstrap.servers': address, 'group.id': group, 'auto.offset.reset': 'earliest',
                         'enable.auto.commit': False, 'client.id': 'reader'} | settings)
    consumer.subscribe([topic])
    while consumer.poll(0.1) is None:
        pass
    return consumer


def test_a_group_is_described_with_what_its_members_read_and_committed(view, address, topic):
    group = next(names)
    produced(address, topic, [b'a', b'b'])
    consumer = joined(address, group, topic)
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    found = view.group(group)
    assert (found.state, found.protocol_type, found.protocol) == ('Stable', 'consumer', 'range')
    (member,) = found.members
    assert member.client_id == 'reader' and '127.0.0.1' in member.client_host and member.instance_id is None
    assert member.assignment == ((topic, 0), (topic, 1))
    (offset,) = view.group_offsets(group)
    assert (offset.topic, offset.partition, offset.offset) == (topic, 0, 2)
    assert group in view.groups()
    consumer.close()
    assert (view.group(group).state, view.group(group).members) == ('Empty', ())


def test_offsets_of_a_group_without_members_are_changed_and_deleted(admin, view, topic):
    group = next(names)
    assert admin.alter_group_offsets(group, {(topic, 0): OffsetAndMetadata(5, 0, 'by hand'),
                                             (topic, 1): OffsetAndMetadata(6)}) == {(topic, 0): None, (topic, 1): None}
    assert view.group_offsets(group) == [GroupOffset(topic, 0, 5, 0, 'by hand'), GroupOffset(topic, 1, 6, -1, '')]
    assert admin.delete_group_offsets(group, [(topic, 0)]) == {(topic, 0): None}
    assert [row.partition for row in view.group_offsets(group)] == [1]
    assert admin.list_group_offsets(group, require_stable=True).keys() == {(topic, 1)}
    assert group in {row.group_id for row in admin.list_groups(states=['Empty'])}
    assert group not in {row.group_id for row in admin.list_groups(states=['Stable'])}
    answers = admin.delete_groups([group, 'nobody'])
    assert answers[group] is None and answers['nobody'].code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_that_is_not_there_is_none_and_has_no_offsets(view):
    assert view.group('nobody') is None and view.group_offsets('nobody') == []


def test_listing_offsets_of_no_partition_sends_no_request(admin):
    assert admin.list_offsets({}, IsolationLevel.READ_COMMITTED) == {}

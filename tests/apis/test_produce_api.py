"""Produce: refused batches and their errors, when the broker answers, and the content of the log.

Covers KIP-951.
"""

import pytest
from api_client import ApiClient, TransactionalClient, values_of

from kbroker.base.errors import ErrorCode
from kbroker.record.batch import read_header

IDEMPOTENT = {'producer_id': 4000, 'producer_epoch': 0}
HOUR_MS = 3_600_000


def changed(batch, position, replacement):
    return batch[:position] + replacement + batch[position + len(replacement) :]


@pytest.mark.parametrize('version', range(3, 13))
def test_a_batch_is_appended_in_every_version(client, version):
    assert client.produce(client.batch(b'a', b'b'), version).base_offset == 0
    answer = client.produce(client.batch(b'c'), version)
    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 2, -1)
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert values_of(client.fetch().records) == [b'a', b'b', b'c']


def test_from_version_13_on_topics_have_ids(client):
    topic_id = client.create_topic('by-id')

    def produce(topic_id):
        return client.ask(
            'Produce',
            13,
            acks=-1,
            timeout_ms=1000,
            topic_data=[{'topic_id': topic_id, 'partition_data': [{'index': 0, 'records': client.batch()}]}],
        ).responses[0]

    assert produce(topic_id).partition_responses[0].error_code == 0
    assert produce(topic_id).topic_id == topic_id
    assert produce(b'\7' * 16).partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


REFUSED = {
    'no bytes': (lambda good: b'', ErrorCode.INVALID_RECORD),
    'null': (lambda good: None, ErrorCode.INVALID_RECORD),
    'a part of a batch': (lambda good: good[:-1], ErrorCode.INVALID_RECORD),
    'a part of a header': (lambda good: good[:40], ErrorCode.INVALID_RECORD),
    'two batches': (lambda good: good + good, ErrorCode.INVALID_RECORD),
    'an old format': (lambda good: changed(good, 16, b'\1'), ErrorCode.INVALID_RECORD),
    'a length below a header': (lambda good: changed(good, 8, (20).to_bytes(4, 'big')), ErrorCode.CORRUPT_MESSAGE),
    'a wrong checksum': (lambda good: changed(good, 17, b'\1\2\3\4'), ErrorCode.CORRUPT_MESSAGE),
}


@pytest.mark.parametrize('fault', REFUSED)
def test_what_is_no_batch_is_refused(client, fault):
    change, code = REFUSED[fault]
    answer = client.produce(change(client.batch()))
    assert (answer.error_code, answer.base_offset, answer.log_start_offset) == (code, -1, -1)
    assert client.list_offset(-1).offset == 0


def test_the_bytes_are_looked_at_before_acks(client):
    """For a request without a batch and with invalid acks, Apache Kafka answers INVALID_RECORD. kbroker once answered
    INVALID_REQUIRED_ACKS."""
    assert client.produce(b'', acks=2).error_code == ErrorCode.INVALID_RECORD
    assert client.produce(client.batch(), acks=2).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert client.produce(client.batch(), acks=2, topic='absent').error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_refused_append_tells_the_log_start(client):
    """Apache Kafka returns the log start offset with errors that the log finds. kbroker once always returned -1."""
    assert client.produce(client.batch(control=True)).log_start_offset == 0
    assert client.produce(client.batch(**IDEMPOTENT, base_sequence=5)).log_start_offset == 0
    answer = client.produce(client.batch(b'x' * 2_000_000))
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.MESSAGE_TOO_LARGE, -1)


def test_records_that_break_a_rule_are_named(client):
    client.create_topic('compacted', cleanup_policy='compact')
    answer = client.produce(client.batch((b'k', b'v'), (None, b'v')), topic='compacted')
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [1]
    late = client.now_ms + 2 * HOUR_MS
    answer = client.produce(client.batch((late, b'k', b'v'), b'w'))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.record_errors] == [0]
    assert client.produce(client.batch((late, b'k', b'v')), 7).record_errors == []


def test_zstd_needs_version_7(client):
    assert client.produce(client.batch(compression=4), 6).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert client.produce(client.batch(compression=4), 7).error_code == 0


@pytest.mark.parametrize('topic', ['__consumer_offsets', '__transaction_state'])
def test_no_client_writes_to_internal_topics_whatever_its_name(client, topic):
    """In Apache Kafka, a client named __admin_client may write. In kbroker, a coordinator once failed at a row that
    such a client had written."""
    client.ask('FindCoordinator', coordinator_keys=['x'], key_type=int(topic == '__transaction_state'))
    assert client.produce(client.batch(), topic=topic).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    admin = ApiClient(client.broker, '__admin_client')
    assert admin.produce(client.batch(), topic=topic).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_partition_that_fails_is_no_matter_of_the_others(client):
    client.create_topic('wide', 3)
    good, bad = client.batch(), changed(client.batch(), 17, b'\1\2\3\4')
    answers = client.ask(
        'Produce',
        9,
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            {
                'name': 'wide',
                'partition_data': [{'index': index, 'records': bad if index == 1 else good} for index in range(4)],
            },
            {'name': 'orders', 'partition_data': [{'index': 0, 'records': good}]},
        ],
    ).responses
    assert [[partition.error_code for partition in topic.partition_responses] for topic in answers] == [
        [0, ErrorCode.CORRUPT_MESSAGE, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [0],
    ]


def test_acks_all_waits_for_the_disk(client, disk):
    disk.is_held = True
    waiting = client.begin_produce(client.batch())
    assert not waiting.is_answered and client.list_offset(-1).offset == 0
    disk.release()
    assert waiting.is_answered and client.list_offset(-1).offset == 1


def test_acks_one_does_not_wait(client, disk):
    disk.is_held = True
    assert client.produce(client.batch(), acks=1).base_offset == 0


def test_with_page_cache_durability_no_produce_waits(start_node, disk):
    client = ApiClient(start_node(kbroker_durability='page-cache'))
    client.create_topic()
    disk.is_held = True
    assert client.produce(client.batch()).base_offset == 0


def test_several_requests_of_a_connection_share_a_flush_and_are_answered_in_order(client, disk):
    disk.is_held = True
    connection = client.broker.connect()
    waiting = [client.begin_produce(client.batch(), connection=connection) for _ in range(3)]
    assert connection.replies == []
    disk.release()
    assert len(connection.replies) == 3 and waiting[0].is_answered


def test_acks_zero_is_never_answered_and_a_fault_closes_the_connection(client):
    sent = client.begin_produce(client.batch(), acks=0)
    assert sent.connection.replies == [None] and sent.connection.closed is None
    assert client.list_offset(-1).offset == 1
    sent = client.begin_produce(client.batch(), acks=0, topic='absent')
    assert sent.connection.closed is not None


def test_a_failed_flush_is_answered_as_such(client, disk):
    disk.is_held = True
    waiting = client.begin_produce(client.batch())
    assert len(disk.jobs) == 1
    disk.finish(OSError(28, 'No space left on device'))
    client.broker.turn()
    assert waiting.answer.responses[0].partition_responses[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert client.produce(client.batch()).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_duplicate_is_answered_as_the_first_time_was(client, disk):
    batches = [client.batch(b'a', b'b', **IDEMPOTENT, base_sequence=sequence) for sequence in (0, 2, 4)]
    assert [client.produce(batch).base_offset for batch in batches] == [0, 2, 4]
    assert [client.produce(batch).base_offset for batch in batches] == [0, 2, 4]
    assert client.list_offset(-1).offset == 6
    disk.is_held = True
    first = client.begin_produce(client.batch(**IDEMPOTENT, base_sequence=6))
    again = client.begin_produce(client.batch(**IDEMPOTENT, base_sequence=6))
    assert not first.is_answered and not again.is_answered, 'a duplicate is as durable as the original'
    disk.release()
    assert again.answer.responses[0].partition_responses[0].base_offset == 6


def test_a_gap_in_the_sequence_and_an_older_epoch_are_refused(client):
    client.produce(client.batch(producer_id=4000, producer_epoch=1, base_sequence=0))
    assert client.produce(client.batch(producer_id=4000, producer_epoch=1, base_sequence=7)).error_code == (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    )
    assert client.produce(client.batch(**IDEMPOTENT, base_sequence=1)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_log_append_time_is_the_brokers_clock(client):
    client.create_topic('stamped', message_timestamp_type='LogAppendTime')
    answer = client.produce(client.batch((1000, b'k', b'v')), topic='stamped')
    assert answer.log_append_time_ms == client.now_ms
    header = read_header(client.fetch(topic='stamped').records)
    assert header.is_log_append_time and header.max_timestamp_ms == client.now_ms


@pytest.mark.parametrize(('name', 'codec'), [('uncompressed', 0), ('gzip', 1), ('snappy', 2), ('lz4', 3), ('zstd', 4)])
def test_a_topic_with_a_compression_type_recompresses(client, name, codec):
    client.create_topic('packed', compression_type=name)
    for given in range(5):
        assert (
            client.produce(client.batch(b'one' * 50, b'two' * 50, compression=given), topic='packed').base_offset
            == 2 * given
        )
    for offset in range(0, 10, 2):
        records = client.fetch(topic='packed', offset=offset, partition_max_bytes=1).records
        assert read_header(records).compression == codec and values_of(records) == [b'one' * 50, b'two' * 50]


def test_a_new_limit_of_a_topic_holds_from_the_next_batch_on(client):
    assert client.produce(client.batch(b'x' * 1000)).error_code == 0
    assert client.alter(2, 'orders', max_message_bytes='500') == 0
    assert client.produce(client.batch(b'x' * 1000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.alter(2, 'orders', max_message_bytes=None) == 0
    assert client.produce(client.batch(b'x' * 1000)).error_code == 0


# -- transactions


def test_from_version_12_on_a_partition_joins_the_transaction_with_its_first_batch(client, producer):
    assert producer.produce(producer.batch(b'a')).base_offset == 0
    (state,) = client.ask('DescribeTransactions', transactional_ids=['tx']).transaction_states
    assert [(topic.topic, topic.partitions) for topic in state.topics] == [('orders', [0])]
    assert client.list_offset(-1, isolation_level=1).offset == 0
    assert client.list_offset(-1).offset == 1
    producer.end(committed=True)
    assert client.list_offset(-1, isolation_level=1).offset == 2


def test_a_first_batch_waits_for_the_coordinator_that_adds_its_partition(client, producer, disk):
    disk.is_held = True
    waiting = producer.begin_produce(producer.batch())
    assert client.broker.topics.get('orders', 0).log_end_offset == 0, 'the partition is not in the transaction yet'
    disk.release()
    assert waiting.is_answered and client.list_offset(-1).offset == 1


def test_below_version_12_the_partition_must_have_been_added(producer):
    assert producer.produce(producer.batch(), 11).error_code == ErrorCode.TRANSACTION_ABORTABLE
    assert producer.add_partition() == 0
    assert producer.produce(producer.batch(), 11).error_code == 0


def test_without_verification_older_versions_append_at_once(start_node):
    node = start_node(transaction_partition_verification_enable='false')
    ApiClient(node).create_topic()
    producer = TransactionalClient(node)
    assert producer.produce(producer.batch(), 11).error_code == 0


def test_a_transactional_batch_needs_a_transactional_id(producer):
    answer = producer.produce(producer.batch(), transactional_id=None)
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_one_request_speaks_for_one_producer(producer):
    producer.create_topic('wide', 2)
    answers = producer.ask(
        'Produce',
        12,
        acks=-1,
        timeout_ms=1000,
        transactional_id='tx',
        topic_data=[
            {
                'name': 'wide',
                'partition_data': [
                    {'index': 0, 'records': producer.batch()},
                    {'index': 1, 'records': producer.batch(producer_id=77)},
                ],
            }
        ],
    )
    assert {partition.error_code for partition in answers.responses[0].partition_responses} == {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    }
    assert producer.list_offset(-1, topic='wide').offset == 0


def test_a_producer_of_before_is_fenced(producer, node):
    producer.produce(producer.batch())
    TransactionalClient(node)
    assert producer.produce(producer.batch(base_sequence=1)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(('resource_type', 'name'), [(2, 'orders'), (4, '')])
def test_the_limit_of_a_record_in_a_compressed_batch_is_a_config(client, resource_type, name):
    """The body of a record without key and headers has 7 bytes more than a value of 64 bytes or more."""
    fits, exceeds = (None, b'x' * 93), (None, b'x' * 94)
    assert client.alter(resource_type, name, max_decompressed_message_bytes='100') == 0
    assert client.produce(client.batch(fits, compression=1)).error_code == 0
    answer = client.produce(client.batch(fits, exceeds, compression=1))
    assert (answer.error_code, answer.base_offset, answer.record_errors) == (ErrorCode.INVALID_RECORD, -1, [])
    assert answer.error_message == ('found 101 bytes in record 1 of a compressed batch, expected at most 100 '
                                    '(max.decompressed.message.bytes)')
    assert client.list_offset(-1).offset == 1
    assert client.produce(client.batch(exceeds)).error_code == 0, 'not compressed'
    assert client.alter(resource_type, name, max_decompressed_message_bytes=None) == 0
    assert client.produce(client.batch(exceeds, compression=1)).error_code == 0


def test_a_large_batch_that_a_worker_validates_has_the_limit_of_a_record_too(client):
    client.create_topic('bounded', max_decompressed_message_bytes='100', max_message_bytes='10000000')
    sizes = (91,) * 20_000              # the offset deltas of the last records have two bytes more
    fits, exceeds = (client.batch(*((None, bytes(size)) for size in some), compression=1)
                     for some in (sizes, (*sizes, 92)))
    assert client.produce(fits, topic='bounded').error_code == 0
    assert client.produce(exceeds, topic='bounded').error_code == ErrorCode.INVALID_RECORD

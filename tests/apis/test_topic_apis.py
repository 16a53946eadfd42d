"""Topics through the wire format: creation, description, additional partitions, deletion of records and of topics."""

import pytest
from api_client import ApiClient

from kbroker.base.errors import ErrorCode

NO_ID = bytes(16)
ALL_TOPIC_OPERATIONS, ALL_CLUSTER_OPERATIONS, NOT_ASKED = 3576, 8096, -(2**31)


def create(client, *topics, version=7, **options):
    usual = {'num_partitions': 1, 'replication_factor': 1}
    return client.ask(
        'CreateTopics', version, timeout_ms=1000, topics=[usual | topic for topic in topics], **options
    ).topics


def codes(results):
    return {result.name: result.error_code for result in results}


# -- CreateTopics


@pytest.mark.parametrize('version', range(2, 8))
def test_a_topic_is_created_in_every_version(client, version):
    (result,) = create(client, {'name': 'new', 'num_partitions': 3}, version=version)
    assert result.error_code == 0
    topic = client.broker.topics.topic('new')
    assert len(topic.partitions) == 3
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        assert {config.name: config.value for config in result.configs}['cleanup.policy'] == 'delete'
    if version == 7:
        assert result.topic_id == topic.topic_id


def test_what_is_only_validated_does_not_exist(client):
    assert codes(create(client, {'name': 'new'}, {'name': 'orders'}, validate_only=True)) == {
        'new': 0,
        'orders': ErrorCode.TOPIC_ALREADY_EXISTS,
    }
    assert client.broker.topics.topic('new') is None


def test_each_topic_of_a_request_has_its_own_result(client):
    assert codes(
        create(
            client,
            {'name': 'good'},
            {'name': 'bad name'},
            {'name': 'none', 'num_partitions': 0},
            {'name': 'odd', 'configs': [{'name': 'no.such.config', 'value': '1'}]},
            {'name': 'zero', 'replication_factor': 0},
            {'name': '__cluster_metadata'},
        )
    ) == {
        'good': 0,
        'bad name': ErrorCode.INVALID_TOPIC_EXCEPTION,
        'none': ErrorCode.INVALID_PARTITIONS,
        'odd': ErrorCode.INVALID_CONFIG,
        'zero': ErrorCode.INVALID_REPLICATION_FACTOR,
        '__cluster_metadata': ErrorCode.INVALID_REQUEST,
    }


def test_a_topic_named_twice_is_answered_once(client):
    """Apache Kafka also answers once. kbroker once had an answer for each mention."""
    results = create(client, {'name': 'new'}, {'name': 'new'}, {'name': 'other'})
    assert sorted((result.name, result.error_code) for result in results) == [
        ('new', ErrorCode.INVALID_REQUEST),
        ('other', 0),
    ]


def test_the_number_of_partitions_may_be_left_to_the_broker(start_node):
    client = ApiClient(start_node(num_partitions='4'))
    (result,) = create(client, {'name': 'new', 'num_partitions': -1, 'replication_factor': -1})
    assert (result.error_code, result.num_partitions) == (0, 4)


@pytest.mark.parametrize(('accept', 'code'), [('any', 0), ('strict', ErrorCode.INVALID_REPLICATION_FACTOR)])
def test_a_replication_factor_of_three_is_accepted_unless_strict(start_node, accept, code):
    client = ApiClient(start_node(kbroker_replication_factor_accept=accept))
    (result,) = create(client, {'name': 'new', 'replication_factor': 3})
    assert result.error_code == code


def create_assigned(client, brokers):
    """Create a topic. `brokers` are pairs of (partition, ids of its brokers). Return the result of the topic."""
    assignments = [{'partition_index': index, 'broker_ids': ids} for index, ids in brokers]
    topic = {'name': 'new', 'num_partitions': -1, 'replication_factor': -1, 'assignments': assignments}
    (result,) = create(client, topic)
    return result


@pytest.mark.parametrize(
    ('brokers', 'code'),
    [
        ([[1], [1]], 0),
        ([[1], []], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[1, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[-1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[1, 2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_assignments_name_different_brokers_for_each_partition(client, brokers, code):
    result = create_assigned(client, enumerate(brokers))
    assert result.error_code == code
    assert code or result.num_partitions == len(brokers)


def test_assignments_without_gaps_and_without_other_numbers(client):
    assert create_assigned(client, [(1, [1])]).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    (result,) = create(client, {'name': 'new', 'assignments': [{'partition_index': 0, 'broker_ids': [1]}]})
    assert result.error_code == ErrorCode.INVALID_REQUEST


# -- DeleteTopics


@pytest.mark.parametrize('version', range(1, 6))
def test_topics_are_deleted_by_name(client, version):
    results = client.ask('DeleteTopics', version, topic_names=['orders', 'absent'], timeout_ms=1000).responses
    assert codes(results) == {'orders': 0, 'absent': ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert client.broker.topics.topic('orders') is None


def delete(client, *topics):
    results = client.ask(
        'DeleteTopics', 6, topics=[{'name': name, 'topic_id': topic_id} for name, topic_id in topics], timeout_ms=1000
    ).responses
    return [(result.name, result.topic_id, result.error_code) for result in results]


def test_topics_are_deleted_by_id(client):
    topic_id = client.broker.topics.topic('orders').topic_id
    assert delete(client, (None, topic_id), (None, b'\7' * 16)) == [
        ('orders', topic_id, 0),
        (None, b'\7' * 16, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


def test_a_topic_given_twice_is_not_deleted(client):
    """Apache Kafka gives one answer, INVALID_REQUEST. In kbroker, the first mention once deleted the topic."""
    topic_id = client.broker.topics.topic('orders').topic_id
    refused = ErrorCode.INVALID_REQUEST
    assert delete(client, ('orders', NO_ID), ('orders', NO_ID)) == [('orders', NO_ID, refused)]
    assert delete(client, (None, topic_id), (None, topic_id)) == [(None, topic_id, refused)]
    assert delete(client, ('orders', NO_ID), (None, topic_id)) == [('orders', topic_id, refused)]
    assert delete(client, ('orders', topic_id), (None, NO_ID)) == [
        ('orders', topic_id, refused),
        (None, NO_ID, refused),
    ]
    assert client.broker.topics.topic('orders') is not None


def test_deletion_may_be_forbidden(start_node):
    client = ApiClient(start_node(delete_topic_enable='false'))
    client.create_topic()
    assert delete(client, ('orders', NO_ID)) == [('orders', NO_ID, ErrorCode.TOPIC_DELETION_DISABLED)]


def test_a_topic_made_again_is_another_one(client):
    before = client.broker.topics.topic('orders').topic_id
    client.produce(client.batch())
    delete(client, ('orders', NO_ID))
    assert client.create_topic('orders') != before
    assert client.list_offset(-1).offset == 0


# -- CreatePartitions


def grow(client, *counts, name='orders', assignments=None, version=3, **options):
    """Send one CreatePartitions with an entry for each of `counts`, all for the same topic. Return the error code of
    its only result."""
    topics = [{'name': name, 'count': count, 'assignments': assignments} for count in counts]
    (result,) = client.ask('CreatePartitions', version, timeout_ms=1000, topics=topics, **options).results
    return result.error_code


@pytest.mark.parametrize('version', range(4))
def test_a_topic_grows(client, version):
    assert grow(client, 3, version=version, validate_only=True) == 0
    assert len(client.broker.topics.topic('orders').partitions) == 1
    assert grow(client, 3, version=version) == 0
    assert client.produce(client.batch(), partition=2).error_code == 0
    assert [grow(client, count, version=version) for count in (3, 2, 0)] == [ErrorCode.INVALID_PARTITIONS] * 3
    assert grow(client, 3, name='absent', version=version) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ('brokers', 'code'),
    [
        ([[1], [1]], 0),
        ([[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[1], [1, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[1], [2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_new_partitions_may_be_assigned(client, brokers, code):
    assert grow(client, 3, assignments=[{'broker_ids': ids} for ids in brokers]) == code


def grown(client, **counts):
    """Send one CreatePartitions for several topics. Return the error code of each topic."""
    topics = [{'name': name, 'count': count, 'assignments': None} for name, count in counts.items()]
    results = client.ask('CreatePartitions', timeout_ms=1000, validate_only=True, topics=topics).results
    return {result.name: result.error_code for result in results}


def test_a_request_adds_at_most_10000_partitions(client):
    client.create_topic('payments')
    assert grown(client, orders=5001, payments=5001) == {'orders': 0, 'payments': 0}
    assert grown(client, orders=5001, payments=5002, absent=7) == dict.fromkeys(
        ('orders', 'payments', 'absent'), ErrorCode.POLICY_VIOLATION), 'also the topic that does not exist'
    assert grown(client, orders=2**31 - 1, payments=2**31 - 1) == dict.fromkeys(
        ('orders', 'payments'), ErrorCode.POLICY_VIOLATION)


def test_only_partitions_of_existing_topics_count_as_additional(client):
    client.create_topic('payments')
    assert grown(client, orders=3, payments=-20_000, absent=20_000) == {
        'orders': 0, 'payments': ErrorCode.INVALID_PARTITIONS, 'absent': ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_the_limit_of_additional_partitions_comes_before_the_check_of_assignments(client):
    assert grow(client, 20_001, assignments=[{'broker_ids': [1]}]) == ErrorCode.POLICY_VIOLATION


def test_a_topic_that_would_grow_twice_does_not(client):
    assert grow(client, 2, 3) == ErrorCode.INVALID_REQUEST
    assert len(client.broker.topics.topic('orders').partitions) == 1


# -- DeleteRecords


def delete_records(client, offset, topic='orders', partition=0, version=2):
    (result,) = (
        client.ask(
            'DeleteRecords',
            version,
            timeout_ms=1000,
            topics=[{'name': topic, 'partitions': [{'partition_index': partition, 'offset': offset}]}],
        )
        .topics[0]
        .partitions
    )
    return result.error_code or result.low_watermark


@pytest.mark.parametrize('version', range(3))
def test_records_are_deleted_up_to_an_offset(client, version):
    client.produce(client.batch(b'a', b'b', b'c'))
    assert delete_records(client, 2, version=version) == 2
    assert delete_records(client, 1, version=version) == 2, 'the log start never moves back'
    assert client.fetch(offset=1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete_records(client, 4, version=version) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete_records(client, -1, version=version) == 3
    assert client.list_offset(-2).offset == 3


def test_records_that_may_not_be_deleted(client):
    client.create_topic('compacted', cleanup_policy='compact')
    client.create_topic('both', cleanup_policy='compact,delete')
    client.create_topic('neither', cleanup_policy='')
    client.ask('FindCoordinator', coordinator_keys=['g'])
    assert delete_records(client, 0, 'compacted') == ErrorCode.POLICY_VIOLATION
    assert delete_records(client, 0, 'both') == delete_records(client, 0, 'neither') == 0
    assert delete_records(client, 0, '__consumer_offsets') == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert (
        delete_records(client, 0, 'absent')
        == delete_records(client, 0, partition=1)
        == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    )


# -- Metadata


@pytest.mark.parametrize('version', range(14))
def test_metadata_names_the_broker_and_all_topics(client, version):
    client.create_topic('wide', 2)
    answer = client.ask('Metadata', version, topics=None if version else [])
    assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [(1, 'localhost', 9092)]
    assert {topic.name: len(topic.partitions) for topic in answer.topics} == {'orders': 1, 'wide': 2}
    assert answer.controller_id == (1 if version >= 1 else -1)
    (partition,) = answer.topics[0].partitions
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])


@pytest.mark.parametrize('version', range(1, 14))
def test_no_topics_are_none(client, version):
    assert client.ask('Metadata', version, topics=[]).topics == []


@pytest.mark.parametrize('version', range(14))
def test_a_topic_is_created_by_asking_for_it(client, version):
    (topic,) = client.ask('Metadata', version, topics=[{'name': 'new'}]).topics
    assert (topic.error_code, len(topic.partitions)) == (0, 1)
    assert client.broker.topics.topic('new') is not None


def test_the_request_and_the_broker_settings_may_forbid_creation(start_node, client):
    (topic,) = client.ask('Metadata', topics=[{'name': 'new'}], allow_auto_topic_creation=False).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    client.broker.config.auto_create_topics_enable = False
    (topic,) = client.ask('Metadata', topics=[{'name': 'new'}]).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_internal_topics_are_created_as_such(client):
    (topic,) = client.ask('Metadata', topics=[{'name': '__consumer_offsets'}]).topics
    assert topic.is_internal and client.broker.topics.topic('__consumer_offsets').config.cleanup_policy == {'compact'}


@pytest.mark.parametrize('name', ['', '.', 'bad name', 'x' * 250])
def test_a_name_that_no_topic_can_have(client, name):
    (topic,) = client.ask('Metadata', topics=[{'name': name}]).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_topics_are_asked_for_by_id_from_version_12_on(client):
    topic_id = client.broker.topics.topic('orders').topic_id
    for version in (10, 11):
        answer = client.ask('Metadata', version, topics=[{'name': None, 'topic_id': topic_id}])
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST] and answer.brokers == []
    for version in (12, 13):
        found, unknown = client.ask(
            'Metadata',
            version,
            topics=[
                {'name': None, 'topic_id': topic_id},
                {'name': 'orders', 'topic_id': b'\7' * 16},
                {'name': 'ignored'},
            ],
        ).topics
        assert (found.name, found.error_code) == ('orders', 0)
        assert (unknown.name, unknown.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
    assert client.ask('Metadata', 13, topics=[{'name': None}]).error_code == ErrorCode.INVALID_REQUEST


def test_a_topic_asked_for_twice_is_described_once(client):
    assert len(client.ask('Metadata', topics=[{'name': 'orders'}] * 2).topics) == 1


def test_metadata_tells_what_the_client_may_do_if_asked(client):
    """Without an authorizer, all operations are authorized, as in Apache Kafka. kbroker once did not set the field."""
    asked = client.ask(
        'Metadata',
        10,
        topics=None,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert (asked.topics[0].topic_authorized_operations, asked.cluster_authorized_operations) == (
        ALL_TOPIC_OPERATIONS,
        ALL_CLUSTER_OPERATIONS,
    )
    silent = client.ask('Metadata', 10, topics=None)
    assert (silent.topics[0].topic_authorized_operations, silent.cluster_authorized_operations) == (
        NOT_ASKED,
        NOT_ASKED,
    )


def test_metadata_follows_what_a_topic_becomes(client):
    def partitions():
        (topic,) = client.ask('Metadata', topics=[{'name': 'orders'}]).topics
        return topic.topic_id, len(topic.partitions)

    before, one = partitions()
    client.ask('CreatePartitions', timeout_ms=1000, topics=[{'name': 'orders', 'count': 3, 'assignments': None}])
    assert (one, partitions()) == (1, (before, 3))
    delete(client, ('orders', NO_ID))
    client.create_topic('orders', 2)
    after, two = partitions()
    assert after != before and two == 2


# -- DescribeTopicPartitions


def pages(client, limit, names=(), cursor=None):
    """Describe topics page by page, from `cursor` to the end. Return each page as a list of (topic, partitions)."""
    found = []
    while True:
        answer = client.ask(
            'DescribeTopicPartitions',
            topics=[{'name': name} for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        found.append(
            [(topic.name, [partition.partition_index for partition in topic.partitions]) for topic in answer.topics]
        )
        if answer.next_cursor is None:
            return found
        cursor = {'topic_name': answer.next_cursor.topic_name, 'partition_index': answer.next_cursor.partition_index}


def test_partitions_are_described_a_page_at_a_time(client):
    client.create_topic('a', 3)
    client.create_topic('b', 2)
    everything = [('a', [0, 1, 2]), ('b', [0, 1]), ('orders', [0])]
    assert pages(client, 100) == [everything]
    assert pages(client, 4) == [[('a', [0, 1, 2]), ('b', [0])], [('b', [1]), ('orders', [0])]]
    assert pages(client, 3) == [[('a', [0, 1, 2])], [('b', [0, 1]), ('orders', [0])]]
    assert (
        pages(client, 0)
        == pages(client, 1)
        == [[('a', [0])], [('a', [1])], [('a', [2])], [('b', [0])], [('b', [1])], [('orders', [0])]]
    )
    assert pages(client, 100, ('b', 'a', 'b')) == [everything[:2]]
    assert pages(client, 100, cursor={'topic_name': 'a', 'partition_index': 7}) == [[('a', []), *everything[1:]]]


def test_a_cursor_that_no_page_gave_is_refused(client):
    for cursor in ({'topic_name': 'orders', 'partition_index': -1}, {'topic_name': 'other', 'partition_index': 0}):
        answer = client.ask('DescribeTopicPartitions', topics=[{'name': 'orders'}], cursor=cursor)
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST]


def test_topics_that_are_not_there_are_described_as_such(client):
    answer = client.ask('DescribeTopicPartitions', topics=[{'name': name} for name in ('absent', 'bad name', 'orders')])
    assert codes(answer.topics) == {
        'absent': ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        'bad name': ErrorCode.INVALID_TOPIC_EXCEPTION,
        'orders': 0,
    }
    assert {topic.topic_authorized_operations for topic in answer.topics} == {ALL_TOPIC_OPERATIONS}

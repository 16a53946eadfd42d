"""The APIs about the cluster: versions, features, the broker itself, its directory, leaders.

Covers KIP-1242.
"""

import pytest
from support.brokers.in_process_broker import frame_of
from support.messages.message_builder import build

from kbroker.apis.serving.served import served_apis
from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.codec import decode
from kbroker.protocol.messages import ApiVersionsResponse


def ask_versions(client, version, name='test', software='1.0', **expected):
    names = {'client_software_name': name, 'client_software_version': software} if version >= 3 else {}
    return client.ask('ApiVersions', version, **names, **expected)


@pytest.mark.parametrize('version', range(6))
def test_the_versions_served_are_those_that_the_handlers_declare(client, version):
    answer = ask_versions(client, version)
    assert {entry.api_key: entry.max_version for entry in answer.api_keys} == {
        int(api.key): api.max_version for api in served_apis()
    }


def test_produce_is_advertised_from_0_and_served_from_3(client):
    """Old versions of librdkafka refuse a broker whose lowest version of Produce is above 0 (KAFKA-18659)."""
    produce = ask_versions(client, 4).api_keys[0]
    assert (produce.api_key, produce.min_version, produce.max_version) == (ApiKey.PRODUCE, 0, 13)
    connection = client.broker.connect()
    client.broker.send(connection, b'\0\0\0\2\0\0\0\1\0\1x' + bytes(10))
    assert connection.closed is not None


def test_a_version_of_the_future_is_answered_in_version_0_with_the_range(client):
    connection = client.broker.connect()
    client.broker.send(connection, b'\0\x12\0\x63\0\0\0\7\0\1x\0\1a\1b\0')
    (reply,) = connection.replies
    answer = decode(ApiVersionsResponse, reply, 0, 4)
    assert reply[:4] == b'\0\0\0\7' and answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert (ApiKey.API_VERSIONS, 0, 5) in {
        (entry.api_key, entry.min_version, entry.max_version) for entry in answer.api_keys
    }


@pytest.mark.parametrize(
    ('name', 'software'), [('', '1'), ('a', ''), ('bad name', '1'), ('-a', '1'), ('a', '1.'), ('a', '1_0')]
)
def test_a_client_that_names_itself_badly_is_refused(client, name, software):
    answer = ask_versions(client, 3, name, software)
    assert (answer.error_code, answer.api_keys) == (ErrorCode.INVALID_REQUEST, [])


@pytest.mark.parametrize(
    ('cluster_id', 'node_id', 'code'),
    [
        ('own', 1, ErrorCode.NONE),
        (None, -1, ErrorCode.NONE),
        ('own', 2, ErrorCode.REBOOTSTRAP_REQUIRED),
        ('own', 0, ErrorCode.REBOOTSTRAP_REQUIRED),
        ('own', -2, ErrorCode.REBOOTSTRAP_REQUIRED),
        ('other', 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ('', 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        ('', -1, ErrorCode.INVALID_REQUEST),
        ('own', -1, ErrorCode.INVALID_REQUEST),
        ('other', -1, ErrorCode.INVALID_REQUEST),
        (None, -2, ErrorCode.INVALID_REQUEST),
        (None, 0, ErrorCode.INVALID_REQUEST),
        (None, 1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_client_that_expects_another_cluster_or_node_has_to_bootstrap_again(client, cluster_id, node_id, code):
    if cluster_id == 'own':
        cluster_id = ask_cluster_id(client)
    message = build(
        'ApiVersionsRequest', client_software_name='x', client_software_version='1', cluster_id=cluster_id,
        node_id=node_id,
    )
    connection = client.broker.connect()
    client.broker.send(connection, frame_of(message, 5))
    (reply,) = connection.replies
    answer = decode(ApiVersionsResponse, reply, 5, 4)
    assert answer.error_code == code and connection.closed is None
    if code == ErrorCode.NONE:
        assert len(answer.api_keys) == len(served_apis()) and answer.finalized_features
    else:
        assert reply[4:] == code.to_bytes(2) + b'\1' + bytes(5)


def ask_cluster_id(client):
    """Return the cluster id that the answers to Metadata and DescribeCluster agree on."""
    (cluster_id,) = {client.ask('Metadata', 12, topics=[]).cluster_id, client.ask('DescribeCluster', 1).cluster_id}
    return cluster_id


def test_features_are_those_of_the_metadata_log(client):
    answer = ask_versions(client, 4)
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    image = client.broker.metadata.image
    assert finalized == {**image.features, 'kraft.version': 1} and finalized['transaction.version'] == 2
    assert [finalized[f'{kind}.version'] for kind in ('group', 'share', 'streams')] == [1, 1, 1]
    assert answer.finalized_features_epoch >= 0
    assert {'metadata.version', 'transaction.version'} <= {feature.name for feature in answer.supported_features}
    lowest = {feature.min_version for feature in ask_versions(client, 3).supported_features}
    assert 0 not in lowest, 'clients of version 3 treat a lowest level of 0 as an error'


def test_kraft_version_0_of_a_static_quorum_is_not_listed(client):
    client.broker.metadata.image.kraft_version = 0
    assert 'kraft.version' not in {feature.name for feature in ask_versions(client, 4).finalized_features}


@pytest.mark.parametrize('version', range(3))
def test_the_cluster_is_this_broker(client, version):
    answer = client.ask('DescribeCluster', version)
    assert [(broker.broker_id, broker.host, broker.port) for broker in answer.brokers] == [(1, 'localhost', 9092)]
    assert (answer.cluster_id, answer.controller_id) == (client.broker.metadata.cluster_id, 1)
    assert answer.cluster_authorized_operations == -(2**31)
    assert (
        client.ask('DescribeCluster', version, include_cluster_authorized_operations=True).cluster_authorized_operations
        == 8096
    )


@pytest.mark.parametrize(
    ('endpoint_type', 'code'), [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)]
)
def test_controllers_are_not_described(client, endpoint_type, code):
    assert client.ask('DescribeCluster', 1, endpoint_type=endpoint_type).error_code == code


@pytest.mark.parametrize('version', range(1, 6))
def test_the_log_directory_is_described_with_its_partitions(client, version):
    client.create_topic('wide', 2)
    client.produce(client.batch())

    def described(topics):
        (directory,) = client.ask('DescribeLogDirs', version, topics=topics).results
        assert directory.log_dir == client.broker.directory
        if version >= 4:
            assert 0 < directory.usable_bytes <= directory.total_bytes
        return {topic.name: [partition.partition_size for partition in topic.partitions] for topic in directory.topics}

    size = len(client.batch())
    assert described(None) == {'orders': [size], 'wide': [0, 0]}
    orders = {'topic': 'orders', 'partitions': [0, 7]}
    assert described([orders, orders, {'topic': 'wide', 'partitions': []}, {'topic': 'absent', 'partitions': [0]}]) == {
        'orders': [size]
    }


@pytest.mark.parametrize('version', range(3))
def test_no_election_is_ever_needed(client, version):
    answer = client.ask(
        'ElectLeaders',
        version,
        topic_partitions=[{'topic': 'orders', 'partitions': [0, 5]}, {'topic': 'absent', 'partitions': [0]}],
        timeout_ms=1000,
    )
    assert [
        [partition.error_code for partition in topic.partition_result] for topic in answer.replica_election_results
    ] == [[ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]]
    everything = client.ask('ElectLeaders', version, topic_partitions=None, timeout_ms=1000).replica_election_results
    assert [(topic.topic, topic.partition_result) for topic in everything] == [('orders', [])]


def test_an_election_of_an_unknown_kind_is_refused(client):
    answer = client.ask('ElectLeaders', 2, election_type=5, topic_partitions=[{'topic': 'orders', 'partitions': [0]}])
    assert (
        answer.error_code
        == answer.replica_election_results[0].partition_result[0].error_code
        == ErrorCode.INVALID_REQUEST
    )

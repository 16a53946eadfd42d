"""FindCoordinator for share partitions."""
import pytest

from kbroker.base.errors import ErrorCode
from kbroker.base.internal_topics import SHARE_GROUP_STATE


def test_the_coordinator_of_a_share_partition_is_this_broker(node, client):
    answer = client.ask('FindCoordinator', 6, key_type=2, coordinator_keys=['g1:AAECAwQFBgcICQoLDA0ODw:0'])
    (found,) = answer.coordinators
    assert (found.error_code, found.node_id) == (0, node.metadata.node_id)
    assert len(node.topics.topic(SHARE_GROUP_STATE).partitions) == 50


@pytest.mark.parametrize('key', ['g1', 'g1:AAECAwQFBgcICQoLDA0ODw', 'g1:orders:0'])
def test_a_malformed_key_of_a_share_partition_is_an_invalid_request(node, client, key):
    (found,) = client.ask('FindCoordinator', 6, key_type=2, coordinator_keys=[key]).coordinators
    assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)
    assert node.topics.topic(SHARE_GROUP_STATE) is None


def test_share_partitions_have_a_coordinator_from_version_six_on(client):
    (found,) = client.ask('FindCoordinator', 5, key_type=2,
                          coordinator_keys=['g1:AAECAwQFBgcICQoLDA0ODw:0']).coordinators
    assert found.error_code == ErrorCode.INVALID_REQUEST


def test_a_start_offset_far_below_zero_has_the_largest_lag(client):
    """Apache Kafka accepts such a start offset, too. In kbroker, the lag once did not fit 64 bits, and the answer was
    an error."""
    lowest, highest = -2**63, 2**63 - 1
    client.produce(client.batch(b'a'))
    client.ask('FindCoordinator', 6, key_type=0, coordinator_keys=['g1'])
    altered = client.ask('AlterShareGroupOffsets', 0, group_id='g1', topics=[
        {'topic_name': 'orders', 'partitions': [{'partition_index': 0, 'start_offset': lowest}]}])
    assert altered.responses[0].partitions[0].error_code == 0
    described = client.ask('DescribeShareGroupOffsets', 1, groups=[{'group_id': 'g1', 'topics': None}])
    (partition,) = described.groups[0].topics[0].partitions
    assert (partition.start_offset, partition.lag) == (lowest, highest)

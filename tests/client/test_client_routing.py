"""Requests reach the right broker in a cluster of two, and follow leaders and coordinators that move."""
import pytest
from support.brokers.scripted_broker import ScriptedBroker, running

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.admin import LATEST, Admin
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.protocol import messages


class TwoBrokers:
    """Brokers 1 and 2. `leaders` has the leader of each partition of the one topic. `coordinator` serves all keys.

    Each broker answers for its own partitions. Each offset in an answer is the id of the broker that answers.
    """

    def __init__(self):
        self.leaders = {0: 1, 1: 2}
        self.coordinator = 2
        self.unknown_for_ms = 0
        self.brokers = {1: ScriptedBroker(), 2: ScriptedBroker()}
        self.clock = ManualClock()
        self.on_pause = lambda: None
        for node_id, broker in self.brokers.items():
            broker.answers |= {
                'Metadata': self.metadata, 'FindCoordinator': self.find_coordinator,
                'ListOffsets': lambda request, node_id=node_id: self.list_offsets(node_id, request),
                'DescribeGroups': lambda request, node_id=node_id: self.describe_groups(node_id, request),
                'ListGroups': lambda request, node_id=node_id: messages.ListGroupsResponse(groups=[
                    messages.ListGroupsResponse.ListedGroup(group_id=f'g{node_id}', protocol_type='consumer')])}

    def metadata(self, request):
        response = messages.MetadataResponse
        return response(
            brokers=[response.MetadataResponseBroker(node_id=node_id, host='127.0.0.1', port=broker.port)
                     for node_id, broker in self.brokers.items()],
            topics=[response.MetadataResponseTopic(name=topic.name, partitions=[
                response.MetadataResponsePartition(partition_index=partition, leader_id=leader)
                for partition, leader in self.leaders.items()]) for topic in request.topics or ()])

    def find_coordinator(self, request):
        row = messages.FindCoordinatorResponse.Coordinator(
            key=request.coordinator_keys[0], node_id=self.coordinator, host='127.0.0.1',
            port=self.brokers[self.coordinator].port, error_message=None)
        return messages.FindCoordinatorResponse(coordinators=[row])

    def code_of(self, node_id, partition):
        if self.unknown_for_ms > self.clock.monotonic_ms():
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return 0 if self.leaders[partition] == node_id else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def list_offsets(self, node_id, request):
        response = messages.ListOffsetsResponse
        return response(topics=[response.ListOffsetsTopicResponse(name=topic.name, partitions=[
            response.ListOffsetsPartitionResponse(
                partition_index=row.partition_index, offset=node_id,
                error_code=self.code_of(node_id, row.partition_index))
            for row in topic.partitions]) for topic in request.topics])

    def describe_groups(self, node_id, request):
        row = messages.DescribeGroupsResponse.DescribedGroup(
            group_id=request.groups[0], group_state='Stable', protocol_type='', protocol_data='',
            error_code=0 if self.coordinator == node_id else ErrorCode.NOT_COORDINATOR)
        return messages.DescribeGroupsResponse(groups=[row])

    def asked(self, name):
        return [node_id for node_id, broker in self.brokers.items() for asked in broker.asked if asked == name]

    def sleep(self, seconds):
        self.clock.advance(round(seconds * 1000))
        self.on_pause()


@pytest.fixture
def two():
    return TwoBrokers()


@pytest.fixture
def admin(two):
    with running(two.brokers[1]) as first, running(two.brokers[2]):
        config = ClientConfig.from_settings({'bootstrap.servers': f'127.0.0.1:{first.port}',
                                             'default.api.timeout.ms': '2000'})
        cluster = Cluster(config, two.clock, two.sleep)
        yield Admin(cluster)
        cluster.close()


def offsets(admin):
    found = admin.list_offsets({('orders', 0): LATEST, ('orders', 1): LATEST})
    return [found['orders', partition].offset for partition in (0, 1)]


def test_each_leader_is_asked_for_its_own(two, admin):
    assert offsets(admin) == [1, 2]
    assert two.asked('ListOffsets') == [1, 2]
    assert len(two.asked('Metadata')) == 1


def test_a_leader_that_moved_is_followed(two, admin):
    assert offsets(admin) == [1, 2]
    two.leaders = {0: 2, 1: 1}
    assert offsets(admin) == [2, 1]


def test_a_leader_that_does_not_know_its_partition_yet_is_asked_again(two, admin):
    two.unknown_for_ms = 500
    assert offsets(admin) == [1, 2]


def test_a_cluster_without_a_controller_is_reported(two, admin):
    with pytest.raises(KafkaError, match='deleting topics: the cluster names no controller at the moment'):
        admin.delete_topics(['orders'])


def test_a_partition_without_a_leader_is_waited_for(two, admin):
    two.leaders = {0: 1, 1: -1}
    two.on_pause = lambda: two.leaders.update({1: 2} if two.clock.monotonic_ms() > 500 else {})
    assert offsets(admin) == [1, 2]


def test_a_partition_that_stays_without_a_leader_is_reported(two, admin):
    two.leaders = {0: 1, 1: -1}
    words = r'listing offsets: orders-1 has no leader at the moment \(tried \d+ times'
    with pytest.raises(KafkaError, match=words) as caught:
        offsets(admin)
    assert caught.value.code == ErrorCode.LEADER_NOT_AVAILABLE


def test_a_coordinator_that_moved_is_followed(two, admin):
    assert admin.describe_classic_groups(['g'])['g'].coordinator_id == 2
    two.coordinator = 1
    assert admin.describe_classic_groups(['g'])['g'].coordinator_id == 1


def test_a_broker_that_is_gone_is_left_for_the_one_that_took_over(two, admin):
    assert offsets(admin) == [1, 2]
    two.leaders = {0: 1, 1: 1}
    two.brokers[2].answers['ListOffsets'] = lambda request: None
    assert offsets(admin) == [1, 1]


def test_all_brokers_are_asked_for_their_groups(two, admin):
    assert [(row.coordinator_id, row.group_id) for row in admin.list_groups()] == [(1, 'g1'), (2, 'g2')]


def test_a_topic_that_the_metadata_leave_out_is_reported(two, admin):
    two.brokers[1].answers['Metadata'] = lambda request: messages.MetadataResponse()
    with pytest.raises(KafkaError, match='topic orders: found no answer in the metadata'):
        offsets(admin)


def test_an_answer_that_leaves_a_partition_out_is_reported(two, admin):
    for broker in two.brokers.values():
        broker.answers['ListOffsets'] = lambda request: messages.ListOffsetsResponse()
    with pytest.raises(KafkaError, match='listing offsets: no answer for orders-0'):
        offsets(admin)

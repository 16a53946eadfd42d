"""A directory with consumer groups moves between kbroker and Apache Kafka and back, and the members continue.

Covers KIP-848.
"""
import pytest
from support.brokers.broker_process import BrokerProcess, killed_at_the_end
from support.clients.librdkafka import create_topics
from support.clients.raw_client import RawClient
from support.kafka.apache_kafka import KafkaProcess

from kbroker.base.errors import ErrorCode
from kbroker.protocol import messages

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

GROUP = 'consumers'
HEARTBEAT_VERSION, DESCRIBE_VERSION, COMMIT_VERSION, FETCH_VERSION, FIND_VERSION = 1, 1, 9, 9, 4
TRANSIENT = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}


class Peer:
    """A client that sends the requests of all members to one broker."""

    def __init__(self, address):
        self.client = RawClient.at(address)
        while self.ask(messages.FindCoordinatorRequest(coordinator_keys=[GROUP]), FIND_VERSION
                       ).coordinators[0].error_code in TRANSIENT:
            pass

    def ask(self, request, version):
        return self.client.ask(request, version)

    def heartbeat(self, member_id, epoch, **fields):
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=member_id, member_epoch=epoch, **fields)
        while True:
            answer = self.ask(request, HEARTBEAT_VERSION)
            if answer.error_code not in TRANSIENT:
                return answer

    def join(self, member_id, **fields):
        return self.heartbeat(member_id, 0, **{
            'rebalance_timeout_ms': 300_000, 'topic_partitions': [], 'subscribed_topic_names': ['orders'], **fields})

    def describe(self):
        """Return the group's state, and the epoch and the partitions of each member."""
        while True:
            group, = self.ask(messages.ConsumerGroupDescribeRequest(group_ids=[GROUP]), DESCRIBE_VERSION).groups
            if group.error_code not in TRANSIENT:
                break
        assert group.error_code == 0, group
        return group.group_state, {
            member.member_id: (member.member_epoch, partitions_of(member.assignment)) for member in group.members}

    def settle(self, epochs):
        """Send heartbeats for the members until the group is stable. Each reports the partitions of the member's last
        answer.
        """
        assigned = {}
        while True:
            for member_id, epoch in epochs.items():
                answer = self.heartbeat(member_id, epoch, topic_partitions=assigned.get(member_id, []))
                assert answer.error_code == 0, answer
                epochs[member_id] = answer.member_epoch
                if answer.assignment is not None:
                    assigned[member_id] = [
                        messages.ConsumerGroupHeartbeatRequest.TopicPartitions(
                            topic_id=topic.topic_id, partitions=topic.partitions)
                        for topic in answer.assignment.topic_partitions]
            if self.describe()[0] == 'Stable':
                return

    def commit(self, member_id, epoch, offset):
        _, members = self.describe()
        (topic, partitions), *_ = members[member_id][1].items()
        partition, *_ = partitions
        request = messages.OffsetCommitRequest
        answer = self.ask(request(
            group_id=GROUP, member_id=member_id, generation_id_or_member_epoch=epoch,
            topics=[request.OffsetCommitRequestTopic(name=topic, partitions=[
                request.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)])]),
            COMMIT_VERSION)
        return answer.topics[0].partitions[0].error_code

    def close(self):
        self.client.close()


def partitions_of(assignment):
    return {topic.topic_name: tuple(topic.partitions) for topic in assignment.topic_partitions}


@pytest.mark.parametrize(('first_type', 'second_type'), [(BrokerProcess, KafkaProcess), (KafkaProcess, BrokerProcess)],
                         ids=['apache-kafka-opens-it', 'kbroker-opens-it'])
def test_members_go_on_with_their_epochs_and_partitions_at_the_other_broker(tmp_path, first_type, second_type):
    first, second = first_type(tmp_path / 'data'), second_type(tmp_path / 'data')
    with killed_at_the_end(first, second):
        first.start()
        create_topics(first.address, orders=6)
        peer = Peer(first.address)
        epochs = {}
        for member_id, fields in {'a': {}, 'b': {'instance_id': 'one', 'rack_id': 'r'},
                                  'c': {'subscribed_topic_names': None, 'subscribed_topic_regex': 'ord.*'}}.items():
            answer = peer.join(member_id, **fields)
            assert answer.error_code == 0, answer
            epochs[member_id] = answer.member_epoch
        peer.settle(epochs)
        assert peer.commit('a', epochs['a'], 5) == 0
        before = peer.describe()
        assert {len(held.get('orders', ())) for _, held in before[1].values()} == {2}
        peer.close()
        first.stop()
        for place in (second, first):
            place.start()
            peer = Peer(place.address)
            assert peer.describe() == before
            for member_id, epoch in epochs.items():
                answer = peer.heartbeat(member_id, epoch)
                assert (answer.error_code, answer.member_epoch, answer.assignment) == (0, epoch, None), member_id
            assert peer.commit('a', epochs['a'], 6) == 0
            assert peer.commit('a', epochs['a'] + 1, 7) == ErrorCode.STALE_MEMBER_EPOCH
            assert peer.describe() == before
            peer.close()
            place.stop()

"""Apache Kafka 4.3 and kbroker both refuse a static member that returns to a full classic group."""
import pytest
from cases_groups import find, join, member
from raw_peer import RawPeer
from support.kafka.beside_kafka import both_brokers

from kbroker.base.errors import ErrorCode

pytestmark = pytest.mark.jvm

SETTINGS = {'group.initial.rebalance.delay.ms': '0', 'group.min.session.timeout.ms': '1000', 'group.max.size': '1'}


def test_a_static_member_that_returns_without_its_member_id_to_a_full_group_is_refused(tmp_path):
    with both_brokers(tmp_path, SETTINGS) as brokers:
        for broker in brokers:
            peer = RawPeer(broker.address, 'full')
            peer.create_topic()
            find(peer, peer.topic)
            first, _ = member(peer, peer.topic, 5, instance='one')
            assert join(peer, peer.topic, instance='one').error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
            assert join(peer, peer.topic, member_id=first, instance='one').error_code == ErrorCode.NONE
            peer.close()

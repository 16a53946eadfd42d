"""One broker behind the proxy appears as several: leaders, coordinators and epochs are as in a cluster."""
import random
import time
from contextlib import closing

import pytest
from support.kafka.shown_metadata import await_shown_metadata
from support.messages.message_builder import batch_of
from support.proxies.virtual_cluster import VirtualCluster

from kbroker.base.errors import ErrorCode
from kbroker.protocol import messages as m
from kbroker_tools.base.command import ToolError
from kbroker_tools.proxy import serving
from kbroker_tools.proxy.nodes import GROUP, TRANSACTION, NodeError, TopicNames, VirtualBrokers

TOPIC = 'orders'
PARTITIONS = 6


def until(holds):
    """Ask until the answer is as expected."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline


@pytest.fixture
def cluster(shared_broker):
    with closing(VirtualCluster(shared_broker.address)) as found:
        yield found


@pytest.fixture
def topic(cluster, shared_broker):
    """A topic with a replica at each virtual broker."""
    name = f'{TOPIC}-{random.randrange(1 << 40)}'
    row = m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=3)
    created, = cluster.at(2).call(m.CreateTopicsRequest(topics=[row])).topics
    assert (created.error_code, created.replication_factor) == (0, 3)
    await_shown_metadata(shared_broker.address)
    assert sorted(cluster.leaders(name)) == list(range(PARTITIONS))
    return name


def produce(cluster, node, topic, *partitions, version=12):
    r = m.ProduceRequest
    records = batch_of(time.time_ns() // 1_000_000, b'v')
    rows = [r.PartitionProduceData(index=each, records=records) for each in partitions]
    answer = cluster.at(node).call(r(acks=-1, timeout_ms=10_000,
                                     topic_data=[r.TopicProduceData(name=topic, partition_data=rows)]),
                                   max_version=version)
    return answer, {row.index: row for each in answer.responses for row in each.partition_responses}


def list_offsets(cluster, node, topic, *epochs):
    """Ask a node for the end of partition 0, with each of these epochs. Return the errors."""
    r = m.ListOffsetsRequest
    errors = []
    for epoch in epochs:
        row = r.ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=-1)
        answer = cluster.at(node).call(r(replica_id=-1, topics=[r.ListOffsetsTopic(name=topic, partitions=[row])]))
        errors.append(ErrorCode(answer.topics[0].partitions[0].error_code).name)
    return errors


def test_metadata_shows_several_brokers_with_replicas_and_leaders_at_all_of_them(cluster, topic):
    answer = cluster.metadata(topic)
    assert sorted(each.node_id for each in answer.brokers) == [1, 2, 3]
    assert len({each.port for each in answer.brokers}) == 3 and answer.controller_id == 1
    assert sorted(leader for leader, _ in cluster.leaders(topic).values()) == [1, 1, 2, 2, 3, 3]
    for row in answer.topics[0].partitions:
        assert sorted(row.replica_nodes) == sorted(row.isr_nodes) == [1, 2, 3] and row.offline_replicas == []
        assert row.replica_nodes[0] == row.leader_id


def test_a_request_for_partitions_of_several_leaders_is_answered_for_each_partition(cluster, topic):
    leaders = cluster.leaders(topic)
    answer, rows = produce(cluster, 2, topic, *range(PARTITIONS))
    assert rows.keys() == leaders.keys()
    for partition, (leader, epoch) in leaders.items():
        row = rows[partition]
        if leader == 2:
            assert row.error_code == 0 and row.base_offset == 0
        else:
            assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and row.base_offset == -1
            assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (leader, epoch)
    assert sorted(each.node_id for each in answer.node_endpoints) == [1, 3]
    assert {each.port for each in answer.node_endpoints} == {
        cluster.ports[1], cluster.ports[3]}


def test_an_old_version_and_a_request_only_for_others_get_their_errors(cluster, topic):
    other = next(each for each, (leader, _) in cluster.leaders(topic).items() if leader != 1)
    for version in (3, 9, 12):
        _, rows = produce(cluster, 1, topic, other, version=version)
        assert rows[other].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_answers_keep_the_order_of_the_requests_when_the_proxy_answers_some(cluster, topic):
    leaders = cluster.leaders(topic)
    own = next(each for each, (leader, _) in leaders.items() if leader == 3)
    other = next(each for each, (leader, _) in leaders.items() if leader != 3)
    r = m.ListOffsetsRequest
    connection = cluster.at(3)
    for partition in [own, other] * 10:
        row = r.ListOffsetsPartition(partition_index=partition, timestamp=-1)
        connection.send(r(replica_id=-1, topics=[r.ListOffsetsTopic(name=topic, partitions=[row])]))
    found = [connection.receive().topics[0].partitions[0] for _ in range(20)]
    assert [each.partition_index for each in found] == [own, other] * 10
    assert [bool(each.error_code) for each in found] == [False, True] * 10


def test_a_stopped_node_loses_its_partitions_and_gets_them_back_in_new_epochs(cluster, topic):
    before = cluster.leaders(topic)
    stopped, _ = before[0]
    witness = next(each for each in (1, 2, 3) if each != stopped)
    old = cluster.at(stopped)
    cluster.do(lambda: cluster.traffic.stop_node(stopped))
    after = cluster.leaders(topic, node=witness)
    for partition, (leader, epoch) in before.items():
        if leader == stopped:
            assert after[partition][0] != stopped and after[partition][1] == epoch + 1
        else:
            assert after[partition] == (leader, epoch)
    answer = cluster.metadata(topic, node=witness)
    assert stopped not in {each.node_id for each in answer.brokers} and answer.controller_id != stopped
    assert all(row.offline_replicas == [stopped] and stopped not in row.isr_nodes
               for row in answer.topics[0].partitions)
    with pytest.raises(OSError):        # its connections are closed, and it refuses new ones
        old.call(m.MetadataRequest())
    with pytest.raises(OSError):
        cluster.at(stopped)
    cluster.do(lambda: cluster.traffic.start_node(stopped))
    again = cluster.leaders(topic, node=stopped)
    assert {partition: leader for partition, (leader, _) in again.items()} == {
        partition: leader for partition, (leader, _) in before.items()}
    assert all(epoch == before[partition][1] + 2 * (before[partition][0] == stopped)
               for partition, (_, epoch) in again.items())


def test_a_move_fences_requests_with_the_old_epoch(cluster, topic):
    leader, epoch = cluster.leaders(topic)[0]
    to = next(each for each in (1, 2, 3) if each != leader)
    assert list_offsets(cluster, leader, topic, -1, epoch, epoch + 1) == ['NONE', 'NONE', 'UNKNOWN_LEADER_EPOCH']
    cluster.do(lambda: cluster.nodes.move(topic, 0, to))
    assert cluster.leaders(topic)[0] == (to, epoch + 1)
    assert list_offsets(cluster, to, topic, -1, epoch, epoch + 1, epoch + 2) == [
        'NONE', 'FENCED_LEADER_EPOCH', 'NONE', 'UNKNOWN_LEADER_EPOCH']
    assert list_offsets(cluster, leader, topic, -1, epoch, epoch + 1, epoch + 2) == [
        'NOT_LEADER_OR_FOLLOWER', 'FENCED_LEADER_EPOCH', 'NOT_LEADER_OR_FOLLOWER', 'UNKNOWN_LEADER_EPOCH']


def fetch(cluster, node, topic_id, partitions, **fields):
    r = m.FetchRequest
    rows = [r.FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1 << 20) for each in partitions]
    return cluster.at(node).call(r(max_wait_ms=0, min_bytes=0, isolation_level=0,
                                   topics=[r.FetchTopic(topic_id=topic_id, partitions=rows)], **fields))


def test_a_fetch_session_does_not_hide_a_move(cluster, topic):
    """The proxy opens no session, so the client names all partitions in each Fetch."""
    leader, _ = cluster.leaders(topic)[0]
    topic_id = cluster.metadata(topic).topics[0].topic_id
    produce(cluster, leader, topic, 0)
    first = fetch(cluster, leader, topic_id, [0], session_id=0, session_epoch=0)
    assert first.session_id == 0 and len(first.responses[0].partitions[0].records) > 0
    to = next(each for each in (1, 2, 3) if each != leader)
    cluster.do(lambda: cluster.nodes.move(topic, 0, to))
    row = fetch(cluster, leader, topic_id, [0], session_id=0, session_epoch=0).responses[0].partitions[0]
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and row.high_watermark == -1
    assert row.current_leader.leader_id == to
    assert len(fetch(cluster, to, topic_id, [0]).responses[0].partitions[0].records) > 0


def coordinators(cluster, key_type, *keys, node=1):
    """Return the rows of FindCoordinator. Kafka first creates its internal topic."""
    rows = []

    def are_found():
        request = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
        rows[:] = cluster.at(node).call(request).coordinators
        return not any(row.error_code for row in rows)

    until(are_found)
    return rows


def test_only_the_coordinator_of_a_group_serves_it(cluster, topic):
    keys = [f'group-{number}' for number in range(12)]
    found = coordinators(cluster, GROUP, *keys)
    owners = {row.key: row.node_id for row in found}
    assert set(owners.values()) == {1, 2, 3}
    assert all(row.port == cluster.ports[row.node_id] for row in found)
    old = cluster.at(1).call(m.FindCoordinatorRequest(key=keys[0], key_type=GROUP), max_version=3)
    assert old.node_id == owners[keys[0]] and old.port == cluster.ports[old.node_id]
    groups = [m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=key, topics=None) for key in keys]
    for key, owner in owners.items():       # Kafka first loads the groups
        one = m.OffsetFetchRequest(groups=[m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=key, topics=None)])
        until(lambda: cluster.at(owner).call(one, max_version=9).groups[0].error_code == 0)     # noqa: B023
    for node in (1, 2, 3):
        rows = cluster.at(node).call(m.OffsetFetchRequest(groups=groups), max_version=9).groups
        assert {row.group_id: row.error_code for row in rows} == {
            key: 0 if owner == node else ErrorCode.NOT_COORDINATOR for key, owner in owners.items()}
        one = cluster.at(node).call(m.HeartbeatRequest(group_id=keys[0], generation_id=1, member_id='member'))
        assert one.error_code == (ErrorCode.UNKNOWN_MEMBER_ID if owners[keys[0]] == node
                                  else ErrorCode.NOT_COORDINATOR)
        described = cluster.at(node).call(m.DescribeGroupsRequest(groups=keys)).groups
        assert len(described) == 12 and {row.group_id for row in described
                                         if row.error_code != ErrorCode.NOT_COORDINATOR} == {
            key for key, owner in owners.items() if owner == node}


def test_a_transactional_id_moves_with_its_coordinator(cluster, topic):
    def owner(node):
        return coordinators(cluster, TRANSACTION, 't', node=node)[0].node_id

    first = owner(1)
    request = m.InitProducerIdRequest(transactional_id='t', transaction_timeout_ms=60_000)
    until(lambda: cluster.at(first).call(request).error_code == 0)
    for other in {1, 2, 3} - {first}:
        assert cluster.at(other).call(request).error_code == ErrorCode.NOT_COORDINATOR
    cluster.do(lambda: cluster.traffic.stop_node(first))
    second = owner(min({1, 2, 3} - {first}))
    assert second != first
    again = cluster.at(second).call(request)
    assert again.error_code == 0 and again.producer_epoch > 0
    listed = [row.transactional_id for node in {1, 2, 3} - {first}
              for row in cluster.at(node).call(m.ListTransactionsRequest()).transaction_states]
    assert listed.count('t') == 1


def test_changes_that_are_not_possible_are_named():
    nodes = VirtualBrokers(2, 7, TopicNames())
    with pytest.raises(NodeError, match='found node 3, expected one of 1, 2'):
        nodes.stop(3)
    with pytest.raises(NodeError, match='node 1 is running already'):
        nodes.start(1)
    nodes.stop(1)
    with pytest.raises(NodeError, match='node 1 is stopped already'):
        nodes.stop(1)
    with pytest.raises(NodeError, match='node 1 is stopped: start it before'):
        nodes.move('t', 0, 1)
    nodes.stop(2)
    assert nodes.place('t', 0).leader is None and nodes.controller() == -1 and nodes.coordinator(GROUP, 'g') is None


def test_the_place_of_a_partition_does_not_depend_on_when_a_client_first_asks_for_it():
    early, late = VirtualBrokers(3, 1, TopicNames()), VirtualBrokers(3, 1, TopicNames())
    rng = random.Random(5)
    for _ in range(200):
        node = rng.choice(early.ids)
        for nodes in (early, late):
            if node in nodes.running:
                nodes.stop(node)
            else:
                nodes.start(node)
        if early.running:
            to, partition = min(early.running), rng.randrange(4)
            early.move('t', partition, to)
            late.move('t', partition, to)
            [early.place('t', each) for each in range(4)]
    fresh = VirtualBrokers(3, 1, TopicNames())
    fresh._changes, fresh.running = late._changes, late.running
    assert [early.place('t', each) for each in range(4)] == [fresh.place('t', each) for each in range(4)]


def test_virtual_brokers_in_front_of_a_cluster_are_refused():
    known = serving.Known({each: ('localhost', 9090 + each) for each in (1, 2, 3)}, 'id', TopicNames())
    with pytest.raises(ToolError, match=r'found a cluster of 3 brokers \(1, 2, 3\), expected one broker'):
        serving.virtual_brokers(3, known)

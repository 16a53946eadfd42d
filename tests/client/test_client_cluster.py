"""Routing: leaders, coordinators, several bootstrap servers, and retries."""
import threading

import pytest
from support.brokers.scripted_broker import ScriptedBroker, running, serving
from support.runner.free_ports import free_port

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.config import ClientConfig
from kbroker.client.connection import ClientError
from kbroker.protocol import messages


class Routes:
    """A cluster whose pauses before retries advance a manual clock. `slept_ms` lists these pauses."""

    def __init__(self, *ports, **others):
        self.clock = ManualClock()
        self.slept_ms = []
        names = {name.replace('_', '.'): value for name, value in others.items()}
        addresses = ','.join(f'127.0.0.1:{port}' for port in ports)
        config = ClientConfig.from_settings({'bootstrap.servers': addresses} | names)
        self.cluster = Cluster(config, self.clock, self.sleep)

    def sleep(self, seconds):
        self.slept_ms.append(seconds * 1000)
        self.clock.advance(round(seconds * 1000))

    def __enter__(self):
        return self.cluster

    def __exit__(self, *_):
        self.cluster.close()


def coordinators(*answers):
    """Return a handler of FindCoordinator that gives one of the answers to each request. An answer is an error code or
    a (host, port)."""
    left = list(answers)

    def answer(request):
        found = left.pop(0)
        row = messages.FindCoordinatorResponse.Coordinator(key=request.coordinator_keys[0], node_id=-1, host='',
                                                           port=-1, error_message='')
        if isinstance(found, int):
            row.error_code = found
        else:
            row.node_id, row.host, row.port = 1, *found
        return messages.FindCoordinatorResponse(coordinators=[row])
    return answer


def test_the_next_bootstrap_server_is_asked_when_one_is_not_there():
    with running(ScriptedBroker()) as broker, Routes(free_port(), broker.port) as cluster:
        assert cluster.any().port == broker.port


def test_all_bootstrap_servers_are_named_when_none_is_there():
    ports = free_port(), free_port()
    with Routes(*ports) as cluster, pytest.raises(ClientError, match='no broker can be reached') as caught:
        cluster.any()
    assert all(f'127.0.0.1:{port} cannot be reached' in str(caught.value) for port in ports)


def test_a_connection_serves_the_bootstrap_and_the_leader_at_the_same_address():
    with running(ScriptedBroker()) as broker, Routes(broker.port) as cluster:
        assert cluster.leader('orders', 0) is cluster.any()
        assert broker.asked == ['ApiVersions', 'Metadata']


def test_a_coordinator_has_a_connection_of_its_own():
    with running(ScriptedBroker()) as broker, Routes(broker.port) as cluster:
        broker.answers['FindCoordinator'] = coordinators(('127.0.0.1', broker.port))
        connection = cluster.coordinator(KeyType.GROUP, 'g')
        assert connection is not cluster.any()
        assert cluster.coordinator(KeyType.GROUP, 'g') is connection


def test_a_broker_that_knows_one_key_a_request_is_asked_so():
    broker = ScriptedBroker()
    broker.versions['FindCoordinator'] = (0, 3)
    with running(broker), Routes(broker.port) as cluster:
        broker.answers['FindCoordinator'] = lambda request: messages.FindCoordinatorResponse(
            node_id=1, host='127.0.0.1', port=broker.port, error_message=None)
        assert cluster.coordinator(KeyType.TRANSACTION, 'pay').port == broker.port


def test_an_advertised_address_that_cannot_be_reached_is_reported_as_such():
    with running(ScriptedBroker()) as broker, Routes(broker.port) as cluster:
        hidden = free_port()
        broker.answers['Metadata'] = lambda request: messages.MetadataResponse(brokers=[
            messages.MetadataResponse.MetadataResponseBroker(node_id=7, host='127.0.0.1', port=hidden)])
        with pytest.raises(ClientError, match=f'127.0.0.1:{hidden} cannot be reached.*that broker 7 advertises'):
            cluster.node(7)
        with pytest.raises(KafkaError, match='broker 9 is not in the cluster: found 7') as caught:
            cluster.node(9)
        assert caught.value.code == ErrorCode.BROKER_NOT_AVAILABLE


def test_a_topic_that_is_not_there_is_reported_at_once():
    with running(ScriptedBroker()) as broker:
        routes = Routes(broker.port)
        broker.answers['Metadata'] = lambda request: messages.MetadataResponse(topics=[
            messages.MetadataResponse.MetadataResponseTopic(name='odrers', error_code=3)])
        with routes as cluster, pytest.raises(KafkaError, match='topic odrers: UNKNOWN_TOPIC_OR_PARTITION') as caught:
            cluster.retrying(lambda: cluster.leader('odrers', 0), 'reading')
        assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not routes.slept_ms


def test_a_partition_that_is_not_there():
    with (running(ScriptedBroker()) as broker, Routes(broker.port) as cluster,
          pytest.raises(KafkaError, match='orders-5 does not exist: the topic has 1 partitions')):
        cluster.leader('orders', 5)


def test_a_coordinator_that_loads_is_asked_again_after_growing_pauses():
    with running(ScriptedBroker()) as broker:
        routes = Routes(broker.port)
        broker.answers['FindCoordinator'] = coordinators(
            15, 14, 15, 14, 15, 14, ('127.0.0.1', broker.port))
        with routes as cluster:
            found = cluster.retrying(lambda: cluster.coordinator(KeyType.GROUP, 'g'), 'finding the coordinator')
            assert found.port == broker.port
    assert len(routes.slept_ms) == 6
    for slept_ms, expected_ms in zip(routes.slept_ms, (100, 200, 400, 800, 1000, 1000), strict=True):
        assert 0.8 * expected_ms <= slept_ms <= 1.2 * expected_ms


def test_a_leader_that_moved_is_looked_up_again():
    with running(ScriptedBroker()) as broker, Routes(broker.port) as cluster:
        calls = []

        def operation():
            calls.append(cluster.leader('orders', 0))
            if len(calls) == 1:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return 'done'

        assert cluster.retrying(operation, 'reading') == 'done'
        assert broker.asked.count('Metadata') == 2


def test_a_connection_that_is_idle_for_too_long_is_replaced():
    with running(ScriptedBroker()) as broker:
        routes = Routes(broker.port, connections_max_idle_ms='1000')
        with routes as cluster:
            first = cluster.any()
            routes.clock.advance(1000)
            assert cluster.any() is first
            routes.clock.advance(1001)
            assert cluster.any() is not first
            assert not first.is_open


def test_a_broken_connection_is_opened_again():
    with running(ScriptedBroker()) as broker, Routes(broker.port) as cluster:
        good = broker.answers['Metadata']
        cluster.refresh()
        broker.answers['Metadata'] = lambda request: broker.answers.update(Metadata=good)
        assert cluster.retrying(lambda: cluster.topics(['orders']), 'describing').keys() == {'orders'}
        assert broker.asked.count('ApiVersions') == 2


def test_a_known_address_whose_connections_are_closed_while_its_broker_restarts_is_tried_again():
    """A load balancer whose broker is down also accepts connections and closes them."""
    with running(ScriptedBroker()) as broker, Routes(broker.port) as cluster:
        cluster.refresh()
        closed = iter([None] * 3)
        broker.answers['Metadata'] = lambda request: broker.answers.update(Metadata=broker.metadata)
        broker.answers['ApiVersions'] = lambda request: next(closed, broker.api_versions(request))
        assert cluster.retrying(lambda: cluster.topics(['orders']), 'describing').keys() == {'orders'}
        assert broker.asked.count('ApiVersions') == 5


def test_an_unknown_address_that_closes_connections_is_reported_at_once():
    broker = ScriptedBroker()
    broker.answers['ApiVersions'] = lambda request: None
    with running(broker), Routes(broker.port) as cluster, pytest.raises(ClientError) as caught:
        cluster.any()
    assert caught.value.is_lasting


def test_a_cluster_that_was_never_reached_is_not_tried_again():
    routes = Routes(free_port())
    with routes as cluster, pytest.raises(ClientError, match='cannot be reached'):
        cluster.retrying(cluster.refresh, 'describing')
    assert not routes.slept_ms


def test_after_the_deadline_the_last_error_is_reported():
    with running(ScriptedBroker()) as broker:
        routes = Routes(broker.port, default_api_timeout_ms='5000')
        broker.answers['FindCoordinator'] = coordinators(*[15] * 100)
        message = r'finding: .*COORDINATOR_NOT_AVAILABLE.*tried \d+ times'
        with routes as cluster, pytest.raises(KafkaError, match=message) as caught:
            cluster.retrying(lambda: cluster.coordinator(KeyType.GROUP, 'g'), 'finding')
        assert caught.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert 3800 < sum(routes.slept_ms) <= 5200, "the last pause is at most 1,000 ms, and a fifth more by jitter"


# ---- a live broker

def test_a_cluster_that_ends_waits_for_no_answer_longer_than_the_rest_of_its_time():
    clock = ManualClock()
    with serving(lambda connection: connection.recv(1000) and connection.recv(1)) as port:
        cluster = Cluster(ClientConfig.load(f'127.0.0.1:{port}'), clock)
        cluster.end_within(20)
        with pytest.raises(ClientError, match='did not answer ApiVersions within 20 ms'):
            cluster.any()
        clock.advance(20)
        with pytest.raises(ClientError, match='found no time left'):
            cluster.any()


def test_a_connection_that_is_open_is_bounded_by_the_end_of_its_cluster_too():
    broker, until = ScriptedBroker(), threading.Event()
    with running(broker):
        clock = ManualClock()
        cluster = Cluster(ClientConfig.load(f'127.0.0.1:{broker.port}'), clock)
        cluster.refresh(())
        connection = cluster.any()
        broker.answers['Metadata'] = lambda request: until.wait(60) and None
        cluster.end_within(30)
        clock.advance(10)
        with pytest.raises(ClientError, match='did not answer Metadata within 20 ms'):
            connection.call(messages.MetadataRequest(topics=[]))
        until.set()
        cluster.close()


def test_the_steps_of_a_login_share_the_rest_of_the_time():
    clock, broker, until = ManualClock(), ScriptedBroker(), threading.Event()

    def late_versions(request):
        clock.advance(59_500)
        return broker.api_versions(request)

    broker.answers |= {'ApiVersions': late_versions, 'SaslHandshake': lambda request: until.wait(60) and None}
    with running(broker):
        cluster = Cluster(ClientConfig.from_settings({
            'bootstrap.servers': f'127.0.0.1:{broker.port}', 'security.protocol': 'SASL_PLAINTEXT',
            'sasl.mechanism': 'PLAIN', 'sasl.username': 'me', 'sasl.password': 'horse',
            'request.timeout.ms': '60000'}), clock)
        cluster.end_within(60_000)
        with pytest.raises(ClientError, match='did not answer SaslHandshake within 500 ms'):
            cluster.any()
        until.set()


def test_a_pause_between_retries_ends_with_the_time_of_the_cluster():
    with running(ScriptedBroker()) as broker:
        routes = Routes(broker.port, retry_backoff_ms='1000')
        broker.answers['FindCoordinator'] = coordinators(*[15] * 100)
        with routes as cluster:
            cluster.refresh()
            cluster.end_within(1001)
            with pytest.raises((ClientError, KafkaError)):
                cluster.retrying(lambda: cluster.coordinator(KeyType.GROUP, 'g'), 'finding')
        assert sum(routes.slept_ms) <= 1001


def test_retries_end_with_the_time_of_the_cluster_also_if_it_was_set_since_they_began():
    """A consumer that closes sets the time limit of the cluster while its heartbeat thread retries. The retries then
    make no more pauses."""
    tries = []

    def lose():
        assert len(tries) < 10, 'the retries go on without pauses'
        tries.append(clock.monotonic_ms())
        cluster.end_within(0)
        raise ClientError('lost')

    with running(ScriptedBroker()) as broker:
        clock = ManualClock()
        cluster = Cluster(ClientConfig.load(f'127.0.0.1:{broker.port}'), clock, lambda seconds: None)
        cluster.refresh()
        with pytest.raises(ClientError, match=r'listing: lost \(tried 1 times'):
            cluster.retrying(lose, 'listing')
        cluster.close()


def test_another_cluster_at_the_same_address_is_refused(shared_broker):
    """A broker with a new directory has other topics and does not know the producers' sequence numbers."""
    with Routes(shared_broker.address.rpartition(':')[2]) as cluster:
        found = cluster.refresh().cluster_id
        cluster.cluster_id = 'another'
        with pytest.raises(ClientError, match=f'belongs to cluster {found}, expected another, which this client'):
            cluster.retrying(cluster.refresh, 'Metadata')


def test_a_live_broker_is_described(shared_broker):
    host, port = shared_broker.address.rsplit(':', 1)
    cluster = Cluster(ClientConfig.load(shared_broker.address))
    try:
        assert cluster.topics() == {}
        assert [(node.host, str(node.port)) for node in cluster.nodes.values()] == [(host, port)]
        assert cluster.controller().api_versions.keys() >= {0, 1, 2, 3}
        assert cluster.retrying(lambda: cluster.coordinator(KeyType.TRANSACTION, 'pay'), 'finding').port == int(port)
    finally:
        cluster.close()


def test_topics_are_named_by_their_ids(broker):
    cluster = Cluster(ClientConfig.load(broker.address))
    try:
        Admin(cluster).create_topics({'one': 1, 'two': 1, 'three': 1})
        found = {topic.topic_id: name for name, topic in cluster.topics(['one', 'two']).items()}
        assert cluster.names_of([*found, b'an unknown topic']) == found
    finally:
        cluster.close()


def test_a_live_broker_that_comes_back_is_reconnected_to(broker):
    cluster = Cluster(ClientConfig.load(broker.address))
    try:
        cluster.refresh()
        broker.restart()
        assert cluster.retrying(cluster.refresh, 'describing').brokers
    finally:
        cluster.close()

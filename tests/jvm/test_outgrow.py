"""Three processes of Apache Kafka grow out of a directory of kbroker, and shrink back to it, while producers write.

The test types the commands of docs/outgrow.md. Covers KIP-853.
"""
import contextlib
import socket
import ssl

import pytest
from support.brokers.broker_process import PROMPT, BrokerProcess, killed_at_the_end
from support.clients.librdkafka import committed_offset, create_topics, values_of
from support.clients.steady_load import SteadyLoad, check_written
from support.kafka.apache_kafka import KafkaProcess
from support.kafka.page_runner import OutgrowPage, SecuredPage

from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

SETTINGS = PROMPT | {'offsets.topic.num.partitions': '3', 'transaction.state.log.num.partitions': '3',
                     'share.coordinator.state.topic.num.partitions': '3', 'broker.session.timeout.ms': '6000',
                     'broker.heartbeat.interval.ms': '300'}
PLACES = [(topic, partition) for topic in ('orders', 'bills') for partition in (0, 1)]


def ids_of(address, topics=('orders', 'bills')):
    cluster = Cluster(ClientConfig.load(address))
    found = {name: topic.topic_id for name, topic in cluster.topics(topics).items()}
    cluster.close()
    return found


def type_under_load(page, section, load, survivor=1):
    """Type the commands of a section. After each one, wait until each writer has committed once more."""
    for command in page.commands(section):
        page.type(page.with_survivor(command, survivor))
        if page.is_served:
            load.await_more(1)


@pytest.mark.parametrize(('release', 'survivor', 'is_killed'), [
    ('4.4', 1, False), pytest.param('4.3', 1, False, marks=pytest.mark.soak),
    pytest.param('4.4', 2, False, marks=pytest.mark.soak), pytest.param('4.4', 1, True, marks=pytest.mark.soak)])
def test_a_cluster_grows_out_of_a_directory_under_load_and_shrinks_back(tmp_path, release, survivor, is_killed):
    """In the cluster of three nodes, a node is stopped and a node is killed. The writers continue with two nodes."""
    page = OutgrowPage(tmp_path, release, SETTINGS)
    kbroker, first = page.kbroker, page.nodes[1]
    with page.tools, contextlib.closing(page):
        kbroker.start()
        create_topics(kbroker.address, orders=2, bills=2)
        ids = ids_of(kbroker.address)
        with SteadyLoad(page.addresses, PLACES) as load:
            load.await_more(1)      # Kafka cannot create internal topics before three nodes run
            if is_killed:
                kbroker.kill9()
            type_under_load(page, 'From kbroker to three nodes', load)
            for end in (first.stop, first.kill9):
                end()
                load.await_more(2)
                first.start()
                load.await_more(2)
            type_under_load(page, 'From a cluster back to kbroker', load, survivor)
        kbroker = page.kbroker
        assert ids_of(kbroker.address) == ids
        check_written(load.writers, {(topic, partition): values_of(kbroker.address, topic, [partition])
                                     for topic, partition in PLACES},
                      {writer.group: committed_offset(kbroker.address, writer.group, *PLACES[0])
                       for writer in load.writers})
        kbroker.stop()
        page.type(page.with_survivor('kbroker-check /var/lib/kbroker', survivor))
        assert kbroker.tracebacks() == []


def test_a_directory_with_static_voters_grows_after_an_upgrade_and_comes_back(tmp_path):
    """Kafka formats the directory with `controller.quorum.voters`, so that it has kraft.version 0."""
    page = OutgrowPage(tmp_path, '4.4', SETTINGS)
    formatted = KafkaProcess(page.data(1), SETTINGS, '4.4', address=page.addresses[0])
    with page.tools, contextlib.closing(page), killed_at_the_end(formatted):
        formatted.start()
        create_topics(formatted.address, orders=2)
        upgrade, = page.commands('A directory that Kafka formatted with `controller.quorum.voters`')
        page.type(upgrade)
        formatted.stop()
        page.nodes[1].start()
        assert '"directoryId"' in page.type('kafka-metadata-quorum.sh --bootstrap-server node1:9092 describe --status')
        page.nodes[1].stop()
        page.kbroker.start()
        assert set(ids_of(page.kbroker.address, ['orders'])) == {'orders'}
        page.kbroker.stop()
        assert page.kbroker.tracebacks() == []


RIGHTS_OF_THE_WRITERS = ('--producer --topic orders --topic bills --transactional-id "*"',
                         '--consumer --topic orders --topic bills --group "*"')


def assert_demands_a_certificate(address, authority):
    """With TLS 1.3, the client sees the refusal at its first read."""
    host, port = address.split(':')
    context = ssl.create_default_context(cafile=authority)
    with (pytest.raises(ssl.SSLError, match=r'ALERT\w*CERTIFICATE'),
          socket.create_connection((host, int(port))) as plain,
          context.wrap_socket(plain, server_hostname=host) as secured):
        secured.recv(1)


@pytest.mark.soak
@pytest.mark.parametrize('release', ['4.4', '4.3'])
def test_a_cluster_with_logins_grows_and_shrinks_back(tmp_path, release):
    """The writers log in as a user whose rights are ACLs. Users and ACLs are in the metadata that the nodes copy."""
    page = SecuredPage(tmp_path, release, SETTINGS)
    *certificates, user_of_the_brokers, file_2, file_3 = page.commands('Listeners with TLS and logins')
    login = {'security.protocol': 'SASL_SSL', 'sasl.mechanism': 'SCRAM-SHA-512', 'sasl.username': 'app',
             'sasl.password': 'secret', 'ssl.ca.location': str(tmp_path / 'ca.pem')}
    with page.tools, contextlib.closing(page):
        for command in certificates:
            page.type(command)
        page.type('kbroker storage --data-dir /var/lib/kbroker --add-scram "SCRAM-SHA-512=[name=app,password=secret]" '
                  '--add-scram "SCRAM-SHA-512=[name=admin,password=change-me]"')
        page.kbroker.start()
        for topic in ('orders', 'bills'):
            page.type(f'kafka-topics.sh --bootstrap-server node1:9092 --create --topic {topic} --partitions 2')
        for rights in RIGHTS_OF_THE_WRITERS:
            page.type(f'kbroker-acls --bootstrap-server node1:9092 --add --allow-principal User:app {rights}')
        for command in (user_of_the_brokers, file_2, file_3):
            page.type(command)
        with SteadyLoad(page.addresses, PLACES, login=login) as load:
            load.await_more(1)
            type_under_load(page, 'From kbroker to three nodes', load)
            assert_demands_a_certificate(page.on_this_machine('node2:9093'), tmp_path / 'ca.pem')
            page.nodes[1].kill9()
            load.await_more(2)
            page.nodes[1].start()
            load.await_more(2)
            type_under_load(page, 'From a cluster back to kbroker', load)
        page.kbroker.stop()
        assert page.kbroker.tracebacks() == []
        with BrokerProcess(page.data(1), SETTINGS) as kbroker:      # without a login, for the helpers that read
            check_written(load.writers, {(topic, partition): values_of(kbroker.address, topic, [partition])
                                         for topic, partition in PLACES},
                          {writer.group: committed_offset(kbroker.address, writer.group, *PLACES[0])
                           for writer in load.writers})

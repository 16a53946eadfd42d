"""Connection limits of a live broker. A limit is set in the settings file, changed while the broker runs, or set by the
quota of an address."""
import contextlib
import socket

import pytest
from confluent_kafka.admin import AdminClient

from kbroker.client.admin import Admin, AlterOp
from kbroker.client.admin_requests import ResourceType
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig

pytestmark = pytest.mark.timeout(600)

LIMIT_S = 120
PING = bytes.fromhex('0000000a00120000000000010000')       # ApiVersions 0, correlation id 1, an empty client id


@pytest.fixture
def opened():
    with contextlib.ExitStack() as stack:
        def open_one(address):
            host, _, port = address.rpartition(':')
            return stack.enter_context(socket.create_connection((host, int(port)), timeout=LIMIT_S))
        yield open_one


def is_served(client):
    try:
        client.sendall(PING)
        return len(client.recv(4)) == 4
    except ConnectionError:
        return False


def test_a_limit_of_an_address_is_set_in_the_file_and_changed_while_the_broker_runs(start_broker, opened):
    address = start_broker({'max.connections.per.ip.overrides': '127.0.0.1:5'}).address
    cluster = Cluster(ClientConfig.load(address))
    admin = Admin(cluster)
    admin.describe_client_quotas()      # one connection, perhaps two
    clients = [opened(address) for _ in range(6)]
    served = [is_served(client) for client in clients]
    assert 2 < served.count(True) < 6
    resource = (ResourceType.BROKER, '')
    change = {resource: [('max.connections.per.ip.overrides', AlterOp.SET, '127.0.0.1:50')]}
    assert admin.incremental_alter_configs(change) == {resource: None}
    assert all(is_served(opened(address)) for _ in range(10))
    cluster.close()


def test_a_listener_has_a_limit_of_its_own(start_broker, opened):
    address = start_broker({'listener.name.plaintext.max.connections': '3'}).address
    assert [is_served(opened(address)) for _ in range(4)] == [True, True, True, False]


def test_a_quota_of_an_address_limits_how_fast_connections_come(start_broker, opened):
    address = start_broker().address
    cluster = Cluster(ClientConfig.load(address))
    assert Admin(cluster).alter_client_quotas([('ip', '127.0.0.1')], {'connection_creation_rate': 2.0}) is None
    clients = [opened(address) for _ in range(21)]
    assert [is_served(client) for client in clients].count(False) >= 1
    cluster.close()
    assert AdminClient({'bootstrap.servers': address}).list_topics(timeout=LIMIT_S).brokers    # it tries again

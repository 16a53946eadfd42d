"""The broker warns once about an advertised address that a client of another machine cannot reach, and stays silent
where the address may be right.
"""
from __future__ import annotations

import ipaddress

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.messages.message_builder import build

from kbroker.apis.serving import address_watch
from kbroker.apis.serving.address_watch import AddressWatch, problem_of, read_routes
from kbroker.settings.config import Config
from kbroker.settings.exposure import may_be_unreachable
from kbroker.settings.listeners import Listener

ROUTES = """Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 010011AC 0003 0 0 0 00000000 0 0 0
eth0 000011AC 00000000 0001 0 0 0 0000FFFF 0 0 0
"""
ROUTES_6 = f"""fd000000000000000000000000000000 40 {'0' * 32} 00 {'0' * 32} 0 0 0 1 eth0
{'0' * 32} 00 {'0' * 32} 00 fd000000000000000000000000000001 0 0 0 3 eth0
"""
GATEWAY, NEIGHBOUR, ELSEWHERE = '172.17.0.1', '172.17.0.3', '192.0.2.7'
LOCALHOST, CONTAINER = Listener('PLAINTEXT', 'localhost', 9092), Listener('PLAINTEXT', '3f2a91c07be4', 9092)


@pytest.fixture
def container(tmp_path, monkeypatch):
    """Read the routes of a container in a bridge network."""
    (tmp_path / 'route').write_text(ROUTES)
    (tmp_path / 'ipv6_route').write_text(ROUTES_6)
    monkeypatch.setattr(address_watch, 'read_routes', lambda: read_routes(tmp_path))
    return tmp_path


@pytest.mark.parametrize(('listener', 'client', 'is_warned'), [
    (LOCALHOST, ELSEWHERE, True), (LOCALHOST, NEIGHBOUR, True), (LOCALHOST, GATEWAY, False),
    (LOCALHOST, '127.0.0.1', False), (LOCALHOST, '::1', False), (LOCALHOST, '2001:db8::7', True),
    (LOCALHOST, 'fd00::1', False), (LOCALHOST, 'no address', False),
    (CONTAINER, ELSEWHERE, True), (CONTAINER, NEIGHBOUR, False), (CONTAINER, GATEWAY, True),
    (CONTAINER, 'fd00::5', False)])
def test_only_a_client_that_cannot_reach_the_address_causes_a_warning(container, listener, client, is_warned):
    assert bool(problem_of(listener, client)) is is_warned


def test_the_routes_of_this_machine_can_be_read_and_missing_ones_do_no_harm(container, tmp_path):
    assert read_routes(container) == (
        [ipaddress.ip_network('172.17.0.0/16'), ipaddress.ip_network('fd00::/64')],
        [ipaddress.ip_address(GATEWAY), ipaddress.ip_address('fd00::1')])
    read_routes()
    assert read_routes(tmp_path / 'nothing') == ([], [])


def test_an_address_of_this_machine_causes_no_warning():
    """A socket can be bound to each address of 127.0.0.0/8, so any of them stands for an address of this machine."""
    assert address_watch._is_here(ipaddress.ip_address('127.0.0.9'))
    assert not address_watch._is_here(ipaddress.ip_address(ELSEWHERE))


@pytest.mark.parametrize(('listeners', 'advertised', 'is_watched'), [
    ('0.0.0.0', 'localhost', True), ('0.0.0.0', '127.0.0.1', True), ('', 'localhost', True),
    ('127.0.0.1', 'localhost', False), ('0.0.0.0', 'broker.example.org', False), ('0.0.0.0', '3f2a91c07be4', True)])
def test_only_a_listener_that_other_machines_reach_is_watched(monkeypatch, listeners, advertised, is_watched):
    monkeypatch.setattr('socket.gethostname', lambda: '3f2a91c07be4')
    config = Config({'listeners': f'PLAINTEXT://{listeners}:9092',
                     'advertised.listeners': f'PLAINTEXT://{advertised}:9092'})
    assert bool(may_be_unreachable(config, config.advertised)) is is_watched


@pytest.mark.parametrize('request_name', ['MetadataRequest', 'DescribeClusterRequest'])
def test_the_first_request_from_elsewhere_is_logged_once(container, tmp_path, caplog, request_name):
    with InProcessBroker(tmp_path / 'data') as broker:
        broker.address_watch = AddressWatch([LOCALHOST])
        for host in ('127.0.0.1', GATEWAY, ELSEWHERE, '192.0.2.8'):
            connection = broker.connect()
            connection.client_host = host
            request = build(request_name, **({'topics': []} if request_name.startswith('Meta') else {}))
            broker.begin(request, 1, connection)
            broker.answer_to(connection, request, 1)
    assert [record.getMessage() for record in caplog.records if 'asked for the brokers' in record.getMessage()] == [
        f"a client at {ELSEWHERE} asked for the brokers, and now connects to the advertised address localhost:9092, "
        "which is the client's own machine. If it cannot connect there, advertise an address that it reaches: "
        "--advertise HOST:PORT (advertised.listeners)"]

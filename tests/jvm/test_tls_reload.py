"""kafka-configs replaces the key of a listener on kbroker and on Apache Kafka. Connections stay open.

Covers KIP-226.
"""
import os
import shutil
import signal
import socket
import ssl

import pytest
from support.brokers.broker_process import BrokerProcess
from support.kafka.apache_kafka import KafkaProcess, config_command, run_tools
from support.runner.free_ports import free_port

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]
CONFIGS = config_command()
LOCATION = 'listener.name.ssl.ssl.keystore.location'


@pytest.fixture(params=[BrokerProcess, KafkaProcess], ids=['kbroker', 'apache-kafka'])
def broker(request, tmp_path, certificates):
    """A broker with a plain listener and a TLS listener. `tls_port` is the port of the TLS listener, and `keys` its
    keystore.
    """
    keys = tmp_path / 'keys.pem'
    shutil.copy(certificates / 'server.pem', keys)
    plain, tls = free_port(), free_port()
    listeners = f'PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{tls}'
    settings = {'listeners': listeners, 'advertised.listeners': listeners, 'ssl.keystore.type': 'PEM',
                'listener.name.ssl.ssl.keystore.location': str(keys), 'ssl.truststore.type': 'PEM',
                'ssl.truststore.location': str(certificates / 'ca.pem')}
    broker = request.param(tmp_path / 'data')
    if isinstance(broker, KafkaProcess):
        controller = f'127.0.0.1:{free_port()}'
        settings |= {'listeners': f'{listeners},CONTROLLER://{controller}',
                     'controller.quorum.voters': f'1@{controller}',
                     'listener.security.protocol.map': 'PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT',
                     'ssl.allow.dn.changes': 'true', 'ssl.allow.san.changes': 'true'}
    else:
        settings['kbroker.ssl.reload.interval.ms'] = '0'
    broker.settings = settings
    broker.address = f'127.0.0.1:{plain}'
    broker.tls_port, broker.keys, broker.directory_of_certificates = tls, keys, certificates
    broker.start()
    yield broker
    broker.kill9()


def subject(broker):
    """Open a connection. Return (subject of the broker's certificate, connection)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(broker.directory_of_certificates / 'ca.pem')
    context.check_hostname = False
    connection = context.wrap_socket(socket.create_connection(('127.0.0.1', broker.tls_port), 120))
    return dict(part for (part,) in connection.getpeercert()['subject'])['commonName'], connection


def api_versions(connection):
    """Send an ApiVersions request of version 0, and return the error code of the answer."""
    connection.sendall(bytes.fromhex('0000000b 0012 0000 00000007 0001 78'))
    answer = read(connection, 10)
    read(connection, int.from_bytes(answer[:4], 'big') - 6)
    assert answer[4:8] == bytes([0, 0, 0, 7])
    return int.from_bytes(answer[8:10], 'big')


def read(connection, size):
    data = b''
    while len(data) < size:
        data += connection.recv(size - len(data))
    return data


def alter(broker, path):
    (run,) = run_tools(CONFIGS, ['--bootstrap-server', broker.address, '--alter', '--entity-type', 'brokers',
                                 '--entity-name', '1', '--add-config', f'{LOCATION}={path}'])
    return run.output + run.errors


def test_kafkas_tool_replaces_the_key_for_new_connections(broker, certificates):
    name, open_one = subject(broker)
    assert name == 'server'
    shutil.copy(certificates / 'stranger.pem', broker.keys)
    assert subject(broker)[0] == 'server', 'a changed file alone has no effect in this test'
    assert 'Completed updating config' in alter(broker, broker.keys)
    while subject(broker)[0] != 'stranger':
        pass
    assert api_versions(open_one) == 0, 'the open connection goes on'

    if isinstance(broker, BrokerProcess):       # Apache Kafka accepts such a file, and cannot start with it again
        broker.keys.write_text('no PEM')
        assert 'InvalidRequestException' in alter(broker, broker.keys)
        assert subject(broker)[0] == 'stranger'

    assert 'Completed updating config' in alter(broker, certificates / 'client.pem')
    while subject(broker)[0] != 'client':
        pass
    (described,) = run_tools(CONFIGS, ['--bootstrap-server', broker.address, '--describe', '--entity-type', 'brokers',
                                       '--entity-name', '1'])
    assert f'{LOCATION}={certificates / "client.pem"}' in described.output
    broker.stop()
    broker.start()
    assert subject(broker)[0] == 'client', 'the setting in the metadata log outlives a restart'


def test_the_plain_name_cannot_be_changed_at_run_time(broker, certificates):
    (run,) = run_tools(CONFIGS, ['--bootstrap-server', broker.address, '--alter', '--entity-type', 'brokers',
                                 '--entity-name', '1', '--add-config',
                                 f'ssl.keystore.location={certificates / "client.pem"}'])
    assert 'Invalid' in run.output + run.errors
    assert subject(broker)[0] == 'server'


@pytest.mark.parametrize('broker', [BrokerProcess], indirect=True)
def test_sighup_reads_changed_files(broker, certificates):
    shutil.copy(certificates / 'stranger.pem', broker.keys)
    os.kill(broker.pid, signal.SIGHUP)
    while subject(broker)[0] != 'stranger':
        pass


@pytest.mark.parametrize('broker', [BrokerProcess], indirect=True)
def test_a_changed_file_is_noticed(broker, certificates):
    broker.settings['kbroker.ssl.reload.interval.ms'] = '50'
    broker.restart()
    shutil.copy(certificates / 'stranger.pem', broker.keys)
    while subject(broker)[0] != 'stranger':
        pass

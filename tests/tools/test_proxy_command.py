"""kbroker-proxy as a process: its control port holds requests, lets them fail, and says what a client sent. TLS and
logins at the broker and in front, virtual brokers, and errors in one line.
"""
import http.client
import json
import random
import re
import signal
import socket
import ssl
import subprocess
from contextlib import closing, suppress

import confluent_kafka
import pytest
from support.brokers.secured_broker import PASSWORD
from support.clients.raw_client import read_exactly
from support.runner.command_runner import ROOT, command_line, run_command

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client import Admin, Consumer, NewTopic, Producer
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.protocol.api_keys import ApiKey
from kbroker_tools.proxy.controlling import ACTIONS, ProxyRoutes, description, has_error
from kbroker_tools.proxy.nodes import TopicNames
from kbroker_tools.proxy.traffic import Traffic, api_name

LIMIT_S = 60


class ProxyProcess:
    """The command as a process, and a client of its control port."""

    def __init__(self, *options, control=True):
        options = [*options, '--listen', '127.0.0.1:0', *(('--control', '127.0.0.1:0') if control else ())]
        self.process = subprocess.Popen(command_line('proxy', *options), cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.line = self.process.stderr.readline()
        found = re.search(r'listening on (\S+)', self.line)
        assert found, self.line
        self.address = found[1]
        if control:
            self.port = int(re.search(r'http://127\.0\.0\.1:(\d+)', self.line)[1])

    def ask(self, method, path, body=None, status=200):
        with closing(http.client.HTTPConnection('127.0.0.1', self.port, timeout=LIMIT_S)) as connection:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {'Content-Type': 'application/json'} if data else {})
            answer = connection.getresponse()
            found = json.loads(answer.read())
        assert answer.status == status, found
        return found

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        rest = self.process.communicate(timeout=LIMIT_S)[1]
        assert self.process.returncode == 0, rest
        assert 'Traceback' not in rest
        return rest


def brokers(address):
    """Return the ids of the brokers that Metadata shows."""
    with closing(Cluster(ClientConfig.load(address))) as cluster:
        cluster.refresh()
        return set(cluster.nodes)


def login(secured, password=PASSWORD):
    return (f'security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=alice\n'
            f'sasl.password={password}\nssl.ca.location={secured.plan.certificates}/ca.pem\n')


@pytest.fixture(scope='module')
def proxy(shared_broker):
    with closing(ProxyProcess('--bootstrap-server', shared_broker.address)) as found:
        yield found


@pytest.fixture
def topic(proxy, request):
    proxy.ask('DELETE', '/rules')
    name = re.sub(r'\W', '-', request.node.name)[:80]
    with Admin(proxy.address) as admin:
        assert admin.create_topics([NewTopic(name, 2)]) == {name: None}
    return name


def test_a_held_request_has_no_effect_until_it_is_released(proxy, topic, shared_broker):
    rule = proxy.ask('POST', '/rules', {'point': 'request', 'action': 'hold',
                                        'select': {'api': 'Produce', 'topic': topic, 'partition': 1}}, 201)
    producer, offsets = confluent_kafka.Producer({'bootstrap.servers': proxy.address, 'linger.ms': 0}), {}
    for partition in (0, 1):
        producer.produce(topic, b'value', partition=partition,
                         on_delivery=lambda _, message: offsets.update({message.partition(): message.offset()}))
    with Admin(shared_broker.address) as admin:
        found = proxy.ask('GET', f'/rules/{rule["id"]}?matched=1&wait_ms=30000')
        assert (found['matched'], found['held']) == (1, 1)
        assert admin.list_offsets({(topic, 1): 'latest'})[topic, 1].offset == 0
    assert proxy.ask('DELETE', f'/rules/{rule["id"]}')['held'] == 0
    assert producer.flush(LIMIT_S) == 0 and offsets == {0: 0, 1: 0}


def test_a_held_answer_arrives_after_the_effect_when_it_is_released(proxy, topic, shared_broker):
    rule = proxy.ask('POST', '/rules', {'point': 'reply', 'action': 'hold', 'select': {'api': 'Produce'}}, 201)
    producer, offsets = confluent_kafka.Producer({'bootstrap.servers': proxy.address, 'linger.ms': 0}), []
    for _ in range(3):
        producer.produce(topic, b'value', partition=0,
                         on_delivery=lambda _, message: offsets.append(message.offset()))
        producer.poll(0)
    assert proxy.ask('GET', f'/rules/{rule["id"]}?matched=1&wait_ms=30000')['held'] == 1
    with Admin(shared_broker.address) as admin:
        assert admin.list_offsets({(topic, 0): 'latest'})[topic, 0].offset >= 1 and offsets == []
    proxy.ask('POST', f'/rules/{rule["id"]}/release', {})
    proxy.ask('DELETE', f'/rules/{rule["id"]}')
    assert producer.flush(LIMIT_S) == 0 and offsets == [0, 1, 2]


def test_a_delay_lets_a_request_go_on_by_itself(proxy, topic):
    rule = proxy.ask('POST', '/rules', {'point': 'request', 'action': 'delay', 'delay_ms': 50,
                                        'select': {'api': 'Produce', 'topic': topic}}, 201)
    with Producer(proxy.address) as producer:
        producer.send(topic, b'later', partition=0)
        producer.flush()
    assert proxy.ask('GET', f'/rules/{rule["id"]}')['matched'] >= 1


def test_a_lost_answer_is_retried_and_the_record_written_once(proxy, topic):
    rule = proxy.ask('POST', '/rules', {'point': 'reply', 'action': 'drop',
                                        'select': {'api': 'Produce', 'topic': topic, 'occurrence': 1}}, 201)
    with Producer(proxy.address) as producer:
        producer.send(topic, b'once', partition=0)
        producer.flush()
    assert proxy.ask('GET', f'/rules/{rule["id"]}')['matched'] == 1
    with Consumer(proxy.address, auto_offset_reset='earliest') as consumer:
        consumer.assign([(topic, 0)])
        assert [record.value for batch in consumer.poll(LIMIT_S * 1000) for record in batch.records()] == [b'once']


def test_an_error_answers_a_request_before_its_effect(proxy, topic):
    proxy.ask('POST', '/rules', {'point': 'request', 'action': 'error', 'error': 'TOPIC_AUTHORIZATION_FAILED',
                                 'select': {'api': 'Produce', 'topic': topic}}, 201)
    with pytest.raises(KafkaError) as failure, Producer(proxy.address) as producer:
        producer.send(topic, b'no', partition=0)
        producer.flush()
    assert failure.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_the_record_says_what_a_client_sent(proxy, topic):
    since = proxy.ask('GET', '/steps')['next']
    with Producer(proxy.address, client_id='shop', transactional_id='pay') as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b'paid', partition=0)
    found = proxy.ask('GET', f'/requests?since={since}&client_id=shop')
    apis = [each['api'] for each in found['requests']]
    assert apis.index('InitProducerId') < apis.index('Produce') < apis.index('EndTxn')
    produced, = [each for each in found['requests'] if each['api'] == 'Produce']
    assert (produced['topic'], produced['partition'], produced['transactional_id']) == (topic, 0, 'pay')
    assert proxy.ask('GET', f'/requests?since={found["next"]}&client_id=shop')['requests'] == []
    ended, = proxy.ask('GET', f'/requests?since={since}&api=EndTxn&transactional_id=p*&wait_ms=1000')['requests']
    assert ended['transactional_id'] == 'pay'


@pytest.mark.parametrize(('body', 'words'), [
    ({'point': 'append.durable', 'action': 'hold'}, 'expected one that the proxy has: request, reply'),
    ({'point': 'requests', 'action': 'hold'}, 'did you mean request?'),
    ({'point': 'request', 'action': 'kill'}, 'expected one that request has in the proxy: hold, delay, error, drop'),
    ({'point': 'reply', 'action': 'error', 'error': 'NOT_COORDINATOR'}, 'hold, delay, drop'),
    ({'point': 'request', 'action': 'error', 'error': 'NOT_COORDINATOR', 'select': {'api': 'CreateAcls'}},
     'the responses of CreateAcls have no place for it'),
    ({'point': 'request', 'action': 'hold', 'select': {'api': 'Produc'}}, 'did you mean Produce?'),
])
def test_a_rule_that_the_proxy_cannot_follow_is_refused_with_what_it_can(proxy, body, words):
    assert words.lower() in proxy.ask('POST', '/rules', body, 400)['error'].lower()


def test_the_description_of_the_control_port_has_its_routes_and_answers(proxy):
    served = proxy.ask('GET', '/openapi.json')
    assert served == description()
    described = {(method.upper(), path) for path, methods in served['paths'].items() for method in methods
                 if method != 'parameters'}
    traffic = Traffic(TopicNames())
    assert described == {(method, route.path) for route in ProxyRoutes(None, None, None, traffic, dict).table()
                         for method in route.methods if method != 'HEAD'}
    text = json.dumps(served)
    for kind, name in re.findall(r'#/components/(\w+)/(\w+)', text):
        assert name in served['components'][kind], name
    schemas = served['components']['schemas']
    assert set(schemas['PointName']['enum']) == ACTIONS.keys()
    assert set(schemas['Action']['enum']) == {action for actions in ACTIONS.values() for action in actions}
    assert proxy.ask('GET', '/').keys() == schemas['Proxy']['properties'].keys()
    assert [each['name'] for each in proxy.ask('GET', '/points')['points']] == list(ACTIONS)


def test_virtual_brokers_need_the_option(proxy):
    assert 'start it with --nodes' in proxy.ask('POST', '/nodes/1/stop', {}, 404)['error']


def test_apis_without_a_place_for_an_error_are_known():
    without = {'CreateAcls', 'DeleteAcls', 'AlterReplicaLogDirs', 'AlterClientQuotas', 'AlterUserScramCredentials'}
    assert {api_name(key) for key in ApiKey if not has_error(api_name(key))} == without


def test_virtual_brokers_stop_start_and_lose_partitions_over_the_control_port(shared_broker):
    with closing(ProxyProcess('--bootstrap-server', shared_broker.address, '--nodes', 3)) as proxy:
        nodes = proxy.ask('GET', '/nodes')['nodes']
        assert [each['id'] for each in nodes] == [1, 2, 3] and nodes[0]['address'] == proxy.address
        assert proxy.ask('POST', '/nodes/2/stop', {}) == {'id': 2, 'is_running': False}
        assert brokers(proxy.address) == {1, 3}
        assert 'node 2 is stopped' in proxy.ask('POST', '/move', {'topic': 't', 'partition': 0, 'to': 2}, 409)['error']
        assert 'stopped already' in proxy.ask('POST', '/nodes/2/stop', {}, 409)['error']
        assert 'expected one of 1, 2, 3' in proxy.ask('POST', '/nodes/9/stop', {}, 404)['error']
        proxy.ask('POST', '/nodes/2/start', {})
        moved = proxy.ask('POST', '/move', {'topic': 't', 'partition': 0, 'to': 2})
        place = description()['components']['schemas']['Place']
        assert moved['leader'] == 2 and moved.keys() == place['properties'].keys()


def test_clients_need_no_login_for_a_broker_that_asks_for_one_and_may_get_tls(secured, tmp_path):
    config = tmp_path / 'client.properties'
    config.write_text(login(secured))
    address = secured.plan.addresses['SASL_SSL']
    with closing(ProxyProcess('--bootstrap-server', address, '--command-config', config)) as proxy:
        assert brokers(proxy.address)
    directory = tmp_path / 'tls'
    with closing(ProxyProcess('--bootstrap-server', address, '--command-config', config, '--tls', directory,
                              control=False)) as proxy:
        with Producer(proxy.address, {'security.protocol': 'SSL', 'ssl.truststore.type': 'PEM',
                                      'ssl.truststore.location': str(directory / 'ca.pem')}) as producer:
            for number in range(20):
                producer.send('over-tls', b'x' * 100_000, str(number).encode())
            producer.flush()
        host, _, port = proxy.address.rpartition(':')
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as plain:
            plain.sendall(b'\0\0\0\4no')     # no TLS, and the proxy goes on
            with pytest.raises((AssertionError, OSError, EOFError)):
                read_exactly(plain, 4)
        context = ssl.create_default_context(cafile=str(directory / 'ca.pem'))
        with context.wrap_socket(socket.create_connection((host, int(port)), timeout=LIMIT_S),
                                 server_hostname='localhost') as opened:
            assert opened.version() == 'TLSv1.3'
    assert {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()} == dict.fromkeys(
        ('ca.pem', 'ca.key', 'proxy.pem'), 0o600)


def test_garbage_ends_its_connection_and_nothing_else(shared_broker):
    rng = random.Random(3)
    with closing(ProxyProcess('--bootstrap-server', shared_broker.address, '--nodes', 2)) as proxy:
        host, _, port = proxy.address.rpartition(':')
        texts = [b'GET / HTTP/1.1\r\n\r\n', b'\xff' * 100, b'\0\0\0\4\0\0\0\0', bytes(12)]
        for key in range(100):
            body = key.to_bytes(2) + bytes([0, rng.randrange(14)]) + rng.randbytes(rng.randrange(4, 60))
            texts.append(len(body).to_bytes(4) + body)
        for text in texts:
            with socket.create_connection((host, int(port)), timeout=LIMIT_S) as client, suppress(OSError):
                client.sendall(text)
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):
                    pass
        assert brokers(proxy.address) == {1, 2}


def test_bad_starts_are_one_line(shared_broker, secured, tmp_path):
    config = tmp_path / 'wrong.properties'
    config.write_text(login(secured, password='wrong'))
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        good = ('--bootstrap-server', shared_broker.address)
        cases = [
            ((*good, '--listen', f'127.0.0.1:{port}'), f'cannot listen on 127.0.0.1:{port}: another program uses'),
            ((*good, '--listen', '127.0.0.1:0', '--control', f'127.0.0.1:{port}'), 'control port'),
            ((*good, '--listen', 'here'), "found 'here', expected HOST:PORT"),
            ((*good, '--listen', '127.0.0.1:0', '--control', '0.0.0.0:0'), 'other machines reach 0.0.0.0:0'),
            ((*good, '--control-token-file', str(config)), 'found no --control'),
            (('--bootstrap-server', '127.0.0.1:1'), 'cannot be reached'),
            (('--bootstrap-server', secured.plan.addresses['SASL_SSL'], '--command-config', str(config)),
             'SASL_AUTHENTICATION_FAILED'),
        ]
        for options, words in cases:
            done = run_command('proxy', *options)
            assert done.returncode in (1, 2) and words in done.stderr and 'Traceback' not in done.stderr, done.stderr
            assert done.stderr.strip().count('\n') <= 3


def test_a_broker_that_goes_away_closes_connections_and_is_named(start_broker):
    broker = start_broker()
    with closing(ProxyProcess('--bootstrap-server', broker.address, control=False)) as proxy:
        broker.kill9()
        host, _, port = proxy.address.rpartition(':')
        with socket.create_connection((host, int(port)), timeout=LIMIT_S) as client:
            assert client.recv(1) == b''
        line = proxy.process.stderr.readline()
        assert 'a client was disconnected' in line and 'cannot be reached' in line
        broker.start()
        assert brokers(proxy.address)

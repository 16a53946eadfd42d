"""One connection: versions, pipelining, and the errors for a peer that is not a suitable broker."""
import fcntl
import os
import re
import resource
import socket
import ssl
import threading
from contextlib import closing, contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from support.brokers.scripted_broker import NAMES, ScriptedBroker, exactly, running, serving
from support.runner.free_ports import free_port

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.connection import (
    MOST_PARTS,
    AnswerTimeout,
    ClientError,
    Connection,
    SentInPlace,
    _connect,
    _connected,
)
from kbroker.client.readiness import await_ready
from kbroker.protocol import messages
from kbroker.protocol.codec import encode


def settings(port, **others):
    names = {name.replace('_', '.'): value for name, value in others.items()}
    return ClientConfig.from_settings({'bootstrap.servers': f'127.0.0.1:{port}', 'request.timeout.ms': '5000'} | names)


def connect(port, **others):
    return Connection('127.0.0.1', port, settings(port, **others))


def connect_to(broker, **others):
    return closing(connect(broker.port, **others))


def complaint(port, error=ClientError, **others):
    with pytest.raises(error) as caught:
        connect(port, **others).close()
    text = str(caught.value)
    assert '\n' not in text
    return text


def until_closed(connection):
    while connection.recv(1000):
        pass


def answering(data):
    """Return a server that reads some bytes and then sends `data`."""
    def handle(connection):
        connection.recv(1000)
        connection.sendall(data)
        until_closed(connection)
    return handle


# ---- answers

def test_a_request_is_sent_in_the_highest_version_that_both_sides_know():
    broker = ScriptedBroker()
    broker.versions['Metadata'] = (0, 9)
    with running(broker), connect_to(broker) as connection:
        assert connection.version_of(messages.MetadataRequest) == 9
        assert connection.version_of(messages.MetadataRequest, max_version=4) == 4
        answer = connection.call(messages.MetadataRequest(topics=[]))
    assert [row.port for row in answer.brokers] == [broker.port]


def test_a_broker_that_does_not_know_the_version_of_api_versions_is_asked_in_its_own():
    broker = ScriptedBroker()
    broker.versions['ApiVersions'] = (0, 2)
    with running(broker), connect_to(broker) as connection:
        assert connection.api_versions[18] == (0, 2)
    assert broker.asked == ['ApiVersions', 'ApiVersions']


def test_an_api_that_the_broker_lacks_is_named():
    with running(ScriptedBroker()) as broker, connect_to(broker) as connection:
        with pytest.raises(KafkaError, match=f':{broker.port} does not serve DescribeProducers') as caught:
            connection.call(messages.DescribeProducersRequest())
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert connection.is_open


def test_versions_without_a_common_one_are_named():
    broker = ScriptedBroker()
    broker.versions['Fetch'] = (0, 3)
    with (running(broker), connect_to(broker) as connection,
          pytest.raises(KafkaError, match='serves Fetch in versions 0 to 3, expected one of 4 to')):
        connection.call(messages.FetchRequest())


def test_answers_to_pipelined_requests_come_in_order():
    with running(ScriptedBroker()) as broker, connect_to(broker) as connection:
        for name in ('a', 'b', 'c'):
            connection.send(messages.MetadataRequest(
                topics=[messages.MetadataRequest.MetadataRequestTopic(name=name)]))
        assert connection.in_flight == 3
        assert [connection.receive().topics[0].name for _ in range(3)] == ['a', 'b', 'c']
        assert connection.in_flight == 0


def test_a_call_does_not_step_between_requests_in_flight():
    with running(ScriptedBroker()) as broker, connect_to(broker) as connection:
        connection.send(messages.MetadataRequest(topics=[]))
        with pytest.raises(RuntimeError, match='1 requests are in flight on Connection'):
            connection.call(messages.MetadataRequest(topics=[]))


def test_a_value_that_a_field_cannot_carry_is_reported_and_nothing_is_sent():
    with running(ScriptedBroker()) as broker, connect_to(broker) as connection:
        name = messages.MetadataRequest.MetadataRequestTopic(name='t' * 40_000)
        with pytest.raises(KafkaError, match=r'Metadata version \d+ cannot carry the request: .*name') as caught:
            connection.call(messages.MetadataRequest(topics=[name]))
        assert caught.value.code == ErrorCode.INVALID_REQUEST and '\n' not in str(caught.value)
        assert connection.call(messages.MetadataRequest(topics=[])).brokers


def test_an_answer_that_takes_longer_may_be_waited_for_again():
    may_answer = threading.Event()

    def late(request):
        may_answer.wait(120)
        return messages.MetadataResponse()

    broker = ScriptedBroker()
    broker.answers['Metadata'] = late
    with running(broker), connect_to(broker) as connection:
        connection.send(messages.MetadataRequest(topics=[]))
        with pytest.raises(AnswerTimeout, match='did not answer Metadata within 1 ms'):
            connection.receive(timeout_ms=1)
        may_answer.set()
        assert connection.receive().brokers == []


def test_a_call_without_an_answer_in_time_ends_the_connection():
    may_answer = threading.Event()
    broker = ScriptedBroker()
    broker.answers['Metadata'] = lambda request: may_answer.wait(120) and None
    with running(broker), connect_to(broker) as connection:
        with pytest.raises(AnswerTimeout):
            connection.call(messages.MetadataRequest(topics=[]), timeout_ms=1)
        may_answer.set()
        assert not connection.is_open
        with pytest.raises(ClientError, match='is closed'):
            connection.call(messages.MetadataRequest(topics=[]))


@pytest.mark.parametrize('step', ['send', 'recv_into'])
def test_an_interrupt_within_a_request_or_an_answer_ends_the_connection(monkeypatch, step):
    """A part of the request or the answer has already been transferred, so the client would assign the next answer to
    the wrong request."""
    interrupted = []

    class Interrupted(socket.socket):
        def send(self, data):
            count = super().send(data)
            self._interrupt('send')
            return count

        def recv_into(self, buffer):
            count = super().recv_into(buffer)
            self._interrupt('recv_into')
            return count

        def _interrupt(self, now):
            if interrupted == [now]:
                interrupted.clear()
                raise KeyboardInterrupt

    def connected(*arguments):
        plain = _connect(*arguments)
        return Interrupted(plain.family, plain.type, plain.proto, plain.detach())

    monkeypatch.setattr('kbroker.client.connection._connect', connected)
    with running(ScriptedBroker()) as broker:
        cluster = Cluster(settings(broker.port))
        pipelined = cluster.any()
        interrupted.append(step)
        with pytest.raises(KeyboardInterrupt):
            pipelined.send(messages.MetadataRequest(topics=[]))
            pipelined.receive()
        assert not pipelined.is_open and not pipelined.in_flight
        interrupted.append(step)
        with pytest.raises(KeyboardInterrupt):
            cluster.refresh()
        assert cluster.refresh().brokers
        cluster.close()


def test_a_large_answer_arrives_whole():
    broker = ScriptedBroker()
    rack = 'r' * 30_000
    broker.answers['Metadata'] = lambda request: messages.MetadataResponse(brokers=[
        messages.MetadataResponse.MetadataResponseBroker(node_id=n, host='h', port=1, rack=rack) for n in range(100)])
    with running(broker), connect_to(broker) as connection:
        assert len(connection.call(messages.MetadataRequest(topics=[])).brokers) == 100


def test_answers_that_pass_share_their_memory_and_others_keep_theirs():
    sizes = iter([100_000, 30_000, 300_000, 30_000, 100_000, 100_000])
    response = messages.FetchResponse
    broker = ScriptedBroker()

    def fetched(request):
        size = next(sizes)
        return response(responses=[response.FetchableTopicResponse(topic='t', partitions=[
            response.PartitionData(partition_index=0, records=(size // 1000).to_bytes(2) * (size // 2))])])

    broker.answers['Fetch'] = fetched
    with running(broker), connect_to(broker) as connection:
        def receive(size, *, reuses_buffer=True):
            connection.send(messages.FetchRequest(), max_version=12)
            records = connection.receive(reuses_buffer=reuses_buffer).responses[0].partitions[0].records
            assert bytes(records) == (size // 1000).to_bytes(2) * (size // 2)
            return records

        first = receive(100_000)
        assert receive(30_000).obj is first.obj
        larger = receive(300_000)
        assert larger.obj is not first.obj
        kept = receive(30_000, reuses_buffer=False)
        assert receive(100_000).obj is larger.obj
        assert kept.obj is not larger.obj
        receive(100_000)
        assert bytes(kept) == (30).to_bytes(2) * 15_000


def test_another_request_on_the_connection_leaves_fetched_records_as_they_are():
    """A consumer holds fetched records while it requests metadata, perhaps on the connection that received the
    records."""
    response = messages.FetchResponse
    broker = ScriptedBroker()
    broker.answers['Fetch'] = lambda request: response(responses=[response.FetchableTopicResponse(
        topic='t', partitions=[response.PartitionData(partition_index=0, records=b'r' * 1000)])])
    with running(broker), connect_to(broker) as connection:
        connection.send(messages.FetchRequest(), max_version=12)
        records = connection.receive(reuses_buffer=True).responses[0].partitions[0].records
        topic = messages.MetadataRequest.MetadataRequestTopic(name='x' * 500)
        assert connection.call(messages.MetadataRequest(topics=[topic])).topics
        assert bytes(records) == b'r' * 1000


def test_an_answer_to_another_request_ends_the_connection():
    def handle(connection):
        broker_end = ScriptedBroker()
        broker_end.answers['Metadata'] = lambda request: None
        broker_end(connection)
        connection.sendall((9).to_bytes(4) + (77).to_bytes(4) + bytes(5))
        until_closed(connection)

    with serving(handle) as port:
        connection = connect(port)
        with pytest.raises(ClientError, match='cannot be read: found correlation id 77, expected 2'):
            connection.call(messages.MetadataRequest(topics=[]))
        assert not connection.is_open


def test_a_peer_that_takes_no_more_bytes_is_reported():
    may_end = threading.Event()
    broker = ScriptedBroker()

    def handle(connection):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        broker.answers['Metadata'] = lambda request: may_end.wait(120) and None
        broker(connection)

    with serving(handle) as port:
        connection = connect(port)
        connection.config = settings(port, request_timeout_ms='20')
        connection.send(messages.MetadataRequest(topics=[]))
        rows = [messages.MetadataRequest.MetadataRequestTopic(name='t' * 249)] * 40_000
        connection.send(messages.MetadataRequest(topics=rows))
        assert connection.has_unsent
        with pytest.raises(ClientError, match='did not take the whole of Metadata, 10'):
            connection.receive()
        assert not connection.is_open
        may_end.set()


LARGE = [messages.MetadataRequest.MetadataRequestTopic(name='t' * 249)] * 4000


@contextmanager
def connected_pair():
    """Yield a connection and the socket of its peer, which has answered ApiVersions."""
    ours, theirs = socket.socketpair()
    answer = encode(ScriptedBroker().api_versions(None), 4)
    theirs.sendall((4 + len(answer)).to_bytes(4) + (1).to_bytes(4) + answer)
    with closing(ours), closing(theirs), pytest.MonkeyPatch.context() as patch:
        patch.setattr('kbroker.client.connection._connect', lambda *arguments: ours)
        with closing(connect(1)) as connection:
            size = int.from_bytes(exactly(theirs, 4))
            exactly(theirs, size)
            yield connection, theirs


def test_a_peer_that_reads_slowly_delays_no_other_one():
    """A large request is sent in parts, while the answer of another connection is received."""
    with (running(ScriptedBroker()) as broker, connect_to(broker) as answered,
          connected_pair() as (delayed, slow)):
        broker.answers['Metadata'] = lambda request: messages.MetadataResponse()
        delayed.send(messages.MetadataRequest(topics=LARGE))
        answered.send(messages.MetadataRequest(topics=[]))
        assert delayed.has_unsent
        assert await_ready([delayed, answered], 60_000).readable == {answered}
        answered.receive()
        size = int.from_bytes(exactly(slow, 4))
        reader = threading.Thread(target=exactly, args=(slow, size))
        reader.start()
        while delayed.has_unsent:
            assert await_ready([delayed, answered], 60_000).readable == set()
        reader.join()


@pytest.mark.parametrize('is_awaited', [False, True])
def test_batches_that_are_sent_in_place_arrive_in_their_order_at_a_slow_peer(is_awaited):
    """The request has more parts than one call of the socket sends. The caller sends the remaining parts when the
    socket has room, or blocks until they are sent."""
    batches = [bytearray([number % 251]) * 6000 for number in range(MOST_PARTS)]

    def request(wrap):
        produce = messages.ProduceRequest
        return produce(acks=-1, timeout_ms=1, topic_data=[produce.TopicProduceData(name='t', partition_data=[
            produce.PartitionProduceData(index=index, records=wrap(batch)) for index, batch in enumerate(batches)])])

    received = []
    with connected_pair() as (connection, slow):
        connection.api_versions[messages.ProduceRequest.api_key] = (9, 9)
        connection.send(request(SentInPlace))
        assert connection.has_unsent
        size = int.from_bytes(exactly(slow, 4))
        reader = threading.Thread(target=lambda: received.append(exactly(slow, size)))
        reader.start()
        if is_awaited:
            with pytest.raises(AnswerTimeout):
                connection.receive(timeout_ms=1)
        while connection.has_unsent:
            await_ready([connection], 60_000)
        reader.join()
        assert bytes(received[0]).endswith(encode(request(bytes), 9))


def test_a_connection_that_breaks_while_a_request_waits_for_room_counts_as_readable():
    with connected_pair() as (connection, peer):
        connection.send(messages.MetadataRequest(topics=LARGE))
        assert connection.has_unsent
        peer.close()
        assert await_ready([connection], 60_000).readable == {connection}
        with pytest.raises(ClientError):
            connection.receive()


def test_descriptors_above_1023_are_awaited():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2000)), hard))
        try:
            high = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 1500)
            try:
                assert not await_ready([], 0, high).is_woken
                theirs.send(b'x')
                assert await_ready([], None, high).is_woken
            finally:
                os.close(high)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@settings_of_hypothesis(deadline=None, max_examples=200)
@given(request_name=st.sampled_from(NAMES), body=st.binary(max_size=60))
def test_whatever_bytes_a_broker_answers_end_in_a_message_or_in_one_line(request_name, body):
    ours, theirs = socket.socketpair()
    answer = encode(ScriptedBroker().api_versions(None), 4)
    for correlation_id, data in ((1, answer), (2, body)):
        theirs.sendall((4 + len(data)).to_bytes(4) + correlation_id.to_bytes(4) + data)
    with (closing(ours), closing(theirs), pytest.MonkeyPatch.context() as patch,
          suppress(ClientError, KafkaError)):
        patch.setattr('kbroker.client.connection._connect', lambda *arguments: ours)
        connect(1).call(getattr(messages, f'{request_name}Request')())


# ---- peers that are not brokers

def test_nothing_listens():
    port = free_port()
    assert complaint(port) == (f'127.0.0.1:{port} cannot be reached (Connection refused): is a broker running there?')


def test_a_name_that_does_not_resolve():
    for host in ('no-such-host.invalid', 'x' * 70):
        config = ClientConfig(bootstrap=((host, 9092),))
        with pytest.raises(ClientError, match=f'{host}:9092: the host name cannot be resolved') as caught:
            Connection(host, 9092, config)
        assert caught.value.is_lasting


def test_the_addresses_of_a_host_are_tried_in_order_each_with_the_time_that_is_left(monkeypatch):
    with running(ScriptedBroker()) as broker:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, '', ('127.0.0.1', port))
                 for port in (free_port(), broker.port)]
        monkeypatch.setattr(socket, 'getaddrinfo', lambda *arguments, **options: found)
        left = [60.0, 59.0]
        with closing(_connected('twice', 1, lambda: left.pop(0))) as connected:
            assert connected.getpeername() == ('127.0.0.1', broker.port)
            assert connected.gettimeout() == 59.0
        found.reverse()
        with closing(_connected('twice', 1, lambda: 58.0)) as connected:
            assert connected.gettimeout() == 58.0
        found[:] = found[1:]
        with pytest.raises(ConnectionRefusedError):
            _connected('refused', 1, lambda: 57.0)


def test_a_peer_that_closes_at_once():
    with serving(lambda connection: connection.recv(1)) as port:
        text = complaint(port)
    assert text.startswith(f'127.0.0.1:{port} closed the connection instead of answering ApiVersions')
    assert text.endswith('is it the right port, and security.protocol the one of that listener?')


def test_a_peer_that_is_silent():
    with serving(until_closed) as port:
        text = complaint(port, request_timeout_ms='20')
    assert 'did not answer ApiVersions within 20 ms: is it the right port' in text


def test_an_http_server():
    with serving(answering(b'HTTP/1.1 400 Bad Request\r\n\r\n')) as port:
        assert complaint(port) == f'127.0.0.1:{port} answers with HTTP: that is not the port of a Kafka broker'


def test_a_tls_port_spoken_to_in_plain_text():
    with serving(answering(bytes.fromhex('15030300020250'))) as port:
        assert complaint(port).endswith('answers with TLS, and security.protocol is PLAINTEXT: set it to SSL or '
                                        'SASL_SSL in --command-config')


@pytest.mark.parametrize('head', [b'SSH-2.0-x', b'\x7f\xff\xff\xff', b'\xff\xff\xff\xff', bytes(4), b'\0\x10\0\x01'])
def test_a_size_that_no_first_answer_has_is_refused_before_anything_is_allocated(head):
    with serving(answering(head)) as port:
        assert f'answers with {head[:4]!r}, which is not the size of a Kafka response' in complaint(port)


def test_an_answer_that_is_no_api_versions_response():
    with serving(answering((6).to_bytes(4) + (1).to_bytes(4) + b'\0\0')) as port:
        assert 'sent an answer to ApiVersions that cannot be read' in complaint(port)


@pytest.mark.parametrize('versions', [(0, 5), (0, 4)])
def test_a_listener_that_asks_for_sasl(versions):
    """A broker of before Kafka 4.4 is asked for its versions twice. The message forgot the hint then."""
    broker = ScriptedBroker()
    broker.versions['ApiVersions'] = versions
    broker.answers['Metadata'] = lambda request: None
    with running(broker), connect_to(broker) as connection, pytest.raises(ClientError, match='ask for SASL') as caught:
        connection.call(messages.MetadataRequest(topics=[]))
    assert 'security.protocol is PLAINTEXT' in str(caught.value)


def test_tls_with_a_port_that_speaks_none():
    with serving(lambda connection: connection.recv(1)) as port:
        text = complaint(port, security_protocol='SSL')
    assert f'127.0.0.1:{port}: the TLS handshake failed' in text and 'may not speak TLS' in text


def test_tls_with_a_port_that_is_silent():
    with serving(until_closed) as port:
        text = complaint(port, security_protocol='SSL', **{'socket_connection_setup_timeout_ms': '20'})
    assert 'did not answer the TLS handshake in time' in text


def test_refused_credentials_are_reported_in_the_words_of_the_broker():
    broker = ScriptedBroker()
    broker.answers['SaslHandshake'] = lambda request: messages.SaslHandshakeResponse(mechanisms=['PLAIN'])
    broker.answers['SaslAuthenticate'] = lambda request: messages.SaslAuthenticateResponse(
        error_code=58, error_message='Authentication failed: Invalid username or password')
    with running(broker):
        text = complaint(broker.port, KafkaError, security_protocol='SASL_PLAINTEXT', sasl_mechanism='PLAIN',
                         sasl_username='alice', sasl_password='wrong-horse')
    assert text.endswith("user 'alice': SASL_AUTHENTICATION_FAILED: "
                         'Authentication failed: Invalid username or password')
    assert 'wrong-horse' not in text


def test_a_mechanism_that_the_listener_lacks_is_reported_with_those_it_has():
    broker = ScriptedBroker()
    broker.answers['SaslHandshake'] = lambda request: messages.SaslHandshakeResponse(
        error_code=33, mechanisms=['PLAIN', 'GSSAPI'])
    with running(broker):
        text = complaint(broker.port, KafkaError, security_protocol='SASL_PLAINTEXT', sasl_mechanism='SCRAM-SHA-256',
                         sasl_username='alice', sasl_password='secret')
    assert text.endswith('found sasl.mechanism SCRAM-SHA-256, the listener offers PLAIN, GSSAPI')


@pytest.mark.parametrize('serves_sasl', [True, False])
def test_a_listener_that_asks_for_no_sasl(serves_sasl):
    broker = ScriptedBroker()
    if not serves_sasl:
        del broker.versions['SaslHandshake']
    broker.answers['SaslHandshake'] = lambda request: messages.SaslHandshakeResponse(error_code=34)
    with running(broker):
        text = complaint(broker.port, KafkaError, security_protocol='SASL_PLAINTEXT', sasl_mechanism='PLAIN',
                         sasl_username='alice', sasl_password='secret')
    assert text.endswith('does not ask for SASL on this listener: security.protocol is SASL_PLAINTEXT, expected '
                         'PLAINTEXT')


@pytest.fixture
def short_session():
    """Yield a broker whose sessions last a second, a connection to it, and the clock of the connection."""
    broker = ScriptedBroker()
    broker.answers['SaslHandshake'] = lambda request: messages.SaslHandshakeResponse(mechanisms=['PLAIN'])
    broker.answers['SaslAuthenticate'] = lambda request: messages.SaslAuthenticateResponse(session_lifetime_ms=1000)
    clock = ManualClock()
    config = settings(1, security_protocol='SASL_PLAINTEXT', sasl_mechanism='PLAIN', sasl_username='alice',
                      sasl_password='secret')
    with running(broker), closing(Connection('127.0.0.1', broker.port, config, clock=clock)) as connection:
        yield broker, connection, clock


def test_a_session_is_renewed_before_it_ends(short_session):
    broker, connection, clock = short_session
    for pause_ms in (0, 849, 1, 0):
        clock.advance(pause_ms)
        connection.call(messages.MetadataRequest(topics=[]))
    authentication = ['SaslHandshake', 'SaslAuthenticate']
    assert broker.asked == ['ApiVersions', *authentication, *['Metadata'] * 2, *authentication, *['Metadata'] * 2]


def test_a_session_is_renewed_while_requests_are_in_flight(short_session):
    broker, connection, clock = short_session
    topic = messages.MetadataRequest.MetadataRequestTopic
    for name in ('a', 'b', 'c'):
        connection.send(messages.MetadataRequest(topics=[topic(name=name)]))
    answer = connection.receive(reuses_buffer=True)
    clock.advance(900)
    connection.send(messages.MetadataRequest(topics=[topic(name='d')]))
    assert connection.in_flight == 3 and connection.has_buffered
    with pytest.raises(RuntimeError, match='3 requests are in flight'):
        connection.call(messages.MetadataRequest(topics=[]))
    assert answer.topics[0].name == 'a'
    assert [connection.receive().topics[0].name for _ in range(3)] == ['b', 'c', 'd']
    assert connection.in_flight == 0 and not connection.has_buffered
    authentication = ['SaslHandshake', 'SaslAuthenticate']
    assert broker.asked == ['ApiVersions', *authentication, *['Metadata'] * 3, *authentication, 'Metadata']


@pytest.mark.parametrize(('answers', 'problem'), [
    ([b''], None),
    ([b'{"status":"invalid_token"}', 58], 'SASL_AUTHENTICATION_FAILED: the broker\'s words'),
    ([b'{"status":"invalid_token"}', b''], 'the broker refuses the token')])
def test_a_bearer_token_is_sent_and_a_refusal_is_reported(answers, problem):
    broker, sent, left = ScriptedBroker(), [], list(answers)

    def authenticate(request):
        sent.append(bytes(request.auth_bytes))
        answer = left.pop(0)
        if isinstance(answer, int):
            return messages.SaslAuthenticateResponse(error_code=answer, error_message='the broker\'s words')
        return messages.SaslAuthenticateResponse(auth_bytes=answer)
    broker.answers['SaslHandshake'] = lambda request: messages.SaslHandshakeResponse(mechanisms=['OAUTHBEARER'])
    broker.answers['SaslAuthenticate'] = authenticate
    names = {'security_protocol': 'SASL_PLAINTEXT', 'sasl_mechanism': 'OAUTHBEARER',
             'sasl_jaas_config': 'OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=alice '
                                 'unsecuredLoginExtension_a="1";'}
    with running(broker):
        if problem is None:
            connect(broker.port, **names).close()
        else:
            assert problem in complaint(broker.port, KafkaError, **names)
    assert re.fullmatch(rb'n,,\x01auth=Bearer [\w-]+\.[\w-]+\.\x01a=1\x01\x01', sent[0])
    assert sent[1:] == [b'\x01'] * (len(answers) - 1)


def test_a_closed_connection_has_no_file_descriptor():
    with running(ScriptedBroker()) as broker:
        connection = connect(broker.port)
        assert connection.fileno() > 0 and not connection.has_buffered
        connection.close()
        assert connection.fileno() == -1 and not isinstance(connection, ssl.SSLSocket)

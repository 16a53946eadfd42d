import base64
import gc
import logging
import socket
import ssl
import struct

import h11
import pytest

from kbroker.base.long_work import Pause
from kbroker.http.messages import Answer, text_answer
from kbroker.http.routes import Route
from kbroker.http.server import (
    BACKLOG,
    GIVES_WAY_MS,
    LONGEST_IDLE_MS,
    LONGEST_WAIT_MS,
    METRICS,
    MOST_CONNECTIONS,
    Purpose,
    listen,
)
from kbroker.http.tokens import Token

TOKEN = '0123456789abcdef'
SECRET = Token(TOKEN, 'metrics.token.file')
HELLO = Route('/hello', lambda request: text_answer(200, f'hello {request.query.get("name", "")}'))


def test_an_answer_has_its_type_its_length_and_headers_that_forbid_guessing(serve):
    status, headers, body = serve(HELLO).client().ask('/hello?name=J%C3%B6rg')
    assert (status, body) == (200, 'hello Jörg\n'.encode())
    assert headers['content-type'] == 'text/plain; charset=utf-8'
    assert headers['content-length'] == str(len(body))
    assert (headers['cache-control'], headers['x-content-type-options']) == ('no-store', 'nosniff')


def test_requests_that_arrive_together_are_answered_in_their_order(serve):
    client = serve(HELLO).client()
    client.send(b''.join(b'GET /hello?name=%d HTTP/1.1\r\nhost: localhost\r\n\r\n' % i for i in range(20)))
    assert [client.answer()[2] for _ in range(20)] == [b'hello %d\n' % i for i in range(20)]


def test_a_path_may_have_a_route_for_each_method_and_parts_with_names(serve):
    def name(text):
        return lambda request: text_answer(200, f'{text} {request.names}')

    client = serve(HELLO, Route('/rules/{id}', name('shows')),
                   Route('/rules/{id}', name('removes'), methods=('DELETE',)),
                   Route('/rules/{id}/{what}', name('does'), methods=('POST',))).client()
    assert client.ask('/rules/7')[2] == b"shows {'id': '7'}\n"
    assert client.ask('/rules/7', 'DELETE')[2] == b"removes {'id': '7'}\n"
    assert client.ask('/rules/7/release', 'POST')[2] == b"does {'id': '7', 'what': 'release'}\n"
    assert client.ask('/rules/7', 'POST')[::2] == (405, b"found the method 'POST', expected GET or HEAD or DELETE\n")
    for path in ('/rules/', '/rules//release', '/rules/7/release/now', '/rule/7', '/rules/{id}/'):
        assert client.ask(path, 'POST')[0] == 404


def test_a_head_has_the_headers_of_the_answer_and_no_body(serve):
    client = serve(HELLO).client()
    assert client.ask('/hello', 'HEAD')[1]['content-length'] == '7'
    assert client.ask('/hello')[2] == b'hello \n'


@pytest.mark.parametrize(('target', 'method', 'status', 'text'), [
    ('/other', 'GET', 404, "found the path '/other', expected one of /hello"),
    ('/hello', 'POST', 405, "found the method 'POST', expected GET or HEAD"),
    ('http://localhost/hello', 'GET', 400, 'found a request target that is no path, expected one that begins with /'),
    (f'/hello?{"a&" * 40}', 'GET', 400, 'found more than 32 fields in the query, expected fewer'),
])
def test_a_request_that_has_no_answer_gets_one_line_that_says_why(serve, target, method, status, text):
    found, _, body = serve(HELLO).client().ask(target, method)
    assert (found, body.decode()) == (status, f'{text}\n')


@pytest.mark.parametrize(('sent', 'status'), [
    (b'\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03' + bytes(500) + b'\r\n\r\n', 400),
    (b'GET /hello\r\n\r\n', 400),
    (b'GET /hello HTTP/1.1\r\n\r\n', 400),
    (b'GET /hello HTTP/1.1\r\nhost: localhost\r\n' + b'x: y\r\n' * 10_000, 431),
    (b'POST /hello HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999999999\r\n\r\n' + bytes(200_000), 413),
    (b'POST /hello HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n', 400),
    (b'POST /hello HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n', 400),
])
def test_garbage_is_answered_in_one_line_and_its_connection_ends(serve, sent, status):
    client = serve(HELLO).client()
    client.send(sent)
    found, headers, body = client.answer()
    assert (found, headers['connection'], body.count(b'\n')) == (status, 'close', 1)
    assert client.receive() == b''


def test_an_error_of_the_parser_leaves_no_cycle_to_the_garbage_collector(serve):
    gc.collect()
    gc.disable()
    try:
        client = serve(HELLO).client()
        client.send(b'GET /hello HTTP/1.1\r\nhost: one\r\nhost: two\r\n\r\n')
        assert client.answer()[0] == 400
        client.receive()
        assert [each for each in gc.get_objects() if isinstance(each, h11.RemoteProtocolError)] == []
    finally:
        gc.enable()


def test_a_client_that_never_reads_costs_a_few_parts_and_delays_nobody(serve):
    made = []

    def parts():
        for number in range(10_000):
            made.append(number)
            yield bytes(10_000)

    served = serve(HELLO, Route('/long', lambda _: Answer(parts())))
    served.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    silent = served.client()
    silent.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    silent.send(b'GET /long HTTP/1.1\r\nhost: localhost\r\n\r\n')
    for _ in range(500):
        served.tick()
    assert served.client().ask('/hello')[0] == 200
    assert len(made) < 1000


def test_a_long_answer_arrives_whole_and_in_turns_with_others(serve):
    served = serve(HELLO, Route('/long', lambda _: Answer(bytes([65 + i % 26]) * 1000 for i in range(5000))))
    clients = [served.client() for _ in range(5)]
    for client in clients:
        client.send(b'GET /long HTTP/1.1\r\nhost: localhost\r\n\r\n')
    assert served.client().ask('/hello')[0] == 200
    expected = b''.join(bytes([65 + i % 26]) * 1000 for i in range(5000))
    assert [client.answer()[2] == expected for client in clients] == [True] * 5


def test_an_answer_may_wait_for_an_event(serve):
    pause = Pause()

    def parts():
        yield from pause.wait()
        yield b'done'

    served = serve(Route('/late', lambda _: Answer(parts())))
    client = served.client()
    client.send(b'GET /late HTTP/1.1\r\nhost: localhost\r\n\r\n')
    for _ in range(10):
        served.tick()
    pause.end()
    assert client.answer()[2] == b'done'


def test_an_answer_that_waits_before_it_begins_ends_its_wait_when_the_client_goes(serve):
    pause, taken = Pause(), []

    def parts():
        taken.append(True)
        yield b'done'

    served = serve(Route('/late', lambda _: Answer(parts(), wait=pause)))
    client = served.client()
    client.send(b'GET /late HTTP/1.1\r\nhost: localhost\r\n\r\n')
    for _ in range(10):
        served.tick()
    assert served.connections() == 1
    client.socket.close()
    for _ in range(10):
        served.tick()
    assert pause.is_over
    assert served.connections() == 0
    assert not taken


def test_a_request_that_arrives_during_a_wait_is_answered_after_it(serve):
    pause = Pause()
    served = serve(HELLO, Route('/late', lambda _: Answer([b'late\n'], wait=pause)))
    client = served.client()
    client.send(b'GET /late HTTP/1.1\r\nhost: localhost\r\n\r\nGET /hello HTTP/1.1\r\nhost: localhost\r\n\r\n')
    for _ in range(10):
        served.tick()
    client.send(b'GET /hello HTTP/1.1\r\nhost: localhost\r\n\r\n')
    for _ in range(10):
        served.tick()
    pause.end()
    assert [client.answer()[2] for _ in range(3)] == [b'late\n', b'hello \n', b'hello \n']


def test_a_wait_that_sent_more_ends_when_its_connection_breaks(serve):
    pause = Pause()
    served = serve(Route('/late', lambda _: Answer([b'late'], wait=pause)))
    client = served.client()
    client.send(b'GET /late HTTP/1.1\r\nhost: localhost\r\n\r\n')
    for _ in range(10):
        served.tick()
    client.send(b'more')
    for _ in range(10):
        served.tick()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    client.socket.close()
    for _ in range(10):
        served.tick()
    assert pause.is_over
    assert served.connections() == 0


def test_a_call_after_the_answer_comes_when_the_client_can_read_it(serve):
    calls = []
    client = serve(Route('/last', lambda _: Answer([b'bye'], after=lambda: calls.append(client.socket.recv(1 << 16))))
                   ).client()
    client.send(b'GET /last HTTP/1.1\r\nhost: localhost\r\n\r\n')
    for _ in range(10):
        client._served.tick()
    [answer] = calls
    assert answer.endswith(b'\r\n\r\nbye')


def test_an_answer_that_fails_before_its_first_part_is_an_error_500(serve, caplog):
    def parts():
        raise RuntimeError('planted')
        yield b''

    client = serve(HELLO, Route('/broken', lambda _: Answer(parts()))).client()
    assert client.ask('/broken')[0] == 500
    assert client.ask('/hello')[0] == 200
    assert 'planted' in caplog.text


def test_an_answer_that_fails_later_ends_without_its_end_so_that_nobody_takes_it_for_whole(serve):
    def parts():
        yield bytes(100_000)
        raise RuntimeError('planted')

    client = serve(Route('/broken', lambda _: Answer(parts()))).client()
    client.send(b'GET /broken HTTP/1.1\r\nhost: localhost\r\n\r\n')
    received = b''
    while data := client.receive():
        received += data
    assert b'200 OK' in received
    assert not received.endswith(b'0\r\n\r\n')


def test_a_client_that_goes_ends_the_work_for_its_answer(serve):
    ended = []

    def parts():
        try:
            while True:
                yield bytes(10_000)
        finally:
            ended.append(True)

    served = serve(Route('/endless', lambda _: Answer(parts())))
    client = served.client()
    client.send(b'GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n')
    client.receive()
    client.socket.close()
    for _ in range(200):
        served.tick()
    assert ended
    assert served.connections() == 0


@pytest.mark.parametrize(('sent', 'limit_ms'), [(b'', LONGEST_IDLE_MS), (b'GET /hello HTTP', LONGEST_WAIT_MS)])
def test_a_silent_client_is_closed_after_its_limit(serve, sent, limit_ms):
    served = serve(HELLO)
    client = served.client()
    client.send(sent)
    served.tick()
    served.pass_time(limit_ms - 2000)
    assert not client.is_closed()
    served.pass_time(4000)
    assert client.is_closed()


def test_a_client_that_reads_a_byte_now_and_then_is_closed_after_its_limit(serve):
    served = serve(Route('/endless', lambda _: Answer(bytes(10_000) for _ in iter(int, 1))))
    client = served.client()
    client.send(b'GET /endless HTTP/1.1\r\nhost: localhost\r\n\r\n')
    for _ in range(500):
        served.tick()
    for _ in range(LONGEST_WAIT_MS // 1000 + 3):
        client.receive()
        served.pass_time(1000)
    assert served.connections() == 0


def test_a_crowd_is_served_in_turns(serve):
    served = serve(HELLO)
    clients = [served.client() for _ in range(3 * MOST_CONNECTIONS)]
    for client in clients:
        client.send(b'GET /hello HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n')
    for client in clients:
        assert client.answer()[0] == 200
        client.socket.close()
    assert 3 * MOST_CONNECTIONS < BACKLOG


def test_silent_clients_give_their_places_to_those_who_wait(serve):
    served = serve(HELLO)
    silent = [served.client() for _ in range(MOST_CONNECTIONS)]
    for _ in range(MOST_CONNECTIONS):
        served.tick()
    assert served.connections() == MOST_CONNECTIONS
    waiting = served.client()
    waiting.send(b'GET /hello HTTP/1.1\r\nhost: localhost\r\n\r\n')
    served.tick()
    served.pass_time(GIVES_WAY_MS + 1000)
    assert waiting.answer()[0] == 200
    assert silent[0].is_closed()


def basic(password):
    return 'Basic ' + base64.b64encode(f'anyone:{password}'.encode()).decode()


@pytest.mark.parametrize('given', [f'Bearer {TOKEN}', f'bearer  {TOKEN} ', basic(TOKEN)])
def test_a_request_with_the_token_is_answered(serve, given):
    assert serve(HELLO, token=SECRET).client().ask('/hello', authorization=given)[0] == 200


@pytest.mark.parametrize('given', ['', 'Bearer', 'Bearer wrong', TOKEN, basic('wrong'), 'Basic =', 'Basic \xff'])
def test_a_request_without_the_token_is_refused(serve, given):
    status, headers, body = serve(HELLO, token=SECRET).client().ask('/hello', authorization=given)
    assert status == 401
    assert 'www-authenticate' in headers
    assert b'metrics.token.file' in body


def test_an_open_route_needs_no_token(serve):
    route = Route('/livez', lambda _: text_answer(200, 'ok'), is_open=True)
    assert serve(route, token=SECRET).client().ask('/livez')[0] == 200


@pytest.mark.parametrize(('host', 'status'), [
    ('localhost:9464', 200), ('127.0.0.1', 200), ('[::1]:9464', 200), ('kbroker.localhost', 200),
    ('stranger.example:9464', 421), ('127.0.0.1.stranger.example', 421)])
def test_a_page_of_a_stranger_cannot_read_answers_through_a_name_of_its_own(serve, host, status):
    assert serve(HELLO, only_local_names=True).client().ask('/hello', host=host)[0] == status


@pytest.mark.parametrize(('headers', 'status'), [
    ({'content-type': 'application/json'}, 200), ({'content-type': 'Application/JSON; charset=utf-8'}, 200),
    ({}, 200), ({'content-type': 'text/plain'}, 415), ({'content-type': 'application/x-www-form-urlencoded'}, 415),
    ({'content-type': 'application/json', 'origin': 'http://localhost:8000'}, 403),
    ({'content-type': 'application/json', 'origin': 'null'}, 403)])
def test_a_server_for_programs_refuses_what_a_page_can_send(serve, headers, status):
    route = Route('/stop', lambda _: text_answer(200, 'stopped'), methods=('POST',))
    assert serve(route, only_programs=True).client().ask('/stop', 'POST', **headers)[0] == status


def test_a_server_for_programs_refuses_a_body_without_a_type(serve):
    route = Route('/stop', lambda _: text_answer(200, 'stopped'), methods=('POST',))
    client = serve(route, only_programs=True).client()
    client.send(b'POST /stop HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}')
    assert client.answer('POST')[0] == 415


def test_a_server_may_have_another_form_for_what_it_refuses(serve):
    def refuse(status, text, headers=()):
        return Answer([f'<{text}>'.encode()], status, 'text/html', headers)

    served = serve(HELLO, refuse=refuse)
    assert served.client().ask('/other')[2] == b"<found the path '/other', expected one of /hello>"
    client = served.client()
    client.send(b'GET /hello\r\n\r\n')
    assert client.answer()[2].startswith(b'<')


@pytest.mark.parametrize('purpose', [METRICS, Purpose('the exporter')])
def test_a_port_in_use_is_named_with_its_purpose_and_remedy(serve, purpose):
    host, port = serve(HELLO).address
    with pytest.raises(OSError, match=f'cannot listen on {host}:{port} for {purpose.name}: Address already in use: '):
        listen(host, port, purpose)


def test_a_plain_client_of_a_tls_address_is_a_line_in_the_log(serve, caplog):
    caplog.set_level(logging.INFO)
    served = serve(HELLO)
    served.server._context = lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = served.client()
    client.send(b'GET /hello HTTP/1.1\r\nhost: localhost\r\n\r\n')
    assert client.receive() in (b'',) or client.is_closed()
    assert 'HTTP_REQUEST' in caplog.text


def test_a_route_that_fails_is_an_error_of_its_request_alone(serve, caplog):
    def fail(_request):
        raise FileNotFoundError('page.css')

    client = serve(HELLO, Route('/fails', fail)).client()
    assert client.ask('/fails')[::2] == (500, b'the answer failed; the log says why\n')
    assert client.ask('/hello')[0] == 200
    assert 'page.css' in caplog.text

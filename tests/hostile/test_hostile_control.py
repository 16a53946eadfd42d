"""Attacks on the control port: garbage, bombs of JSON, as many rules as possible, and polls that no client reads.
Kafka's clients notice nothing.
"""
from __future__ import annotations

import contextlib
import json
import random
import socket

import pytest
from support.runner.free_ports import free_port

from kbroker.control.routes import MOST_RULE_BYTES
from kbroker.control.rules import MOST_RULES
from kbroker.control.server import MOST_POLLS, PURPOSE

BOMBS = (b'[' * 60_000, b'{"a":' * 12_000, b'9' * 60_000, b'{"delay_ms": 1' + b'0' * 60_000 + b'}',
         b'"' + b'\\u0000' * 10_000 + b'"')
ENDLESS_HEAD = b'GET / HTTP/1.1\r\nhost: localhost\r\n'


def request(line, body=b''):
    return (f'{line} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n'
            f'content-length: {len(body)}\r\n\r\n').encode() + body


@pytest.fixture
def controlled(besieged, monkeypatch):
    """Return a broker with a control port, and a function that connects to the port."""
    port = free_port()
    monkeypatch.setenv('KBROKER_CONTROL', f'127.0.0.1:{port}')
    return besieged(), lambda: socket.create_connection(('127.0.0.1', port), timeout=120)


def statuses(client, count):
    """Return the statuses of the next answers."""
    found = []
    with client.makefile('rb') as answers:
        for _ in range(count):
            found.append(int(answers.readline().split()[1]))
            head = dict(line.split(b': ', 1) for line in iter(answers.readline, b'\r\n'))
            answers.read(int(head[b'content-length']))
    return found


@pytest.mark.parametrize('clients', [200, pytest.param(5_000, marks=pytest.mark.soak)])
def test_garbage_for_the_control_port(controlled, clients):
    broker, connect = controlled
    rng = random.Random(clients)
    with broker.watched(rss_mb=60):
        for number in range(clients):
            whole = request('POST /rules', rng.choice(BOMBS))
            sent = (rng.randbytes(rng.randrange(1, 40_000)), whole[:rng.randrange(len(whole))], whole * 3,
                    ENDLESS_HEAD + b'x: y\r\n' * 5_000)[number % 4]
            with connect() as client, contextlib.suppress(ConnectionError):
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):
                    pass


def test_bombs_of_json_are_refused(controlled):
    broker, connect = controlled
    with broker.watched(rss_mb=60), connect() as client:
        for bomb in BOMBS:
            client.sendall(request('POST /rules', bomb))
            assert statuses(client, 1) == [400]


def test_rules_are_bounded_in_number_and_in_bytes(controlled):
    broker, connect = controlled
    rule = json.dumps({'point': 'request', 'action': 'hold', 'select': {'client_id': 'x' * (MOST_RULE_BYTES - 80)}})
    with broker.watched(rss_mb=60), connect() as client:
        for _ in range(MOST_RULES // 50):
            client.sendall(request('POST /rules', rule.encode()) * 50)
            assert statuses(client, 50) == [201] * 50
        client.sendall(request('POST /rules', rule.encode()))
        assert statuses(client, 1) == [400]
    assert broker.held('rules of the control port') == MOST_RULES


@pytest.mark.parametrize('polls', [2 * PURPOSE.most_connections, pytest.param(10_000, marks=pytest.mark.soak)])
def test_polls_that_are_never_read(controlled, polls):
    """The oldest polls give way, so a later client always gets its answer."""
    broker, connect = controlled
    with contextlib.ExitStack() as stack, broker.watched(rss_mb=60):
        for _ in range(polls):
            client = stack.enter_context(connect())
            client.sendall(request('GET /steps?since=1000000000&wait_ms=60000'))
        with connect() as client:
            client.sendall(request('GET /points'))
            assert statuses(client, 1) == [200]
    assert broker.held('polls of the control port') <= MOST_POLLS

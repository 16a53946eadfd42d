"""Attacks on metrics.listen: many scrapes at once, readers that never read, and garbage. Kafka's clients notice
nothing.
"""
from __future__ import annotations

import contextlib
import random
import socket

import pytest
from hostile.siege import create
from support.runner.free_ports import free_port

SCRAPE = b'GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n'
ENDLESS_HEAD = b'GET / HTTP/1.1\r\nhost: localhost\r\n'


def read_to_end(client):
    """Return the number of bytes that the broker sends until it closes the connection."""
    size = 0
    with client, contextlib.suppress(ConnectionResetError):
        while data := client.recv(1 << 16):
            size += len(data)
    return size


@pytest.fixture
def scraped(besieged):
    """Return a function that returns (broker with thousands of partitions, function that connects to its metrics)."""
    def start(thousands):
        port = free_port()
        broker = besieged({'metrics.listen': f'127.0.0.1:{port}'})
        with broker.connect() as client:
            for number in range(thousands):
                create(client, f'wide-{number}', 1_000)
        return broker, lambda: socket.create_connection(('127.0.0.1', port), timeout=120)

    return start


@pytest.mark.parametrize(('scrapes', 'thousands'), [(200, 1), pytest.param(400, 10, marks=pytest.mark.soak)])
def test_two_hundred_scrapes_at_once(scraped, scrapes, thousands):
    broker, connect = scraped(thousands)
    with broker.watched(rss_mb=150):
        for _ in range(0, scrapes, 200):
            clients = [connect() for _ in range(200)]
            for client in clients:
                client.sendall(SCRAPE)
            sizes = [read_to_end(client) for client in clients]
            assert min(sizes) > 150


@pytest.mark.parametrize(('readers', 'thousands'), [(300, 1), pytest.param(3_000, 10, marks=pytest.mark.soak)])
def test_scrapes_that_are_never_read(scraped, readers, thousands):
    broker, connect = scraped(thousands)
    with contextlib.ExitStack() as stack, broker.watched(rss_mb=150):
        for _ in range(readers):
            client = stack.enter_context(connect())
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionError):
                client.send(SCRAPE.replace(b'connection: close\r\n', b'') * 50)


@pytest.mark.parametrize(('clients', 'thousands'), [(200, 1), pytest.param(5_000, 10, marks=pytest.mark.soak)])
def test_garbage_for_the_metrics(scraped, clients, thousands):
    broker, connect = scraped(thousands)
    rng = random.Random(clients)
    with broker.watched(rss_mb=150):
        for number in range(clients):
            sent = (rng.randbytes(rng.randrange(1, 40_000)), SCRAPE[:rng.randrange(len(SCRAPE))],
                    ENDLESS_HEAD + b'x: y\r\n' * 5_000, SCRAPE * 100)[number % 4]
            with connect() as client, contextlib.suppress(ConnectionError):
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                read_to_end(client)

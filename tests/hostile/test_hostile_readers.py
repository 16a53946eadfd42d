"""Attacks with answers: clients that request much data and never read the answers."""
from __future__ import annotations

import contextlib
import time

import pytest
from hostile.siege import create, fetch_request, many_connections, produce
from support.brokers.in_process_broker import frame_of
from support.messages.message_builder import batch_of

from kbroker.protocol.messages import MetadataRequest

BATCHES = 40
RECORD = bytes(900_000)
READERS = [40, pytest.param(1_000, marks=pytest.mark.soak)]


def fill(client):
    """Create a topic of 36 MB."""
    create(client, 'large', 1)
    batch = batch_of(int(time.time() * 1000), RECORD)
    for _ in range(BATCHES):
        assert produce(client, 'large', [(0, batch)])[0].error_code == 0


def send_and_never_read(clients, frame, count=200):
    """Send the frame over each connection until the broker reads no more."""
    burst = (len(frame).to_bytes(4, 'big') + frame) * count
    for client in clients:
        client.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionError):     # the broker may close it at its bound
            client.socket.send(burst)


@pytest.mark.parametrize('readers', READERS)
def test_pipelined_fetches_of_a_large_topic_that_are_never_read(besieged, readers):
    broker = besieged()
    fetch = fetch_request('large', 1, 50 << 20, session_epoch=-1)
    with broker.connect() as client:
        fill(client)
    with many_connections(broker, readers) as attackers, broker.watched(rss_mb=100):
        send_and_never_read(attackers, frame_of(fetch, 12))


@pytest.mark.parametrize('readers', [200, pytest.param(1_000, marks=pytest.mark.soak)])
def test_pipelined_metadata_that_is_never_read(besieged, readers):
    """The answers take up to 128 MiB of memory (`queued.max.request.bytes`), and up to 1 MiB more for each
    connection."""
    broker = besieged()
    with broker.connect() as client:
        create(client, 'wide', 2_000)
    with many_connections(broker, readers) as attackers, broker.watched(rss_mb=300):
        send_and_never_read(attackers, frame_of(MetadataRequest(topics=None), 12))

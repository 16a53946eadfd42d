"""Fairness: one greedy client produces as fast as it can, with a quota and without, while 50 modest clients work."""
from __future__ import annotations

import contextlib
import threading
import time

import pytest
from hostile.siege import create, many_connections, produce_request
from support.brokers.in_process_broker import frame_of
from support.messages.message_builder import batch_of, build

from kbroker.protocol.messages import MetadataRequest

RATE = 1_000_000
FREE_S = 10
"""After a pause, a client may send as many bytes at once as its quota allows in this many seconds."""
IN_FLIGHT = 16
MODEST = 50
ROUNDS = 30


class Greedy(threading.Thread):
    """A producer of 100 KB requests that keeps 16 of them in flight until its connection is closed."""

    def __init__(self, client):
        super().__init__(daemon=True)
        self.client = client
        self.answered = 0
        batch = batch_of(int(time.time() * 1000), bytes(100_000))
        body = frame_of(produce_request('flood', [(0, batch)], acks=1), 9, 'greedy')
        self.frame = len(body).to_bytes(4, 'big') + body

    def run(self):
        with contextlib.suppress(OSError, AssertionError, EOFError):
            self.client.socket.sendall(self.frame * IN_FLIGHT)
            while True:
                self.client.receive()
                self.answered += 1
                self.client.socket.sendall(self.frame)


@pytest.mark.parametrize('quota', [None, RATE])
def test_one_greedy_client_leaves_room_for_modest_ones(besieged, quota):
    broker = besieged()
    with broker.connect() as client:
        create(client, 'flood', 1, retention_bytes='50000000', segment_bytes='20000000')
        if quota is not None:
            request = build('AlterClientQuotasRequest', entries=[{
                'entity': [{'entity_type': 'client-id', 'entity_name': 'greedy'}],
                'ops': [{'key': 'producer_byte_rate', 'value': quota}]}])
            assert client.ask(request, 1).entries[0].error_code == 0
    ask = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name='flood')])
    with many_connections(broker, MODEST) as modest, broker.connect() as client, broker.watched(rss_mb=150):
        greedy = Greedy(client)
        began = time.monotonic()
        greedy.start()
        for _ in range(ROUNDS):
            for one in modest:
                assert one.ask(ask, 12).topics[0].error_code == 0
    took_s = time.monotonic() - began
    print(f'  greedy client: {greedy.answered} requests of 100 KB in {took_s:.1f} s')
    assert greedy.answered > 0
    if quota is not None:
        assert greedy.answered * len(greedy.frame) <= quota * (FREE_S + took_s) + len(greedy.frame)

"""Attacks with frames: begun and never ended, and floods of small ones."""
from __future__ import annotations

from hostile.siege import many_connections
from support.in_process_broker import frame_of

from kbroker.protocol.messages import MetadataRequest

BEGINNING = (100_000_000).to_bytes(4, 'big') + bytes(996)
FLOOD_REQUESTS = 20_000


def test_5000_frames_that_are_begun_and_never_ended(besieged):
    broker = besieged({'socket.listen.backlog.size': '4096'})
    with broker.watched(rss_mb=150), many_connections(broker, 5_000) as attackers:
        for attacker in attackers:
            attacker.socket.sendall(BEGINNING)


def test_a_flood_of_metadata_requests(besieged):
    broker = besieged()
    frame = frame_of(MetadataRequest(topics=None), 12)
    burst = (len(frame).to_bytes(4, 'big') + frame) * 64
    with broker.watched(rss_mb=100), broker.connect() as attacker:
        for _ in range(FLOOD_REQUESTS // 64):
            attacker.socket.sendall(burst)
            for _ in range(64):
                attacker.receive()

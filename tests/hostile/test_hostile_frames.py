"""Attacks with frames that are begun and never completed, and with floods of small frames."""
from __future__ import annotations

import contextlib
import itertools
import selectors

from hostile.siege import many_connections, replies_to
from support.brokers.in_process_broker import frame_of

from kbroker.protocol.messages import MetadataRequest, OffsetFetchRequest

BEGINNING = (100_000_000).to_bytes(4, 'big') + bytes(996)
FLOOD_REQUESTS = 20_000
LARGE_FRAME_BYTES = 100 * 1024 * 1024
CHUNK = bytes(1 << 20)
LARGE_PRODUCE = (LARGE_FRAME_BYTES - 4).to_bytes(4, 'big') + b'\0\0\0\x0c' + CHUNK


def test_5000_frames_that_are_begun_and_never_ended(besieged):
    broker = besieged({'socket.listen.backlog.size': '4096'})
    with many_connections(broker, 5_000) as attackers, broker.watched(rss_mb=150):
        for attacker in attackers:
            attacker.socket.sendall(BEGINNING)


def test_a_flood_of_metadata_requests(besieged):
    broker = besieged()
    frame = frame_of(MetadataRequest(topics=None), 12)
    with broker.watched(rss_mb=100), broker.connect() as attacker:
        for _ in replies_to(attacker, [frame] * FLOOD_REQUESTS):
            pass


def test_60_frames_of_100_mib(besieged):
    """Each peer sends as many bytes as the broker reads. docs/bounds.md states the bound: 256 MiB plus one frame."""
    broker = besieged()
    with broker.watched(rss_mb=400), many_connections(broker, 60) as attackers:
        left = dict.fromkeys(attackers, LARGE_FRAME_BYTES)
        with selectors.DefaultSelector() as writable:
            for attacker in attackers:
                attacker.socket.setblocking(False)
                writable.register(attacker.socket, selectors.EVENT_WRITE, attacker)
            idle_rounds = 0
            while idle_rounds < 20:
                idle_rounds += 1
                for attacker in [key.data for key, _ in writable.select(0.05)]:
                    first = left[attacker] == LARGE_FRAME_BYTES
                    try:
                        left[attacker] -= attacker.socket.send(LARGE_PRODUCE if first else CHUNK[:left[attacker]])
                    except ConnectionError:
                        left[attacker] = 0      # at the bound the broker closes the slowest
                    if not left[attacker]:
                        writable.unregister(attacker.socket)
                    idle_rounds = 0


def test_long_requests_of_the_smallest_elements(besieged):
    """The decoded objects of these requests take 40 times the bytes of the requests."""
    broker = besieged()
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id='')
    frames = [frame_of(OffsetFetchRequest(groups=[group] * count), 9) for count in (1_000, 15_000, 200_000, 490_000)]
    with broker.watched(rss_mb=250), many_connections(broker, 40) as attackers:
        for attacker, frame in zip(attackers, itertools.cycle(frames)):
            attacker.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                attacker.send(frame)

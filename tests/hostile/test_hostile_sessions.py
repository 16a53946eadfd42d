"""Attacks with many fetch sessions, each of many partitions, which all wait for the same record."""
from __future__ import annotations

import time

import pytest
from hostile.siege import create, fetch_request, many_connections, produce
from support.brokers.in_process_broker import frame_of, read_answer
from support.messages.message_builder import batch_of

from kbroker.protocol.messages import FetchRequest

PARTITIONS = 2_000
MOST_WAITING = 100
"""All sessions together may have 200,000 partitions. This is the number of sessions of PARTITIONS that fit this
bound."""


@pytest.mark.parametrize('sessions', [150, pytest.param(1_000, marks=pytest.mark.soak)])
def test_sessions_of_thousands_of_partitions(besieged, sessions):
    """1,000 sessions once took 562 MB, and the loop paused for 1.8 s."""
    broker = besieged()
    begin = fetch_request('wide', PARTITIONS, 1 << 20, session_epoch=0)
    frame = frame_of(begin, 12)
    with broker.connect() as producer:
        create(producer, 'wide', PARTITIONS)
        with many_connections(broker, sessions) as attackers, broker.watched(rss_mb=200):
            for attacker in attackers:
                attacker.send(frame)
            waiting = []
            for attacker in attackers:
                answer = read_answer(begin, 12, attacker.receive())
                if answer.session_id:
                    waiting.append(attacker)
                    attacker.send(frame_of(FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 20,
                                                        session_id=answer.session_id, session_epoch=1), 12))
            for index in range(20):
                produce(producer, 'wide', [(index, batch_of(int(time.time() * 1000), b'v'))])
            for attacker in waiting:
                assert read_answer(begin, 12, attacker.receive()).responses
    assert len(waiting) <= MOST_WAITING

"""The broker answers whole and damaged requests of every served API or closes the connection. It logs no error and
leaks no memory.

The broker runs in the test's process on a real directory, without sockets. `make soak` runs a million frames.
"""
from __future__ import annotations

import gc
import logging
import tracemalloc

import pytest
from fuzz.frames import Frames
from support.brokers.in_process_broker import InProcessBroker

from kbroker.apis.serving.served import apis_under, served_apis

DEFAULT_FRAMES = 20_000
SOAK_FRAMES = 1_000_000


def run(broker: InProcessBroker, count: int, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Dispatch frames, half of them damaged. The dispatcher logs every unexpected exception as an error."""
    caplog.set_level(logging.ERROR)
    frames = Frames(apis_under(broker.config), seed, [broker.topics.topic('orders').topic_id])
    answered = closed = 0
    for index in range(count):
        api, frame = frames.mutated() if index % 2 else frames.plausible()
        connection = broker.connect()
        broker.send(connection, frame)
        unexpected = [record for record in caplog.records if record.name.startswith('kbroker')]
        assert not unexpected, f'frame {index} of seed {seed}, {api.key.name}: {frame.hex()}\n{caplog.text}'
        answered += bool(connection.replies)
        closed += connection.closed is not None
        broker.disconnect(connection)
        if index % 1000 == 0:
            broker.clock.advance(1000)
            broker.turn()
    assert answered > count // 4 and closed > count // 100


@pytest.fixture
def broker(tmp_path):
    settings = {'offsets.topic.num.partitions': '2', 'transaction.state.log.num.partitions': '2',
                'transaction.two.phase.commit.enable': 'true', 'kbroker.durability': 'page-cache'}
    with InProcessBroker(tmp_path, settings) as broker:
        broker.topics.create('orders', 2, {})
        broker.topics.create('compacted', 1, {'cleanup.policy': 'compact'})
        yield broker


def test_damaged_requests_are_answered_or_close_the_connection(broker, caplog):
    run(broker, DEFAULT_FRAMES, seed=2026, caplog=caplog)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_million_damaged_requests(broker, caplog, soak_count, soak_seed, tally):
    count = soak_count(SOAK_FRAMES, DEFAULT_FRAMES)
    run(broker, count, soak_seed, caplog)
    tally('damaged requests', count)


def test_damaged_requests_leave_nothing_behind(broker, caplog):
    # The memory for topics, groups and producers has bounds of its own. Therefore only refused frames are counted here,
    # which must use no memory.
    frames = Frames(served_apis(), 7, [])
    refused = []
    while len(refused) < 2000:
        _, frame = frames.mutated()
        connection = broker.connect()
        broker.send(connection, frame)
        if connection.closed is not None:
            refused.append(frame)
        broker.disconnect(connection)

    def feed() -> int:
        for frame in refused:
            connection = broker.connect()
            broker.send(connection, frame)
            broker.disconnect(connection)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        feed()
        before = feed()
        after = feed()
    finally:
        tracemalloc.stop()
    assert after - before < 64 * 1024

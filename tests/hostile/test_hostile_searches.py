"""Attacks with searches by time: small requests that make the broker read, decompress and decode many bytes."""
from __future__ import annotations

import time
from typing import Any

import pytest
from hostile.siege import BesiegedBroker, create, many_connections, produce, produce_request, replies_to
from hostile.test_hostile_produce import MIB
from support.brokers.in_process_broker import frame_of
from support.clients.raw_client import RawClient
from support.messages.message_builder import batch_of, build

from kbroker.record.compression import Compression

PARTITIONS = 40
MAX_TIMESTAMP = -3
BATCHES = 100_000
RSS_MB = 250
"""The memory of an idle broker and of one batch on the worker with the window of its codec, without its expanded
bytes."""


def request(name: str, timestamp_ms: int, partitions: int = 1) -> Any:
    return build('ListOffsetsRequest', replica_id=-1, topics=[{'name': name, 'partitions': [
        {'partition_index': index, 'timestamp': timestamp_ms} for index in range(partitions)]}])


def found(client: RawClient, name: str, timestamp_ms: int, partitions: int = 1) -> set[tuple[int, int]]:
    """Return the set of (error code, offset) in the answers for the partitions of a topic."""
    answer = client.ask(request(name, timestamp_ms, partitions), 9)
    return {(each.error_code, each.offset) for each in answer.topics[0].partitions}


def late_last(now_ms: int, count: int, value: bytes, codec: Compression = Compression.NONE) -> bytes:
    """Return a batch of `count` records, of which only the last one has the timestamp `now_ms`."""
    return batch_of(now_ms, *[(now_ms - 1, None, value)] * (count - 1), (now_ms, None, value), compression=codec)


@pytest.mark.parametrize('codec', [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_batches_that_expand_a_thousand_times(besieged, codec):
    """A request of 49 bytes once held the loop for 160 ms, and a request for 40 partitions once held it for 6.7 s."""
    broker: BesiegedBroker = besieged()
    now_ms = int(time.time() * 1000)
    batch = late_last(now_ms, 1000, bytes(30_000), codec)
    with broker.connect() as attacker:
        create(attacker, 'wide', PARTITIONS)
        for index in range(PARTITIONS):
            produce(attacker, 'wide', [(index, batch)])
        with broker.watched(rss_mb=RSS_MB):
            assert found(attacker, 'wide', now_ms, PARTITIONS) == {(0, 999)}
            assert found(attacker, 'wide', MAX_TIMESTAMP, PARTITIONS) == {(0, 999)}


@pytest.mark.parametrize('codec', [Compression.NONE, Compression.ZSTD])
def test_a_batch_of_a_million_records(besieged, codec):
    """The search in such a batch once took 190 ms and 170 MB."""
    broker: BesiegedBroker = besieged()
    now_ms = int(time.time() * 1000)
    batch = late_last(now_ms, 1_000_000, b'', codec)
    with broker.connect() as attacker:
        create(attacker, 'small', 1, max_message_bytes=str(20 * MIB))
        produce(attacker, 'small', [(0, batch)])
        with broker.watched(rss_mb=RSS_MB):
            for _ in range(5):
                assert found(attacker, 'small', now_ms) == {(0, 999_999)}


def test_a_segment_whose_time_index_has_one_entry(besieged):
    """Decreasing timestamps add no entries to the index, so the search reads all headers."""
    broker: BesiegedBroker = besieged()
    now_ms = int(time.time() * 1000)
    with broker.connect() as attacker:
        create(attacker, 'down', 1)
        for first in range(0, BATCHES, 1000):
            frames = [frame_of(produce_request('down', [(0, batch_of(now_ms - number, b''))]), 9)
                      for number in range(first, first + 1000)]
            assert len(list(replies_to(attacker, frames))) == len(frames)
        produce(attacker, 'down', [(0, batch_of(now_ms + 1, b''))])
        with broker.watched(rss_mb=RSS_MB):
            for _ in range(20):
                assert found(attacker, 'down', now_ms + 1) == {(0, BATCHES)}


def test_searches_of_clients_that_leave(besieged):
    broker: BesiegedBroker = besieged()
    now_ms = int(time.time() * 1000)
    with broker.connect() as attacker:
        create(attacker, 'wide', PARTITIONS)
        for index in range(PARTITIONS):
            produce(attacker, 'wide', [(index, late_last(now_ms, 1000, bytes(9_000), Compression.ZSTD))])
        frame = frame_of(request('wide', now_ms, PARTITIONS), 9)
        with broker.watched(rss_mb=RSS_MB):
            for _ in range(5):
                with many_connections(broker, 50) as others:
                    for other in others:
                        other.socket.sendall(len(frame).to_bytes(4, 'big') + frame)
            assert found(attacker, 'wide', now_ms) == {(0, 999)}

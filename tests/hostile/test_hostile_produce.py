"""Attacks with Produce: compressed batches that expand, many partitions, one partition many times."""
from __future__ import annotations

import time

import pytest
from hostile.siege import BesiegedBroker, create, produce
from support.messages.message_builder import batch_of

from kbroker.apis.produce.parts import MAX_PARTITIONS
from kbroker.apis.produce.produce import MAX_REQUEST_DECOMPRESSED_BYTES
from kbroker.base.errors import ErrorCode
from kbroker.record.compression import Compression

MIB = 1024 * 1024
BOMB_BYTES = 90 * MIB
PARTITIONS = 40
RSS_MB = 330
"""The memory of an idle broker, of one batch of 100 MiB on the worker with the window of its codec, and of the
requests."""


def bomb(codec: Compression, expanded_bytes: int = BOMB_BYTES) -> bytes:
    now_ms = int(time.time() * 1000)
    return batch_of(now_ms, *[bytes(expanded_bytes // 1000)] * 1000, compression=codec)


@pytest.mark.parametrize('codec', [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_batches_that_expand_a_thousand_times(besieged, codec):
    """A request of 647 KB once kept the broker from serving any other client for 58 s."""
    broker: BesiegedBroker = besieged()
    batch = bomb(codec)
    with broker.connect() as attacker:
        create(attacker, 'wide', PARTITIONS)
        with broker.watched(rss_mb=RSS_MB):
            answers = produce(attacker, 'wide', [(index, batch) for index in range(PARTITIONS)])
    taken = MAX_REQUEST_DECOMPRESSED_BYTES // BOMB_BYTES
    assert [answer.error_code for answer in answers] == [0] * taken + [ErrorCode.MESSAGE_TOO_LARGE] * (
        PARTITIONS - taken)


def test_snappy_batches_that_expand_twenty_times(besieged):
    broker: BesiegedBroker = besieged()
    batch = bomb(Compression.SNAPPY, 18 * MIB)
    assert len(batch) < MIB
    with broker.connect() as attacker:
        create(attacker, 'wide', 8)
        with broker.watched(rss_mb=RSS_MB):
            for _ in range(4):
                answers = produce(attacker, 'wide', [(index, batch) for index in range(8)])
                assert [answer.error_code for answer in answers] == [0] * 8


@pytest.mark.parametrize('codec', [Compression.GZIP, Compression.ZSTD])
def test_pipelined_requests_whose_batches_stay_on_the_loop(besieged, codec):
    """Each batch expands to almost the size up to which the loop validates a batch itself."""
    broker: BesiegedBroker = besieged()
    batch = bomb(codec, 250 * 1024)
    with broker.connect() as attacker:
        create(attacker, 'one', 1)
        with broker.watched(rss_mb=RSS_MB):
            assert [produce(attacker, 'one', [(0, batch)])[0].error_code for _ in range(300)] == [0] * 300


def test_recompression_of_an_expanding_batch(besieged):
    broker: BesiegedBroker = besieged()
    batch = bomb(Compression.ZSTD, 60 * MIB)
    with broker.connect() as attacker:
        create(attacker, 'packed', 2, compression_type='gzip')
        with broker.watched(rss_mb=RSS_MB):
            answers = produce(attacker, 'packed', [(0, batch), (1, batch)])
    assert [answer.error_code for answer in answers] == [0, 0]


def test_records_of_a_large_batch_that_are_all_faulty(besieged):
    """The broker once ran Python code for each faulty record."""
    broker: BesiegedBroker = besieged()
    now_ms = int(time.time() * 1000)
    batch = batch_of(now_ms, *[(now_ms, None, b'')] * 1_000_000, compression=Compression.ZSTD)
    with broker.connect() as attacker:
        create(attacker, 'compacted', 1, cleanup_policy='compact')
        with broker.watched(rss_mb=RSS_MB):
            answer, = produce(attacker, 'compacted', [(0, batch)])
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert len(answer.record_errors) == 1000


def test_the_first_batches_of_many_partitions(besieged):
    """One Produce to 5,000 new partitions once stopped the loop for 11 s."""
    broker: BesiegedBroker = besieged()
    batch = batch_of(int(time.time() * 1000), b'v')
    with broker.connect() as attacker:
        create(attacker, 'new', 2_000)
        with broker.watched(rss_mb=RSS_MB):
            answers = produce(attacker, 'new', [(index, batch) for index in range(2_000)])
    assert {answer.error_code for answer in answers} == {0}


def test_one_partition_named_a_thousand_times(besieged):
    broker: BesiegedBroker = besieged()
    batch = bomb(Compression.ZSTD)
    with broker.connect() as attacker:
        create(attacker, 'one', 1)
        with broker.watched(rss_mb=RSS_MB):
            answers = produce(attacker, 'one', [(0, batch)] * 1000)
    assert [(answer.index, answer.error_code) for answer in answers] == [(0, 0)]


def test_as_many_unknown_partitions_as_a_request_may_name(besieged):
    broker: BesiegedBroker = besieged()
    with broker.connect() as attacker, broker.connect() as second:
        create(attacker, 'one', 1)
        with broker.watched(rss_mb=RSS_MB):
            answers = produce(attacker, 'one', [(index, b'') for index in range(1, MAX_PARTITIONS + 1)])
            with pytest.raises(ConnectionError):
                produce(second, 'one', [(index, b'') for index in range(MAX_PARTITIONS + 1)])
    assert {answer.error_code for answer in answers} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

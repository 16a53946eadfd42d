"""Attacks with producer ids: endless requests for new ids, and batches of which each has a new producer id."""
from __future__ import annotations

import time
from collections import deque
from itertools import repeat

import pytest
from hostile.siege import create, produce_request, replies_to
from support.brokers.in_process_broker import frame_of, read_answer
from support.messages.message_builder import batch_of

from kbroker.base.errors import ErrorCode
from kbroker.protocol.messages import InitProducerIdRequest

PARTITIONS = 10
IDS_OF_A_PARTITION = 100_000
FIRST_ID = 1 << 40
"""The broker has not allocated this producer id or any above it."""


@pytest.mark.parametrize('ids', [20_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_producer_ids_without_end(besieged, ids):
    broker = besieged()
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    with broker.watched(rss_mb=100), broker.connect() as attacker:
        found = {read_answer(request, 4, reply).producer_id
                 for reply in replies_to(attacker, repeat(frame_of(request, 4), ids))}
    assert len(found) == ids and min(found) >= 0


@pytest.mark.parametrize(('ids', 'rss_mb'), [(20_000, 120), pytest.param(1_000_000, 500, marks=pytest.mark.soak)])
def test_batches_of_ever_new_producers(besieged, ids, rss_mb):
    """The segments have the smallest possible size, so that the broker often writes a snapshot of the producers."""
    broker = besieged()
    with broker.connect() as client:
        create(client, 'crowded', PARTITIONS, segment_bytes=str(1 << 20))
    partitions = 1 if ids <= IDS_OF_A_PARTITION else PARTITIONS
    now_ms = int(time.time() * 1000)

    def request(first_id):
        return produce_request('crowded', [
            (index, batch_of(now_ms, b'v', producer_id=first_id + index, producer_epoch=0, base_sequence=0))
            for index in range(partitions)])

    with broker.watched(rss_mb=rss_mb), broker.connect() as attacker:
        requests = (request(first_id) for first_id in range(FIRST_ID, FIRST_ID + ids, partitions))
        last, = deque(replies_to(attacker, (frame_of(produce, 9) for produce in requests)), maxlen=1)
    answer = read_answer(request(0), 9, last)
    codes = {partition.error_code for partition in answer.responses[0].partition_responses}
    assert codes <= {0, ErrorCode.POLICY_VIOLATION}

"""A walk over the end of a partition, which passes only some batches to the producer state table, has the same result
as a full replay."""
import random

import pytest

from kbroker.log.producer_state import ProducerStateTable
from kbroker.record.batch import CorruptBatchError, check_crc, encode_batch, read_header
from kbroker.record.control import encode_end_txn_marker
from kbroker_tools.spark.storage import LocalFile
from kbroker_tools.spark.tail_walk import TailWalk, UnsoundTail

WHEN_MS = 1_700_000_000_000


def random_log(chance, *, large=False):
    """Return batches of several producers, with runs of batches of one producer, and markers in between.

    Some batches are damaged, and some have lower offsets than the preceding batches.
    """
    batches, offset, sequences = [], 0, {}
    for number in range(chance.randrange(1, 60)):
        producer_id = chance.choice([-1, 1, 2])
        for _ in range(chance.randrange(1, 4)):
            if producer_id > 0 and chance.random() < 0.3:
                batch = encode_end_txn_marker(commit=chance.random() < 0.5, producer_id=producer_id, producer_epoch=0,
                                              coordinator_epoch=0, timestamp_ms=WHEN_MS + number)
            else:
                count = chance.randrange(1, 4)
                sequence = sequences.get(producer_id, 0) if producer_id > 0 else -1
                sequences[producer_id] = sequence + count
                value = b'x' * chance.randrange(5000 if large else 100)
                batch = encode_batch([(WHEN_MS + number, None, value)] * count,
                                     producer_id=producer_id, producer_epoch=0 if producer_id > 0 else -1,
                                     base_sequence=sequence, transactional=producer_id == 1)
            batch[:8] = (offset if chance.random() < 0.95 else max(0, offset - 3)).to_bytes(8, 'big')
            offset = read_header(batch).last_offset + 1 + chance.choice([0, 0, 5])
            if chance.random() < 0.05:
                batch[-1] ^= 1
            batches.append(bytes(batch))
    return batches


def replayed_one_by_one(batches, replay_from):
    """Replay each batch. Return (open transactions, producers, aborted transactions, next offset).

    A batch is skipped if it is damaged, or if its offset is not above the offsets of all preceding batches.
    """
    table, aborted, next_offset = ProducerStateTable(), [], 0
    for batch in batches:
        header = read_header(batch)
        try:
            check_crc(batch, header)
        except CorruptBatchError:
            continue
        if header.base_offset < next_offset:
            continue
        next_offset = header.last_offset + 1
        if header.base_offset >= replay_from:
            row = table.replay_batch(bytearray(batch))
            if row is not None:
                aborted.append(row[:3])
    return dict(table.unstable.ongoing), table.active_producers(), aborted, next_offset


def replay_into(table, aborted):
    def replay(batch):
        row = table.replay_batch(batch)
        if row is not None:
            aborted.append(row[:3])
    return replay


def test_it_comes_to_what_replaying_each_batch_comes_to():
    chance = random.Random(7)
    for _ in range(400):
        batches = random_log(chance)
        data, replay_from = b''.join(batches), chance.choice([0, 0, 7, 40])
        table, aborted = ProducerStateTable(), []
        walk, position = TailWalk(0, replay_from, replay_into(table, aborted)), 0
        while position < len(data):  # windows of random sizes
            size = max(chance.randrange(61, 800), read_header(data, position).size_bytes)
            used = walk.feed(memoryview(bytearray(data[position:position + size])))
            assert used and walk.sound_bytes <= used
            position += used
        assert position == len(data)
        found = dict(table.unstable.ongoing), table.active_producers(), aborted, walk.next_offset
        assert found == replayed_one_by_one(batches, replay_from)


def test_skimming_a_sound_file_comes_to_what_feeding_it_comes_to(tmp_path):
    chance, skimmed = random.Random(8), 0
    for number in range(1000):
        batches = random_log(chance, large=number % 2 == 0)
        position = chance.choice([0, 0, len(batches[0])])
        replay_from = chance.choice([0, 0, 7, 40])
        path = tmp_path / 'log'
        path.write_bytes(b''.join(batches) + chance.choice([b'', batches[0][:70], bytes(200)]))
        with LocalFile(str(path)) as file:
            table, aborted = ProducerStateTable(), []
            walk = TailWalk(0, replay_from, replay_into(table, aborted))
            try:
                end = walk.skim(file.fileno(), position, file.size())
            except UnsoundTail:
                continue
        skimmed += 1
        read = batches[1:] if position else batches
        assert end == sum(map(len, batches))
        found = dict(table.unstable.ongoing), table.active_producers(), aborted, walk.next_offset
        assert found == replayed_one_by_one(read, replay_from)
        fed = TailWalk(0, replay_from, lambda batch: None)
        fed.feed(b''.join(read))
        assert walk.replayed_to == fed.replayed_to
    assert skimmed > 100


@pytest.mark.parametrize('damaged', [0, -1], ids=['in its header', 'in its records'])
def test_skimming_refuses_a_last_batch_that_is_damaged(tmp_path, damaged):
    batches = [bytearray(encode_batch([(WHEN_MS, None, b'x')])) for _ in range(5)]
    for offset, batch in enumerate(batches):
        batch[:8] = offset.to_bytes(8, 'big')
    batches[-1][damaged or 25] ^= 1
    path = tmp_path / 'log'
    path.write_bytes(b''.join(batches))
    with LocalFile(str(path)) as file, pytest.raises(UnsoundTail):
        TailWalk(0, 0, lambda batch: None).skim(file.fileno(), 0, file.size())

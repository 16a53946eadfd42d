"""Walking the end of a partition without showing every batch to the table of producers."""
import random

from kbroker.log.producer_state import ProducerStateTable
from kbroker.record.batch import CorruptBatchError, check_crc, encode_batch, read_header
from kbroker.record.control import encode_end_txn_marker
from kbroker_tools.spark.tail_walk import TailWalk

WHEN_MS = 1_700_000_000_000


def random_log(chance):
    """Batches of several producers, in runs, with markers in between; some are damaged, some lie below others."""
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
                batch = encode_batch([(WHEN_MS + number, None, b'x' * chance.randrange(100))] * count,
                                     producer_id=producer_id, producer_epoch=0 if producer_id > 0 else -1,
                                     base_sequence=sequence, transactional=producer_id == 1)
            batch[:8] = (offset if chance.random() < 0.95 else max(0, offset - 3)).to_bytes(8, 'big')
            offset = read_header(batch).last_offset + 1 + chance.choice([0, 0, 5])
            if chance.random() < 0.05:
                batch[-1] ^= 1
            batches.append(bytes(batch))
    return batches


def replayed_one_by_one(batches, replay_from):
    """(open transactions, producers, aborted, next offset), by what is sound and above all before it."""
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
    return dict(table.ongoing), table.active_producers(), aborted, next_offset


def test_it_comes_to_what_replaying_each_batch_comes_to():
    chance = random.Random(7)
    for _ in range(400):
        batches = random_log(chance)
        data, replay_from = b''.join(batches), chance.choice([0, 0, 7, 40])
        table, aborted = ProducerStateTable(), []

        def replay(batch, table=table, aborted=aborted):
            row = table.replay_batch(batch)
            if row is not None:
                aborted.append(row[:3])

        walk, position = TailWalk(0, replay_from, replay), 0
        while position < len(data):  # by windows that end anywhere
            size = max(chance.randrange(61, 800), read_header(data, position).size_bytes)
            used = walk.feed(memoryview(bytearray(data[position:position + size])))
            assert used and walk.sound_bytes <= used
            position += used
        assert position == len(data)
        found = dict(table.ongoing), table.active_producers(), aborted, walk.next_offset
        assert found == replayed_one_by_one(batches, replay_from)

"""The tasks of a partition, each of which reads a range independently, together return exactly the rows that one
consumer would receive. The logs are random and written by the broker's log room: they have open and aborted
transactions of several producers, compaction, gaps, and a moved log start. Then the tests tear tails, damage snapshots
and delete indexes.
"""
import os
import random
import shutil

import pytest
from support.disk.directory_with_cleaner import DirectoryWithCleaner

from kbroker.log.append import Origin
from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import encode_batch
from kbroker.record.control import encode_end_txn_marker
from kbroker.record.records import decode_records
from kbroker_tools.spark.file_ranges import ReadOptions, cut, read_range
from kbroker_tools.spark.partition_files import PartitionFiles, Tail
from kbroker_tools.spark.schema import BY_NAME, Assembler
from kbroker_tools.spark.storage import Storage

T = 1_700_000_000_000
FIELDS = [BY_NAME[name] for name in ('key', 'value', 'offset', 'timestamp', 'timestampType', 'headers')]
LOGS = 60


class RandomLog:
    """A log after a random history, and the rows that a consumer of it would receive."""

    def __init__(self, path, seed):
        self.random = random.Random(seed)
        self.directory = DirectoryWithCleaner(path)
        self.directory.cleaner.start()
        self.log = self.directory.open(**{'segment_bytes': str(self.random.choice([2_000, 10_000, 1_000_000]))})
        self.sequences = {}
        self.open = set()
        for _ in range(self.random.randrange(1, 120)):
            self.step()

    def step(self):
        kind = self.random.random()
        if kind < 0.55:
            self.produce(self.random.choice([-1, 1, 2, 3, 4]))
        elif kind < 0.9 and self.open:
            self.end(self.random.choice(sorted(self.open)), self.random.random() < 0.5)
        elif kind < 0.93:
            self.log.roll()
        elif kind < 0.96:
            self.flush()
            self.directory.clean(self.log)
        elif kind < 0.97 and not self.open:
            self.flush()
            self.log.delete_records(self.random.randrange(self.log.log_start_offset, self.log.log_end_offset + 1))

    def flush(self):
        self.log.flush()
        self.log.producer_state.unstable.on_high_watermark(self.log.flushed_offset)

    def produce(self, producer_id):
        count = self.random.randrange(1, 8)
        records = [(T + self.random.randrange(10_000), b'k%d' % self.random.randrange(12),
                    self.random.choice([None, b'', os.urandom(self.random.randrange(1, 60))]),
                    [('h', b'x')] if self.random.random() < 0.2 else []) for _ in range(count)]
        if producer_id < 0:
            self.log.append_batch(encode_batch(records, compression=self.random.randrange(5)), Origin.COORDINATOR, 0)
            return
        sequence = self.sequences.get(producer_id, 0)
        self.sequences[producer_id] = sequence + count
        batch = encode_batch(records, compression=self.random.randrange(5), producer_id=producer_id, producer_epoch=0,
                             base_sequence=sequence, transactional=True)
        self.log.append_batch(batch, Origin.COORDINATOR, 0)
        self.open.add(producer_id)

    def end(self, producer_id, commit):
        marker = encode_end_txn_marker(commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0,
                                       timestamp_ms=T)
        self.log.append_batch(marker, Origin.COORDINATOR, 0)
        self.open.discard(producer_id)

    @property
    def last_stable_offset(self):
        first = self.log.first_unstable_offset()
        return self.log.log_end_offset if first is None else max(first, self.log.log_start_offset)

    def consumed(self, *, read_committed):
        """Return the rows that a consumer would receive, by reading all batches in order with an abort filter."""
        end = self.last_stable_offset if read_committed else self.log.log_end_offset
        start = self.log.log_start_offset
        aborted = AbortFilter(self.log.aborted_transactions(start, end) if read_committed else [])
        rows = []
        for header, batch in self.log.batches(start):
            if header.base_offset >= end:
                break
            if aborted.admits(header, batch):
                rows += [row for record in decode_records(batch) if start <= (row := as_row(record))[2] < end]
        return rows


def as_row(record):
    return (record.key, record.value, record.offset, record.timestamp_ms * 1000, 0,
            [(key, value) for key, value in record.headers] or None)


def read_in_pieces(directory, chance, *, read_committed, log_start_offset, verify=False, end_offset=None):
    files = PartitionFiles.list(Storage(str(directory)), 'topic', 0)
    state = Tail(verify_transaction_index=verify).advance(files, log_start_offset)
    end = state.last_stable_offset if read_committed else state.log_end_offset
    if end_offset is not None:
        end = min(end, end_offset)
    pieces = cut(state, state.log_start_offset, end, split_bytes=chance.choice([1, 300, 3_000, 1 << 30]),
                 max_records=chance.choice([None, 5]))
    assembler = Assembler(FIELDS, 'topic', 0)
    options = ReadOptions(batch_rows=chance.choice([1, 7, 10_000]), is_read_committed=read_committed)
    chance.shuffle(pieces)
    rows = [tuple(row.values()) for piece in pieces for batch in read_range(piece, assembler, options)
            for row in batch.to_pylist()]
    return state, sorted(map(plain, rows), key=lambda row: row[2])


def plain(row):
    key, value, offset, timestamp, kind, headers = row
    microseconds = (timestamp - timestamp.replace(microsecond=0)).microseconds + int(timestamp.timestamp()) * 1_000_000
    return key, value, offset, microseconds, kind, headers and [tuple(header.values()) for header in headers]


@pytest.fixture(params=range(LOGS))
def random_log(request, tmp_path):
    return RandomLog(tmp_path, request.param)


@pytest.mark.parametrize('read_committed', [True, False])
def test_pieces_give_what_one_consumer_gets(random_log, read_committed):
    random_log.flush()
    state, rows = read_in_pieces(random_log.log.directory, random_log.random, read_committed=read_committed,
                                 log_start_offset=random_log.log.log_start_offset)
    assert (state.log_end_offset, state.last_stable_offset) == (
        random_log.log.log_end_offset, random_log.last_stable_offset)
    assert rows == random_log.consumed(read_committed=read_committed)


def test_torn_tails_damaged_snapshots_and_lost_indexes_change_nothing(random_log):
    random_log.flush()
    expected, chance = random_log.consumed(read_committed=True), random_log.random
    copy = shutil.copytree(random_log.log.directory, f'{random_log.log.directory}-copy')
    names = sorted(os.listdir(copy))
    with open(os.path.join(copy, [name for name in names if name.endswith('.log')][-1]), 'ab') as last:
        last.write(torn_tail(chance))
    for name in [name for name in names if name.endswith('.snapshot')][-1:]:
        with open(os.path.join(copy, name), 'r+b') as snapshot:
            snapshot.write(b'\0\1damaged')
    for name in names:
        if name.endswith('.index') and chance.random() < 0.5:
            os.unlink(os.path.join(copy, name))
        if name.endswith('.txnindex'):
            os.unlink(os.path.join(copy, name))
    state, rows = read_in_pieces(copy, chance, read_committed=True, verify=True,
                                 log_start_offset=random_log.log.log_start_offset)
    assert state.log_end_offset == random_log.log.log_end_offset
    assert rows == expected


def torn_tail(chance):
    whole = bytes(encode_batch([(T, b'k', b'v' * 50)], base_offset=1 << 40))
    return chance.choice([whole[:chance.randrange(1, len(whole))], bytes(200), whole[:-1] + b'?'])


def test_a_tail_that_is_walked_on_sees_what_a_new_walk_sees(tmp_path):
    grown = RandomLog(tmp_path, 7)
    tail = Tail()
    for _ in range(150):
        grown.step()
        grown.flush()
        files = PartitionFiles.list(Storage(str(grown.log.directory)), 'topic', 0)
        again, fresh = tail.advance(files), Tail().advance(files)
        assert (again.log_end_offset, again.last_stable_offset, again.open) == (
            fresh.log_end_offset, fresh.last_stable_offset, fresh.open)
        assert sorted(again.aborted(0, again.log_end_offset)) == sorted(fresh.aborted(0, fresh.log_end_offset))

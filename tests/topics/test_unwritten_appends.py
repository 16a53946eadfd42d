"""As long as a crash could lose a record, the record is not read or acknowledged, and no other record depends on it.

Covers promise 3 of docs/design.md.
"""
import errno

import pytest
from support.brokers.in_process_broker import InProcessBroker, frame_of, read_answer
from support.disk.faulty_file_systems import FailingFileSystem
from support.disk.held_disk import HeldDisk
from support.messages.message_builder import batch_of, build

from kbroker.base.errors import ErrorCode
from kbroker.record.batch import iter_batches

PRODUCE_VERSION = FETCH_VERSION = 12
PRODUCER_ID = 7


class CountedWrites(FailingFileSystem):
    """A file system that counts the writes to the log of `orders-0`, and lets them fail with the error number
    `code`."""

    def __init__(self):
        super().__init__(self.count)
        self.writes = 0
        self.code = None

    def count(self, operation, path):
        if operation == 'write' and 'orders-0' in path and path.endswith('.log'):
            self.writes += 1
            return self.code
        return None


class Tick:
    """A tick with three appends of one producer to a busy partition whose log ends at offset 2.

    The first two appends are records with the sequences 2 and 3, which get the offsets 2 and 3. The record with
    sequence 3 is accepted only because of the one before it. The third append repeats the first, so it is a duplicate.
    """

    def __init__(self, directory, durability):
        self.fs, self.disk = CountedWrites(), HeldDisk(is_held=False)
        self.broker = InProcessBroker(directory, {'kbroker.durability': durability}, fs=self.fs,
                                      sync=self.disk.sync).__enter__()
        self.disk.kick = self.broker.flusher.kick
        self.partition, = self.broker.topics.create('orders', 1, {}).partitions
        self.begin(0, 1)
        assert self.end() == [(0, 0), (0, 1)]
        self.disk.is_held = durability == 'disk'
        self.fs.writes = 0
        self.begin(2, 3, 2)

    def begin(self, *sequences):
        """Send a Produce request for each sequence, each over a separate connection."""
        self.requests = [self.produce(sequence) for sequence in sequences]
        self.connections = [self.broker.connect() for _ in sequences]
        for request, connection in zip(self.requests, self.connections, strict=True):
            self.broker.serve(connection, frame_of(request, PRODUCE_VERSION))

    def produce(self, sequence):
        batch = batch_of(self.broker.clock.wall_ms(), b'v', producer_id=PRODUCER_ID, producer_epoch=0,
                         base_sequence=sequence)
        return build('ProduceRequest', transactional_id=None, acks=-1, timeout_ms=1000, topic_data=[
            {'name': 'orders', 'partition_data': [{'index': 0, 'records': batch}]}])

    def end(self):
        """End the tick, then end another tick, in which failed writes of the first tick are reported. Return the
        answers."""
        self.broker.turn()
        self.broker.turn()
        return self.answers()

    def answers(self):
        """Return (error code, base offset) for each append that is answered."""
        parts = [read_answer(request, PRODUCE_VERSION, reply).responses[0].partition_responses[0]
                 for request, connection in zip(self.requests, self.connections, strict=True)
                 for reply in connection.replies]
        return [(part.error_code, part.base_offset) for part in parts]

    def fetched(self):
        """Fetch from offset 0. Return the error code, the high watermark, and the last offset if any records were
        read."""
        wanted = {'partition': 0, 'fetch_offset': 0, 'partition_max_bytes': 1 << 20}
        request = build('FetchRequest', max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, session_epoch=-1,
                        topics=[{'topic': 'orders', 'partitions': [wanted]}])
        connection = self.broker.connect()
        self.broker.serve(connection, frame_of(request, FETCH_VERSION))
        part, = read_answer(request, FETCH_VERSION, connection.replies[0]).responses[0].partitions
        last = [header.last_offset for header, _ in iter_batches(part.records)][-1:]
        return part.error_code, part.high_watermark, *last


@pytest.fixture(params=['page-cache', 'disk'])
def durability(request):
    return request.param


@pytest.fixture
def tick(tmp_path, durability):
    tick = Tick(tmp_path, durability)
    yield tick
    tick.broker.crash()


def log_end_after_a_restart(tick, tmp_path):
    tick.broker.crash()
    with InProcessBroker(tmp_path) as broker:
        return broker.topics.get('orders', 0).log_end_offset


def test_what_is_adopted_and_unwritten_is_not_acknowledged(tick):
    assert (tick.partition.log_end_offset, tick.partition.high_watermark, tick.fs.writes) == (4, 2, 0)
    assert tick.answers() == []


def test_what_is_adopted_and_unwritten_is_not_read(tick):
    assert tick.fetched() == (0, 2, 1)
    assert tick.fs.writes == 1, 'a reader looks into the file, so that everything must be in it'
    assert tick.partition.high_watermark == 2 and tick.answers() == []


def test_a_later_record_is_in_the_same_write_behind_the_one_it_depends_on(tick):
    tick.disk.release()
    assert tick.end() == [(0, 2), (0, 3), (0, 2)]
    assert tick.fs.writes == 1
    assert tick.fetched() == (0, 4, 3)
    sequences = [header.base_sequence for header, _ in tick.partition.batches()]
    assert sequences == [0, 1, 2, 3]


@pytest.mark.parametrize('partial_bytes', [0, 100])
def test_a_failed_write_refuses_all_that_it_held(tick, tmp_path, partial_bytes):
    tick.fs.code, tick.fs.partial_bytes = errno.EIO, partial_bytes
    assert tick.end() == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)] * 3
    assert tick.fetched()[:1] == (ErrorCode.KAFKA_STORAGE_ERROR,)
    assert log_end_after_a_restart(tick, tmp_path) == 2


@pytest.mark.parametrize('partial_bytes', [0, 100])
def test_a_write_that_fails_for_a_reader_refuses_all_that_it_held(tick, tmp_path, partial_bytes):
    tick.fs.code, tick.fs.partial_bytes = errno.EIO, partial_bytes
    assert tick.fetched()[:1] == (ErrorCode.KAFKA_STORAGE_ERROR,)
    assert tick.end() == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)] * 3
    assert log_end_after_a_restart(tick, tmp_path) == 2


@pytest.mark.parametrize('durability', ['disk'])
def test_what_is_written_and_unsynced_is_neither_acknowledged_nor_read(tick):
    assert tick.end() == [] and tick.fs.writes == 1
    assert tick.fetched() == (0, 2, 1)
    tick.disk.finish()
    assert tick.answers() == [(0, 2), (0, 3), (0, 2)]
    assert tick.fetched() == (0, 4, 3)


@pytest.mark.parametrize('durability', ['disk'])
def test_a_failed_sync_refuses_all_that_it_covered(tick):
    assert tick.end() == []
    tick.disk.finish(OSError(errno.EIO, 'Input/output error'))
    assert tick.end() == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)] * 3
    assert tick.fetched()[:1] == (ErrorCode.KAFKA_STORAGE_ERROR,)

"""Searches of a log for a timestamp, while the log changes. Short searches run on the event loop. Long searches run on
a worker, one at a time.
"""
from __future__ import annotations

import pytest
from batches import T, data_batch
from support.worlds.stepwise_work import StepwiseWork

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.log.append import Origin
from kbroker.log.fs import FileSystem, InterposedFile
from kbroker.log.timestamps import Searches
from kbroker.record.batch import encode_batch
from kbroker.record.compression import Compression


class HeldWorker:
    """A worker that runs a job when the test calls `run`."""

    def __init__(self):
        self.jobs = []

    def submit(self, job, done):
        self.jobs.append((job, done))

    def run(self):
        """Run the oldest job, and pass its result to the job's `done`."""
        job, done = self.jobs.pop(0)
        try:
            result = job()
        except Exception as error:
            result = error
        done(result)


class Search:
    """A search in progress, and its result when it has ended."""

    def __init__(self, work, steps):
        self.error = self.found = None
        self.is_over = False
        work.start(steps, self._done)

    def _done(self, error, found):
        self.is_over, self.error, self.found = True, error, found


@pytest.fixture
def worker():
    return HeldWorker()


@pytest.fixture
def searches(worker):
    return Searches(worker.submit)


@pytest.fixture
def work():
    return StepwiseWork()


@pytest.fixture
def begin(work, searches):
    """Return a function that begins a search of a log and returns a Search."""

    def begin(log, timestamp_ms):
        search = Search(work, log.offset_for_timestamp(timestamp_ms, searches))
        work.finish()
        return search

    return begin


@pytest.fixture
def run(worker, work):
    """Return a function that runs the worker's oldest job, and then the long work on the event loop."""

    def run():
        worker.run()
        work.finish()

    return run


def append(log, *timestamps, compression=Compression.GZIP):
    log.append_batch(encode_batch([(timestamp_ms, b'key', b'value') for timestamp_ms in timestamps],
                                  compression=compression), Origin.CLIENT, 0)


def test_a_small_batch_is_searched_at_once(open_log, begin, worker):
    log = open_log()
    append(log, T, T + 5, compression=Compression.NONE)
    assert begin(log, T + 1).found == (T + 5, 1, 0)
    assert begin(log, T + 6).is_over and not worker.jobs


@pytest.mark.parametrize('batch', [
    encode_batch([(T, b'k', b'v'), (T + 5, b'k', b'v')], compression=Compression.GZIP),
    encode_batch([(T, b'k', bytes(20_000)), (T + 5, b'k', b'v')])], ids=['compressed', 'long'])
def test_any_other_batch_is_searched_by_a_worker(open_log, begin, worker, run, batch):
    log = open_log()
    log.append_batch(bytearray(batch), Origin.CLIENT, 0)
    search = begin(log, T + 1)
    assert not search.is_over and len(worker.jobs) == 1
    run()
    assert search.found == (T + 5, 1, 0)


def test_many_headers_are_read_by_a_worker(open_log, begin, worker, run):
    log = open_log(index_interval_bytes=1_000_000)
    for number in range(200):
        append(log, T - number, compression=Compression.NONE)
    append(log, T + 1, compression=Compression.NONE)
    search = begin(log, T + 1)
    assert not search.is_over
    run()
    assert search.found == (T + 1, 200, 0)


def test_the_greatest_timestamp_is_searched_by_a_worker_too(open_log, work, searches, run):
    log = open_log()
    append(log, T, T + 9, T + 3)
    append(log, T + 5)
    search = Search(work, log.max_timestamp(searches))
    assert not search.is_over
    run()
    assert search.found == (T + 9, 1, 0)


def test_one_search_at_a_time_in_the_order_of_arrival(open_log, begin, worker, run, searches):
    """Only one search may run at a time, because each running search uses an open file and the memory of a codec."""
    log = open_log()
    append(log, T, T + 5)
    several = [begin(log, T + 1) for _ in range(3)]
    for number in range(3):
        assert [search.is_over for search in several] == [True] * number + [False] * (3 - number)
        assert (len(worker.jobs), len(searches)) == (1, 3 - number)
        run()
    assert {search.found for search in several} == {(T + 5, 1, 0)}
    assert len(searches) == 0 and begin(log, T + 6).is_over


def test_a_segment_that_rolls_is_searched_to_its_end(open_log, begin, run):
    log = open_log()
    append(log, T, T + 5)
    search = begin(log, T + 1)
    log.roll()
    append(log, T + 9)
    run()
    assert search.found == (T + 5, 1, 0)


def test_a_segment_that_is_deleted_is_left_for_the_next_one(open_log, begin, run):
    log = open_log(retention_ms=-1)
    append(log, T, T + 5)
    log.roll()
    append(log, T + 9)
    search = begin(log, T + 1)
    log.delete_records(2)
    log.apply_retention(3)
    run()
    assert not search.is_over, 'what is found was deleted, so the search goes on'
    run()
    assert search.found == (T + 9, 2, 0)


def test_records_that_are_deleted_meanwhile_are_not_found(open_log, begin, run):
    log = open_log()
    append(log, T, T + 5, T + 7)
    search = begin(log, T + 1)
    log.delete_records(2)
    run()
    run()
    assert search.found == (T + 7, 2, 0)


def test_a_search_does_not_chase_a_producer(open_log, begin, run):
    """A search for a timestamp that no record has ends, although a producer appends to the log during the search."""
    log = open_log(index_interval_bytes=1_000_000)
    append(log, T + 5, T + 4)
    log.delete_records(1)
    search = begin(log, T + 5)
    append(log, T + 1)
    run()
    assert search.is_over and search.found is None


def test_a_log_that_goes_offline_ends_the_search(open_log, begin, run, worker, searches):
    log = open_log()
    append(log, T, T + 5)
    first, second = begin(log, T + 1), begin(log, T + 1)
    log.take_offline(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, 'the disk is gone'))
    run()
    assert first.found == (T + 5, 1, 0), 'it was read before'
    assert second.error.code is ErrorCode.KAFKA_STORAGE_ERROR and not worker.jobs and len(searches) == 0


def test_bytes_that_do_not_decompress_end_the_search(open_log, begin, run, searches):
    log = open_log()
    batch = encode_batch([(T, b'k', b'v'), (T + 5, b'k', b'v')], compression=Compression.GZIP)
    batch[70:] = bytes(len(batch) - 70)
    log.append_batch(batch, Origin.CLIENT, 0)
    search = begin(log, T + 1)
    run()
    assert search.error.code is ErrorCode.CORRUPT_MESSAGE and len(searches) == 0
    assert log.failure is None, 'bytes that are no batch do not take the log offline'


class ColdFile(InterposedFile):
    """A file that has no pages in the page cache."""

    def cached_bytes(self, size, position):
        return 0


class ColdFileSystem(FileSystem):
    def open(self, path, create=False):
        return ColdFile(path, create)


def test_what_is_not_in_the_page_cache_is_read_by_a_worker(open_log, begin, worker, run):
    log = open_log(file_system=ColdFileSystem())
    append(log, T, T + 5, compression=Compression.NONE)
    search = begin(log, T + 1)
    assert not search.is_over and len(worker.jobs) == 1
    run()
    assert search.found == (T + 5, 1, 0)


def test_the_position_of_a_search_is_found_in_an_index(open_log, begin):
    """The event loop reads at most 64 headers of batches. This is enough, because the index leads to a position close
    to the record.
    """
    log = open_log(index_interval_bytes=1)
    for number in range(1000):
        append(log, T + number, compression=Compression.NONE)
    assert begin(log, T + 900).found == (T + 900, 900, 0)


def test_a_search_reads_a_batch_that_fills_the_file(open_log, begin, run):
    log = open_log()
    log.append_batch(data_batch(5000, value=bytes(100)), Origin.CLIENT, 0)
    search = begin(log, T + 4999)
    run()
    assert search.found == (T + 4999, 4999, 0)

"""Readers that continue where their last slice ended, and the shortcuts that make these reads fast."""
import random

import pytest
from batches import data_batch

from kbroker.log.append import Origin
from kbroker.log.fs import FileSystem, InterposedFile
from kbroker.log.segments import LogSlice
from kbroker.record.batch import iter_batches

BATCHES = 300


class ColdFile(InterposedFile):
    """A file that has no pages in the page cache while `is_cold` of its file system is True."""

    def __init__(self, fs, path, create):
        super().__init__(path, create)
        self.fs = fs

    def cached_bytes(self, size, position):
        return 0 if self.fs.is_cold else size


class ColdFileSystem(FileSystem):
    is_cold = False

    def open(self, path, create=False):
        return ColdFile(self, path, create)


def batch(number):
    return data_batch(1 + number % 5, value=b'v' * (number * 37 % 400))


@pytest.fixture
def long_log(open_log):
    """Return a function that opens a log with many batches. Its segments have not yet remembered the end of a slice."""
    def long_log(**options):
        log = open_log(segment_bytes=50_000, **options)
        for number in range(BATCHES):
            log.append_batch(batch(number), Origin.CLIENT, 0)
        log.close()
        return open_log(segment_bytes=50_000, **options)

    return long_log


def read_on(log, offset, max_bytes):
    """Read a slice. Return a list of (base offset, last offset, bytes) of its batches, and the next offset to read."""
    piece = log.read(offset, max_bytes, log.log_end_offset, True)
    found = [(header.base_offset, header.last_offset, bytes(data)) for header, data in iter_batches(piece.read())]
    assert sum(len(data) for _, _, data in found) == piece.size_bytes, 'the slice ends within a batch'
    assert found[0][1] >= offset and found[-1][1] < piece.end_offset
    return found, found[-1][1] + 1


def everything(log):
    return [(header.base_offset, header.last_offset, bytes(data)) for header, data in log.batches()]


def test_readers_that_go_on_side_by_side_find_every_batch_once(long_log):
    rng = random.Random(3)
    log = long_log()
    readers = [(max_bytes, [], 0) for max_bytes in (1, 700, 5000, 5001, 20_000, 1 << 20)]
    expected = everything(log)
    while readers:
        max_bytes, found, offset = readers.pop(rng.randrange(len(readers)))
        more, offset = read_on(log, offset, max_bytes)
        found += more
        if offset < log.log_end_offset:
            readers.append((max_bytes, found, offset))
        else:
            assert found == expected


def test_who_reads_on_behind_the_end_finds_what_was_appended_there(long_log):
    log = long_log()
    _, end_offset = read_on(log, log.log_end_offset - 1, 1)
    for number in range(80):
        log.append_batch(batch(number), Origin.CLIENT, 0)
    assert read_on(log, end_offset, 1)[0] == [each for each in everything(log) if each[0] == end_offset]


@pytest.mark.parametrize('max_bytes', [1, 700, 5000, 20_000])
def test_the_end_of_a_slice_is_not_waited_for(long_log, max_bytes):
    """In an earlier version, the event loop read the batch header behind the slice. In a cold segment, this header is
    not in the page cache, so the loop waited for the disk."""
    fs = ColdFileSystem()
    log = long_log(file_system=fs)
    expected = everything(log)
    fs.is_cold = True
    found, offset = [], 0
    while offset < log.log_end_offset:
        more, offset = read_on(log, offset, max_bytes)
        assert len(more) == 1 or sum(len(data) for _, _, data in more) <= max_bytes
        found += more
    assert found == expected


def test_a_cold_end_costs_a_slice_no_more_than_an_index_interval(long_log):
    fs = ColdFileSystem()
    log = long_log(file_system=fs)
    warm = log.read(0, 30_000, log.log_end_offset, True)
    fs.is_cold = True
    cold = log.read(0, 30_000, log.log_end_offset, True)
    assert 0 < warm.size_bytes - cold.size_bytes < log.config.index_interval_bytes + 1000


def test_a_slice_cannot_be_constructed_from_python():
    """In an earlier version, the constructor accepted any arguments and returned a slice without a file."""
    with pytest.raises(TypeError):
        LogSlice('file', 0, 100)
    with pytest.raises(TypeError):
        LogSlice()

"""Reads that never wait for the disk, and reads that bring missing pages into the page cache."""
import mmap
import os

import pytest

from kbroker.log.fs import File, InterposedFile, ReadOnlyFile

DATA = bytes(range(256)) * 4096


@pytest.fixture
def path(tmp_path):
    path = tmp_path / 'file'
    path.write_bytes(DATA)
    return str(path)


class PartlyCold(InterposedFile):
    """A file whose first `warm_bytes` are in the page cache."""

    warm_bytes = 0

    def cached_bytes(self, size, position):
        return max(0, min(size, self.warm_bytes - position))


def test_what_is_cached_is_read_whole(path):
    assert File(path).read_cached_at(1000, 5000) == DATA[5000:6000]


def test_behind_the_end_there_is_nothing(path):
    file = File(path)
    assert file.read_cached_at(100, len(DATA) - 10) == DATA[-10:]
    assert file.read_cached_at(100, len(DATA)) == b''


def test_a_cold_part_ends_the_read_where_it_begins(path):
    file = PartlyCold(path)
    assert file.read_cached_at(1000, 0) == b''
    file.warm_bytes = 600
    assert file.read_cached_at(1000, 0) == DATA[:600]
    assert file.read_at(1000, 0) == DATA[:1000], 'a read that may wait returns all bytes'


def test_pages_that_were_dropped_are_cold_or_read_and_warm_again_afterwards(path):
    file = File(path)
    file.sync()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    # Some file systems, for example tmpfs, cannot drop pages from the cache. The read may return bytes of the file, but
    # no other bytes.
    assert DATA.startswith(file.read_cached_at(len(DATA), 0))
    file.warm(len(DATA), 0)
    assert file.read_cached_at(len(DATA), 0) == DATA


def test_warming_stops_at_the_end_of_the_file(path):
    File(path).warm(10 * len(DATA), mmap.PAGESIZE)


def test_a_file_system_that_cannot_tell_what_is_cached_is_asked_once():
    """In an earlier version, each read repeated a system call that the file system refuses."""
    file = ReadOnlyFile('/proc/self/limits')
    assert not file.always_waits
    limits = file.read_at(10_000, 0)
    assert limits and file.read_cached_at(10_000, 0) == limits
    assert file.always_waits
    assert file.read_cached_at(10_000, 0) == limits

"""The number of files that logs keep open, and the behaviour when no file descriptor is left."""
import errno
import gc
import os
from types import SimpleNamespace

import pytest
from batches import data_batch, marker_batch

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.log.append import Origin
from kbroker.log.fs import FileSystem, shared_open_files
from kbroker.log.shortage import SILENCE_MS, shortage


class ShortFileSystem(FileSystem):
    """A file system that has no free descriptor while `is_short` is True. Files with a suffix in `spared` can always be
    opened.
    """

    is_short = False
    spared: tuple[str, ...] = ()

    def check(self, path):
        if self.is_short and not path.endswith(self.spared or ('\0',)):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    def open(self, path, create=False):
        self.check(path)
        return super().open(path, create)

    def open_directory(self, path):
        self.check(path)
        return super().open_directory(path)


@pytest.fixture
def open_files():
    """Return an object that limits the open files of this process. `allow(room)` sets the limit to `room` more files
    than are open now.
    """
    files = shared_open_files()
    limit = files.limit
    gc.collect()
    files.release(len(files))
    yield SimpleNamespace(allow=lambda room: setattr(files, 'limit', len(files) + room),
                          are_within_limit=lambda: len(files) <= files.limit)
    files.limit = limit


def open_logs(open_log, count, **arguments):
    return [open_log(name=f'topic-{number}', **arguments) for number in range(count)]


def descriptors_below(path):
    links = (f'/proc/self/fd/{number}' for number in os.listdir('/proc/self/fd'))
    return [os.readlink(link) for link in links if os.path.islink(link) and os.readlink(link).startswith(str(path))]


def test_logs_keep_no_more_files_open_than_the_limit(open_log, open_files, tmp_path):
    open_files.allow(3)
    logs = open_logs(open_log, 10)
    for sent in range(3):
        for log in logs:
            assert log.append_batch(data_batch(), Origin.CLIENT, 0).base_offset == sent
            log.flush()
            assert open_files.are_within_limit()
    for log in logs:
        assert len(list(log.batches())) == 3
        assert open_files.are_within_limit()
    assert len(descriptors_below(tmp_path)) < 10


def test_what_is_used_stays_open_and_what_is_idle_goes(open_log, open_files, tmp_path):
    """The clock algorithm may close the busy file once. If files were closed in turn, the busy file would be closed
    every fourth time.
    """
    open_files.allow(4)
    closed = 0
    busy, *idle = open_logs(open_log, 20)
    for log in idle:
        busy.append_batch(data_batch(), Origin.CLIENT, 0)
        busy.flush()
        log.append_batch(data_batch(), Origin.CLIENT, 0)
        log.flush()
        closed += not any(path.startswith(busy.directory) for path in descriptors_below(tmp_path))
    assert closed <= 1


def test_a_file_is_not_closed_while_its_sync_is_awaited(open_log, open_files, tmp_path):
    """The kernel reports a failed background write on the descriptors that are open at the time of the failure. It may
    not report it on a descriptor that is opened later.
    """
    open_files.allow(2)
    logs = open_logs(open_log, 5)
    for log in logs:
        log.append_batch(data_batch(), Origin.CLIENT, 0)
    assert len(descriptors_below(tmp_path)) == 5
    logs[0].awaits_sync = False     # as with `kbroker.durability=page-cache`
    for log in logs:
        log.flush()
    open_logs(open_log, 1)[0].append_batch(data_batch(), Origin.CLIENT, 0)
    assert len(descriptors_below(tmp_path)) < 5
    assert open_files.are_within_limit()


def test_a_log_that_was_only_opened_holds_no_descriptor(open_log, tmp_path):
    log = open_log()
    log.append_batch(data_batch(), Origin.CLIENT, 0)
    log.close()
    for clean in (True, False):
        log = open_log(clean_shutdown=clean)
        assert log.log_end_offset == 1 and descriptors_below(log.directory) == []


def test_a_log_that_is_gone_leaves_its_place(open_log, open_files, tmp_path):
    before = len(shared_open_files())
    logs = open_logs(open_log, 5)
    for log in logs:
        log.append_batch(data_batch(), Origin.CLIENT, 0)
    del logs, log
    assert descriptors_below(tmp_path) == []
    assert len(shared_open_files()) == before


@pytest.fixture
def short(caplog, clock):
    clock.advance(SILENCE_MS * 1_000_000)       # so that warnings of other tests are long past
    shortage.__init__()
    return ShortFileSystem()


def test_without_a_descriptor_the_append_is_refused_and_the_log_stays_online(open_log, short, caplog):
    """In an earlier version, a lack of file descriptors took the whole log directory offline, although the disk
    worked."""
    log = open_log(file_system=short)
    log.append_batch(data_batch(producer_id=1, epoch=0, sequence=0), Origin.CLIENT, 0)
    log.segments[0].close_file()
    short.is_short = True
    for _ in range(3):
        with pytest.raises(KafkaError) as raised:
            log.append_batch(data_batch(producer_id=1, epoch=0, sequence=1), Origin.CLIENT, 0)
        assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR and log.failure is None
    assert caplog.text.count('Too many open files') == 1
    short.is_short = False
    assert log.append_batch(data_batch(producer_id=1, epoch=0, sequence=1), Origin.CLIENT, 0).base_offset == 1
    assert len(list(log.batches())) == 2


def test_without_a_descriptor_a_read_is_refused_and_the_log_stays_online(open_log, short):
    log = open_log(file_system=short)
    log.append_batch(data_batch(), Origin.CLIENT, 0)
    log.segments[0].close_file()
    short.is_short = True
    with pytest.raises(KafkaError) as raised:
        log.read(0, 1000, 1, True)
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR and log.failure is None
    short.is_short = False
    assert log.read(0, 1000, 1, True).read()


def test_a_marker_whose_row_finds_no_descriptor_is_taken_back(open_log, short):
    log = open_log(file_system=short)
    log.append_batch(data_batch(producer_id=1, epoch=0, sequence=0, transactional=True), Origin.CLIENT, 0)
    size_bytes = os.path.getsize(log.segments[0].path('.log'))
    short.is_short = True
    with pytest.raises(KafkaError):
        log.append_batch(marker_batch(commit=False, producer_id=1, epoch=0), Origin.COORDINATOR, 0)
    assert log.failure is None and log.log_end_offset == 1 and log.first_unstable_offset() == 0
    assert os.path.getsize(log.segments[0].path('.log')) == size_bytes
    short.is_short = False
    log.append_batch(marker_batch(commit=False, producer_id=1, epoch=0), Origin.COORDINATOR, 0)
    assert log.aborted_transactions(0, 2) == [(1, 0)]


@pytest.mark.parametrize('spared', [(), ('.index',), ('.index', '.timeindex')])
def test_a_roll_that_finds_no_descriptor_is_made_later(open_log, short, spared):
    log = open_log(file_system=short)
    log.append_batch(data_batch(), Origin.CLIENT, 0)
    short.is_short, short.spared = True, spared
    with pytest.raises(KafkaError):
        log.roll()
    assert log.failure is None and len(log.segments) == 1
    short.is_short = False
    log.append_batch(data_batch(), Origin.CLIENT, 0)
    log.roll()
    log.append_batch(data_batch(), Origin.CLIENT, 0)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    log.close()
    again = open_log()
    assert len(list(again.batches())) == 3

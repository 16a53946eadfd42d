"""After a failed sync, the page cache may have bytes that the disk lacks. Recovery rewrites exactly the bytes that may
be missing. Covers promise 1 of docs/design.md.
"""
import errno
import os

import pytest
from batches import data_batch
from support.disk.faulty_file_systems import FailingFileSystem, FreezingFileSystem

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.errors import CorruptLogError, KafkaError
from kbroker.log.append import Origin
from kbroker.log.checkpoints import LEADER_EPOCH_FILE, read_partition_offsets
from kbroker.log.clean_stop import SYNCED_ONE_BY_ONE
from kbroker.log.fs import FileSystem, InterposedFile
from kbroker.log.log import Log
from kbroker.log.manager import LogManager
from kbroker.log.partition_metadata import write_topic_id
from kbroker.log.recovery import LogOptions
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

TOPIC_ID = bytes(range(16))


class WatchedFile(InterposedFile):
    """A file that records the positions of all writes to it."""

    def __init__(self, path, create, writes):
        super().__init__(path, create)
        self.writes = writes

    def on_write(self, data, position):
        self.writes.append((os.path.basename(self.path), position, len(data)))


class WatchedFileSystem(FileSystem):
    def __init__(self):
        self.writes = []

    def open(self, path, create=False):
        return WatchedFile(path, create, self.writes)

    def writes_to_logs(self):
        return [write for write in self.writes if write[0].endswith('.log')]


def append(log, batches=1):
    for _ in range(batches):
        log.append_batch(data_batch(), Origin.CLIENT, 0)


BATCH_BYTES = len(data_batch())


def test_a_later_sync_makes_durable_what_a_failed_one_left_in_memory(open_log, tmp_path):
    root = tmp_path / 'root'
    root.mkdir()

    def fail(change, path):
        if is_broken and change == 'sync' and path.endswith('.log'):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    is_broken = False
    disk = FreezingFileSystem(root, fail)
    log = open_log(file_system=disk, root=root)
    append(log)
    log.flush()
    append(log, 2)
    is_broken = True
    with pytest.raises(KafkaError):
        log.flush()
    is_broken = False
    again = open_log(clean_shutdown=False, file_system=disk, root=root, recovery_point=log.recovery_point)
    assert again.log_end_offset == 3
    append(again)
    again.flush()
    disk.crash(tmp_path / 'left', None)
    assert open_log(clean_shutdown=False, root=tmp_path / 'left').log_end_offset == 4


def test_errors_of_writes_that_a_start_repeats_end_neither_the_start_nor_a_later_flush(open_log, tmp_path):
    """Linux reports the error of an earlier write to the next sync of the file, even if another process made the write.
    """
    root = tmp_path / 'root'
    root.mkdir()
    disk = FreezingFileSystem(root)
    settings = {'file_system': disk, 'root': root, 'index_interval_bytes': 0}
    log = open_log(**settings)
    append(log)
    log.flush()
    append(log, 70)     # more entries than an index keeps in memory
    log.close(clean=False)
    disk.write_back_in_vain()
    again = open_log(clean_shutdown=False, recovery_point=log.recovery_point, **settings)
    append(again)
    again.roll()
    again.flush()
    disk.crash(tmp_path / 'left', None)
    assert open_log(clean_shutdown=False, root=tmp_path / 'left').log_end_offset == 72


@pytest.mark.parametrize('synced, expected', [
    (0, [(0, 4)]), (1, [(0, 4)]), (3, [(2, 2)]), (4, [(3, 1)])])
def test_recovery_writes_again_what_is_above_the_recovery_point(open_log, synced, expected):
    """Recovery also rewrites the last synced batch, because the recovery point is one offset below the flushed offset.
    """
    log = open_log()
    append(log, synced)
    log.flush()
    append(log, 4 - synced)
    log.close(clean=False)
    watched = WatchedFileSystem()
    open_log(clean_shutdown=False, file_system=watched, recovery_point=log.recovery_point)
    assert watched.writes_to_logs() == [('00000000000000000000.log', first * BATCH_BYTES, count * BATCH_BYTES)
                                        for first, count in expected]
    assert LEADER_EPOCH_FILE in {name for name, _, _ in watched.writes}


@pytest.mark.parametrize('recovery_point', [0, 1])
def test_recovery_writes_the_topic_id_again_unless_a_flush_has_synced_it(open_log, fs, recovery_point):
    log = open_log()
    write_topic_id(fs, log.directory, TOPIC_ID)
    append(log, 4)
    log.close(clean=False)
    watched = WatchedFileSystem()
    open_log(clean_shutdown=False, file_system=watched, recovery_point=recovery_point)
    assert ('partition.metadata' in {name for name, _, _ in watched.writes}) == (recovery_point == 0)


def test_recovery_writes_again_each_segment_above_the_recovery_point(open_log):
    log = open_log()
    for _ in range(3):
        append(log, 2)
        log.roll()
    log.close(clean=False)
    watched = WatchedFileSystem()
    open_log(clean_shutdown=False, file_system=watched, recovery_point=3)
    assert watched.writes_to_logs() == [('00000000000000000002.log', BATCH_BYTES, BATCH_BYTES),
                                        ('00000000000000000004.log', 0, 2 * BATCH_BYTES)]


def test_after_a_clean_stop_no_batch_is_written_again(open_log):
    log = open_log()
    append(log, 3)
    log.close()
    watched = WatchedFileSystem()
    open_log(file_system=watched)
    assert watched.writes == []


def test_the_recovery_point_stays_until_the_recovered_bytes_are_synced(open_log, fs, clock, tmp_path):
    """If the recovery point moved before the sync, a checkpoint could say that bytes are synced that are only in
    memory.
    """
    log = open_log()
    append(log)
    log.flush()
    append(log, 3)
    log.close(clean=False)
    again = Log(fs, log.directory, 'topic', 0, LogConfig(Config({}), {}), clock,
                LogOptions(clean_shutdown=False, recovery_point=1, sync_later=True))
    assert (again.log_end_offset, again.flushed_offset, again.recovery_point) == (4, 1, 0)
    again.recovery.rewrite()
    again.finish_recovery(False)
    assert (again.flushed_offset, again.recovery_point) == (4, 3)


@pytest.fixture
def open_manager(tmp_path, clock):
    def opener(fs, **settings):
        config = Config({name.replace('_', '.'): value for name, value in settings.items()})
        return LogManager(fs, str(tmp_path / 'data'), config, clock, Timers(clock))
    return opener


@pytest.mark.parametrize('durability', ['disk', 'page-cache'])
def test_page_cache_durability_leaves_the_end_of_a_log_as_it_is(open_manager, durability):
    """`kbroker.durability=page-cache` promises nothing about a power cut. A sync of the end of each log would only slow
    down every start after a kill.
    """
    manager = open_manager(FileSystem())
    append(manager.create_log('orders', 0, TOPIC_ID, LogConfig(Config({}), {})))
    manager.close(clean=False)
    watched = WatchedFileSystem()
    manager = open_manager(watched, kbroker_durability=durability)
    manager.open_log('orders', 0, TOPIC_ID, LogConfig(Config({}), {}), sync_later=True)
    manager.sync_recovered()
    assert len(watched.writes_to_logs()) == (durability == 'disk')
    manager.close(clean=False)


FEW, MANY = 1, SYNCED_ONE_BY_ONE + 1


@pytest.fixture
def logs_of_partitions():
    return MANY


@pytest.fixture
def killed(tmp_path, logs_of_partitions):
    """Return a disk with logs that have unsynced records, and a function that opens these logs like a start after a
    kill.
    """
    disk = FreezingFileSystem(tmp_path)

    def start(fs):
        manager = LogManager(fs, str(tmp_path / 'data'), Config({}), ManualClock(), Timers(ManualClock()))
        logs = [manager.open_log('orders', partition, TOPIC_ID, LogConfig(Config({}), {'index.interval.bytes': '1'}),
                                 sync_later=True) for partition in range(logs_of_partitions)]
        manager.sync_recovered()
        return manager, logs

    manager, logs = start(disk)
    disk.sync_directory(str(tmp_path))      # the node does it, when it formats the log directory
    for log in logs:
        append(log, 3)
    manager.close(clean=False)
    return disk, start


def ends_after_a_power_cut(disk, tmp_path, partitions=MANY):
    disk.crash(tmp_path / 'left', None)
    manager = LogManager(FileSystem(), str(tmp_path / 'left' / 'data'), Config({}), ManualClock(),
                         Timers(ManualClock()))
    ends = [manager.open_log('orders', partition, TOPIC_ID, LogConfig(Config({}), {})).log_end_offset
            for partition in range(partitions)]
    manager.close(clean=False)
    return ends


@pytest.mark.parametrize('logs_of_partitions', [FEW, MANY])
def test_a_partition_that_was_new_when_the_broker_was_killed_survives_a_power_cut_after_the_next_start(
        killed, tmp_path, logs_of_partitions):
    """A start after a kill shows all recovered records to readers. In an earlier version, it synced their files and not
    the log directory, in which the names of the new partitions were not durable: a power cut took the records back.
    """
    disk, start = killed
    manager, _ = start(disk)
    manager.close(clean=False)
    assert ends_after_a_power_cut(disk, tmp_path, logs_of_partitions) == [3] * logs_of_partitions


def test_an_error_of_earlier_writes_does_not_end_the_start_of_many_logs(killed, tmp_path, caplog):
    """In an earlier version, the sync of the whole file system reported an error of earlier writes, and only a second
    start of the broker succeeded."""
    disk, start = killed
    disk.write_back_in_vain()
    manager, _ = start(disk)
    manager.close(clean=False)
    assert 'It may be an earlier error' in caplog.text
    assert ends_after_a_power_cut(disk, tmp_path) == [3] * MANY


def test_what_the_failed_sync_of_the_whole_file_system_lost_is_written_again(killed, tmp_path, caplog):
    disk, start = killed
    faults = [OSError(errno.EIO, os.strerror(errno.EIO))]

    def fail_once(change, path):
        if change == 'sync' and path == str(tmp_path / 'data') and faults:
            raise faults.pop()

    disk.before_change = fail_once
    manager, _ = start(disk)
    manager.close(clean=False)
    assert 'It may be an earlier error' in caplog.text
    assert ends_after_a_power_cut(disk, tmp_path) == [3] * MANY


def test_a_start_of_many_logs_ends_when_the_disk_keeps_failing(killed, tmp_path):
    disk, start = killed

    def fail(change, path):
        if change == 'sync' and not path.endswith('.lock'):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    disk.before_change = fail
    with pytest.raises(OSError, match='Input/output error'):
        start(disk)


def test_a_start_that_makes_a_missing_partition_forgets_the_offsets_of_an_earlier_topic(open_manager, tmp_path):
    """In an earlier version, a broker was killed after it had created a topic and before it had created the topic's
    directory. The checkpoints still had the offsets of a deleted topic of the same name, and the next start treated the
    new records as deleted."""
    manager = open_manager(FileSystem())
    log = manager.create_log('orders', 0, TOPIC_ID, LogConfig(Config({}), {}))
    append(log, 9)
    log.flush()
    log.delete_records(8)
    for checkpoint in (manager.recovery_points, manager.start_offsets):
        assert checkpoint.write()
    manager.close(clean=False)
    FileSystem().remove_directory(log.directory)
    manager = open_manager(FileSystem())
    manager.open_log('orders', 0, TOPIC_ID[::-1], LogConfig(Config({}), {})).make()
    for name in ('recovery-point-offset-checkpoint', 'log-start-offset-checkpoint', 'replication-offset-checkpoint'):
        assert read_partition_offsets(FileSystem(), str(tmp_path / 'data'), name).get(('orders', 0), 0) == 0
    manager.close(clean=False)


def test_a_start_ends_when_what_it_writes_again_cannot_be_written(open_log):
    log = open_log()
    append(log)
    log.close(clean=False)
    broken = FailingFileSystem(lambda change, path: errno.EIO if change == 'write' and path.endswith('.log') else None)
    with pytest.raises(OSError, match='Input/output error'):
        open_log(clean_shutdown=False, file_system=broken)
    assert open_log(clean_shutdown=False).log_end_offset == 1


@pytest.mark.parametrize('lost_bytes', [1, BATCH_BYTES])
def test_a_start_ends_when_memory_has_lost_what_it_recovered(open_log, fs, clock, lost_bytes):
    """A start reads recovered bytes twice. In between, the kernel may drop pages from the page cache that the disk
    lacks.
    """
    log = open_log()
    append(log, 3)
    log.close(clean=False)
    again = Log(fs, log.directory, 'topic', 0, LogConfig(Config({}), {}), clock,
                LogOptions(clean_shutdown=False, sync_later=True))
    fs.open(log.segments[0].path('.log')).write_at(b'\xff' * lost_bytes, 3 * BATCH_BYTES - lost_bytes)
    with pytest.raises(CorruptLogError, match=f'0.log: found .* at {2 * BATCH_BYTES}, expected'):
        again.recovery.rewrite()
    again.close(clean=False)
    assert open_log(clean_shutdown=False).log_end_offset == 2

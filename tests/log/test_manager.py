"""The manager of a log directory: its lock, the list of partitions, checkpoints, periodic work and the clean stop."""
import errno
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from batches import T, data_batch
from support.disk.faulty_file_systems import FailingFileSystem
from support.disk.held_disk import HeldDisk
from support.runner.attempts import assert_within
from support.worlds.stepwise_work import StepwiseWork

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.errors import ErrorCode, KafkaError, LogDirectoryError
from kbroker.base.long_work import LongWork, run_to_end
from kbroker.log.append import Origin
from kbroker.log.checkpoints import read_partition_offsets
from kbroker.log.directory_names import parse_directory_name
from kbroker.log.fs import FileSystem, sync_inline
from kbroker.log.jobs import run_inline
from kbroker.log.manager import LogManager
from kbroker.log.partition_metadata import read_topic_id
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

SECOND_BROKER = """
import sys
from kbroker.base.clock import Clock, Timers
from kbroker.settings.config import Config
from kbroker.base.errors import LogDirectoryError
from kbroker.log.fs import FileSystem
from kbroker.log.manager import LogManager
try:
    LogManager(FileSystem(), sys.argv[1], Config({}), Clock(), Timers(Clock()))
except LogDirectoryError as error:
    print(error)
"""
TOPIC_ID = bytes(range(16))
CONFIG = Config({})


@pytest.fixture
def clock():
    return ManualClock(T)


@pytest.fixture
def timers(clock):
    return Timers(clock)


@pytest.fixture
def open_manager(tmp_path, clock, timers):
    def opener(fs=None, sync=sync_inline, submit=run_inline, long_work=None) -> LogManager:
        manager = LogManager(fs or FileSystem(), str(tmp_path / 'data'), CONFIG, clock, timers, sync, submit, long_work)
        manager.begin()
        return manager

    return opener


def topic(**settings):
    return LogConfig(CONFIG, {name.replace('_', '.'): str(value) for name, value in settings.items()})


def write_and_flush(log, count=3, leader_epoch=0):
    for _ in range(count):
        log.append_batch(data_batch(), Origin.CLIENT, leader_epoch)
    log.flush()


def test_a_clean_stop_leaves_its_mark_and_the_next_start_takes_it_away(open_manager, tmp_path):
    manager = open_manager()
    assert not manager.clean_shutdown
    write_and_flush(manager.create_log('orders', 0, TOPIC_ID, topic()))
    manager.close(broker_epoch=14)
    mark = tmp_path / 'data' / '.kafka_cleanshutdown'
    assert mark.read_bytes() == b'{"version":0,"brokerEpoch":14}'
    assert (tmp_path / 'data' / 'recovery-point-offset-checkpoint').read_bytes() == b'0\n1\norders 0 3\n'
    assert (tmp_path / 'data' / 'replication-offset-checkpoint').read_bytes() == b'0\n1\norders 0 3\n'
    assert (tmp_path / 'data' / 'log-start-offset-checkpoint').read_bytes() == b'0\n0\n'
    again = open_manager()
    assert (again.clean_shutdown, again.previous_broker_epoch, again.found) == (True, 14, {('orders', 0)})
    assert not mark.exists()
    assert again.open_log('orders', 0, TOPIC_ID, topic()).log_end_offset == 3


@pytest.mark.parametrize('content', [b'', b'{', b'[]', b'{"version":0}'])
def test_a_mark_that_says_nothing_still_is_one(open_manager, tmp_path, content):
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data' / '.kafka_cleanshutdown').write_bytes(content)
    manager = open_manager()
    assert (manager.clean_shutdown, manager.previous_broker_epoch) == (True, -1)


def test_a_second_broker_is_refused(open_manager, tmp_path):
    manager = open_manager()
    result = subprocess.run([sys.executable, '-c', SECOND_BROKER, str(tmp_path / 'data')], capture_output=True,
                            text=True, check=True)
    assert 'is locked: another broker' in result.stdout
    manager.close()


def test_a_stopped_broker_gives_the_lock_back(open_manager):
    open_manager().close()
    open_manager()


@pytest.mark.parametrize('name', ['junk', '.kbroker', 'no-number', 'a b-0', 'x' * 250 + '-0'])
def test_an_unknown_directory_is_refused_by_name(open_manager, tmp_path, name):
    (tmp_path / 'data' / name).mkdir(parents=True)
    with pytest.raises(LogDirectoryError, match='not named <topic>-<partition>'):
        open_manager()
    (tmp_path / 'data' / name).rmdir()
    open_manager()


def test_unknown_files_and_the_metadata_log_are_left_alone(open_manager, tmp_path):
    (tmp_path / 'data' / '__cluster_metadata-0').mkdir(parents=True)
    (tmp_path / 'data' / 'kbroker.json').write_text('{}')
    assert open_manager().found == set()


def test_directory_names_are_split_at_the_last_dash():
    assert parse_directory_name('a-b-12') == ('a-b', 12, '')
    assert parse_directory_name(f'a-b-12.{"0" * 32}-delete') == ('a-b', 12, 'delete')
    assert parse_directory_name(f't-0.{"0" * 32}-stray') == ('t', 0, 'stray')
    assert parse_directory_name('t-0-future') is None


def test_a_deleted_partition_is_renamed_at_once_and_removed_after_the_delay(open_manager, tmp_path, clock, timers):
    manager = open_manager()
    log = manager.create_log('orders', 0, TOPIC_ID, topic(file_delete_delay_ms=1000))
    write_and_flush(log)
    piece = log.read(0, 1000, 3, True)
    run_to_end(manager.delete_logs([('orders', 0)]))
    renamed = [name for name in os.listdir(tmp_path / 'data') if name.endswith('-delete')]
    assert len(renamed) == 1 and renamed[0].startswith('orders-0.') and not manager.logs
    clock.advance(999)
    timers.run_due()
    assert (tmp_path / 'data' / renamed[0]).exists()
    clock.advance(1)
    timers.run_due()
    assert not (tmp_path / 'data' / renamed[0]).exists()
    assert len(piece.read()) == piece.size_bytes
    assert manager.create_log('orders', 0, bytes(16)[:15] + b'\1', topic()).log_end_offset == 0


def test_a_deleted_partition_leaves_nothing_in_memory(open_manager):
    manager = open_manager()
    write_and_flush(manager.create_log('orders', 0, TOPIC_ID, topic()))
    run_to_end(manager.delete_logs([('orders', 0)]))
    assert [name for name, value in vars(manager).items()
            if isinstance(value, dict | set) and ('orders', 0) in value] == []


def test_what_was_to_be_deleted_is_deleted_after_a_restart(open_manager, tmp_path, clock, timers):
    doomed = tmp_path / 'data' / f'orders-0.{"a" * 32}-delete'
    kept = tmp_path / 'data' / f'orders-1.{"a" * 32}-stray'
    doomed.mkdir(parents=True)
    kept.mkdir()
    (doomed / 'x').write_bytes(b'')
    assert open_manager().found == set()
    clock.advance(60_000)
    timers.run_due()
    assert not doomed.exists() and kept.exists()


def test_a_long_topic_name_is_cut_when_its_partition_is_deleted(open_manager, tmp_path):
    manager = open_manager()
    manager.create_log('t' * 249, 7, TOPIC_ID, topic())
    run_to_end(manager.delete_logs([('t' * 249, 7)]))
    name, = (name for name in os.listdir(tmp_path / 'data') if name.endswith('-delete'))
    assert len(name) == 255 and parse_directory_name(name).partition == 7


def test_another_topic_of_the_same_name_is_distinguished_by_its_id(open_manager, tmp_path):
    manager = open_manager()
    write_and_flush(manager.create_log('orders', 0, TOPIC_ID, topic()))
    manager.close()
    again = open_manager()
    with pytest.raises(KafkaError) as raised:
        again.open_log('orders', 0, TOPIC_ID[::-1], topic())
    assert raised.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    path = again.set_aside('orders', 0)
    assert path.endswith('-stray') and read_topic_id(FileSystem(), path) == TOPIC_ID
    assert again.create_log('orders', 0, TOPIC_ID[::-1], topic()).log_end_offset == 0


@pytest.mark.parametrize('length', [0, 1, 15, 21, 22, 42])
def test_torn_partition_metadata_counts_as_none(tmp_path, length):
    """In an earlier version, a power cut before the first flush of a new partition left half of the topic id, and the
    broker did not start."""
    whole = b'version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw'
    for content in (whole[:length], whole[:length] + bytes(43 - length)):
        (tmp_path / 'partition.metadata').write_bytes(content)
        assert read_topic_id(FileSystem(), str(tmp_path)) is None


def test_partition_metadata_is_kafkas_to_the_byte(open_manager, tmp_path):
    open_manager().create_log('orders', 0, TOPIC_ID, topic())
    path = tmp_path / 'data' / 'orders-0' / 'partition.metadata'
    assert path.read_bytes() == b'version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw'


def test_checkpoints_are_written_at_their_intervals(open_manager, tmp_path, clock, timers):
    manager = open_manager()
    manager.start()
    log = manager.create_log('orders', 0, TOPIC_ID, topic())
    write_and_flush(log)
    log.append_batch(data_batch(), Origin.CLIENT, 0)
    log.delete_records(2)
    clock.advance(60_000)
    timers.run_due()
    assert (tmp_path / 'data' / 'recovery-point-offset-checkpoint').read_bytes() == b'0\n1\norders 0 2\n'
    assert (tmp_path / 'data' / 'log-start-offset-checkpoint').read_bytes() == b'0\n1\norders 0 2\n'
    assert (tmp_path / 'data' / 'replication-offset-checkpoint').read_bytes() == b'0\n1\norders 0 3\n'
    manager.close(clean=False)
    again = open_manager().open_log('orders', 0, TOPIC_ID, topic())
    assert (again.log_start_offset, again.log_end_offset) == (2, 4)


def high_watermarks_in(tmp_path):
    path = tmp_path / 'data' / 'replication-offset-checkpoint'
    return path.read_text() if path.exists() else None


def test_no_request_waits_for_the_sync_of_a_periodic_checkpoint(open_manager, tmp_path, clock, timers):
    """In an earlier version, on a busy disk, the sync of a checkpoint blocked the event loop for tens of milliseconds
    every five seconds."""
    disk = HeldDisk(is_held=True)
    manager = open_manager(sync=disk.sync)
    log = manager.create_log('orders', 0, TOPIC_ID, topic())
    manager.start()
    write_and_flush(log)
    for _ in range(2):
        clock.advance(5_000)
        timers.run_due()
        assert len(disk.jobs) == 1 and high_watermarks_in(tmp_path) is None
    disk.finish_all()
    assert high_watermarks_in(tmp_path) == '0\n1\norders 0 3\n'
    clock.advance(5_000)
    timers.run_due()
    assert not disk.jobs       # because the checkpoint already has these offsets
    write_and_flush(log)
    clock.advance(5_000)
    timers.run_due()
    manager.close()
    disk.finish_all()
    assert high_watermarks_in(tmp_path) == '0\n1\norders 0 6\n'
    assert not list((tmp_path / 'data').glob('*.tmp'))


@pytest.mark.parametrize('steps', [0, 1])
def test_a_checkpoint_in_progress_omits_a_topic_that_is_deleted_before_its_end(
        open_manager, tmp_path, clock, timers, steps):
    """If a checkpoint had the deleted topic, the recovery of a new topic of the same name would begin at the old
    topic's end offset. A checkpoint is synced in two steps, and has its final name after the first step.
    """
    disk = HeldDisk(is_held=True)
    manager = open_manager(sync=disk.sync)
    manager.create_log('kept', 0, TOPIC_ID, topic())
    deleted = manager.create_log('orders', 0, TOPIC_ID, topic())
    manager.recovery_points.write()
    write_and_flush(deleted)
    deleted.roll()
    deleted.flush()
    manager.start()
    clock.advance(60_000)
    timers.run_due()
    for _ in range(steps):
        disk.finish()
    LongWork(timers).start(manager.delete_logs([('orders', 0)]))
    timers.run_due()
    manager.create_log('orders', 0, TOPIC_ID[::-1], topic()).make()
    disk.finish_all()
    recovery_points = (tmp_path / 'data' / 'recovery-point-offset-checkpoint').read_text()
    assert recovery_points == '0\n2\nkept 0 0\norders 0 0\n'


def test_a_checkpoint_that_cannot_be_synced_takes_the_directory_offline(open_manager, clock, timers):
    disk = HeldDisk(is_held=True)
    manager = open_manager(sync=disk.sync)
    write_and_flush(manager.create_log('orders', 0, TOPIC_ID, topic()))
    manager.start()
    clock.advance(5_000)
    timers.run_due()
    assert len(disk.jobs) == 1
    disk.finish(OSError(5, 'Input/output error'))
    assert 'replication-offset-checkpoint' in str(manager.failure)


def test_retention_of_many_logs_yields_after_each(open_manager, clock, timers):
    """In an earlier version, when segments of ten thousand partitions expired together, the broker served no request
    for seconds."""
    long_work = StepwiseWork()
    manager = open_manager(long_work=long_work)
    logs = [manager.create_log('orders', number, TOPIC_ID, topic(retention_ms=1000)) for number in range(10)]
    long_work.finish()
    for log in logs:
        write_and_flush(log)
        log.roll()
    clock.advance(2000)

    def left():
        return sum(log.log_start_offset == 0 for log in logs)

    for _ in range(2):      # the second call does nothing while the first run lasts
        manager.apply_retention()
        assert (left(), len(long_work)) == (9, 1)
    logs[-1].close(clean=False)
    for number in reversed(range(1, 9)):
        long_work.step()
        assert left() == number
    long_work.finish()
    assert left() == 1
    manager.apply_retention()       # now a second run begins
    assert len(long_work) == 1


def test_files_are_removed_by_jobs_and_not_on_the_loop(open_manager, tmp_path, clock, timers):
    """The kernel takes up to 100 ms to remove one large file, which would block the event loop."""
    jobs = []
    manager = open_manager(submit=lambda job, done: jobs.append((job, done)))
    logs = [manager.create_log('orders', number, TOPIC_ID, topic(retention_ms=1000)) for number in range(40)]
    write_and_flush(logs[0])
    logs[0].roll()
    for log in logs[1:]:
        log.make()
    clock.advance(2000)
    manager.apply_retention()
    run_to_end(manager.delete_logs([('orders', number) for number in range(1, 40)]))
    clock.advance(60_000)
    timers.run_due()
    doomed = {*(tmp_path / 'data').glob('orders-0/*.deleted'), *(tmp_path / 'data').glob('*-delete')}
    assert len(doomed) == 42 and all(path.exists() for path in doomed)
    while jobs:
        run_inline(*jobs.pop(0))
        clock.advance(1)
        timers.run_due()
    assert not any(path.exists() for path in doomed)


def test_a_stop_begins_no_removal_any_more(open_manager, tmp_path, clock, timers):
    jobs = []
    manager = open_manager(submit=lambda job, done: jobs.append((job, done)))
    manager.create_log('orders', 0, TOPIC_ID, topic()).make()
    run_to_end(manager.delete_logs([('orders', 0)]))
    manager.end_background_work()
    clock.advance(60_000)
    timers.run_due()
    assert not jobs and list((tmp_path / 'data').glob('*-delete'))


def test_a_damaged_checkpoint_means_full_recovery(open_manager, tmp_path):
    manager = open_manager()
    write_and_flush(manager.create_log('orders', 0, TOPIC_ID, topic()))
    manager.close(clean=False)
    (tmp_path / 'data' / 'recovery-point-offset-checkpoint').write_bytes(b'0\n7\norders 0 2\n')
    assert open_manager().open_log('orders', 0, TOPIC_ID, topic()).log_end_offset == 3


def test_retention_runs_at_its_interval_and_stops_below_the_high_watermark(open_manager, clock, timers):
    manager = open_manager()
    manager.start()
    log = manager.create_log('orders', 0, TOPIC_ID, topic(retention_ms=1000))
    write_and_flush(log)
    log.roll()
    log.append_batch(data_batch(), Origin.CLIENT, 0)
    manager.high_watermark = lambda log: 2
    clock.advance(300_000)
    timers.run_due()
    assert log.log_start_offset == 0
    manager.high_watermark = lambda log: 3
    clock.advance(300_000)
    timers.run_due()
    assert log.log_start_offset == 3 and len(log.segments) == 1


def test_a_log_that_failed_leaves_no_mark_of_a_clean_stop(open_manager, tmp_path):
    manager = open_manager()
    log = manager.create_log('orders', 0, TOPIC_ID, topic())
    with pytest.raises(KafkaError):
        log.fail_sync(OSError(5, 'Input/output error'))
    manager.close()
    assert not (tmp_path / 'data' / '.kafka_cleanshutdown').exists()
    assert not open_manager().clean_shutdown


def test_a_stop_reports_its_progress_log_by_log(open_manager):
    """A stop with many partitions takes long. Its progress shows the waiting operator that the broker does not hang."""
    manager = open_manager()
    for partition in range(20):
        log = manager.create_log('orders', partition, TOPIC_ID, LogConfig(CONFIG, {}))
        log.append_batch(data_batch(), Origin.CLIENT, 0)
    notes = []
    manager.close(progress=lambda what, done=0, total=0, is_sync=False: notes.append((what, done, total, is_sync)))
    assert [note for note in notes if note[1] in (0, 19) and note[0] != 'making partitions'] == [
        ('sealing logs', 0, 20, False), ('sealing logs', 19, 20, False), ('syncing the file system', 0, 0, True),
        ('closing logs', 0, 20, False), ('closing logs', 19, 20, False), ('writing checkpoints', 0, 0, False),
        ('noting the files of logs', 0, 20, False), ('noting the files of logs', 19, 20, False),
        ('marking the directory as cleanly stopped', 0, 0, False)]


def test_a_sync_that_fails_in_a_stop_keeps_the_recovery_points_of_the_other_logs(open_manager, tmp_path):
    """In an earlier version, the logs that were closed after the failed log got their end offsets as recovery points.
    The next start then did not rewrite the unsynced bytes of these logs."""
    def fail(change, path):
        return errno.EIO if change == 'sync' and path.endswith('orders-0/00000000000000000000.log') else None

    disk = FailingFileSystem()
    manager = open_manager(disk)
    logs = [manager.create_log('orders', partition, TOPIC_ID, topic()) for partition in range(2)]
    for log in logs:
        write_and_flush(log)
        log.append_batch(data_batch(), Origin.CLIENT, 0)
    recovery_points = [log.recovery_point for log in logs]
    disk.fail = fail
    manager.close()
    assert read_partition_offsets(FileSystem(), str(tmp_path / 'data'), 'recovery-point-offset-checkpoint') == {
        ('orders', 0): recovery_points[0], ('orders', 1): recovery_points[1]}
    assert not (tmp_path / 'data' / '.kafka_cleanshutdown').exists()


def test_a_new_partition_syncs_its_directory_and_metadata_with_its_first_flush(open_manager):
    log = open_manager().create_log('orders', 0, TOPIC_ID, topic())
    log.append_batch(data_batch(), Origin.CLIENT, 0)
    files, offset = log.files_to_sync()
    names = [os.path.basename(file.path) for file in files]
    assert names == ['00000000000000000000.log', 'leader-epoch-checkpoint', 'orders-0', 'partition.metadata', 'data']
    log.mark_flushed(offset)
    log.append_batch(data_batch(), Origin.CLIENT, 0)
    assert [os.path.basename(file.path) for file in log.files_to_sync()[0]] == ['00000000000000000000.log']


def longest_part_s(steps):
    """Run a generator to its end. Return the processor time of its longest part."""
    longest_s, is_over = 0.0, False
    while not is_over:
        began_s = time.thread_time()
        is_over = next(steps, steps) is steps
        longest_s = max(longest_s, time.thread_time() - began_s)
    return longest_s


def test_a_checkpoint_of_fifty_thousand_partitions_is_made_in_small_parts(open_manager):
    """In an earlier version, three parts of a checkpoint blocked the event loop for 15 ms: listing the logs, ending the
    encoding, and comparing the content with the file."""
    disk = HeldDisk(is_held=True)
    manager = open_manager(sync=disk.sync)
    for number in range(50_500):
        manager.logs[f'topic-of-many-{number}', 0] = SimpleNamespace(recovery_point=number)
    for syncs in (1, 0):        # the second checkpoint has no changes to sync
        assert_within(longest_part_s(manager.recovery_points.replace()), 0.005)
        assert len(disk.jobs) == syncs
        disk.finish_all()
    manager.logs.clear()

"""After a disk error, no batch is adopted, the log is offline, and the directory can be opened again."""
import errno

import pytest
from batches import T, data_batch, marker_batch
from support.disk.faulty_file_systems import FailingFileSystem, fail_nth

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.log.append import Origin
from kbroker.log.check import check_partition
from kbroker.log.fs import FileSystem


def batches_of(log):
    return [bytes(batch) for _, batch in log.batches()]


def state_of(log):
    path = log.segments[0].path('.log')
    return log.log_end_offset, log.segments.size_bytes, log.producer_state.encode_snapshot(), FileSystem().size(path)


def offline_code(call, *args, **kwargs):
    with pytest.raises(KafkaError) as raised:
        call(*args, **kwargs)
    return raised.value.code


@pytest.mark.parametrize('partial_bytes', [0, 1, 70, 10_000])
def test_a_failed_write_adopts_nothing_and_takes_the_log_offline(open_log, partial_bytes):
    failing = FailingFileSystem(partial_bytes=partial_bytes)
    log = open_log(file_system=failing)
    log.append_batch(data_batch(producer_id=1, epoch=0, sequence=0), Origin.CLIENT, 0)
    before = state_of(log)
    failing.fail = lambda operation, path: errno.ENOSPC if operation == 'write' and path.endswith('.log') else None
    batch = data_batch(producer_id=1, epoch=0, sequence=1)
    assert offline_code(log.append_batch, batch, Origin.CLIENT, 0) == ErrorCode.KAFKA_STORAGE_ERROR
    assert state_of(log) == before
    failing.fail = lambda operation, path: None
    for call, args in ((log.append_batch, (data_batch(), Origin.CLIENT, 0)), (log.read, (0, 100, 1, True)),
                       (log.roll, ()), (log.flush, ()), (log.files_to_sync, ()), (log.apply_retention, (1,)),
                       (log.delete_records, (1,))):
        assert offline_code(call, *args) == ErrorCode.KAFKA_STORAGE_ERROR
    log.close()
    again = open_log(clean_shutdown=False)
    assert again.log_end_offset == 1 and again.producer_state.get(1).last_sequence == 0


def test_a_failed_row_of_the_transaction_index_takes_its_marker_back(open_log):
    """Otherwise a reader would find an ABORT marker without its index row, and return the aborted data."""
    failing = FailingFileSystem()
    log = open_log(file_system=failing)
    log.append_batch(data_batch(producer_id=1, epoch=0, sequence=0, transactional=True), Origin.CLIENT, 0)
    failing.fail = lambda operation, path: errno.EIO if operation == 'write' and path.endswith('.txnindex') else None
    assert offline_code(log.append_batch, marker_batch(commit=False, producer_id=1, epoch=0), Origin.COORDINATOR,
                        0) == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.first_unstable_offset() == 0 and log.log_end_offset == 1
    again = open_log(clean_shutdown=False)
    assert again.log_end_offset == 1 and again.first_unstable_offset() == 0


@pytest.mark.parametrize('file', ['.log', '.txnindex', 'topic-0'])
def test_a_failed_sync_takes_the_log_offline_and_is_not_tried_again(open_log, file):
    failing = FailingFileSystem()
    log = open_log(file_system=failing)
    log.append_batch(data_batch(producer_id=1, epoch=0, sequence=0, transactional=True), Origin.CLIENT, 0)
    log.append_batch(marker_batch(commit=False, producer_id=1, epoch=0), Origin.COORDINATOR, 0)
    syncs = []

    def fail(operation, path):
        if operation == 'sync' and path.endswith(file):
            syncs.append(path)
            return errno.EIO
        return None

    failing.fail = fail
    assert offline_code(log.flush) == ErrorCode.KAFKA_STORAGE_ERROR
    assert offline_code(log.flush) == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(syncs) == 1 and log.flushed_offset == 0


def test_whatever_change_fails_first_what_was_flushed_is_there_again(open_log, tmp_path):
    """The scenario runs once for each of its changes of the disk. In each run, this change and all later changes fail.
    Then the directory is opened again.
    """
    number = 0
    while True:
        name = f'topic-{number}'
        failing = FailingFileSystem(fail_nth(number))
        durable, sent, log = 0, [], None
        try:
            log = open_log(name=name, file_system=failing, segment_bytes=1_048_576, index_interval_bytes=1)
            for step in range(8):
                batches = [data_batch(2, producer_id=1, epoch=step, sequence=0, transactional=True),
                           marker_batch(commit=step % 2 == 0, producer_id=1, epoch=step)]
                for batch, origin in zip(batches, (Origin.CLIENT, Origin.COORDINATOR), strict=True):
                    sent.append(batch)      # the failed change may still be on the disk
                    log.append_batch(batch, origin, step // 4)
                if step % 3 == 1:
                    log.roll()
                if step % 2 == 0:
                    log.flush()
                    durable = log.flushed_offset
            log.close()
        except (KafkaError, OSError) as error:
            assert isinstance(error, OSError) == (log is None)
        else:
            assert number > 50
            return
        again = open_log(name=name, clean_shutdown=False)
        found = batches_of(again)
        assert again.log_end_offset >= durable and found == sent[:len(found)]
        again.append_batch(data_batch(timestamp_ms=T), Origin.CLIENT, 9)
        again.close()
        assert check_partition(FileSystem(), again.directory) == []
        number += 1


def test_a_snapshot_that_cannot_be_written_costs_nothing_but_time(open_log):
    failing = FailingFileSystem()
    log = open_log(file_system=failing)
    log.append_batch(data_batch(producer_id=1, epoch=0, sequence=0), Origin.CLIENT, 0)
    log.roll()
    failing.fail = lambda operation, path: errno.ENOSPC if operation == 'write' and '.snapshot' in path else None
    log.flush()
    assert log.failure is None and log.flushed_offset == 1 and log.snapshots.offsets == []


def test_a_snapshot_never_gets_ahead_of_the_synced_log(open_log):
    log = open_log()
    log.append_batch(data_batch(producer_id=1, epoch=0, sequence=0), Origin.CLIENT, 0)
    files, offset = log.files_to_sync()
    log.append_batch(data_batch(producer_id=1, epoch=0, sequence=1), Origin.CLIENT, 0)
    log.roll()
    for file in files:
        file.sync()
    log.mark_flushed(offset)
    assert log.snapshots.offsets == []
    log.flush()
    assert log.snapshots.offsets == [2]


def test_bytes_that_are_no_batch_fail_their_read_alone(open_log):
    log = open_log(index_interval_bytes=100)
    for _ in range(200):
        log.append_batch(data_batch(), Origin.CLIENT, 0)
    FileSystem().open(log.segments[0].path('.log')).write_at(b'\xff' * 30, 0)
    assert offline_code(log.read, 0, 10, 200, True) == ErrorCode.CORRUPT_MESSAGE
    assert offline_code(list, log.batches()) == ErrorCode.CORRUPT_MESSAGE
    assert log.failure is None and log.read(199, 100, 200, True) is not None

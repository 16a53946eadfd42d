"""kbroker-check finds no error in the files that cleaning, retention, DeleteRecords and older versions of kbroker
leave.
"""
import os
import struct

import pytest
from batches import T, data_batch, marker_batch
from support.disk.directory_with_cleaner import DirectoryWithCleaner, end, write

from kbroker.base.clock import ManualClock
from kbroker.base.long_work import run_to_end
from kbroker.log.append import Origin
from kbroker.log.check import PartitionCheck, Remedy, Severity, check_partition
from kbroker.log.fs import FileSystem
from kbroker.log.log import Log
from kbroker.log.recovery import LogOptions
from kbroker.log.repair import carry_out, plan
from kbroker.log.timestamps import INLINE
from kbroker.record.batch import encode_batch
from kbroker.settings.config import Config
from kbroker.settings.topic_config import LogConfig

INDEX_INTERVAL_BYTES = 200
ROW = struct.Struct('>hqqqq')


def errors_in(log):
    return [finding for finding in findings_in(log) if finding.severity is Severity.ERROR]


def findings_in(log, log_start_offset=0):
    return PartitionCheck(FileSystem(), log.directory, log_start_offset=log_start_offset).run().findings


@pytest.fixture
def directory(tmp_path):
    directory = DirectoryWithCleaner(tmp_path / 'data')
    directory.cleaner.start()
    return directory


# ---- batches without timestamps ----

def log_without_timestamps(open_log):
    log = open_log(index_interval_bytes=INDEX_INTERVAL_BYTES)
    for _ in range(4):
        log.append_batch(data_batch(timestamp_ms=-1, value=b'v' * INDEX_INTERVAL_BYTES), Origin.CLIENT, 0)
    return log


def test_batches_without_timestamps_have_no_time_index_entry(open_log):
    """Timestamp -1 means that a record has no timestamp. Kafka adds a time index entry only for greater timestamps."""
    log = log_without_timestamps(open_log)
    log.close()
    assert len(log.segments[-1].offset_index) == 3 and len(log.segments[-1].time_index) == 0
    assert check_partition(FileSystem(), log.directory) == []
    again = open_log()
    again.append_batch(data_batch(value=b'v' * INDEX_INTERVAL_BYTES), Origin.CLIENT, 0)
    again.close()
    assert list(again.segments[-1].time_index) == [(T, 4)]


def test_an_old_entry_for_timestamp_minus_1_is_a_warning_that_a_repair_resolves(open_log):
    log = log_without_timestamps(open_log)
    log.append_batch(data_batch(value=b'v' * INDEX_INTERVAL_BYTES), Origin.CLIENT, 0)
    log.close()
    path = log.segments[-1].path('.timeindex')
    expected = FileSystem().read_file(path)
    with open(path, 'wb') as file:
        file.write(struct.pack('>qi', -1, 1) + expected)
    report = PartitionCheck(FileSystem(), log.directory).run()
    finding, = report.findings
    assert (finding.severity, finding.position, finding.remedy) == (Severity.WARNING, 0, Remedy.REBUILD_INDEXES)
    again = open_log(index_interval_bytes=INDEX_INTERVAL_BYTES)
    assert run_to_end(again.offset_for_timestamp(T, INLINE))[:2] == (T, 4)
    steps = plan(FileSystem(), log.directory, report, cut_torn_tail=False)
    carry_out(FileSystem(), log.directory, log.config, steps)
    assert FileSystem().read_file(path) == expected


# ---- indexes of Apache Kafka 4.0 ----

@pytest.mark.parametrize(('relative_offset', 'message'), [
    (3, None), (4, None), (5, 'where no batch ends'), (1, 'the batch at'), (99, 'where no batch ends')])
def test_an_entry_for_several_batches_leads_to_the_first_and_names_the_end_of_the_last(open_log, relative_offset,
                                                                                       message):
    log = open_log(index_interval_bytes=100_000)
    for count in (2, 2, 1, 2, 2):
        log.append_batch(data_batch(count), Origin.CLIENT, 0)
    log.close()
    second = len(data_batch(2))
    with open(log.segments[-1].path('.index'), 'wb') as file:
        file.write(struct.pack('>ii', relative_offset, second))
    found = findings_in(log)
    assert [message in finding.message for finding in found] == ([True] if message else [])


# ---- compaction ----

def test_a_snapshot_behind_what_compaction_removed_is_no_error(directory):
    """Compaction can also leave an offset gap at the end of a segment. The next segment then begins above the gap."""
    log = directory.open()
    write(log, ('a', '1'))
    log.append_batch(encode_batch([(T, None, b'no key')], producer_id=5, producer_epoch=0, base_sequence=0),
                     Origin.CLIENT, 0)
    log.roll()
    write(log, ('b', '1'))
    log.flush()
    run_to_end(log.producer_state.remove_expired(directory.clock.wall_ms() + 10**9))
    directory.run()
    directory.manager.close()
    assert [header.base_offset for header, _ in log.segments[0].walk()] == [0]
    assert os.path.exists(log.segments[1].path('.snapshot'))
    assert errors_in(log) == []


def test_snapshots_in_a_gap_and_below_the_log_are_left_over(open_log):
    log = open_log()
    snapshot = log.producer_state.encode_snapshot()
    for _ in range(3):
        log.append_batch(data_batch(10), Origin.CLIENT, 0)
        log.roll()
    log.close()
    for name in os.listdir(log.directory):
        if name.startswith('00000000000000000000'):
            os.unlink(os.path.join(log.directory, name))
    path = log.segments[1].path('.log')
    os.truncate(path, 0)        # as if all records were obsolete
    for suffix in ('.index', '.timeindex'):
        os.truncate(log.segments[1].path(suffix), 0)
    for offset in (3, 15):
        FileSystem().write_file(os.path.join(log.directory, f'{offset:020d}.snapshot'), snapshot)
    assert findings_in(log) == []


def test_a_snapshot_inside_a_batch_is_an_error(open_log):
    log = open_log()
    snapshot = log.producer_state.encode_snapshot()
    for _ in range(3):
        log.append_batch(data_batch(10), Origin.CLIENT, 0)
    log.close()
    FileSystem().write_file(os.path.join(log.directory, f'{15:020d}.snapshot'), snapshot)
    finding, = findings_in(log)
    assert finding.severity is Severity.ERROR and 'expected a batch boundary' in finding.message


def test_the_row_of_a_transaction_whose_data_compaction_removed_is_no_error(directory):
    """In this log, the marker is the first batch of a segment, and compaction has removed the end of the previous
    segment.
    """
    log = directory.open()
    write(log, ('a', '1'))
    write(log, ('b', '1'), producer=(7, 0, 0), transactional=True)
    log.roll()
    end(log, 7, 0, commit=False)
    directory.run()
    directory.manager.close()
    assert sum(len(segment.transactions.rows) for segment in log.segments) == 1
    assert errors_in(log) == []


@pytest.mark.parametrize(('next_end', 'is_sound'), [('commit', True), ('abort', False), ('none', False)])
def test_a_follower_may_write_a_stable_offset_that_hides_no_aborted_transaction(open_log, next_end, is_sound):
    """A follower of Apache Kafka 4.4.0 that appends the batches of several transactions at once passes over the next
    transaction of the same producer. A reader that stops at the row would miss this transaction if it is aborted.
    """
    log = open_log()
    for sequence, marker in enumerate(('abort', next_end)):
        log.append_batch(data_batch(producer_id=7, epoch=0, sequence=sequence, transactional=True), Origin.CLIENT, 0)
        if marker != 'none':
            log.append_batch(marker_batch(commit=marker == 'commit', producer_id=7, epoch=0), Origin.COORDINATOR, 0)
    begin_of_another = 3 if next_end == 'none' else 4
    log.append_batch(data_batch(producer_id=8, epoch=0, sequence=0, transactional=True), Origin.CLIENT, 0)
    log.close()
    with open(log.segments[0].path('.txnindex'), 'r+b') as file:
        row = list(ROW.unpack(file.read(ROW.size)))
        assert row == [0, 7, 0, 1, 2]
        file.seek(0)
        file.write(ROW.pack(*row[:-1], begin_of_another))
    assert (errors_in(log) == []) == is_sound


# ---- the start of the log ----

def open_partition(path, clock=None, **options):
    config = LogConfig(Config({}), {'index.interval.bytes': str(INDEX_INTERVAL_BYTES)})
    return Log(FileSystem(), str(path), 'topic', 0, config, clock or ManualClock(), LogOptions(**options))


def transactional_log(path):
    """Return a log of two segments. A transaction with records at 0 and 1 is aborted by a marker at 3. A plain record
    is at 2, and another transaction begins at 4.
    """
    log = open_partition(path)
    log.append_batch(data_batch(producer_id=7, epoch=0, sequence=0, transactional=True), Origin.CLIENT, 0)
    log.append_batch(data_batch(producer_id=7, epoch=0, sequence=1, transactional=True), Origin.CLIENT, 0)
    log.append_batch(data_batch(), Origin.CLIENT, 0)
    log.roll()
    log.append_batch(marker_batch(commit=False, producer_id=7, epoch=0), Origin.COORDINATOR, 0)
    log.append_batch(data_batch(producer_id=8, epoch=0, sequence=0, transactional=True), Origin.CLIENT, 0)
    return log


@pytest.mark.parametrize('log_start_offset', range(6))
def test_a_state_that_was_rebuilt_from_the_log_start_is_no_error(tmp_path, log_start_offset):
    """A broker that has lost its snapshots knows no transactions below the log start offset."""
    log = transactional_log(tmp_path / 'topic-0')
    log.delete_records(log_start_offset)
    log.flush()
    log.close()
    for name in os.listdir(log.directory):
        if name.endswith('.snapshot'):
            os.unlink(os.path.join(log.directory, name))
    again = open_partition(log.directory, clean_shutdown=False, log_start_offset=log_start_offset, recovery_point=3)
    again.roll()
    again.append_batch(data_batch(), Origin.CLIENT, 0)
    again.close()
    assert findings_in(again, log_start_offset) == []


@pytest.mark.parametrize('starts', [1, 2])
def test_a_log_whose_records_are_all_deleted_needs_no_leader_epochs_and_no_snapshot(tmp_path, starts):
    """The start cuts the epochs at the log start, which is the log end, too, and removes all snapshots. In an earlier
    version, kbroker-check reported each deleted batch that was still in a segment, and the missing snapshot.
    """
    log = transactional_log(tmp_path / 'topic-0')
    log.delete_records(5)
    log.close()
    for _ in range(starts):
        log = open_partition(log.directory, log_start_offset=5)
        log.close()
    assert log.leader_epochs.rows == []
    assert findings_in(log, 5) == []
    assert 'found epoch -1 for offset 4, the batch says 0' in {finding.message for finding in findings_in(log, 4)}


def test_a_row_that_no_marker_explains_is_an_error_behind_any_log_start(tmp_path):
    log = transactional_log(tmp_path / 'topic-0')
    log.close()
    rows = log.segments[1].path('.txnindex')
    os.unlink(rows)
    assert [finding.file for finding in findings_in(log)] == [rows]
    assert findings_in(log, 2) == []        # no aborted data remains
    assert [finding.file for finding in findings_in(log, 1)] == [rows]


def test_a_marker_of_a_transaction_that_retention_deleted_needs_no_row(tmp_path):
    log = transactional_log(tmp_path / 'topic-0')
    log.close()
    for name in os.listdir(log.directory):
        if name.startswith(f'{0:020d}') or name == f'{3:020d}.txnindex':
            os.unlink(os.path.join(log.directory, name))
    assert findings_in(log) == []

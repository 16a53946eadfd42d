"""Opening a log after a clean or an unclean stop. Covers promise 1 of docs/design.md.
"""
import logging
import os
from pathlib import Path

import pytest
from batches import T, data_batch, marker_batch

from kbroker.base.errors import CorruptLogError
from kbroker.log.append import Origin
from kbroker.log.check import PartitionCheck, check_partition
from kbroker.log.checkpoints import LEADER_EPOCH_FILE
from kbroker.log.fs import FileSystem
from kbroker.log.log import Log
from kbroker.log.partition_reader import PartitionReader
from kbroker.log.recovery import LogOptions
from kbroker.record.batch import HEADER_BYTES
from kbroker.wire.crc32c import crc32c

MARKER_VALUE_LENGTH = HEADER_BYTES + 9
"""The position in a marker batch at which the length of the marker's value is. In front of it are the record's length,
attributes, two deltas, and the length and the four bytes of the key.
"""


def fill(log, batches=30, roll_every=10):
    for number in range(batches):
        log.append_batch(data_batch(2, timestamp_ms=T + number, value=b'x' * 200), Origin.CLIENT, 0)
        if number % roll_every == roll_every - 1 and number < batches - 1:
            log.roll()
    log.flush()


def end_after_kill(log, open_log, **kwargs):
    log.close(clean=False)
    again = open_log(clean_shutdown=False, **kwargs)
    assert not [finding for finding in check_partition(FileSystem(), again.directory)
                if 'index' not in finding.file and 'found no snapshot' not in finding.message]
    return again


def change(path, position, data):
    with open(path, 'r+b') as file:
        file.seek(position)
        file.write(data)


@pytest.mark.parametrize('tail', [b'\0' * 4096, b'garbage', bytes(data_batch(5))[:-1], bytes(data_batch(5))[:40]])
def test_a_torn_tail_is_cut(open_log, tail, caplog):
    log = open_log()
    fill(log)
    path = log.segments[-1].path('.log')
    size = os.path.getsize(path)
    with open(path, 'ab') as file:
        file.write(tail)
    again = end_after_kill(log, open_log)
    assert again.log_end_offset == 60 and os.path.getsize(path) == size
    assert f'{len(tail)} bytes are cut off' in caplog.text
    assert not [name for name in os.listdir(log.directory) if name.endswith('.cut')]


def test_the_producers_of_a_recovered_log_are_in_a_snapshot_once_it_was_closed(open_log):
    """Recovery itself writes no snapshot, because each start after a crash would then create a useless file for every
    partition.
    """
    log = open_log()
    log.append_batch(data_batch(2, producer_id=7, epoch=0, sequence=0), Origin.CLIENT, 0)
    again = end_after_kill(log, open_log)
    assert again.snapshots.offsets == []
    again.close()
    assert open_log().snapshots.offsets == [2]
    assert [producer.producer_id for producer in open_log().producer_state.active_producers()] == [7]


@pytest.mark.parametrize('is_clean', [True, False])
def test_index_files_are_made_for_their_first_entry_or_by_a_clean_stop(open_log, is_clean):
    """In an earlier version, each of thousands of partitions with a single record had three files, and two of the three
    were never read."""
    log = open_log(index_interval_bytes=1000)

    def index_files():
        return {name for name in os.listdir(log.directory) if name.endswith('index')}

    log.append_batch(data_batch(), Origin.CLIENT, 0)
    log.flush()
    assert index_files() == set()
    log.close(clean=is_clean)
    both = {'00000000000000000000.index', '00000000000000000000.timeindex'}
    assert index_files() == (both if is_clean else set())
    findings = PartitionCheck(FileSystem(), log.directory, recovered_from=None if is_clean else 0).run().findings
    assert findings == []
    log = open_log(clean_shutdown=is_clean, index_interval_bytes=1000)
    while log.segments.size_bytes < 3000:
        log.append_batch(data_batch(1, value=b'x' * 300), Origin.CLIENT, 0)
    assert index_files() == both
    log.close()
    assert check_partition(FileSystem(), log.directory) == []


ACKNOWLEDGED, UNKNOWN = 'acknowledged records from offset', 'no checkpoint says that records from offset'


def verdicts(caplog):
    """Return (level, verdict) of each log message about lost records. The verdict says whether the records were
    acknowledged.
    """
    return [(record.levelno, verdict) for record in caplog.records for verdict in (ACKNOWLEDGED, UNKNOWN)
            if verdict in record.message]


@pytest.mark.parametrize(('proof', 'expected'), [
    ({}, (logging.WARNING, UNKNOWN)), ({'high_watermark': 20}, (logging.WARNING, UNKNOWN)),
    ({'high_watermark': 60}, (logging.ERROR, ACKNOWLEDGED)), ({'recovery_point': 39}, (logging.ERROR, ACKNOWLEDGED))])
def test_damage_before_valid_batches_cuts_there_and_keeps_what_was_cut(open_log, caplog, proof, expected):
    log = open_log()
    fill(log)
    path = log.segments[1].path('.log')
    content = FileSystem().read_file(path)
    position = content.index(b'x' * 200, 2500)
    change(path, position, b'y')
    again = end_after_kill(log, open_log, **proof)
    assert 20 < again.log_end_offset < 39 and again.segments[-1].base_offset == 20
    assert verdicts(caplog) == [expected]
    cut = sorted(name for name in os.listdir(log.directory) if name.endswith('.cut'))
    assert len(cut) == 2
    kept = FileSystem().read_file(os.path.join(log.directory, cut[0]))
    assert len(kept) == len(content) - again.segments[-1].size_bytes


@pytest.mark.parametrize(('high_watermark', 'expected'), [(58, []), (59, [(logging.ERROR, ACKNOWLEDGED)])])
@pytest.mark.parametrize('lost', ['a byte', 'a batch'])
def test_a_lost_end_is_an_error_if_it_was_acknowledged(open_log, caplog, lost, high_watermark, expected):
    log = open_log()
    fill(log)
    last = log.segments[-1]
    batch_bytes = last.size_bytes // 10
    os.truncate(last.path('.log'), last.size_bytes - (1 if lost == 'a byte' else batch_bytes))
    again = end_after_kill(log, open_log, high_watermark=high_watermark)
    assert again.log_end_offset == 58
    assert verdicts(caplog) == expected


def test_damage_is_refused_where_nothing_may_be_lost(open_log, fs, clock):
    log = open_log()
    fill(log)
    change(log.segments[0].path('.log'), 300, b'?')
    log.close(clean=False)
    before = {name: FileSystem().read_file(os.path.join(log.directory, name))
              for name in os.listdir(log.directory) if '.log' in name}
    with pytest.raises(CorruptLogError, match='valid ones follow'):
        Log(fs, log.directory, 'topic', 0, log.config, clock, LogOptions(clean_shutdown=False, refuse_damage=True))
    assert before == {name: FileSystem().read_file(os.path.join(log.directory, name)) for name in before}


@pytest.mark.parametrize('clean', [True, False], ids=['replayed', 'recovered'])
def test_a_marker_that_cannot_be_read_is_refused_with_its_place(open_log, clean):
    """The marker has a valid checksum, so its writer was faulty. Once, a start failed at this marker with a NameError.
    """
    log = open_log()
    fill(log)
    marker = bytearray(marker_batch(commit=True, producer_id=1, epoch=0))
    marker[:8] = log.log_end_offset.to_bytes(8, 'big')
    marker[MARKER_VALUE_LENGTH] = 100       # 50 bytes, as a varint
    marker[17:21] = crc32c(marker[21:]).to_bytes(4, 'big')
    path = log.segments[-1].path('.log')
    log.close(clean=clean)
    with open(path, 'ab') as file:
        file.write(marker)
    findings = [finding.message for finding in check_partition(FileSystem(), log.directory)]
    assert any('found a marker that cannot be read: control batch at offset 60' in message for message in findings)
    with pytest.raises(CorruptLogError, match=rf'{path}: found a marker at \d+ that cannot .*: 50 bytes expected'):
        open_log(clean_shutdown=clean)
    with pytest.raises(CorruptLogError, match=rf'{path}: found a marker at \d+ that cannot .*: 50 bytes expected'):
        PartitionReader(FileSystem(), log.directory).producer_state()


def test_only_segments_at_or_above_the_recovery_point_are_read(open_log):
    log = open_log()
    fill(log)
    change(log.segments[0].path('.log'), 100, b'?????')
    log.close(clean=False)
    assert open_log(clean_shutdown=False, recovery_point=20).log_end_offset == 60


@pytest.mark.parametrize('clean', [True, False])
@pytest.mark.parametrize('suffix', ['.index', '.timeindex'])
@pytest.mark.parametrize('damage', [None, b'\xff' * 24, b'123'])
def test_a_missing_or_damaged_index_is_built_again(open_log, suffix, damage, clean):
    log = open_log(index_interval_bytes=300)
    fill(log)
    log.close()
    for segment in log.segments:
        before = FileSystem().read_file(segment.path(suffix))
        os.unlink(segment.path(suffix))
        if damage is not None:
            FileSystem().write_file(segment.path(suffix), damage)
        again = open_log(clean, recovery_point=60, index_interval_bytes=300)
        again.close()
        assert FileSystem().read_file(segment.path(suffix)) == before
    assert check_partition(FileSystem(), log.directory) == []


def test_an_index_without_its_log_goes(open_log):
    log = open_log()
    fill(log)
    log.close()
    stray = os.path.join(log.directory, f'{99:020d}.index')
    FileSystem().write_file(stray, b'')
    open_log()
    assert not os.path.exists(stray)


def test_lost_leader_epochs_are_built_again_from_the_batches(open_log):
    log = open_log()
    for epoch in (0, 0, 2, 5):
        log.append_batch(data_batch(2), Origin.CLIENT, epoch)
    rows = log.leader_epochs.rows
    log.close()
    for content in (None, b'0\n1\n', b'junk\n1\n0 0\n', b''):
        os.unlink(os.path.join(log.directory, 'leader-epoch-checkpoint'))
        if content is not None:
            FileSystem().write_file(os.path.join(log.directory, 'leader-epoch-checkpoint'), content)
        again = open_log()
        assert again.leader_epochs.rows == rows == [(0, 0), (2, 4), (5, 6)]
        again.close()


def test_a_log_without_visible_records_is_not_recovered_for_its_leader_epochs(open_log):
    """Once all records are deleted, no leader epoch is left at the end of the log. In an earlier version, every second
    clean start therefore read all segments, and knew the producers of the deleted batches again.
    """
    log = open_log()
    fill(log, roll_every=10)
    log.append_batch(data_batch(producer_id=1, epoch=0, sequence=0), Origin.CLIENT, 0)
    end_offset = log.log_end_offset
    log.delete_records(end_offset)
    log.close()
    for _ in range(3):
        log = open_log(log_start_offset=end_offset)
        assert log.recovery is None and log.producer_state.entries == {}
        assert len(log.segments) == 3 and log.log_end_offset == end_offset
        log.close()
    log = open_log(log_start_offset=end_offset)
    assert log.append_batch(data_batch(), Origin.CLIENT, 4).base_offset == end_offset
    assert log.leader_epochs.rows == [(4, end_offset)]
    log.close()
    assert open_log(log_start_offset=end_offset).leader_epochs.rows == [(4, end_offset)]


def test_a_transaction_open_at_the_kill_is_open_after_it_and_the_aborted_one_is_in_the_index(open_log):
    log = open_log()
    log.append_batch(data_batch(producer_id=1, epoch=0, sequence=0, transactional=True), Origin.CLIENT, 0)
    log.append_batch(marker_batch(commit=False, producer_id=1, epoch=0), Origin.COORDINATOR, 0)
    log.append_batch(data_batch(producer_id=2, epoch=0, sequence=0, transactional=True), Origin.CLIENT, 0)
    log.flush()
    os.unlink(log.segments[0].path('.txnindex'))
    again = end_after_kill(log, open_log)
    again.producer_state.unstable.on_high_watermark(again.log_end_offset)
    assert again.first_unstable_offset() == 2
    assert again.aborted_transactions(0, 2) == [(1, 0)]


def test_leader_epochs_whose_last_digit_a_power_cut_took_are_built_again_from_the_batches(open_log):
    """The file gets its final name before its content is synced. If the file's last digit is missing, the row "5 10" is
    read as "5 1": epoch 5 begins at offset 1.
    """
    log = open_log()
    log.append_batch(data_batch(10), Origin.CLIENT, 2)
    log.append_batch(data_batch(), Origin.CLIENT, 5)
    log.close()
    path = Path(log.directory) / LEADER_EPOCH_FILE
    for torn in (1, 2):
        assert path.read_text() == '0\n2\n2 0\n5 10\n'
        path.write_text(path.read_text()[:-torn])
        again = open_log(clean_shutdown=False)
        assert again.leader_epochs.rows == [(2, 0), (5, 10)]
        again.close()


def test_segments_that_a_power_cut_brings_back_have_their_leader_epochs_again(open_log):
    """Retention has removed the segments and their epochs before the power cut. Once, the leader epoch file was empty
    after the next start.
    """
    log = open_log()
    fill(log)
    log.close(clean=False)
    (Path(log.directory) / LEADER_EPOCH_FILE).write_text('0\n1\n0 40\n')
    Path(log.segments[-1].path('.log')).write_bytes(b'')    # the power cut took the last segment's content
    again = open_log(clean_shutdown=False)
    assert again.leader_epochs.rows == [(0, 0)] and again.log_end_offset == 40
    assert not [finding for finding in check_partition(FileSystem(), again.directory) if 'epoch' in finding.message]


def test_a_log_that_ends_below_its_start_restarts_there(open_log):
    log = open_log()
    fill(log, batches=3)
    log.close()
    again = open_log(log_start_offset=100)
    assert (again.log_start_offset, again.log_end_offset, len(again.segments)) == (100, 100, 1)
    again.append_batch(data_batch(), Origin.CLIENT, 1)
    again.close()
    assert check_partition(FileSystem(), log.directory) == []


def test_a_tail_of_an_untrimmed_index_is_not_trusted(open_log):
    """A killed broker leaves indexes of full size, with zeros behind the entries. In this test, the clean shutdown mark
    exists all the same.
    """
    log = open_log(index_interval_bytes=300)
    fill(log)
    assert os.path.getsize(log.segments[-1].path('.index')) == 10_485_760
    log.close(clean=False)
    again = open_log(index_interval_bytes=300)
    assert again.log_end_offset == 60
    assert all(again.read(offset, 10_000, 60, True).start_offset == offset // 2 * 2 for offset in range(60))


def test_damaged_leader_epochs_of_an_empty_log_go(open_log):
    """In an earlier version, a power cut left half of an empty log's leader epoch file. No append replaced the file,
    and Apache Kafka refused to read it."""
    log = open_log()
    log.close(clean=False)
    path = os.path.join(log.directory, 'leader-epoch-checkpoint')
    FileSystem().write_file(path, b'0\n1\n0')
    open_log(clean_shutdown=False).close()
    assert not os.path.exists(path) and check_partition(FileSystem(), log.directory) == []


def test_files_that_a_crash_kept_from_their_final_name_go(open_log):
    log = open_log()
    fill(log)
    log.close(clean=False)
    path = os.path.join(log.directory, 'leader-epoch-checkpoint.tmp')
    FileSystem().write_file(path, b'0\n1\n0')
    end_after_kill(log, open_log)
    assert not os.path.exists(path)


def test_a_segment_is_below_the_recovery_point_when_its_indexes_are_synced_too(open_log):
    """In an earlier version, the power failed after a segment was flushed to its end and then closed. The recovery
    point was at the end of the segment, but no flush had synced its time index. The time index remained a file of
    zeros."""
    log = open_log()
    for batches, recovery_point in ((1, 0), (2, 1)):
        log.append_batch(data_batch(), Origin.CLIENT, 0)
        log.flush()
        assert (log.flushed_offset, log.recovery_point) == (batches, recovery_point)
    log.roll()
    assert log.recovery_point == 1
    log.append_batch(data_batch(), Origin.CLIENT, 0)
    log.flush()
    assert (log.flushed_offset, log.recovery_point) == (3, 2)

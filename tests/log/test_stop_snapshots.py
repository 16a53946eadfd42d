"""The snapshot of a clean stop. After the next start, repeated batches of a producer are recognised, as after a kill.
"""
import errno
import random

import pytest
from batches import T, data_batch, marker_batch
from hypothesis import given
from hypothesis import strategies as st
from support.disk.faulty_file_systems import FailingFileSystem, FreezingFileSystem

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.log.append import Origin
from kbroker.log.check import check_partition
from kbroker.log.fs import FileSystem
from kbroker.log.producer_state import ProducerStateTable
from kbroker.log.state_check import ProducerStateCheck
from kbroker.log.stop_snapshot import encode_snapshot_at, snapshot_offset
from kbroker.record.batch import read_header, set_base_offset

DAY_MS = 86_400_000
FOREVER = 1 << 62
"""A producer expiration in ms. It is longer than the age of the batches in these tests."""


def append(log, **batch):
    return log.append_batch(data_batch(**batch), Origin.CLIENT, 0)


def end(log, *, commit=True, **marker):
    return log.append_batch(marker_batch(commit=commit, **marker), Origin.COORDINATOR, 0)


def repeated(log, *, sequences=range(5), **producer):
    """Append batches again. For each batch, return its first offset if the log recognises it, None if not, or the code
    of the error.
    """
    answers = []
    for sequence in sequences:
        try:
            result = append(log, epoch=0, sequence=sequence, **producer)
            answers.append(result.base_offset if result.is_duplicate else None)
        except KafkaError as error:
            answers.append(error.code)
    return answers


@pytest.fixture(autouse=True)
def _today(clock):
    clock.set_wall_ms(T)


@pytest.mark.parametrize('is_clean', [True, False])
def test_five_batches_that_are_repeated_after_a_stop_are_recognised(open_log, is_clean):
    """In an earlier version, the log knew only the last batch of a producer after a clean stop. It refused the four
    earlier batches with an error that is fatal for a producer."""
    log = open_log()
    for sequence in range(5):
        append(log, producer_id=1, epoch=0, sequence=sequence)
    log.flush()
    log.close(is_clean)
    assert repeated(open_log(is_clean), producer_id=1) == [0, 1, 2, 3, 4]


def test_the_batches_of_several_producers_are_recognised_after_a_second_clean_stop(open_log):
    log = open_log()
    for sequence in range(20):
        for producer_id in (1, 2, 3):
            append(log, producer_id=producer_id, epoch=0, sequence=sequence)
    log.close()
    log = open_log()
    snapshots = log.snapshots.offsets
    log.close()
    again = open_log()
    assert again.snapshots.offsets == snapshots == [3 * 16], 'a stop without appends has nothing to write'
    for producer_id in (1, 2, 3):
        assert repeated(again, producer_id=producer_id, sequences=range(15, 20)) == [
            3 * sequence + producer_id - 1 for sequence in range(15, 20)]


def test_a_producer_without_a_batch_of_late_does_not_move_the_snapshot(open_log):
    """A start replays a bounded number of bytes at the end of the log. The batches of an idle producer are below this
    range.
    """
    log = open_log(max_message_bytes=4096)
    for sequence in range(5):
        append(log, producer_id=1, epoch=0, sequence=sequence)
    for sequence in range(100):
        append(log, producer_id=2, epoch=0, sequence=sequence, value=bytes(1000))
    log.close()
    assert log.snapshots.offsets == [101]
    again = open_log()
    assert repeated(again, producer_id=2, sequences=range(95, 100)) == [100, 101, 102, 103, 104]
    assert repeated(again, producer_id=1) == [*[ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 4, 4]
    log.close()


def test_a_start_replays_no_more_bytes_than_five_batches_of_the_greatest_size_have(open_log):
    log = open_log(max_message_bytes=4096)
    for sequence in range(100):
        append(log, producer_id=sequence % 20, epoch=0, sequence=sequence // 20, value=bytes(1000))
    log.close()
    offset, = log.snapshots.offsets
    batch_bytes = log.segments.size_bytes // 100
    assert (100 - offset) * batch_bytes <= 5 * 4096 + batch_bytes and offset < 85
    assert check_partition(FileSystem(), log.directory) == []


def test_a_snapshot_that_deleted_records_pass_is_written_again(open_log):
    """A snapshot below the log start offset is useless, so the stop writes a new one here. Otherwise a stop without
    appends writes no snapshot.
    """
    log = open_log()
    for sequence in range(5):
        append(log, producer_id=1, epoch=0, sequence=sequence)
    append(log, producer_id=2, epoch=0, sequence=0)
    log.close()
    log = open_log()
    log.delete_records(4)
    log.close()
    assert log.snapshots.offsets == [6]
    again = open_log(log_start_offset=4)
    assert {producer_id: entry.last_sequence for producer_id, entry in again.producer_state.entries.items()} == {
        1: 4, 2: 0}


@pytest.mark.parametrize('is_clean', [True, False])
def test_batches_with_old_timestamps_below_the_snapshot_are_recognised_after_a_stop(open_log, is_clean):
    """A producer that copies records may send old timestamps and new ones in the same minute. In an earlier version,
    its entry in the snapshot had the old timestamp, and the next start dropped it as expired.
    """
    log = open_log()
    for sequence, timestamp_ms in enumerate((T - 2 * DAY_MS, T - 2 * DAY_MS, T)):
        append(log, producer_id=1, epoch=0, sequence=sequence, timestamp_ms=timestamp_ms)
    log.flush()
    log.close(is_clean)
    assert repeated(open_log(is_clean), producer_id=1, sequences=range(3)) == [0, 1, 2]


@pytest.mark.parametrize('is_clean', [True, False])
def test_a_producer_whose_long_transaction_ended_lately_is_known_after_a_stop(open_log, is_clean):
    """In an earlier version, its entry in the snapshot had the timestamp of the last batch, not of the marker. The next
    start dropped it as expired, and forgot the batch and the coordinator epoch.
    """
    log = open_log()
    append(log, producer_id=1, epoch=0, sequence=0, transactional=True, timestamp_ms=T - 2 * DAY_MS)
    end(log, producer_id=1, epoch=0, coordinator_epoch=4)
    append(log, producer_id=1, epoch=0, sequence=1, transactional=True)
    log.flush()
    log.close(is_clean)
    again = open_log(is_clean)
    entry = again.producer_state.get(1)
    assert (entry.coordinator_epoch, entry.last_timestamp_ms, entry.transaction_first_offset) == (4, T, 2)
    assert repeated(again, producer_id=1, sequences=range(2), transactional=True) == [0, 2]


def test_the_snapshot_of_a_roll_is_kept_if_the_replay_begins_there(open_log):
    log = open_log()
    append(log, producer_id=1, epoch=0, sequence=0)
    log.roll()
    for sequence in range(1, 4):
        append(log, producer_id=1, epoch=0, sequence=sequence)
    log.close()
    assert log.snapshots.offsets == [1]
    assert repeated(open_log(), producer_id=1, sequences=range(4)) == [0, 1, 2, 3]


def test_a_damaged_batch_in_the_replayed_part_is_found_by_a_recovery(open_log, caplog):
    """The replay at a start reads only batch headers. If it cannot read a header, the log ends there, as at any other
    damage.
    """
    log = open_log()
    for sequence in range(5):
        append(log, producer_id=1, epoch=0, sequence=sequence)
    size_bytes = log.segments.size_bytes // 5
    log.close()
    with open(log.segments[0].path('.log'), 'r+b') as file:
        file.seek(4 * size_bytes + 16)
        file.write(b'\7')
    again = open_log()
    assert again.log_end_offset == 4 and 'the segment is recovered' in caplog.text


def test_a_snapshot_that_cannot_be_written_leaves_the_stop_unclean(open_log):
    failing = FailingFileSystem()
    log = open_log(file_system=failing)
    for sequence in range(5):
        append(log, producer_id=1, epoch=0, sequence=sequence)
    failing.fail = lambda operation, path: errno.ENOSPC if operation == 'write' and '.snapshot' in path else None
    with pytest.raises(KafkaError, match='No space'):
        log.close()
    assert repeated(open_log(False), producer_id=1) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize('operation', ['write', 'unlink'])
@pytest.mark.parametrize('seed', range(4))
def test_a_machine_that_stops_while_the_snapshots_are_replaced_loses_no_producer(open_log, tmp_path, operation, seed):
    stopped = []

    def stop_at(change, path):
        if is_last_stop and change == operation and '.snapshot' in path:
            stopped.append(path)
            raise SystemExit

    is_last_stop = False
    fs = FreezingFileSystem(tmp_path, stop_at)
    log = open_log(file_system=fs)
    for sequence in range(3):
        append(log, producer_id=1, epoch=0, sequence=sequence)
    log.close()
    log = open_log(file_system=fs)
    for sequence in range(3, 10):
        append(log, producer_id=1, epoch=0, sequence=sequence)
    is_last_stop = True
    with pytest.raises(SystemExit):
        log.close()
    left = tmp_path.with_name(f'{tmp_path.name}-left')
    fs.crash(left, random.Random(seed))
    assert stopped
    assert repeated(open_log(False, root=left), producer_id=1, sequences=range(5, 10)) == [5, 6, 7, 8, 9]


# ---- any history ----

def table_of(batches):
    table = ProducerStateTable(FOREVER)
    for batch in batches:
        table.replay_batch(batch)
    return table


def state_of(table):
    return {producer_id: (entry.producer_epoch, entry.last_sequence, entry.last_offset, entry.transaction_first_offset)
            for producer_id, entry in table.entries.items()}


def window_of(table, producer_id):
    """Return the batches of a producer that the table knows, without timestamps: the timestamp in a snapshot may be
    that of a marker.
    """
    return [batch[:3] for batch in table.get(producer_id).batches]


def fault_of(found, batches):
    """Return the fault that `kbroker-check` finds in `found`, a snapshot at the end of `batches`."""
    check = ProducerStateCheck(0, 0, None)
    for batch in batches:
        check.replay(read_header(batch), batch)
    return check.find_fault(found)


class History:
    """A random history of batches and markers. The producers obey the rules of transaction version 1 or 2."""

    def __init__(self, steps):
        self.batches = []
        self._offset = 0
        self._epochs, self._sequences, self._open = {}, {}, set()
        for producer_id, what in steps:
            self._step(producer_id, what)

    def _step(self, producer_id, what):
        epoch = self._epochs.setdefault(producer_id, 0)
        if what == 'records':
            self._add(data_batch(2, producer_id=producer_id, epoch=epoch, transactional=producer_id % 2 == 1,
                                 sequence=self._sequences.get(producer_id, 0)))
            self._sequences[producer_id] = self._sequences.get(producer_id, 0) + 2
            self._open.update({producer_id} if producer_id % 2 else ())
        elif producer_id % 2 and (producer_id in self._open or what == 'repeat'):
            raises_epoch = producer_id % 4 == 3
            if raises_epoch:
                self._epochs[producer_id] += 1
                self._sequences[producer_id] = 0
            self._open.discard(producer_id)
            self._add(marker_batch(commit=what == 'commit', producer_id=producer_id,
                                   epoch=self._epochs[producer_id]))

    def _add(self, batch):
        set_base_offset(batch, self._offset)
        self._offset = read_header(batch).last_offset + 1
        self.batches.append(batch)


@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from(['records', 'records', 'commit', 'abort', 'repeat'])),
                min_size=1, max_size=80), st.integers(0, 200))
def test_a_replay_from_the_snapshot_of_any_history_gives_its_state(steps, floor):
    batches = History(steps).batches
    table = table_of(batches)
    offset = snapshot_offset(table, max(1, min(floor, table.end_offset)))
    content = encode_snapshot_at(table, offset)
    below = [batch for batch in batches if read_header(batch).last_offset < offset]

    found = ProducerStateTable(FOREVER)
    found.load_snapshot(content, offset, T)
    assert fault_of(found, below) is None, 'the snapshot is the state of its offset'

    for batch in batches[len(below):]:
        found.replay_batch(batch)
    for each in (found, table):
        each.unstable.on_high_watermark(each.end_offset)
    assert state_of(found) == state_of(table)
    assert found.unstable.ongoing == table.unstable.ongoing
    assert found.unstable.first_offset() == table.unstable.first_offset()
    for producer_id in table.entries:
        known, replayed = window_of(table, producer_id), window_of(found, producer_id)
        assert known[-len(replayed):] == replayed or not known
        assert replayed == known or floor > 1


def test_the_history_of_markers_is_bounded_and_the_snapshot_lies_above_what_it_forgot():
    transactions = [(1, 'records'), (1, 'commit')] * 100
    batches = History([(2, 'records'), *([*transactions, (2, 'records')] * 4)]).batches
    table = table_of(batches)
    offset = snapshot_offset(table, 1)
    assert offset == 2 * 2 + 200 * 3, 'the markers of 256 transactions are known'
    found = ProducerStateTable(FOREVER)
    found.load_snapshot(encode_snapshot_at(table, offset), offset, T)
    assert fault_of(found, [batch for batch in batches if read_header(batch).last_offset < offset]) is None

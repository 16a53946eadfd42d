"""The rules of idempotence and transactions in a partition, tested through the log that applies these rules."""
import pytest
from batches import T, data_batch, marker_batch
from hypothesis import given
from hypothesis import strategies as st

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
from kbroker.base.long_work import run_to_end
from kbroker.log.append import Origin
from kbroker.log.check import check_partition
from kbroker.log.fs import FileSystem
from kbroker.log.producer_state import ProducerStateTable
from kbroker.record.batch import set_base_offset

LAST_SEQUENCE = 2**31 - 1
EMPTY_SNAPSHOT = bytes.fromhex('000148674bc700000000')
ONE_ENTRY_SNAPSHOT = bytes.fromhex('0001c54d00f200000001'
                                   '00000000000003e8 0003 00000001 0000000000000029 00000001 0000018bcfe56805 ffffffff'
                                   '0000000000000028')


def append(log, *, origin=Origin.CLIENT, guard=None, **batch):
    return log.append_batch(data_batch(**batch), origin, 0, guard=guard)


def end(log, *, commit=True, transaction_version=0, **marker):
    return log.append_batch(marker_batch(commit=commit, **marker), Origin.COORDINATOR, 0,
                      transaction_version=transaction_version)


def state_of(log):
    return (log.log_end_offset, log.segments.size_bytes, log.producer_state.encode_snapshot(),
            dict(log.producer_state.unstable.ongoing))


def refused(call, *args, **kwargs) -> ErrorCode:
    """Make a call that must raise KafkaError, and return the code of the error. Check that the log has not changed."""
    log = args[0]
    before = state_of(log)
    with pytest.raises(KafkaError) as raised:
        call(*args, **kwargs)
    assert before == state_of(log)
    return raised.value.code


def test_the_last_five_batches_are_known_as_duplicates_and_older_ones_are_out_of_order(open_log):
    log = open_log()
    for sequence in range(6):
        append(log, producer_id=1, epoch=0, sequence=sequence)
    for sequence in range(1, 6):
        result = append(log, producer_id=1, epoch=0, sequence=sequence)
        assert result.is_duplicate and result.base_offset == sequence
    assert refused(append, log, producer_id=1, epoch=0, sequence=0) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_overlaps_a_known_one_is_out_of_order(open_log):
    log = open_log()
    append(log, count=3, producer_id=1, epoch=0, sequence=0)
    assert refused(append, log, count=2, producer_id=1, epoch=0, sequence=0) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(append, log, count=1, producer_id=1, epoch=0, sequence=4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_may_begin_at_any_sequence_and_a_new_epoch_only_at_zero(open_log):
    log = open_log()
    append(log, producer_id=1, epoch=0, sequence=77)
    assert refused(append, log, producer_id=1, epoch=1, sequence=78) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, producer_id=1, epoch=1, sequence=0)
    assert refused(append, log, producer_id=1, epoch=0, sequence=78) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_start_over_at_zero_after_the_last_one(open_log):
    log = open_log()
    append(log, count=2, producer_id=1, epoch=0, sequence=LAST_SEQUENCE - 1)
    append(log, producer_id=1, epoch=0, sequence=0)
    append(log, producer_id=2, epoch=0, sequence=LAST_SEQUENCE)
    append(log, count=3, producer_id=2, epoch=0, sequence=0)
    again = append(log, count=3, producer_id=2, epoch=0, sequence=0)
    assert again.is_duplicate


def test_a_batch_that_wraps_inside_is_followed_by_the_right_sequence(open_log):
    log = open_log()
    append(log, count=4, producer_id=1, epoch=0, sequence=LAST_SEQUENCE - 1)
    assert log.producer_state.get(1).last_sequence == 1
    append(log, producer_id=1, epoch=0, sequence=2)


def test_after_only_a_marker_the_next_sequence_of_its_epoch_is_zero(open_log):
    log = open_log()
    append(log, producer_id=1, epoch=0, sequence=0, transactional=True)
    end(log, producer_id=1, epoch=1, transaction_version=2)
    code = refused(append, log, producer_id=1, epoch=1, sequence=1, transactional=True)
    assert code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, producer_id=1, epoch=1, sequence=0, transactional=True)


def test_a_plain_batch_inside_a_transaction_is_refused(open_log):
    log = open_log()
    append(log, producer_id=1, epoch=0, sequence=0, transactional=True)
    assert refused(append, log, producer_id=1, epoch=0, sequence=1) == ErrorCode.INVALID_TXN_STATE


def test_a_transactional_append_needs_the_very_guard_that_is_stored(open_log):
    log = open_log()
    batch = {'producer_id': 1, 'epoch': 0, 'sequence': 0, 'transactional': True}
    assert refused(append, log, guard=object(), **batch) == ErrorCode.INVALID_TXN_STATE
    guard = log.producer_state.start_verification(1, 0, 0, False, T)
    other = open_log(name='topic-1').producer_state.start_verification(1, 0, 0, False, T)
    assert refused(append, log, guard=other, **batch) == ErrorCode.INVALID_TXN_STATE
    append(log, guard=guard, **batch)
    assert log.producer_state.start_verification(1, 0, 1, False, T) is None
    append(log, guard=guard, **{**batch, 'sequence': 1})
    end(log, producer_id=1, epoch=0)
    assert refused(append, log, guard=guard, **{**batch, 'sequence': 2}) == ErrorCode.INVALID_TXN_STATE


def test_a_stale_epoch_is_named_before_a_wrong_guard(open_log):
    log = open_log()
    append(log, producer_id=1, epoch=5, sequence=0)
    assert refused(append, log, producer_id=1, epoch=4, sequence=0, transactional=True,
                   guard=object()) == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(KafkaError) as raised:
        log.producer_state.start_verification(1, 4, 0, True, T)
    assert raised.value.code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_verification_remembers_the_lowest_sequence_so_that_no_gap_can_begin_a_transaction(open_log):
    log = open_log()
    guard = log.producer_state.start_verification(1, 0, 5, True, T)
    assert log.producer_state.start_verification(1, 0, 9, True, T) is guard
    assert refused(append, log, producer_id=1, epoch=0, sequence=9, transactional=True,
                   guard=guard) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.producer_state.start_verification(1, 0, 0, True, T) is guard
    append(log, producer_id=1, epoch=0, sequence=0, transactional=True, guard=guard)


def test_a_marker_leaves_the_verification_of_the_next_transaction_alone(open_log):
    """A client may send a request with a raised epoch before the marker that raises the epoch is written (KAFKA-18654).
    """
    log = open_log()
    append(log, producer_id=1, epoch=0, sequence=0, transactional=True)
    guard = log.producer_state.start_verification(1, 1, 0, True, T)
    end(log, producer_id=1, epoch=1, transaction_version=2)
    append(log, producer_id=1, epoch=1, sequence=0, transactional=True, guard=guard)


def test_markers_obey_epoch_and_coordinator_epoch(open_log):
    log = open_log()
    append(log, producer_id=1, epoch=3, sequence=0, transactional=True)
    assert refused(end, log, producer_id=1, epoch=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(end, log, producer_id=1, epoch=3, transaction_version=2) == ErrorCode.INVALID_PRODUCER_EPOCH
    end(log, producer_id=1, epoch=4, transaction_version=2, coordinator_epoch=5)
    end(log, producer_id=1, epoch=4, transaction_version=2, coordinator_epoch=5)
    assert refused(end, log, producer_id=1, epoch=4, coordinator_epoch=4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_the_last_epoch_may_end_its_own_transaction(open_log):
    log = open_log()
    append(log, producer_id=1, epoch=32767, sequence=0, transactional=True)
    end(log, producer_id=1, epoch=32767, transaction_version=2)
    assert log.producer_state.unstable.ongoing == {}


def test_offset_commits_of_a_transaction_carry_no_sequence(open_log):
    log = open_log()
    for _ in range(3):
        append(log, origin=Origin.COORDINATOR, producer_id=1, epoch=0, sequence=-1, transactional=True)
    end(log, producer_id=1, epoch=0)
    assert log.producer_state.get(1).last_sequence == -1 and log.log_end_offset == 4


def test_the_first_unstable_offset_is_the_smallest_of_open_and_unreplicated_transactions(open_log):
    log = open_log()
    for producer_id in range(1, 5):
        append(log, producer_id=producer_id, epoch=0, sequence=0, transactional=True)
    expected = [(2, 0), (1, 0), (4, 0), (3, 0)]
    for producer_id, first_unstable in expected:
        end(log, producer_id=producer_id, epoch=0)
        assert log.first_unstable_offset() == first_unstable
    for high_watermark, first_unstable in ((4, 0), (5, 0), (6, 2), (7, 2), (8, None)):
        log.producer_state.unstable.on_high_watermark(high_watermark)
        assert log.first_unstable_offset() == first_unstable, high_watermark


def test_idle_producers_expire_but_not_with_an_open_transaction(open_log):
    log = open_log()
    append(log, producer_id=1, epoch=0, sequence=0, timestamp_ms=T)
    append(log, producer_id=2, epoch=0, sequence=0, timestamp_ms=T, transactional=True)
    log.producer_state.start_verification(3, 0, 0, False, T)
    assert run_to_end(log.producer_state.remove_expired(T + 86_399_999)) == 0
    assert run_to_end(log.producer_state.remove_expired(T + 86_400_000)) == 1
    assert list(log.producer_state.entries) == [2] and not log.producer_state.verifications


def test_snapshots_are_kafkas_to_the_byte():
    table = ProducerStateTable()
    assert table.encode_snapshot() == EMPTY_SNAPSHOT
    table.load_snapshot(ONE_ENTRY_SNAPSHOT, 42, T)
    assert table.encode_snapshot() == ONE_ENTRY_SNAPSHOT
    entry = table.get(1000)
    assert (entry.producer_epoch, entry.batches, entry.coordinator_epoch, entry.transaction_first_offset) == (
        3, [(1, 41, 1, T + 5)], -1, 40)
    assert table.unstable.ongoing == {40: 1000} and table.end_offset == 42


@pytest.mark.parametrize('damage', [
    lambda data: data[:-1], lambda data: data[:5], lambda data: b'\0\2' + data[2:],
    lambda data: data[:20] + b'\1' + data[21:], lambda data: data + b'\0', lambda data: b''])
def test_a_damaged_snapshot_is_refused(damage):
    table = ProducerStateTable()
    with pytest.raises(CorruptLogError):
        table.load_snapshot(damage(ONE_ENTRY_SNAPSHOT), 42, T)
    assert table.entries == {} and table.unstable.ongoing == {}


@pytest.mark.parametrize('clean', [True, False])
def test_state_survives_a_restart(open_log, clean):
    log = open_log()
    append(log, count=2, producer_id=1, epoch=3, sequence=0)
    append(log, producer_id=2, epoch=0, sequence=0, transactional=True)
    append(log, producer_id=3, epoch=0, sequence=0, transactional=True)
    end(log, producer_id=3, epoch=0, commit=False, coordinator_epoch=4)
    before = log.producer_state.active_producers()
    log.flush()
    log.close(clean)
    again = open_log(clean)
    assert again.producer_state.active_producers() == before
    assert again.producer_state.unstable.ongoing == {2: 2} and again.first_unstable_offset() == 2
    assert append(again, count=2, producer_id=1, epoch=3, sequence=0).is_duplicate
    assert again.aborted_transactions(0, again.log_end_offset) == [(3, 3)]


def test_a_corrupt_snapshot_falls_back_to_an_older_one_and_replay(open_log):
    log = open_log()
    append(log, producer_id=1, epoch=0, sequence=0)
    log.roll()
    append(log, producer_id=2, epoch=0, sequence=0)
    append(log, producer_id=2, epoch=0, sequence=1)
    log.close()
    assert log.snapshots.offsets == [1, 2]
    path = log.snapshots.path(2)
    with open(path, 'r+b') as file:
        file.write(b'\0\1garbage')
    again = open_log()
    assert again.producer_state.get(1).last_sequence == 0 and again.producer_state.get(2).last_sequence == 1
    assert again.snapshots.offsets == [1]


def test_a_producer_that_expired_and_came_back_as_a_marker_is_no_fault_of_the_snapshot(open_log):
    """In an earlier version, the check expected the sequence of a batch that the broker had forgotten with the expired
    producer. A random test found this fault."""
    log = open_log()
    log.append_batch(data_batch(producer_id=1, epoch=0, sequence=0), Origin.CLIENT, 0)
    run_to_end(log.producer_state.remove_expired(T + log.producer_state.expiration_ms + 1))
    log.append_batch(marker_batch(commit=False, producer_id=1, epoch=0), Origin.COORDINATOR, 0)
    log.close()
    assert check_partition(FileSystem(), log.directory) == []


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=60), st.integers(1, 4))
def test_open_and_completed_transactions_are_those_of_a_simple_model(steps, lag):
    """Transactions begin and end in any order. The high watermark is `lag` batches below the log end."""
    table = ProducerStateTable()
    is_open, completed = {}, []         # {producer id: first offset}; [(marker offset, first offset)]
    for offset, (producer_id, ends) in enumerate(steps):
        if ends:
            batch = marker_batch(producer_id=producer_id, epoch=0, commit=offset % 2 == 0)
        else:
            batch = data_batch(producer_id=producer_id, epoch=0, sequence=offset, transactional=True)
        set_base_offset(batch, offset)
        others = [first for other, first in is_open.items() if other != producer_id]
        row = table.replay_batch(batch)
        if not ends:
            is_open.setdefault(producer_id, offset)
        elif producer_id in is_open:
            if offset % 2:
                last_stable_offset = min(others, default=offset + 1)
                assert (row.first_offset, row.last_stable_offset) == (is_open[producer_id], last_stable_offset)
            completed.append((offset, is_open.pop(producer_id)))
        completed = [(marker, first) for marker, first in completed if marker >= offset - lag]
        table.unstable.on_high_watermark(offset - lag)
        assert list(table.unstable.ongoing.items()) == sorted((first, other) for other, first in is_open.items())
        held_back = [*is_open.values(), *(first for _, first in completed)]
        assert table.unstable.first_offset() == min(held_back, default=None)

"""The filter that decides which records a read_committed consumer receives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import record as reference

from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import CorruptBatchError, encode_batch, iter_batches
from kbroker.record.control import encode_end_txn_marker

T = 1_700_000_000_000


def data(base_offset: int, producer_id: int, *, transactional: bool = True, records: int = 1) -> bytearray:
    epoch, sequence = (0, 0) if producer_id >= 0 else (-1, -1)
    return encode_batch(
        [(T, None, b'v')] * records,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def marker(base_offset: int, producer_id: int, *, commit: bool) -> bytearray:
    batch = encode_end_txn_marker(
        commit=commit, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp_ms=T
    )
    batch[:8] = base_offset.to_bytes(8, 'big')
    return batch


def delivered(batches: list[bytearray], aborted: list[tuple[int, int]]) -> list[int]:
    abort_filter = AbortFilter(aborted)
    return [
        header.base_offset for header, batch in iter_batches(b''.join(batches)) if abort_filter.admits(header, batch)
    ]


def test_an_aborted_transaction_is_left_out_and_the_next_one_is_not():
    log = [data(0, 1), data(1, 1), marker(2, 1, commit=False), data(3, 1), marker(4, 1, commit=True)]
    assert delivered(log, [(1, 0)]) == [3]


def test_only_the_aborting_producer_is_left_out():
    log = [
        data(0, 1),
        data(1, 2),
        data(2, -1, transactional=False),
        data(3, 1),
        marker(4, 2, commit=True),
        marker(5, 1, commit=False),
    ]
    assert delivered(log, [(1, 0)]) == [1, 2]


def test_a_producer_may_abort_again_and_again():
    log = [
        data(0, 1),
        marker(1, 1, commit=False),
        data(2, 1),
        marker(3, 1, commit=True),
        data(4, 1),
        marker(5, 1, commit=False),
    ]
    assert delivered(log, [(1, 4), (1, 0)]) == [2]


def test_a_batch_before_the_first_aborted_offset_is_delivered():
    assert delivered([data(0, 1), data(1, 1), marker(2, 1, commit=False)], [(1, 1)]) == [0]


def test_a_fetch_may_start_inside_an_aborted_transaction():
    assert delivered([data(10, 1), marker(11, 1, commit=False), data(12, 1)], [(1, 3)]) == [12]


def test_idempotent_batches_outside_transactions_are_delivered():
    assert delivered([data(0, 1), data(1, 1, transactional=False), marker(2, 1, commit=False)], [(1, 0)]) == [1]


def test_control_batches_are_never_delivered():
    assert delivered([marker(0, 1, commit=True), marker(1, 1, commit=False)], []) == []


def test_a_control_batch_that_compaction_emptied_ends_nothing():
    empty = encode_batch(
        [],
        base_offset=1,
        last_offset_delta=0,
        max_timestamp_ms=T,
        producer_id=1,
        producer_epoch=0,
        control=True,
        transactional=True,
    )
    assert delivered([data(0, 1), empty, data(2, 1), marker(3, 1, commit=False)], [(1, 0)]) == []


@pytest.mark.parametrize('key', [None, b'', b'\0\0\0'])
def test_a_control_record_without_a_type_is_refused(key):
    broken = encode_batch(
        [(T, key, b'')], base_offset=1, producer_id=1, producer_epoch=0, control=True, transactional=True
    )
    with pytest.raises(CorruptBatchError):
        delivered([data(0, 1), broken], [(1, 0)])


@st.composite
def logs(draw):
    """Generate a log with interleaved transactions of a few producers, and the list of its aborted transactions in
    random order.
    """
    log, aborted, first_offsets, offset = [], [], {}, draw(st.integers(0, 100))
    for producer_id, kind, records in draw(
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from('dddpac'), st.integers(1, 3)), max_size=40)
    ):
        if kind == 'd':
            first_offsets.setdefault(producer_id, offset)
            log.append(data(offset, producer_id, records=records))
            offset += records
        elif kind == 'p':
            log.append(data(offset, producer_id if records > 1 else -1, transactional=False, records=records))
            offset += records
        else:
            log.append(marker(offset, producer_id, commit=kind == 'c'))
            if kind == 'a' and producer_id in first_offsets:
                aborted.append((producer_id, first_offsets[producer_id]))
            first_offsets.pop(producer_id, None)
            offset += 1
    start = draw(st.integers(0, len(log)))
    return log[start:], draw(st.permutations(aborted))


@given(logs())
def test_the_filter_delivers_what_the_reference_does(log_and_aborted):
    log, aborted = log_and_aborted
    assert delivered(log, aborted) == reference.delivered(
        [reference.decode_batch(bytes(batch)) for batch in log], aborted
    )

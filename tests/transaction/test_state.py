"""The state machine of a transaction: its allowed transitions, and rows that must not become the current row."""
import itertools

import pytest

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.transaction.state import (
    ENTERED_FROM,
    STORED,
    IllegalTransition,
    TransactionMetadata,
    TransactionRow,
    TransactionState,
    set_of,
)

S = TransactionState
ORDERS = frozenset({('orders', 0)})
ONGOING = TransactionRow(S.ONGOING, 7, 3, 60000, 100, 100, ORDERS, 7)
EMPTY = TransactionRow(S.EMPTY, 7, 3, 60000, 100, previous_producer_id=7)
STEPS = {
    S.EMPTY: lambda metadata: metadata.prepare_epoch_increment(60000, None, 200),
    S.ONGOING: lambda metadata: metadata.prepare_partitions(set_of([('orders', 1)]), 0, 200),
    S.PREPARE_COMMIT: lambda metadata: metadata.prepare_end(S.PREPARE_COMMIT, 0, -1, 200),
    S.PREPARE_ABORT: lambda metadata: metadata.prepare_end(S.PREPARE_ABORT, 2, -1, 200),
    S.DEAD: lambda metadata: metadata.prepare_dead(),
    S.PREPARE_EPOCH_FENCE: lambda metadata: metadata.prepare_epoch_fence(),
}


# The columns: Kafka's name of the state, its id, whether it is stored in rows, then the states that may precede it.
PRECEDING = """
Empty              0 yes Empty CompleteCommit CompleteAbort
Ongoing            1 yes Ongoing Empty CompleteCommit CompleteAbort
PrepareCommit      2 yes Ongoing
PrepareAbort       3 yes Ongoing PrepareEpochFence Empty CompleteCommit CompleteAbort
CompleteCommit     4 yes PrepareCommit
CompleteAbort      5 yes PrepareAbort
Dead               6 no  Empty CompleteCommit CompleteAbort
PrepareEpochFence  7 no  Ongoing
"""


@pytest.mark.parametrize('line', PRECEDING.strip().splitlines())
def test_a_state_has_the_id_and_the_predecessors_that_kafka_gives_it(line):
    name, number, stored, *preceding = line.split()
    found = TransactionState(int(number))
    assert found.title == name
    assert (found in STORED) == (stored == 'yes')
    assert {entered.title for entered in ENTERED_FROM[found]} == set(preceding)


@pytest.mark.parametrize(('found', 'step'), list(itertools.product(sorted(STORED), STEPS)))
def test_a_step_is_refused_from_every_state_that_the_table_does_not_name(found, step):
    metadata = TransactionMetadata('tx-1', ONGOING._replace(state=found))
    if found in ENTERED_FROM[step]:
        assert STEPS[step](metadata).state is step
    else:
        with pytest.raises(IllegalTransition, match=f'{step.title} cannot follow {found.title}'):
            STEPS[step](metadata)


@pytest.mark.parametrize('step', STEPS)
def test_no_step_may_be_prepared_while_another_is_pending(step):
    metadata = TransactionMetadata('tx-1', EMPTY)
    metadata.prepare_partitions(set_of(ORDERS), 0, 200)
    with pytest.raises(IllegalTransition, match='pending'):
        STEPS[step](metadata)


def test_an_abandoned_step_leaves_what_was_in_force():
    metadata = TransactionMetadata('tx-1', EMPTY)
    metadata.prepare_partitions(set_of(ORDERS), 0, 200)
    metadata.abandon()
    assert metadata.current == EMPTY
    assert metadata.pending is None


@pytest.mark.parametrize(('current', 'pending'), [
    (EMPTY, EMPTY._replace(producer_epoch=5)),
    (EMPTY, EMPTY._replace(partitions=ORDERS)),
    (EMPTY, EMPTY._replace(start_timestamp_ms=100)),
    (EMPTY, EMPTY._replace(producer_id=8, producer_epoch=1)),
    (ONGOING, ONGOING._replace(producer_epoch=4)),
    (ONGOING, ONGOING._replace(producer_id=8)),
    (ONGOING, ONGOING._replace(partitions=frozenset())),
    (ONGOING, ONGOING._replace(timeout_ms=1)),
    (ONGOING, ONGOING._replace(state=S.PREPARE_COMMIT, producer_epoch=4)),
    (ONGOING, ONGOING._replace(state=S.PREPARE_COMMIT, partitions=ORDERS | {('orders', 1)})),
    (ONGOING, ONGOING._replace(state=S.PREPARE_ABORT, start_timestamp_ms=101)),
    (ONGOING, ONGOING._replace(state=S.PREPARE_ABORT, timeout_ms=1)),
    (ONGOING, ONGOING._replace(state=S.PREPARE_ABORT, producer_epoch=4, last_producer_epoch=2,
                               client_transaction_version=2)),
    (ONGOING._replace(state=S.PREPARE_ABORT), ONGOING._replace(state=S.COMPLETE_ABORT, partitions=frozenset(),
                                                               producer_epoch=4)),
    (ONGOING._replace(state=S.PREPARE_ABORT), ONGOING._replace(state=S.COMPLETE_ABORT, partitions=frozenset(),
                                                               start_timestamp_ms=-1)),
    (ONGOING._replace(state=S.PREPARE_ABORT), ONGOING._replace(state=S.COMPLETE_ABORT, partitions=frozenset(),
                                                               producer_id=8, producer_epoch=0,
                                                               previous_producer_id=6, client_transaction_version=2)),
    (EMPTY, EMPTY._replace(state=S.DEAD)),
    (ONGOING, ONGOING._replace(state=S.PREPARE_EPOCH_FENCE)),
    (ONGOING, None),
])
def test_a_row_that_does_not_follow_is_not_adopted(current, pending):
    metadata = TransactionMetadata('tx-1', current)
    metadata.pending = pending
    with pytest.raises(IllegalTransition):
        metadata.adopt()
    assert metadata.current == current


def test_a_fence_bumps_the_epoch_once_however_often_its_append_fails():
    metadata = TransactionMetadata('tx-1', ONGOING)
    for _ in range(3):
        metadata.prepare_epoch_fence()
        metadata.prepare_end(S.PREPARE_ABORT, 0, -1, 200)
        metadata.abandon()
        metadata.has_failed_epoch_fence = True
        assert metadata.current.producer_epoch == 4


def test_a_fence_at_the_largest_epoch_keeps_it():
    metadata = TransactionMetadata('tx-1', ONGOING._replace(producer_epoch=32767))
    assert metadata.prepare_epoch_fence().producer_epoch == 32767


def test_an_abort_found_at_the_largest_epoch_keeps_it_and_goes_over_to_the_next_producer_id():
    metadata = TransactionMetadata('tx-1', ONGOING._replace(producer_epoch=32767))
    prepared = metadata.prepare_end(S.PREPARE_ABORT, 2, 8, 200)
    assert (prepared.producer_id, prepared.producer_epoch, prepared.next_producer_id) == (7, 32767, 8)
    metadata.adopt()
    metadata.prepare_complete(300)
    completed = metadata.adopt()
    assert (completed.producer_id, completed.producer_epoch, completed.previous_producer_id) == (8, 0, 7)


def test_an_exhausted_epoch_is_never_incremented():
    metadata = TransactionMetadata('tx-1', EMPTY._replace(producer_epoch=32766))
    with pytest.raises(IllegalTransition):
        metadata.prepare_epoch_increment(60000, None, 200)
    with pytest.raises(KafkaError) as refused:
        metadata.prepare_epoch_increment(60000, 5, 200)
    assert refused.value.code is ErrorCode.PRODUCER_FENCED


def test_the_names_are_those_of_kafkas_tools():
    assert [found.title for found in TransactionState] == [
        'Empty', 'Ongoing', 'PrepareCommit', 'PrepareAbort', 'CompleteCommit', 'CompleteAbort', 'Dead',
        'PrepareEpochFence']

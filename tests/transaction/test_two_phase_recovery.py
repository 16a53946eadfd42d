"""The machine stops before or after each step of a kept transaction (KIP-939), and the next start restores the
transaction.

Covers promises 2 and 5 of docs/design.md.
"""
import pytest
from support.worlds.transaction_coordinator import STATE_TOPIC, World

from kbroker.base.errors import ErrorCode
from kbroker.transaction.state import TransactionState

S = TransactionState
NONE = ErrorCode.NONE
ORDERS, AUDIT = ('orders', 0), ('audit', 0)


@pytest.fixture
def world():
    """Return a coordinator with an open transaction in two partitions. Its producer id is 1000, its epoch 0, and its
    rows are durable."""
    world = World(immediate=False)
    world.init(is_two_phase=True)
    world.flush()
    world.add((1000, 0), ORDERS, AUDIT, version=2)
    world.flush()
    for topic, partition in (ORDERS, AUDIT):
        world.write((1000, 0), topic, partition)
    world.flush()
    return world


def keep(world):
    return world.init(is_two_phase=True, keeps=True)


def kept(world):
    """Let a client keep the transaction, and make this durable. Return the client's (producer id, epoch)."""
    assert keep(world) is None
    world.flush()
    assert world.row().is_kept
    return world.row().client_producer_id, world.row().client_producer_epoch


def markers(world):
    return [kind for topic, partition in (ORDERS, AUDIT) for kind, *_ in world.markers(topic, partition)]


def ends(world, kind, pair):
    """Let the transaction end. Check that its markers have its producer id, and that `pair` is the client's next
    (producer id, epoch)."""
    world.run_until_idle()
    row = world.row()
    assert row.state is (S.COMPLETE_COMMIT if kind == 'COMMIT' else S.COMPLETE_ABORT)
    assert (row.producer_id, row.producer_epoch) == pair
    for topic, partition in (ORDERS, AUDIT):
        found = world.markers(topic, partition)
        assert {marker[:3] for marker in found} == {(kind, 1000, 1)}


@pytest.mark.parametrize('rows_left', [0, 1])
def test_a_keep_that_was_not_durable_is_there_or_not_and_a_further_one_goes_on(world, rows_left):
    assert keep(world) is None
    world.crash(rows_left)
    assert world.row().is_kept == bool(rows_left)
    assert world.row().state is S.ONGOING
    assert kept(world) == (1000, 1 + rows_left)
    assert markers(world) == []


def test_a_kept_transaction_is_neither_ended_nor_changed_by_starts_and_time(world):
    pair, before = kept(world), world.row()
    for _ in range(2):
        world.crash()
        world.pass_time(10**12)
        world.flush()
        assert world.row()._replace(last_producer_epoch=-1) == before._replace(last_producer_epoch=-1)
    assert world.end(pair, True, version=2) is None
    ends(world, 'COMMIT', (1000, 2))


@pytest.mark.parametrize('committed', [True, False])
@pytest.mark.parametrize('rows_left', [0, 1])
def test_a_decision_that_was_not_durable_is_there_or_not(world, rows_left, committed):
    pair = kept(world)
    assert world.end(pair, committed, version=2) is None
    world.crash(rows_left)
    if not rows_left:
        assert world.row().is_kept and world.row().state is S.ONGOING
        assert world.end(pair, committed, version=2) is None
    ends(world, 'COMMIT' if committed else 'ABORT', (1000, 2))
    assert world.end(pair, committed, version=2) == (NONE, 1000, 2)


@pytest.mark.parametrize('durable', [(), ('orders',), ('audit',), ('orders', 'audit')])
@pytest.mark.parametrize('is_killed_again', [False, True])
def test_a_decided_transaction_gets_the_markers_that_it_lacks(world, durable, is_killed_again):
    pair = kept(world)
    world.end(pair, True, version=2)
    world.flush(STATE_TOPIC)
    if durable:
        world.flush(*durable)
    world.crash()
    assert world.coordinator.store.kept_count == 1
    if is_killed_again:
        world.flush('orders')
        world.crash()
    ends(world, 'COMMIT', (1000, 2))
    assert world.coordinator.store.kept_count == 0
    assert world.end(pair, True, version=2) == (NONE, 1000, 2)


def test_a_complete_row_that_was_lost_is_written_again_with_the_same_pair(world):
    pair = kept(world)
    world.end(pair, True, version=2)
    world.flush()
    world.flush()
    assert world.row().state is S.COMPLETE_COMMIT
    world.crash()
    assert world.row().state is S.PREPARE_COMMIT
    ends(world, 'COMMIT', (1000, 2))
    world.write_held()
    world.flush()
    world.crash()
    assert world.row().state is S.COMPLETE_COMMIT
    assert world.end(pair, True, version=2) == (NONE, 1000, 2)


def test_a_client_that_crashes_in_a_loop_gets_a_new_producer_id_and_the_transaction_keeps_its_own(world):
    for _ in range(2):
        kept(world)
        metadata = world.coordinator.store.find('tx-1')[1]
        metadata.current = metadata.current._replace(next_producer_epoch=32765)
    assert kept(world) == (1000, 32766)
    pair = kept(world)
    assert pair == (1001, 0)
    world.crash()
    assert (world.row().producer_id, world.row().producer_epoch) == (1000, 0)
    assert world.end(pair, True, version=2) is None
    ends(world, 'COMMIT', (pair[0], 1))


def test_a_transaction_that_was_left_without_a_keep_is_aborted_by_its_client(world):
    world.crash()
    assert world.init(is_two_phase=True) is None
    ends(world, 'ABORT', (1000, 1))

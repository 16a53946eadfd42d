"""A ListTransactions request for open transactions visits only open transactions, however many idle transactional ids
there are."""
import pytest
from support.worlds.transaction_coordinator import World

from kbroker.apis import list_transactions
from kbroker.base.errors import ErrorCode
from kbroker.transaction.state import TransactionMetadata, TransactionRow, TransactionState

IDLE_IDS = 2_000


@pytest.fixture
def world():
    """Return a coordinator with many idle transactional ids in memory, and with tx-1, which can begin a transaction."""
    world = World()
    for number in range(IDLE_IDS):
        name = f'idle-{number}'
        world.coordinator.store.add_new(world.coordinator.store.owner(name), TransactionMetadata(
            name, TransactionRow(TransactionState.EMPTY, 10_000 + number, 0, 60_000, world.clock.wall_ms())))
    world.init()
    return world


def visited(world, states):
    """Return the transactional ids that a ListTransactions request with this state filter visits."""
    wanted = list_transactions.Filters(states, producer_ids=(), shortest_ms=-1, now_ms=0)
    return [name for name, _ in world.coordinator.list_transactions(wanted.want_open_only)]


@pytest.mark.parametrize('states', [['Ongoing'], ['Ongoing', 'PrepareCommit'], ['PrepareAbort'], ['NoSuchState']])
def test_a_list_by_states_that_are_open_visits_open_transactions_only(world, states):
    assert visited(world, states) == []
    world.transaction((1000, 0))
    assert visited(world, states) == ['tx-1']
    world.end((1000, 0), True)
    assert visited(world, states) == []


@pytest.mark.parametrize('states', [[], ['Empty'], ['Ongoing', 'CompleteCommit']])
def test_a_list_by_states_that_are_idle_visits_all_ids(world, states):
    world.transaction((1000, 0))
    assert len(visited(world, states)) == IDLE_IDS + 1


def test_the_search_for_timed_out_transactions_takes_one_part_with_many_idle_ids(world):
    world.transaction((1000, 0))
    world.pass_time(60_001)
    assert list(world.coordinator._abort_timed_out()) == []
    world.run_until_idle()
    assert world.row().state is TransactionState.COMPLETE_ABORT


def test_open_transactions_are_found_after_a_restart_and_a_decided_one_until_it_is_complete():
    world = World(immediate=False)
    world.init()
    world.flush()
    world.add((1000, 0))
    world.flush()
    world.crash()
    world.flush()
    assert [name for name, _ in world.coordinator.list_transactions(True)] == ['tx-1']
    world.end((1000, 0), True)
    world.flush('__transaction_state')
    (_, row), = world.coordinator.list_transactions(True)
    assert row.state is TransactionState.PREPARE_COMMIT
    world.run_until_idle()
    assert list(world.coordinator.list_transactions(True)) == []
    assert world.end((1000, 0), True).error is ErrorCode.NONE

"""The rows that the coordinator writes for whole transactions have the same bytes as those of Kafka 4.3. Only the row
of a bump has a tag of kbroker's own, too."""
import pytest
from support.worlds.transaction_coordinator import STATE_TOPIC, World, producer_to

from kbroker.base.errors import ErrorCode
from kbroker.transaction.state import MAX_PRODUCER_EPOCH, TransactionMetadata, TransactionRow, TransactionState
from kbroker.transaction.state_log import decode_row, encode_row

T = 1_700_000_000_000
KEY = '0000000474782d31'
EMPTY_V0 = '000000000000000003e800000000ea6000ffffffff0000018bcfe56800ffffffffffffffff'
ONGOING_V0 = ('000000000000000003e800030000ea60010000000100066f7264657273000000020000000000000001'
              '0000018bcfe568050000018bcfe56800')
EMPTY_V1 = '000100000000000003e800000000ea6000000000018bcfe56800ffffffffffffffff01000800000000000003e8'
BUMPED_V1 = ('000100000000000003e800010000ea6000000000018bcfe56800ffffffffffffffff02000800000000000003e8'
             '859f01020000')         # tag 20357, 2 bytes, the epoch before the bump
FENCED_V1 = '000100000000000003e800020000ea6000000000018bcfe56800ffffffffffffffff01000800000000000003e8'
ONGOING_V1 = ('000100000000000003e800030000ea600102076f7264657273030000000000000001000000018bcfe568050000018bcfe56800'
              '02000800000000000003e802020002')
PREPARE_COMMIT_V1 = ('000100000000000003e800040000ea600202076f7264657273030000000000000001000000018bcfe568090000018b'
                     'cfe5680002000800000000000003e802020002')
COMPLETE_COMMIT_V1 = ('000100000000000003e800040000ea6004010000018bcfe5680c0000018bcfe56800'
                      '02000800000000000003e802020002')
OVERFLOW_PREPARE_V1 = ('000100000000000003e87fff0000ea600302076f72646572730200000000000000018bcfe568090000018bcfe56800'
                       '03000800000000000003e8010800000000000007d002020002')
OVERFLOW_COMPLETE_V1 = ('000100000000000007d000000000ea6005010000018bcfe5680c0000018bcfe5680002000800000000000003e8'
                        '02020002')
KEPT_V1 = ('000100000000000003e800037fffffff0102076f7264657273030000000000000001000000018bcfe568050000018bcfe56800'
           '04000800000000000003e8010800000000000003e80202000203020004')
PREPARE_COMMIT_OF_KEPT_V1 = ('000100000000000003e800047fffffff0202076f7264657273030000000000000001000000018bcfe56809'
                             '0000018bcfe5680004000800000000000003e8010800000000000003e80202000203020005')
ORDERS = (('orders', 0), ('orders', 1))


def values(world):
    assert {key.hex() for key, _ in world.records()} == {KEY}
    return [value.hex() for _, value in world.records()]


def put(world, row):
    """Set the current row of tx-1 directly, without the requests that lead to it."""
    store = world.coordinator.store
    store.add_new(store.owner('tx-1'), TransactionMetadata('tx-1', row))


def test_a_first_initialisation_below_transaction_version_1():
    world = World(transaction_version=0)
    assert world.init() == (ErrorCode.NONE, 1000, 0)
    assert values(world) == [EMPTY_V0]


def test_a_first_initialisation_at_transaction_version_2_names_its_own_id_as_the_previous():
    world = World()
    assert world.init() == (ErrorCode.NONE, 1000, 0)
    assert values(world) == [EMPTY_V1]


def test_a_bump_keeps_the_epoch_before_it_and_the_row_of_a_new_client_does_not():
    world = World()
    world.init()
    assert world.init(producer_id=1000, producer_epoch=0) == (ErrorCode.NONE, 1000, 1)
    assert world.init() == (ErrorCode.NONE, 1000, 2)
    assert values(world) == [EMPTY_V1, BUMPED_V1, FENCED_V1]


def test_an_open_transaction_below_transaction_version_1():
    world = World(transaction_version=0)
    put(world, TransactionRow(TransactionState.ONGOING, 1000, 3, 60000, T, T, frozenset(ORDERS[:1])))
    world.clock.advance(5)
    assert world.add((1000, 3), *ORDERS) is ErrorCode.NONE
    assert values(world) == [ONGOING_V0]


def test_a_transaction_that_bumps_its_epoch_from_begin_to_end():
    world = World(immediate=False)
    put(world, TransactionRow(TransactionState.ONGOING, 1000, 3, 60000, T, T, frozenset(ORDERS[:1])))
    world.clock.advance(5)
    assert world.add((1000, 3), *ORDERS, version=2) is None
    world.flush()
    world.clock.advance(4)
    assert world.end((1000, 3), committed=True, version=2) is None
    world.clock.advance(3)
    world.flush(STATE_TOPIC)
    world.flush('orders')
    world.write_held()
    assert values(world) == [ONGOING_V1, PREPARE_COMMIT_V1, COMPLETE_COMMIT_V1]


def test_an_abort_at_an_exhausted_epoch_reserves_the_next_producer_id_and_goes_over_to_it():
    world = World(immediate=False)
    world.producer_ids.next()
    world.blocks.next_block = 2000
    while world.producer_ids.next() != 1999:
        pass
    put(world, TransactionRow(TransactionState.ONGOING, 1000, MAX_PRODUCER_EPOCH - 1, 60000, T, T,
                              frozenset({('orders', 0)}), client_transaction_version=2))
    world.clock.advance(9)
    answers = []
    world.coordinator.ender.end_txn('tx-1', 1000, MAX_PRODUCER_EPOCH - 1, False, 2, None, producer_to(answers))
    world.clock.advance(3)
    world.flush(STATE_TOPIC)
    assert answers == [(ErrorCode.NONE, 2000, 0)]
    world.flush('orders')
    world.write_held()
    assert values(world) == [OVERFLOW_PREPARE_V1, OVERFLOW_COMPLETE_V1]
    assert world.markers() == [('ABORT', 1000, MAX_PRODUCER_EPOCH, 0)]


def test_a_kept_transaction_and_its_commit():
    world = World(immediate=False)
    put(world, TransactionRow(TransactionState.ONGOING, 1000, 3, 60000, T, T, frozenset(ORDERS),
                              client_transaction_version=2))
    world.clock.advance(5)
    assert world.init(is_two_phase=True, keeps=True) is None
    world.flush()
    world.clock.advance(4)
    assert world.end((1000, 4), committed=True, version=2) is None
    world.flush(STATE_TOPIC)
    assert values(world) == [KEPT_V1, PREPARE_COMMIT_OF_KEPT_V1]


@pytest.mark.parametrize('value', [EMPTY_V0, ONGOING_V0, EMPTY_V1, ONGOING_V1, COMPLETE_COMMIT_V1,
                                   OVERFLOW_COMPLETE_V1, KEPT_V1, PREPARE_COMMIT_OF_KEPT_V1])
def test_a_row_of_kafka_is_read_as_it_is_written(value):
    transactional_id, row = decode_row(bytes.fromhex(KEY), bytes.fromhex(value))
    assert transactional_id == 'tx-1'
    assert encode_row('tx-1', row, int(value[:4], 16)) == (bytes.fromhex(KEY), bytes.fromhex(value))

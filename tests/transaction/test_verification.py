"""The coordinator's answer when a Produce or TxnOffsetCommit asks it before the first write to a partition."""
import pytest
from support.worlds.transaction_coordinator import STATE_TOPIC, World

from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode
from kbroker.transaction.verification import Mode, error_for_produce, error_for_write

ORDERS = ('orders', 0)


def ask(world, producer, version, partitions=(ORDERS,), transactional_id='tx-1'):
    """Verify partitions as a Produce does. Return a list. When the coordinator answers, {partition: error code} is
    appended to it."""
    answers = []
    world.coordinator.add_or_verify_partitions(
        transactional_id, *producer, [world.topics.get(*partition) for partition in partitions], version,
        Callback(lambda error, refused: answers.append(
            {partition: refusal.code for partition, refusal in (refused or {}).items()} if error is None
            else dict.fromkeys(partitions, error.code))), 0)
    return answers


def ask_for_offsets(world, producer, version):
    answers = []
    world.coordinator.add_or_verify_offsets_partition(
        'tx-1', *producer, 3, version, Callback(lambda error, _: answers.append(error and error.code)), 0)
    return answers


@pytest.fixture
def world():
    world = World()
    world.init()
    return world


@pytest.fixture
def finishing():
    """Return a coordinator with a transaction of tx-1 whose decision is durable, but whose marker is not."""
    world = World(immediate=False)
    world.init()
    world.flush()
    world.add((1000, 0), ORDERS, version=2)
    world.flush()
    world.end((1000, 0), True, version=2)
    world.flush(STATE_TOPIC)
    return world


def test_a_produce_of_tv2_adds_its_partitions(world):
    assert ask(world, (1000, 0), 12, [ORDERS, ('orders', 1)]) == [{}]
    assert world.row().partitions == {ORDERS, ('orders', 1)}
    assert world.row().client_transaction_version == 2


@pytest.mark.parametrize(('version', 'error'), [(11, ErrorCode.TRANSACTION_ABORTABLE),
                                                (10, ErrorCode.INVALID_TXN_STATE), (3, ErrorCode.INVALID_TXN_STATE)])
def test_a_produce_before_tv2_needs_partitions_that_were_added(world, version, error):
    world.add((1000, 0), ('orders', 1))
    assert ask(world, (1000, 0), version, [ORDERS, ('orders', 1)]) == [{ORDERS: error}]


def test_verification_can_be_switched_off_and_the_implicit_add_cannot():
    world = World(settings={'transaction.partition.verification.enable': 'false'})
    world.init()
    assert ask(world, (1000, 0), 11) == [{}]
    assert ask_for_offsets(world, (1000, 0), 4) == [None]
    assert world.row().partitions == frozenset()
    assert ask(world, (1000, 0), 12) == [{}]
    assert world.row().partitions == {ORDERS}


@pytest.mark.parametrize('version', [3, 11, 12])
def test_a_fenced_producer_gets_an_invalid_epoch(world, version):
    world.init()
    assert ask(world, (1000, 0), version) == [{ORDERS: ErrorCode.INVALID_PRODUCER_EPOCH}]


def test_a_producer_before_tv2_retries_on_not_enough_replicas_while_its_transaction_is_finished(finishing):
    assert ask(finishing, (1000, 1), 11) == [{ORDERS: ErrorCode.NOT_ENOUGH_REPLICAS}]


def test_a_produce_of_tv2_waits_for_the_completion_of_the_transaction_before(finishing):
    answers = ask(finishing, (1000, 1), 12)
    assert answers == []
    finishing.flush('orders')
    assert answers == []
    finishing.flush(STATE_TOPIC)
    assert answers == [{}]
    assert finishing.row().producer_epoch == 1


def test_a_produce_of_tv2_waits_no_longer_than_100_ms(finishing):
    answers = ask(finishing, (1000, 1), 12)
    for _ in range(4):
        finishing.pass_time(20)
    assert answers == []
    finishing.pass_time(20)
    assert answers == [{ORDERS: ErrorCode.CONCURRENT_TRANSACTIONS}]
    finishing.run_until_idle()
    assert len(answers) == 1
    assert finishing.row().state.title == 'CompleteCommit'


def test_of_many_that_wait_each_is_answered_once(finishing):
    answers = [ask(finishing, (1000, 1), 12, [('orders', partition)]) for partition in range(3)]
    finishing.pass_time(20)
    finishing.run_until_idle()
    assert all(len(each) == 1 for each in answers)
    assert answers[0] == [{}]


def test_a_producer_gets_no_error_about_coordinators():
    world = World()
    world.coordinator.stop()
    assert ask(world, (1000, 0), 12) == [{ORDERS: ErrorCode.NOT_ENOUGH_REPLICAS}]
    assert ask(world, (1000, 0), 3) == [{ORDERS: ErrorCode.NOT_ENOUGH_REPLICAS}]


def test_an_offset_commit_of_tv2_adds_its_partition(world):
    assert ask_for_offsets(world, (1000, 0), 5) == [None]
    assert world.row().partitions == {('__consumer_offsets', 3)}


@pytest.mark.parametrize(('version', 'error'), [(4, ErrorCode.TRANSACTION_ABORTABLE), (3, ErrorCode.INVALID_TXN_STATE),
                                                (0, ErrorCode.INVALID_TXN_STATE)])
def test_an_offset_commit_before_tv2_needs_a_partition_that_was_added(world, version, error):
    assert ask_for_offsets(world, (1000, 0), version) == [error]
    world.add((1000, 0), ('__consumer_offsets', 3))
    assert ask_for_offsets(world, (1000, 0), version) == [None]


@pytest.mark.parametrize('version', [3, 4, 5])
def test_an_offset_commit_is_not_kept_waiting(finishing, version):
    assert ask_for_offsets(finishing, (1000, 1), version) == [ErrorCode.CONCURRENT_TRANSACTIONS]


@pytest.mark.parametrize(('mode', 'code', 'told'), [
    (Mode.ADD, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
    (Mode.VERIFY, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
    (Mode.VERIFY_LEGACY, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
    *[(mode, code, ErrorCode.NOT_ENOUGH_REPLICAS) for mode in Mode for code in (
        ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR)],
    *[(mode, code, code) for mode in Mode for code in (
        ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_EPOCH)],
    (Mode.ADD, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
])
def test_each_error_as_a_producer_gets_it(mode, code, told):
    assert error_for_produce(mode, code) is told


@pytest.mark.parametrize('mode', Mode)
def test_an_offset_commit_gets_errors_about_coordinators(mode):
    for code in (ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS):
        assert error_for_write(mode, code) is code

"""Requests of producers to the transaction coordinator: InitProducerId, AddPartitionsToTxn, EndTxn, fences and
timeouts."""
import pytest
from support.worlds.transaction_coordinator import STATE_TOPIC, World, code_to, producer_to

from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.transaction.state import TransactionState

S = TransactionState
NONE = ErrorCode.NONE
EXHAUSTED = 32766


@pytest.fixture
def world():
    return World()


@pytest.fixture
def slow():
    """Return a coordinator whose appends are durable only after a flush."""
    return World(immediate=False)


def producer_of(answer):
    assert answer.error is NONE, answer
    return answer.producer_id, answer.producer_epoch


def at_epoch(world, epoch, last_epoch=-1):
    """Initialise a new producer, and set its epoch directly. Return its (producer id, epoch)."""
    world.init()
    _, metadata = world.coordinator.store.find('tx-1')
    metadata.current = metadata.current._replace(producer_epoch=epoch, last_producer_epoch=last_epoch)
    return metadata.current.producer_id, epoch


# -- InitProducerId


def test_a_producer_without_a_transactional_id_gets_an_id_of_its_own_at_once(slow):
    assert slow.init(None) == (NONE, 1000, 0)
    assert slow.init(None, 5, 5) == (NONE, 1001, 0)


def test_a_producer_id_is_given_only_once_its_row_is_durable(slow):
    answers = []
    slow.coordinator.init_producer_id('tx-1', 60000, -1, -1, producer_to(answers))
    assert answers == []
    slow.flush()
    assert answers == [(NONE, 1000, 0)]


def test_each_initialisation_bumps_the_epoch(world):
    assert [world.init() for _ in range(3)] == [(NONE, 1000, 0), (NONE, 1000, 1), (NONE, 1000, 2)]


@pytest.mark.parametrize(('producer_id', 'producer_epoch'), [(5, -1), (-1, 5)])
def test_half_a_producer_is_an_invalid_request(world, producer_id, producer_epoch):
    assert world.init('tx-1', producer_id, producer_epoch).error is ErrorCode.INVALID_REQUEST
    assert world.init(None, producer_id, producer_epoch).error is ErrorCode.INVALID_REQUEST


def test_an_empty_transactional_id_is_an_invalid_request(world):
    assert world.init('').error is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize('timeout_ms', [-1, 0, 900_001])
def test_a_timeout_outside_the_bounds_is_refused(world, timeout_ms):
    assert world.init(timeout_ms=timeout_ms).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert world.init(timeout_ms=900_000).error is NONE


def test_nothing_else_happens_while_a_row_is_on_its_way(slow):
    answers = []
    slow.coordinator.init_producer_id('tx-1', 60000, -1, -1, producer_to(answers))
    assert slow.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    slow.flush()
    slow.coordinator.add_partitions('tx-1', 1000, 0, [('orders', 0)], 0, code_to(answers))
    for busy in (slow.init().error, slow.add((1000, 0)), slow.end((1000, 0), True).error,
                 slow.end((1000, 0), True, version=2).error):
        assert busy is ErrorCode.CONCURRENT_TRANSACTIONS


def test_an_id_whose_first_row_never_was_durable_is_unknown(slow):
    slow.coordinator.init_producer_id('tx-1', 60000, -1, -1, producer_to([]))
    slow.state_partition().fail(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS))
    assert slow.add((1000, -1)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert slow.end((1000, -1), False, version=2).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert list(slow.coordinator.list_transactions()) == []
    with pytest.raises(KafkaError) as refused:
        slow.row()
    assert refused.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    answers = []
    slow.coordinator.init_producer_id('tx-1', 60000, 77, 5, producer_to(answers))
    slow.flush()
    assert answers == [(NONE, 1000, 0)]


def test_a_producer_that_names_its_epoch_gets_the_next_one_and_the_same_answer_when_it_asks_again(world):
    producer = producer_of(world.init())
    assert world.init('tx-1', *producer) == (NONE, 1000, 1)
    assert world.init('tx-1', *producer) == (NONE, 1000, 1)
    assert world.init('tx-1', 1000, 1) == (NONE, 1000, 2)


def test_a_zombie_that_names_its_epoch_is_fenced(world):
    zombie = producer_of(world.init())
    world.init()
    assert world.init('tx-1', *zombie).error is ErrorCode.PRODUCER_FENCED
    assert world.init('tx-1', 999, 1).error is ErrorCode.PRODUCER_FENCED


def test_an_exhausted_epoch_goes_over_to_a_new_producer_id(world):
    at_epoch(world, EXHAUSTED)
    assert world.init() == (NONE, 1001, 0)
    assert world.row().previous_producer_id == 1000


def test_a_producer_that_names_an_exhausted_epoch_goes_over_too_and_may_repeat_itself(world):
    """If a producer repeats its InitProducerId at epoch 32766, it must get the same new producer id again. In Kafka,
    the epoch was bumped twice (KAFKA-19367)."""
    exhausted = at_epoch(world, EXHAUSTED)
    assert world.init('tx-1', *exhausted) == (NONE, 1001, 0)
    assert world.init('tx-1', *exhausted) == (NONE, 1001, 0)
    assert world.init('tx-1', 1001, 0) == (NONE, 1001, 1)


def test_an_exhausted_epoch_and_a_wrong_one_is_fenced(world):
    at_epoch(world, EXHAUSTED)
    assert world.init('tx-1', 1000, 17).error is ErrorCode.PRODUCER_FENCED


def test_while_no_block_of_producer_ids_can_be_had_clients_retry(world):
    world.blocks.fails = True
    assert world.init(None).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.blocks.fails = False
    assert world.init() == (NONE, 1000, 0)


def test_a_producer_id_is_never_given_twice_across_restarts(world):
    given = [producer_of(world.init(None)) for _ in range(3)]
    world.crash()
    given += [producer_of(world.init(None)) for _ in range(3)]
    assert len(set(given)) == 6


@pytest.mark.parametrize('version', [0, 1, 2])
def test_a_new_producer_aborts_the_open_transaction_of_the_old_one(version):
    world = World(transaction_version=version)
    producer = producer_of(world.init())
    world.transaction(producer)
    assert world.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.row().state is S.COMPLETE_ABORT
    assert world.markers() == [('ABORT', 1000, 1, 0)]
    assert world.init() == (NONE, 1000, 2)
    assert world.add(producer) is ErrorCode.PRODUCER_FENCED
    assert world.end(producer, True).error is ErrorCode.PRODUCER_FENCED


def test_a_zombie_may_abort_the_running_transaction_but_does_not_come_in(world):
    zombie = producer_of(world.init())
    running = producer_of(world.init())
    world.transaction(running)
    assert world.init('tx-1', *zombie).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.init('tx-1', *zombie).error is ErrorCode.PRODUCER_FENCED


# -- partitions


def test_partitions_join_one_transaction(world):
    producer = producer_of(world.init())
    assert world.add(producer, ('orders', 0)) is NONE
    world.clock.advance(10)
    assert world.add(producer, ('orders', 1), ('audit', 0)) is NONE
    row = world.row()
    assert row.state is S.ONGOING
    assert row.partitions == {('orders', 0), ('orders', 1), ('audit', 0)}
    assert row.last_update_timestamp_ms - row.start_timestamp_ms == 10


def test_partitions_that_are_in_already_are_not_logged_again(world):
    producer = producer_of(world.init())
    world.add(producer, ('orders', 0), ('orders', 1))
    before = len(world.rows())
    assert world.add(producer, ('orders', 1)) is NONE
    assert len(world.rows()) == before


@pytest.mark.parametrize(('transactional_id', 'producer', 'error'), [
    ('', (1000, 0), ErrorCode.INVALID_REQUEST),
    (None, (1000, 0), ErrorCode.INVALID_REQUEST),
    ('tx-9', (1000, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ('tx-1', (1001, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ('tx-1', (1000, 1), ErrorCode.PRODUCER_FENCED),
])
def test_partitions_of_a_stranger_are_refused(world, transactional_id, producer, error):
    world.init()
    assert world.add(producer, transactional_id=transactional_id) is error
    verified = world.coordinator.verify_partitions(transactional_id, *producer, [('orders', 0)])
    assert verified == {('orders', 0): error}


def test_no_partition_joins_while_the_previous_transaction_is_finished(slow):
    slow.init()
    slow.flush()
    slow.add((1000, 0))
    slow.flush()
    slow.end((1000, 0), True)
    slow.flush(STATE_TOPIC)
    assert slow.row().state is S.PREPARE_COMMIT
    assert slow.add((1000, 0)) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert slow.coordinator.verify_partitions('tx-1', 1000, 0, [('orders', 0)]) == {
        ('orders', 0): ErrorCode.CONCURRENT_TRANSACTIONS}
    slow.run_until_idle()
    slow.add((1000, 0), ('audit', 0))
    slow.flush()
    assert slow.row().partitions == {('audit', 0)}


def test_a_verification_answers_for_each_partition(world):
    producer = producer_of(world.init())
    world.add(producer, ('orders', 0))
    assert world.coordinator.verify_partitions('tx-1', *producer, [('orders', 0), ('orders', 1)]) == {
        ('orders', 0): NONE, ('orders', 1): ErrorCode.TRANSACTION_ABORTABLE}


def test_the_offsets_of_a_group_join_by_their_partition(world):
    producer = producer_of(world.init())
    answers = []
    world.coordinator.add_offsets('tx-1', *producer, 2, None, code_to(answers))
    assert answers == [NONE]
    assert world.row().partitions == {('__consumer_offsets', 2)}


def test_a_client_of_transaction_version_2_is_refused_while_level_0_is_finalized():
    world = World(transaction_version=0)
    producer = producer_of(world.init())
    assert world.add(producer, version=2) is ErrorCode.UNSUPPORTED_VERSION
    assert world.end(producer, False, version=2).error is ErrorCode.UNSUPPORTED_VERSION


# -- EndTxn without a bump


@pytest.mark.parametrize(('committed', 'kind', 'state'), [(True, 'COMMIT', S.COMPLETE_COMMIT),
                                                         (False, 'ABORT', S.COMPLETE_ABORT)])
def test_an_ending_reaches_every_partition_with_the_epoch_of_the_data(world, committed, kind, state):
    producer = producer_of(world.init())
    world.transaction(producer)
    assert world.end(producer, committed) == (NONE, 1000, 0)
    assert world.markers(partition=0) == world.markers(partition=1) == [(kind, 1000, 0, 0)]
    assert world.markers(partition=2) == []
    assert world.row().state is state
    assert world.end(producer, committed).error is NONE
    assert world.end(producer, not committed).error is ErrorCode.INVALID_TXN_STATE


def test_an_ending_without_a_transaction_is_a_wrong_state(world):
    producer = producer_of(world.init())
    assert world.end(producer, True).error is ErrorCode.INVALID_TXN_STATE
    assert world.end(producer, False).error is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize('epoch', [0, 2])
def test_an_ending_needs_the_very_epoch_in_force(world, epoch):
    """An EndTxn with an epoch above the coordinator's must be fenced, too. Kafka accepted it (KAFKA-9600)."""
    world.init()
    running = producer_of(world.init())
    world.transaction(running)
    assert world.end((1000, epoch), True).error is ErrorCode.PRODUCER_FENCED
    assert world.row().state is S.ONGOING


def test_an_ending_is_answered_when_the_decision_is_durable_and_not_before(slow):
    slow.init()
    slow.flush()
    slow.add((1000, 0))
    slow.flush()
    answers = []
    slow.coordinator.ender.end_txn('tx-1', 1000, 0, True, 0, None, producer_to(answers))
    assert answers == []
    assert slow.markers() == []
    slow.flush(STATE_TOPIC)
    assert answers == [(NONE, 1000, 0)]
    assert slow.endings() == ['COMMIT']
    assert slow.states()[-1] == 'PrepareCommit'
    assert slow.end((1000, 0), True).error is ErrorCode.CONCURRENT_TRANSACTIONS
    slow.run_until_idle()
    assert slow.states()[-1] == 'CompleteCommit'


# -- EndTxn with a bump (TV2)


@pytest.mark.parametrize(('committed', 'kind'), [(True, 'COMMIT'), (False, 'ABORT')])
def test_with_tv2_each_ending_bumps_the_epoch_and_the_marker_carries_it(world, committed, kind):
    producer = producer_of(world.init())
    world.transaction(producer, version=2)
    assert world.end(producer, committed, version=2) == (NONE, 1000, 1)
    assert world.markers() == [(kind, 1000, 1, 0)]
    world.transaction((1000, 1), version=2)
    assert world.end((1000, 1), committed, version=2) == (NONE, 1000, 2)


@pytest.mark.parametrize('committed', [True, False])
@pytest.mark.parametrize('restart', [False, True])
def test_a_producer_that_lost_the_answer_to_its_ending_gets_the_epoch_by_asking_again(world, committed, restart):
    producer = producer_of(world.init())
    world.transaction(producer, version=2)
    world.end(producer, committed, version=2)
    if restart:
        world.write_held()
        world.crash()
    assert world.end(producer, committed, version=2) == (NONE, 1000, 1)
    assert world.endings() == ['COMMIT' if committed else 'ABORT']


@pytest.mark.parametrize('restart', [False, True])
@pytest.mark.parametrize('committed', [True, False])
def test_an_ending_at_the_last_epoch_answers_with_the_next_producer_id(world, committed, restart):
    """Kafka's answer had the old producer id (KAFKA-18660), and after a failover, Kafka did not recognise a repeated
    EndTxn (KAFKA-20310)."""
    exhausted = at_epoch(world, EXHAUSTED)
    world.transaction(exhausted, version=2)
    assert world.end(exhausted, committed, version=2) == (NONE, 1001, 0)
    assert world.markers() == [('COMMIT' if committed else 'ABORT', 1000, 32767, 0)]
    if restart:
        world.crash()
    assert world.end(exhausted, committed, version=2) == (NONE, 1001, 0)
    world.transaction((1001, 0), version=2)
    assert world.end((1001, 0), True, version=2) == (NONE, 1001, 1)


def test_an_ending_at_the_last_epoch_is_not_decided_without_the_next_producer_id(world):
    exhausted = at_epoch(world, EXHAUSTED)
    world.transaction(exhausted, version=2)
    world.blocks.fails = True
    while True:
        try:
            world.producer_ids.next()
        except KafkaError:
            break
    assert world.end(exhausted, True, version=2).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.row().state is S.ONGOING
    world.blocks.fails = False
    assert world.end(exhausted, True, version=2) == (NONE, 2000, 0)


@pytest.mark.parametrize('before', ['Empty', 'CompleteCommit', 'CompleteAbort'])
def test_an_abort_with_nothing_to_abort_bumps_the_epoch(world, before):
    """In Kafka, an abort without an open transaction, directly after a commit, fenced its own producer
    (KAFKA-18464)."""
    producer = producer_of(world.init())
    if before != 'Empty':
        world.transaction(producer, version=2)
        producer = producer_of(world.end(producer, before == 'CompleteCommit', version=2))
    assert world.row().state.title == before
    markers = world.markers()
    assert world.end(producer, False, version=2) == (NONE, 1000, producer[1] + 1)
    assert world.row().start_timestamp_ms == world.clock.wall_ms()
    world.write_held()
    assert world.states()[-2:] == ['PrepareAbort', 'CompleteAbort']
    assert world.markers() == markers


def test_an_abort_right_behind_a_commit_waits_until_that_is_finished(slow):
    """In Kafka, the transaction after the commit began before the committed transaction was complete (KAFKA-18575)."""
    slow.init()
    slow.flush()
    slow.add((1000, 0), version=2)
    slow.flush()
    answers = []
    slow.coordinator.ender.end_txn('tx-1', 1000, 0, True, 2, None, producer_to(answers))
    slow.flush(STATE_TOPIC)
    assert answers == [(NONE, 1000, 1)]
    assert slow.end((1000, 1), False, version=2).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert slow.add((1000, 1), version=2) is ErrorCode.CONCURRENT_TRANSACTIONS
    slow.run_until_idle()
    slow.end((1000, 1), False, version=2)
    slow.run_until_idle()
    assert slow.row().producer_epoch == 2


def test_a_producer_may_use_its_next_producer_id_before_that_is_in_force(slow):
    """The coordinator does not know the new producer id until the Complete row is durable. The producer, which got the
    id in an answer, must not get a fatal error for its requests with it."""
    slow.init()
    slow.flush()
    _, metadata = slow.coordinator.store.find('tx-1')
    metadata.current = metadata.current._replace(producer_epoch=EXHAUSTED)
    slow.add((1000, EXHAUSTED), version=2)
    slow.flush()
    answers = []
    slow.coordinator.ender.end_txn('tx-1', 1000, EXHAUSTED, True, 2, None, producer_to(answers))
    slow.flush(STATE_TOPIC)
    assert answers == [(NONE, 1001, 0)]
    assert slow.add((1001, 0), version=2) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert slow.end((1001, 0), False, version=2).error is ErrorCode.CONCURRENT_TRANSACTIONS
    written = []
    slow.coordinator.add_or_verify_partitions(
        'tx-1', 1001, 0, [slow.topics.get('orders', 0)], 12,
        Callback(lambda error, refused: written.append((error, refused))), 0)
    for _ in range(4):
        slow.flush()
    assert written == [(None, None)]
    assert (slow.row().state, slow.row().producer_id) == (S.ONGOING, 1001)


def test_a_commit_without_a_transaction_is_a_wrong_state_with_tv2_too(world):
    producer = producer_of(world.init())
    assert world.end(producer, True, version=2).error is ErrorCode.INVALID_TXN_STATE


def test_a_delayed_ending_cannot_end_a_later_transaction(world):
    first = producer_of(world.init())
    world.transaction(first, version=2)
    second = producer_of(world.end(first, True, version=2))
    world.transaction(second, version=2)
    assert world.end(first, False, version=2).error is ErrorCode.PRODUCER_FENCED
    assert world.row().state is S.ONGOING


def test_a_commit_that_races_an_abort_of_the_coordinator_is_fenced(world):
    """A commit may arrive after the coordinator has aborted its transaction. In Kafka, this commit got
    INVALID_TXN_STATE, which is fatal to clients that could continue after PRODUCER_FENCED (KAFKA-20785)."""
    producer = producer_of(world.init())
    world.transaction(producer, version=2)
    world.pass_time(70_000)
    assert world.row().state is S.COMPLETE_ABORT
    assert world.end(producer, True, version=2).error is ErrorCode.PRODUCER_FENCED


def test_a_producer_that_goes_over_to_tv2_between_transactions_goes_on(world):
    """If the broker is upgraded while a producer runs, the producer changes to TV2 between two transactions
    (KAFKA-18227)."""
    producer = producer_of(world.init())
    world.transaction(producer)
    assert world.end(producer, True) == (NONE, 1000, 0)
    world.transaction(producer, version=2)
    assert world.row().client_transaction_version == 2
    assert world.end(producer, True, version=2) == (NONE, 1000, 1)
    world.transaction((1000, 1))
    assert world.row().client_transaction_version == 0
    assert world.end((1000, 1), True) == (NONE, 1000, 1)
    assert world.markers() == [('COMMIT', 1000, 0, 0), ('COMMIT', 1000, 1, 0), ('COMMIT', 1000, 1, 0)]


# -- fences whose rows cannot be written


def fail_state_log(world, code):
    world.state_partition().refuse(KafkaError(code))


@pytest.mark.parametrize(('cause', 'told'), [
    (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
    (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
    (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
])
def test_a_row_that_cannot_be_written_changes_nothing(world, cause, told):
    producer = producer_of(world.init())
    before = world.row()
    fail_state_log(world, cause)
    assert world.add(producer) is told
    assert world.init().error is told
    assert world.row() == before
    world.state_partition().refuse(None)
    assert world.add(producer) is NONE


def test_a_row_that_never_became_durable_changes_nothing(slow):
    slow.init()
    slow.flush()
    answers = []
    slow.coordinator.add_partitions('tx-1', 1000, 0, [('orders', 0)], 0, code_to(answers))
    slow.state_partition().fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    assert answers == [ErrorCode.NOT_COORDINATOR]
    assert slow.row().state is S.EMPTY
    assert slow.coordinator.store.find('tx-1')[1].pending is None


@pytest.mark.parametrize(('version', 'epoch_after'), [(0, 1), (2, 1)])
def test_a_fence_whose_append_fails_does_not_bump_twice(version, epoch_after):
    """KAFKA-19367 and KAFKA-9666."""
    world = World(transaction_version=version)
    producer = producer_of(world.init())
    world.transaction(producer)
    fail_state_log(world, ErrorCode.NOT_ENOUGH_REPLICAS)
    for _ in range(3):
        assert world.init().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.state_partition().refuse(None)
    assert world.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.row().producer_epoch == epoch_after
    assert world.markers() == [('ABORT', 1000, epoch_after, 0)]
    assert world.init() == (NONE, 1000, epoch_after + 1)


def test_below_tv2_a_fence_whose_append_fails_fences_all_the_same():
    world = World(transaction_version=1)
    producer = producer_of(world.init())
    world.transaction(producer)
    fail_state_log(world, ErrorCode.NOT_ENOUGH_REPLICAS)
    world.init()
    world.state_partition().refuse(None)
    assert world.end(producer, True).error is ErrorCode.PRODUCER_FENCED


# -- time


@pytest.mark.parametrize(('version', 'client_version'), [(0, 0), (1, 0), (2, 0), (2, 2)])
def test_a_transaction_past_its_timeout_is_aborted_and_its_producer_fenced(version, client_version):
    world = World(transaction_version=version)
    producer = producer_of(world.init(timeout_ms=30_000))
    world.transaction(producer, version=client_version)
    world.pass_time(30_000)
    assert world.row().state is S.ONGOING
    world.pass_time(10_000)
    assert world.row().state is S.COMPLETE_ABORT
    assert world.markers() == [('ABORT', 1000, 1, 0)]
    assert world.add(producer, version=client_version) is ErrorCode.PRODUCER_FENCED
    assert world.end(producer, True, version=client_version).error is ErrorCode.PRODUCER_FENCED


def test_a_timeout_at_the_last_epoch_goes_over_to_a_new_producer_id(world):
    """In Kafka, the producer was fenced with epoch 32767 and got no new producer id. A delayed abort then left the
    transaction open for ever (KAFKA-20090)."""
    exhausted = at_epoch(world, EXHAUSTED)
    world.transaction(exhausted, version=2)
    world.pass_time(80_000)
    row = world.row()
    assert (row.state, row.producer_id, row.producer_epoch) == (S.COMPLETE_ABORT, 1001, 0)
    assert world.markers() == [('ABORT', 1000, 32767, 0)]
    assert world.end(exhausted, False, version=2) == (NONE, 1001, 0)


def test_below_tv2_a_fence_at_the_last_epoch_goes_over_at_the_next_initialisation():
    world = World(transaction_version=1)
    exhausted = at_epoch(world, EXHAUSTED)
    world.transaction(exhausted)
    assert world.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.markers() == [('ABORT', 1000, 32767, 0)]
    assert world.init() == (NONE, 1001, 0)


def test_a_producer_in_two_phase_commit_is_never_timed_out_and_its_open_transaction_does_not_expire(world):
    producer = producer_of(world.init())
    _, metadata = world.coordinator.store.find('tx-1')
    metadata.current = metadata.current._replace(timeout_ms=2147483647)
    world.transaction(producer)
    world.pass_time(10**12)
    assert world.row().state is S.ONGOING


def test_a_timeout_leaves_alone_what_is_being_decided(slow):
    slow.init()
    slow.flush()
    slow.add((1000, 0))
    slow.flush()
    slow.end((1000, 0), True)
    slow.pass_time(100_000)
    slow.run_until_idle()
    assert slow.row().state is S.COMPLETE_COMMIT


def test_an_idle_transactional_id_is_forgotten_after_a_week():
    world = World(settings={'transactional.id.expiration.ms': '604800000'})
    producer_of(world.init())
    in_use = producer_of(world.init('tx-2'))
    world.pass_time(604_800_000 - 1)
    world.init('tx-2', *in_use)
    world.pass_time(3_600_001)
    assert world.states() == ['Empty', None]
    assert world.add((1000, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.row('tx-2').state is S.EMPTY
    world.crash()
    with pytest.raises(KafkaError) as refused:
        world.row()
    assert refused.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_many_ids_expire_in_batches_no_larger_than_a_message_may_be():
    world = World(settings={'message.max.bytes': '300'})
    names = [f'a-rather-long-transactional-id-{number}' for number in range(60)]
    for name in names:
        world.init(name)
    partitions = world.topics.topic(STATE_TOPIC).partitions
    before = [len(partition.stored) for partition in partitions]
    world.pass_time(10**12)
    assert list(world.coordinator.list_transactions()) == []
    tombstones = [batch for partition, stored in zip(partitions, before, strict=True)
                  for batch in partition.stored[stored:]]
    assert 5 < len(tombstones) < 60
    assert all(len(batch) <= 300 for batch in tombstones)


def test_an_id_whose_tombstone_fails_stays(world):
    world.init()
    fail_state_log(world, ErrorCode.NOT_ENOUGH_REPLICAS)
    world.pass_time(10**12)
    world.state_partition().refuse(None)
    assert world.init() == (NONE, 1000, 1)


def test_an_id_that_is_about_to_expire_is_gone_for_tools_and_busy_for_producers(slow):
    slow.init()
    slow.flush()
    slow.pass_time(10**12)
    assert list(slow.coordinator.list_transactions()) == []
    with pytest.raises(KafkaError) as refused:
        slow.row()
    assert refused.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert slow.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    slow.flush()
    assert slow.coordinator.store.find('tx-1')[1] is None


def test_after_a_stop_no_timer_does_anything(world):
    producer = producer_of(world.init())
    world.transaction(producer)
    world.coordinator.stop()
    world.pass_time(10**12)
    assert world.markers() == []
    assert world.add(producer) is ErrorCode.NOT_COORDINATOR

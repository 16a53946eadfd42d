"""The power fails at every point of a transaction. Decided transactions are completed, and all partitions of a
transaction get the same outcome.

Covers promises 2, 4 and 5 of docs/design.md.
"""
import itertools

import pytest
from support.worlds.transaction_coordinator import STATE_TOPIC, World, producer_of

from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.record.batch import encode_batch
from kbroker.record.control import encode_end_txn_marker
from kbroker.record.records import decode_records
from kbroker.topics.partitioner import partition_for
from kbroker.transaction.state import EXHAUSTED_PRODUCER_EPOCH, TransactionState
from kbroker.transaction.state_log import decode_row, encode_row
from kbroker.transaction.store import HELD_MS, HELD_RETRY_BACKOFF_MS, MOST_TOGETHER_BYTES

S = TransactionState
PARTITIONS = (('orders', 0), ('orders', 1), ('audit', 0))


class Story:
    """One transaction with three partitions, as a list of steps. The power may fail between two steps."""

    def __init__(self, committed, version, ends_by):
        self.world = World(immediate=False)
        self.committed = committed
        self.version = version
        self.producer = None
        self.answer = None
        self.ends_by = ends_by
        self.steps = [
            self.init, self.flush_state, self.add, self.flush_state, self.write, self.flush_one_data_partition,
            getattr(self, ends_by), self.flush_state, lambda: self.flush_data(0), lambda: self.flush_data(1),
            lambda: self.flush_data(2), self.flush_state]

    def init(self):
        self.world.coordinator.init_producer_id('tx-1', 60000, -1, -1, Callback(self.initialised))

    def initialised(self, error, row):
        assert error is None
        self.producer = row.producer_id, row.producer_epoch

    def add(self):
        self.world.add(self.producer, *PARTITIONS, version=self.version)

    def write(self):
        for topic, partition in PARTITIONS:
            self.world.write(self.producer, topic, partition)

    def end_txn(self):
        self.world.coordinator.ender.end_txn('tx-1', *self.producer, self.committed, self.version, None,
                                             Callback(self.answered))

    def time_out(self):
        self.world.pass_time(80_000)

    def answered(self, error, row):
        self.answer = error, row

    def flush_state(self):
        self.world.flush(STATE_TOPIC)

    def flush_one_data_partition(self):
        self.flush_data(2)

    def flush_data(self, index):
        self.world.topics.get(*PARTITIONS[index]).flush()


STEPS = 12


@pytest.mark.parametrize(('committed', 'version', 'ends_by'), [
    (True, 0, 'end_txn'), (False, 0, 'end_txn'), (True, 2, 'end_txn'), (False, 2, 'end_txn'), (False, 0, 'time_out'),
    (False, 2, 'time_out')])
@pytest.mark.parametrize(('steps', 'kept_batches'), list(itertools.product(range(STEPS + 1), range(3))))
def test_after_a_power_failure_all_partitions_of_a_transaction_agree(committed, version, ends_by, steps, kept_batches):
    story = Story(committed, version, ends_by)
    world = story.world
    for step in story.steps[:steps]:
        step()
    assert len(story.steps) == STEPS
    world.crash(kept_batches)
    world.run_until_idle()
    try:
        state = world.row().state
    except KafkaError as unknown:
        assert unknown.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert story.producer is None
        return
    if story.answer is not None:
        assert state is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)
    if state is S.ONGOING:
        world.pass_time(80_000)
        world.run_until_idle()
        state = world.row().state
    ended = {tuple(sorted(set(world.endings(*partition)))) for partition in PARTITIONS}
    assert ended == {{S.COMPLETE_COMMIT: ('COMMIT',), S.COMPLETE_ABORT: ('ABORT',), S.EMPTY: ()}[state]}
    assert not any(producer_of(world.topics.get(*partition), 1000).is_open for partition in PARTITIONS if ended != {()})


# The answer to a bump is lost


def test_a_bump_whose_answer_was_lost_with_the_broker_is_answered_again():
    """The producer asks again with the epoch that it knows. A restart once forgot this epoch, and fenced the producer,
    although no other client had its transactional.id (KAFKA-20357). Apache Kafka still does."""
    world = World()
    assert world.init() == (ErrorCode.NONE, 1000, 0)
    assert world.init(producer_id=1000, producer_epoch=0) == (ErrorCode.NONE, 1000, 1)
    assert world.init(producer_id=1000, producer_epoch=0) == (ErrorCode.NONE, 1000, 1)
    for _ in range(2):
        world.crash()
        assert world.init(producer_id=1000, producer_epoch=0) == (ErrorCode.NONE, 1000, 1)
    assert world.init(producer_id=1000, producer_epoch=1) == (ErrorCode.NONE, 1000, 2)
    world.crash()
    assert world.init(producer_id=1000, producer_epoch=0) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def test_a_new_producer_id_whose_answer_was_lost_with_the_broker_is_answered_again():
    world = World()
    assert world.init() == (ErrorCode.NONE, 1000, 0)
    exhaust(world)
    answer = world.init(producer_id=1000, producer_epoch=EXHAUSTED_PRODUCER_EPOCH)
    assert answer == (ErrorCode.NONE, 1001, 0)
    world.crash()
    assert world.init(producer_id=1000, producer_epoch=EXHAUSTED_PRODUCER_EPOCH) == answer
    assert world.init(producer_id=1000, producer_epoch=EXHAUSTED_PRODUCER_EPOCH - 1).error is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize('is_exhausted', [False, True])
def test_a_producer_is_fenced_after_a_restart_if_another_one_has_taken_its_place(is_exhausted):
    world = World()
    assert world.init() == (ErrorCode.NONE, 1000, 0)
    epoch = exhaust(world) if is_exhausted else 0
    assert world.init() == ((ErrorCode.NONE, 1001, 0) if is_exhausted else (ErrorCode.NONE, 1000, 1))
    world.crash()
    assert world.init(producer_id=1000, producer_epoch=epoch) == (ErrorCode.PRODUCER_FENCED, -1, -1)


@pytest.mark.parametrize(('next_step', 'code'), [
    (lambda world: world.add((1000, 1), ('orders', 0), version=2), ErrorCode.CONCURRENT_TRANSACTIONS),
    (lambda world: world.end((1000, 1), False, version=2), ErrorCode.PRODUCER_FENCED),
])
def test_a_later_step_of_the_producer_shows_that_it_got_the_answer(next_step, code):
    """An open transaction is aborted first, as for every new producer. Its client then asks again, and is fenced."""
    world = World()
    world.init()
    world.init(producer_id=1000, producer_epoch=0)
    next_step(world)
    world.run_until_idle()
    world.crash()
    answer = world.init(producer_id=1000, producer_epoch=0)
    assert answer is None or answer.error is code
    world.run_until_idle()
    assert world.init(producer_id=1000, producer_epoch=0) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def test_rows_below_transaction_version_1_have_no_room_for_the_epoch_before_a_bump():
    world = World(transaction_version=0)
    world.init()
    assert world.init(producer_id=1000, producer_epoch=0) == (ErrorCode.NONE, 1000, 1)
    world.crash()
    assert world.init(producer_id=1000, producer_epoch=0) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def exhaust(world):
    """Set the epoch of tx-1 to the last one before a new producer id, as if many transactions had raised it. Return the
    epoch."""
    _, metadata = world.coordinator.store.find('tx-1')
    metadata.current = metadata.current._replace(producer_epoch=EXHAUSTED_PRODUCER_EPOCH)
    return EXHAUSTED_PRODUCER_EPOCH


@pytest.mark.parametrize('kept_batches', [0, 2])
def test_a_restart_sends_every_marker_again_with_the_new_coordinator_epoch(kept_batches):
    story = Story(True, 2, 'end_txn')
    for step in story.steps[:9]:
        step()
    story.world.crash(kept_batches)
    story.world.run_until_idle()
    again = [('COMMIT', 1000, 1, 1)]
    assert story.world.markers('orders', 0) == [('COMMIT', 1000, 1, 0), *again]
    assert story.world.markers('orders', 1) == [('COMMIT', 1000, 1, 0)] * (kept_batches > 0) + again
    assert story.world.row().state is S.COMPLETE_COMMIT


def test_a_marker_that_comes_twice_is_taken_although_it_carries_the_epoch_in_force():
    """In Kafka, the strict epoch rule of TV2 refused the repeated marker, and the transaction was never completed
    (KAFKA-19999)."""
    story = Story(False, 2, 'end_txn')
    for step in story.steps[:11]:
        step()
    for _ in range(3):
        story.world.crash()
    story.world.run_until_idle()
    assert story.world.row().state is S.COMPLETE_ABORT
    assert {epoch for _, _, epoch, _ in story.world.markers('audit', 0)} == {1}


def test_a_decision_that_was_read_but_is_not_durable_is_not_acted_on():
    world = World(immediate=False)
    world.init()
    world.flush()
    world.add((1000, 0), ('orders', 0))
    world.flush()
    world.end((1000, 0), True)
    world.coordinator.stop()
    world.start()
    assert world.markers() == []
    assert world.add((1000, 0)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.init().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.end((1000, 0), True).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    with pytest.raises(KafkaError) as refused:
        world.coordinator.list_transactions()
    assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.flush(STATE_TOPIC)
    assert world.endings() == ['COMMIT']


def test_an_open_transaction_goes_on_after_a_restart():
    world = World()
    world.init()
    world.transaction((1000, 0), version=2)
    world.crash()
    assert world.row().state is S.ONGOING
    assert world.add((1000, 0), ('audit', 0), version=2) is ErrorCode.NONE
    assert world.end((1000, 0), True, version=2) == (ErrorCode.NONE, 1000, 1)
    assert world.endings('audit') == ['COMMIT']


def test_without_a_state_topic_there_is_no_coordinator_and_a_new_topic_makes_one():
    world = World()
    world.topics.delete(STATE_TOPIC)
    assert world.init().error is ErrorCode.NOT_COORDINATOR
    assert list(world.coordinator.list_transactions()) == []
    world.topics.ensure_internal(STATE_TOPIC)
    assert world.init().error is ErrorCode.NONE


def test_partitions_added_to_the_state_topic_leave_the_running_coordinator_as_it_is():
    world = World()
    world.init()
    for listener in world.topics.on_topic_created:
        listener(world.topics.topic(STATE_TOPIC))
    assert world.init() == (ErrorCode.NONE, 1000, 1)


@pytest.mark.parametrize(('key', 'value'), [
    (b'\0\1\0\1x', None), (b'\0', None), (b'', None), (b'\0\0\0\4tx-9', b'\xff\xff' + bytes(50)),
    (b'\0\0\0\4tx-9', b'\0\0'), (None, b'x')])
def test_a_row_of_an_unknown_kind_is_skipped_with_a_warning(caplog, key, value):
    world = World()
    world.init()
    world.state_partition().append_batch(encode_batch([(0, key, value)]))
    world.crash()
    assert [row.state for _, row in world.coordinator.list_transactions()] == [S.EMPTY]
    assert 'skipped' in caplog.text


@pytest.mark.parametrize('state', [S.DEAD, S.PREPARE_EPOCH_FENCE])
def test_a_row_in_a_state_that_is_never_stored_is_skipped(caplog, state):
    world = World()
    world.init()
    row = world.row()._replace(state=state)
    world.state_partition().append_batch(encode_batch([(0, *encode_row('tx-1', row, 1))]))
    world.crash()
    assert world.row().state is S.EMPTY
    assert 'transaction status' in caplog.text


def test_control_batches_of_the_state_partition_are_skipped():
    world = World()
    world.init()
    world.state_partition().append_batch(encode_end_txn_marker(commit=True, producer_id=1, producer_epoch=1,
                                                         coordinator_epoch=0, timestamp_ms=0))
    world.crash()
    assert world.row().state is S.EMPTY


def world_at_the_end_of_a_transaction(**options):
    """Return a coordinator that holds back the Complete row of a transaction whose markers are durable."""
    world = World(immediate=False, **options)
    world.init()
    world.flush()
    world.add((1000, 0), ('orders', 0), version=2)
    world.flush()
    world.end((1000, 0), True, version=2)
    world.flush(STATE_TOPIC)
    world.flush('orders')
    assert world.row().state is S.COMPLETE_COMMIT
    assert world.states()[-1] == 'PrepareCommit'
    return world


def name_in_the_partition_of_tx_1(world):
    return next(name for name in map('other-{}'.format, range(100))
                if world.coordinator.store.owner(name) is world.coordinator.store.owner('tx-1'))


def all_rows(world):
    """Return (transactional.id, state) for each row in the state partition of tx-1, in the order of the log. The state
    of a tombstone is None."""
    decoded = [decode_row(key, value) for key, value in world.records()]
    return [(transactional_id, row and row.state) for transactional_id, row in decoded]


LATER_ROWS = {
    'the next transaction': lambda world: world.add((1000, 1), ('orders', 1), version=2),
    'an abort with nothing to abort': lambda world: world.end((1000, 1), False, version=2),
    'a new producer': lambda world: world.init(),
    'another id': lambda world: world.init(name_in_the_partition_of_tx_1(world)),
    'a tombstone': lambda world: (world.clock.advance(10**12), world.coordinator.remove_expired()),
    'no row': lambda world: None,
    'the timer': lambda world: world.write_held(),
}


@pytest.mark.parametrize('most_together_bytes', [MOST_TOGETHER_BYTES, 180])     # 180: two rows do not share a batch
@pytest.mark.parametrize('kept_batches', [0, 1, 2])
@pytest.mark.parametrize('later_row', LATER_ROWS)
def test_nothing_depends_on_a_complete_row_that_a_crash_could_take_away(later_row, kept_batches, most_together_bytes):
    """The log never has a row that was written after the Complete row, but not the Complete row itself. If a crash
    loses the Complete row, the next start creates a Complete row that equals the one that clients have seen."""
    world = world_at_the_end_of_a_transaction(most_together_bytes=most_together_bytes)
    prepare, seen = len(all_rows(world)) - 1, world.row()
    assert world.state_partition().high_watermark == world.state_partition().log_end_offset
    assert world.topics.get('orders', 0).high_watermark == world.topics.get('orders', 0).log_end_offset
    answer = world.end((1000, 0), True, version=2)
    assert answer == (ErrorCode.NONE, 1000, 1)
    LATER_ROWS[later_row](world)
    assert all_rows(world)[prepare] == ('tx-1', S.PREPARE_COMMIT)
    world.topics.power_loss(kept_batches)
    kept = [decode_row(record.key, record.value) for _, batch in world.topics.topic(STATE_TOPIC).partitions[
        partition_for('tx-1', 5)].batches() for record in decode_records(batch)][prepare + 1:]
    assert not kept or (kept[0][0], kept[0][1].state) == ('tx-1', S.COMPLETE_COMMIT)
    world.start()
    world.run_until_idle()
    if len(kept) <= 1:
        assert world.end((1000, 0), True, version=2) == answer
        assert world.row()._replace(last_producer_epoch=0, last_update_timestamp_ms=0) == seen._replace(
            last_producer_epoch=0, last_update_timestamp_ms=0)
    assert set(world.endings()) == {'COMMIT'}


@pytest.mark.parametrize(('kept_batches', 'state'), [(0, 'CompleteCommit'), (1, 'Ongoing')])
def test_a_transaction_that_begins_takes_the_complete_row_of_the_last_one_into_the_log(kept_batches, state):
    """The Ongoing row of the next transaction need not wait until the Complete row is durable, because a start can
    create the Complete row again. But the log never has the Ongoing row without the Complete row before it."""
    world = world_at_the_end_of_a_transaction()
    batches = len(world.state_partition().stored)
    assert world.add((1000, 1), ('orders', 1), version=2) is None       # answered once its row is durable
    assert world.states()[-3:] == ['PrepareCommit', 'CompleteCommit', 'Ongoing']
    assert len(world.state_partition().stored) == batches + 1
    assert world.row().state is S.COMPLETE_COMMIT
    world.write_held()
    assert len(world.state_partition().stored) == batches + 1
    world.crash(kept_batches)
    world.run_until_idle()
    assert (world.row().state.title, world.row().producer_epoch) == (state, 1)
    assert world.row().partitions == ({('orders', 1)} if state == 'Ongoing' else set())
    assert set(world.endings('orders', 0)) == {'COMMIT'} and world.endings('orders', 1) == []


def test_a_row_of_another_id_takes_a_complete_row_along():
    world = world_at_the_end_of_a_transaction()
    other = name_in_the_partition_of_tx_1(world)
    world.init(other)
    assert world.states()[-1] == 'CompleteCommit'
    assert world.states(other) == ['Empty']


def test_a_complete_row_that_no_other_row_takes_along_is_written_a_little_later():
    world = world_at_the_end_of_a_transaction()
    world.pass_time(HELD_MS - 1)
    assert world.states()[-1] == 'PrepareCommit'
    world.pass_time(1)
    assert world.states()[-2:] == ['PrepareCommit', 'CompleteCommit']
    world.flush()
    world.crash()
    assert world.endings() == ['COMMIT']


@pytest.mark.parametrize('kept_batches', [0, 1])
def test_a_kill_while_a_complete_row_is_held_sends_the_markers_again(kept_batches):
    world = world_at_the_end_of_a_transaction()
    before = world.row()
    world.crash(kept_batches)
    world.run_until_idle()
    assert world.endings() == ['COMMIT', 'COMMIT']
    assert world.row()._replace(last_producer_epoch=0, last_update_timestamp_ms=0) == before._replace(
        last_producer_epoch=0, last_update_timestamp_ms=0)
    assert world.add((1000, 1), ('orders', 0), version=2) is None
    world.flush()
    assert world.states()[-3:] == ['PrepareCommit', 'CompleteCommit', 'Ongoing']


def test_a_clean_stop_writes_the_complete_rows_that_are_held():
    world = world_at_the_end_of_a_transaction()
    world.coordinator.close()
    world.flush()
    world.crash()
    assert world.states()[-2:] == ['PrepareCommit', 'CompleteCommit']
    assert world.endings() == ['COMMIT']


def test_a_coordinator_that_lost_its_partitions_writes_nothing_that_it_held():
    world = world_at_the_end_of_a_transaction()
    partition = world.state_partition()
    stored = list(partition.stored)
    world.coordinator.stop()
    world.write_held()
    assert partition.stored == stored


def test_tombstones_go_behind_the_complete_rows_that_are_held():
    world = world_at_the_end_of_a_transaction(settings={'transactional.id.expiration.ms': '1'})
    world.clock.advance(2)
    world.coordinator.remove_expired()
    assert world.states()[-3:] == ['PrepareCommit', 'CompleteCommit', None]
    world.flush()
    world.write_held()
    assert world.states()[-1] is None
    world.crash()
    with pytest.raises(KafkaError) as unknown:
        world.row()
    assert unknown.value.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_tombstones_that_cannot_be_written_leave_what_is_held():
    world = world_at_the_end_of_a_transaction(settings={'transactional.id.expiration.ms': '1'})
    world.clock.advance(2)
    world.state_partition().refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, 'no room'))
    world.coordinator.remove_expired()
    world.state_partition().refuse(None)
    world.write_held()
    assert world.states()[-2:] == ['PrepareCommit', 'CompleteCommit']


def test_rows_that_are_too_much_for_one_batch_go_one_after_the_other():
    world = world_at_the_end_of_a_transaction(most_together_bytes=180)
    batches = len(world.state_partition().stored)
    assert world.add((1000, 1), *[('orders', 1), ('orders', 2)], version=2) is None
    assert world.states()[-3:] == ['PrepareCommit', 'CompleteCommit', 'Ongoing']
    assert len(world.state_partition().stored) == batches + 2
    assert all(len(batch) <= 180 for batch in world.state_partition().stored)


def test_complete_rows_that_are_too_much_for_one_batch_go_one_after_the_other():
    world = World(most_together_bytes=250)
    names = [name for name in map('id-{}'.format, range(100)) if world.coordinator.store.owner(name)
             is world.coordinator.store.owner('id-0')][:5]
    for name in names:
        world.init(name)
        world.transaction((1000 + names.index(name), 0), version=2, transactional_id=name)
    for fails in (False, True):
        for name in names:
            epoch = world.row(name).producer_epoch
            world.end((1000 + names.index(name), epoch), False, version=2, transactional_id=name)
            world.state_partition(name).refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR) if fails else None)
        world.state_partition(names[0]).refuse(None)
        world.write_held()
        world.pass_time(100)
    for name in names:
        states = world.states(name)
        assert states[-1] == 'CompleteAbort' and states.count('CompleteAbort') == states.count('PrepareAbort')


def test_the_markers_are_durable_before_the_complete_row_is_written():
    world = World(immediate=False)
    world.init()
    world.flush()
    world.add((1000, 0), ('orders', 0), ('audit', 0), version=2)
    world.flush()
    world.end((1000, 0), True, version=2)
    world.flush(STATE_TOPIC)
    world.flush('orders')
    world.write_held()
    assert world.row().state is S.PREPARE_COMMIT
    assert world.states()[-1] == 'PrepareCommit'
    world.flush('audit')
    world.write_held()
    assert world.states()[-1] == 'CompleteCommit'


def test_a_complete_row_that_cannot_be_appended_is_held_for_the_next_try():
    world = world_at_the_end_of_a_transaction()
    world.state_partition().refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, 'no room'))
    assert world.add((1000, 1), ('orders', 0), version=2) is ErrorCode.NOT_COORDINATOR
    world.write_held()
    assert world.row().state is S.COMPLETE_COMMIT
    assert world.states()[-1] == 'PrepareCommit'
    world.state_partition().refuse(None)
    world.pass_time(HELD_RETRY_BACKOFF_MS - 1)
    assert world.states()[-1] == 'PrepareCommit'
    world.pass_time(1)
    assert world.states()[-2:] == ['PrepareCommit', 'CompleteCommit']


def test_a_row_that_could_not_be_appended_is_not_held():
    world = world_at_the_end_of_a_transaction()
    world.state_partition().refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, 'no room'))
    world.add((1000, 1), ('orders', 0), version=2)
    world.state_partition().refuse(None)
    world.add((1000, 1), ('orders', 1), version=2)
    assert world.states()[-3:] == ['PrepareCommit', 'CompleteCommit', 'Ongoing']
    assert world.rows()[-1].partitions == {('orders', 1)}

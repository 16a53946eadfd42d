"""The markers of a decided transaction are written to all of its partitions, whatever fails."""
import pytest
from support.worlds.transaction_coordinator import STATE_TOPIC, World, markers_of

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.record.batch import iter_batches, set_base_offset, set_partition_leader_epoch
from kbroker.record.control import encode_end_txn_marker
from kbroker.transaction.state import TransactionState

S = TransactionState


@pytest.fixture
def world():
    """Return a coordinator with an open transaction of tx-1 in partitions 0 and 1 of `orders` and partition 0 of
    `audit`."""
    world = World()
    world.init()
    world.transaction((1000, 0), ('orders', 0), ('orders', 1), ('audit', 0))
    return world


@pytest.mark.parametrize('code', [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_REQUIRED_ACKS, ErrorCode.UNKNOWN_SERVER_ERROR,
])
def test_a_marker_that_fails_is_sent_again_and_the_others_only_once(world, code):
    failing = world.topics.get('orders', 1)
    failing.refuse(KafkaError(code))
    assert world.end((1000, 0), True).error is ErrorCode.NONE
    assert (world.endings(partition=0), world.endings(partition=1), world.endings('audit')) == (
        ['COMMIT'], [], ['COMMIT'])
    for _ in range(5):
        world.pass_time(100)
    assert world.row().state is S.PREPARE_COMMIT
    assert world.add((1000, 0)) is ErrorCode.CONCURRENT_TRANSACTIONS
    failing.refuse(None)
    world.pass_time(100)
    assert (world.endings(partition=0), world.endings(partition=1), world.endings('audit')) == (
        ['COMMIT'], ['COMMIT'], ['COMMIT'])
    assert world.row().state is S.COMPLETE_COMMIT


def test_a_marker_that_fails_for_minutes_is_logged_once_and_then_counted_each_minute(world, caplog):
    failing = world.topics.get('orders', 1)
    failing.refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    world.end((1000, 0), True)
    for _ in range(2 * 600):
        world.pass_time(100)
    failing.refuse(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS))
    for _ in range(600):
        world.pass_time(100)
    failing.refuse(None)
    for _ in range(2 * 600):
        world.pass_time(100)
    lines = [record.getMessage() for record in caplog.records if 'marker' in record.getMessage()]
    storage, replicas = (str(KafkaError(code)) for code in (ErrorCode.KAFKA_STORAGE_ERROR,
                                                            ErrorCode.NOT_ENOUGH_REPLICAS))
    counted = 'failed attempts to write a marker, in at most a minute: '
    assert [(line.startswith(beginning), line.endswith(f'{reason}; will retry'))
            for line, (beginning, reason) in zip(lines, [
                ('tx-1: the PrepareCommit marker', storage), (f'{counted}599.', storage), (f'{counted}600.', storage),
                ('tx-1: the PrepareCommit marker', replicas), (f'{counted}1.', storage), (f'{counted}599.', replicas)],
                strict=True)] == [(True, True)] * len(lines), lines


def test_a_marker_that_does_not_become_durable_is_sent_again():
    world = World(immediate=False)
    world.init()
    world.flush()
    world.add((1000, 0), ('orders', 0))
    world.flush()
    world.end((1000, 0), False)
    world.flush(STATE_TOPIC)
    world.topics.get('orders', 0).fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    world.pass_time(100)
    assert world.endings() == ['ABORT', 'ABORT']
    world.run_until_idle()
    assert world.row().state is S.COMPLETE_ABORT


@pytest.mark.parametrize('code', [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION])
def test_a_partition_that_cannot_hold_markers_needs_none(world, code):
    world.topics.get('orders', 1).refuse(KafkaError(code))
    world.end((1000, 0), True)
    assert world.row().state is S.COMPLETE_COMMIT


@pytest.mark.parametrize('code', [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_a_partition_that_fences_the_marker_leaves_the_transaction_prepared_until_the_next_load(world, code):
    failing = world.topics.get('orders', 1)
    failing.refuse(KafkaError(code))
    world.end((1000, 0), True)
    failing.refuse(None)
    world.run_until_idle()
    assert world.endings(partition=0) == ['COMMIT']
    assert world.row().state is S.PREPARE_COMMIT
    world.crash()
    assert world.row().state is S.COMPLETE_COMMIT


def test_a_topic_that_is_gone_needs_no_marker(world):
    world.topics.delete('audit')
    world.end((1000, 0), True)
    assert world.row().state is S.COMPLETE_COMMIT


def test_a_topic_that_goes_while_its_marker_is_tried_needs_no_marker_any_more(world):
    world.topics.get('audit', 0).refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    world.end((1000, 0), True)
    assert world.row().state is S.PREPARE_COMMIT
    world.topics.delete('audit')
    assert world.row().state is S.COMPLETE_COMMIT
    world.run_until_idle()
    assert world.endings() == ['COMMIT']


def test_a_topic_that_goes_while_its_marker_is_on_its_way_to_the_disk_is_not_waited_for():
    world = World(immediate=False)
    world.init()
    world.flush()
    world.add((1000, 0), ('orders', 0), ('audit', 0))
    world.flush()
    world.end((1000, 0), False)
    world.flush(STATE_TOPIC)
    world.flush('orders')
    audit = world.topics.get('audit', 0)
    world.topics.delete('audit')
    assert world.row().state is S.COMPLETE_ABORT
    audit.flush()
    world.run_until_idle()
    assert world.states()[-2:] == ['PrepareAbort', 'CompleteAbort']


@pytest.mark.parametrize('code', [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR])
def test_the_complete_row_is_written_again_until_it_is_in_the_log(code):
    world = World(immediate=False)
    world.init()
    world.flush()
    world.add((1000, 0), ('orders', 0))
    world.flush()
    world.end((1000, 0), True)
    world.flush(STATE_TOPIC)
    world.state_partition().refuse(KafkaError(code))
    world.run_until_idle()
    assert world.row().state is S.COMPLETE_COMMIT
    assert world.states()[-1] == 'PrepareCommit'
    world.state_partition().refuse(None)
    world.run_until_idle()
    assert world.states()[-2:] == ['PrepareCommit', 'CompleteCommit']
    assert world.endings() == ['COMMIT']


def test_all_markers_are_appended_before_any_is_waited_for():
    world = World(immediate=False)
    world.init()
    world.flush()
    world.add((1000, 0), ('orders', 0), ('orders', 1), ('audit', 0))
    world.flush()
    world.end((1000, 0), True)
    world.flush(STATE_TOPIC)
    assert [partition.log_end_offset - partition.high_watermark for partition in
            (world.topics.get('orders', 0), world.topics.get('orders', 1), world.topics.get('audit', 0))] == [1, 1, 1]


def test_the_marker_of_the_strict_rule_carries_the_transaction_version():
    """Without the transaction version, a delayed marker of the previous transaction would end the current transaction
    (KAFKA-19446)."""
    world = World()
    world.init()
    world.transaction((1000, 0), version=2)
    world.end((1000, 0), True, version=2)
    world.transaction((1000, 1), version=2)
    partition = world.topics.get('orders', 0)
    marker = encode_end_txn_marker(commit=True, producer_id=1000, producer_epoch=1, coordinator_epoch=0,
                                   timestamp_ms=0)
    with pytest.raises(KafkaError) as refused:
        partition.append_batch(marker, transaction_version=2)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_the_loss_of_the_state_topic_ends_all_sending(world):
    world.topics.get('orders', 0).refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
    world.end((1000, 0), True)
    world.topics.delete(STATE_TOPIC)
    world.topics.get('orders', 0).refuse(None)
    world.run_until_idle()
    assert world.add((1000, 0)) is ErrorCode.NOT_COORDINATOR
    world.topics.ensure_internal(STATE_TOPIC)
    assert world.add((1000, 0)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize('committed', [True, False])
def test_a_marker_is_what_the_encoder_of_control_records_makes(world, committed):
    world.clock.advance(12345)
    world.end((1000, 0), committed)
    stored = world.topics.get('orders', 0).stored[-1]
    expected = encode_end_txn_marker(commit=committed, producer_id=1000, producer_epoch=0, coordinator_epoch=0,
                                     timestamp_ms=world.clock.wall_ms())
    set_base_offset(expected, next(iter_batches(stored))[0].base_offset)
    set_partition_leader_epoch(expected, 0)
    assert stored == expected


def test_a_topic_that_comes_back_under_its_name_gets_markers_of_its_own(world):
    """The coordinator caches partitions. After a topic was deleted and created again, it must not write to the cached
    partitions of the deleted topic."""
    world.end((1000, 0), True)
    gone = world.topics.get('audit', 0)
    world.topics.delete('audit')
    world.topics.create('audit', 1)
    world.transaction((1000, 0), ('audit', 0))
    world.end((1000, 0), True)
    assert (markers_of(gone), world.endings('audit')) == ([('COMMIT', 1000, 0, 0)], ['COMMIT'])

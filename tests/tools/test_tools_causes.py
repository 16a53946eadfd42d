"""Every known way in which a transaction hangs: the verdict of `why-stuck` names it.

Most of them cannot happen on kbroker, whose partitions refuse writes that open a transaction unknown to the
coordinator. For these ways, the tests write the bytes that a broker without that rule leaves in a directory. The
remaining tests also run on a live broker with transaction.partition.verification.enable=false, a setting that Kafka has
too.

Three known faults hold no last stable offset, so no verdict names them:
- A quick empty abort after a commit is answered PRODUCER_FENCED (KAFKA-18464). The client is fenced, and all of its
  transactions are ended.
- A stale epoch is answered INVALID_TXN_STATE instead of INVALID_PRODUCER_EPOCH (KAFKA-19690). Nothing is appended.
- A producer id expires too early from a partition (KAFKA-9144). This only forgets sequences. Its two consequences, a
  write in mid sequence and a coordinator epoch that went back, have tests here.

A verification that crosses a marker (KAFKA-14884) leaves the bytes of a late write, and is reported as one.
"""
import shutil

import pytest
from support.brokers.broker_fixtures import in_process_broker
from support.brokers.in_process_broker import InProcessBroker
from support.clients.tv1_producer import InProcessPeer, Tv1Producer, create_topics
from support.disk.handwritten_directory import HandwrittenDirectory

from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker.log.damage_report import accept_damage
from kbroker.log.fs import FileSystem
from kbroker.record.batch import encode_batch
from kbroker.transaction.store import HELD_MS
from kbroker_tools.cluster.directory_view import DirectoryView
from kbroker_tools.spark.sink.values import tasks_of
from kbroker_tools.stuck.causes import judge
from kbroker_tools.stuck.gatherer import Gatherer

ORDERS, AUDIT = ('orders', 0), ('audit', 0)
ID = 'billing'
COMMAND = 'kbroker-transactions --bootstrap-server b:9092'


@pytest.fixture
def stage(tmp_path):
    return HandwrittenDirectory(tmp_path / 'data')


def verdict_on(stage, place=ORDERS):
    facts = Gatherer(DirectoryView(stage.write()), COMMAND).facts(*place)
    return judge(facts)


def ended(stage, producer, *, commit=False, bumps=True, at=60, partitions=(ORDERS,)):
    """Append all rows of a transaction that has ended, and its markers. Return the producer id and epoch of the
    markers."""
    producer_id, epoch = producer
    ending = 'Commit' if commit else 'Abort'
    marked = (producer_id, epoch + 1) if bumps else producer
    stage.row(ID, 'Ongoing', producer, at + 1, start=at + 1, partitions=partitions, bumps=bumps)
    stage.row(ID, f'Prepare{ending}', marked, at, start=at + 1, partitions=partitions, bumps=bumps)
    for place in partitions:
        stage.marker(place, marked, at, commit=commit)
    stage.row(ID, f'Complete{ending}', marked, at, start=at + 1, bumps=bumps)
    return marked


# ---- hanging: no coordinator will end it

def test_a_write_that_comes_after_the_marker_of_its_transaction_in_the_same_epoch(stage):
    stage.data(ORDERS, (7, 3), 61)
    ended(stage, (7, 3), bumps=False)
    late = stage.data(ORDERS, (7, 3), 61, sequence=1, values=3)
    verdict = verdict_on(stage)
    assert verdict.cause == 'late-write'
    assert verdict.headline == ("orders-0 is held at offset 2 by transactional.id 'billing': its transaction is "
                                'hanging, and nothing will end it')
    assert 'ABORT marker at offset 1' in verdict.why
    assert verdict.command == f'{COMMAND} abort --topic orders --partition 0 --start-offset {late}'
    assert 'its 3 records from offset 2 on' in verdict.advice


def test_a_write_of_an_old_epoch_that_comes_after_the_marker_of_a_newer_one(stage):
    stage.data(ORDERS, (7, 3), 61)
    ended(stage, (7, 3))
    stage.data(ORDERS, (7, 3), 61, sequence=1)
    verdict = verdict_on(stage)
    assert verdict.cause == 'late-write'
    assert 'the write has epoch 3' in verdict.why and 'the marker has epoch 4' in verdict.why


def test_a_write_without_being_added_to_a_transaction(stage):
    stage.row(ID, 'Empty', (7, 0), 61)
    stage.data(ORDERS, (7, 0), 60)
    verdict = verdict_on(stage)
    assert verdict.cause == 'never-added'
    assert 'AddPartitionsToTxn' in verdict.why


def test_a_write_to_another_partition_than_those_of_the_transaction(stage):
    stage.row(ID, 'Ongoing', (7, 0), 0.1, start=0.1, partitions=[AUDIT])
    stage.data(AUDIT, (7, 0), 0.1)
    stage.data(ORDERS, (7, 0), 0.1)
    verdict = verdict_on(stage)
    assert verdict.cause == 'never-added'
    assert 'is another one, without this partition' in verdict.why
    assert verdict_on(stage, AUDIT).cause == 'in-progress'


def test_a_delayed_end_of_an_earlier_transaction_ends_one_that_goes_on(stage):
    stage.data(ORDERS, (7, 3), 61)
    ended(stage, (7, 3), bumps=False)
    stage.data(ORDERS, (7, 3), 59, sequence=1)
    assert verdict_on(stage).cause == 'ended-early'


def test_the_first_write_after_a_marker_that_was_let_in_without_being_added(stage):
    stage.data(ORDERS, (7, 3), 61)
    marked = ended(stage, (7, 3), commit=True)
    stage.data(ORDERS, marked, 60)
    verdict = verdict_on(stage)
    assert verdict.cause == 'add-skipped'
    assert 'KAFKA-18575' in verdict.known_as


def test_a_producer_unknown_to_the_partition_whose_write_in_mid_sequence_was_taken(stage):
    stage.row(ID, 'Empty', (7, 3), 61)
    stage.data(ORDERS, (7, 3), 60, sequence=17)
    verdict = verdict_on(stage)
    assert verdict.cause == 'mid-sequence'
    assert 'sequence 17' in verdict.why


def test_an_id_that_was_forgotten_while_its_transaction_was_open(stage):
    stage.row(ID, 'Ongoing', (7, 3), 61, start=61, partitions=[ORDERS])
    stage.data(ORDERS, (7, 3), 61)
    stage.tombstone(ID, 30)
    verdict = verdict_on(stage)
    assert verdict.cause == 'id-forgotten'
    assert "transactional.id 'billing'" in verdict.headline


def test_a_log_that_was_restored_from_a_copy_older_than_the_marker(stage):
    stage.data(ORDERS, (7, 3), 61)
    stage.row(ID, 'Ongoing', (7, 3), 61, start=61, partitions=[ORDERS])
    stage.row(ID, 'PrepareCommit', (7, 4), 60, start=61, partitions=[ORDERS])
    stage.row(ID, 'CompleteCommit', (7, 4), 60, start=61)
    verdict = verdict_on(stage)
    assert verdict.cause == 'marker-lost'
    assert all(origin in verdict.why for origin in ('restored from an older copy', 'deleted and created again',
                                                    'killed before it wrote the marker'))
    assert 'the coordinator had committed' in verdict.advice


def test_a_copy_that_has_the_marker_of_an_earlier_transaction_of_the_epoch(stage):
    stage.data(ORDERS, (7, 3), 121)
    ended(stage, (7, 3), bumps=False, at=120)
    stage.data(ORDERS, (7, 3), 61, sequence=1)
    stage.row(ID, 'Ongoing', (7, 3), 61, start=61, partitions=[ORDERS], bumps=False)
    stage.row(ID, 'PrepareAbort', (7, 3), 60, start=61, partitions=[ORDERS], bumps=False)
    stage.row(ID, 'CompleteAbort', (7, 3), 60, start=61, bumps=False)
    assert verdict_on(stage).cause == 'marker-lost'


def test_a_log_that_was_copied_from_another_cluster(stage):
    stage.row('other', 'CompleteCommit', (1, 0), 60, start=61)
    stage.data(ORDERS, (4711, 3), 61)
    verdict = verdict_on(stage)
    assert verdict.cause == 'unknown-producer'
    assert 'producer id 4711' in verdict.headline
    assert 'copied from another cluster' in verdict.why


def test_the_transaction_state_is_lost(stage):
    stage.data(ORDERS, (7, 3), 61)
    assert verdict_on(stage).cause == 'state-lost'


def test_the_last_rows_of_the_transaction_state_are_lost(stage):
    stage.row(ID, 'CompleteCommit', (7, 3), 90, start=91)
    stage.data(ORDERS, (7, 5), 61)
    verdict = verdict_on(stage)
    assert verdict.cause == 'coordinator-behind'
    assert 'at most epoch 3' in verdict.why


def test_a_producer_id_that_was_replaced_when_its_epochs_were_used_up(stage):
    stage.row(ID, 'Ongoing', (7, 32766), 61, start=61, partitions=[ORDERS])
    stage.data(ORDERS, (7, 32766), 61)
    stage.row(ID, 'Empty', (8, 0), 60, previous=7)
    verdict = verdict_on(stage)
    assert verdict.cause == 'producer-id-replaced'
    assert 'producer id 8' in verdict.why


# ---- decided but not completed

def test_a_decided_transaction_whose_completion_was_lost(stage):
    stage.data(ORDERS, (7, 3), 61)
    stage.row(ID, 'PrepareCommit', (7, 4), 60, start=61, partitions=[ORDERS])
    verdict = verdict_on(stage)
    assert verdict.cause == 'prepared-stuck'
    assert verdict.command is None
    assert '`abort` is not for this' in verdict.advice


def test_an_abort_that_is_decided_may_be_carried_out_by_hand(stage):
    stage.data(ORDERS, (7, 3), 61)
    stage.row(ID, 'PrepareAbort', (7, 4), 60, start=61, partitions=[ORDERS])
    verdict = verdict_on(stage)
    assert verdict.cause == 'prepared-stuck'
    assert verdict.command == f'{COMMAND} abort --topic orders --partition 0 --start-offset 0'


def test_a_marker_that_one_partition_has_and_refuses_to_take_again(stage):
    both = [ORDERS, AUDIT]
    stage.data(ORDERS, (7, 3), 61)
    stage.data(AUDIT, (7, 3), 61)
    stage.row(ID, 'PrepareAbort', (7, 4), 60, start=61, partitions=both)
    stage.marker(AUDIT, (7, 4), 60)
    verdict = verdict_on(stage)
    assert verdict.cause == 'marker-refused'
    assert 'audit-0 has its marker already' in verdict.why


def test_a_coordinator_epoch_that_went_back(tmp_path):
    stage = HandwrittenDirectory(tmp_path / 'data', leader_epoch=2)
    stage.data(ORDERS, (7, 3), 121)
    stage.marker(ORDERS, (7, 4), 120, coordinator_epoch=9)
    stage.data(ORDERS, (7, 4), 61)
    stage.row(ID, 'PrepareAbort', (7, 5), 60, start=61, partitions=[ORDERS])
    verdict = verdict_on(stage)
    assert verdict.cause == 'coordinator-fenced'
    assert 'TRANSACTION_COORDINATOR_FENCED' in verdict.why


def test_markers_that_are_on_their_way(stage):
    stage.data(ORDERS, (7, 3), 0.2)
    stage.row(ID, 'PrepareCommit', (7, 4), 0.1, start=0.2, partitions=[ORDERS])
    verdict = verdict_on(stage)
    assert verdict.cause == 'ending'
    assert verdict.command is None


# ---- open

def test_an_open_transaction_is_reported_with_its_timeout(stage):
    stage.row(ID, 'Ongoing', (7, 3), 0.1, start=0.1, partitions=[ORDERS], timeout_ms=900_000)
    stage.data(ORDERS, (7, 3), 0.1)
    verdict = verdict_on(stage)
    assert verdict.cause == 'in-progress'
    assert 'timeout 15 min' in verdict.next
    assert verdict.command == f'{COMMAND} force-terminate --transactional-id billing'


def test_epochs_that_are_used_up(stage):
    stage.row(ID, 'Ongoing', (7, 32767), 61, start=61, partitions=[ORDERS])
    stage.data(ORDERS, (7, 32766), 61)
    verdict = verdict_on(stage)
    assert verdict.cause == 'epoch-exhausted'
    assert 'KAFKA-20090' in verdict.known_as


def test_a_clock_that_was_set_back(stage):
    stage.row(ID, 'Ongoing', (7, 3), -180, start=-180, partitions=[ORDERS])
    stage.data(ORDERS, (7, 3), -180)
    verdict = verdict_on(stage)
    assert verdict.cause == 'clock-went-back'
    assert 'the clock of the coordinator was set back' in verdict.why


def test_two_phase_commit_waits_for_a_decision(stage):
    stage.row(ID, 'Ongoing', (7, 3), 600, start=600, partitions=[ORDERS], timeout_ms=2147483647)
    stage.data(ORDERS, (7, 3), 600)
    verdict = verdict_on(stage)
    assert verdict.cause == 'two-phase'
    assert verdict.next.startswith('nothing')
    assert 'keeps the prepared transaction 7:3' in verdict.advice
    assert verdict.command == f'{COMMAND} force-terminate --transactional-id billing'


@pytest.mark.parametrize(('timeout_ms', 'next_step'), [(2147483647, 'nothing'), (900_000, 'while a broker runs')])
def test_a_prepared_transaction_that_its_client_kept_waits_for_the_coordinator_outside(stage, timeout_ms, next_step):
    stage.row(ID, 'Ongoing', (7, 3), 600, start=600, partitions=[ORDERS], timeout_ms=timeout_ms)
    stage.data(ORDERS, (7, 3), 600)
    stage.row(ID, 'Ongoing', (7, 3), 5, start=600, partitions=[ORDERS], timeout_ms=timeout_ms, kept_by=(8, 0))
    verdict = verdict_on(stage)
    assert verdict.cause == 'two-phase-prepared'
    assert verdict.headline.endswith('its transaction is prepared for two-phase commit, and waits for its coordinator '
                                     'outside')
    assert 'as producer 8 epoch 0' in verdict.why
    assert ('never times out' in verdict.why) == (timeout_ms == 2147483647)
    assert verdict.next.startswith(next_step)
    assert 'keeps the prepared transaction 7:3' in verdict.advice
    assert verdict.command == f'{COMMAND} force-terminate --transactional-id billing'


@pytest.mark.parametrize(('timeout_ms', 'cause', 'next_step'), [
    (2147483647, 'two-phase-spark', 'nothing, until the query'),
    (900_000, 'in-progress',
     'while a broker runs on this directory, the producer ends it, or the coordinator aborts it')])
def test_a_transaction_of_a_spark_query_is_ended_by_the_tool_that_reads_its_ledger(
        stage, timeout_ms, cause, next_step):
    name = tasks_of('word count', ProducerIdAndEpoch(5, 2)) + '0.17'
    stage.row(name, 'Ongoing', (7, 3), 600, start=600, partitions=[ORDERS], timeout_ms=timeout_ms)
    stage.data(ORDERS, (7, 3), 600)
    verdict = verdict_on(stage)
    assert verdict.cause == cause
    assert ("transactionalIdPrefix 'word count'" in verdict.why) == (timeout_ms == 2147483647)
    assert verdict.next.startswith(next_step)
    assert '`abort` and `force-terminate` are not for this' in verdict.advice
    assert 'Add --ledger-topic if the query sets ledgerTopic' in verdict.advice
    assert ('before its timeout' in verdict.advice) == (timeout_ms == 900_000)
    assert verdict.command == f"{COMMAND} finish-spark --prefix 'word count' --dry-run"


def test_a_stale_marker_in_the_midst_of_a_transaction(stage):
    stage.row(ID, 'Ongoing', (7, 3), 10, start=10, partitions=[ORDERS], timeout_ms=900_000, bumps=False)
    stage.data(ORDERS, (7, 3), 10)
    stage.marker(ORDERS, (7, 3), 9)
    stage.data(ORDERS, (7, 3), 8, sequence=1)
    verdict = verdict_on(stage)
    assert verdict.cause == 'cut-by-stale-marker'
    assert 'KIP-1228' in verdict.known_as


def test_a_late_write_that_joins_the_next_transaction_of_its_epoch(stage):
    stage.data(ORDERS, (7, 3), 61)
    ended(stage, (7, 3), bumps=False)
    stage.row(ID, 'Ongoing', (7, 3), 5, start=5, partitions=[ORDERS], timeout_ms=900_000, bumps=False)
    stage.data(ORDERS, (7, 3), 61, sequence=1)
    assert verdict_on(stage).cause == 'late-write-joined'


def test_a_transaction_whose_first_batches_were_refused(stage):
    stage.row(ID, 'Ongoing', (7, 3), 5, start=5, partitions=[ORDERS], timeout_ms=900_000)
    stage.data(ORDERS, (7, 3), 5, sequence=4)
    verdict = verdict_on(stage)
    assert verdict.cause == 'first-batch-missing'
    assert 'OUT_OF_ORDER_SEQUENCE_NUMBER' in verdict.why


def test_what_compaction_leaves_of_a_marker_is_none(stage):
    stage.data(ORDERS, (7, 3), 61)
    stage.append(ORDERS, encode_batch([], producer_id=7, producer_epoch=3, transactional=True, control=True,
                                      base_timestamp_ms=0, max_timestamp_ms=0, last_offset_delta=0))
    stage.row(ID, 'Ongoing', (7, 3), 61, start=61, partitions=[ORDERS], timeout_ms=2147483647)
    assert verdict_on(stage).cause == 'two-phase'


# ---- other holds

def test_without_an_open_transaction_nothing_is_held(stage):
    stage.data(ORDERS, (7, 3), 61)
    ended(stage, (7, 3), commit=True)
    stage.plain(ORDERS, 1, values=5)
    verdict = verdict_on(stage)
    assert (verdict.cause, verdict.is_stuck) == ('healthy', False)
    assert verdict.headline == 'orders-0 is not held: last stable offset = high watermark = 7'


def test_the_first_of_several_open_transactions_is_the_one_that_holds(stage):
    stage.row(ID, 'Ongoing', (7, 3), 2, start=2, partitions=[ORDERS])
    stage.row('second', 'Ongoing', (8, 0), 1, start=1, partitions=[ORDERS])
    stage.data(ORDERS, (7, 3), 2)
    stage.data(ORDERS, (8, 0), 1)
    facts = Gatherer(DirectoryView(stage.write()), COMMAND).facts(*ORDERS)
    assert (facts.transactional_id, [behind.producer_id for behind in facts.behind]) == (ID, [8])


def test_groups_that_wait_and_the_group_that_writes_are_found(stage):
    offsets = ('__consumer_offsets', 0)
    stage.row(ID, 'Ongoing', (7, 3), 0.1, start=0.1, partitions=[ORDERS, offsets])
    stage.plain(ORDERS, 1, values=4)
    stage.data(ORDERS, (7, 3), 0.1, values=2)
    stage.group('readers', ORDERS, 3)
    stage.group('app', AUDIT, 1, client_id='app-producer')
    stage.offsets_in_transaction('app', AUDIT, 9, (7, 3), 0.1)
    facts = Gatherer(DirectoryView(stage.write()), COMMAND).facts(*ORDERS)
    assert [(group.group_id, group.offset, group.lag) for group in facts.groups] == [('readers', 3, 3)]
    assert [(writer.group_id, writer.members[0].client_id) for writer in facts.writers] == [('app', 'app-producer')]


def test_a_group_whose_offsets_are_in_an_open_transaction_is_held_there(stage):
    offsets = ('__consumer_offsets', 0)
    stage.row(ID, 'Ongoing', (7, 3), 0.1, start=0.1, partitions=[offsets])
    stage.plain(AUDIT, 1, values=9)
    stage.group('app', AUDIT, 1)
    stage.offsets_in_transaction('app', AUDIT, 9, (7, 3), 0.1)
    gatherer = Gatherer(DirectoryView(stage.write()), COMMAND)
    assert gatherer.group_partitions('app') == [offsets, AUDIT]
    assert judge(gatherer.facts(*offsets)).cause == 'in-progress'
    assert judge(gatherer.facts(*AUDIT)).cause == 'healthy'
    assert gatherer.group_partitions('nobody') == []


# ---- on a live broker without partition verification

SETTINGS = {'transaction.partition.verification.enable': 'false', 'transaction.state.log.num.partitions': '1',
            'transactional.id.expiration.ms': '7200000', 'offsets.topic.num.partitions': '1'}
HOUR_MS = 3_600_000
broker = in_process_broker(SETTINGS)


def producer_on(broker, timeout_ms=60_000):
    peer = InProcessPeer(broker)
    create_topics(peer, orders=1, audit=1)
    return Tv1Producer(peer, ID, timeout_ms)


def seen_on(broker, tmp_path, monkeypatch, place=ORDERS):
    broker.clock.advance(HELD_MS)       # writes a row that was held back
    broker.turn()
    view = DirectoryView(tmp_path / 'data')
    monkeypatch.setattr(view, 'now_ms', broker.clock.wall_ms)
    return judge(Gatherer(view, COMMAND).facts(*place))


def test_live_a_late_write_opens_a_hanging_transaction(broker, tmp_path, monkeypatch):
    producer = producer_on(broker)
    producer.add('orders')
    producer.write('orders')
    producer.end()
    producer.write('orders', age_ms=HOUR_MS)
    assert seen_on(broker, tmp_path, monkeypatch).cause == 'late-write'


def test_live_a_late_write_joins_the_next_transaction(broker, tmp_path, monkeypatch):
    producer = producer_on(broker)
    producer.add('orders')
    producer.write('orders')
    producer.end()
    producer.add('orders')
    producer.write('orders', age_ms=HOUR_MS)
    assert seen_on(broker, tmp_path, monkeypatch).cause == 'late-write-joined'
    producer.end()
    assert seen_on(broker, tmp_path, monkeypatch).cause == 'healthy'


def test_live_a_write_without_add(broker, tmp_path, monkeypatch):
    producer_on(broker).write('orders')
    assert seen_on(broker, tmp_path, monkeypatch).cause == 'never-added'


def test_live_a_write_in_mid_sequence_to_a_partition_that_knows_no_producer(broker, tmp_path, monkeypatch):
    producer_on(broker).write('orders', sequence=17)
    assert seen_on(broker, tmp_path, monkeypatch).cause == 'mid-sequence'


def test_live_a_producer_goes_on_after_its_transaction_was_ended(broker, tmp_path, monkeypatch):
    producer = producer_on(broker)
    producer.add('orders')
    producer.write('orders')
    producer.end(committed=True)
    producer.write('orders')
    assert seen_on(broker, tmp_path, monkeypatch).cause == 'ended-early'


def test_live_a_stray_marker_cuts_a_transaction(broker, tmp_path, monkeypatch):
    producer = producer_on(broker, timeout_ms=900_000)
    producer.add('orders')
    producer.write('orders')
    broker.clock.advance(60_000)
    producer.stray_marker('orders')
    assert seen_on(broker, tmp_path, monkeypatch).cause == 'healthy'
    producer.write('orders')
    assert seen_on(broker, tmp_path, monkeypatch).cause == 'cut-by-stale-marker'


def test_live_an_id_expires_while_a_late_write_is_open(broker, tmp_path, monkeypatch):
    producer_on(broker).write('orders')
    broker.clock.advance(4 * HOUR_MS)
    broker.turn()
    verdict = seen_on(broker, tmp_path, monkeypatch)
    assert verdict.cause == 'id-forgotten'
    assert ID in verdict.headline


def test_live_a_topic_is_created_again_under_a_late_write(broker, tmp_path, monkeypatch):
    producer = producer_on(broker)
    producer.add('orders')
    producer.write('orders')
    producer.end()
    producer.peer.ask('DeleteTopics', topics=[dict(name='orders')], timeout_ms=1000)
    create_topics(producer.peer, orders=1)
    producer.write('orders')
    assert seen_on(broker, tmp_path, monkeypatch).cause == 'marker-lost'


def test_live_the_clock_goes_back(broker, tmp_path, monkeypatch):
    producer = producer_on(broker)
    producer.add('orders')
    producer.write('orders')
    broker.clock.set_wall_ms(broker.clock.wall_ms() - HOUR_MS)
    assert seen_on(broker, tmp_path, monkeypatch).cause == 'clock-went-back'


def test_live_the_coordinator_ends_what_is_overdue(broker, tmp_path, monkeypatch):
    producer = producer_on(broker, timeout_ms=60_000)
    producer.add('orders')
    producer.write('orders')
    assert 'timeout 1 min' in seen_on(broker, tmp_path, monkeypatch).next
    broker.clock.advance(90_000)
    broker.turn()
    assert seen_on(broker, tmp_path, monkeypatch).cause == 'healthy'


def test_live_a_restored_copy_lacks_the_marker(tmp_path, monkeypatch):
    directory = tmp_path / 'data'
    with InProcessBroker(directory, SETTINGS) as broker:
        producer = producer_on(broker)
        producer.add('orders')
        producer.write('orders')
    shutil.copytree(directory / 'orders-0', tmp_path / 'copy')
    with InProcessBroker(directory, SETTINGS, clock=broker.clock) as broker:
        producer.peer = InProcessPeer(broker)
        producer.end()
        assert seen_on(broker, tmp_path, monkeypatch).cause == 'healthy'
    shutil.rmtree(directory / 'orders-0')
    shutil.copytree(tmp_path / 'copy', directory / 'orders-0')
    with InProcessBroker(directory, SETTINGS, clock=broker.clock) as broker:
        assert seen_on(broker, tmp_path, monkeypatch).cause == 'marker-lost'


def test_live_the_transaction_state_is_lost_with_its_disk(tmp_path, monkeypatch):
    directory = tmp_path / 'data'
    with InProcessBroker(directory, SETTINGS) as broker:
        producer = producer_on(broker)
        producer.add('orders')
        producer.write('orders')
    shutil.rmtree(directory / '__transaction_state-0')
    assert accept_damage(FileSystem(), str(directory), None, {}, metadata=False)    # no broker starts before that
    with InProcessBroker(directory, SETTINGS, clock=broker.clock) as broker:
        assert seen_on(broker, tmp_path, monkeypatch).cause == 'state-lost'

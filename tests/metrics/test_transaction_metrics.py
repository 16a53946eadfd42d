"""The metrics of transactions: states, outcomes, the age of the oldest open one, and what it holds back."""
import pytest
from support.brokers.collected import collected
from support.brokers.in_process_broker import InProcessBroker
from support.clients.tv1_producer import InProcessPeer, Tv1Producer, create_topics
from support.messages.message_builder import build

from kbroker.base.long_work import run_to_end
from kbroker.metrics import transactions

SETTINGS = {'transaction.partition.verification.enable': 'false', 'transaction.state.log.num.partitions': '3'}


@pytest.fixture
def broker(tmp_path):
    with InProcessBroker(tmp_path / 'data', SETTINGS) as broker:
        create_topics(InProcessPeer(broker), orders=3)
        yield broker


def producer(broker, transactional_id='first', timeout_ms=60_000):
    return Tv1Producer(InProcessPeer(broker), transactional_id, timeout_ms)


def metrics_of(broker):
    return {name.removeprefix('kbroker_'): value for (name, *labels), value in
            collected(transactions.collect(broker)).items() if not labels}


def states_of(broker):
    found = {labels[0]: value for (name, *labels), value in collected(transactions.collect(broker)).items()
             if name == 'kbroker_transactional_ids'}
    return {state: count for state, count in found.items() if count}


def test_a_broker_without_transactions_reports_zeros(broker):
    assert set(metrics_of(broker).values()) == {0}
    assert states_of(broker) == {}


def test_outcomes_are_counted_once_and_ids_by_their_state(broker):
    first, second = producer(broker, 'first'), producer(broker, 'second')
    assert states_of(broker) == {'Empty': 2}
    for writer, committed in ((first, True), (first, True), (second, False)):
        writer.add('orders', 0)
        writer.write('orders', 0)
        assert states_of(broker)['Ongoing'] == 1
        writer.end(committed)
    found = metrics_of(broker)
    assert (found['transactions_begun'], found['transactions_committed'], found['transactions_aborted']) == (3, 2, 1)
    assert found['transactions_open'] == 0
    assert states_of(broker) == {'CompleteCommit': 1, 'CompleteAbort': 1}


def test_the_oldest_transaction_has_an_age_and_the_partitions_that_it_holds_a_distance(broker):
    old, young = producer(broker, 'old'), producer(broker, 'young')
    old.add('orders', 0, 1)
    old.write('orders', 0)
    broker.clock.advance(5_000)
    young.add('orders', 0)
    for _ in range(3):
        young.write('orders', 0)
    found = metrics_of(broker)
    assert found['transaction_oldest_open_age_seconds'] == 5
    assert (found['partitions_held'], found['partitions_held_offsets'], found['transactions_hanging']) == (1, 4, 0)
    survey = run_to_end(transactions.survey(broker))
    assert [(each.transactional_id, each.partitions, each.held_offsets) for each in survey.oldest] == [
        ('old', [('orders', 0), ('orders', 1)], 4), ('young', [('orders', 0)], 0)]
    held, = survey.held
    assert (held.topic, held.partition, held.distance, held.transactional_id) == ('orders', 0, 4, 'old')
    assert (held.last_stable_offset, held.high_watermark) == (0, 4)
    assert collected(transactions.collect(broker))[
        'kbroker_partition_last_stable_offset_distance', 'orders', '0'] == 4
    old.end(True)
    assert metrics_of(broker)['partitions_held_offsets'] == 4      # `young` holds three records and the marker
    young.end(True)
    assert metrics_of(broker)['partitions_held'] == 0


def test_a_transaction_that_times_out_and_one_that_is_fenced_are_counted_by_their_cause(broker):
    slow = producer(broker, 'slow', timeout_ms=1_000)
    slow.add('orders', 0)
    broker.clock.advance(60_000)
    broker.transactions.abort_timed_out()
    broker.turn()
    found = metrics_of(broker)
    assert (found['transactions_timed_out'], found['transactions_fenced'], found['transactions_aborted']) == (1, 0, 1)
    fenced = producer(broker, 'fenced')
    fenced.add('orders', 0)
    broker.ask(build('InitProducerIdRequest', transactional_id='fenced', transaction_timeout_ms=60_000), 4)
    broker.turn()
    found = metrics_of(broker)
    assert (found['transactions_timed_out'], found['transactions_fenced'], found['transactions_aborted']) == (1, 1, 2)


def test_a_write_after_the_end_of_its_transaction_hangs(broker):
    late = producer(broker, 'late')
    late.add('orders', 2)
    late.write('orders', 2)
    late.end(True)
    late.write('orders', 2)
    found = metrics_of(broker)
    assert (found['transactions_open'], found['transactions_hanging'], found['partitions_held']) == (0, 1, 1)
    survey = run_to_end(transactions.survey(broker))
    assert survey.held[0].transactional_id == '' and survey.held[0].producer_id == late.producer_id


def test_states_are_the_same_after_a_restart_and_after_ids_expire(tmp_path):
    settings = {**SETTINGS, 'transactional.id.expiration.ms': '100000'}
    with InProcessBroker(tmp_path / 'data', settings) as broker:
        create_topics(InProcessPeer(broker), orders=1)
        kept, expired = producer(broker, 'open', 600_000), producer(broker, 'idle')
        kept.add('orders', 0)
        assert states_of(broker) == {'Ongoing': 1, 'Empty': 1}
        clock = broker.clock
    with InProcessBroker(tmp_path / 'data', settings, clock=clock) as broker:
        assert states_of(broker) == {'Ongoing': 1, 'Empty': 1}
        assert metrics_of(broker)['transactions_begun'] == 0
        broker.clock.advance(50_000)
        producer(broker, 'used')
        broker.clock.advance(60_000)
        broker.transactions.remove_expired()
        broker.turn()
        assert states_of(broker) == {'Ongoing': 1, 'Empty': 1}
        assert broker.transactions.describe('used') and expired.transactional_id == 'idle'

"""The broker serves other clients while it works on transactions with thousands of partitions, or on thousands of
transactions."""
import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.messages.message_builder import build
from support.worlds.stepwise_work import StepwiseWork

from kbroker.base.errors import ErrorCode
from kbroker.transaction.end_transaction import MARKERS_AT_ONCE
from kbroker.transaction.store import ID_OVERHEAD_BYTES

MANY = 400
SETTINGS = {'transaction.state.log.num.partitions': '1', 'offsets.topic.num.partitions': '1',
            'kbroker.durability': 'page-cache'}


class Producer:
    """A transactional producer that sends single requests to a broker. The broker does long work only when the test
    says so."""

    def __init__(self, broker, transactional_id='tx', timeout_ms=60_000):
        self.broker = broker
        self.transactional_id = transactional_id
        broker.topics.ensure_internal('__transaction_state')
        answer = broker.ask(build('InitProducerIdRequest', transactional_id=transactional_id,
                                  transaction_timeout_ms=timeout_ms), 5)
        self.code, self.id, self.epoch = answer.error_code, answer.producer_id, answer.producer_epoch

    def add(self, topic, partitions):
        request = build(
            'AddPartitionsToTxnRequest', v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.id, v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{'name': topic, 'partitions': list(partitions)}])
        connection = self.broker.begin(request, 3)
        self.broker.long_work.finish()
        answer = self.broker.answer_to(connection, request, 3)
        return {result.partition_error_code
                for topic in answer.results_by_topic_v3_and_below for result in topic.results_by_partition}

    def end(self, committed=True):
        answer = self.broker.ask(build('EndTxnRequest', transactional_id=self.transactional_id, producer_id=self.id,
                                       producer_epoch=self.epoch, committed=committed), 5)
        return answer.error_code

    @property
    def state(self):
        return self.broker.transactions.describe(self.transactional_id).state.title


@pytest.fixture
def broker(tmp_path):
    broker = InProcessBroker(tmp_path, SETTINGS)
    broker.long_work = StepwiseWork(broker.timers)
    with broker:
        broker.topics.create('orders', MANY, {})
        broker.long_work.finish()
        yield broker
        broker.long_work.assert_parts_were_short()


def end(broker, producer):
    assert producer.end() == ErrorCode.NONE
    while producer.state != 'CompleteCommit':
        broker.long_work.finish()
        broker.turn()


def ends(broker):
    return sum(partition.log_end_offset for partition in broker.topics.topic('orders').partitions)


def test_the_markers_of_a_large_transaction_are_written_in_parts(broker):
    """An EndTxn of a transaction with 5,000 partitions once held the loop for 6.4 s."""
    producer = Producer(broker)
    assert producer.add('orders', range(MANY)) == {0}
    assert producer.end() == ErrorCode.NONE
    assert (producer.state, ends(broker)) == ('PrepareCommit', MARKERS_AT_ONCE)
    parts = 0
    while len(broker.long_work):
        broker.long_work.step()
        broker.end_tick()
        parts += 1
    assert (producer.state, ends(broker)) == ('CompleteCommit', MANY)
    assert parts >= MANY // MARKERS_AT_ONCE


def test_a_topic_deleted_while_its_markers_are_written_holds_no_transaction_up(broker):
    producer = Producer(broker)
    producer.add('orders', range(MANY))
    producer.end()
    broker.long_work.start(broker.topics.delete_many([broker.topics.topic('orders')]))
    broker.long_work.finish()
    broker.end_tick()
    broker.clock.advance(100)       # markers that failed are repeated
    broker.turn()
    broker.long_work.finish()
    assert producer.state == 'CompleteCommit'


def test_a_kill_while_the_markers_are_written_loses_none(tmp_path):
    broker = InProcessBroker(tmp_path, SETTINGS)
    broker.long_work = StepwiseWork(broker.timers)
    with broker:
        broker.topics.create('orders', MANY, {})
        broker.long_work.finish()
        producer = Producer(broker)
        producer.add('orders', range(MANY))
        assert producer.end() == ErrorCode.NONE
        for _ in range(10):
            broker.long_work.step()
        broker.end_tick()
        assert 0 < ends(broker) < MANY
        broker.crash()
    with InProcessBroker(tmp_path, SETTINGS) as again:
        again.turn()
        assert all(partition.log_end_offset for partition in again.topics.topic('orders').partitions)
        assert again.transactions.describe('tx').state.title == 'CompleteCommit'


def test_many_timed_out_transactions_are_aborted_in_parts(broker):
    producers = [Producer(broker, f'tx-{number}', timeout_ms=1000) for number in range(100)]
    for number, producer in enumerate(producers):
        assert producer.add('orders', [number]) == {0}
    broker.clock.advance(20_000)
    broker.turn()
    assert len(broker.long_work)
    assert sum(producer.state == 'Ongoing' for producer in producers) > 50
    broker.long_work.finish()
    broker.turn()
    assert {producer.state for producer in producers} == {'CompleteAbort'}


def test_many_idle_ids_expire_in_parts(broker):
    for number in range(200):
        assert Producer(broker, f'tx-{number}').code == 0
    assert broker.transactions.store.id_bytes > 200 * ID_OVERHEAD_BYTES
    broker.clock.advance(8 * 86_400_000)
    broker.turn()
    assert len(list(broker.transactions.list_transactions())) > 100 and len(broker.long_work)
    broker.long_work.finish()
    broker.turn()
    assert not list(broker.transactions.list_transactions())
    assert broker.transactions.store.id_bytes == 0


def test_ids_without_end_are_refused_at_the_bound(broker):
    """When the memory for transactional ids is used up, new ids are refused. Only the expiry of ids makes room. A
    restart does not, because it loads the rows of all ids from the log."""
    known = Producer(broker, 'known')
    store = broker.transactions.store
    store.most_id_bytes = store.id_bytes + ID_OVERHEAD_BYTES + 100
    assert Producer(broker, 'x' * 100).code == ErrorCode.POLICY_VIOLATION
    assert Producer(broker, 'known').code == known.code == ErrorCode.NONE


def test_an_id_counts_the_memory_of_its_characters_and_not_their_number(broker):
    """If a transactional id has one emoji, Python's string takes four bytes for each of its characters. The memory of
    the id in UTF-8 and of the key of its rows is counted, too."""
    store = broker.transactions.store
    store.most_id_bytes = 400_000
    names = [f'{number}' + 'x' * 20_000 + '\U0001f600' for number in range(5)]
    assert [Producer(broker, name).code for name in names] == [ErrorCode.NONE] * 3 + [ErrorCode.POLICY_VIOLATION] * 2
    assert store.id_bytes > 3 * 120_000


def test_the_partitions_of_open_transactions_share_the_memory_of_the_ids(broker):
    store = broker.transactions.store
    producers = [Producer(broker, f'tx-{number}') for number in range(3)]
    idle_bytes = store.id_bytes
    store.most_id_bytes = idle_bytes + 2 * 200 * MANY + 5_000
    assert [producer.add('orders', range(MANY)) for producer in producers] == [
        {0}, {0}, {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}]
    assert producers[0].add('orders', range(MANY)) == {0}, 'no partition is new'
    end(broker, producers[0])
    assert producers[2].add('orders', range(MANY)) == {0}, 'the client tried again'
    for producer in producers[1:]:
        end(broker, producer)
    assert store.id_bytes == idle_bytes


def test_a_transaction_holds_ten_thousand_partitions_and_no_more(broker):
    producer = Producer(broker)
    broker.topics.create('more', 9_700, {})
    broker.long_work.finish()
    assert producer.add('orders', range(MANY)) == {0}
    assert producer.add('more', range(9_700)) == {ErrorCode.TRANSACTION_ABORTABLE}
    assert producer.add('more', range(9_600)) == {0}


def test_the_markers_of_a_tool_are_written_in_parts(broker):
    request = build('WriteTxnMarkersRequest', markers=[
        {'producer_id': 7, 'producer_epoch': 0, 'coordinator_epoch': 0, 'transaction_result': True,
         'topics': [{'name': 'orders', 'partition_indexes': list(range(MANY))}]}])
    connection = broker.begin(request, 1)
    parts = 0
    while not connection.replies:
        broker.long_work.step()
        broker.end_tick()
        parts += 1
    marker, = broker.answer_to(connection, request, 1).markers
    assert {result.error_code for topic in marker.topics for result in topic.partitions} == {0}
    assert parts > 10 and ends(broker) == MANY

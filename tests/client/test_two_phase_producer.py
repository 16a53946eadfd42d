"""The producer's side of two-phase commit (KIP-939), with a scripted broker: prepare, complete, wrong calls."""
import pytest
from support.brokers.fake_cluster import FakeCluster

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode
from kbroker.client import (
    FatalProducerError,
    KafkaError,
    PreparedTransaction,
    Producer,
    ProducerFencedError,
    TransactionError,
)
from kbroker.client.errors import ClientError
from kbroker.client.transaction_handle import end_all_by_handle
from kbroker.client.transaction_state import IllegalProducerState, ProducerState


def make(cluster, **options):
    return Producer(cluster, clock=ManualClock(), sleep=lambda seconds: None, linger_ms=0,
                    **{'transactional_id': 'x', 'two_phase_commit': True, **options})


def recovered(cluster=None, ongoing=(7, 5)):
    cluster = cluster or FakeCluster()
    cluster.ongoing = ongoing
    return cluster, make(cluster)


def ends(cluster):
    return [(request.producer_id, request.producer_epoch, request.committed)
            for name, request in cluster.calls if name == 'EndTxn']


@pytest.mark.parametrize(('token', 'committed'), [('7:0', True), ('7:1', False), (None, False), ('', False)])
def test_a_prepared_transaction_ends_as_its_token_decides(token, committed):
    cluster = FakeCluster()
    producer = make(cluster)
    with producer.transaction() as transaction:
        producer.send('t', b'a')
        prepared = transaction.prepare()
        assert (str(prepared), len(cluster.broker.sent)) == ('7:0', 1)
    assert ends(cluster) == []
    assert producer.complete(token)
    assert ends(cluster) == [(7, 0, committed)]
    assert producer.prepared is None
    assert not producer.complete(token), 'the second call finds that the first one was enough'
    with producer.transaction():
        producer.send('t', b'b')
    assert ends(cluster)[1:] == [(7, 1, True)]


@pytest.mark.parametrize('token', ['7:5', '7:4'])
def test_a_transaction_that_is_found_counts_as_started(token):
    """The producer ends the transaction that it found by EndTxn with its new producer id and epoch, although it has
    written no record."""
    cluster, producer = recovered()
    assert producer.prepared == PreparedTransaction(7, 5)
    assert producer.complete(token)
    assert ends(cluster) == [(7, 0, token == '7:5')]


def test_a_recovery_that_finds_nothing_has_nothing_to_complete():
    cluster, producer = recovered(ongoing=(-1, -1))
    assert not producer.complete('7:5')
    assert ends(cluster) == []


def test_the_first_request_asks_for_two_phases_and_keeps_the_transaction():
    cluster, producer = recovered()
    producer.init_transactions()
    (_, request), = cluster.calls
    assert (request.enable2_pc, request.keep_prepared_txn) == (True, True)
    other = FakeCluster()
    make(other, two_phase_commit=False).init_transactions()
    (_, request), = other.calls
    assert (request.enable2_pc, request.keep_prepared_txn) == (False, False)


def test_an_exception_after_the_preparation_ends_nothing():
    cluster = FakeCluster()
    producer = make(cluster)
    with pytest.raises(ZeroDivisionError), producer, producer.transaction() as transaction:
        producer.send('t', b'a')
        transaction.prepare()
        raise ZeroDivisionError
    assert ends(cluster) == []


@pytest.mark.parametrize('call', [
    lambda producer: producer.send('t', b'b'), lambda producer: producer.begin_transaction(),
    lambda producer: producer.prepare_transaction(), lambda producer: producer.init_transactions()])
def test_a_prepared_transaction_takes_no_other_call(call):
    cluster, producer = recovered()
    producer.init_transactions()
    with pytest.raises(IllegalProducerState, match='found a producer that is prepared transaction'):
        call(producer)
    assert len(cluster.calls) == 1
    assert producer.complete('7:5')


def test_prepare_needs_a_transaction_and_two_phases():
    cluster = FakeCluster()
    producer = make(cluster)
    producer.init_transactions()
    with pytest.raises(IllegalProducerState, match='found a producer that is ready, expected a transaction'):
        producer.prepare_transaction()
    other = make(cluster, two_phase_commit=False)
    with pytest.raises(IllegalProducerState, match=r'without transaction\.two\.phase\.commit'), \
            other.transaction() as transaction:
        transaction.prepare()


def test_a_decision_about_a_transaction_that_is_not_prepared_is_refused():
    producer = make(FakeCluster())
    with pytest.raises(IllegalProducerState, match='found a producer that is in transaction, expected one that is '
                                                   'prepared transaction'), producer.transaction():
        producer.complete('7:0')


@pytest.mark.parametrize(('token', 'message'), [
    (PreparedTransaction(7, 5, 'y'), "found the token 7:5 of transactional.id 'y', expected one of 'x'"),
    ('8:5', 'found the token 8:5 of another producer id than that of the prepared transaction, 7:5'),
    ('7.5', "found the token '7.5', expected <producer id>:<epoch>")])
def test_a_token_of_another_id_ends_nothing(token, message):
    cluster, producer = recovered()
    with pytest.raises(ValueError, match=message):
        producer.complete(token)
    assert ends(cluster) == []
    assert producer.prepared == PreparedTransaction(7, 5)
    producer.abort_transaction()
    assert ends(cluster) == [(7, 0, False)]


def test_the_token_of_a_producer_id_whose_epochs_ran_out_decides_to_abort():
    cluster, producer = recovered(ongoing=(8, 0))
    assert producer.complete('7:32766')
    assert ends(cluster) == [(7, 0, False)]


def test_a_broker_without_two_phases_is_refused_at_the_construction():
    cluster = FakeCluster()
    cluster.broker.api_versions[22] = (0, 5)
    with pytest.raises(KafkaError, match=r'transaction\.two\.phase\.commit\.enable=true that serves InitProducerId 6: '
                                         'broker localhost:9092 serves InitProducerId up to version 5') as raised:
        make(cluster)
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert cluster.calls == []


@pytest.mark.parametrize(('options', 'message'), [
    ({'transaction_timeout_ms': 60_000}, 'transaction.timeout.ms'),
    ({'transactional_id': None}, 'without transactional.id')])
def test_two_phases_exclude_other_settings(options, message):
    with pytest.raises(ValueError, match=message):
        make(FakeCluster(), **options)


# ---- calls that time out

def test_an_initialization_that_timed_out_may_only_be_repeated():
    cluster = FakeCluster()
    cluster.ongoing = (7, 5)
    producer = make(cluster, max_block_ms=0)
    cluster.codes['InitProducerId'] = [ErrorCode.CONCURRENT_TRANSACTIONS]
    with pytest.raises(KafkaError, match='CONCURRENT_TRANSACTIONS'):
        producer.init_transactions()
    for call in (producer.begin_transaction, producer.abort_transaction, lambda: producer.init_transactions(False)):
        with pytest.raises(IllegalProducerState):
            call()
    assert producer.complete('7:5')


@pytest.mark.parametrize('lost', [ErrorCode.CONCURRENT_TRANSACTIONS, ClientError('the connection broke')])
def test_a_completion_that_timed_out_may_only_be_repeated_with_the_same_decision(lost):
    cluster = FakeCluster()
    cluster.ongoing = (7, 5)
    producer = make(cluster, max_block_ms=0)
    producer.init_transactions()
    cluster.codes['EndTxn'] = [lost]
    with pytest.raises((KafkaError, ClientError)):
        producer.complete('7:5')
    assert producer.transactions.state is ProducerState.COMMITTING
    for call in (producer.begin_transaction, producer.abort_transaction, lambda: producer.complete('7:4')):
        with pytest.raises(IllegalProducerState):
            call()
    assert producer.complete('7:5')
    assert ends(cluster) == [(7, 0, True)] * 2


def test_an_abort_that_timed_out_at_the_bump_of_the_epoch_goes_on_there():
    cluster = FakeCluster()
    cluster.broker.finalized_features['transaction.version'] = 1
    producer = make(cluster, two_phase_commit=False, max_block_ms=0)
    producer.init_transactions()
    producer.begin_transaction()
    cluster.codes[0] = [ErrorCode.INVALID_RECORD]
    producer.send('t', b'a')
    with pytest.raises(KafkaError):
        producer.flush()
    cluster.codes['InitProducerId'] = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    with pytest.raises(KafkaError):
        producer.abort_transaction()
    producer.abort_transaction()
    assert [name for name, _ in cluster.calls][-3:] == ['EndTxn', 'InitProducerId', 'InitProducerId']
    producer.begin_transaction()


# ---- transactions that another producer ends by their handle

def test_a_transaction_is_ended_by_its_handle_in_the_version_whose_pair_names_it():
    cluster = FakeCluster()
    producer = Producer(cluster)
    producer.end_prepared('other', 9, 3, commit=False)
    (name, request), = cluster.calls
    assert (name, request.transactional_id, request.producer_id, request.producer_epoch, request.committed) == (
        'EndTxn', 'other', 9, 3, False)


def test_below_transaction_version_2_there_are_no_handles():
    cluster = FakeCluster()
    cluster.broker.finalized_features['transaction.version'] = 1
    with pytest.raises(KafkaError, match=r'found transaction\.version 1, expected 2'):
        Producer(cluster).end_prepared('other', 9, 3)
    assert cluster.calls == []


@pytest.mark.parametrize(('code', 'kind'), [
    (ErrorCode.PRODUCER_FENCED, ProducerFencedError), (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ProducerFencedError),
    (ErrorCode.INVALID_TXN_STATE, TransactionError),
    (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, KafkaError)])
def test_a_handle_of_another_transaction_is_refused(code, kind):
    cluster = FakeCluster()
    cluster.codes['EndTxn'] = [code]
    with pytest.raises(kind, match=r"committing 9:3 of transactional\.id 'other'") as raised:
        Producer(cluster).end_prepared('other', 9, 3)
    assert type(raised.value) is kind


def test_of_many_handles_those_without_an_answer_are_repeated_alone():
    cluster = FakeCluster()
    cluster.codes['EndTxn'] = [ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS]
    cluster.retrying = repeating
    pairs = {name: PreparedTransaction(9, number) for number, name in enumerate('abc')}
    refused = end_all_by_handle(cluster, pairs, True, 1000)
    assert [request.transactional_id for _, request in cluster.calls] == ['a', 'b', 'c', 'c']
    assert {name: type(error) for name, error in refused.items()} == {'b': ProducerFencedError}
    assert end_all_by_handle(cluster, {}, True, 1000) == {}


def repeating(operation, what, also=(), timeout_ms=None):
    """Run the operation. If it raises a transient error, run it once more."""
    try:
        return operation()
    except KafkaError as error:
        assert error.code in also
        return operation()


@pytest.mark.parametrize('code', [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_fenced_completion_says_so(code):
    cluster, producer = recovered()
    cluster.codes['EndTxn'] = [code]
    with pytest.raises(ProducerFencedError):
        producer.complete('7:5')
    with pytest.raises(FatalProducerError, match='failed for good'):
        producer.begin_transaction()

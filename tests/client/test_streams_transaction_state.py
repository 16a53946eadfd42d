"""The states of a transactional producer: allowed calls, and the effects of errors."""
import pytest

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.transaction_state import (
    FatalProducerError,
    IllegalProducerState,
    Lifecycle,
    PreparedTransaction,
    ProducerState,
    Severity,
    TransactionError,
    severity_at_coordinator,
    severity_at_partition,
)

S = ProducerState


def in_state(*states):
    lifecycle = Lifecycle()
    for state in states:
        lifecycle.enter(state, KafkaError(ErrorCode.INVALID_RECORD, 'a bad record'))
    return lifecycle


BEGUN = (S.INITIALIZING, S.READY, S.IN_TRANSACTION)


def test_a_transaction_goes_round():
    in_state(*BEGUN, S.COMMITTING, S.READY, S.IN_TRANSACTION, S.ABORTING, S.READY, S.IN_TRANSACTION)


@pytest.mark.parametrize('states', [
    (S.READY,), (S.INITIALIZING, S.READY, S.COMMITTING), (*BEGUN, S.IN_TRANSACTION), (*BEGUN, S.READY),
    (*BEGUN, S.ABORTABLE_ERROR, S.COMMITTING), (*BEGUN, S.PREPARED_TRANSACTION, S.IN_TRANSACTION),
    (*BEGUN, S.PREPARED_TRANSACTION, S.READY), (S.INITIALIZING, S.READY, S.PREPARED_TRANSACTION)])
def test_a_step_out_of_order_is_refused(states):
    with pytest.raises(IllegalProducerState, match='found a producer that is'):
        in_state(*states)


def test_a_prepared_transaction_is_committed_or_aborted():
    for end in (S.COMMITTING, S.ABORTING):
        in_state(*BEGUN, S.PREPARED_TRANSACTION, end, S.READY, S.IN_TRANSACTION)
        in_state(S.INITIALIZING, S.PREPARED_TRANSACTION, end, S.READY)


@pytest.mark.parametrize('token', [
    '', '5', '5:', ':5', '5:6:7', '-1:-1', '5:-1', 'a:1', ' 5:1', '5:1\n', '9223372036854775808:0', '5:32768',
    '\u0665:1'])
def test_a_malformed_token_is_refused(token):
    with pytest.raises(ValueError, match='expected <producer id>:<epoch>'):
        PreparedTransaction.parse(token)


@pytest.mark.parametrize('token', ['0:0', '9223372036854775807:32767', '+5:+1'])
def test_a_token_is_read_with_the_rules_of_the_java_client(token):
    found = PreparedTransaction.parse(token)
    assert str(found) == token.replace('+', '')
    assert found == PreparedTransaction(found.producer_id, found.producer_epoch, 'the id is not compared')


def test_after_an_error_a_transaction_can_only_be_aborted():
    lifecycle = in_state(*BEGUN, S.ABORTABLE_ERROR)
    with pytest.raises(TransactionError, match='can only be aborted: a bad record') as raised:
        lifecycle.check_can_send()
    assert raised.value.code is ErrorCode.INVALID_RECORD
    for state in (S.ABORTING, S.READY, S.IN_TRANSACTION):
        lifecycle.enter(state)
    lifecycle.check_can_send()


def test_a_fatal_error_is_never_left():
    lifecycle = in_state(*BEGUN, S.FATAL_ERROR)
    for state in (S.ABORTING, S.READY):
        with pytest.raises(FatalProducerError, match='failed for good: a bad record'):
            lifecycle.enter(state)


def test_the_first_of_several_errors_is_reported():
    lifecycle = in_state(*BEGUN)
    for text in ('first', 'second'):
        lifecycle.enter(S.ABORTABLE_ERROR, KafkaError(ErrorCode.INVALID_RECORD, text))
    assert str(lifecycle.error) == 'first'


@pytest.mark.parametrize(('code', 'severity'), [
    ('NOT_COORDINATOR', Severity.FIND_COORDINATOR), ('COORDINATOR_LOAD_IN_PROGRESS', Severity.RETRY),
    ('CONCURRENT_TRANSACTIONS', Severity.RETRY), ('UNKNOWN_TOPIC_OR_PARTITION', Severity.RETRY),
    ('TRANSACTION_ABORTABLE', Severity.ABORTABLE), ('TOPIC_AUTHORIZATION_FAILED', Severity.ABORTABLE),
    ('ILLEGAL_GENERATION', Severity.ABORTABLE), ('INVALID_PRODUCER_EPOCH', Severity.FATAL),
    ('PRODUCER_FENCED', Severity.FATAL), ('INVALID_TXN_STATE', Severity.FATAL),
    ('TRANSACTIONAL_ID_AUTHORIZATION_FAILED', Severity.FATAL)])
def test_the_coordinator_s_errors(code, severity):
    assert severity_at_coordinator(ErrorCode[code]) is severity


@pytest.mark.parametrize(('code', 'severity'), [
    ('NOT_LEADER_OR_FOLLOWER', Severity.RETRY), ('CONCURRENT_TRANSACTIONS', Severity.RETRY),
    ('INVALID_PRODUCER_EPOCH', Severity.ABORTABLE), ('OUT_OF_ORDER_SEQUENCE_NUMBER', Severity.ABORTABLE),
    ('TRANSACTION_ABORTABLE', Severity.ABORTABLE), ('INVALID_RECORD', Severity.ABORTABLE),
    ('INVALID_TXN_STATE', Severity.FATAL), ('PRODUCER_FENCED', Severity.FATAL)])
def test_a_partition_s_errors(code, severity):
    assert severity_at_partition(ErrorCode[code]) is severity

"""Two-phase commit (KIP-939) through the wire formats: the setting, the rights, and the requests that the broker
refuses while a transaction is kept."""
import pytest
from api_client import ApiClient, TransactionalClient, values_of
from support.messages.message_builder import build

from kbroker.apis.serving.request import Api
from kbroker.apis.serving.served import apis_under, served_apis
from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import AccessControlEntryRecord
from kbroker.security.acl_codes import Operation, PatternType, Permission, ResourceType
from kbroker.security.authorizer import Authorizer
from kbroker.security.principal import Principal
from kbroker.security.session import Session
from kbroker.settings.config import Config

SETTING = 'transaction.two.phase.commit.enable'
NONE = ErrorCode.NONE
NEVER_MS = 2147483647


@pytest.fixture
def node(start_node):
    return start_node(**{SETTING: 'true'})


@pytest.fixture
def prepared(node, client):
    """Return a client in two-phase commit that has an open transaction of one record."""
    client = TransactionalClient(node)
    answer = init(client, enable2_pc=True)
    client.producer_id, client.producer_epoch = answer.producer_id, answer.producer_epoch
    assert client.produce(client.batch(b'prepared')).error_code == NONE
    return client


def init(client, version=6, **fields):
    return client.ask('InitProducerId', version, transactional_id='tx', transaction_timeout_ms=60000, **fields)


def keep(client):
    return init(client, enable2_pc=True, keep_prepared_txn=True)


def versions_of(client):
    answer = client.ask('ApiVersions', 4, client_software_name='test', client_software_version='1')
    (found,) = (api for api in answer.api_keys if api.api_key == ApiKey.INIT_PRODUCER_ID)
    return found.min_version, found.max_version


def test_without_the_setting_version_6_is_not_served(start_node):
    node = start_node()
    assert versions_of(ApiClient(node)) == (0, 5)
    connection = node.connect()
    node.begin(build('InitProducerIdRequest', transactional_id='tx'), 6, connection)
    assert 'version 6 is not served' in connection.closed


def test_with_the_setting_version_6_is_served(node):
    assert versions_of(ApiClient(node)) == (0, 6)


def test_no_other_api_depends_on_a_setting():
    changed = [api.key for api, other in zip(served_apis(), apis_under(Config({SETTING: 'true'})), strict=True)
               if api is not other]
    assert changed == [ApiKey.INIT_PRODUCER_ID]
    assert all(isinstance(api, Api) for api in apis_under(Config({})))


def test_a_prepared_transaction_is_kept_and_committed_by_the_next_client(node, prepared):
    heir = TransactionalClient.__new__(TransactionalClient)
    ApiClient.__init__(heir, node)
    heir.transactional_id = 'tx'
    token = prepared.producer_id, prepared.producer_epoch
    answer = keep(heir)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, token[0], token[1] + 1)
    assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == token
    heir.producer_id, heir.producer_epoch = answer.producer_id, answer.producer_epoch
    assert heir.produce(heir.batch(b'too early')).error_code == ErrorCode.INVALID_TXN_STATE
    assert values_of(heir.fetch(isolation_level=1).records) == []
    heir.end(True)
    assert values_of(heir.fetch(isolation_level=1).records) == [b'prepared']
    assert heir.produce(heir.batch(b'next')).error_code == NONE


def test_a_client_that_finds_nothing_to_keep_gets_no_token(node, prepared):
    prepared.end(True)
    answer = keep(prepared)
    assert answer.error_code == NONE
    assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (-1, -1)


@pytest.mark.parametrize('version', [11, 12])
def test_a_late_batch_of_the_former_client_is_refused_although_its_transaction_is_open(prepared, version):
    assert keep(prepared).error_code == NONE
    late = prepared.batch(b'late', base_sequence=1)
    assert prepared.produce(late, version).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert values_of(prepared.fetch().records) == [b'prepared']


def test_a_late_batch_is_refused_as_soon_as_a_killed_broker_serves_again(start_node, node, prepared):
    assert keep(prepared).error_code == NONE
    node.crash()
    prepared.broker = start_node(**{SETTING: 'true'})
    late = prepared.batch(b'late', base_sequence=1)
    assert prepared.produce(late).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    answer = keep(prepared)
    assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (
        prepared.producer_id, prepared.producer_epoch)
    assert answer.producer_epoch == prepared.producer_epoch + 2


@pytest.mark.parametrize('version', [4, 5])
def test_a_late_offset_of_the_former_client_is_refused_although_its_transaction_is_open(prepared, version):
    prepared.ask('FindCoordinator', coordinator_keys=['group'], key_type=0)
    assert commit_offset(prepared, 5) == NONE
    assert keep(prepared).error_code == NONE
    assert commit_offset(prepared, version) == ErrorCode.INVALID_PRODUCER_EPOCH


def commit_offset(client, version):
    answer = client.ask(
        'TxnOffsetCommit', version, transactional_id='tx', group_id='group', producer_id=client.producer_id,
        producer_epoch=client.producer_epoch, generation_id_or_member_epoch=-1, topics=[
            {'name': 'orders', 'partitions': [{'partition_index': 0, 'committed_offset': 1}]}])
    return answer.topics[0].partitions[0].error_code


def test_the_tools_see_the_pair_of_the_batches(prepared):
    keep(prepared)
    (state,) = prepared.ask('DescribeTransactions', transactional_ids=['tx']).transaction_states
    assert (state.transaction_state, state.producer_id, state.producer_epoch, state.transaction_timeout_ms) == (
        'Ongoing', prepared.producer_id, prepared.producer_epoch, NEVER_MS)
    (listed,) = prepared.ask('ListTransactions').transaction_states
    assert (listed.producer_id, listed.transaction_state) == (prepared.producer_id, 'Ongoing')


def test_the_flags_mean_nothing_without_a_transactional_id(client):
    answer = client.ask('InitProducerId', 6, transactional_id=None, transaction_timeout_ms=1, enable2_pc=True,
                        keep_prepared_txn=True)
    assert (answer.error_code, answer.producer_epoch, answer.ongoing_txn_producer_id) == (NONE, 0, -1)


RIGHTS = [
    ({Operation.WRITE}, {}, True),
    ({Operation.WRITE}, {'keep_prepared_txn': True}, True),
    ({Operation.WRITE}, {'enable2_pc': True}, False),
    ({Operation.TWO_PHASE_COMMIT}, {'enable2_pc': True}, False),
    ({Operation.WRITE, Operation.TWO_PHASE_COMMIT}, {'enable2_pc': True, 'keep_prepared_txn': True}, True),
    ({Operation.ALL}, {'enable2_pc': True}, True),
]


@pytest.mark.parametrize(('operations', 'flags', 'is_allowed'), RIGHTS)
def test_two_phase_commit_needs_a_right_of_its_own(node, client, operations, flags, is_allowed):
    client.ask('FindCoordinator', coordinator_keys=['tx'], key_type=1)
    authorizer = node.authorizer = Authorizer([])
    for number, operation in enumerate(operations):
        authorizer.put(AccessControlEntryRecord(
            id=number.to_bytes(16, 'big'), resource_type=ResourceType.TRANSACTIONAL_ID, resource_name='tx',
            pattern_type=PatternType.LITERAL, principal='User:app', host='*', operation=operation,
            permission_type=Permission.ALLOW))
    principal = Principal('User', 'app')
    app = ApiClient(node, session=Session(principal, authorizer.access_of(principal, '127.0.0.1')))
    code = init(app, **flags).error_code
    assert code == (NONE if is_allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

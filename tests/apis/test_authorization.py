"""Each API checks the rights of its client: each request is sent by clients with all rights, without rights, and with
some rights.

Covers KIP-679.
"""
from __future__ import annotations

import itertools
from typing import Any

import pytest
from api_client import ApiClient
from support.kafka.authorization_cases import ADMIN, CASES, SUPER_USER, Run, World, acls_of, prepare, runs_of

from kbroker.apis.serving.served import served_apis
from kbroker.base.errors import ErrorCode
from kbroker.protocol.messages import AccessControlEntryRecord
from kbroker.security.authorizer import Authorizer
from kbroker.security.principal import Principal
from kbroker.security.session import Session

HOST = '127.0.0.1'
WITHOUT_CHECK = {'SASL_AUTHENTICATE', 'SASL_HANDSHAKE'}
"""These APIs check no rights: a client calls them before it has logged in."""
DENIALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
DENIED_TO_ALL = {'produce-without-id', 'add-partitions'}
"""Cases with a request that the broker refuses to every client."""


@pytest.fixture(scope='module')
def answers(tmp_path_factory):
    """Run all cases and return the answers by (case name, scenario, version)."""
    from support.brokers.in_process_broker import InProcessBroker

    settings = {'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '1'}
    runs = [run for case in CASES for run in runs_of(case, every_version=True)]
    found: dict[tuple[str, str, int], Any] = {}
    with InProcessBroker(tmp_path_factory.mktemp('authorization'), settings) as broker:
        authorizer = with_authorizer(broker, acls_of(runs))
        world = prepare(ApiClient(broker).ask, runs)
        for run in runs:
            found[run.case.name, run.scenario, run.version] = answer_to(broker, authorizer, world, run)
    return found


def with_authorizer(broker: Any, acls: list[dict[str, Any]]) -> Authorizer:
    """Give the broker an authorizer with these ACLs."""
    authorizer = broker.authorizer = Authorizer([Principal('User', SUPER_USER), Principal('User', ADMIN)])
    for number, acl in enumerate(acls):
        fields = {**acl, 'pattern_type': acl['resource_pattern_type']}
        del fields['resource_pattern_type']
        authorizer.put(AccessControlEntryRecord(id=number.to_bytes(16, 'big'), **fields))
    return authorizer


def client_of(broker: Any, authorizer: Authorizer, user: str) -> ApiClient:
    principal = Principal('User', user)
    return ApiClient(broker, session=Session(principal, authorizer.access_of(principal, HOST)))


def answer_to(broker: Any, authorizer: Authorizer, ids: dict[str, bytes], run: Run) -> Any:
    client = client_of(broker, authorizer, run.case.user(run.scenario))
    fields = run.case.fields(run.version, World(ids, run.tag))
    if 'max_wait_ms' in fields:
        fields['max_wait_ms'] = 0       # the clock of the broker stands still
    return client.ask(run.case.api, run.version, **fields)


def shape(value: Any) -> Any:
    """Return the shape of an answer: its error codes and bit fields, the lengths of its lists, and which fields are
    null."""
    if isinstance(value, list):
        return sorted((shape(item) for item in value), key=repr)
    names = getattr(getattr(value, '_layout', None), 'names', None)
    if names is None:
        return value is None
    return [getattr(value, name) if name.endswith(('error_code', 'operations')) else shape(getattr(value, name))
            for name in names]


def denials(value: Any) -> set[int]:
    """Return the error codes in an answer that deny a right."""
    if isinstance(value, list):
        return set(itertools.chain.from_iterable(map(denials, value)))
    found = set()
    for name in getattr(getattr(value, '_layout', None), 'names', ()):
        field = getattr(value, name)
        found |= {field} & DENIALS if name.endswith('error_code') else denials(field)
    return found


@pytest.mark.parametrize('api', [api.key.name for api in served_apis()])
def test_each_api_has_a_case(api):
    assert api in WITHOUT_CHECK or any(api.replace('_', '').lower() == case.api.lower() for case in CASES)


@pytest.mark.parametrize('case', CASES, ids=lambda case: case.name)
def test_a_super_user_may_do_everything(answers, case):
    for version in case.versions():
        denied = denials(answers[case.name, 'super user', version])
        assert not denied or case.name in DENIED_TO_ALL


WITH_RIGHTS = [case for case in CASES if case.needs]


@pytest.mark.parametrize('case', WITH_RIGHTS, ids=lambda case: case.name)
def test_every_right_counts(answers, case):
    for version in case.versions():
        full = shape(answers[case.name, 'all', version])
        for scenario in case.scenarios():
            if scenario in ('nothing', 'deny over allow') or (
                    scenario.startswith('without') and case.counts(int(scenario.split()[1]), version)):
                assert shape(answers[case.name, scenario, version]) != full, (scenario, version)


@pytest.mark.parametrize('case', WITH_RIGHTS, ids=lambda case: case.name)
def test_an_acl_counts_at_its_host_and_by_its_prefix(answers, case):
    for version in case.versions():
        assert (shape(answers[case.name, 'prefixed', version]) == shape(answers[case.name, 'all', version]))
        assert (shape(answers[case.name, 'other host', version]) == shape(answers[case.name, 'nothing', version]))


T, G, C, X = (int(code) for code in sorted(DENIALS))
DENIED = {
    'alter-configs-of-groups': G, 'describe-configs-of-groups': G, 'update-features': C,
    'add-offsets': X, 'add-partitions': X, 'add-partitions-batched': C, 'alter-broker-configs': C, 'alter-configs': T,
    'alter-quotas': C, 'alter-scram': C, 'create-acls': C, 'delete-acls': C, 'describe-acls': C, 'describe-quotas': C,
    'describe-scram': C, 'alter-reassignments': C, 'list-reassignments': C, 'alter-log-dirs': C, 'describe-quorum': C,
    'share-heartbeat': G, 'describe-sharers': G, 'describe-share-offsets': G, 'alter-share-offsets': G,
    'delete-share-offsets': G,
    'consumer-heartbeat': G, 'share-fetch': G, 'share-acknowledge': G, 'describe-consumers': G,
    'streams-heartbeat': G, 'streams-creates': G, 'describe-streams': G, 'topology-description': G,
    'unregister-controller': C,
    'create-partitions': T, 'create-topics': T, 'create-topics-really': T, 'delete-absent-topics': T,
    'delete-groups': G, 'delete-records': T, 'delete-topics': T, 'delete-topics-by-id': T, 'describe-configs': (T, C),
    'describe-groups': G, 'describe-log-dirs': C, 'describe-producers': T, 'describe-topic-partitions': T,
    'describe-transactions': X, 'elect-all-leaders': C, 'elect-leaders': C, 'end-txn': X, 'fetch': T,
    'fetch-follower': T, 'find-group': G, 'find-transaction': X, 'heartbeat': G, 'incremental-alter-configs': T,
    'init-idempotent': C, 'init-transactional': X, 'join-group': G, 'leader-epochs': T, 'leave-group': G,
    'list-config-resources': C, 'list-offsets': T, 'metadata': T, 'metadata-by-id': T, 'metadata-cluster': T,
    'metadata-creates': T, 'offset-commit': G, 'offset-delete': G, 'offset-delete-of-group': G, 'offset-fetch': G,
    'offset-fetch-all': G, 'produce': T, 'produce-forbidden': T, 'produce-transactional': X, 'produce-without-id': X,
    'sync-group': G, 'txn-offset-commit': X,
    'unsound-broker-configs': C, 'write-txn-markers': C,
}
"""Maps each case to the error codes in the answer to a client without rights. In a case that is not listed, the answer
omits what the client may not see."""
SILENT = {'describe-log-dirs': 3, 'elect-leaders': 0, 'elect-all-leaders': 1}
"""Maps each case whose oldest versions cannot report a denial to the first version that can."""


@pytest.mark.parametrize('case', CASES, ids=lambda case: case.name)
def test_a_client_without_rights_gets_the_codes_of_what_it_lacks(answers, case):
    expected = DENIED.get(case.name, ())
    for version in case.versions():
        if version >= SILENT.get(case.name, 0):
            found = denials(answers[case.name, 'nothing', version])
            assert found == ({expected} if isinstance(expected, int) else set(expected)), version


def test_the_text_of_an_error_names_the_right_that_is_missing_and_not_whether_the_topic_exists(tmp_path):
    from support.brokers.in_process_broker import InProcessBroker

    with InProcessBroker(tmp_path / 'data') as broker:
        topic = {'name': 'payments', 'num_partitions': 1, 'replication_factor': 1}
        ApiClient(broker).ask('CreateTopics', topics=[topic])
        ask = client_of(broker, with_authorizer(broker, []), 'alice').ask
        (row,) = ask('CreateTopics', topics=[topic | {'name': 'new'}]).topics
        assert row.error_message == 'User:alice needs CREATE on topic new, or on the cluster'
        rows = ask('DeleteTopics', topics=[{'name': name} for name in ('payments', 'missing')]).responses
        assert [row.error_message for row in rows] == [
            f'User:alice needs DESCRIBE on topic {name}' for name in ('payments', 'missing')]
        (row,) = ask('FindCoordinator', key_type=0, coordinator_keys=['billing']).coordinators
        assert row.error_message == 'User:alice needs DESCRIBE on group billing'
        assert ask('DescribeAcls', resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
                   ).error_message == 'User:alice needs DESCRIBE on the cluster'

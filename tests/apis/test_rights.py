"""Handlers check the rights of a client by `Request.may`, which applies the ACLs in force."""
import pytest

from kbroker.apis.serving.authorization import require
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.messages import AccessControlEntryRecord
from kbroker.security.acl_codes import Operation, PatternType, Permission, ResourceType
from kbroker.security.authorizer import Authorizer
from kbroker.security.principal import parse_principal

ALICE = parse_principal('User:alice')


def allow_read(entry_id, name='orders'):
    return AccessControlEntryRecord(
        id=entry_id, resource_type=ResourceType.TOPIC, resource_name=name, pattern_type=PatternType.LITERAL,
        principal='User:alice', host='*', operation=Operation.READ, permission_type=Permission.ALLOW)


class Asking:
    """A request by the user alice."""

    def __init__(self, authorizer):
        self.access = authorizer.access_of(ALICE, '10.0.0.1')
        self.principal = ALICE

    def may(self, operation, resource_type, name, quiet=False):
        return self.access.may(operation, resource_type, name, None, quiet)


def test_a_right_that_is_missing_is_the_error_of_its_resource():
    request = Asking(Authorizer())
    for resource_type, code, words in (
            (ResourceType.TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 'topic a\\nb'),
            (ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED, 'group a\\nb'),
            (ResourceType.CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 'the cluster'),
            (ResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
             'transactional id a\\nb')):
        with pytest.raises(KafkaError) as refused:
            require(request, Operation.DESCRIBE, resource_type, 'a\nb')
        assert refused.value.code is code
        assert str(refused.value) == f'User:alice needs DESCRIBE on {words}'


def test_a_right_is_lost_at_once_when_its_acl_goes():
    authorizer = Authorizer()
    authorizer.put(allow_read(bytes(16)))
    request = Asking(authorizer)
    require(request, Operation.READ, ResourceType.TOPIC, 'orders')
    authorizer.remove(bytes(16))
    with pytest.raises(KafkaError):
        require(request, Operation.READ, ResourceType.TOPIC, 'orders')


def test_connections_of_one_principal_and_host_share_their_decisions():
    authorizer = Authorizer()
    access = authorizer.access_of(ALICE, '10.0.0.1')
    assert authorizer.access_of(ALICE, '10.0.0.1') is access
    assert authorizer.access_of(ALICE, '10.0.0.2') is not access

"""Apache Kafka 4.4 and kbroker, both at metadata.version 33, have the rules that Apache Kafka 4.4 has added.

The rules are about ranges of hosts in ACLs, the additional partitions of a request, the records of compressed batches,
and the claims that signed tokens need.
"""
from __future__ import annotations

import contextlib
import re
import time

import pytest
from raw_peer import NOW_MS, RawPeer
from support.brokers.broker_process import BrokerProcess
from support.kafka.apache_kafka import KafkaProcess
from support.kafka.authorized_kafka import AuthorizedBroker, AuthorizedKafka, password_of
from support.kafka.beside_kafka import at_once, running
from support.runner.free_ports import free_port

from kbroker.base.errors import ErrorCode
from kbroker.metadata.offline import changed_directory
from kbroker.protocol.messages import AccessControlEntryRecord
from kbroker.record.batch import encode_batch
from kbroker.security.acl_codes import Operation, PatternType, Permission, ResourceType
from kbroker.security.mechanisms import HANDLER, JAAS, JWKS_URL, LOGIN_MODULES, VALIDATOR

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

RELEASE, LEVEL = '4.4', 33
ADMIN = 'admin'
LIMIT_S = 60

HOSTS = [
    '10.0.0.0/8', '10.0.0.1/8', '1.2.3.4/32', '0.0.0.0/0', '::/0', 'fe80::/10', '2001:DB8::/32', '010.0.0.0/8',
    '10.0.0.0/08', '[::1]/128', '::/064', '::/+64', 'host.name', '1.2.3', '', '/', 'a/b', 'a/::', '/8', '10.0.0.0/',
    '10.0.0.0/33', '10.0.0.0/8 ', ' 10.0.0.0/8', '10.0.0/8', '10.0.0.0/-1', '10.0.0.0/255.0.0.0', '10.0.0.0/008',
    '0010.0.0.0/8', '10.0.0.0/8/8', '256.0.0.0/8', '[10.0.0.0]/8', '\u0661.0.0.0/8', '::/129', '::/-1', '::/', '::/ 64',
    '::/a', '::/64/64', '::ffff:10.0.0.0/104', ':::/64', '[::1/128', 'fe80::1%/64',
]
"""Hosts without a zone that exists: Kafka accepts a zone only if its machine has such an interface."""
REASON = re.compile(r"(Invalid CIDR notation '.*': (?:Could not parse \[.*?\](?=$|:| -)|Value .*))", re.DOTALL)

RIGHTS = {
    'range': [('ALLOW', '127.0.0.0/8')],
    'host-bits': [('ALLOW', '127.9.9.9/8')],
    'zeros': [('ALLOW', '127.000.000.001/32')],
    'all': [('ALLOW', '0.0.0.0/0')],
    'next': [('ALLOW', '127.0.0.2/32')],
    'others': [('ALLOW', '10.0.0.0/8')],
    'ipv6': [('ALLOW', '::/0'), ('ALLOW', '::1/128')],
    'denied': [('ALLOW', '127.0.0.1'), ('ALLOW', '127.0.0.0/8'), ('DENY', '127.0.0.0/30')],
    'beside': [('ALLOW', '*'), ('DENY', '128.0.0.0/1'), ('DENY', '::/0')],
}
"""Maps users at 127.0.0.1 to the permissions and hosts of their ACLs."""


def acl(user, host, permission='ALLOW', name='orders', operation=Operation.DESCRIBE):
    return dict(resource_type=int(ResourceType.TOPIC), resource_name=name, principal=f'User:{user}', host=host,
                resource_pattern_type=int(PatternType.LITERAL), operation=int(operation),
                permission_type=int(Permission[permission]))


@pytest.fixture(scope='module')
def addresses(tmp_path_factory):
    """The addresses of Kafka and of kbroker, each with the topics `orders` and `payments` and the ACLs of RIGHTS."""
    directory, users = tmp_path_factory.mktemp('rules'), [ADMIN, *RIGHTS]
    settings = {'max.decompressed.message.bytes': '100'}
    acls = [acl(user, host, permission) for user, rows in RIGHTS.items() for permission, host in rows]
    acls.append(acl('range', '127.0.0.0/8', operation=Operation.ALTER))
    with running(AuthorizedKafka(directory / 'kafka', settings, users, [ADMIN], RELEASE),
                 AuthorizedBroker(directory / 'kbroker', settings, users, [ADMIN])) as brokers:
        for broker in brokers:
            with peer_of(broker.address) as admin:
                admin.prepare('UpdateFeatures', timeout_ms=10_000, validate_only=False, feature_updates=[
                    dict(feature='metadata.version', max_version_level=LEVEL, upgrade_type=1)])
                for topic in ('orders', 'payments'):
                    admin.create_topic(topic)
                assert {code for code, _ in created(admin, *acls)} == {0}
                await_acls(admin, len(acls))
        yield [broker.address for broker in brokers]


@contextlib.contextmanager
def peer_of(address, user=ADMIN):
    with contextlib.closing(RawPeer(address, 'orders', (user, password_of(user)))) as peer:
        yield peer


def created(admin, *acls):
    return [(row.error_code, row.error_message) for row in admin.prepare('CreateAcls', creations=list(acls)).results]


def await_acls(admin, count):
    """Wait until the authorizer of a broker knows all ACLs."""
    anything = dict(resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
                    host_filter=None, operation=1, permission_type=1)
    deadline = time.monotonic() + LIMIT_S
    while sum(len(resource.acls) for resource in admin.ask('DescribeAcls', **anything).resources) < count:
        assert time.monotonic() < deadline


def code_of_list_offsets(peer):
    """Return the error code of a request that needs the right to describe `orders`."""
    answer = peer.ask('ListOffsets', 9, replica_id=-1, topics=[
        dict(name='orders', partitions=[dict(partition_index=0, timestamp=-1)])])
    return answer.topics[0].partitions[0].error_code


def on_both(addresses, ask, user=ADMIN):
    """Return the answers of Kafka and of kbroker to what `ask` sends with a peer."""
    def answer(address):
        with peer_of(address, user) as peer:
            return ask(peer)

    return at_once(answer, addresses)


def test_the_same_hosts_are_refused_for_the_same_reasons(addresses):
    acls = [acl('nobody', host, name='unused') for host in HOSTS]
    for host, kafka, ours in zip(HOSTS, *on_both(addresses, lambda admin: created(admin, *acls)), strict=True):
        assert kafka[0] == ours[0], (host, kafka, ours)
        if kafka[0] and '/' in host:
            reason, = REASON.findall(kafka[1])
            assert ours[1].startswith(reason), (kafka, ours)


@pytest.mark.parametrize('user', RIGHTS)
def test_a_client_has_the_same_rights_by_ranges(addresses, user):
    kafka, ours = on_both(addresses, code_of_list_offsets, user)
    assert kafka == ours
    assert (ours == 0) is (user in ('range', 'host-bits', 'zeros', 'all', 'beside'))


def test_a_range_from_before_its_level_is_in_force_on_both_brokers(tmp_path):
    """Apache Kafka before 4.4 writes such an ACL at metadata.version 30, where no broker of 4.4 does."""
    directory, users = tmp_path / 'data', [ADMIN, 'range']
    with AuthorizedBroker(directory, {}, users, [ADMIN]) as broker:
        with peer_of(broker.address) as admin:
            admin.create_topic('orders')
        broker.stop()
    fields = acl('range', '127.0.0.0/8')
    with changed_directory(str(directory)) as controller:
        assert controller.image.metadata_version == 30
        controller.at_once(controller.commits.write([AccessControlEntryRecord(
            id=bytes(16), pattern_type=fields.pop('resource_pattern_type'), **fields)]))
    for process in (AuthorizedKafka(directory, {}, users, [ADMIN], RELEASE),
                    AuthorizedBroker(directory, {}, users, [ADMIN])):
        with process as broker:
            with peer_of(broker.address) as admin, peer_of(broker.address, 'range') as client:
                await_acls(admin, 1)
                assert code_of_list_offsets(client) == 0
                assert created(admin, fields | {'host': '10.0.0.0/8', 'resource_pattern_type': 3})[0][0] == (
                    ErrorCode.UNSUPPORTED_VERSION)
            broker.stop()


@pytest.mark.parametrize('user', [ADMIN, 'range'])
@pytest.mark.parametrize('wanted', [
    [('orders', 10_001)], [('orders', 10_002)], [('orders', 5_001), ('payments', 5_001)],
    [('orders', 5_001), ('payments', 5_002)], [('orders', 10_002), ('payments', 0), ('absent', 3)],
    [('orders', 3), ('absent', 20_000)], [('orders', 6_000), ('orders', 6_000), ('payments', 9_000)],
    [('orders', 3), ('payments', 20_000)], [('orders', 2**31 - 1), ('payments', 2**31 - 1)],
    [('orders', -2**31), ('payments', 2)]])
def test_the_additional_partitions_of_a_request_have_the_same_limit(addresses, user, wanted):
    """The user `range` may alter `orders` only."""
    def codes(peer):
        answer = peer.ask('CreatePartitions', timeout_ms=10_000, validate_only=True, topics=[
            dict(name=name, count=count, assignments=None) for name, count in wanted])
        return sorted((row.name, ErrorCode(row.error_code).name) for row in answer.results)

    kafka, ours = on_both(addresses, codes, user)
    assert kafka == ours


@pytest.mark.parametrize('compression', range(5))
@pytest.mark.parametrize('sizes', [[100], [101], [100, 101, 100]])
def test_records_of_compressed_batches_have_the_same_limit(addresses, compression, sizes):
    """The body of a record without key and headers has 7 bytes more than a value of 64 bytes or more."""
    batch = bytes(encode_batch([(NOW_MS, None, bytes(size - 7)) for size in sizes], compression=compression))

    def verdict(peer):
        answer = peer.ask('Produce', 12, acks=-1, timeout_ms=5_000, transactional_id=None, topic_data=[
            dict(name='orders', partition_data=[dict(index=0, records=batch)])])
        partition, = answer.responses[0].partition_responses
        return partition.error_code, partition.base_offset, partition.record_errors

    kafka, ours = on_both(addresses, verdict)
    assert kafka == ours
    assert (ours[0] == ErrorCode.INVALID_RECORD) is (compression > 0 and 101 in sizes)


def test_neither_broker_starts_with_signed_tokens_without_an_expected_audience(tmp_path):
    keys = tmp_path / 'keys.json'
    keys.write_text('{"keys": []}')
    prefix = 'listener.name.sasl_plaintext.oauthbearer'
    settings = {
        'listener.name.sasl_plaintext.sasl.enabled.mechanisms': 'OAUTHBEARER',
        f'{prefix}.{JAAS}': f'{LOGIN_MODULES["OAUTHBEARER"]} required;', f'{prefix}.{HANDLER}': VALIDATOR,
        f'{prefix}.{JWKS_URL}': keys.as_uri(), f'{prefix}.sasl.oauthbearer.expected.issuer': 'https://issuer'}
    kafka = KafkaProcess(tmp_path / 'kafka', settings, RELEASE)
    listener = f'SASL_PLAINTEXT://127.0.0.1:{free_port()}'
    controller = f'127.0.0.1:{free_port()}'
    kafka.settings |= {
        'listeners': f'{listener},PLAINTEXT://{kafka.address},CONTROLLER://{controller}',
        'controller.quorum.voters': f'1@{controller}',
        'listener.security.protocol.map': 'SASL_PLAINTEXT:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT'}
    for broker in (kafka, BrokerProcess(tmp_path / 'kbroker', settings | {'listeners': listener})):
        with pytest.raises(AssertionError, match='did not become ready'):
            broker.start()
        assert any('sasl.oauthbearer.expected.audience' in line and 'allow.unverified.audience' in line
                   for line in broker.lines)

"""DescribeAcls, CreateAcls and DeleteAcls: filters, validation, rights and bounds. ACLs are kept over a restart."""
import uuid
from types import SimpleNamespace

import pytest
from api_client import ApiClient
from support.brokers.in_process_broker import frame_of
from support.messages.message_builder import build
from support.worlds.stepwise_work import StepwiseWork

from kbroker.base.errors import ErrorCode
from kbroker.metadata import access_control
from kbroker.protocol.metadata_records import encode_metadata_record
from kbroker.security.acl_codes import Operation, PatternType, Permission, ResourceType
from kbroker.security.principal import ANONYMOUS, parse_principal
from kbroker.security.session import Session

ON = {'authorizer_class_name': 'StandardAuthorizer', 'super_users': 'User:admin'}
ADMIN, ALICE = parse_principal('User:admin'), parse_principal('User:alice')
HERE = '127.0.0.1'
READ_ORDERS = {'resource_type': 2, 'resource_name': 'orders', 'resource_pattern_type': 3, 'principal': 'User:alice',
               'host': '*', 'operation': 3, 'permission_type': 3}
EVERYTHING = {'resource_type_filter': 1, 'resource_name_filter': None, 'pattern_type_filter': 1,
              'principal_filter': None, 'host_filter': None, 'operation': 1, 'permission_type': 1}
FRAMES = {
    'CreateAcls': '001e000300000007000163000202076f7264657273030b557365723a616c696365022a03030000',
    'DescribeAcls': '001d0003000000080001630002076f7264657273020000010100',
    'DeleteAcls': '001f000300000009000163000202076f726465727303000001010000'}
ANSWERS = {
    'CreateAcls': '000000070000000000020000010000',
    'DescribeAcls': '0000000800000000000000010202076f726465727303020b557365723a616c696365022a0303000000',
    'DeleteAcls': '000000090000000000020000000200000002076f7264657273030b557365723a616c696365022a0303000000'}
RECORDS = [
    ((2, 'orders', 3, 'User:alice', '*', 3, 3),
     '011200202122232425262728292a2b2c2d2e2f02076f7264657273030b557365723a616c696365022a030300'),
    ((3, 'tmp-', 4, 'User:*', '10.0.0.7', 2, 2),
     '011200202122232425262728292a2b2c2d2e2f0305746d702d0407557365723a2a0931302e302e302e37020200'),
    ((4, 'kafka-cluster', 3, 'User:CN=app,O=Ex', '*', 12, 3),
     '011200202122232425262728292a2b2c2d2e2f040e6b61666b612d636c75737465720311557365723a434e3d6170702c4f3d4578022a0c03'
     '00'),
    ((2, 't', 4, 'User:alice', '10.0.0.0/8', 3, 3),
     '011200202122232425262728292a2b2c2d2e2f020274040b557365723a616c6963650b31302e302e302e302f38030300'),
    ((5, '*', 3, 'User:tx', '*', 4, 3), '011200202122232425262728292a2b2c2d2e2f05022a0308557365723a7478022a040300')]


class Member(ApiClient):
    """A client that has logged in."""

    def __init__(self, node, principal):
        super().__init__(node)
        access = None if node.authorizer is None else node.authorizer.access_of(principal, HERE)
        self.session = Session(principal, access)

    def begin(self, api, version=None, **fields):
        return super().begin(api, version, connection=self.broker.connect(self.session), **fields)


@pytest.fixture
def node(start_node):
    return start_node(**ON)


@pytest.fixture
def admin(node):
    return Member(node, ADMIN)


def create(client, *creations, version=None):
    """Create ACLs. Each creation gives the fields in which the ACL differs from READ_ORDERS. Return the error codes."""
    results = client.ask('CreateAcls', version, creations=[READ_ORDERS | creation for creation in creations]).results
    assert all(bool(result.error_message) == bool(result.error_code) for result in results)
    return [result.error_code for result in results]


def described(client, version=None, **wanted):
    """Return the ACLs that match the fields `wanted`, as tuples. If the request fails, return its error code."""
    answer = client.ask('DescribeAcls', version, **EVERYTHING | wanted)
    if answer.error_code:
        return answer.error_code
    return sorted((resource.resource_type, resource.resource_name, resource.pattern_type, acl.principal, acl.host,
                   acl.operation, acl.permission_type) for resource in answer.resources for acl in resource.acls)


def delete(client, *filters):
    """Delete the ACLs that match filters. Each filter gives the fields in which it differs from EVERYTHING. Return for
    each filter the resource names of the deleted ACLs, or the error code."""
    results = client.ask('DeleteAcls', filters=[EVERYTHING | wanted for wanted in filters]).filter_results
    return [result.error_code or sorted(acl.resource_name for acl in result.matching_acls) for result in results]


@pytest.mark.parametrize(('fields', 'data'), RECORDS)
def test_a_record_is_that_of_kafka_byte_for_byte(fields, data):
    names = ('resource_type', 'resource_name', 'pattern_type', 'principal', 'host', 'operation', 'permission_type')
    record = build('AccessControlEntryRecord', id=bytes(range(0x20, 0x30)), **dict(zip(names, fields, strict=True)))
    assert encode_metadata_record(record, 0).hex() == data


def test_the_removing_record_is_that_of_kafka_byte_for_byte():
    record = build('RemoveAccessControlEntryRecord', id=bytes(range(0x20, 0x30)))
    assert encode_metadata_record(record, 0).hex() == '011300202122232425262728292a2b2c2d2e2f00'


def test_requests_and_answers_are_those_of_kafka_byte_for_byte(node, admin):
    connection = node.connect(admin.session)
    for api, frame in FRAMES.items():
        node.send(connection, bytes.fromhex(frame))
        while len(node.long_work):
            node.turn()
        assert connection.replies[-1].hex() == ANSWERS[api]


@pytest.mark.parametrize('version', [1, 2, 3])
def test_a_created_acl_is_in_force_described_kept_and_deleted(start_node, version):
    node = start_node(**ON)
    admin, access = Member(node, ADMIN), node.authorizer.access_of(ALICE, HERE)
    assert not access.may(Operation.READ, ResourceType.TOPIC, 'orders')
    assert create(admin, {}, version=version) == [0]
    assert access.may(Operation.READ, ResourceType.TOPIC, 'orders')
    found = [(2, 'orders', 3, 'User:alice', '*', 3, 3)]
    assert described(admin, version) == found
    node.crash()
    node = start_node(**ON)
    admin, access = Member(node, ADMIN), node.authorizer.access_of(ALICE, HERE)
    assert described(admin, version) == found
    assert access.may(Operation.READ, ResourceType.TOPIC, 'orders')
    assert delete(admin, {}) == [['orders']]
    assert not access.may(Operation.READ, ResourceType.TOPIC, 'orders')
    assert described(admin, version) == []
    assert node.metadata.image.access_control_entries == {}


def test_an_acl_is_created_once(node, admin):
    assert create(admin, {}, {}, {'host': '10.0.0.1'}) == [0, 0, 0]
    before = node.metadata.end_offset
    assert create(admin, {}) == [0]
    assert node.metadata.end_offset == before
    assert len(node.metadata.image.access_control_entries) == len(node.authorizer) == 2
    assert [len(uuid.UUID(bytes=entry_id).bytes) for entry_id in node.metadata.image.access_control_entries] == [16, 16]


@pytest.mark.parametrize('fields', [
    {'resource_type': 1}, {'resource_type': 8}, {'resource_type': -1}, {'resource_pattern_type': 1},
    {'resource_pattern_type': 2}, {'resource_pattern_type': 5}, {'operation': 1}, {'operation': 16},
    {'permission_type': 1}, {'permission_type': 4}, {'resource_type': 4}, {'resource_name': ''},
    {'principal': 'alice'}, {'principal': ''}, {'host': ''}])
def test_an_invalid_creation_fails_alone(admin, fields):
    assert create(admin, {'host': 'a'}, fields, {'host': 'b'}) == [0, ErrorCode.INVALID_REQUEST, 0]
    assert len(described(admin)) == 2


@pytest.mark.parametrize('fields', [
    {'resource_type': 4, 'resource_name': 'kafka-cluster'}, {'principal': 'User:'}, {'principal': 'Group:x'},
    {'host': 'host.name'}, {'host': '1.2.3'}, {'resource_type': 7, 'resource_name': 'alice', 'operation': 13},
    {'resource_pattern_type': 4, 'resource_name': '*'}])
def test_what_kafka_accepts_is_accepted(admin, fields):
    assert create(admin, fields) == [0]


def raise_metadata_version(client, level):
    answer = client.ask('UpdateFeatures', timeout_ms=1000, validate_only=False, feature_updates=[
        {'feature': 'metadata.version', 'max_version_level': level, 'upgrade_type': 1}])
    assert answer.error_code == 0


def refusal_of(client, host):
    result, = client.ask('CreateAcls', creations=[READ_ORDERS | {'host': host}]).results
    return result.error_code, result.error_message


@pytest.mark.parametrize('host', ['10.0.0.0/8', 'a/b', '/'])
@pytest.mark.parametrize('level', [30, 31])
def test_a_host_with_a_slash_needs_a_metadata_version_that_knows_ranges(admin, level, host):
    if level > 30:
        raise_metadata_version(admin, level)
    assert refusal_of(admin, host) == (
        ErrorCode.UNSUPPORTED_VERSION, 'CIDR-based ACL host patterns require metadata version 4.4-IV1 or higher. '
        f'Found metadata.version {level}, expected at least 32')
    assert described(admin) == []


def test_a_range_is_kept_as_it_was_typed_and_in_force(start_node):
    node = start_node(**ON)
    admin, alice = Member(node, ADMIN), node.authorizer.access_of(ALICE, '10.9.9.9')
    raise_metadata_version(admin, 32)
    hosts = ['10.0.0.0/8', '10.0.0.1/8', '2001:DB8::/32', '[::1]/128']
    assert create(admin, *({'host': host} for host in hosts)) == [0] * 4
    assert create(admin, {'host': '10.0.0.1/8'}) == [0], 'exists already'
    assert alice.may(Operation.READ, 2, 'orders')
    node.crash()
    node = start_node(**ON)
    admin, alice = Member(node, ADMIN), node.authorizer.access_of(ALICE, '10.9.9.9')
    assert {row[4] for row in described(admin)} == set(hosts)
    assert alice.may(Operation.READ, 2, 'orders')
    assert described(admin, host_filter='10.5.5.5') == described(admin, host_filter='10.0.0.2/8') == []
    only = {'resource_name_filter': 'orders', 'principal_filter': 'User:alice'}
    assert [row[4] for row in described(admin, host_filter='10.0.0.1/8', **only)] == ['10.0.0.1/8']
    assert delete(admin, {'host_filter': '10.0.0.0/8'}, {'host_filter': '10.0.0.1/8', **only}) == [['orders']] * 2
    assert not alice.may(Operation.READ, 2, 'orders')


@pytest.mark.parametrize(('host', 'reason'), [
    ('10.0.0.0/33', 'Value [33] not in range [0,32]'), ('10.0.0.0/', 'Could not parse [10.0.0.0/]'),
    ('::ffff:10.0.0.0/104', 'Could not parse [::ffff:10.0.0.0]: found an IPv4 address mapped into IPv6')])
def test_a_range_that_does_not_parse_is_refused_with_kafkas_reason(admin, host, reason):
    raise_metadata_version(admin, 33)
    assert refusal_of(admin, host) == (ErrorCode.INVALID_REQUEST, f"Invalid CIDR notation '{host}': {reason}")
    assert create(admin, {'host': '10.0.0.0/8'}, {'host': host}) == [0, ErrorCode.INVALID_REQUEST]


def test_a_range_from_before_its_metadata_version_is_in_force_and_logged(start_node, caplog):
    """Apache Kafka before 4.4 stores a host with a slash as text. Apache Kafka 4.4 reads it as a range, at every
    metadata.version."""
    node = start_node(**ON)
    entries = [build('AccessControlEntryRecord', id=bytes([number]) * 16, pattern_type=3, host=host, **{
        name: READ_ORDERS[name] for name in READ_ORDERS if name not in ('resource_pattern_type', 'host')})
        for number, host in enumerate(('10.0.0.0/8', 'a/b'))]
    node.metadata.at_once(node.metadata.commits.write(entries[1:]))
    node.crash()
    node = start_node(**ON)
    assert not node.authorizer.access_of(ALICE, '10.9.9.9').may(Operation.READ, 2, 'orders')
    assert 'of addresses as hosts' not in caplog.text, 'a text that is no range'
    node.metadata.at_once(node.metadata.commits.write(entries[:1]))
    node.crash()
    node = start_node(**ON)
    assert node.authorizer.access_of(ALICE, '10.9.9.9').may(Operation.READ, 2, 'orders')
    assert 'ranges of addresses as hosts of ACLs: 1, expected 0 at metadata.version 30' in caplog.text


@pytest.mark.parametrize(('api', 'where', 'field'), [
    *(('DescribeAcls', None, field) for field in (
        'resource_type_filter', 'pattern_type_filter', 'operation', 'permission_type')),
    *(('DeleteAcls', 'filters', field) for field in ('resource_type_filter', 'operation')),
    *(('CreateAcls', 'creations', field) for field in ('resource_type', 'resource_pattern_type', 'permission_type'))])
def test_a_code_that_says_unknown_closes_the_connection(node, admin, api, where, field):
    row = (READ_ORDERS if api == 'CreateAcls' else EVERYTHING) | {field: 0}
    fields = row if where is None else {where: [row]}
    connection = node.connect(admin.session)
    node.send(connection, frame_of(build(f'{api}Request', **fields), 3))
    while len(node.long_work):
        node.turn()
    assert (connection.replies, connection.closed is None) == ([], False)


SOME = [
    {'resource_name': 'orders'}, {'resource_name': 'orders', 'operation': 4, 'principal': 'User:*'},
    {'resource_name': '*', 'permission_type': 2}, {'resource_name': 'ord', 'resource_pattern_type': 4},
    {'resource_name': 'payments', 'host': '::1'}, {'resource_type': 3, 'resource_name': 'orders'}]


@pytest.mark.parametrize(('wanted', 'expected'), [
    ({}, {0, 1, 2, 3, 4, 5}), ({'resource_type_filter': 2}, {0, 1, 2, 3, 4}), ({'resource_type_filter': 99}, set()),
    ({'resource_name_filter': 'orders'}, {0, 1, 5}), ({'pattern_type_filter': 3}, {0, 1, 2, 4, 5}),
    ({'pattern_type_filter': 4}, {3}), ({'pattern_type_filter': 9}, set()),
    ({'resource_name_filter': 'orders', 'pattern_type_filter': 2}, {0, 1, 2, 3, 5}),
    ({'resource_name_filter': 'orders', 'pattern_type_filter': 2, 'resource_type_filter': 3}, {5}),
    ({'resource_name_filter': 'ord', 'pattern_type_filter': 4}, {3}), ({'pattern_type_filter': 2}, {0, 1, 2, 3, 4, 5}),
    ({'resource_name_filter': 'x', 'pattern_type_filter': 2}, {2}), ({'principal_filter': 'User:*'}, {1}),
    ({'host_filter': '*'}, {0, 1, 2, 3, 5}), ({'host_filter': '0:0:0:0:0:0:0:1'}, set()),
    ({'host_filter': '::1', 'principal_filter': 'User:alice', 'resource_name_filter': 'payments'}, {4}),
    ({'operation': 4}, {1}), ({'permission_type': 2}, {2}), ({'operation': 77}, set())])
def test_a_filter_matches_as_kafkas_does(admin, wanted, expected):
    assert create(admin, *SOME) == [0] * len(SOME)
    names = ('resource_type', 'resource_name', 'resource_pattern_type', 'principal', 'host', 'operation',
             'permission_type')
    rows = [tuple((READ_ORDERS | SOME[number])[name] for name in names) for number in expected]
    assert described(admin, **wanted) == sorted(rows)
    if all(wanted.get(name, 1) < 20 and wanted.get('pattern_type_filter') != 9 for name in (
            'resource_type_filter', 'operation')):
        assert delete(admin, wanted) == [sorted(row[1] for row in rows)]
        assert len(described(admin)) == len(SOME) - len(rows)
    else:
        assert delete(admin, wanted) == [ErrorCode.INVALID_REQUEST]


def test_an_acl_that_two_filters_match_is_listed_in_both_and_deleted_once(node, admin):
    assert create(admin, *SOME) == [0] * len(SOME)
    before = node.metadata.end_offset
    assert delete(admin, {'resource_name_filter': 'ord'}, {'resource_name_filter': 'none'}, {'operation': 77},
                  {'pattern_type_filter': 4}, {'resource_name_filter': 'ord'}) == [
        ['ord'], [], ErrorCode.INVALID_REQUEST, ['ord'], ['ord']]
    assert node.metadata.end_offset == before + 1


def test_what_is_forbidden_is_refused_in_each_element(node, admin):
    alice = Member(node, ALICE)
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert create(admin, {}) == [0]
    assert (create(alice, {}, {}), described(alice), delete(alice, {}, {})) == ([code] * 2, code, [code] * 2)
    cluster = {'resource_type': 4, 'resource_name': 'kafka-cluster'}
    assert create(admin, cluster | {'operation': Operation.DESCRIBE}) == [0]
    assert (create(alice, {'host': 'b'}), len(described(alice)), delete(alice, {})) == ([code], 2, [code])
    assert create(admin, cluster | {'operation': Operation.ALTER}) == [0]
    assert (create(alice, {'host': 'b'}), len(described(alice))) == ([0], 4)
    assert len(delete(alice, {})[0]) == 4
    assert (create(alice, {}), described(alice)) == ([code], code), 'alice has deleted her own rights'


def test_without_an_authorizer_all_three_answer_that_security_is_off(start_node):
    client = Member(start_node(), ANONYMOUS)
    code = ErrorCode.SECURITY_DISABLED
    assert (create(client, {}, {}), described(client), delete(client, {}, {})) == ([code] * 2, code, [code] * 2)


# ---- size

def many(count, host='*'):
    return [{'resource_name': f'topic-{number}', 'host': host.format(number)} for number in range(count)]


def test_ten_thousand_acls_are_one_batch_and_more_are_refused_as_a_whole(node, admin):
    assert create(admin, *many(10_001)) == [ErrorCode.POLICY_VIOLATION] * 10_001
    assert described(admin) == []
    assert create(admin, *many(10_000)) == [0] * 10_000
    assert len(described(admin)) == len(node.authorizer) == 10_000
    assert create(admin, {'resource_name': 'one more'}) == [0]
    assert delete(admin, {}, {}) == [ErrorCode.INVALID_REQUEST] * 2
    assert len(described(admin)) == 10_001
    assert delete(admin, {'resource_name_filter': 'one more'}) == [['one more']]
    assert len(delete(admin, {})[0]) == 10_000
    assert described(admin) == []


@pytest.fixture
def stepwise(node):
    """Replace the broker's `long_work` by an object that the test runs step by step."""
    node.long_work = node.acls._long_work = StepwiseWork(node.timers)
    return node.long_work


@pytest.mark.parametrize('host', ['*', '2001:db8:{:x}::/48'])
def test_no_part_of_a_long_request_is_long(node, admin, host):
    raise_metadata_version(admin, 33)
    stepwise = node.long_work = node.acls._long_work = StepwiseWork(node.timers)
    for api, fields in (('CreateAcls', {'creations': [READ_ORDERS | creation for creation in many(10_000, host)]}),
                        ('DescribeAcls', EVERYTHING), ('DeleteAcls', {'filters': [EVERYTHING]})):
        asked = admin.begin(api, **fields)
        steps = 0
        while not asked.is_answered:
            stepwise.step()
            steps += 1
        assert steps > 50, api
    stepwise.assert_parts_were_short()


def test_the_memory_of_acls_is_bounded(admin, monkeypatch):
    """One emoji in a name makes Python use four bytes for each character of the name, and keep the UTF-8 form as
    well."""
    monkeypatch.setattr('kbroker.apis.create_acls.MOST_ACL_BYTES', 220_000)
    codes = [create(admin, {'resource_name': f'{number}' * 10_000 + '\U0001f600'})[0] for number in range(8)]
    assert codes == [0] * 4 + [ErrorCode.POLICY_VIOLATION] * 4
    assert len(described(admin)) == 4


def test_the_ledger_has_what_access_control_holds(node, admin):
    create(admin, {}, {'host': '::1'})
    access = node.authorizer.access_of(ALICE, HERE)
    access.may(Operation.READ, ResourceType.TOPIC, 'orders')
    access.may(Operation.READ, ResourceType.TOPIC, 'other')
    lines = {line.what: (line.now(), line.bound()) for line in (*node.authorizer.ledger(), *node.acls.ledger())}
    assert all(now <= bound for now, bound in lines.values())
    assert {what: now > 0 for what, (now, _) in lines.items()} == {
        'ACLs': True, 'changes of ACLs that are not in force yet': False, 'remembered decisions': True,
        'different denials in the log': True}


def test_a_change_in_parts_gives_no_right_in_between(node, stepwise, admin, monkeypatch):
    """One request creates or deletes both a permission and a denial. Alice has the right neither before nor after, and
    must not have it in between."""
    monkeypatch.setattr(access_control, 'Pace', lambda: SimpleNamespace(spend=lambda: True))
    access = node.authorizer.access_of(ALICE, HERE)
    seen = set()
    rows = [READ_ORDERS | {'operation': 2}, *(READ_ORDERS | {'host': f'{number}'} for number in range(50)),
            READ_ORDERS | {'principal': 'User:*', 'permission_type': 2}]
    for api, fields in (('CreateAcls', {'creations': rows}), ('DeleteAcls', {'filters': [EVERYTHING]})):
        asked = admin.begin(api, **fields)
        while not asked.is_answered:
            seen.add(access.may(Operation.READ, ResourceType.TOPIC, 'orders'))
            stepwise.step()
    assert seen == {False}


def test_a_start_without_an_administrator_says_how_to_get_one(start_node, caplog):
    node = start_node(authorizer_class_name='StandardAuthorizer')
    assert 'kbroker-acls --data-dir' in caplog.text
    node.authorizer.put(build('AccessControlEntryRecord', id=bytes(16), resource_type=4, resource_name='kafka',
                              pattern_type=PatternType.PREFIXED, principal='User:a', host='*',
                              operation=Operation.ALTER, permission_type=Permission.ALLOW))
    assert access_control.may_be_administered(node.authorizer)

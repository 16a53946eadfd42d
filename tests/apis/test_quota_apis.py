"""Quotas of clients can be described and altered, and are kept over a restart. Invalid ones get the errors of Apache
Kafka. Covers KIP-599.
"""
import math

import pytest
from support.brokers.in_process_broker import InProcessBroker, InProcessConnection
from support.messages.message_builder import build

from kbroker.base.errors import ErrorCode
from kbroker.protocol.messages import DescribeClientQuotasRequest
from kbroker.protocol.metadata_records import encode_metadata_record

BYTES, FETCHED, TIME, MUTATIONS = (
    'producer_byte_rate', 'consumer_byte_rate', 'request_percentage', 'controller_mutation_rate')
CONNECTIONS = 'connection_creation_rate'
EXACT, DEFAULT, ANY = range(3)
REQUEST_FRAMES = {
    'alter': '003100010000000c000163000202057573657206616c69636500021370726f64756365725f627974655f72617465413000000000'
             '0000000000000000',
    'describe': '003000010000000d000163000205757365720006616c696365000100'}
ANSWERS = {
    'alter': '0000000c00000000000200000002057573657206616c696365000000',
    'describe': '0000000d00000000000000010202057573657206616c69636500021370726f64756365725f627974655f726174654130000000'
                '000000000000'}


def entity(**names):
    return [{'entity_type': kind.replace('_', '-'), 'entity_name': name} for kind, name in names.items()]


def alter(client, names, validate_only=False, **quotas):
    """Set quotas of one entity, and remove each quota whose value is None. Return the error code."""
    ops = [{'key': key, 'value': value or 0.0, 'remove': value is None} for key, value in quotas.items()]
    (answer,) = client.ask('AlterClientQuotas', entries=[{'entity': names, 'ops': ops}],
                           validate_only=validate_only).entries
    return answer.error_code


def describe(client, *components, strict=False, version=1):
    """Return {names: quotas}, or the error code. A component is (type, match type, name)."""
    answer = client.ask('DescribeClientQuotas', version, strict=strict, components=[
        {'entity_type': kind, 'match_type': how, 'match': name} for kind, how, name in components])
    if answer.error_code:
        assert answer.entries is None and answer.error_message
        return answer.error_code
    return {tuple((part.entity_type, part.entity_name) for part in entry.entity):
            {value.key: value.value for value in entry.values} for entry in answer.entries}


def test_requests_and_answers_are_those_of_kafka_byte_for_byte(node):
    connection = node.connect()
    for name in ('alter', 'describe'):
        node.send(connection, bytes.fromhex(REQUEST_FRAMES[name]))
        while len(node.long_work):
            node.turn()
        assert connection.replies[-1].hex() == ANSWERS[name]


@pytest.mark.parametrize(('names', 'key', 'value', 'hexes'), [
    (entity(user='alice'), BYTES, 1048576,
     '010e0002057573657206616c696365001370726f64756365725f627974655f7261746541300000000000000000'),
    (entity(client_id=None, user='alice'), FETCHED, 2000000,
     '010e00030a636c69656e742d69640000057573657206616c6963650013636f6e73756d65725f627974655f72617465413e848000000000'
     '0000'),
    (entity(user=None), TIME, 25.5, '010e00020575736572000013726571756573745f70657263656e7461676540398000000000000000'),
    (entity(client_id='app'), MUTATIONS, 10,
     '010e00020a636c69656e742d6964046170700019636f6e74726f6c6c65725f6d75746174696f6e5f7261746540240000000000000000'),
    (entity(ip='127.0.0.1'), CONNECTIONS, 5,
     '010e00020369700a3132372e302e302e310019636f6e6e656374696f6e5f6372656174696f6e5f7261746540140000000000000000'),
    (entity(user='alice'), BYTES, None,
     '010e0002057573657206616c696365001370726f64756365725f627974655f7261746500000000000000000100'),
])
def test_records_are_those_of_kafka_byte_for_byte(client, node, names, key, value, hexes):
    if value is None:
        alter(client, names, **{key: 1})
    records = []
    node.metadata.commits.on_change.append(records.extend)
    assert alter(client, names, **{key: value}) == 0
    assert [encode_metadata_record(record, 0).hex() for record in records] == [hexes]


@pytest.mark.parametrize('version', [0, 1])
def test_a_filter_chooses_entities(client, version):
    alter(client, entity(user='alice'), **{BYTES: 1})
    alter(client, entity(user=None), **{BYTES: 2})
    alter(client, entity(user='alice', client_id='app'), **{BYTES: 3, TIME: 4.5})
    alter(client, entity(ip='10.0.0.1'), **{CONNECTIONS: 5})
    alice, everybody = (('user', 'alice'),), (('user', None),)
    both, address = (('client-id', 'app'), ('user', 'alice')), (('ip', '10.0.0.1'),)

    def found(*components, strict=False):
        return set(describe(client, *components, strict=strict, version=version))

    assert found() == {alice, everybody, both, address}
    assert found(strict=True) == set()
    assert found(('user', EXACT, 'alice')) == {alice, both}
    assert found(('user', EXACT, 'alice'), strict=True) == {alice}
    assert found(('user', DEFAULT, None)) == {everybody}
    assert found(('user', ANY, None)) == {alice, everybody, both}
    assert found(('client-id', ANY, None)) == {both}
    assert found(('user', ANY, None), ('client-id', EXACT, 'app')) == {both}
    assert found(('ip', ANY, None)) == {address}
    assert describe(client, ('client-id', ANY, None))[both] == {BYTES: 3, TIME: 4.5}


@pytest.mark.parametrize(('components', 'code'), [
    ([('', EXACT, 'a')], ErrorCode.INVALID_REQUEST),
    ([('user', EXACT, 'a'), ('user', DEFAULT, None)], ErrorCode.INVALID_REQUEST),
    ([('ip', EXACT, '::1'), ('user', DEFAULT, None)], ErrorCode.INVALID_REQUEST),
    ([('user', EXACT, None)], ErrorCode.INVALID_REQUEST),
    ([('user', ANY, 'a')], ErrorCode.INVALID_REQUEST),
    ([('user', 3, None)], ErrorCode.INVALID_REQUEST),
    ([('rack', EXACT, 'a')], ErrorCode.UNSUPPORTED_VERSION),
])
def test_a_filter_that_makes_no_sense_is_refused(client, components, code):
    assert describe(client, *components) == code


@pytest.mark.parametrize(('names', 'quotas'), [
    ([], {BYTES: 1}),
    (entity(rack='r'), {BYTES: 1}),
    (entity(user=''), {BYTES: 1}),
    (entity(user='a', ip='::1'), {CONNECTIONS: 1}),
    (entity(ip='localhost'), {CONNECTIONS: 1}),
    (entity(user='alice'), {'key': 1}),
    (entity(user='alice'), {'key': None}),
    (entity(user='alice'), {CONNECTIONS: 1}),
    (entity(user='alice'), {BYTES: -1}),
    (entity(user='alice'), {BYTES: 0.5}),
    (entity(user='alice'), {TIME: math.nan}),
    (entity(user='alice') + entity(user='bob'), {BYTES: 1}),
    (100 * entity(user='alice'), {BYTES: 1}),
])
def test_an_entry_that_makes_no_sense_is_refused(client, names, quotas):
    assert alter(client, names, **quotas) == ErrorCode.INVALID_REQUEST
    assert describe(client) == {}


def test_entries_of_one_entity_are_refused_once_and_the_others_are_done(client):
    ops = [{'key': BYTES, 'value': 1.0, 'remove': False}]
    answer = client.ask('AlterClientQuotas', entries=[
        {'entity': entity(user='alice'), 'ops': ops}, {'entity': entity(user='bob'), 'ops': ops},
        {'entity': entity(user='alice'), 'ops': ops}, {'entity': entity(user='carl'), 'ops': ops + ops}])
    assert [(result.entity[0].entity_name, result.error_code) for result in answer.entries] == [
        ('alice', ErrorCode.INVALID_REQUEST), ('bob', 0), ('carl', ErrorCode.INVALID_REQUEST)]
    assert set(describe(client)) == {(('user', 'bob'),)}


def test_nothing_is_written_for_what_changes_nothing(client, node):
    alter(client, entity(user='alice'), **{BYTES: 1})
    end_offset = node.metadata.end_offset
    assert alter(client, entity(user='alice'), **{BYTES: 1, FETCHED: None}) == 0
    assert alter(client, entity(user='alice'), validate_only=True, **{BYTES: 2}) == 0
    assert node.metadata.end_offset == end_offset
    assert describe(client) == {(('user', 'alice'),): {BYTES: 1}}


def test_quotas_act_at_once_and_after_a_restart(tmp_path):
    request = build('AlterClientQuotasRequest', entries=[{
        'entity': entity(user=None), 'ops': [{'key': BYTES, 'value': 1000.0, 'remove': False}]}])
    for _ in range(2):
        with InProcessBroker(tmp_path) as node:
            node.begin(request, 1)
            while len(node.long_work):
                node.turn()
            assert node.quotas.meter('alice', 'app').record_produced(11000) == 1000


def test_components_without_end_are_refused_at_the_fourth(node):
    connection = InProcessConnection(7)
    request = DescribeClientQuotasRequest(components=[
        DescribeClientQuotasRequest.ComponentData(entity_type='user', match_type=ANY)] * 1000)
    node.begin(request, 1, connection)
    assert node.answer_to(connection, request, 1).error_code == ErrorCode.INVALID_REQUEST

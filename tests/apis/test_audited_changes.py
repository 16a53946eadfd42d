"""Each administrative API logs a line for each change: the principal, its address, the resource and the outcome."""
import json
import logging

import pytest
from login_broker import audited
from support.messages.message_builder import build
from support.runner.pages import blocks

from kbroker.apis.serving.audited_changes import CHANGES
from kbroker.apis.serving.change_log import MOST_LINES, WINDOW_MS
from kbroker.security.audit import Audit, AuditLog, LogSink
from kbroker.security.principal import Principal
from kbroker.security.session import Session

MARKER = 'marker-secret'
BROKER = 4


@pytest.fixture
def broker(node):
    return audited(node)


@pytest.fixture
def ask(broker):
    """Return a function that sends a request as alice, and returns the answer and the lines that the request left in
    the audit."""
    connection = broker.connect(Session(Principal('User', 'alice')))

    def ask(api, version=None, **fields):
        request = build(f'{api}Request', **fields)
        version = request.versions[1] if version is None else version
        broker.begin(request, version, connection)
        for _ in range(1000):
            if len(connection.replies) == connection.sent:
                break
            broker.turn()
        answer = broker.answer_to(connection, request, version)
        for _ in range(10):
            broker.turn()
        texts, broker.lines.texts = broker.lines.texts, []
        assert MARKER not in ''.join(texts)
        return answer, [json.loads(text) for text in texts]

    return ask


def create(name, partitions=1, **configs):
    return {'name': name, 'num_partitions': partitions, 'replication_factor': 1, 'configs': [
        {'name': key.replace('_', '.'), 'value': value} for key, value in configs.items()]}


def short(lines):
    return [(line['resource'], line['outcome']) for line in lines]


def test_a_line_says_who_did_what_from_where(ask):
    _, lines = ask('CreateTopics', topics=[create('orders', 2, retention_ms='1000')])
    (line,) = lines
    example, = blocks('docs/security.md', 'json')
    assert json.loads(example).keys() == line.keys()
    assert line.pop('time').endswith('Z')
    assert line == {'event': 'change', 'outcome': 'ok', 'principal': 'User:alice', 'host': '127.0.0.1',
                    'listener': 'PLAINTEXT', 'client_id': 'test', 'api': 'CREATE_TOPICS', 'resource': 'topic:orders',
                    'partitions': 2, 'configs': {'retention.ms': '1000'}}


def test_each_topic_has_its_outcome(ask):
    _, lines = ask('CreateTopics', topics=[create('good'), create('bad name'), create('none', 0)])
    assert short(lines) == [('topic:good', 'ok'), ('topic:bad name', 'INVALID_TOPIC_EXCEPTION'),
                            ('topic:none', 'INVALID_PARTITIONS')]
    _, lines = ask('DeleteTopics', topics=[{'name': 'good'}, {'name': 'missing'}])
    assert short(lines) == [('topic:good', 'ok'), ('topic:missing', 'UNKNOWN_TOPIC_OR_PARTITION')]


def test_a_request_that_changes_nothing_says_so(ask):
    _, lines = ask('CreateTopics', topics=[create('orders')], validate_only=True)
    assert [line['validate_only'] for line in lines] == [True]


def test_configs_are_shown_but_secrets_are_not(ask):
    _, lines = ask('IncrementalAlterConfigs', resources=[{'resource_type': BROKER, 'resource_name': '', 'configs': [
        {'name': 'log.retention.ms', 'config_operation': 0, 'value': '5000'},
        {'name': 'max.connections', 'config_operation': 1, 'value': None}]}])
    assert lines[0]['resource'] == 'broker:'
    assert lines[0]['configs'] == {'log.retention.ms': '5000', 'max.connections': None}
    for name in ('ssl.key.password', 'listener.name.ssl.ssl.key.password', 'misspelt.password',
                 'listener.name.sasl_ssl.plain.sasl.jaas.config'):
        for api, operation in (('IncrementalAlterConfigs', {'config_operation': 0}), ('AlterConfigs', {})):
            configs = [{'name': name, 'value': MARKER, **operation}]
            _, lines = ask(api, resources=[{'resource_type': BROKER, 'resource_name': '1', 'configs': configs}])
            assert lines[0]['configs'] == {name: '(hidden)'}


def test_partitions_records_and_offsets_are_changes_too(ask):
    ask('CreateTopics', topics=[create('orders')])
    _, lines = ask('CreatePartitions', topics=[{'name': 'orders', 'count': 3, 'assignments': None}], timeout_ms=1000)
    assert [(*short([line])[0], line['partitions']) for line in lines] == [('topic:orders', 'ok', 3)]
    _, lines = ask('DeleteRecords', timeout_ms=1000, topics=[{'name': 'orders', 'partitions': [
        {'partition_index': 0, 'offset': 0}, {'partition_index': 7, 'offset': 3}]}])
    assert [(*short([line])[0], line['before']) for line in lines] == [
        ('partition:orders-0', 'ok', 0), ('partition:orders-7', 'UNKNOWN_TOPIC_OR_PARTITION', 3)]
    _, lines = ask('OffsetDelete', group_id='missing', topics=[{
        'name': 'orders', 'partitions': [{'partition_index': 0}]}])
    assert short(lines)[0] == ('group:missing', 'NOT_COORDINATOR')


def test_a_handler_that_answers_later_leaves_its_lines(ask):
    ask('OffsetCommit', 8, group_id='old', topics=[])
    _, lines = ask('DeleteGroups', groups_names=['old', 'missing'])
    assert {resource for resource, _ in short(lines)} == {'group:old', 'group:missing'}


def test_a_change_that_is_refused_has_the_name_of_the_error(ask):
    _, lines = ask('CreateTopics', topics=[create('orders', 1, no_such_setting='x')])
    assert short(lines) == [('topic:orders', 'INVALID_CONFIG')]


def test_every_api_that_changes_something_is_audited():
    """The audit covers each served API that needs ALTER, CREATE, DELETE or ALTER_CONFIGS in Apache Kafka.

    Two of these APIs are not audited: on one node with one directory, they cannot change anything.
    """
    from kbroker.apis.serving.served import served_apis

    audited = {api.key.name for api in served_apis() if api.key in CHANGES}
    others = {api.key.name for api in served_apis()} - audited
    changing = {name for name in others if name.startswith(('CREATE_', 'DELETE_', 'ALTER_', 'INCREMENTAL_', 'UPDATE_'))}
    assert changing == {'ALTER_PARTITION_REASSIGNMENTS', 'ALTER_REPLICA_LOG_DIRS'}


def test_an_audit_that_is_off_costs_no_line(broker):
    broker.audit = Audit()
    broker.ask(build('CreateTopicsRequest', topics=[create('orders')]))
    assert broker.lines.texts == []


@pytest.fixture
def log(broker, ask, caplog):
    """Return a function that sends a request as alice, and returns its lines in the log of a broker whose audit is
    off."""
    broker.audit = Audit()
    caplog.set_level(logging.INFO, 'kbroker.changes')

    def log(api, **fields):
        caplog.clear()
        ask(api, **fields)
        found = [record.getMessage() for record in caplog.records if record.name == 'kbroker.changes']
        assert all(line.isprintable() and MARKER not in line for line in found)
        return [line.removeprefix('User:alice from 127.0.0.1 by listener PLAINTEXT, client test: ') for line in found]

    return log


def test_the_log_has_one_line_for_each_request_that_changed_something(log):
    assert log('CreateTopics', topics=[create('orders', 3, retention_ms='1000'), create('bad name'), create('b')]) == [
        'created topic orders (partitions=3, retention.ms=1000), topic b (partitions=1)']
    assert log('CreateTopics', topics=[create('orders')]) == [], 'it exists'
    (line,) = log('CreateTopics', topics=[create('sales', 3, retention_ms='86400000')])
    example, = (text for text in blocks('docs/security.md', 'text') if text.startswith('changes: '))
    assert example.rstrip('\n').partition('deploy: ')[2] == line.replace('sales', 'orders')
    assert log('CreateTopics', topics=[create('dry')], validate_only=True) == []
    assert log('CreatePartitions', topics=[{'name': 'orders', 'count': 4, 'assignments': None}], timeout_ms=1000) == [
        'added partitions to topic orders (partitions=4)']
    assert log('DeleteRecords', timeout_ms=1000, topics=[{'name': 'orders', 'partitions': [
        {'partition_index': 0, 'offset': 0}]}]) == ['deleted records of partition orders-0 (before=0)']
    assert log('WriteTxnMarkers', markers=[{
        'producer_id': 4001, 'producer_epoch': 3, 'transaction_result': False, 'coordinator_epoch': 0,
        'topics': [{'name': 'orders', 'partition_indexes': [1]}]}]) == [
        'wrote markers for partition orders-1 (result=abort, producer_id=4001, epoch=3)']
    assert log('DeleteTopics', topics=[{'name': 'orders'}, {'name': 'missing'}]) == ['deleted topic orders']
    assert log('AlterClientQuotas', entries=[{
        'entity': [{'entity_type': 'user', 'entity_name': 'bob'}],
        'ops': [{'key': 'producer_byte_rate', 'value': 1024.0, 'remove': False}]}]) == [
        'changed quota "user=bob" (producer_byte_rate=1024.0)']
    assert log('UpdateFeatures', feature_updates=[{
        'feature': 'transaction.version', 'max_version_level': 1, 'upgrade_type': 2}]) == [
        'changed feature transaction.version (level=1)']


def test_the_log_shows_configs_and_no_secrets(log):
    def change(name, value, operation=0):
        return log('IncrementalAlterConfigs', resources=[{'resource_type': BROKER, 'resource_name': '', 'configs': [
            {'name': name, 'config_operation': operation, 'value': value}]}])

    assert change('log.retention.ms', '5000') == ['changed configs of broker (log.retention.ms=5000)']
    assert change('log.retention.ms', None, 1) == ['changed configs of broker (log.retention.ms removed)']
    assert log('AlterUserScramCredentials', upsertions=[{
        'name': 'bob, deleted topic x', 'mechanism': 1, 'iterations': 4096, 'salt': b'salt' * 4,
        'salted_password': MARKER.encode().ljust(32)}]) == [
        'changed the credentials of user "bob, deleted topic x" (credential=SCRAM-SHA-256, iterations=4096)']


def test_names_cannot_end_the_line_and_long_requests_are_cut(log):
    (line,) = log('AlterUserScramCredentials', upsertions=[{
        'name': 'a\n\u202eb', 'mechanism': 1, 'iterations': 4096, 'salt': b'salt' * 4, 'salted_password': bytes(32)}])
    assert 'user a\\n\\u202eb (' in line
    (line,) = log('CreateTopics', topics=[create(f'{"t" * 200}-{number}') for number in range(200)])
    assert line.endswith(' and 180 more')
    assert len(line) < 10_000


def test_changes_without_a_pause_are_a_bounded_number_of_lines(broker, log, caplog):
    for number in range(MOST_LINES + 7):
        found = log('CreateTopics', topics=[create(f't{number}')])
        assert len(found) == (number < MOST_LINES)
    caplog.clear()
    broker.clock.advance(WINDOW_MS)
    broker.turn()
    assert '7 more requests changed something within 10 s; kbroker.audit.log has a line for each change' in \
        caplog.messages
    assert len(log('CreateTopics', topics=[create('later')])) == 1


@pytest.mark.parametrize(('api', 'fields'), [
    ('DeleteRecords', {'topics': [{'name': 'orders', 'partitions': [{'partition_index': 0, 'offset': 0}] * 5000}]}),
    ('CreatePartitions', {'topics': [{'name': 'orders', 'count': 2, 'assignments': None}] * 5000}),
    ('OffsetDelete', {'group_id': 'g', 'topics': [{'name': 'orders', 'partitions': []}] * 5000}),
    ('AlterUserScramCredentials', {'deletions': [{'name': 'bob', 'mechanism': 1}] * 5000})])
def test_a_long_request_is_looked_through_in_parts(api, fields):
    """Each element of the request or of the answer is an element of long work."""
    asked = build(f'{api}Request', **fields)
    key = next(key for key in CHANGES if key.name.replace('_', '').lower() == api.lower())
    rows = {'AlterUserScramCredentials': {'results': [{'user': 'bob'}]}, 'CreatePartitions': {'results': []}}
    answer = build(f'{api}Response', **rows.get(api, {'topics': [{'name': 'orders', 'partitions': []}] * 5000}))
    assert sum(1 for _ in CHANGES[key](asked, answer)) >= 5000


def test_an_audit_in_the_log_is_the_only_line(broker, ask, caplog):
    caplog.set_level(logging.INFO)
    broker.audit = AuditLog(LogSink(), broker.clock)
    caplog.clear()
    ask('CreateTopics', topics=[create('orders')])
    assert [record.name for record in caplog.records if 'orders' in record.getMessage()] == ['kbroker.audit']

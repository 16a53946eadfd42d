"""The APIs for configs: descriptions with sources and synonyms, and changes of all or single configs, which take effect
immediately."""

import pytest
from api_client import values_of

from kbroker.base.errors import ErrorCode
from kbroker.settings.entries import Source

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(client, resource_type, name, *keys, version=4, **options):
    (result,) = client.ask(
        'DescribeConfigs',
        version,
        resources=[{'resource_type': resource_type, 'resource_name': name, 'configuration_keys': list(keys) or None}],
        **options,
    ).results
    return result.error_code or {config.name: config for config in result.configs}


def value(client, name, key='cleanup.policy'):
    return describe(client, TOPIC, name, key)[key].value


# -- DescribeConfigs


@pytest.mark.parametrize('version', range(1, 5))
def test_a_topic_is_described_with_what_is_set_and_what_is_not(client, version):
    client.create_topic('kept', retention_ms='5')
    found = describe(client, TOPIC, 'kept', version=version)
    assert (found['retention.ms'].value, found['retention.ms'].config_source) == ('5', Source.DYNAMIC_TOPIC)
    assert (found['segment.bytes'].value, found['segment.bytes'].config_source) == ('1073741824', Source.DEFAULT)
    assert found['segment.bytes'].synonyms == []
    found = describe(client, TOPIC, 'kept', 'segment.bytes', version=version, include_synonyms=True)
    (synonym,) = found.pop('segment.bytes').synonyms
    assert (synonym.name, synonym.source) == ('log.segment.bytes', Source.DEFAULT) and found == {}


def test_an_empty_list_of_keys_means_all(client):
    """As in Apache Kafka, the answer has all configs. kbroker once returned none."""
    answer = client.ask(
        'DescribeConfigs', resources=[{'resource_type': TOPIC, 'resource_name': 'orders', 'configuration_keys': []}]
    )
    assert len(answer.results[0].configs) > 20


def test_documentation_is_given_on_request(client):
    assert describe(client, TOPIC, 'orders', 'retention.ms')['retention.ms'].documentation is None
    assert describe(client, TOPIC, 'orders', 'retention.ms', include_documentation=True)['retention.ms'].documentation


def test_the_broker_shows_what_is_read_only(client):
    found = describe(client, BROKER, '1', 'num.partitions', 'message.max.bytes')
    assert (found['num.partitions'].read_only, found['message.max.bytes'].read_only) == (True, False)


def test_the_id_of_the_broker_is_described_under_both_names_as_the_operators(client):
    found = describe(client, BROKER, '1', 'node.id', 'broker.id')
    assert {(name, config.value, config.config_source) for name, config in found.items()} == {
        ('node.id', '1', Source.STATIC_BROKER), ('broker.id', '1', Source.STATIC_BROKER)}


def test_the_default_of_all_brokers_shows_only_what_is_set(client):
    assert describe(client, BROKER, '') == {} or list(describe(client, BROKER, '')) == ['min.insync.replicas']
    assert client.change(BROKER, '', ('message.max.bytes', SET, '2000')).error_code == 0
    found = describe(client, BROKER, '')['message.max.bytes']
    assert (found.value, found.config_source) == ('2000', Source.DYNAMIC_DEFAULT_BROKER)


@pytest.mark.parametrize(
    ('resource_type', 'name', 'code'),
    [
        (TOPIC, 'absent', ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, 'bad name', ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, '', ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, '2', ErrorCode.INVALID_REQUEST),
        (BROKER, 'x', ErrorCode.INVALID_REQUEST),
        (99, 'x', ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_not_there_cannot_be_described(client, resource_type, name, code):
    assert describe(client, resource_type, name) == code


# -- AlterConfigs


@pytest.mark.parametrize('version', range(3))
def test_a_whole_set_replaces_the_other(client, version):
    def replace(*configs, **options):
        (result,) = client.ask(
            'AlterConfigs',
            version,
            resources=[
                {
                    'resource_type': TOPIC,
                    'resource_name': 'orders',
                    'configs': [{'name': name, 'value': value} for name, value in configs],
                }
            ],
            **options,
        ).responses
        return result.error_code

    assert replace(('retention.ms', '5'), ('cleanup.policy', 'compact')) == 0
    assert replace(('retention.ms', '7'), validate_only=True) == 0
    assert value(client, 'orders', 'retention.ms') == '5'
    assert replace(('retention.ms', '7')) == 0
    assert (value(client, 'orders', 'retention.ms'), value(client, 'orders')) == ('7', 'delete')
    assert replace(('retention.ms', 'x')) == replace(('no.such', 'x')) == ErrorCode.INVALID_CONFIG
    assert replace(('retention.ms', None)) == ErrorCode.INVALID_REQUEST
    assert replace(('retention.ms', '1'), ('retention.ms', '2')) == ErrorCode.INVALID_REQUEST


# -- IncrementalAlterConfigs


@pytest.mark.parametrize('version', [0, 1])
def test_lists_are_appended_to_and_subtracted_from(client, version):
    def append(text, operation=APPEND):
        return client.change(TOPIC, 'orders', ('cleanup.policy', operation, text), version=version).error_code

    assert append('compact') == append('compact') == 0 and value(client, 'orders') == 'delete,compact'
    assert append('delete', SUBTRACT) == 0 and value(client, 'orders') == 'compact'
    assert append('shred') == append('') == ErrorCode.INVALID_CONFIG
    assert value(client, 'orders') == 'compact'
    refused = client.change(TOPIC, 'orders', ('retention.ms', APPEND, '1'), version=version)
    assert refused.error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ('changes', 'code'),
    [
        ([('no.such.config', SET, '1')], ErrorCode.INVALID_CONFIG),
        ([('retention.ms', SET, None)], ErrorCode.INVALID_REQUEST),
        ([('retention.ms', SET, 'x')], ErrorCode.INVALID_CONFIG),
        ([('retention.ms', 9, '1')], ErrorCode.INVALID_REQUEST),
        ([('retention.ms', SET, '1'), ('retention.ms', DELETE, None)], ErrorCode.INVALID_REQUEST),
        ([], 0),
    ],
)
def test_changes_of_a_topic_are_checked(client, changes, code):
    assert client.change(TOPIC, 'orders', *changes, validate_only=True).error_code == code
    assert client.change(TOPIC, 'orders', *changes).error_code == code


@pytest.mark.parametrize(
    ('name', 'key', 'value', 'code'),
    [
        ('1', 'node.id', '3', ErrorCode.INVALID_REQUEST),
        ('', 'node.id', '3', ErrorCode.INVALID_REQUEST),
        ('1', 'message.max.bytes', 'x', ErrorCode.INVALID_REQUEST),
        ('1', 'no.such.config', 'x', ErrorCode.INVALID_CONFIG),
        ('2', 'message.max.bytes', '5', ErrorCode.INVALID_REQUEST),
        ('1', 'message.max.bytes', '5', 0),
    ],
)
def test_changes_of_the_broker_are_checked(client, name, key, value, code):
    assert client.change(BROKER, name, (key, SET, value), validate_only=True).error_code == code


def test_a_resource_is_changed_once_in_a_request(client):
    resource = {
        'resource_type': TOPIC,
        'resource_name': 'orders',
        'configs': [{'name': 'retention.ms', 'config_operation': SET, 'value': '1'}],
    }
    answers = client.ask('IncrementalAlterConfigs', resources=[resource, resource]).responses
    assert {answer.error_code for answer in answers} == {ErrorCode.INVALID_REQUEST}
    assert value(client, 'orders', 'retention.ms') == '604800000'


# -- changed configs take effect


def test_a_default_of_the_broker_reaches_topics_without_their_own_value(client):
    client.create_topic('own', max_message_bytes='900000')
    assert client.alter(BROKER, '', message_max_bytes='200') == 0
    big = client.batch(b'x' * 500)
    assert client.produce(big).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce(big, topic='own').error_code == 0
    found = describe(client, TOPIC, 'orders', 'max.message.bytes', include_synonyms=True)['max.message.bytes']
    assert (found.value, found.config_source) == ('200', Source.DYNAMIC_DEFAULT_BROKER)
    assert client.alter(BROKER, '1', message_max_bytes='2000') == 0
    assert client.produce(big).error_code == 0, "the broker's own value wins over the default of all brokers"
    assert client.alter(BROKER, '1', message_max_bytes=None) == 0
    assert client.produce(big).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_new_segment_size_holds_from_the_next_append_on(client):
    log = client.broker.logs.logs['orders', 0]
    client.produce(client.batch(b'x' * 600_000))
    assert client.alter(TOPIC, 'orders', segment_bytes=str(1 << 20)) == 0
    client.produce(client.batch(b'x' * 600_000))
    assert len(log.segments) == 2


def test_a_new_retention_deletes_what_is_older(client):
    client.produce(client.batch(b'old'))
    client.broker.clock.advance(10_000)
    assert client.alter(TOPIC, 'orders', retention_ms='5000') == 0
    client.broker.logs.apply_retention()
    assert client.list_offset(-2).offset == 1
    client.produce(client.batch(b'new'))
    assert values_of(client.fetch(offset=1).records) == [b'new']


def test_a_topic_that_becomes_compacted_wants_keys(client):
    keyless = client.batch((None, b'v'))
    assert client.produce(keyless).error_code == 0
    assert client.alter(TOPIC, 'orders', cleanup_policy='compact') == 0
    assert client.produce(keyless).error_code == ErrorCode.INVALID_RECORD


def test_changes_outlive_a_restart(client, start_node):
    client.alter(TOPIC, 'orders', retention_ms='77')
    client.alter(BROKER, '', message_max_bytes='2222')
    client.broker.__exit__(None, None, None)
    client.broker._is_open = False
    again = type(client)(start_node())
    assert value(again, 'orders', 'retention.ms') == '77'
    assert value(again, 'orders', 'max.message.bytes') == '2222'


# -- ListConfigResources


def test_resources_with_configs_are_listed_by_type(client):
    def listed(*types, version=1):
        answer = client.ask('ListConfigResources', version, **({'resource_types': list(types)} if version else {}))
        return answer.error_code or {(entry.resource_type, entry.resource_name) for entry in answer.config_resources}

    assert listed() == {(TOPIC, 'orders'), (BROKER, '1'), (BROKER_LOGGER, '1')}
    assert listed(BROKER, BROKER) == {(BROKER, '1')}
    assert listed(GROUP) == listed(version=0) == set()
    assert listed(1) == ErrorCode.UNSUPPORTED_VERSION

"""Options: accepted values, errors for other values, and the places that accept each option."""
import pytest
from support.brokers.broker_process import ROOT

from kbroker.client.config import ClientConfig
from kbroker_tools.spark.options import ROWS, OptionError, check_use, client_options, parse_bytes, parse_options
from kbroker_tools.spark.planning import split_bytes

PAGE = (ROOT / 'docs' / 'spark.md').read_text()
FILES = {'path': '/data'}
BROKER = {'kafka.bootstrap.servers': 'broker:9092', 'subscribe': 'orders'}

# option: (a valid text, its value, an invalid text)
TEXTS = {
    'path': ('/a, s3://b/c', ['/a', 's3://b/c'], ' , '),
    'paths': ('["/a","/b,c"]', ['/a', '/b,c'], '[""]'),
    'subscribe': ('a, b', ['a', 'b'], ','),
    'subscribePattern': ('a.*', None, '('),
    'assign': ('{"a":[1,0]}', {'a': [0, 1]}, '{"a":["x"]}'),
    'startingOffsets': ('{"a":{"0":-2}}', {('a', 0): -2}, '{"a":{"0":-3}}'),
    'endingOffsets': ('{"a":{"0":5}}', {('a', 0): 5}, 'earliest'),
    'startingTimestamp': ('17', 17, 'today'),
    'endingTimestamp': ('17', 17, '1.5'),
    'startingOffsetsByTimestamp': ('{"a":{"0":5}}', {('a', 0): 5}, '5'),
    'endingOffsetsByTimestamp': ('{"a":{"0":5}}', {('a', 0): 5}, '{"a":{"0":true}}'),
    'startingOffsetsByTimestampStrategy': ('LATEST', 'latest', 'earliest'),
    'isolation': ('read_uncommitted', 'read_uncommitted', 'uncommitted'),
    'upTo': ('recoverypoint', 'recoveryPoint', 'leo'),
    'splitBytes': ('64m', 64 << 20, '64 apples'),
    'minPartitions': ('5', 5, '0'),
    'maxRecordsPerPartition': ('5', 5, '-5'),
    'batchRows': ('5', 5, 'x'),
    'batchBytes': ('1k', 1024, '0'),
    'checkCrcs': ('False', False, 'no'),
    'failOnDataLoss': ('false', False, '0'),
    'skippedTo': ('file:///tmp/told', '/tmp/told', 's3://bucket/told'),
    'verifyTxnIndex': ('true', True, 'yes'),
    'pin': ('hardlink', 'hardlink', 'copy'),
    'includeHeaders': ('true', True, '1'),
    'includeTransactions': ('true', True, '1'),
    'includeTimestampMillis': ('true', True, '1'),
    'includeValueBytes': ('true', True, '1'),
    'timestampOverflow': ('NULL', 'null', 'wrap'),
    'valueFormat': ('Avro', 'avro', 'xml'),
    'valueSchema': ('registry:', 'registry:', ' '),
    'valueReaderSchema': ('"int"', '"int"', ''),
    'table': ('batches', 'batches', 'rows'),
    'maxOffsetsPerTrigger': ('5', 5, '5.0'),
    'maxBytesPerTrigger': ('1g', 1 << 30, 'g'),
    'minOffsetsPerTrigger': ('5', 5, ''),
    'maxTriggerDelay': ('15m', 900_000, '15 years'),
}


def around_of(row):
    """Return the options without which an option is refused."""
    return {**FILES, 'valueFormat': 'avro'} if row.name in ('valueSchema', 'valueReaderSchema') else FILES


def test_no_option_is_left_out():
    assert list(TEXTS) == [row.name for row in ROWS]


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row.name)
def test_an_option_takes_what_it_says_and_refuses_the_rest(row):
    good, value, bad = TEXTS[row.name]
    around = {} if row.name in ('path', 'paths') else around_of(row)
    parsed = parse_options({**around, row.name.upper(): good})
    if value is not None:
        assert parsed[row.name] == value
    assert parsed.is_given(row.name)
    assert f'`{row.name}`' in PAGE
    with pytest.raises(OptionError, match=f'option {row.name}: found .*, expected '):
        parse_options({**around, row.name: bad})


@pytest.mark.parametrize(('name', 'instead'), [
    ('startingOffset', 'startingOffsets'), ('bootstrap.servers', 'kafka.bootstrap.servers'),
    ('splitbyte', 'splitBytes'),
    ('kafka.security.protocols', 'kafka.security.protocol'), ('kafka.fetch.max.byte', 'kafka.fetch.max.bytes'),
])
def test_an_unknown_option_is_refused_with_a_suggestion(name, instead):
    with pytest.raises(OptionError, match=f'option {name}: no such .*, did you mean {instead}'):
        parse_options({**BROKER, name: 'x'})


@pytest.mark.parametrize('name', ['auto.offset.reset', 'key.deserializer', 'value.deserializer', 'enable.auto.commit',
                                  'interceptor.classes'])
def test_settings_that_the_source_must_own_are_refused(name):
    with pytest.raises(OptionError, match=rf'option kafka\.{name}: found .x., but it cannot be set: '):
        parse_options({**BROKER, f'kafka.{name}': 'x'})


def test_what_a_query_of_spark_s_connector_brings_along_has_no_effect_and_says_so(caplog):
    parsed = parse_options({**BROKER, 'kafka.group.id': 'g', 'groupIdPrefix': 'p', 'fetchOffset.numRetries': '3',
                            'kafkaConsumer.pollTimeoutMs': '9', 'kafka.max.poll.records': '5'})
    assert parsed.kafka == {'bootstrap.servers': 'broker:9092', 'max.poll.records': '5'}
    assert caplog.text.count('has no effect') == 4


@pytest.mark.parametrize(('given', 'text'), [
    ({}, 'path: give one of path'),
    ({**FILES, **BROKER}, 'path: give one of path'),
    ({'kafka.bootstrap.servers': 'b:1'}, 'subscribe: missing: give one of'),
    ({**BROKER, 'assign': '{"a":[0]}'}, 'assign: subscribe is given too'),
    ({**FILES, 'kafka.client.id': 'x'}, r'kafka\.client\.id: path is given too, which is read without a broker'),
    ({**BROKER, 'table': 'segments'}, 'table: found segments with kafka.bootstrap.servers'),
    ({**BROKER, 'isolation': 'read_committed', 'kafka.isolation.level': 'read_uncommitted'}, 'isolation: found'),
    ({**BROKER, 'kafka.isolation.level': 'none'}, r'kafka\.isolation\.level: found .none., expected'),
    ({**BROKER, 'upTo': 'hw'}, 'upTo: not allowed here: it needs path'),
    ({**BROKER, 'verifyTxnIndex': 'true'}, 'verifyTxnIndex: not allowed here: it needs path'),
    ({**BROKER, 'pin': 'hardlink'}, 'pin: not allowed here: it needs path'),
    ({**BROKER, 'valueSchema': '"int"'}, 'valueSchema: valueFormat is missing; give one of json, avro, protobuf'),
    ({**BROKER, 'schema.registry.url': 'http://localhost'}, 'schema.registry.url: valueFormat is missing'),
])
def test_options_that_do_not_go_together(given, text):
    with pytest.raises(OptionError, match=f'option {text}'):
        parse_options(given)


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row.name)
def test_an_option_of_streams_or_of_batches_is_refused_in_the_other(row):
    if row.name in ('path', 'paths'):
        return
    parsed = parse_options({**around_of(row), row.name: TEXTS[row.name][0]})
    for is_stream, place in ((True, 'batch'), (False, 'stream')):
        if place in row.place.split():
            with pytest.raises(OptionError, match=f'option {row.name}: not allowed here: '):
                check_use(parsed, is_stream=is_stream)
        else:
            check_use(parsed, is_stream=is_stream)


def test_the_isolation_is_read_committed_unless_either_name_says_otherwise():
    assert parse_options(BROKER).is_read_committed
    assert not parse_options({**BROKER, 'kafka.isolation.level': 'READ_UNCOMMITTED'}).is_read_committed
    assert not parse_options({**FILES, 'kafka.isolation.level': 'read_uncommitted'}).is_read_committed


def test_the_settings_of_a_client_are_options_without_those_of_other_programs(tmp_path):
    file = tmp_path / 'client.properties'
    file.write_text('bootstrap.servers=other:1\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nacks=all\n'
                    'sasl.jaas.config=OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=alice;\n')
    found = client_options(file)
    assert sorted(found) == ['kafka.sasl.jaas.config', 'kafka.sasl.mechanism', 'kafka.security.protocol']
    options = parse_options(found | {'kafka.bootstrap.servers': 'h:1', 'subscribe': 'a'})
    assert ClientConfig.from_settings(options.kafka).sasl_token is not None
    assert client_options(None) == {}


def test_passwords_are_not_shown():
    from kbroker_tools.spark.broker_place import BrokerTask
    from kbroker_tools.spark.planning import Slice
    from kbroker_tools.spark.storage import Storage
    assert 'secret' not in repr(BrokerTask((('sasl.password', 'secret'),), Slice('a', 0, 0, 1)))
    storage = Storage.at('s3://key:secret@bucket/logs/?endpoint_override=http://secret')
    assert str(storage) == 's3://bucket/logs' and storage.path('x') == 's3://bucket/logs/x'
    child = storage.child('orders-0')
    assert child.location == 's3://key:secret@bucket/logs/orders-0?endpoint_override=http://secret'
    assert (child.name, child.parent) == ('orders-0', storage)


@pytest.mark.parametrize(('text', 'size'), [
    ('1', 1), ('2k', 2048), ('3 MB', 3 << 20), ('1GiB', 1 << 30), ('1t', 1 << 40)])
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(('given', 'log_bytes', 'task_bytes'), [
    ({}, 10 << 30, 128 << 20),
    ({'splitBytes': '64m'}, 10 << 30, 64 << 20),
    ({'minPartitions': '4'}, 2 << 30, 512 << 20),
    ({'minPartitions': '4'}, 10 << 40, 1 << 30),
    ({'minPartitions': '4', 'splitBytes': '64m'}, 10 << 30, 64 << 20),
    ({'minPartitions': '4', 'splitBytes': '8g'}, 10 << 30, 2560 << 20),
    ({'minPartitions': '4'}, 3, 1),
])
def test_tasks_are_as_large_as_the_options_say(given, log_bytes, task_bytes):
    assert split_bytes(log_bytes, parse_options({'path': '/data', **given})) == task_bytes

"""Settings get their values from several sources, and refuse invalid values.

Covers KIP-1030.
"""
import pathlib
import socket

import pytest

import kbroker
from kbroker.base.errors import ConfigError, ErrorCode, KafkaError
from kbroker.settings.config import Config, validate_broker_configs
from kbroker.settings.entries import Source
from kbroker.settings.exposure import addresses_for_clients
from kbroker.settings.groups import GROUP_SETTINGS
from kbroker.settings.listeners import Listener
from kbroker.settings.rows import Rule, Setting, Type, Update
from kbroker.settings.table import BROKER_NAME_OF, SETTINGS, TOPIC_SETTINGS
from kbroker.settings.topic_config import LogConfig, describe_new_topic, describe_topic, validate_topic_configs

HOUR_MS = 3_600_000


def entry(entries, name):
    return next(e for e in entries if e.name == name)


def test_every_default_is_a_value_that_the_row_itself_accepts():
    for rows in (SETTINGS, TOPIC_SETTINGS):
        for row in rows.values():
            if row.default is not None:
                assert row.parse(row.text(row.default)) == row.default, row.name


def test_every_fallback_is_a_setting():
    assert all(name in SETTINGS for row in SETTINGS.values() for name, _ in row.fallbacks)


def test_names_become_attributes():
    config = Config({'num.partitions': ' 7 ', 'auto.create.topics.enable': 'FALSE'})
    assert (config.num_partitions, config.auto_create_topics_enable, config.kbroker_durability) == (7, False, 'disk')
    assert config['num.partitions'] == 7
    with pytest.raises(AttributeError, match='no_such_thing'):
        _ = config.no_such_thing


@pytest.mark.parametrize(('given', 'expected_ms'), [
    ({}, 168 * HOUR_MS),
    ({'log.retention.hours': '2'}, 2 * HOUR_MS),
    ({'log.retention.hours': '2', 'log.retention.minutes': '3'}, 180_000),
    ({'log.retention.hours': '2', 'log.retention.minutes': '3', 'log.retention.ms': '4'}, 4),
    ({'log.retention.hours': '-1'}, -1),
])
def test_the_finest_unit_of_a_retention_wins(given, expected_ms):
    config = Config(given)
    assert config.log_retention_ms == expected_ms
    assert LogConfig(config, {}).retention_ms == expected_ms


def test_node_id_falls_back_to_broker_id():
    assert Config({'broker.id': '3'}).node_id == 3
    assert Config({'broker.id': '3', 'node.id': '4'}).node_id == 4


@pytest.mark.parametrize(('name', 'text', 'expected'), [
    ('num.partitions', 'many', "num.partitions: found 'many', expected a whole number"),
    ('num.partitions', '1_0', "num.partitions: found '1_0', expected a whole number"),
    ('num.partitions', '0', "num.partitions: found '0', expected a whole number from 1 to 2147483647"),
    ('num.partitions', '2147483648', "expected a whole number from 1 to 2147483647"),
    ('log.preallocate', 'yes', "log.preallocate: found 'yes', expected true or false"),
    ('log.cleaner.min.cleanable.ratio', '1.5', "found '1.5', expected a number from 0 to 1"),
    ('log.cleaner.min.cleanable.ratio', 'nan', "expected a number"),
    ('log.cleanup.policy', 'delete,squash', "expected a list of delete, compact"),
    ('compression.gzip.level', '0', "expected -1 or a whole number from 1 to 9"),
    ('log.retention.ms', '0', "expected -1 for no limit, or a positive whole number"),
    ('log.dirs', '/a,/b', "expected one directory"),
    ('kbroker.durability', 'maybe', "expected one of disk, page-cache"),
    ('process.roles', 'broker', "expected broker,controller"),
    ('group.min.session.timeout.ms', '2000000', "expected at most group.max.session.timeout.ms, which is 1800000"),
    ('log.retension.ms', '1', "log.retension.ms is not a setting; did you mean log.retention.ms?"),
    ('zzz', '1', "zzz is not a setting"),
    ('ssl.keystore.type', 'JKS', "expected PEM: convert the store with keytool"),
    ('ssl.keystore.password', 'X', "ssl.keystore.password cannot be honoured: a PEM store has no password"),
    ('ssl.cipher.suites', 'X', "ssl.cipher.suites cannot be honoured: this part of TLS is not served"),
    ('group.streams.assignors', 'nope', "found 'nope', expected sticky, the only assignor of streams groups"),
    ('group.streams.rack.aware.assignment.tags', 'a,a', "found 'a,a', expected a list without duplicates"),
    ('max.decompressed.message.bytes', '0', "expected a whole number from 1 to 2147483639"),
    ('authorizer.class.name', 'X', "found 'X', expected nothing, StandardAuthorizer, or Kafka's name of it"),
    ('super.users', 'User:a;b', "found 'User:a;b', expected a list of TYPE:NAME, separated by semicolons"),
    ('sasl.enabled.mechanisms', 'GSSAPI', "found 'GSSAPI', expected a list of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512,"),
    ('sasl.kerberos.service.name', 'X', 'sasl.kerberos.service.name cannot be honoured: GSSAPI is not served'),
    ('delegation.token.secret.key', 'X', 'cannot be honoured: delegation tokens are not served'),
    ('principal.builder.class', 'X', "found 'X', expected one of org.apache.kafka.common.security.authenticator."),
    ('sasl.server.callback.handler.class', 'X', 'OAuthBearerValidatorCallbackHandler'),
    ('listener.name.sll.ssl.client.auth', 'none',
     'found no listener of this name, expected one of plaintext, sasl_plaintext, sasl_ssl, ssl'),
    ('listener.name.ssl.connections.max.reauth', '1',
     'listener.name.ssl.connections.max.reauth is not a setting; did you mean '
     'listener.name.ssl.connections.max.reauth.ms?'),
    ('listener.name.sasl_ssl.plane.sasl.jaas.config', 'X',
     'did you mean listener.name.sasl_ssl.plain.sasl.jaas.config?'),
    ('listener.name.sasl_ssl.gssapi.sasl.jaas.config', 'X', 'GSSAPI is not served, only PLAIN, SCRAM-SHA-256,'),
    ('listener.name.ssl.num.partitions', '3', 'num.partitions is set for the broker'),
    ('listener.name.ssl.plain.ssl.client.auth', 'none', 'ssl.client.auth is set for the broker, or a listener'),
    ('listener.name.sasl_ssl.sasl.jaas.config', 'X', 'sasl.jaas.config is set for a SASL mechanism of a listener'),
])
def test_what_is_wrong_is_refused_in_words(name, text, expected):
    with pytest.raises(ConfigError) as refused:
        Config({name: text})
    assert expected in str(refused.value)
    assert refused.value.name == name


@pytest.mark.parametrize('name', ['replica.fetch.max.bytes', 'num.replica.fetchers', 'controller.quorum.voters',
                                  'leader.imbalance.check.interval.seconds', 'inter.broker.listener.name',
                                  'fetch.purgatory.purge.interval.requests',
                                  'group.share.dlq.manager.class.name', 'group.share.assignor.offload.enable',
                                  'group.streams.topology.description.plugin.class'])
def test_a_name_that_means_nothing_on_one_node_is_a_warning(name):
    warnings = Config({name: 'x'}).warnings
    assert len(warnings) == 1
    assert warnings[0].startswith(f'{name} has no effect: ')


def test_the_configuration_that_kafka_ships_starts_without_its_controller_listener():
    config = Config({
        'process.roles': 'broker,controller', 'node.id': '1', 'controller.quorum.bootstrap.servers': 'localhost:9093',
        'listeners': 'PLAINTEXT://:9092,CONTROLLER://:9093', 'inter.broker.listener.name': 'PLAINTEXT',
        'advertised.listeners': 'PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093',
        'controller.listener.names': 'CONTROLLER',
        'listener.security.protocol.map': 'CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL',
        'num.network.threads': '3', 'num.io.threads': '8', 'log.dirs': '/tmp/kraft-combined-logs',
        'num.recovery.threads.per.data.dir': '1', 'log.retention.hours': '168',
        'group.coordinator.threads': '1',
    })
    assert config.bound_listeners == [Listener('PLAINTEXT', '', 9092)]
    assert config.advertised == [Listener('PLAINTEXT', 'localhost', 9092)]
    assert config.log_directory == '/tmp/kraft-combined-logs'


@pytest.mark.parametrize(('given', 'expected'), [
    ({'listeners': 'localhost:9092'}, 'expected NAME://HOST:PORT'),
    ({'listeners': 'PLAINTEXT://localhost'}, 'expected NAME://HOST:PORT'),
    ({'listeners': 'PLAINTEXT://localhost:70000'}, 'expected NAME://HOST:PORT'),
    ({'listeners': 'PLAINTEXT://::1:9092'}, 'an IPv6 host in brackets'),
    ({'listeners': 'A://:9092'}, 'expected a name out of listener.security.protocol.map: PLAINTEXT, SSL, SASL_PLAIN'),
    ({'listeners': 'A://:9092', 'listener.security.protocol.map': 'A:TLS'},
     'found A:TLS, expected one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL'),
    ({'listeners': 'SASL_SSL://:9092'}, 'found none for the listener SASL_SSL, expected some of PLAIN, SCRAM-SHA-256'),
    ({'listeners': 'PLAINTEXT://:1,PLAINTEXT://:2'}, 'twice'),
    ({'listeners': 'C://:1', 'controller.listener.names': 'C'}, 'expected at least one'),
    ({'advertised.listeners': 'PLAINTEXT://0.0.0.0:9092'}, 'an address that clients can connect to'),
    ({'listeners': 'A://:1', 'listener.security.protocol.map': 'A:PLAINTEXT',
      'advertised.listeners': 'PLAINTEXT://a:1'}, 'expected a name out of listener.security.protocol.map: A'),
])
def test_listeners_that_cannot_work_are_refused(given, expected):
    with pytest.raises(ConfigError, match=expected):
        Config(given)


SCRAM_LISTENERS = {
    'listeners': 'INSIDE://127.0.0.1:1,SASL_SSL://127.0.0.1:2,CONTROLLER://127.0.0.1:3',
    'controller.listener.names': 'CONTROLLER',
    'listener.security.protocol.map': 'INSIDE:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT',
    'sasl.enabled.mechanisms': 'SCRAM-SHA-512',
}
USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret of alice";'


def test_the_most_precise_name_of_a_setting_wins():
    config = Config(SCRAM_LISTENERS | {
        'connections.max.reauth.ms': '1', 'listener.name.inside.connections.max.reauth.ms': '2',
        'listener.name.inside.plain.connections.max.reauth.ms': '3',
        'listener.name.inside.sasl.enabled.mechanisms': 'PLAIN,SCRAM-SHA-256',
        'listener.name.inside.plain.sasl.jaas.config': USERS})
    inside, outside = config.for_listener('INSIDE'), config.for_listener('sasl_ssl')
    assert (outside['connections.max.reauth.ms'], outside['sasl.enabled.mechanisms']) == (1, ('SCRAM-SHA-512',))
    assert inside['connections.max.reauth.ms'] == 2
    assert inside['sasl.enabled.mechanisms'] == ('PLAIN', 'SCRAM-SHA-256')
    assert inside.for_mechanism('PLAIN')['connections.max.reauth.ms'] == 3
    assert inside.for_mechanism('SCRAM-SHA-256')['connections.max.reauth.ms'] == 2
    assert inside.for_mechanism('PLAIN')['sasl.jaas.config'] == USERS
    assert outside.for_mechanism('PLAIN')['sasl.jaas.config'] is None
    assert inside.for_mechanism('PLAIN').name_of('sasl.jaas.config') == 'listener.name.inside.plain.sasl.jaas.config'
    assert outside.name_of('connections.max.reauth.ms') == 'connections.max.reauth.ms'
    assert outside.name_of('ssl.key.password') == 'listener.name.sasl_ssl.ssl.key.password'
    assert outside['sasl.server.max.receive.size'] == 524288
    assert not outside.is_set('sasl.server.max.receive.size')


def test_the_tls_of_a_listener_comes_from_its_own_settings_and_from_the_plain_ones():
    config = Config(SCRAM_LISTENERS | {
        'ssl.keystore.location': '/all.pem', 'ssl.client.auth': 'required', 'ssl.key.password': 'x',
        'listener.name.sasl_ssl.ssl.keystore.location': '/own.pem'})
    assert config.for_listener('SASL_SSL').texts('ssl.') == {
        'ssl.keystore.location': '/own.pem', 'ssl.key.password': 'x'}, 'ssl.client.auth needs the prefix there'
    config = Config({'listeners': 'SSL://127.0.0.1:1', 'ssl.client.auth': 'required'})
    assert config.for_listener('SSL').texts('ssl.') == {'ssl.client.auth': 'required'}


def test_a_setting_of_a_listener_that_is_not_bound_is_a_warning():
    config = Config(SCRAM_LISTENERS | {'listener.name.controller.ssl.client.auth': 'none', 'sasl.jaas.config': USERS})
    assert config.warnings == [
        'sasl.jaas.config has no effect: only listener.name.LISTENER.MECHANISM.sasl.jaas.config has one',
        'listener.name.controller.ssl.client.auth has no effect: no listener CONTROLLER is bound']


def test_a_login_module_that_does_not_parse_is_refused_without_its_text():
    with pytest.raises(ConfigError) as refused:
        Config(SCRAM_LISTENERS | {'listener.name.inside.plain.sasl.jaas.config': USERS.replace(';', ' oops')})
    assert str(refused.value).startswith('listener.name.inside.plain.sasl.jaas.config: found a hidden value, expected '
                                         'one login module, as MODULE required NAME="VALUE" ...; (found ')
    assert 'secret' not in str(refused.value)
    assert 'oops' not in str(refused.value)


def test_settings_of_listeners_are_described_and_their_secrets_are_not():
    entries = Config(SCRAM_LISTENERS | {
        'listener.name.inside.plain.sasl.jaas.config': USERS, 'sasl.server.max.receive.size': '5',
        'listener.name.inside.sasl.server.max.receive.size': '7'}).describe()
    size, users = (entry(entries, f'listener.name.inside.{name}')
                   for name in ('sasl.server.max.receive.size', 'plain.sasl.jaas.config'))
    assert (size.value, size.source) == ('7', Source.STATIC_BROKER)
    assert [(s.name, s.value) for s in size.synonyms] == [
        ('listener.name.inside.sasl.server.max.receive.size', '7'), ('sasl.server.max.receive.size', '5'),
        ('sasl.server.max.receive.size', '524288')]
    assert (users.value, users.is_sensitive, [s.value for s in users.synonyms]) == (None, True, [None])
    assert 'secret of alice' not in repr(entries)


def test_the_users_of_a_listener_may_change_at_run_time():
    config, name = Config(SCRAM_LISTENERS), 'listener.name.inside.plain.sasl.jaas.config'
    validate_broker_configs(config, {name: USERS}, per_broker=True)
    changed = config.with_changes(cluster_wide={}, per_broker={name: USERS})
    assert changed.for_listener('INSIDE').for_mechanism('PLAIN')['sasl.jaas.config'] == USERS
    assert entry(changed.describe(), name).source is Source.DYNAMIC_BROKER
    for changes, per_broker, expected in [
            ({name: USERS}, False, 'can only be changed for one broker'),
            ({name: 'nonsense'}, True, 'found a hidden value'),
            ({'sasl.enabled.mechanisms': 'PLAIN'}, True, 'can only be changed for a listener'),
            ({'listener.name.inside.connections.max.reauth.ms': '1'}, True, 'is read-only'),
            ({'listener.name.nowhere.sasl.enabled.mechanisms': 'PLAIN'}, True, 'found no listener of this name')]:
        with pytest.raises(KafkaError, match=expected):
            validate_broker_configs(config, changes, per_broker=per_broker)


def test_an_ipv6_listener_is_written_as_it_was_read():
    listener, = Config({'listeners': 'plaintext://[::1]:9092'}).bound_listeners
    assert listener == Listener('PLAINTEXT', '::1', 9092)
    assert str(listener) == 'PLAINTEXT://[::1]:9092'


def test_a_listener_on_every_interface_is_advertised_without_its_wildcard():
    assert Config({'listeners': 'PLAINTEXT://0.0.0.0:9092'}).advertised == [Listener('PLAINTEXT', '', 9092)]


def test_a_listener_on_every_interface_is_advertised_under_the_name_of_the_machine(monkeypatch):
    monkeypatch.setattr(socket, 'gethostname', lambda: 'broker')
    monkeypatch.setattr(socket, 'getaddrinfo', resolver({'broker': ('broker.example', ['127.0.1.1', '10.0.0.7'])}))
    for listeners in 'PLAINTEXT://0.0.0.0:9092', 'PLAINTEXT://:9092', 'PLAINTEXT://[::]:9092':
        config = Config({'listeners': listeners})
        assert addresses_for_clients(config) == ([Listener('PLAINTEXT', 'broker.example', 9092)], [])
    config = Config({'listeners': 'PLAINTEXT://127.0.0.1:1,SSL://:2'})
    assert [listener.host for listener in addresses_for_clients(config)[0]] == ['127.0.0.1', 'broker.example']


def test_a_name_that_only_this_machine_reaches_is_advertised_with_a_warning(monkeypatch):
    monkeypatch.setattr(socket, 'gethostname', lambda: 'broker')
    monkeypatch.setattr(socket, 'getaddrinfo', resolver({'broker': ('localhost', ['127.0.0.1', '::1'])}))
    (listener,), (warning,) = addresses_for_clients(Config({'listeners': 'PLAINTEXT://0.0.0.0:9092'}))
    assert listener == Listener('PLAINTEXT', 'broker', 9092)
    assert warning.startswith('clients connect to broker, which is 127.0.0.1, ::1 here')


@pytest.mark.parametrize('name', ['nowhere', 'no..name'])
def test_a_machine_without_a_name_needs_an_advertised_listener(monkeypatch, name):
    monkeypatch.setattr(socket, 'gethostname', lambda: name)
    monkeypatch.setattr(socket, 'getaddrinfo', resolver({}))
    with pytest.raises(ConfigError, match=f'this machine\'s name {name!r} does not resolve; expected .* '
                                          'advertised.listeners=PLAINTEXT://HOST:9092'):
        addresses_for_clients(Config({'listeners': 'PLAINTEXT://0.0.0.0:9092'}))
    given = {'listeners': 'PLAINTEXT://0.0.0.0:9092', 'advertised.listeners': 'PLAINTEXT://10.0.0.7:9092'}
    assert addresses_for_clients(Config(given)) == ([Listener('PLAINTEXT', '10.0.0.7', 9092)], [])


def resolver(names):
    """Return a getaddrinfo that knows `names`, each with its canonical name and its addresses."""
    def getaddrinfo(name, port, **options):
        if '..' in name:
            raise UnicodeError('label empty or too long')
        if name not in names:
            raise socket.gaierror(socket.EAI_NONAME, 'Name or service not known')
        canonical, addresses = names[name]
        return [(None, None, None, canonical if address == addresses[0] else '', (address, 0)) for address in addresses]

    return getaddrinfo


@pytest.mark.parametrize('name', ['offsets.topic.segment.bytes', 'transaction.state.log.segment.bytes'])
def test_a_segment_size_that_its_internal_topic_cannot_have_is_refused(name):
    with pytest.raises(ConfigError, match=f'{name}: found \'1048575\', expected a whole number from 1048576 to'):
        Config({name: '1048575'})
    config = Config({name: '1048576'})
    validate_topic_configs({'segment.bytes': str(config[name])}, config)


def test_topic_overrides_stand_above_the_broker():
    config = Config({'log.segment.bytes': '2000000', 'log.cleanup.policy': 'compact'})
    log_config = LogConfig(config, {'cleanup.policy': 'delete,compact', 'max.message.bytes': '5'})
    assert log_config.segment_bytes == 2_000_000
    assert log_config.cleanup_policy == {'delete', 'compact'}
    assert log_config.max_message_bytes == 5
    assert LogConfig(config, {'internal.segment.bytes': '100'}).segment_bytes == 100


def test_overrides_that_stand_in_the_metadata_log_never_stop_a_start():
    log_config = LogConfig(Config({}), {'retention.ms': 'rubbish', 'confluent.tier.enable': 'true'})
    assert log_config.retention_ms == 168 * HOUR_MS


@pytest.mark.parametrize('overrides', [
    {'cleanup.policy': ''}, {'cleanup.policy': 'compact, delete'}, {'retention.ms': '0'}, {'retention.ms': '-1'},
    {'segment.bytes': '1048576'}, {'compression.type': 'uncompressed'}, {'preallocate': 'TRUE'},
    {'leader.replication.throttled.replicas': '*'}, {'follower.replication.throttled.replicas': '0:1,1:1'},
    {'min.compaction.lag.ms': '5', 'max.compaction.lag.ms': '5'},
    {'max.decompressed.message.bytes': '1'}, {'max.decompressed.message.bytes': '2147483639'},
    {'remote.copy.lag.ms': '-1', 'remote.copy.lag.bytes': '0'}, {'errors.deadletterqueue.group.enable': 'TRUE'},
])
def test_topic_configs_that_hold(overrides):
    validate_topic_configs(overrides, Config({}))


@pytest.mark.parametrize(('overrides', 'names'), [
    ({'cleanup.policy': 'compact,'}, 'cleanup.policy'),
    ({'segment.bytes': '1048575'}, 'segment.bytes'),
    ({'segment.byte': '1048576'}, 'segment.byte is not a topic setting; did you mean segment.bytes?'),
    ({'log.segment.bytes': '1048576'}, 'log.segment.bytes is not a topic setting'),
    ({'compression.type': 'none'}, 'compression.type'),
    ({'message.timestamp.type': 'createtime'}, 'message.timestamp.type'),
    ({'index.interval.bytes': '0x10'}, 'index.interval.bytes'),
    ({'leader.replication.throttled.replicas': 'abc'}, 'leader.replication.throttled.replicas'),
    ({'remote.storage.enable': 'true'}, 'remote.storage.enable'),
    ({'retention.ms': '-2'}, 'retention.ms'),
    ({'max.decompressed.message.bytes': '0'}, 'max.decompressed.message.bytes'),
    ({'max.decompressed.message.bytes': '2147483640'}, 'max.decompressed.message.bytes'),
    ({'remote.copy.lag.bytes': '-2'}, 'remote.copy.lag.bytes'),
    ({'errors.deadletterqueue.group.enable': 'yes'}, 'errors.deadletterqueue.group.enable'),
    ({'retention.ms': None}, 'retention.ms'),
    ({'min.compaction.lag.ms': '6', 'max.compaction.lag.ms': '5'}, 'min.compaction.lag.ms'),
])
def test_topic_configs_that_do_not_hold_name_the_key(overrides, names):
    with pytest.raises(KafkaError, match=f'^{names}') as refused:
        validate_topic_configs(overrides, Config({}))
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_dynamic_configs_stand_above_the_file_and_per_broker_above_cluster_wide():
    config = Config({'message.max.bytes': '1'})
    changed = config.with_changes(cluster_wide={'message.max.bytes': '2', 'log.retention.ms': '9'}, per_broker={})
    assert (changed.message_max_bytes, changed.log_retention_ms) == (2, 9)
    assert config.with_changes(cluster_wide={'message.max.bytes': '2'},
                               per_broker={'message.max.bytes': '3'}).message_max_bytes == 3
    assert config.message_max_bytes == 1
    config.adopt(changed)
    assert config.message_max_bytes == 2
    assert [(s.name, s.value, s.source) for s in config.synonyms('message.max.bytes')] == [
        ('message.max.bytes', '2', Source.DYNAMIC_DEFAULT_BROKER), ('message.max.bytes', '1', Source.STATIC_BROKER),
        ('message.max.bytes', '1048588', Source.DEFAULT)]


def test_a_dynamic_config_that_cannot_be_honoured_is_left_out_with_a_warning():
    config = Config({}, cluster_wide={'num.io.threads': '3', 'message.max.bytes': 'x', 'num.partitions': '4'})
    assert len(config.warnings) == 3
    assert (config.message_max_bytes, config.num_partitions) == (1048588, 1)


@pytest.mark.parametrize(('changes', 'code', 'names'), [
    ({'num.partitions': '3'}, ErrorCode.INVALID_REQUEST, 'num.partitions is read-only'),
    ({'num.partitions': None}, ErrorCode.INVALID_REQUEST, 'num.partitions is read-only'),
    ({'message.max.byte': '3'}, ErrorCode.INVALID_CONFIG, 'did you mean message.max.bytes'),
    ({'num.io.threads': '3'}, ErrorCode.INVALID_CONFIG, 'one thread serves all connections'),
    ({'message.max.bytes': 'x'}, ErrorCode.INVALID_REQUEST, "message.max.bytes: found 'x'"),
])
def test_a_client_cannot_set_what_does_not_hold(changes, code, names):
    with pytest.raises(KafkaError, match=names) as refused:
        validate_broker_configs(Config({}), changes, per_broker=True)
    assert refused.value.code is code


@pytest.mark.parametrize('changes', [
    {'message.max.bytes': '3', 'log.retention.ms': None}, {'max.decompressed.message.bytes': '100'},
    {'errors.deadletterqueue.auto.create.topics.enable': 'true', 'errors.deadletterqueue.topic.name.prefix': ''},
    {'log.remote.copy.lag.ms': '5', 'log.remote.copy.lag.bytes': '-1'},
])
def test_a_client_may_set_and_remove_what_is_dynamic(changes):
    validate_broker_configs(Config({}), changes, per_broker=False)


def test_a_topic_is_described_with_every_place_that_gives_a_value():
    config = Config({'log.retention.minutes': '5'})
    retention = entry(describe_topic(config, {'retention.ms': '7'}), 'retention.ms')
    assert (retention.value, retention.source, retention.read_only) == ('7', Source.DYNAMIC_TOPIC, False)
    assert [(s.name, s.value, s.source) for s in retention.synonyms] == [('retention.ms', '7', Source.DYNAMIC_TOPIC)]
    assert entry(describe_topic(config, {}), 'retention.ms').value == '300000'
    assert entry(describe_topic(config, {}), 'cleanup.policy').value == 'delete'
    assert entry(describe_topic(config, {}), 'local.retention.ms').source is Source.DEFAULT
    assert 'internal.segment.bytes' not in {e.name for e in describe_topic(config, {})}
    lag = entry(describe_topic(Config({'log.remote.copy.lag.ms': '5'}), {}), 'remote.copy.lag.ms')
    assert [(s.name, s.value) for s in lag.synonyms] == [
        ('log.remote.copy.lag.ms', '5'), ('log.remote.copy.lag.ms', '0')]


@pytest.mark.parametrize(('name', 'text', 'value'), [
    ('preallocate', ' TRUE', 'true'), ('cleanup.policy', 'compact, delete', 'compact,delete'),
    ('cleanup.policy', 'delete,delete', 'delete'), ('max.message.bytes', ' +01000 ', '1000'),
    ('min.cleanable.dirty.ratio', '0', '0.0'), ('min.cleanable.dirty.ratio', '.00001', '1.0E-5'),
    ('message.timestamp.type', ' LogAppendTime ', 'LogAppendTime'), ('retention.ms', 'no number', 'no number')])
def test_a_value_is_described_in_its_usual_form_and_created_as_it_was_written(name, text, value):
    described = entry(describe_topic(Config({}), {name: text}), name)
    assert (described.value, described.synonyms[0].value) == (value, value)
    assert entry(describe_new_topic(Config({}), {name: text}), name).value == text


def test_the_sources_of_a_value_are_shown_as_they_were_written():
    config = Config({'log.preallocate': 'True', 'log.roll.hours': '01', 'log.retention.minutes': '+5'},
                    cluster_wide={'log.preallocate': 'TRUE'}, per_broker={'log.retention.ms': ' 70'})
    assert entry(describe_topic(config, {}), 'preallocate').value == 'true'
    assert [synonym.value for synonym in config.synonyms('log.preallocate')] == ['TRUE', 'True', 'false']
    assert config.synonyms('log.roll.ms') == []
    assert [(synonym.name, synonym.value) for synonym in config.synonyms('log.retention.ms')] == [
        ('log.retention.ms', ' 70'), ('log.retention.minutes', '+5'), ('log.retention.hours', '168')]
    created = describe_new_topic(config, {})
    assert (entry(created, 'preallocate').value, entry(created, 'preallocate').source) == (
        'TRUE', Source.DYNAMIC_DEFAULT_BROKER)
    assert (entry(created, 'segment.ms').value, entry(created, 'segment.ms').source) == (
        '3600000', Source.STATIC_BROKER)


def test_the_broker_is_described_with_sources_and_read_only_marks():
    entries = Config({'num.partitions': '3'}, per_broker={'message.max.bytes': '9'}).describe()
    partitions, message = entry(entries, 'num.partitions'), entry(entries, 'message.max.bytes')
    assert (partitions.value, partitions.source, partitions.read_only) == ('3', Source.STATIC_BROKER, True)
    assert (message.value, message.source, message.read_only) == ('9', Source.DYNAMIC_BROKER, False)
    assert entry(entries, 'broker.rack').value is None


def test_a_password_is_never_shown(monkeypatch):
    row = Setting('a.secret', Type.PASSWORD, None, 'A secret.', update=Update.CLUSTER_WIDE,
                  rule=Rule(lambda text: text != 'short', 'a long one'))
    monkeypatch.setitem(SETTINGS, row.name, row)
    described = entry(Config({'a.secret': ' kept as it is '}).describe(), 'a.secret')
    assert (described.is_sensitive, described.value, described.synonyms[0].value) == (True, None, None)
    assert Config({'a.secret': ' kept as it is '}).a_secret == ' kept as it is '
    with pytest.raises(ConfigError) as refused:
        Config({'a.secret': 'short'})
    assert 'short' not in str(refused.value)
    with pytest.raises(KafkaError) as refused_change:
        validate_broker_configs(Config({}), {'a.secret': 'short'}, per_broker=False)
    assert 'short' not in str(refused_change.value)


AWAITED = {
    'group.share.assignors', 'metadata.log.segment.ms', 'share.coordinator.cold.partition.snapshot.interval.ms',
    'share.coordinator.state.topic.prune.interval.ms',
}
"""Settings that no part of the broker reads yet."""


def test_every_setting_is_read_by_a_room():
    room = pathlib.Path(kbroker.__file__).parent
    tables = (room / 'settings' / 'table.py', room / 'settings' / 'groups.py')
    source = '\n'.join(path.read_text() for path in room.rglob('*.py*')
                       if path.suffix in ('.py', '.pyx') and path not in tables)
    fallbacks = {name for row in SETTINGS.values() for name, _ in row.fallbacks}
    of_groups = {name for each in GROUP_SETTINGS.values() for name in (each.broker_name, each.least, each.most)}
    # The `ssl.` settings are looked up by their prefix. tests/network/test_network_tls.py tests them. The names of
    # `sasl.oauthbearer.allow.unverified.` are composed; tests/security has their tests.
    kept_for_kafka = {'unclean.leader.election.enable', 'principal.builder.class',
                      'sasl.oauthbearer.jwt.validator.class', 'sasl.oauthbearer.scope.claim.name',
                      'log.remote.copy.lag.bytes', 'log.remote.copy.lag.ms',
                      *(name for name in SETTINGS if name.startswith(
                          ('compression.', 'ssl.', 'sasl.oauthbearer.allow.unverified.')))}
    unread = {row.name for row in SETTINGS.values()
              if not any(word in source for word in (f'config.{row.attribute}', f"'{row.name}'"))
              and not (row.topic_name and f'config.{row.topic_name.replace(".", "_")}' in source)}
    assert unread - fallbacks - of_groups - kept_for_kafka == AWAITED


def test_every_topic_setting_with_a_broker_setting_takes_its_default_from_there():
    log_config, config = LogConfig(Config({}), {}), Config({})
    for topic_name, broker_name in BROKER_NAME_OF.items():
        value = getattr(log_config, topic_name.replace('.', '_'))
        assert (set(value) if topic_name == 'cleanup.policy' else value) == (
            set(config[broker_name]) if topic_name == 'cleanup.policy' else config[broker_name])

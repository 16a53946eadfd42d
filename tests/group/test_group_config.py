"""The configs in force for a group: the group's configs in the metadata log, within the broker's bounds, and the
broker's settings for all configs that are not set for the group."""
import tracemalloc

import pytest
from support.worlds.group_coordinator import World

from kbroker.base.errors import ConfigError, ErrorCode, KafkaError
from kbroker.group.config import KEPT_BYTES, MOST_KEPT, MOST_KEPT_CHARACTERS, GroupConfig, GroupConfigs, Timing
from kbroker.settings.config import Config
from kbroker.settings.durations import java_duration_ms
from kbroker.settings.entries import Source, Synonym
from kbroker.settings.group_resources import describe_group, validate_group_configs
from kbroker.settings.groups import AT_MOST, GROUP_KINDS, GROUP_SETTINGS, MODERN_GROUPS


def test_a_group_without_configs_has_those_of_the_broker():
    group = GroupConfig(Config({'group.consumer.session.timeout.ms': '50000'}), {})
    assert group.timing['consumer'] == Timing(50000, 5000, 1000)
    assert group.timing['share'] == group.timing['streams'] == Timing(45000, 5000, 1000)
    assert (group.share_record_lock_duration_ms, group.share_delivery_count_limit) == (30000, 5)
    assert (group.share_auto_offset_reset, group.share_isolation_level) == ('latest', 'read_uncommitted')
    assert group.share_renew_acknowledge_enable is True
    assert (group.errors_deadletterqueue_topic_name, group.errors_deadletterqueue_copy_record_enable) == ('', False)
    assert (group.streams_num_standby_replicas, group.streams_initial_rebalance_delay_ms) == (0, 3000)
    assert (group.streams_assignor_name, group.streams_rack_aware_assignment_tags) == ('sticky', ())
    assert (group.streams_num_warmup_replicas, group.streams_task_offset_interval_ms) == (2, 60000)
    assert group.streams_acceptable_recovery_lag == 10000


def test_values_of_a_group_are_brought_within_the_bounds_of_the_broker():
    config = Config({'group.share.min.delivery.count.limit': '4', 'group.streams.max.standby.replicas': '1'})
    assert GroupConfig(config, {'share.delivery.count.limit': '3'}).share_delivery_count_limit == 4
    assert GroupConfig(config, {'share.delivery.count.limit': '30'}).share_delivery_count_limit == 10
    assert GroupConfig(config, {'streams.num.standby.replicas': '2'}).streams_num_standby_replicas == 1
    assert GroupConfig(config, {'streams.num.warmup.replicas': '21'}).streams_num_warmup_replicas == 20
    assert GroupConfig(config, {'streams.task.offset.interval.ms': '9'}).streams_task_offset_interval_ms == 15000


def test_a_value_in_the_log_that_is_not_valid_is_ignored():
    overrides = {'share.delivery.count.limit': 'many', 'of.a.newer.kafka': '1', 'share.isolation.level': 'none',
                 'streams.assignor.name': 'org.example.Assignor', 'errors.deadletterqueue.topic.name': '__internal'}
    group = GroupConfig(Config({}), overrides)
    assert (group.streams_assignor_name, group.errors_deadletterqueue_topic_name) == ('sticky', '')
    assert (group.share_delivery_count_limit, group.share_isolation_level) == (5, 'read_uncommitted')


@pytest.mark.parametrize(('name', 'value'), [
    ('no.such.config', '1'),
    ('group.consumer.session.timeout.ms', '50000'),
    ('consumer.session.timeout.ms', 'x'),
    ('consumer.session.timeout.ms', '0'),
    ('consumer.session.timeout.ms', '44999'),
    ('consumer.session.timeout.ms', '60001'),
    ('share.heartbeat.interval.ms', '4999'),
    ('streams.assignment.interval.ms', '15001'),
    ('share.record.lock.duration.ms', '14999'),
    ('share.delivery.count.limit', '11'),
    ('share.partition.max.record.locks', '99'),
    ('share.auto.offset.reset', 'none'),
    ('share.isolation.level', 'READ_COMMITTED'),
    ('share.renew.acknowledge.enable', '1'),
    ('streams.num.standby.replicas', '3'),
    ('streams.num.warmup.replicas', '21'),
    ('streams.task.offset.interval.ms', '14999'),
    ('streams.acceptable.recovery.lag', '-1'),
    ('streams.rack.aware.assignment.tags', 'a,a'),
    ('streams.assignor.name', ''),
    ('streams.assignor.offload.enable', 'yes'),
    ('errors.deadletterqueue.copy.record.enable', '1'),
])
def test_a_change_that_the_broker_does_not_allow_is_refused(name, value):
    with pytest.raises(KafkaError, match=name) as refused:
        validate_group_configs(Config({}), {name: value})
    assert refused.value.code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(('name', 'value', 'message'), [
    ('streams.assignor.name', 'nope',
     "streams.assignor.name 'nope' is not a registered task assignor. Registered assignors are: [sticky]."),
    ('errors.deadletterqueue.topic.name', '__consumer_offsets',
     "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'"),
])
def test_a_name_is_refused_in_the_words_of_kafka(name, value, message):
    with pytest.raises(KafkaError) as refused:
        validate_group_configs(Config({}), {name: value})
    assert (refused.value.code, str(refused.value)) == (ErrorCode.INVALID_CONFIG, message)


@pytest.mark.parametrize('name', ['', 'bad name!', 'no.such.topic', 'dlq.orders', '_one'])
def test_every_other_name_is_accepted_for_a_dead_letter_topic(name):
    validate_group_configs(Config({}), {'errors.deadletterqueue.topic.name': name})


@pytest.mark.parametrize('overrides', [
    {'consumer.heartbeat.interval.ms': '45000'},
    {'consumer.heartbeat.interval.ms': '50000', 'consumer.session.timeout.ms': '50000'},
])
def test_a_session_lasts_longer_than_a_heartbeat(overrides):
    config = Config({'group.consumer.max.heartbeat.interval.ms': '60000'})
    validate_group_configs(config, {'consumer.heartbeat.interval.ms': '44999'})
    with pytest.raises(KafkaError, match='expected less than consumer'):
        validate_group_configs(config, overrides)


@pytest.mark.parametrize(('low', 'high'), AT_MOST)
def test_the_bounds_of_the_broker_are_in_order(low, high):
    rows = {row.name: row for row in MODERN_GROUPS}
    value = max(rows[low].low, rows[high].default + 1)
    with pytest.raises(ConfigError) as refused:
        Config({low: str(value)})
    assert refused.value.name.startswith('group.')


@pytest.mark.parametrize('kind', GROUP_KINDS)
def test_the_heartbeats_of_a_broker_fit_its_sessions(kind):
    with pytest.raises(ConfigError, match='expected less than'):
        Config({f'group.{kind}.heartbeat.interval.ms': '45000', f'group.{kind}.max.heartbeat.interval.ms': '45000'})


@pytest.mark.parametrize(('text', 'expected_ms'), [
    ('PT1H', 3_600_000), ('P1D', 86_400_000), ('pt1m', 60_000), ('PT0.5S', 500), ('P1DT2H3M4.005S', 93_784_005),
    ('PT-1H61M', 60_000), ('-PT1S', -1000), ('PT-0.5S', -500), ('PT1.S', 1000), ('PT0,25S', 250),
])
def test_durations_are_those_of_java(text, expected_ms):
    assert java_duration_ms(text) == expected_ms


@pytest.mark.parametrize('text', ['', 'P', 'PT', 'P1DT', 'P1Y', '1H', 'PT1', 'PT.5S', 'PT1H2', 'PT1S1M', '\u0661S',
                                  'P106751991167301D', 'PT-9223372036854775809S'])
def test_other_durations_are_refused(text):
    with pytest.raises(ValueError, match='PnDTnHnMn'):
        java_duration_ms(text)


@pytest.mark.parametrize(('value', 'is_valid'), [
    ('latest', True), ('earliest', True), ('by_duration:PT0S', True), ('by_duration:-PT1S', False),
    ('by_duration:', False), ('Latest', False),
])
def test_a_share_group_may_begin_at_an_age(value, is_valid):
    if is_valid:
        validate_group_configs(Config({}), {'share.auto.offset.reset': value})
    else:
        with pytest.raises(KafkaError, match='by_duration'):
            validate_group_configs(Config({}), {'share.auto.offset.reset': value})


def test_a_group_is_described_with_the_origins_of_its_configs():
    config = Config({'group.consumer.session.timeout.ms': '50000'})
    found = {entry.name: entry for entry in describe_group(config, {'consumer.session.timeout.ms': ' 55000 '})}
    assert found.keys() == {name for name, setting in GROUP_SETTINGS.items() if not setting.row.internal}
    assert len(found) == 21
    session = found['consumer.session.timeout.ms']
    assert (session.value, session.source, session.read_only) == ('55000', Source.DYNAMIC_GROUP, False)
    assert session.synonyms == [Synonym('consumer.session.timeout.ms', '55000', Source.DYNAMIC_GROUP),
                                Synonym('group.consumer.session.timeout.ms', '50000', Source.STATIC_BROKER),
                                Synonym('group.consumer.session.timeout.ms', '45000', Source.DEFAULT)]
    reset = found['share.auto.offset.reset']
    assert (reset.value, reset.synonyms) == ('latest', [Synonym('share.auto.offset.reset', 'latest', Source.DEFAULT)])
    assignor = found['streams.assignor.name']
    assert (assignor.value, assignor.synonyms) == (
        'sticky', [Synonym('group.streams.assignors', 'sticky', Source.DEFAULT)])


def test_an_internal_config_is_described_only_where_it_is_set():
    found = {entry.name: entry for entry in describe_group(Config({}), {'streams.num.warmup.replicas': ' 03'})}
    assert len(found) == 22
    warmups = found['streams.num.warmup.replicas']
    assert [(synonym.name, synonym.value) for synonym in warmups.synonyms] == [
        ('streams.num.warmup.replicas', ' 03'), ('group.streams.num.warmup.replicas', '2')]


def test_the_coordinator_reads_the_configs_of_a_group_again_when_they_change():
    world = World()
    assert world.groups.group_config('g') is world.groups.group_config('another')
    world.group_overrides['g'] = {'share.delivery.count.limit': '7'}
    group = world.groups.group_config('g')
    assert group.share_delivery_count_limit == 7
    assert world.groups.group_config('g') is group
    world.group_overrides['g'] = {'share.delivery.count.limit': '8'}
    assert world.groups.group_config('g').share_delivery_count_limit == 8


def test_the_coordinator_takes_over_changed_settings_of_the_broker():
    world = World()
    world.group_overrides['g'] = {'consumer.session.timeout.ms': '50000'}
    assert world.groups.group_config('g').timing['consumer'] == Timing(50000, 5000, 1000)
    world.config.adopt(world.config.with_changes(
        cluster_wide={'group.consumer.assignment.interval.ms': '2000'}, per_broker={}))
    world.groups.reconfigure()
    assert world.groups.group_config('g').timing['consumer'] == Timing(50000, 5000, 2000)
    assert world.groups.group_config('another').timing['consumer'] == Timing(45000, 5000, 2000)


def test_the_configs_that_are_kept_are_bounded():
    configs = GroupConfigs(Config({}), lambda group_id: {'share.delivery.count.limit': '7'})
    for number in range(MOST_KEPT + 1):
        assert configs.of(str(number)).share_delivery_count_limit == 7
    assert len(configs._kept) == MOST_KEPT
    for number in range(100):
        assert configs.of(f'{number}' + 'g' * 30_000 + '\U0001f600').share_delivery_count_limit == 7
    assert len(configs._kept) < 100, 'a long id of wide characters takes the room of many short ones'


def test_long_configs_of_a_group_are_not_kept():
    tags = [f'{number:x}' for number in range(256, 10_000)]
    texts = {'short': ','.join(tags[:50]), 'long': ','.join(tags)}
    overrides = {group_id: {'streams.rack.aware.assignment.tags': text} for group_id, text in texts.items()}
    configs = GroupConfigs(Config({}), overrides.__getitem__)
    assert configs.of('long').streams_rack_aware_assignment_tags == tuple(tags)
    assert configs.of('short') is configs.of('short')
    assert len(configs._kept) == 1


def test_the_memory_of_a_kept_config_is_within_its_measure():
    tags = ','.join(f'{number:02x}' for number in range(MOST_KEPT_CHARACTERS // 3))
    config = Config({})
    made = [GroupConfig(config, {'streams.rack.aware.assignment.tags': tags})]
    tracemalloc.start()
    try:
        made += [GroupConfig(config, {'streams.rack.aware.assignment.tags': tags}) for _ in range(100)]
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes / (len(made) - 1) <= KEPT_BYTES

"""Cases for configs that a client sets in an unusual form. DescribeConfigs shows them in their usual form."""

from __future__ import annotations

from typing import Any

from cases_records import case
from cases_topics import BROKER, DELETE, GROUP, SET, TOPIC, alter, describe
from raw_peer import RawPeer

from kbroker.settings.config import Config
from kbroker.settings.group_resources import default
from kbroker.settings.groups import GROUP_SETTINGS
from kbroker.settings.rows import Scope, Setting, Type, Update
from kbroker.settings.table import SETTINGS, TOPIC_SETTINGS

CLUSTER_WIDE = 3
WITHOUT_SYNONYMS_HERE = ('local.retention.ms', 'local.retention.bytes')
"""Topic settings for which kbroker has no broker setting that gives their default."""
GROUPS_WITHOUT_SYNONYMS_HERE = tuple(name for name in GROUP_SETTINGS if name.endswith('.assignor.offload.enable'))
"""Group settings for which kbroker has no broker setting that gives their default."""
BROKER_ROWS = [
    row
    for row in SETTINGS.values()
    if row.update is Update.CLUSTER_WIDE and row.scope is Scope.BROKER and not row.name.startswith('kbroker.')
]


def unusual(setting: Setting, default: Any = None) -> str:
    """Return a valid value of a setting in an unusual form. It means the default, or any valid value if the setting has
    no default.
    """
    value = setting.default if default is None else default
    if setting.type is Type.BOOLEAN:
        return f' {str(value).upper()} '
    if setting.type in (Type.INT, Type.LONG):
        value = 60_000 if value is None else value
        return f' +00{value} ' if value >= 0 else f'  {value} '
    if setting.type is Type.DOUBLE:
        return f' {value * 10:.3f}e-1 '
    if setting.type is Type.LIST:
        return ' , '.join(['', *value, ''][1:-1])
    return f' {value} '


def set_all(peer: RawPeer, resource_type: int, name: str, values: dict[str, str]) -> None:
    alter(peer, resource_type, name, *((key, SET, value) for key, value in values.items()))
    settle(peer, resource_type, name, values, are_set=True)


def reset_all(peer: RawPeer, resource_type: int, name: str, values: dict[str, str]) -> None:
    alter(peer, resource_type, name, *((key, DELETE, None) for key in values))
    settle(peer, resource_type, name, values, are_set=False)


def settle(peer: RawPeer, resource_type: int, name: str, values: dict[str, str], *, are_set: bool) -> None:
    """Wait until the broker shows that these configs are set, or that they are not."""
    dynamic = {TOPIC: 1, BROKER: 2 if name else CLUSTER_WIDE, GROUP: 8}[resource_type]
    peer.prepare_until(
        lambda answer: len(values) * are_set == sum(
            entry.config_source == dynamic for entry in answer.results[0].configs),
        'DescribeConfigs',
        resources=[dict(resource_type=resource_type, resource_name=name, configuration_keys=list(values))])


@case
def configs_of_topics_in_unusual_forms(peer: RawPeer) -> None:
    rows = [row for row in TOPIC_SETTINGS.values() if not row.internal and row.name not in WITHOUT_SYNONYMS_HERE]
    values = {row.name: unusual(row) for row in rows if row.default != ''}
    values['compression.gzip.level'] = ' -1'
    others = [
        {'cleanup.policy': 'compact, delete', 'min.cleanable.dirty.ratio': '0', 'preallocate': 'True'},
        {'cleanup.policy': ' delete,delete', 'min.cleanable.dirty.ratio': '1.'},
        {'cleanup.policy': '', 'min.cleanable.dirty.ratio': '.00001'},
        {'min.cleanable.dirty.ratio': '1e-7', 'leader.replication.throttled.replicas': '0:1, 0:1'},
        {'leader.replication.throttled.replicas': ' * ', 'follower.replication.throttled.replicas': ''},
        {'min.cleanable.dirty.ratio': '0.3333333333333333333333', 'max.message.bytes': ' 1000'}]
    for number, given in enumerate([values, *others]):
        name = f'{peer.topic}_{number}'
        for version in (5, 7):
            peer.ask(
                'CreateTopics', version, timeout_ms=30000, validate_only=version == 5, topics=[dict(
                    name=name, num_partitions=1, replication_factor=1,
                    configs=[dict(name=key, value=value) for key, value in given.items()])])
        peer.await_topic(name)
        for version in range(1, 5):
            describe(peer, TOPIC, name, version, [row.name for row in rows], include_synonyms=True)


@case
def configs_of_groups_in_unusual_forms(peer: RawPeer) -> None:
    config = Config({})
    values = {name: unusual(setting.row, default(config, setting)) for name, setting in GROUP_SETTINGS.items()}
    values = {name: value for name, value in values.items()
              if value.strip() and name not in GROUPS_WITHOUT_SYNONYMS_HERE}
    set_all(peer, GROUP, peer.topic, values)
    for version in range(1, 5):
        describe(peer, GROUP, peer.topic, version, include_synonyms=True)
    reset_all(peer, GROUP, peer.topic, values)
    describe(peer, GROUP, peer.topic, include_synonyms=True)


@case
def configs_of_brokers_in_unusual_forms(peer: RawPeer) -> None:
    peer.create_topic()
    values = {row.name: unusual(row) for row in BROKER_ROWS if row.default not in ('', None)}
    del values['min.insync.replicas']  # of the whole cluster only
    for name in [name for name in values if name.endswith('assignment.interval.ms')]:
        del values[name]  # Kafka 4.3.1 ignores every change of the broker's configs that comes with this form
    keys = [row.name for row in BROKER_ROWS]
    topic_keys = [name for name in TOPIC_SETTINGS if name not in WITHOUT_SYNONYMS_HERE]
    for name in ('', '1'):
        set_all(peer, BROKER, name, values)
        for described in ('', '1'):
            describe(peer, BROKER, described, 4, keys, include_synonyms=True)
        describe(peer, TOPIC, peer.topic, 4, topic_keys, include_synonyms=True)
        peer.ask(
            'CreateTopics', timeout_ms=30000, validate_only=True,
            topics=[dict(name='another', num_partitions=1, replication_factor=1)])
    set_all(peer, BROKER, '1', {'log.retention.ms': ' +604800000'})
    describe(peer, BROKER, '1', 4, ['log.retention.ms', 'log.retention.hours'], include_synonyms=True)
    describe(peer, TOPIC, peer.topic, 4, ['retention.ms'], include_synonyms=True)
    reset_all(peer, BROKER, '1', {**values, 'log.retention.ms': ''})
    reset_all(peer, BROKER, '', values)
    describe(peer, BROKER, '1', 4, keys, include_synonyms=True)

"""The settings of consumer, share and streams groups. Some are settings of the broker, some of a GROUP resource.

If the broker has a setting `group.NAME`, it is the default of the setting `NAME` of a GROUP resource. Further settings
of the broker may bound the value in force: `GroupSetting.least` and `GroupSetting.most` contain their names.
"""
import itertools
from collections.abc import Callable
from typing import Any

from kbroker.base.lean_dataclasses import dataclass
from kbroker.settings.rows import (
    INT_MAX,
    MIN_SEGMENT_BYTES,
    Rule,
    Setting,
    Type,
    Update,
    boolean_row,
    int_row,
    long_row,
    string_row,
)

GROUP_KINDS = ('consumer', 'share', 'streams')
"""The kinds of groups for which the broker computes the assignments."""

REBALANCE_PROTOCOLS = ('consumer', 'classic', 'share', 'streams')
MIGRATION_POLICIES = ('disabled', 'downgrade', 'upgrade', 'bidirectional')

PROTOCOLS_WITH_CLASSIC = Rule(
    lambda value: 'classic' in value and set(value) <= set(REBALANCE_PROTOCOLS),
    f'a list of {", ".join(REBALANCE_PROTOCOLS)} that contains classic')
A_MIGRATION_POLICY = Rule(lambda value: value.lower() in MIGRATION_POLICIES,
                          f'one of {", ".join(MIGRATION_POLICIES)}')
CONSUMER_ASSIGNORS = Rule(lambda value: value != () and set(value) <= {'uniform', 'range'},
                          'a list of uniform and range, with at least one of them')
ONLY_SIMPLE = Rule(lambda value: value != () and set(value) == {'simple'}, 'simple, the only assignor of share groups')
ONLY_STICKY = Rule(lambda value: value != () and set(value) == {'sticky'},
                   'sticky, the only assignor of streams groups')
NO_DUPLICATES = Rule(lambda value: len(set(value)) == len(value) and '' not in value,
                     'a list without duplicates and without empty entries')

BY_DURATION = 'by_duration:'


def _is_offset_reset(text: str) -> bool:
    if not text.startswith(BY_DURATION):
        return text in ('latest', 'earliest')
    from kbroker.settings.durations import java_duration_ms  # the start does not need it

    try:
        return java_duration_ms(text.removeprefix(BY_DURATION)) >= 0
    except ValueError:
        return False


OFFSET_RESET = Rule(_is_offset_reset, 'latest, earliest, or by_duration:PnDTnHnMn.nS')


def _timing(kind: str, members: str) -> tuple[Setting, ...]:
    """Return the rows for `kind`. Every kind of group has a row for each of these settings.

    `members` is the word for the members of such a group in the descriptions.
    """
    return (
        int_row(f'group.{kind}.session.timeout.ms', 45000,
                f'How long, in milliseconds, {members} may be silent before they are removed.', 1),
        int_row(f'group.{kind}.min.session.timeout.ms', 45000,
                f'The least {kind}.session.timeout.ms of a group, in milliseconds.', 1),
        int_row(f'group.{kind}.max.session.timeout.ms', 60000,
                f'The largest {kind}.session.timeout.ms of a group, in milliseconds.', 1),
        int_row(f'group.{kind}.heartbeat.interval.ms', 5000,
                f'The interval, in milliseconds, in which {members} send heartbeats.', 1),
        int_row(f'group.{kind}.min.heartbeat.interval.ms', 5000,
                f'The least {kind}.heartbeat.interval.ms of a group, in milliseconds.', 1),
        int_row(f'group.{kind}.max.heartbeat.interval.ms', 15000,
                f'The largest {kind}.heartbeat.interval.ms of a group, in milliseconds.', 1),
        int_row(f'group.{kind}.assignment.interval.ms', 1000,
                f'The least interval, in milliseconds, between two assignments of a {kind} group.', 0,
                update=Update.CLUSTER_WIDE),
        int_row(f'group.{kind}.min.assignment.interval.ms', 0,
                f'The least {kind}.assignment.interval.ms of a group, in milliseconds.', 0),
        int_row(f'group.{kind}.max.assignment.interval.ms', 15000,
                f'The largest {kind}.assignment.interval.ms of a group, in milliseconds.', 0),
    )


CONSUMER = (
    *_timing('consumer', 'consumers'),
    int_row('group.consumer.max.size', INT_MAX, 'The largest number of members in a consumer group.', 1),
    Setting('group.consumer.assignors', Type.LIST, ('uniform', 'range'),
            'The assignors of consumer groups. Groups whose members name none use the first.', rule=CONSUMER_ASSIGNORS),
    string_row('group.consumer.migration.policy', 'bidirectional',
               'The groups with members that may change their protocol. upgrade: from classic to consumer; downgrade: '
               'from consumer to classic; bidirectional: both; disabled: none. An empty group may always change.',
               rule=A_MIGRATION_POLICY),
    int_row('group.consumer.regex.refresh.interval.ms', 600000,
            'How often, in milliseconds, the topics of regular expressions are looked up again.', 10000, internal=True),
)
SHARE = (
    *_timing('share', 'share consumers'),
    int_row('group.share.max.size', 200, 'The largest number of members in a share group.', 1, high=1000),
    Setting('group.share.assignors', Type.LIST, ('simple',), 'The assignor of share groups.', rule=ONLY_SIMPLE),
    int_row('group.share.max.share.sessions', 2000, 'The largest number of share sessions.', 1),
    int_row('group.share.record.lock.duration.ms', 30000,
            'How long, in milliseconds, an acquired record belongs to its consumer.', 1000, high=3600000),
    int_row('group.share.min.record.lock.duration.ms', 15000,
            'The least share.record.lock.duration.ms of a group, in milliseconds.', 1000, high=30000),
    int_row('group.share.max.record.lock.duration.ms', 60000,
            'The largest share.record.lock.duration.ms of a group, in milliseconds.', 30000, high=3600000),
    int_row('group.share.delivery.count.limit', 5,
            'How often a record is delivered to a share group before it counts as failed.', 2, high=10),
    int_row('group.share.min.delivery.count.limit', 2, 'The least share.delivery.count.limit of a group.', 2, high=5),
    int_row('group.share.max.delivery.count.limit', 10, 'The largest share.delivery.count.limit of a group.', 5,
            high=25),
    int_row('group.share.partition.max.record.locks', 2000,
            'The largest number of records in flight in a share partition.', 100, high=10000),
    int_row('group.share.min.partition.max.record.locks', 100,
            'The least share.partition.max.record.locks of a group.', 100, high=2000),
    int_row('group.share.max.partition.max.record.locks', 4000,
            'The largest share.partition.max.record.locks of a group.', 2000, high=10000),
    int_row('share.coordinator.state.topic.num.partitions', 50,
            'The number of partitions of __share_group_state when it is created.', 1),
    int_row('share.coordinator.state.topic.min.isr', 1, 'min.insync.replicas of __share_group_state.', 1),
    int_row('share.coordinator.state.topic.segment.bytes', 104857600,
            'The segment size of __share_group_state in bytes.', MIN_SEGMENT_BYTES),
    int_row('share.coordinator.snapshot.update.records.per.snapshot', 500,
            'The number of updates of a share partition after which its whole state is written.', 0, high=500),
    int_row('share.coordinator.cold.partition.snapshot.interval.ms', 300000,
            'How often, in milliseconds, the state of an idle share partition is written.', 1, internal=True),
    int_row('share.coordinator.state.topic.prune.interval.ms', 300000,
            'How often, in milliseconds, __share_group_state loses the records that are no longer needed.', 1,
            internal=True),
    boolean_row('errors.deadletterqueue.auto.create.topics.enable', False,
                'Create the dead-letter topic of a share group when it is missing and a record is due for it.',
                update=Update.CLUSTER_WIDE),
    string_row('errors.deadletterqueue.topic.name.prefix', 'dlq.',
               'The prefix that the name of a dead-letter topic must have. Empty: any name is allowed.',
               update=Update.CLUSTER_WIDE),
)
STREAMS = (
    *_timing('streams', 'members of streams groups'),
    int_row('group.streams.max.size', INT_MAX, 'The largest number of members in a streams group.', 1),
    int_row('group.streams.num.standby.replicas', 0, 'The number of standby replicas of a task with state.', 0),
    int_row('group.streams.max.standby.replicas', 2, 'The largest streams.num.standby.replicas of a group.', 0),
    int_row('group.streams.initial.rebalance.delay.ms', 3000,
            'How long, in milliseconds, a new streams group waits for more members.', 0),
    Setting('group.streams.assignors', Type.LIST, ('sticky',), 'The assignor of streams groups.', rule=ONLY_STICKY),
    Setting('group.streams.rack.aware.assignment.tags', Type.LIST, (),
            'The client tags that every member of a streams group must have.', rule=NO_DUPLICATES),
    int_row('group.streams.num.warmup.replicas', 2, 'The number of warm-up replicas of a streams group.', 0,
            internal=True),
    int_row('group.streams.max.warmup.replicas', 20, 'The largest streams.num.warmup.replicas of a group.', 0,
            internal=True),
    int_row('group.streams.task.offset.interval.ms', 60000,
            'The interval, in milliseconds, in which members of streams groups report the offsets of their tasks.', 1,
            internal=True),
    int_row('group.streams.min.task.offset.interval.ms', 15000,
            'The least streams.task.offset.interval.ms of a group, in milliseconds.', 1, internal=True),
    long_row('group.streams.acceptable.recovery.lag', 10000,
             'The lag, in records, up to which a task counts as caught up.', 0, internal=True),
)

MODERN_GROUPS = (
    Setting('group.coordinator.rebalance.protocols', Type.LIST, ('classic', 'consumer', 'streams'),
            'The protocols of groups that are served. Share groups depend on the feature share.version alone.',
            rule=PROTOCOLS_WITH_CLASSIC),
    *CONSUMER, *SHARE, *STREAMS,
)
"""The broker's rows."""

_BROKER_ROWS = {row.name: row for row in MODERN_GROUPS}


@dataclass(frozen=True, slots=True)
class GroupSetting:
    """A setting of a GROUP resource, with the names of the broker's settings that it depends on."""

    row: Setting
    broker_name: str | None
    """The name of the broker's setting that is the default, or None if there is none."""
    least: str | None = None
    most: str | None = None
    is_one_of_the_brokers: bool = False
    """True if the broker's setting is the list of valid values. The first entry of the list is the default."""
    refusal: Callable[[Any, Any], str | None] | None = None
    """A function that takes a value and the value of the broker's setting. It returns Kafka's error message, or None
    if the value is valid."""


def _with_default_of_the_broker(name: str, least: str | None = None, most: str | None = None) -> GroupSetting:
    broker_name = f'group.{name}'
    row = _BROKER_ROWS[broker_name]
    return GroupSetting(Setting(name, row.type, row.default, row.doc, low=row.low, rule=row.rule,
                                update=Update.CLUSTER_WIDE, internal=row.internal), broker_name, least, most)


def _bounded(kind: str, name: str) -> GroupSetting:
    return _with_default_of_the_broker(f'{kind}.{name}', f'group.{kind}.min.{name}', f'group.{kind}.max.{name}')


def _refusal_of_a_dead_letter_topic(name: str, _broker_value: Any) -> str | None:
    is_internal = name.startswith('__')
    return "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'" if is_internal else None


def _refusal_of_an_assignor(name: str, assignors: tuple[str, ...]) -> str | None:
    if name in assignors:
        return None
    return (f"streams.assignor.name '{name}' is not a registered task assignor. Registered assignors are: "
            f'[{", ".join(assignors)}].')


GROUP_SETTINGS: dict[str, GroupSetting] = {setting.row.name: setting for setting in (
    *(_bounded(kind, name) for kind in GROUP_KINDS
      for name in ('session.timeout.ms', 'heartbeat.interval.ms', 'assignment.interval.ms')),
    *(_bounded('share', name)
      for name in ('record.lock.duration.ms', 'delivery.count.limit', 'partition.max.record.locks')),
    GroupSetting(string_row('share.auto.offset.reset', 'latest',
                            'The place at which a share group begins to read a partition: its end, its start, or the '
                            'records of this age.', rule=OFFSET_RESET, update=Update.CLUSTER_WIDE), None),
    GroupSetting(string_row('share.isolation.level', 'read_uncommitted',
                            'read_committed hides the records of open and of aborted transactions from a share group.',
                            values=('read_committed', 'read_uncommitted'), update=Update.CLUSTER_WIDE), None),
    GroupSetting(boolean_row('share.renew.acknowledge.enable', True,
                             'Let share consumers extend the lock of a record.', update=Update.CLUSTER_WIDE), None),
    GroupSetting(string_row('errors.deadletterqueue.topic.name', '',
                            'The topic that gets the records that a share group could not process. Empty: none. It '
                            'takes effect at share.version 2.', update=Update.CLUSTER_WIDE), None,
                 refusal=_refusal_of_a_dead_letter_topic),
    GroupSetting(boolean_row('errors.deadletterqueue.copy.record.enable', False,
                             'Copy the key and the value of a record into its dead letter.',
                             update=Update.CLUSTER_WIDE), None),
    _with_default_of_the_broker('streams.num.standby.replicas', most='group.streams.max.standby.replicas'),
    _with_default_of_the_broker('streams.initial.rebalance.delay.ms'),
    GroupSetting(string_row('streams.assignor.name', 'sticky', 'The assignor of a streams group.',
                            update=Update.CLUSTER_WIDE), 'group.streams.assignors', is_one_of_the_brokers=True,
                 refusal=_refusal_of_an_assignor),
    _with_default_of_the_broker('streams.rack.aware.assignment.tags'),
    _with_default_of_the_broker('streams.num.warmup.replicas', most='group.streams.max.warmup.replicas'),
    _with_default_of_the_broker('streams.task.offset.interval.ms', least='group.streams.min.task.offset.interval.ms'),
    _with_default_of_the_broker('streams.acceptable.recovery.lag'),
    *(GroupSetting(boolean_row(f'{kind}.assignor.offload.enable', True,
                               'Accepted for compatibility: assignments are computed in the only thread.',
                               update=Update.CLUSTER_WIDE, internal=True), None) for kind in GROUP_KINDS),
)}
"""Maps the name of a setting of a GROUP resource to the setting."""


def _relations() -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for setting in GROUP_SETTINGS.values():
        names = [name for name in (setting.least, setting.broker_name, setting.most) if name is not None]
        pairs += itertools.pairwise(names)
    return *pairs, ('group.share.max.size', 'group.share.max.share.sessions')


AT_MOST = _relations()
"""Pairs of the broker's settings. The first value of a pair must not exceed the second."""
LESS_THAN = tuple((f'{kind}.heartbeat.interval.ms', f'{kind}.session.timeout.ms') for kind in GROUP_KINDS)
"""Pairs of settings of a GROUP resource. The first value of a pair must be less than the second.

The same applies to the broker's settings, whose names begin with `group.`.
"""
